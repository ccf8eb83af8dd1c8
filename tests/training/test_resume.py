"""A run killed at any moment ends, resumed, with the same bytes as one that was never interrupted.

What is played does not matter here, so it is a probe that compiles in no time; all processes share one cache.
"""

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from filelock import FileLock

from ceqr import files
from ceqr.cli import main
from ceqr.training import checkpoint
from ceqr.training import run as run_module
from tests.conftest import TINY
from tests.sharing import shared_programs

FRAMES = 1_200  # two dozen chunks, each followed by a checkpoint
COMPARED = ("episodes.csv", "metrics.csv", "summary.json", "config.json")
PROBE = ["--import", "tests.probe_family"]


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "ceqr.cli", *arguments]


def _train(out: Path, frames: int = FRAMES) -> list[str]:
    options = ["--env", "probe/noisy-chain", "--seeds", "2", "--frames", str(frames), "--checkpoint-seconds", "0"]
    return ["train", *PROBE, *TINY, *options, "--out", str(out)]


def _resume(out: Path, *more: str) -> list[str]:
    return ["resume", str(out), *PROBE, "--quiet", *more]


def _final_state(run: Path) -> dict[str, bytes]:
    newest = max((run / "checkpoints").glob("*.npz"))
    with np.load(newest) as file:
        return {name: file[name].tobytes() for name in file.files}


def _assert_same_runs(a: Path, b: Path) -> None:
    for name in COMPARED:
        assert (a / name).read_bytes() == (b / name).read_bytes(), name
    assert _final_state(a) == _final_state(b)


@pytest.fixture(autouse=True, scope="module")
def _shared_programs() -> Any:
    with shared_programs():
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was never interrupted; it also fills the cache for all that follow."""
    out = tmp_path_factory.mktemp("whole") / "run"
    assert main(_train(out)) == 0
    return out


def test_the_run_directory_is_complete(whole: Path) -> None:
    assert {p.name for p in whole.iterdir() if not p.name.startswith(".")} == {
        "config.json", "episodes.csv", "metrics.csv", "summary.json", "timing.csv", "checkpoints",
    }  # fmt: skip
    rows = (whole / "metrics.csv").read_text().splitlines()
    assert len(rows) == 1 + 2 * FRAMES // 50


def test_the_same_run_twice_gives_the_same_bytes(whole: Path, tmp_path: Path) -> None:
    assert main(_train(tmp_path / "again")) == 0
    _assert_same_runs(whole, tmp_path / "again")


def test_config_json_is_enough_to_repeat_the_run(whole: Path, tmp_path: Path) -> None:
    command = ["train", *PROBE, "--config", str(whole / "config.json"), "--quiet", "--out", str(tmp_path / "again")]
    assert main(command) == 0
    _assert_same_runs(whole, tmp_path / "again")


@pytest.mark.slow
def test_killed_at_random_moments(whole: Path, tmp_path: Path) -> None:
    """SIGKILL strikes again and again; a checkpoint follows every chunk, so many strikes fall into a write."""
    out = tmp_path / "killed"
    command = _train(out)
    rng = random.Random(0)
    killed = 0
    while killed < 6:
        process = subprocess.Popen(_command(*command), stderr=subprocess.PIPE)
        # Importing JAX and loading compiled programs takes a while: wait for the run to move, then strike.
        before = _fingerprint(out)
        while process.poll() is None and _fingerprint(out) == before:
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 0.03))
        process.send_signal(signal.SIGKILL)
        _, stderr = process.communicate()
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, stderr.decode()
        killed += 1
        if (out / "config.json").exists():
            command = _resume(out)
    else:
        assert main(command) == 0
    assert killed >= 3
    _assert_same_runs(whole, out)


def _fingerprint(run: Path) -> list[tuple[str, int]]:
    """Which checkpoints there are, and since when."""
    found = []
    for path in run.glob("checkpoints/*.npz"):
        try:
            found.append((path.name, path.stat().st_mtime_ns))
        except FileNotFoundError:  # it was dropped meanwhile
            continue
    return sorted(found)


# Of `files.rename`, the first call names config.json; then three a checkpoint: it, its checksum, summary.json.
MOMENTS: dict[str, tuple[ModuleType, str, str, int]] = {
    "config is written, nothing else is": (run_module, "Run.begin", "before", 1),
    "tables are open, nothing is saved": (run_module, "Run.begin", "after", 1),
    "tables are flushed, the checkpoint is not begun": (run_module, "Run.flush", "after", 3),
    "data is written aside, not renamed": (files, "rename", "before", 8),
    "data is renamed, checksum is not written": (checkpoint, "write_aside", "before", 3),
    "checksum is written aside, not renamed": (files, "rename", "before", 9),
    "checkpoint is there, the old one is, too": (checkpoint, "_drop_others", "before", 3),
    "checkpoint is there, summary is not": (run_module, "Run.write_summary", "before", 3),
}


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_at_a_chosen_moment(whole: Path, tmp_path: Path, moment: str) -> None:
    """The process kills itself there, is resumed, stopped by SIGTERM at once, and resumed again."""
    out = tmp_path / "killed"
    module, function, when, call = MOMENTS[moment]
    assert _suicidal(_train(out), module.__name__, function, when, call, "SIGKILL") == -signal.SIGKILL
    assert (out / "config.json").exists()
    assert _suicidal(_resume(out), run_module.__name__, "Run.begin", "after", 1, "SIGTERM") == 143
    assert main(_resume(out)) == 0
    _assert_same_runs(whole, out)


def _suicidal(arguments: list[str], module: str, function: str, when: str, call: int, name: str) -> int:
    """Runs a command in a process that sends itself a signal before or after the n-th call of a function."""
    script = f"""
import importlib, os, signal, sys
from ceqr.cli import main
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


@pytest.mark.parametrize("call", [6, 36])  # writing the first checkpoint; the fourth
def test_a_full_disk_stops_a_run_that_then_goes_on(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    original, calls = os.fsync, 0

    def fsync(file: int) -> None:
        nonlocal calls
        calls += 1
        if calls >= call:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        original(file)

    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        assert main(_train(out)) == 1
    (sentence,) = capsys.readouterr().err.splitlines()
    assert sentence.startswith(f"ceqr: Cannot write {out}")
    assert "No space left on device; " in sentence
    assert ("no checkpoint was written yet" in sentence) == (call == 6)
    assert f"ceqr resume {out}" in sentence
    assert main(_resume(out)) == 0
    _assert_same_runs(whole, out)


def test_a_run_that_lost_its_files_is_refused_and_left_alone(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def content(run: Path) -> dict[Path, bytes]:
        return {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}

    def copied(name: str) -> Path:
        return shutil.copytree(whole, tmp_path / name)

    def refused(run: Path, sentence: str) -> None:
        before = content(run)
        assert main(_resume(run, "--frames", str(2 * FRAMES))) == 2
        assert sentence in capsys.readouterr().err
        assert content(run) == before

    shutil.rmtree(copied("a") / "checkpoints")
    refused(tmp_path / "a", "has lost its checkpoints")
    (copied("b") / "metrics.csv").write_text("seed,frame\n")
    refused(tmp_path / "b", "metrics.csv is missing or shorter than its checkpoint says")
    table = copied("c") / "episodes.csv"
    table.write_text(table.read_text().replace("\n1,", "\n5,", 1))
    refused(tmp_path / "c", "the run has no seed 5")


def test_a_finished_run_stays_as_it_is(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def times() -> dict[Path, int]:
        return {p: p.stat().st_mtime_ns for p in whole.rglob("*") if p.name != run_module.LOCK}

    before = times()
    assert main(["resume", str(whole), *PROBE]) == 0
    assert "is finished" in capsys.readouterr().err
    assert times() == before


def test_a_second_start_does_not_compile_again(tmp_path: Path) -> None:
    """What takes long to compile is kept: the same run in a new process adds neither program to the cache."""

    def chunks_after(name: str) -> set[str]:
        # Into a cache of its own, as other tests write to theirs meanwhile, and compiled as for a user.
        environment = {**os.environ, "CEQR_CACHE_DIR": str(tmp_path / "cache"), "XLA_FLAGS": ""}
        subprocess.run(_command(*_train(tmp_path / name, 100)), check=True, env=environment)
        return {path.name for path in (tmp_path / "cache" / "xla").glob("*chunk*-cache")}

    first = chunks_after("first")
    assert len(first) == 2  # with learning and without
    assert chunks_after("again") == first


@pytest.mark.filterwarnings("always::ceqr.training.checkpoint.CheckpointWarning")
def test_a_corrupted_newest_checkpoint_falls_back_to_the_one_before(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert main(_train(out, 700)) == 0
    newest = max((out / "checkpoints").glob("*.npz"))
    newest.write_bytes(newest.read_bytes()[:1000])
    assert main(_resume(out, "--frames", str(FRAMES))) == 0
    assert "does not match its checksum" in capsys.readouterr().err
    _assert_same_runs(whole, out)


def test_a_finished_run_is_extended_to_the_same_bits(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert main(_train(out, 330)) == 0
    assert main(_resume(out, "--frames", str(FRAMES))) == 0
    _assert_same_runs(whole, out)


def test_environments_side_by_side_go_on_to_the_same_bits(tmp_path: Path) -> None:
    """Three lanes do not divide 331 frames: the last tick is played to its end, and the run goes on from there."""
    lanes = ["--num-envs", "3", "--update-every", "2"]
    assert main([*_train(tmp_path / "whole", 600), *lanes]) == 0
    out = tmp_path / "run"
    assert main([*_train(out, 331), *lanes]) == 0
    assert json.loads((out / "summary.json").read_text())["seeds"][1]["frames"] == 333
    assert main(_resume(out, "--frames", "600")) == 0
    _assert_same_runs(tmp_path / "whole", out)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_save_and_say_how_to_go_on(whole: Path, tmp_path: Path, number: signal.Signals, code: int) -> None:
    out = tmp_path / "run"
    process = subprocess.Popen(_command(*_train(out, 100 * FRAMES)), stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not _fingerprint(out):
        time.sleep(0.002)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == code, stderr
    assert f"ceqr resume {out}" in stderr


def test_two_processes_cannot_hold_one_run(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FileLock(whole / run_module.LOCK):
        assert main(_resume(whole)) == 2
    assert "in use by another process" in capsys.readouterr().err
