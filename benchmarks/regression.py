"""Intervals of EvidentialQuantileRegressor, MAPIE's CQR and scikit-learn's quantile boosting, on the same splits.

    python benchmarks/regression.py                 # coverage, width, interval score, fit time, OOD detection
    python benchmarks/regression.py --torch         # fit time against the same model in eager PyTorch, in turns
    python benchmarks/regression.py --memory        # memory after more and more epochs

Every method gets the same training rows and is measured on the same test rows; figures are means over splits. OOD is
the AUROC with which epistemic uncertainty tells test rows from the same rows with every feature moved by five of its
standard deviations, up or down at random. Needs `pip install -e ".[bench]"`.
"""

# pyright: reportMissingImports=false
import argparse
import json
import logging
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_diabetes, make_friedman1, make_friedman2, make_friedman3
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split

from ceqr import EvidentialQuantileRegressor
from ceqr.regression.estimator import automatic_batch_size
from ceqr.regression.synthetic import draw

COVERAGE = 0.9
SHIFT = 5.0  # standard deviations

Interval = tuple[np.ndarray, np.ndarray]


def heteroscedastic(seed: int) -> Interval:
    """Five inputs, of which two matter; the noise is skewed and grows with the third."""
    rng = np.random.RandomState(seed)
    x = rng.uniform(-1, 1, (3000, 5))
    noise = (0.1 + np.abs(x[:, 2])) * (rng.exponential(1, 3000) - 1)
    return x, np.sin(3 * x[:, 0]) + x[:, 1] ** 2 + noise


def synthetic(seed: int) -> Interval:
    rng = np.random.RandomState(seed)
    return draw(rng, 10_000, 3.0)


DATA: dict[str, Callable[[int], Any]] = {
    "synthetic": synthetic,
    "diabetes": lambda seed: load_diabetes(return_X_y=True),
    "friedman1": lambda seed: make_friedman1(2000, noise=1.0, random_state=seed),
    "friedman2": lambda seed: make_friedman2(2000, noise=50.0, random_state=seed),
    "friedman3": lambda seed: make_friedman3(2000, noise=0.1, random_state=seed),
    "heteroscedastic": heteroscedastic,
}


class Ours:
    """Our estimator with the conformal correction, as MAPIE has one."""

    def __init__(self, seed: int, **options):
        self.model = EvidentialQuantileRegressor(COVERAGE, **{"conformal": True, "random_state": seed, **options})

    def fit(self, x: np.ndarray, y: np.ndarray) -> None:
        self.model.fit(x, y)

    def interval(self, x: np.ndarray) -> Interval:
        return self.model.predict_interval(x)

    def epistemic(self, x: np.ndarray) -> np.ndarray | None:
        return self.model.predict_uncertainty(x)[1]


class Plain(Ours):
    """Our estimator as it comes, without the conformal correction."""

    def __init__(self, seed: int):
        super().__init__(seed, conformal=False)


class Mapie:
    """MAPIE's CQR on scikit-learn's quantile boosting; it keeps a quarter of the rows to conformalise, as ours."""

    def __init__(self, seed: int):
        from mapie.regression import ConformalizedQuantileRegressor

        base = GradientBoostingRegressor(loss="quantile", alpha=0.5, random_state=seed)
        self.model = ConformalizedQuantileRegressor(base, confidence_level=COVERAGE)
        self.seed = seed

    def fit(self, x: np.ndarray, y: np.ndarray) -> None:
        parts = train_test_split(x, y, test_size=0.25, random_state=self.seed)
        x, x_conformal, y, y_conformal = map(np.asarray, parts)
        self.model.fit(x, y).conformalize(x_conformal, y_conformal)

    def interval(self, x: np.ndarray) -> Interval:
        _, bounds = self.model.predict_interval(x)
        return bounds[:, 0, 0], bounds[:, 1, 0]

    def epistemic(self, x: np.ndarray) -> np.ndarray | None:
        return None


class Boosting:
    """scikit-learn's quantile boosting, one model a bound, as in its own example."""

    def __init__(self, seed: int):
        self.models = [
            GradientBoostingRegressor(loss="quantile", alpha=alpha, random_state=seed)
            for alpha in ((1 - COVERAGE) / 2, (1 + COVERAGE) / 2)
        ]

    def fit(self, x: np.ndarray, y: np.ndarray) -> None:
        for model in self.models:
            model.fit(x, y)

    def interval(self, x: np.ndarray) -> Interval:
        lower, upper = (model.predict(x) for model in self.models)
        return lower, upper

    def epistemic(self, x: np.ndarray) -> np.ndarray | None:
        return None


METHODS = {"ours, conformal": Ours, "ours, plain": Plain, "MAPIE CQR": Mapie, "boosting": Boosting}


def interval_score(lower: np.ndarray, upper: np.ndarray, y: np.ndarray) -> float:
    """Gneiting and Raftery's: the width, and the distance of what is outside times 2 / (1 - coverage)."""
    outside = np.maximum(lower - y, 0) + np.maximum(y - upper, 0)
    return float(np.mean(upper - lower + 2 / (1 - COVERAGE) * outside))


def measure(method: str, x: np.ndarray, y: np.ndarray, seed: int) -> dict[str, float]:
    x, x_test, y, y_test = map(np.asarray, train_test_split(x, y, test_size=0.3, random_state=seed))
    model = METHODS[method](seed)
    began = time.perf_counter()
    model.fit(x, y)
    seconds = time.perf_counter() - began
    lower, upper = model.interval(x_test)
    far = x_test + SHIFT * np.std(x, axis=0) * np.random.RandomState(seed).choice([-1, 1], x_test.shape)
    known, unknown = model.epistemic(x_test), model.epistemic(far)
    auroc = float("nan")
    if known is not None and unknown is not None:
        auroc = float(roc_auc_score(np.repeat([0, 1], len(far)), np.concatenate([known, unknown])))
    return {
        "coverage": float(100 * np.mean((lower <= y_test) & (y_test <= upper))),
        "width": float(np.mean(upper - lower)),
        "score": interval_score(lower, upper, y_test),
        "seconds": seconds,
        "auroc": auroc,
    }


def compare(names: list[str], splits: range) -> list[dict]:
    """All methods in turns on every split, means over the splits. The first split of each set is fitted once before,
    so that compilation is reported on its own."""
    table = []
    for name in names:
        x, y = DATA[name](0)
        began = time.perf_counter()
        measure("ours, conformal", x, y, 0)
        measure("ours, plain", x, y, 0)
        first = time.perf_counter() - began
        rows: dict[str, list[dict[str, float]]] = {method: [] for method in METHODS}
        for seed in splits:
            x, y = DATA[name](seed)
            for method in METHODS:
                rows[method].append(measure(method, x, y, seed))
        for method in METHODS:
            means = {key: float(np.mean([row[key] for row in rows[method]])) for key in rows[method][0]}
            spread = float(np.std([row["score"] for row in rows[method]], ddof=1) / np.sqrt(len(splits)))
            table.append({"data": name, "method": method, **means, "score_error": spread, "first": first})
            print(_line(table[-1]), flush=True)
    return table


def _line(row: dict) -> str:
    auroc = "none" if np.isnan(row["auroc"]) else f"{row['auroc']:.3f}"
    return (
        f"| {row['data']} | {row['method']} | {row['coverage']:.1f} | {row['width']:.4g} | {row['score']:.4g} ± "
        f"{row['score_error']:.2g} | {row['seconds']:.2f} | {auroc} |"
    )


def torch_fit(x: np.ndarray, y: np.ndarray, epochs: int, batch: int, seed: int) -> float:
    """The same network, losses, optimiser and schedule in eager PyTorch, as one would write it; returns seconds."""
    import torch
    from torch import nn
    from torch.nn.functional import softplus

    torch.manual_seed(seed)
    began = time.perf_counter()
    scaled = (torch.tensor((each - each.mean(0)) / each.std(0), dtype=torch.float32) for each in (x, y))
    inputs, targets = scaled
    torso = nn.Sequential(nn.Linear(x.shape[1], 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU())
    head = nn.Linear(128, 7)
    optimiser = torch.optim.Adam([*torso.parameters(), *head.parameters()], lr=1e-3)
    batches = -(-len(y) // batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs * batches)
    share, goal, nu = torch.tensor(COVERAGE), COVERAGE, max(1.0, len(y) / 129)
    levels = torch.tensor([(1 - goal) / 2, (1 + goal) / 2])
    for _ in range(epochs):
        order = torch.randperm(len(y))
        for rows in order.split(batch):
            target = targets[rows]
            raw = head(torso(inputs[rows]))
            gamma, alpha, beta = raw[:, 1:3], 1 + softplus(raw[:, 3:5]) + 1e-6, softplus(raw[:, 5:7]) + 1e-6
            lower, upper = gamma[:, 0], gamma[:, 1]
            above, below = torch.relu(target - upper), torch.relu(lower - target)
            inside = ((lower <= target) & (target <= upper)).float().mean()
            share = 0.99 * share + 0.01 * inside.detach()
            score = upper - lower + 2 / (1 - goal) * (above + below)
            if share > goal:
                tighten = torch.relu(upper - target) + torch.relu(target - lower)
                interval = score + 0.5 * tighten + 0.5 * (upper - lower)
            else:
                interval = score + 0.5 * (above + below)
            error = target[:, None] - gamma.detach()
            omega = 2 * beta * (1 + nu)
            likelihood = (
                0.5 * np.log(np.pi / nu)
                - alpha * torch.log(omega)
                + (alpha + 0.5) * torch.log(nu * error**2 + omega)
                + torch.lgamma(alpha)
                - torch.lgamma(alpha + 0.5)
            )
            tilted = torch.where(error < 0, levels - 1, levels) * error
            evidential = likelihood + 0.05 * tilted * (2 * nu + alpha + 1 / beta)
            loss = ((raw[:, 0] - target) ** 2).mean() + evidential.mean(0).sum() + interval.mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    return time.perf_counter() - began


def against_torch(data: str, repeats: int, epochs: int) -> None:
    """Both in turns, PyTorch with one thread and with as many as there are cores.

    Ours is compiled before, which is reported on its own. No rows are held out.
    """
    import torch

    x, y = DATA[data](0)
    batch = automatic_batch_size(len(y))
    options = {"epochs": epochs, "early_stopping": False}

    def ours(seed: int) -> float:
        began = time.perf_counter()
        EvidentialQuantileRegressor(COVERAGE, random_state=seed, **options).fit(x, y)
        return time.perf_counter() - began

    first = ours(0)
    cores = torch.get_num_threads()
    times: dict[str, list[float]] = {"ours": []}
    for seed in range(repeats):
        times["ours"].append(ours(seed))
        for threads in sorted({1, cores}):
            torch.set_num_threads(threads)
            times.setdefault(f"{threads} thread(s)", []).append(torch_fit(x, y, epochs, batch, seed))
    # The least of several: what else the machine does can only add.
    least = {name: min(each) for name, each in times.items()}
    mine = least.pop("ours")
    best = min(least.values())
    print(f"{data}: {epochs} epochs of {len(y):,} rows, batch {batch}, the fastest of {repeats} fits in turns")
    print(f"ours {mine:.2f} s (the first, with compilation, {first:.2f} s)")
    print(f"eager PyTorch {torch.__version__}: " + ", ".join(f"{s:.2f} s on {name}" for name, s in least.items()))
    print(f"{best / mine:.1f} times as fast as the faster of these, {best / first:.1f} times with compilation")


def memory(counts: tuple[int, ...] = (50, 100, 400, 1600)) -> None:
    """Resident memory after fits of more and more epochs."""
    import os

    x, y = DATA["synthetic"](0)
    for epochs in counts:
        EvidentialQuantileRegressor(epochs=epochs, hidden=(16,), early_stopping=False, random_state=0).fit(x, y)
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[1])
        print(f"{epochs:>6,} epochs: {pages * os.sysconf('SC_PAGE_SIZE') / 2**20:,.0f} MB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", choices=DATA, default=list(DATA))
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--first", type=int, default=100, help="seed of the first split; 0 to 4 chose our defaults")
    parser.add_argument("--json", type=Path, help="also write the table here")
    parser.add_argument("--torch", action="store_true", help="fit time against eager PyTorch")
    parser.add_argument("--memory", action="store_true", help="memory after more and more epochs")
    parser.add_argument("--repeats", type=int, default=5, help="fits of each with --torch")
    parser.add_argument("--epochs", type=int, default=20, help="epochs of each fit with --torch")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", category=FutureWarning)
    logging.disable(logging.INFO)  # MAPIE remarks on every crossing of quantiles
    if options.torch:
        for name in options.data:
            against_torch(name, options.repeats, options.epochs)
        return None
    if options.memory:
        return memory()
    print("| data | method | coverage % | mean width | interval score | fit s | OOD AUROC |")
    print("|---|---|---|---|---|---|---|")
    table = compare(options.data, range(options.first, options.first + options.splits))
    if options.json:
        options.json.write_text(json.dumps(table, indent=2) + "\n")
    return None


if __name__ == "__main__":
    main()
