"""Sweeps on this machine end with the same bytes whatever happens to them, and say what happened."""

import json
import os
import re
import shutil
import signal
import time
from pathlib import Path

import pytest

from ceqr.cli import main
from ceqr.experiments import estimate
from ceqr.experiments.directory import SweepDirectory
from ceqr.experiments.execute import DONE, FAILED, RUNNING, WAITING, Status
from ceqr.experiments.live import table_of
from ceqr.experiments.sweep import complete, expand
from tests.experiments.conftest import PROBE, TINY, assert_same_sweeps, finish, start, wait_for, wait_for_checkpoint


def _workers(driver: int) -> list[int]:
    """The processes that a sweep has started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == driver:
            found.append(int(path.parent.name))
    return found


def test_what_is_finished_is_skipped(whole: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in whole.glob("runs/*/*")}
    assert "3 of 3 runs are done, 3 of them before" in finish(start(str(whole), "--import", "tests.probe_family"))
    assert {p: p.stat().st_mtime_ns for p in whole.glob("runs/*/*")} == before


def test_runs_of_which_only_their_curves_are_kept_are_finished(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(whole, copy)
    assert main(["report", str(copy), "--keep", "--out", str(tmp_path / "report"), "--quiet"]) == 0
    shutil.copytree(copy, tmp_path / "kept", ignore=shutil.ignore_patterns("checkpoints", "logs", "*.csv"))
    assert len(list(tmp_path.glob("kept/runs/*/curves.json"))) == 3
    assert main(["sweep", str(tmp_path / "kept"), "--import", "tests.probe_family"]) == 0
    assert "3 of 3 runs are done, 3 of them before" in capsys.readouterr().err


def test_each_run_has_a_log(whole: Path) -> None:
    for run in whole.glob("runs/*"):
        assert "Training dqn on probe/noisy-chain" in (whole / "logs" / f"{run.name}.log").read_text()
    assert not (whole / "attempts.json").exists()


def test_interrupted_it_says_how_to_go_on_and_ends_with_the_same_bytes(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    process = start(*TINY, "--out", str(out))
    wait_for_checkpoint(out)
    # A second sweep in the same directory is refused, and changes nothing.
    assert main(["sweep", *TINY, "--out", str(out)]) == 2
    assert main(["sweep", str(out), "--import", "tests.probe_family"]) == 2
    process.send_signal(signal.SIGINT)
    text = finish(process, 130)
    assert f"go on with 'ceqr sweep {out} --import tests.probe_family'" in text
    assert not (out / "attempts.json").exists()
    logs = [log.read_text() for log in (out / "logs").iterdir()]
    assert sum("and saved; go on with" in log for log in logs) >= 1
    finish(start(str(out), "--import", "tests.probe_family"))
    assert_same_sweeps(whole, out)


def test_a_killed_worker_is_replaced_and_a_killed_driver_leaves_no_process(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    process = start(*TINY, "--out", str(out))
    wait_for_checkpoint(out)
    os.kill(_workers(process.pid)[0], signal.SIGKILL)
    wait_for((out / "attempts.json").exists)
    ((error,),) = json.loads((out / "attempts.json").read_text()).values()
    assert "died of SIGKILL" in error
    workers = _workers(process.pid)
    process.kill()
    process.communicate()
    again = start(str(out), "--import", "tests.probe_family")  # at once: what is left of the first is waited for
    finish(again)
    wait_for(lambda: not any(Path("/proc", str(pid), "cmdline").exists() for pid in workers), 20)
    assert_same_sweeps(whole, out)


def test_failed_runs_are_listed_and_the_others_are_done(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "sweep"
    out.mkdir()
    options = [*PROBE, "--agents", "dqn", "--hidden", "16", "--learning-starts", "60", "--frames", "200"]
    broken = ["--learning-rate", "1e-3,1e38", "--retries", "1", "--out", str(out)]
    assert main(["sweep", *options, *broken]) == 1
    text = capfd.readouterr().err
    name = "probe-noisy-chain-dqn-learning_rate=1e+38-seed0"
    assert f"{name} failed 2 time(s): " in text
    assert "not finite" in text
    assert str(out / "logs" / f"{name}.log") in text
    assert "1 of 2 runs are done" in text
    assert "--retries 2" in text
    # Started again it stands by its limit, without starting a process.
    began = time.monotonic()
    assert main(["sweep", str(out), "--import", "tests.probe_family", "--retries", "1"]) == 1
    assert time.monotonic() - began < 10
    assert len(json.loads((out / "attempts.json").read_text())[name]) == 2


def test_a_sweep_may_grow_but_not_change(
    whole: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimate, "SECONDS", 0.1)
    before = (whole / "sweep.toml").read_bytes()
    assert main(["sweep", str(whole), "--import", "tests.probe_family", "--frames", "4000"]) == 2
    assert "holds another sweep" in capsys.readouterr().err
    assert (whole / "sweep.toml").read_bytes() == before
    assert main(["sweep", str(whole), "--import", "tests.probe_family", "--seeds", "4", "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert "4 runs, 3 done; 3,000 frames to play" in text
    assert re.search(r"about \d+:\d\d .* on \d+ core", text)
    assert (whole / "sweep.toml").read_bytes() == before  # a dry run writes nothing


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "Say what to sweep"),
        (["figure4"], "known are figure3, small"),
        (["--agents", "dqn", "--address", "auto"], "--address is for --engine ray"),
        (["--agents", "dqn", "--trials", "3"], "give --search"),
        (["--agents", "dqn", "--retries", "-1"], "--retries must be at least 0"),
        (["--agents", "dqn", "--frames", "many"], "--frames takes whole numbers"),
        (["--agents", "dqn", "--hidden", "8", "--hidden", "9"], "given twice"),
    ],
)
def test_mistakes_start_nothing(
    arguments: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", *arguments]) == 2
    assert sentence in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_folder_with_other_things_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.txt").write_text("all of it")
    assert main(["sweep", "--agents", "dqn", "--hidden", "8", "--out", str(tmp_path)]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]


def test_the_table_shows_what_matters_most_in_the_lines_there_are(tmp_path: Path) -> None:
    from rich.console import Console

    specs = expand(complete({"agents": "dqn", "hidden": 8, "seeds": 30}))
    status = Status(SweepDirectory(tmp_path), retries=0)
    status.add(specs)
    states = [DONE] * 20 + [WAITING] * 7 + [RUNNING] * 2 + [FAILED]
    status.states = dict(zip(status.states, states, strict=True))
    console = Console(width=100, height=20, record=True)
    console.print(table_of(status, height=10))
    lines = console.export_text().splitlines()
    assert len(lines) <= 12
    assert [line.split()[:2] for line in lines[1:4]] == [
        ["minatar-breakout-dqn-seed27", "running"],
        ["minatar-breakout-dqn-seed28", "running"],
        ["minatar-breakout-dqn-seed29", "failed"],
    ]
    assert "... and 21 more" in lines[10]
    assert "20 of 30 runs done, 2 running, 7 waiting, 1 failed" in lines[11]
