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
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import tyro
from jax.nn import relu
from rows import Rows

from ceqr import agents
from ceqr.agents.base import AgentState, Batch, Metrics, Successors, pick
from ceqr.agents.ceqr_dqn import CEQRDQN, CEQRNetwork, CEQROutputs
from ceqr.cli import use_compilation_cache
from ceqr.config import default_config
from ceqr.errors import UserError
from ceqr.evaluate import play_episodes
from ceqr.losses import quantile_coverage_error, quantile_levels
from ceqr.training.train import player_of

LOOKED_AT = 2_048  # transitions of replay
EPISODES, LIMIT = 100, 10_000


@dataclass(frozen=True)
class Pooled(CEQRDQN):
    """Each quantile is judged by all target quantiles, of which it should have its level below it. No SHARP."""

    def loss(
        self, outputs: CEQROutputs, successors: Successors, batch: Batch, state: AgentState
    ) -> tuple[jax.Array, Metrics]:
        loss, metrics = super().loss(outputs, successors, batch, state)
        theta, target = pick(outputs.quantiles, batch.action), self._target(successors, batch)
        error = target[:, None, :] - theta[:, :, None]  # [B, N, N]
        below = jnp.mean(error <= 0, axis=(0, 2))
        return loss + _coverage(error, below, self.hyper.lambda_cal), metrics


class Counted(NamedTuple):
    """What CEQR-DQN counts, and what is averaged over the coverage window of its quantiles."""

    share: Any
    evidence: Any
    below: jax.Array  # [N]: the share of i-th target quantiles below the i-th quantile


@dataclass(frozen=True)
class Averaged(CEQRDQN):
    """The paper's COV, judged on an average over the coverage window instead of a batch. No SHARP."""

    def init_statistics(self, params: CEQRNetwork) -> Any:
        levels = quantile_levels(self.hyper.quantiles)
        return Counted(*super().init_statistics(params), below=levels)

    def update_statistics(
        self, state: AgentState, outputs: CEQROutputs, successors: Successors, batch: Batch, frame: jax.Array
    ) -> Any:
        counted: Any = super().update_statistics(state, outputs, successors, batch, frame)
        theta, target = pick(outputs.quantiles, batch.action), self._target(successors, batch)
        moved = (jnp.mean(target <= theta, axis=0) - counted.below) / self.hyper.coverage_window
        return counted._replace(below=counted.below + moved)

    def loss(
        self, outputs: CEQROutputs, successors: Successors, batch: Batch, state: AgentState
    ) -> tuple[jax.Array, Metrics]:
        loss, metrics = super().loss(outputs, successors, batch, state)
        theta, target = pick(outputs.quantiles, batch.action), self._target(successors, batch)
        counted: Any = state.statistics
        return loss + _coverage((target - theta)[..., None], counted.below, self.hyper.lambda_cal), metrics


def _coverage(error: jax.Array, below: jax.Array, sharpness: float) -> jax.Array:
    """The paper's (1 - lambda_cal) COV, by what is known of the share below: error [B, N, any], below [N]."""
    level = quantile_levels(len(below))
    under, over = (below < level)[:, None], (below > level)[:, None]
    return (1 - sharpness) * jnp.mean(jnp.where(under, relu(error), 0) + jnp.where(over, relu(-error), 0))


agents.register("pooled", Pooled)
agents.register("averaged", Averaged)
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {  # an agent and its options
    "as printed": ("ceqr-dqn", {"calibrate_quantiles": True}),
    "as printed, no SHARP": ("ceqr-dqn", {"calibrate_quantiles": True, "lambda_cal": 0.0}),  # of the interval, too
    "averaged, no SHARP": ("averaged", {}),
    "pooled, no SHARP": ("pooled", {}),
    "none": ("ceqr-dqn", {}),
    "none, pinball": ("ceqr-dqn", {"kappa": 0.0}),  # whose optimum is calibrated by itself
}


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
                rows.add(variant=variant, seed=seed, **train(*VARIANTS[variant], seed, options.frames))
    print(summary(rows.read()))


def train(name: str, particular: dict[str, Any], seed: int, frames: int) -> dict[str, Any]:
    """One seed: how well it plays, and how well its quantiles cover."""
    config = default_config("ceqr-dqn", None, "gymnax/CartPole-v1")
    hyper = dataclasses.replace(config.hyper, **particular)
    config = dataclasses.replace(config, agent=name, hyper=hyper, seed_start=seed, frames=frames)
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
