"""A million frames: a run that is killed at 20 random moments against one that is left alone, and what both take.

    python benchmarks/million.py --out million          # about a quarter of an hour; needs two cores

Both train DQN on Breakout, a core each. SIGKILL strikes one of them at moments drawn in advance, and each time it is
resumed. In the end tables, summary and all arrays of the last checkpoint must be the same bytes, or the exit code is 1.
Memory and frames a second of the undisturbed run are drawn over its frames (million.png): both should be flat.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import psutil
import tyro

COMPARED = ("config.json", "episodes.csv", "metrics.csv", "summary.json")
COLOURS = ("#0072b2", "#d55e00")


@dataclass(frozen=True)
class Options:
    """What to train, how often to strike, and where to write."""

    out: Path = Path("million")
    """Folder for both runs, million.json and million.png; must not exist."""
    agent: str = "dqn"
    frames: int = 1_000_000
    kills: int = 20
    seed: int = 0
    """Of the moments at which SIGKILL strikes."""


def command(options: Options, run: Path) -> list[str]:
    """What begins a run, or goes on with it."""
    ceqr = [sys.executable, "-m", "ceqr.cli"]
    if (run / "config.json").exists():
        return [*ceqr, "resume", str(run), "--quiet"]
    what = ["--env", "minatar/breakout", "--agent", options.agent, "--preset", "quick", "--frames", str(options.frames)]
    return [*ceqr, "train", *what, "--checkpoint-seconds", "5", "--quiet", "--out", str(run)]


def start(options: Options, run: Path, core: int) -> subprocess.Popen[bytes]:
    """Pinned, since the number of cores decides in which order sums are taken."""
    process = subprocess.Popen(command(options, run))
    os.sched_setaffinity(process.pid, {core})
    return process


def reached(run: Path) -> int:
    """The frame of the newest checkpoint."""
    return max((int(path.stem) for path in run.glob("checkpoints/*.npz")), default=0)


def undisturbed(options: Options, run: Path, core: int) -> Iterator[tuple[int, float]]:
    """Trains, and tells the frame and the megabytes in memory every two seconds."""
    process = start(options, run, core)
    while process.poll() is None:
        try:
            yield reached(run), psutil.Process(process.pid).memory_info().rss / 2**20
        except psutil.NoSuchProcess:
            break
        time.sleep(2)
    if process.wait() != 0:
        raise RuntimeError("The undisturbed run failed.")


def struck(options: Options, run: Path, core: int) -> list[int]:
    """Trains, is killed again and again, is resumed each time; the last checkpoint at each strike."""
    rng = random.Random(options.seed)
    moments = sorted(rng.randrange(int(0.97 * options.frames)) for _ in range(options.kills))
    strikes = []
    for moment in moments:
        process = start(options, run, core)
        while process.poll() is None and reached(run) < moment:
            time.sleep(0.05)
        time.sleep(rng.uniform(0, 6))  # so that it does not always strike just after a checkpoint
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        strikes.append(reached(run))
        print(f"SIGKILL {len(strikes)} of {options.kills}: goes on from frame {strikes[-1]:,}", flush=True)
    if start(options, run, core).wait() != 0:
        raise RuntimeError("The run that was killed failed.")
    return strikes


def differences(a: Path, b: Path) -> list[str]:
    """The files and arrays in which two finished runs differ."""
    wrong = [name for name in COMPARED if (a / name).read_bytes() != (b / name).read_bytes()]
    states = []
    for run in (a, b):
        with np.load(max((run / "checkpoints").glob("*.npz"))) as file:
            states.append({name: file[name].tobytes() for name in file.files})
    return wrong + [name for name in states[0].keys() | states[1].keys() if states[0].get(name) != states[1].get(name)]


def speeds(run: Path) -> np.ndarray:
    """Rows of frame and frames a second, from the run's own timing."""
    rows = np.genfromtxt(run / "timing.csv", delimiter=",", names=True, dtype=None, encoding="utf-8")
    return np.column_stack([rows["frame"], rows["frames_per_second"]]).astype(float)


def draw(path: Path, memory: np.ndarray, speed: np.ndarray, strikes: list[int]) -> None:
    """Both over the frames; the first thousands of frames, which only fill replay, run off the upper panel."""
    figure, (above, below) = plt.subplots(2, 1, figsize=(8, 5), sharex=True, layout="constrained")
    above.plot(speed[:, 0] / 1e6, speed[:, 1], color=COLOURS[0], linewidth=0.8)
    above.set(ylabel="frames a second", ylim=(0, 1.3 * np.median(speed[:, 1])))
    above.set_title("One run of a million frames, left alone; another, killed at each mark, ended with the same bytes")
    below.plot(memory[:, 0] / 1e6, memory[:, 1], color=COLOURS[0])
    below.set(ylabel="memory in MiB", ylim=(0, 1.3 * memory[:, 1].max()), xlabel="frames in millions")
    below.plot(np.array(strikes) / 1e6, np.zeros(len(strikes)), "|", color=COLOURS[1], markersize=14, clip_on=False)
    below.annotate("where the other run was killed", (0.02, 0.1), xycoords="axes fraction", color=COLOURS[1])
    figure.savefig(path, dpi=110)


def main() -> None:
    options = tyro.cli(Options, description=__doc__)
    if options.out.exists():
        raise SystemExit(f"{options.out} exists; name another folder with --out.")
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise SystemExit("This needs two cores: the runs go on at the same time, a core each.")
    options.out.mkdir(parents=True)
    whole, killed = options.out / "whole", options.out / "killed"
    with ThreadPoolExecutor() as pool:
        other = pool.submit(struck, options, killed, cores[1])
        memory = np.array([sample for sample in undisturbed(options, whole, cores[0]) if sample[0] > 0])
        strikes = other.result()

    wrong = differences(whole, killed)
    speed = speeds(whole)
    tenths = np.array_split(np.arange(len(speed)), 10)
    late = memory[memory[:, 0] >= 0.2 * options.frames, 1]  # replay is full at a tenth
    result = {
        "agent": options.agent,
        "frames": options.frames,
        "strikes": strikes,
        "differences": wrong,
        "frames_per_second_by_tenths": [round(float(np.median(speed[part, 1])), 1) for part in tenths],
        "memory_mib_from_a_fifth_on": [round(float(late.min()), 1), round(float(late.max()), 1)],
        "memory_mib": [[int(frame), round(mib, 1)] for frame, mib in memory[:: max(len(memory) // 50, 1)]],
        "cores": len(cores),
    }
    (options.out / "million.json").write_text(json.dumps(result, indent=1) + "\n")
    draw(options.out / "million.png", memory, speed, strikes)
    print(json.dumps(result, indent=1))
    if wrong or len(strikes) < options.kills:
        raise SystemExit(f"{len(strikes)} of {options.kills} strikes; differing: {', '.join(wrong) or 'nothing'}.")


if __name__ == "__main__":
    main()
