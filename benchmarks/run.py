"""Measures ceqr against others and against its own arithmetic, in turns in one run, and writes a table and a chart.

    python benchmarks/run.py                                        # about ten minutes
    python benchmarks/run.py --only reference-1600 --repeats 9

Timings on shared machines are noisy, so the programs of a group run one after the other, round after round, and a ratio
is the median over rounds of the ratio within a round. Frames a second of different groups are not to be compared.
Needs `pip install -e ".[bench]"`.
"""

import dataclasses
import json
import multiprocessing
import platform
import statistics
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import jax.numpy as jnp
import numpy as np
import tyro

from ceqr.bench import bare_runner, loop_runner, rounds_in_turns
from ceqr.bench_sb3 import require_sb3, sb3_runner, sb3_vector_runner
from ceqr.cli import use_compilation_cache
from ceqr.compilation import use_one_thread
from ceqr.config import RunConfig, default_config
from ceqr.errors import UserError
from ceqr.runs import read_config
from ceqr.training import checkpoint
from ceqr.training.players import Player

Runner = Callable[[int], None]  # plays that many frames


@dataclass(frozen=True)
class Program:
    """One of the programs that are compared; `seeds` of them advance by one frame each in a frame of the runner."""

    name: str
    runner: Runner
    seeds: int = 1


@dataclass(frozen=True)
class Comparison:
    """The first program held against each of the others."""

    title: str
    aim: str
    programs: Callable[[], list[Program]]
    one_thread: bool = False  # whether `ceqr train` would run such small programs on one thread


@dataclass(frozen=True)
class Result:
    """Frames a second, all seeds together, by program: one number a round."""

    title: str
    aim: str
    rates: dict[str, list[float]]

    def median(self, name: str) -> float:
        return statistics.median(self.rates[name])

    def ratio(self, name: str) -> float:
        """How many times as fast the first program is as this one."""
        first = next(iter(self.rates.values()))
        return statistics.median(a / b for a, b in zip(first, self.rates[name], strict=True))

    def lines(self) -> list[str]:
        first, *others = self.rates
        lines = [f"| {self.title} | {first} | {self.median(first):,.0f} | | |"]
        lines += [f"| | {name} | {self.median(name):,.0f} | {self.ratio(name):.2f} | {self.aim} |" for name in others]
        return lines


def config(agent: str, hidden: int, **hyper: Any) -> RunConfig[Any]:
    made = default_config(agent, "paper", "minatar/breakout")
    return dataclasses.replace(made, hyper=dataclasses.replace(made.hyper, hidden=(hidden,), **hyper))


def ours(made: RunConfig[Any], seeds: int = 1) -> Runner:
    return loop_runner(dataclasses.replace(made, seeds=seeds))


def eager(hidden: int) -> Runner:
    from benchmarks.eager_torch import Options, Training

    training = Training("breakout", Options(hidden=hidden, learning_starts=1_000))
    training.run(1_000)  # fills replay, as for ours
    return training.run


def full_replay(size: int) -> Runner:
    """Our loop with a replay of that size that is full from the start."""

    def fill(player: Player) -> None:
        player.start()
        (states,) = player.groups
        replay, slots = states.replay, size + 1
        bits = np.random.default_rng(0).integers(256, size=replay.observation.shape, dtype=np.uint8)
        filled = replay._replace(
            observation=jnp.asarray(bits),
            slots=jnp.arange(slots, dtype=jnp.int32)[None, None],
            head=jnp.array([[size]], jnp.int32),
            newest=jnp.array([[size]], jnp.int32),
        )
        player.groups = [states._replace(replay=filled)]

    return loop_runner(config("ceqr-dqn", 128, replay_size=size), fill)


def from_run(path: Path) -> list[Program]:
    """A run as it was at its end and as it was at its beginning."""
    made, _ = read_config(path)
    saved = checkpoint.latest(path / "checkpoints")
    if saved is None:
        raise UserError(f"{path} has no checkpoint.")
    frame = saved.frame
    return [
        Program(
            f"from frame {frame + 1_000:,}", loop_runner(made, lambda player: player.load(saved), frame), made.seeds
        ),
        Program("from frame 1,000", loop_runner(made), made.seeds),
    ]


def reference(hidden: int, aim: str) -> Comparison:
    made = config("ceqr-dqn", hidden)
    return Comparison(
        f"CEQR-DQN, {hidden} units",
        aim,
        lambda: [
            Program("ceqr", ours(made)),
            Program("eager PyTorch", eager(hidden)),
            Program("bare arithmetic", bare_runner(made)),
        ],
    )


def versus_sb3() -> list[Program]:
    made = config("qr-dqn", 128)
    bare = bare_runner(made)
    return [
        Program("ceqr", ours(made)),
        Program("sb3-contrib", sb3_runner(made)),
        Program("bare arithmetic", bare),
    ]


def cartpole(agent: str) -> RunConfig[Any]:
    """256 x 256 units, batch 64, 50 quantiles, an update every 2 frames; CEQR-DQN as printed."""
    made = default_config(agent, "paper", "gymnasium/CartPole-v1")
    setting = {"hidden": (256, 256), "batch_size": 64, "learning_rate": 1e-3, "update_every": 2, "target_period": 250}
    return dataclasses.replace(made, hyper=dataclasses.replace(made.hyper, **setting))


def counting() -> list[Program]:
    """What conjugate evidence costs, with the 128 units of preset quick."""
    made = default_config("ceqr-dqn", "quick", "minatar/breakout")
    learned = dataclasses.replace(made.hyper, evidence="learned")
    return [Program("learned", ours(dataclasses.replace(made, hyper=learned))), Program("conjugate", ours(made))]


def on_the_host(agent: str) -> list[Program]:
    made = cartpole(agent)
    programs = [Program("ceqr", loop_runner(made))]
    if agent == "qr-dqn":
        programs.append(Program("sb3-contrib", sb3_vector_runner(made)))
    compiled = dataclasses.replace(made, env="gymnax/CartPole-v1")
    return [
        *programs,
        Program("ceqr, compiled environment (gymnax)", loop_runner(compiled)),
        Program("bare arithmetic", bare_runner(made)),
    ]


def many_seeds(hidden: int, aim: str) -> Comparison:
    made = config("ceqr-dqn", hidden)
    return Comparison(
        f"Seeds, {hidden} units",
        aim,
        lambda: [Program("four seeds", ours(made, 4), 4), Program("one seed", ours(made))],
    )


def rival(agent: str) -> Comparison:
    made = config(agent, 128)
    return Comparison(
        f"{agent}, 128 units",
        "0.5",
        lambda: [Program("ceqr", ours(made)), Program("bare arithmetic", bare_runner(made))],
    )


COMPARISONS = {
    "reference-1600": reference(1600, "2.5 eager, 0.7 bare"),
    "reference-128": reference(128, "4 eager, 0.5 bare"),
    "sb3": Comparison("QR-DQN, 128 units", "5 sb3, 0.5 bare", versus_sb3),
    "cartpole": Comparison("QR-DQN on CartPole-v1", "4 sb3", lambda: on_the_host("qr-dqn"), True),
    "cartpole-ceqr": Comparison(
        "CEQR-DQN on CartPole-v1", "740 frames/s", lambda: on_the_host("ceqr-dqn"), one_thread=True
    ),
    "evidence": Comparison("CEQR-DQN's evidence, 128 units", "below 1.1", counting),
    "seeds-128": many_seeds(128, "1.3"),
    "seeds-1600": many_seeds(1600, "1.3"),
    "replay": Comparison(
        "Full replay",
        "0.9",
        lambda: [
            Program("of 1,000,000 frames", full_replay(1_000_000)),
            Program("of 10,000 frames", full_replay(10_000)),
        ],
    ),
    **{agent: rival(agent) for agent in ("dqn", "bootstrapped-dqn", "duvn", "ua-dqn")},
}


@dataclass(frozen=True)
class Options:
    """What to measure, how long, and where to write it."""

    only: tuple[str, ...] = ()
    """Comparisons to make; all unless given."""
    run: Annotated[Path | None, tyro.conf.arg(metavar="RUN")] = None
    """Also compare the speed at the end of this run with that at its beginning."""
    seconds: float = 3.0
    """How long each measurement should take."""
    repeats: int = 7
    """Rounds."""
    table: Path = Path("benchmark.md")
    """Where to write the table."""
    chart: Path = Path("benchmark.png")
    """Where to write the chart (PNG)."""
    json: Path | None = None
    """Where to write the rates of every round."""


def draw(results: list[Result], path: Path) -> None:
    """Bars of frames a second, each comparison in units of its first program."""
    from matplotlib.figure import Figure

    bars = [(result, name) for result in results for name in result.rates]
    figure = Figure(figsize=(8, 0.34 * len(bars) + 0.42 * len(results) + 0.8), layout="constrained")
    axes = figure.subplots()
    y, ticks, labels = 0.0, [], []
    for result in results:
        axes.text(0, y, result.title, fontsize=9, weight="bold", va="center")
        y += 0.9
        first = next(iter(result.rates))
        for name in result.rates:
            relative = 1 / result.ratio(name)
            axes.barh(y, relative, height=0.8, color="C0" if name == first else "0.75")
            axes.text(relative, y, f" {result.median(name):,.0f} frames/s", va="center", fontsize=8)
            ticks.append(y)
            labels.append(name)
            y += 1
        y += 0.4
    axes.set_yticks(ticks, labels, fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.18, y=0.01)
    axes.set_xlabel("speed relative to the blue bar of the group (median of ratios within a round)")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def measure(name: str, seconds: float, repeats: int) -> Result:
    """One comparison, by its name or by the run that it is about."""
    path = Path(name)
    comparison = COMPARISONS.get(name) or Comparison(f"The run {path.name}", "0.9", lambda: from_run(path))
    if comparison.one_thread:
        use_one_thread()
    use_compilation_cache()
    programs = comparison.programs()
    rounds = rounds_in_turns([p.runner for p in programs], seconds, repeats)
    rates = {p.name: [rate[i] * p.seeds for rate in rounds] for i, p in enumerate(programs)}
    return Result(comparison.title, comparison.aim, rates)


def main(options: Options) -> None:
    unknown = set(options.only) - set(COMPARISONS)
    if unknown:
        raise UserError(f"Unknown comparison {', '.join(unknown)}; known are {', '.join(COMPARISONS)}.")
    require_sb3()
    names = [*(options.only or COMPARISONS), *([] if options.run is None else [str(options.run)])]
    results = []
    for name in names:
        print(f"{name} ...", file=sys.stderr, flush=True)
        # Each in a process of its own: how many threads XLA has is decided once in a process.
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
            results.append(process.submit(measure, name, options.seconds, options.repeats).result())
        print("\n".join(results[-1].lines()), flush=True)
    command = "python " + " ".join(sys.argv)
    lines = [
        f"`{command}` on {platform.machine()}, Python {platform.python_version()}, {options.repeats} rounds.",
        "",
        "| what | program | frames/s | first / this | aim |",
        "|---|---|---:|---:|---|",
        *(line for result in results for line in result.lines()),
    ]
    options.table.write_text("\n".join(lines) + "\n")
    draw(results, options.chart)
    if options.json is not None:
        options.json.write_text(json.dumps([dataclasses.asdict(result) for result in results], indent=1) + "\n")
    print(f"Table: {options.table}. Chart: {options.chart}.", file=sys.stderr)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    try:
        main(tyro.cli(Options, description=__doc__))
    except UserError as error:
        sys.exit(f"error: {error}")
