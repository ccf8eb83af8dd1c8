"""A run killed at any moment ends, resumed, with the same bytes as one that was never interrupted."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from ceqr.cli import main
from ceqr.training import checkpoint
from ceqr.training import run as run_module

FRAMES = 2_400  # some fifty chunks, each followed by a checkpoint
COMPARED = ("episodes.csv", "metrics.csv", "summary.json", "config.json")


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "ceqr.cli", *arguments]


def _train(tiny: list[str], out: Path, frames: int) -> list[str]:
    return [
        "train",
        *tiny,
        "--seeds",
        "2",
        "--frames",
        str(frames),
        "--checkpoint-seconds",
        "0",
        "--out",
        str(out),
    ]


def _final_state(run: Path) -> dict[str, bytes]:
    newest = max((run / "checkpoints").glob("*.npz"))
    with np.load(newest) as file:
        return {name: file[name].tobytes() for name in file.files}


def _assert_same_runs(a: Path, b: Path) -> None:
    for name in COMPARED:
        assert (a / name).read_bytes() == (b / name).read_bytes(), name
    assert _final_state(a) == _final_state(b)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 1,200 frames that was never interrupted."""
    from tests.conftest import TINY

    out = tmp_path_factory.mktemp("whole") / "run"
    assert main(_train(TINY, out, FRAMES)) == 0
    return out


def test_the_run_directory_is_complete(whole: Path) -> None:
    assert {p.name for p in whole.iterdir()} == {
        "config.json", "episodes.csv", "metrics.csv", "summary.json", "timing.csv", "checkpoints",
    }  # fmt: skip
    rows = (whole / "metrics.csv").read_text().splitlines()
    assert len(rows) == 1 + 2 * FRAMES // 50


def test_the_same_run_twice_gives_the_same_bytes(whole: Path, tiny: list[str], tmp_path: Path) -> None:
    assert main(_train(tiny, tmp_path / "again", FRAMES)) == 0
    _assert_same_runs(whole, tmp_path / "again")


def test_config_json_is_enough_to_repeat_the_run(whole: Path, tmp_path: Path) -> None:
    assert main(["train", "--config", str(whole / "config.json"), "--quiet", "--out", str(tmp_path / "again")]) == 0
    _assert_same_runs(whole, tmp_path / "again")


def test_killed_at_random_moments(whole: Path, tiny: list[str], tmp_path: Path) -> None:
    """SIGKILL strikes again and again; a checkpoint follows every chunk, so many strikes fall into a write."""
    out = tmp_path / "killed"
    command = _train(tiny, out, FRAMES)
    rng = random.Random(0)
    killed = 0
    for _ in range(40):
        process = subprocess.Popen(_command(*command), stderr=subprocess.PIPE)
        # Importing JAX and loading compiled programs takes a while: wait for the run to move, then strike.
        before = _fingerprint(out)
        while process.poll() is None and _fingerprint(out) == before:
            time.sleep(0.005)
        time.sleep(rng.uniform(0, 0.1))
        process.send_signal(signal.SIGKILL)
        _, stderr = process.communicate()
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, stderr.decode()
        killed += 1
        if (out / "config.json").exists():
            command = ["resume", str(out), "--quiet"]
        if killed == 6:
            assert main(command) == 0
            break
    assert killed >= 3
    _assert_same_runs(whole, out)


def _fingerprint(run: Path) -> list[tuple[str, int]]:
    return sorted((p.name, p.stat().st_mtime_ns) for p in run.glob("checkpoints/*.npz") if p.exists())


MOMENTS = {
    "config is written, nothing else is": (run_module, "Run.begin", "before", 1),
    "tables are open, nothing is saved": (run_module, "Run.begin", "after", 1),
    "tables are flushed, the checkpoint is not begun": (run_module, "Run.flush", "after", 3),
    "data is written aside, not renamed": (checkpoint, "_digest", "before", 3),
    "data is renamed, checksum is not written": (checkpoint, "write_aside", "before", 8),
    "checkpoint is there, summary is not": (run_module, "Run.write_summary", "before", 3),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_at_a_chosen_moment(whole: Path, tiny: list[str], tmp_path: Path, moment: str) -> None:
    """The process kills itself there, is resumed, stopped by SIGTERM at once, and resumed again."""
    out = tmp_path / "killed"
    module, function, when, call = MOMENTS[moment]
    assert _suicidal(_train(tiny, out, FRAMES), module.__name__, function, when, call, "SIGKILL") == -signal.SIGKILL
    assert (out / "config.json").exists()
    resume = ["resume", str(out), "--quiet"]
    assert _suicidal(resume, run_module.__name__, "Run.begin", "after", 1, "SIGTERM") == 143
    assert main(resume) == 0
    _assert_same_runs(whole, out)


def _suicidal(arguments: list[str], module: str, function: str, when: str, call: int, name: str) -> int:
    """Runs a command in a process that sends itself a signal before or after the n-th call of a function."""
    script = f"""
import importlib, os, signal, sys
from ceqr.cli import main
from ceqr.training import checkpoint
from ceqr.training import run as run_module
holder = importlib.import_module({module!r})
*outer, last = {function!r}.split(".")
for part in outer:
    holder = getattr(holder, part)
original, calls = getattr(holder, last), 0
def replacement(*args, **kwargs):
    global calls
    calls += 1
    if calls == {call} and {when!r} == "before":
        os.kill(os.getpid(), signal.{name})
    result = original(*args, **kwargs)
    if calls == {call} and {when!r} == "after":
        os.kill(os.getpid(), signal.{name})
    return result
setattr(holder, last, replacement)
sys.exit(main({arguments!r}))
"""
    return subprocess.run([sys.executable, "-c", script], capture_output=True, check=False).returncode


def test_a_run_that_lost_its_files_is_refused_and_left_alone(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(sentence: str) -> None:
        before = {p: p.read_bytes() for p in copy.rglob("*") if p.is_file()}
        assert main(["resume", str(copy), "--frames", str(2 * FRAMES), "--quiet"]) == 2
        assert sentence in capsys.readouterr().err
        assert {p: p.read_bytes() for p in copy.rglob("*") if p.is_file()} == before

    copy = tmp_path / "a"
    shutil.copytree(whole, copy)
    shutil.rmtree(copy / "checkpoints")
    refused("has lost its checkpoints")
    copy = tmp_path / "b"
    shutil.copytree(whole, copy)
    (copy / "metrics.csv").write_text("seed,frame\n")
    refused("metrics.csv is missing or shorter than its checkpoint says")


def test_a_finished_run_stays_as_it_is(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {p: p.stat().st_mtime_ns for p in whole.rglob("*")}
    assert main(["resume", str(whole)]) == 0
    assert "is finished" in capsys.readouterr().err
    assert {p: p.stat().st_mtime_ns for p in whole.rglob("*")} == before


def test_a_second_start_does_not_compile_again(whole: Path, tiny: list[str], tmp_path: Path) -> None:
    """Whatever is compiled is kept: the same run in a new process adds nothing to the cache."""
    cache = Path(os.environ["CEQR_CACHE_DIR"]) / "xla"
    first = {p.name for p in cache.glob("*-cache")}
    assert first
    subprocess.run(_command(*_train(tiny, tmp_path / "again", 300)), check=True)
    assert {p.name for p in cache.glob("*-cache")} == first


@pytest.mark.filterwarnings("always::ceqr.training.checkpoint.CheckpointWarning")
def test_a_corrupted_newest_checkpoint_falls_back_to_the_one_before(
    whole: Path, tiny: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert main(_train(tiny, out, 700)) == 0
    newest = max((out / "checkpoints").glob("*.npz"))
    newest.write_bytes(newest.read_bytes()[:1000])
    assert main(["resume", str(out), "--frames", str(FRAMES), "--quiet"]) == 0
    assert "does not match its checksum" in capsys.readouterr().err
    _assert_same_runs(whole, out)


def test_a_finished_run_is_extended_to_the_same_bits(whole: Path, tiny: list[str], tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert main(_train(tiny, out, 330)) == 0
    assert main(["resume", str(out), "--frames", str(FRAMES), "--quiet"]) == 0
    _assert_same_runs(whole, out)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_save_and_say_how_to_go_on(
    whole: Path, tiny: list[str], tmp_path: Path, number: signal.Signals, code: int
) -> None:
    out = tmp_path / "run"
    process = subprocess.Popen(_command(*_train(tiny, out, FRAMES)), stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not _fingerprint(out):
        time.sleep(0.01)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == code, stderr
    assert f"ceqr resume {out}" in stderr
    assert main(["resume", str(out), "--quiet"]) == 0
    _assert_same_runs(whole, out)


def test_two_processes_cannot_hold_one_run(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import fcntl

    held = os.open(whole, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert main(["resume", str(whole), "--quiet"]) == 2
    finally:
        os.close(held)
    assert "in use by another process" in capsys.readouterr().err
