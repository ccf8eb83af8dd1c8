"""What was tried on the paper's synthetic example, and what it gave: the table in docs/regression.md.

    python benchmarks/regression_tried.py --seeds 10

Each variant changes one thing of the defaults. Those that are no options of the estimator (coverage judged on one batch
alone, the interval score alone, a constant learning rate, no average of the parameters) are patched in here.
"""

import argparse
import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np

from ceqr import EvidentialQuantileRegressor, losses
from ceqr.regression import network, training
from ceqr.regression.synthetic import Metrics, fit

calibrate = losses.interval_calibration


def one_batch(lower, upper, target, variant, sharpness, coverage, share):
    return calibrate(lower, upper, target, variant, sharpness, coverage)


def score_alone(lower, upper, target, variant, sharpness, coverage, share):
    outside = jax.nn.relu(lower - target) + jax.nn.relu(target - upper)
    return jnp.mean(upper - lower + 2 / (1 - coverage) * outside)


@contextlib.contextmanager
def patched(module: Any, name: str, value: Any) -> Iterator[None]:
    program: Any = training._epochs
    program.clear_cache()
    with patch.object(module, name, value):
        yield
    program.clear_cache()


class ConstantRate:
    """jax.numpy with a cosine that is always one."""

    def __getattr__(self, name: str) -> Any:
        return jnp.ones_like if name == "cos" else getattr(jnp, name)


VARIANTS: dict[str, tuple[dict[str, Any], Callable[[], Any]]] = {
    "defaults": ({}, contextlib.nullcontext),
    "coverage judged on one batch": ({}, lambda: patched(network.losses, "interval_calibration", one_batch)),
    "interval score alone": ({}, lambda: patched(network.losses, "interval_calibration", score_alone)),
    "constant learning rate": ({}, lambda: patched(training, "jnp", ConstantRate())),
    # 9,000 rows are 71 batches: the average is then over one update.
    "latest parameters, not averaged": ({}, lambda: patched(training, "AVERAGED", 1 / 71)),
    "no early stopping": ({"early_stopping": False}, contextlib.nullcontext),
    "activation tanh": ({"activation": "tanh"}, contextlib.nullcontext),
    "activation silu": ({"activation": "silu"}, contextlib.nullcontext),
    "hidden 64, 64": ({"hidden": (64, 64)}, contextlib.nullcontext),
    "hidden 400, 400": ({"hidden": (400, 400)}, contextlib.nullcontext),
    "lambda_reg 0.5": ({"lambda_reg": 0.5}, contextlib.nullcontext),
    "lambda_reg 1e-8": ({"lambda_reg": 1e-8}, contextlib.nullcontext),
    "calibration released": ({"calibration": "released"}, contextlib.nullcontext),
    "conformal": ({"conformal": True}, contextlib.nullcontext),
    "location joint": ({"location": "joint"}, contextlib.nullcontext),
    "evidence learned": ({"evidence": "learned"}, contextlib.nullcontext),
    "both, as printed": ({"location": "joint", "evidence": "learned"}, contextlib.nullcontext),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--only", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    options = parser.parse_args()
    print("| variant | coverage in range % | width | epistemic outside / inside | aleatoric correlation | fit s |")
    print("|---|---|---|---|---|---|")
    for name in options.only:
        chosen, context = VARIANTS[name]
        with context():
            rows = [fit(EvidentialQuantileRegressor(**chosen), seed) for seed in range(options.seeds)]
        print(_line(name, rows), flush=True)


def _line(name: str, rows: list[Metrics]) -> str:
    def span(key: str, scale: float = 1.0, digits: int = 1) -> str:
        values = scale * np.array([row[key] for row in rows])
        return f"{values.min():.{digits}f} to {values.max():.{digits}f}"

    cells = [
        span("coverage_in_range", 100),
        f"{np.mean([row['mean_width_in_range'] for row in rows]):.2f}",
        span("epistemic_ratio", digits=2 if rows[0]["epistemic_ratio"] < 1 else 1),
        span("aleatoric_correlation", digits=3),
        f"{np.median([row['fit_seconds'] for row in rows]):.1f}",
    ]
    return f"| {name} | {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
