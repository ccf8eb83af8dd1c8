"""Calibrating the return's quantiles: what it costs the values, and whether it calibrates.

    python benchmarks/quantile_calibration.py                       # begins again where it was stopped
    python benchmarks/quantile_calibration.py --variants none --seeds 1

CEQR-DQN with the defaults for vectors on compiled CartPole, but for what a variant says of the calibration of Z. After
training: the mean return of 100 greedy episodes, and on transitions of replay how far the quantiles are from covering
what they should, in two senses. `paired`: the share of samples whose i-th target quantile is below the i-th quantile,
the paper's. `pooled`: the share of all target quantiles below it, which is what a quantile of their distribution means.
Rows go to quantile_calibration.csv in --out as they are found.
"""

import dataclasses
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import tyro
from rows import Rows

from ceqr.agents.base import pick
from ceqr.cli import use_compilation_cache
from ceqr.config import default_config
from ceqr.errors import UserError
from ceqr.evaluate import play_episodes
from ceqr.losses import quantile_coverage_error, quantile_levels
from ceqr.training.train import player_of

VARIANTS: dict[str, dict[str, Any]] = {
    "as printed": {"calibrate_quantiles": True},
    "without SHARP": {"calibrate_quantiles": True, "lambda_cal": 0.0},  # of the interval, too
    "none": {},
    "none, pinball": {"kappa": 0.0},  # whose optimum is calibrated by itself
}
LOOKED_AT = 2_048  # transitions of replay
EPISODES, LIMIT = 100, 10_000


@dataclass(frozen=True)
class Options:
    """What to train."""

    variants: tuple[str, ...] = tuple(VARIANTS)
    """Which calibrations."""
    seeds: int = 3
    """Seeds of each."""
    seed_start: int = 100
    """The first of them."""
    frames: int = 30_000
    """Frames to train."""
    out: Path = Path("runs/quantile_calibration")
    """Folder of the table."""


def main(options: Options) -> None:
    use_compilation_cache()
    for variant in options.variants:
        if variant not in VARIANTS:
            raise UserError(f"Unknown variant {variant!r}; known are {', '.join(VARIANTS)}.")
    rows = Rows(
        options.out / "quantile_calibration.csv", ("variant", "seed"), ("greedy", "paired", "pooled", "seconds")
    )
    for seed in range(options.seed_start, options.seed_start + options.seeds):
        for variant in options.variants:
            if not rows.has(variant, seed):
                rows.add(variant=variant, seed=seed, **train(VARIANTS[variant], seed, options.frames))
    print(summary(rows.read()))


def train(particular: dict[str, Any], seed: int, frames: int) -> dict[str, Any]:
    """One seed: how well it plays, and how well its quantiles cover."""
    config = default_config("ceqr-dqn", None, "gymnax/CartPole-v1")
    hyper = dataclasses.replace(config.hyper, **particular)
    config = dataclasses.replace(config, hyper=hyper, seed_start=seed, frames=frames)
    player, began = player_of(config), time.monotonic()
    player.start()
    frame = 0
    while frame < frames:
        frame, _ = player.run(frame, frames)
    state = jax.tree.map(lambda x: x[0], player.groups[0])
    agent: Any = player.loop.agent

    @jax.jit
    def errors(state: Any) -> tuple[jax.Array, jax.Array]:
        batch = player.loop.replay.sample(state.replay, jax.random.bits(jax.random.key(0), (LOOKED_AT,), jnp.uint32))
        learned = state.agent
        outputs = agent.forward(learned.params, learned.frozen, batch.observation, None)
        theta = pick(outputs.quantiles, batch.action)
        target = agent._target(agent._successors(learned, batch), batch)
        below = jnp.mean(target[:, None, :] <= theta[:, :, None], axis=(0, 2))
        pooled = jnp.mean(jnp.abs(below - quantile_levels(theta.shape[1], theta.dtype)))
        return quantile_coverage_error(theta, target), pooled

    paired, pooled = errors(state)
    returns, _ = play_episodes(agent, state.agent, config.make_env(), seed, EPISODES, LIMIT)
    player.close()
    return {
        "greedy": f"{statistics.fmean(returns):.1f}",
        "paired": f"{float(paired):.3f}",
        "pooled": f"{float(pooled):.3f}",
        "seconds": round(time.monotonic() - began),
    }


def summary(rows: list[dict[str, str]]) -> str:
    """A table of all seeds."""
    lines = ["| calibration of Z | greedy return, each seed | paired error | pooled error |", "|---|---|---|---|"]
    for variant in VARIANTS:
        of = [row for row in rows if row["variant"] == variant]
        if of:
            told = [", ".join(row[name] for row in of) for name in ("greedy", "paired", "pooled")]
            lines.append(f"| {variant} | {' | '.join(told)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    try:
        main(tyro.cli(Options, description=__doc__))
    except UserError as error:
        sys.exit(str(error))
