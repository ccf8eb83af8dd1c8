"""What the tests of sweeps share: a small sweep that was never interrupted, and how to start others like it."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
PROBE = ["--import", "tests.probe_family", "--envs", "probe/noisy-chain"]
TINY = [
    *PROBE, "--agents", "dqn", "--hidden", "16", "--batch-size", "8", "--replay-size", "300", "--learning-starts", "60",
    "--target-period", "50", "--log-every", "50", "--checkpoint-seconds", "0", "--frames", "3000", "--seeds", "3",
]  # fmt: skip
"""Three runs with a checkpoint after each of 60 chunks."""


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "ceqr.cli", "sweep", *arguments]


def start(*arguments: str) -> "subprocess.Popen[str]":
    """A sweep in a process of its own, in which the probe can be imported."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command(*arguments), stderr=subprocess.PIPE, text=True, env=environment)


def finish(process: "subprocess.Popen[str]", code: int = 0) -> str:
    """Waits for a sweep, and returns what it said."""
    _, text = process.communicate(timeout=300)
    assert process.returncode == code, text
    return text


def wait_for(condition: Callable[[], object], seconds: float = 240.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it never came"
        time.sleep(0.005)


def wait_for_checkpoint(sweep: Path) -> None:
    """Until a run of a sweep is well under way."""
    wait_for(lambda: list(sweep.glob("runs/*/summary.json")))


def assert_same_sweeps(a: Path, b: Path) -> None:
    """Two sweeps ended with the same bytes, to the last parameter."""
    names = sorted(run.name for run in a.glob("runs/*"))
    assert names == sorted(run.name for run in b.glob("runs/*"))
    assert names
    for name in names:
        for file in ("episodes.csv", "metrics.csv", "summary.json", "config.json"):
            assert (a / "runs" / name / file).read_bytes() == (b / "runs" / name / file).read_bytes(), (name, file)
        states = [max((sweep / "runs" / name / "checkpoints").glob("*.npz")) for sweep in (a, b)]
        with np.load(states[0]) as one, np.load(states[1]) as other:
            assert {k: one[k].tobytes() for k in one.files} == {k: other[k].tobytes() for k in other.files}


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of this machine that was never interrupted."""
    out = tmp_path_factory.mktemp("whole") / "sweep"
    text = finish(start(*TINY, "--out", str(out)))
    assert "3 of 3 runs are done" in text
    return out
