"""How to fill the machine with runs, and what a sweep costs beside them.

    python benchmarks/sweep.py fill         frames a second of several arrangements of processes, seeds and cores
    python benchmarks/sweep.py overhead     a sweep of 1,000 tiny runs against playing the same frames bare

The results stand in docs/how-to-sweep.md.
"""

import argparse
import dataclasses
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from ceqr.cli import use_compilation_cache
from ceqr.config import RunConfig, default_config

STARTS = 100  # the frame at which learning starts, and after as many more measuring


def _breakout(hidden: int, seeds: int) -> RunConfig[Any]:
    config = default_config("ceqr-dqn", "paper", "minatar/breakout")
    return dataclasses.replace(config, seeds=seeds, hyper=dataclasses.replace(config.hyper, hidden=(hidden,)))


def play(hidden: int, seeds: int) -> None:
    """A process of `fill`: for each number of seconds on its standard input, plays so long and says how fast it was."""
    use_compilation_cache()
    from ceqr.training.train import player_of

    player = player_of(_breakout(hidden, seeds), learning_starts=STARTS)
    player.start()
    frame = 0
    while frame < 3 * STARTS:
        frame, _ = player.run(frame, 3 * STARTS)
    print("ready", flush=True)
    for line in sys.stdin:
        began, first = time.monotonic(), frame
        while time.monotonic() - began < float(line):
            frame, _ = player.run(frame, frame + 200)
        print((frame - first) * seeds / (time.monotonic() - began), flush=True)


def fill(sizes: list[int], seconds: float, repeats: int) -> None:
    """All arrangements in turns; the median of each counts."""
    cores = sorted(os.sched_getaffinity(0))
    arrangements: dict[str, list[tuple[int, list[int]]]] = {
        f"{len(cores)} processes, a core and a seed each": [(1, [core]) for core in cores],
        "one process, one seed, all cores": [(1, cores)],
        f"one process, {len(cores)} seeds, all cores": [(len(cores), cores)],
    }
    for hidden in sizes:
        started = {
            name: [_start(hidden, seeds, pinned) for seeds, pinned in parts] for name, parts in arrangements.items()
        }
        for process in (each for parts in started.values() for each in parts):
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        rates: dict[str, list[float]] = {name: [] for name in started}
        for _ in range(repeats):
            for name, parts in started.items():
                rates[name].append(_rate(parts, seconds))
        for name, values in rates.items():
            print(f"{hidden:>5} units  {name:<40} {median(values):8,.0f} frames/s")
        for process in (each for parts in started.values() for each in parts):
            process.communicate()


def _start(hidden: int, seeds: int, cores: list[int]) -> "subprocess.Popen[str]":
    command = ["taskset", "-c", ",".join(map(str, cores)), sys.executable, __file__, "play", str(hidden), str(seeds)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _rate(parts: "list[subprocess.Popen[str]]", seconds: float) -> float:
    for process in parts:
        assert process.stdin is not None
        process.stdin.write(f"{seconds}\n")
        process.stdin.flush()
    return sum(float(process.stdout.readline()) for process in parts if process.stdout)


def overhead(runs: int) -> None:
    """The wall time of a sweep times its cores, against the time that the same frames take when only played."""
    use_compilation_cache()
    from ceqr.experiments.directory import SweepDirectory
    from ceqr.experiments.execute import Fixed, Status, execute
    from ceqr.experiments.live import Live
    from ceqr.experiments.local import LocalEngine
    from ceqr.experiments.sweep import complete, expand

    declared = {
        "agents": "dqn", "envs": "minatar/breakout", "hidden": 16, "batch_size": 8, "replay_size": 1_000,
        "learning_starts": 100, "frames": 300, "log_every": 100,
    }  # fmt: skip
    engine = LocalEngine()
    warm = expand(complete({**declared, "seeds": engine.cores}))
    specs = expand(complete({**declared, "seeds": runs, "seed_start": engine.cores}))
    with tempfile.TemporaryDirectory() as folder:
        directory = SweepDirectory(Path(folder, "sweep"))
        directory.hold()
        directory.write_declaration(complete({**declared, "seeds": engine.cores + runs}))
        # One run in each process first: it imports, traces and compiles.
        execute(Fixed(warm), Status(directory, 0), engine, Live(quiet=True), [])
        began = time.monotonic()
        status = Status(directory, 0)
        execute(Fixed(specs), status, engine, Live(), [])
        swept = (time.monotonic() - began) * engine.cores / runs
        assert len(status.settled) == runs
        engine.close()
        directory.let_go()
    os.environ["NPROC"] = "1"
    os.sched_setaffinity(0, engine_core := {min(os.sched_getaffinity(0))})
    from ceqr.training.train import player_of

    times = []
    for spec in specs[:51]:
        player = player_of(spec.config)
        player.start()
        began, frame = time.monotonic(), 0
        while frame < spec.config.frames:
            frame, _ = player.run(frame, spec.config.frames)
        times.append(time.monotonic() - began)
    bare = median(times[1:])
    print(f"{runs:,} runs of {declared['frames']} frames on {engine.cores} cores: {1e3 * swept:.1f} ms a run and core")
    print(f"the same frames, played bare on core {min(engine_core)}: {1e3 * bare:.1f} ms a run")
    print(f"overhead: {1e3 * (swept - bare):.1f} ms a run")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("fill")
    one.add_argument("--hidden", type=int, nargs="+", default=[128, 1600])
    one.add_argument("--seconds", type=float, default=3.0)
    one.add_argument("--repeats", type=int, default=3)
    two = commands.add_parser("overhead")
    two.add_argument("--runs", type=int, default=1_000)
    three = commands.add_parser("play")
    three.add_argument("hidden", type=int)
    three.add_argument("seeds", type=int)
    args = parser.parse_args()
    if args.command == "fill":
        fill(args.hidden, args.seconds, args.repeats)
    elif args.command == "overhead":
        overhead(args.runs)
    else:
        play(args.hidden, args.seeds)


if __name__ == "__main__":
    main()
