"""Aversion to risk: falls off the windy cliff, and returns, against lambda_al, for the two agents that have it.

    python benchmarks/risk.py                                 # half an hour; begins again where it was stopped
    python benchmarks/risk.py --variants ua-dqn --seeds 3

The cliff is one where the edge is better on average and the way round is safe, so that lambda_al decides. It is in
force while an agent learns and when it plays. Its greedy policy is judged by the maze's own model: falls and returns of
that policy are exact, and so is what an agent would do that knew the truth (`Maze.best_policy`). Beside them stand what
the agent takes for the noise of two actions at the start, and the spread of its quantiles: that of the edge, and that
of waiting, which is as noisy, since the edge comes after. Agents have the defaults for vectors, but for a network that
is small as the maze is, and UA-DQN the epistemic factor 2 of its authors' experiment on the cliff. CEQR-DQN also plays
with noise that is drawn anew in every step. Rows go to risk.csv in --out as they are found, the figure beside it.
"""

import dataclasses
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from matplotlib.figure import Figure
from rows import Rows

from ceqr.cli import use_compilation_cache
from ceqr.config import default_config
from ceqr.envs.maze import Kind, Maze
from ceqr.errors import UserError
from ceqr.experiments.stats import mean_interval
from ceqr.progress import Progress
from ceqr.runs import EpisodeRow
from ceqr.training.train import player_of


class Variant(NamedTuple):
    """An agent with its options, and how it is drawn."""

    agent: str
    label: str
    colour: str
    marker: str
    options: dict[str, Any]


VARIANTS = {
    "ceqr-dqn": Variant("ceqr-dqn", "CEQR-DQN", "#0072b2", "o", {}),
    "ceqr-dqn-step": Variant("ceqr-dqn", "CEQR-DQN, --thompson step", "#56b4e9", "^", {"thompson": "step"}),
    "ua-dqn": Variant("ua-dqn", "UA-DQN", "#d55e00", "s", {"lambda_ep": 2.0}),
}
SMALL: dict[str, Any] = {
    "hidden": (64,), "quantiles": 20, "batch_size": 32, "learning_starts": 200, "learning_rate": 2e-3,
    "n_step": 1, "init": "orthogonal", "double": False, "prior_scale": 1.0,
}  # fmt: skip
CLIFF = ("width=3", "wind=0.1")  # the edge pays 6.5 on average, the way round 5.8 for sure (discounted)
RESULTS = (
    "falls", "reward", "learning_falls", "noise_edge", "noise_wait", "spread_edge", "spread_wait",
)  # fmt: skip
EDGE, WAIT = 1, 3  # actions at the start: right, and left into the wall


@dataclass(frozen=True)
class Options:
    """What to train."""

    variants: tuple[str, ...] = tuple(VARIANTS)
    """Which agents."""
    lambdas: tuple[float, ...] = (0.0, 0.03, 0.1, 0.3, 1.0, 3.0)
    """Values of lambda_al."""
    seeds: int = 5
    """Seeds of each, trained side by side."""
    frames: int = 10_000
    """Frames to train."""
    cliff: tuple[str, ...] = CLIFF
    """Options of maze/cliff, as key=value."""
    out: Path = Path("runs/risk")
    """Folder of the table and the figure."""


def main(options: Options) -> None:
    use_compilation_cache()
    for variant in options.variants:
        if variant not in VARIANTS:
            raise UserError(f"Unknown variant {variant!r}; known are {', '.join(VARIANTS)}.")
    rows = Rows(options.out / "risk.csv", ("variant", "lambda_al", "seed"), RESULTS)
    for lambda_al in options.lambdas:
        for variant in options.variants:
            seeds = [seed for seed in range(options.seeds) if not rows.has(variant, lambda_al, seed)]
            if seeds:
                learned = learn(variant, lambda_al, seeds[0], len(seeds), options.frames, options.cliff)
                for seed, result in zip(seeds, learned, strict=True):
                    rows.add(variant=variant, lambda_al=lambda_al, seed=seed, **result)
    draw(rows.read(), make_maze(options.cliff), options.out / "risk.png")


def make_maze(cliff: tuple[str, ...]) -> Maze:
    return default_config("ua-dqn", "vector", "maze/cliff", cliff).make_env()


def learn(
    variant: str, lambda_al: float, first: int, seeds: int, frames: int, cliff: tuple[str, ...]
) -> list[dict[str, Any]]:
    """Trains seeds, and tells of each what its greedy policy does."""
    config = default_config(VARIANTS[variant].agent, "vector", "maze/cliff", cliff)
    options = {k: v for k, v in (SMALL | VARIANTS[variant].options).items() if hasattr(config.hyper, k)}
    hyper = dataclasses.replace(config.hyper, lambda_al=lambda_al, **options)
    config = dataclasses.replace(config, hyper=hyper, frames=frames, seed_start=first, seeds=seeds)
    maze: Maze = config.make_env()
    player = player_of(config)
    player.start()
    frame, episodes = 0, []
    with Progress(f"{variant}, lambda_al {lambda_al:g}", frames) as progress:
        while frame < frames:
            frame, new = player.run(frame, frames)
            episodes += new
            progress.update(frame, f"{len(episodes):,} episodes")
    player.close()
    state = jax.tree.map(lambda *leaves: np.concatenate(leaves), *(group.agent for group in player.groups))
    results = []
    for i, seed in enumerate(config.seed_numbers):
        mine = jax.tree.map(lambda x, i=i: x[i], state)
        actions, beliefs = player.loop.agent.act_greedily(mine, jnp.asarray(maze.cell_observations()))
        played = maze.episodes(np.asarray(actions))
        noise, spread = np.asarray(beliefs.aleatoric)[maze.start], np.asarray(beliefs.quantiles)[maze.start].std(-1)
        own = [each for each in episodes if each.seed == seed]
        numbers = {
            "falls": played.visits[maze.kinds == Kind.CLIFF].sum(),
            "reward": played.reward,
            "learning_falls": np.mean([_fell(each, maze) for each in own]),
            "noise_edge": noise[EDGE],
            "noise_wait": noise[WAIT],
            "spread_edge": spread[EDGE],
            "spread_wait": spread[WAIT],
        }
        results.append({name: round(float(value), 4) for name, value in numbers.items()})
    return results


def _fell(episode: EpisodeRow, maze: Maze) -> bool:
    """Whether an episode of training ended in a fall: it was not cut off, and paid what falls pay."""
    paid = maze.rules.step * episode.length + maze.rules.fall
    return episode.length < maze.limit and abs(episode.total - paid) < 1e-3


def draw(rows: list[dict[str, str]], maze: Maze, path: Path) -> None:
    """Falls and returns against lambda_al: every seed a point, means with 95 % intervals, and what the truth says."""
    figure = Figure(figsize=(11.5, 4), layout="constrained")
    lambdas = sorted({float(row["lambda_al"]) for row in rows})
    places = np.arange(len(lambdas))
    known = [maze.episodes(maze.best_policy(0.99, each)) for each in lambdas]
    truth = {"falls": [each.visits[maze.kinds == Kind.CLIFF].sum() for each in known], "learning_falls": None,
             "reward": [each.reward for each in known]}  # fmt: skip
    panels = {"falls": "falls per episode, greedy play", "learning_falls": "falls per episode, while learning",
              "reward": "return, greedy play"}  # fmt: skip
    for axes, (column, shown) in zip(figure.subplots(1, 3), panels.items(), strict=True):
        if truth[column] is not None:
            axes.plot(places, truth[column], "--", color="grey", label="who knows the truth", zorder=1)
        for i, (variant, (_, label, colour, marker, _)) in enumerate(VARIANTS.items()):
            beside = places + 0.14 * (i - 1)  # so that none hides another
            found = [
                np.array([float(r[column]) for r in rows if r["variant"] == variant and float(r["lambda_al"]) == each])
                for each in lambdas
            ]
            if not all(len(each) for each in found):
                continue
            for x, values in zip(beside, found, strict=True):
                axes.plot([x] * len(values), values, marker, color=colour, alpha=0.3, markersize=4)
            intervals = [mean_interval(values) for values in found]
            middle = np.array([each.value for each in intervals])
            reach = np.abs(np.array([[each.low, each.high] for each in intervals]).T - middle)
            axes.errorbar(beside, middle, reach, color=colour, marker=marker, capsize=3, label=label)
        axes.set(xlabel="lambda_al, aversion to risk", ylabel=shown)
        axes.set_xticks(places, [f"{each:g}" for each in lambdas])
        axes.grid(alpha=0.25)
        if column != "reward":
            axes.set_ylim(bottom=-0.01)
    handles, names = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=4, frameon=False)
    figure.suptitle(f"maze/cliff ({', '.join(f'{k} {v:g}' for k, v in maze.options)})")
    figure.savefig(path, dpi=150)
    print(f"Figure: {path}. Table: {path.with_suffix('.csv')}.")


if __name__ == "__main__":
    try:
        main(tyro.cli(Options, description=__doc__))
    except UserError as error:
        sys.exit(str(error))
