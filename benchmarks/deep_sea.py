"""Deep exploration: episodes until bsuite's DeepSea is solved, by the size of its grid.

    python benchmarks/deep_sea.py                                     # hours; begins again where it was stopped
    python benchmarks/deep_sea.py --variants conjugate --sizes 10 --seeds 3

One goal, N steps to the right away; every step to the right costs a little, and what an action means is drawn for each
cell. Who explores at random needs about 2^N episodes. Solved: the goal was reached in 90 of the last 100 episodes, or
by the greedy policy in each of five looks that 100 episodes span. All sizes and agents have the same options, but for
what an agent explores by. Rows go to deep_sea.csv in --out as they are found, the figure beside it.
"""

import dataclasses
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import tyro
from matplotlib.figure import Figure
from rows import Rows

from ceqr.cli import use_compilation_cache
from ceqr.config import REAL_DOUBT, default_config
from ceqr.envs.base import reset
from ceqr.errors import UserError
from ceqr.training.train import player_of

COMMON: dict[str, Any] = {
    "hidden": (256,), "quantiles": 10, "batch_size": 32, "learning_starts": 100, "update_every": 1,
    "target_period": 20, "target_rate": 0.0, "learning_rate": 1e-3, "adam_eps": 3e-4, "epsilon_frames": 10_000,
    "epsilon_hold": 1, "n_step": 1, "init": "orthogonal", "double": False,
    "bound_returns": False, "evidence_features": 512,  # which tell the 465 cells of N = 30 apart
}  # fmt: skip
AS_PRINTED = {
    "evidence": "learned", "location": "joint", "calibrate_quantiles": True, "coverage_window": 1, "thompson": "step",
    "lambda_ep": 0.01,
}  # fmt: skip
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {  # an agent and its options
    "conjugate": ("ceqr-dqn", REAL_DOUBT),
    "conjugate-257-features": ("ceqr-dqn", REAL_DOUBT | {"evidence_features": 256}),
    "conjugate-step": ("ceqr-dqn", REAL_DOUBT | {"thompson": "step"}),
    "conjugate-episode": ("ceqr-dqn", REAL_DOUBT | {"thompson": "episode"}),
    "learned": ("ceqr-dqn", AS_PRINTED),
    "learned-optimistic": ("ceqr-dqn", AS_PRINTED | {"thompson": "optimistic"}),
    "ua-dqn": ("ua-dqn", {}),
    "bootstrapped-dqn": ("bootstrapped-dqn", {}),
    "qr-dqn": ("qr-dqn", {}),
    "dqn": ("dqn", {}),
}
GOAL = 0.5  # a return above it has reached the goal, which pays 1
WINDOW, NEEDED = 100, 90  # episodes
LOOKS = 5  # of the greedy policy, in as many episodes as the window has


@dataclass(frozen=True)
class Options:
    """What to train."""

    variants: tuple[str, ...] = tuple(VARIANTS)
    """Which agents."""
    sizes: tuple[int, ...] = (10, 14, 20, 30)
    """N, the side of the grid."""
    seeds: int = 5
    """Seeds of each."""
    seed_start: int = 0
    """The first of them."""
    episodes: int = 3_000
    """After how many episodes to give up."""
    out: Path = Path("runs/deep_sea")
    """Folder of the table and the figure."""


def main(options: Options) -> None:
    use_compilation_cache()
    for variant in options.variants:
        if variant not in VARIANTS:
            raise UserError(f"Unknown variant {variant!r}; known are {', '.join(VARIANTS)}.")
    rows = Rows(options.out / "deep_sea.csv", ("variant", "size", "seed"), ("solved", "first", "episodes", "seconds"))
    for size in options.sizes:
        for variant in options.variants:
            for seed in range(options.seed_start, options.seed_start + options.seeds):
                if not rows.has(variant, size, seed):
                    rows.add(variant=variant, size=size, seed=seed, **solve(variant, size, seed, options.episodes))
    draw(rows.read(), options.out / "deep_sea.png")


def solve(variant: str, size: int, seed: int, most: int) -> dict[str, Any]:
    """Trains one seed; the episodes until it was solved, and until the goal was first reached ('' for never)."""
    name, particular = VARIANTS[variant]
    config = default_config(name, "vector", "gymnax/DeepSea-bsuite", (f"size={size}",))
    hyper = {k: v for k, v in (COMMON | particular).items() if hasattr(config.hyper, k)}
    config = dataclasses.replace(
        config, hyper=dataclasses.replace(config.hyper, **hyper), seed_start=seed, frames=most * size
    )
    player = player_of(config)
    player.start()
    greedy = greedy_return(player.loop.agent, config.make_env(), seed, size)
    began, frame, played, first, solved = time.monotonic(), 0, 0, "", ""
    window, looks = deque[bool](maxlen=WINDOW), deque[bool](maxlen=LOOKS)
    while frame < config.frames and solved == "":
        frame, rows = player.run(frame, min(config.frames, frame + WINDOW // LOOKS * size))
        for row in rows:
            played += 1
            window.append(row.total > GOAL)
            if window[-1] and first == "":
                first = played
        looks.append(greedy(jax.tree.map(lambda x: x[0], player.groups[0].agent)) > GOAL)
        if sum(window) >= NEEDED or (len(looks) == LOOKS and all(looks)):
            solved = played
    player.close()
    seconds = round(time.monotonic() - began)
    return {"solved": solved, "first": first, "episodes": played, "seconds": seconds}


def greedy_return(agent: Any, env: Any, seed: int, size: int) -> Callable[[Any], float]:
    """The return of one greedy episode; the grid has no chance, so one tells all."""

    @jax.jit
    def play(state: Any) -> jax.Array:
        def step(_: Any, carry: tuple[Any, jax.Array, jax.Array]) -> tuple[Any, jax.Array, jax.Array]:
            game, seen, total = carry
            action, _ = agent.act_greedily(state, seen[None])
            game, after = env.step(game, action[0], jax.random.key(0))
            return game, after.observation, total + after.reward

        game, seen = reset(env, jax.random.key(0), jnp.int32(seed))
        return jax.lax.fori_loop(0, size, step, (game, seen, jnp.float32(0)))[2]

    return lambda state: float(play(state))


def draw(rows: list[dict[str, str]], path: Path) -> None:
    """Episodes to solve against the size: every seed a point, the median a line where most are solved."""
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    sizes = sorted({int(r["size"]) for r in rows})
    most = max(int(r["episodes"]) for r in rows)
    axes.plot(sizes, [2.0**n for n in sizes], "--", color="grey", label="$2^N$: at random")
    variants = [v for v in VARIANTS if any(r["variant"] == v for r in rows)]
    for i, variant in enumerate(variants):
        colour, medians, beside = f"C{i}", {}, 0.15 * (i - (len(variants) - 1) / 2)  # so that no point hides another
        for n in sizes:
            found = [r["solved"] for r in rows if r["variant"] == variant and int(r["size"]) == n]
            solved = [int(each) for each in found if each]
            failed = len(found) - len(solved)
            axes.plot([n + beside] * len(solved), solved, "o", color=colour, alpha=0.6, markersize=4)
            axes.plot([n + beside] * failed, [most] * failed, "x", color=colour)
            if solved and 2 * len(solved) > len(found):
                medians[n + beside] = statistics.median([int(each) if each else most for each in found])
        axes.plot(list(medians), list(medians.values()), color=colour, label=variant, linewidth=1)
    axes.set(xlabel="N, the side of the grid", ylabel="episodes until solved", yscale="log", ylim=(50, 3 * most))
    axes.set_xticks(sizes)
    axes.set_title(f"DeepSea (crosses: not within {most:,} episodes)")
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=150)
    print(f"Figure: {path}. Table: {path.with_suffix('.csv')}.")


if __name__ == "__main__":
    try:
        main(tyro.cli(Options, description=__doc__))
    except UserError as error:
        sys.exit(str(error))
