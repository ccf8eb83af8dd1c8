"""A run directory, written and read: what is not as we wrote it gets a sentence with the file and the line."""

import errno
import json
import math
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest

from ceqr import runs
from ceqr.agents.base import Hyperparameters
from ceqr.config import RunConfig, default_config
from ceqr.errors import StorageFailed, UserError
from ceqr.plot import plot
from ceqr.runs import EpisodeRow, MetricsRow
from ceqr.training import checkpoint
from ceqr.training import run as run_directory
from ceqr.training.run import Run

NAN = float("nan")
METRICS = ("loss", "coverage", "epistemic", "aleatoric", "start_value")
CONFIG: RunConfig[Any] = RunConfig[Hyperparameters](
    **{
        f: getattr(default_config("ceqr-dqn", "quick", "minatar/breakout"), f)
        for f in ("hyper", "agent", "preset", "env")
    },
    seeds=2,
    seed_start=7,
)
EPISODES = [
    EpisodeRow(7, 12, 1.0, 12, 0.25, 0.5),
    EpisodeRow(8, 15, -2.5, 15, 0.0, NAN),
    EpisodeRow(7, 30, 3.0, 18, 0.1, 1.0),
]


def write_run(path: Path, config: RunConfig[Any] = CONFIG) -> dict[str, int]:
    """A run directory with three episodes and two rows of metrics; returns what a checkpoint would remember."""
    run = run_directory.create(path, config, METRICS)
    run.begin(None)
    run.add_episodes(EPISODES)
    run.add_metrics(7, 50, {"loss": NAN, "coverage": 0.9, "epistemic": 0.1, "aleatoric": 0.2, "start_value": -1.0})
    run.add_metrics(8, 50, dict.fromkeys(METRICS, 0.5))
    run.add_timing(50, 1.0, 50.0)
    lengths = run.flush()
    run.write_summary(50)
    run.close()
    return lengths


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_run(tmp_path / "run")
    return tmp_path / "run"


def _rows(rows: Any) -> list[Any]:
    """Rows that can be compared though they hold NaN."""
    return [str(row) for row in rows]


def test_what_was_written_is_read(path: Path) -> None:
    config, origin = runs.read_config(path)
    assert config == CONFIG
    assert "jax" in origin["packages"]
    assert _rows(runs.read_episodes(path, config)) == _rows(EPISODES)
    first, second = runs.read_metrics(path, config)
    assert (first.seed, first.frame, first.values["start_value"]) == (7, 50, -1.0)
    assert math.isnan(first.values["loss"])
    assert second == MetricsRow(8, 50, dict.fromkeys(METRICS, 0.5))
    summary = json.loads((path / "summary.json").read_text())
    assert summary["seeds"][0] == {"seed": 7, "frames": 50, "episodes": 2, "mean_of_last_100": 2.0, "max": 3.0}


def test_a_line_that_is_still_being_written_is_left_out(path: Path) -> None:
    with open(path / "episodes.csv", "a") as file:
        file.write("7,45,1")
    assert len(list(runs.read_episodes(path, CONFIG))) == 3


def test_a_resumed_run_cuts_and_counts(path: Path, tmp_path: Path) -> None:
    run = Run(path, CONFIG, METRICS)
    lengths = {name: (path / name).stat().st_size for name in ("episodes.csv", "metrics.csv")}
    before = (path / "episodes.csv").read_bytes()
    with open(path / "episodes.csv", "a") as file:
        file.write("7,40,9,10,0,\nrubbish that no checkpoint counts on")
    run.check_lengths(lengths)
    run.begin(lengths)
    assert (path / "episodes.csv").read_bytes() == before
    assert [(s.count, s.best) for s in run.episodes.values()] == [(2, 3.0), (1, -2.5)]
    run.close()


def test_a_return_that_is_no_number(path: Path) -> None:
    """An environment may pay such a thing before anything is learned from it."""
    lengths = {name: (path / name).stat().st_size for name in ("episodes.csv", "metrics.csv")}
    run = Run(path, CONFIG, METRICS)
    run.begin(lengths)
    run.add_episodes([EpisodeRow(7, 40, total, 10, 0.0, NAN) for total in (NAN, math.inf)])
    lengths = run.flush()
    run.write_summary(40)
    run.close()
    assert json.loads((path / "summary.json").read_text())["seeds"][0]["mean_of_last_100"] is None
    assert math.isnan(list(runs.read_episodes(path, CONFIG))[3].total)
    run = Run(path, CONFIG, METRICS)
    run.begin(lengths)
    run.close()
    plot(path)


# What is read, broken.


def _config(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def go(path: Path) -> None:
        content = json.loads((path / "config.json").read_text())
        change(content)
        (path / "config.json").write_text(json.dumps(content))

    return go


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (_config(lambda c: c.update(packages=None)), "incompatible version"),
        (_config(lambda c: c.update(packages=["jax"])), "incompatible version"),
        (_config(lambda c: c.update(packages={"jax": 1})), "incompatible version"),
        (_config(lambda c: c.update(config=None)), "incompatible version"),
        (_config(lambda c: c.pop("config")), "incompatible version"),
        (_config(lambda c: c.update(format="2")), "incompatible version"),
        (_config(lambda c: c["config"].update(agent="mine")), "names the agent 'mine', which is unknown .* --import"),
        (_config(lambda c: c["config"].update(agent=["mine"])), "incompatible version"),
        (_config(lambda c: c["config"].update(seeds=0)), r"config\.json cannot be right: --seeds must be at least 1"),
        (_config(lambda c: c["config"]["hyper"].update(hidden=[-3])), r"cannot be right: --hidden must be at least 1"),
        (_config(lambda c: c.update(python=NAN)), "config.json cannot be read: NaN is no JSON"),
        (lambda path: (path / "config.json").write_bytes(b"\xff\xfe{}"), "config.json cannot be read"),
        (lambda path: (path / "config.json").write_text("[" * 100_000), "config.json cannot be read"),
        (lambda path: (path / "config.json").write_text(""), "config.json cannot be read"),
        (lambda path: (path / "config.json").unlink(), "is not a run"),
        (lambda path: _folder(path / "config.json"), "config.json cannot be read"),
    ],
)
def test_a_broken_config(path: Path, damage: Callable[[Path], Any], sentence: str) -> None:
    damage(path)
    with pytest.raises(UserError, match=sentence):
        runs.read_config(path)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def test_packages_may_be_missing(path: Path) -> None:
    _config(lambda c: c.pop("packages"))(path)
    config, origin = runs.read_config(path)
    assert config == CONFIG
    assert origin["packages"] == {}


TABLES = {
    "episodes.csv": lambda path: list(runs.read_episodes(path, CONFIG)),
    "metrics.csv": lambda path: list(runs.read_metrics(path, CONFIG)),
}


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (b"\n8,", b"\nx,", "line 3: seed must be a whole number, not 'x'"),
        (b"\n8,", b"\n9,", "line 3: the run has no seed 9"),
        (b"\n8,", b"\n-8,", "line 3: seed must be a whole number, not '-8'"),
        (b"\n8,", b"\n8,8,", r"line 3: it has \d cells, not"),
        (b"\n8,", b"\n", r"line 3: it has \d cells, not"),
        (b"\n8,", b"\n\n8,", r"line 3: it has 1 cells, not"),
        (b"\n8,", b"\n8,\xff", "line 3: it is no text"),
        (b"\n8,", b"\n8,\0", "line 3: frame must be a whole number"),
        (b"\n8,", b"\n8,1e400", "line 3: frame must be a whole number"),
        (b"\n8,", b"\n8," + b"9" * 5000, "line 3: frame must be a whole number, not '99999999999999999999'"),
        (b"seed,", b"sed,", "line 1: there is no column 'seed'"),
        (b"frame,", b"seed,", "line 1: there is no column 'frame'"),
        (b"seed,", b"seed,seed,", "line 1: a column is there twice"),
    ],
)
def test_a_broken_table(path: Path, name: str, old: bytes, new: bytes, sentence: str) -> None:
    file = path / name
    content = file.read_bytes()
    assert old in content
    file.write_bytes(content.replace(old, new, 1))
    for read in (TABLES[name], plot):
        with pytest.raises(UserError, match=rf"{name} is damaged in {sentence}"):
            read(path)


@pytest.mark.parametrize("name", TABLES)
def test_a_broken_number(path: Path, name: str) -> None:
    content = (path / name).read_text()
    last = content.splitlines()[-1]
    (path / name).write_text(content.replace(last, ",".join([*last.split(",")[:-1], "0.9.1"])))
    with pytest.raises(UserError, match=r"in line [34]: (least_uncertain|start_value) must be a number, not '0\.9\.1'"):
        TABLES[name](path)


@pytest.mark.parametrize("name", TABLES)
def test_a_table_that_is_none(path: Path, name: str) -> None:
    (path / name).unlink()
    with pytest.raises(UserError, match="has no results yet"):
        plot(path)
    (path / name).mkdir()
    with pytest.raises(UserError, match=rf"{name} cannot be read: "):
        plot(path)


def test_nothing_yet(path: Path) -> None:
    (path / "episodes.csv").write_text("")
    with pytest.raises(UserError, match="has no finished episode yet"):
        plot(path)


def test_any_damage_to_what_is_plotted_gets_a_picture_or_a_sentence(path: Path, monkeypatch: Any) -> None:
    from ceqr import plot as plot_module  # drawing is slow, and what reaches it has been checked

    monkeypatch.setattr("ceqr.plot._draw", lambda *_: plot_module.plt.figure(figsize=(1, 1)))
    rng = random.Random(0)
    whole = {name: (path / name).read_bytes() for name in (*TABLES, "config.json")}
    said = 0
    for _ in range(300):
        name = rng.choice(list(whole))
        content = bytearray(whole[name])
        for _ in range(rng.choice((1, 1, 5))):
            place = rng.randrange(len(content))
            content[place : place + rng.randrange(3)] = rng.randbytes(rng.randrange(3))
        (path / name).write_bytes(content)
        try:
            plot(path)
        except UserError:
            said += 1
        (path / name).write_bytes(whole[name])
    assert said > 50


def test_resuming_reads_before_it_changes_anything(path: Path) -> None:
    lengths = {name: (path / name).stat().st_size for name in TABLES}
    content = (path / "episodes.csv").read_bytes().replace(b"\n8,", b"\n9,") + b"a row after the checkpoint\n"
    (path / "episodes.csv").write_bytes(content)
    run = Run(path, CONFIG, METRICS)
    for go in (run.check_lengths, run.begin):
        with pytest.raises(UserError, match=r"episodes\.csv is damaged in line 3: the run has no seed 9"):
            go(lengths)
    run.close()
    assert (path / "episodes.csv").read_bytes() == content


def test_lengths_that_no_table_has(path: Path) -> None:
    lengths: dict[str, Any] = {name: (path / name).stat().st_size for name in TABLES}
    run = Run(path, CONFIG, METRICS)
    run.check_lengths(lengths)
    wrong: Any
    for wrong in (None, {}, {"episodes.csv": 1}, {**lengths, "metrics.csv": None}, {**lengths, "metrics.csv": -1}):
        with pytest.raises(UserError, match="incompatible version"):
            run.check_lengths(wrong)
    with pytest.raises(UserError, match="missing or shorter"):
        run.check_lengths({**lengths, "metrics.csv": lengths["metrics.csv"] + 1})
    with pytest.raises(UserError, match=r"episodes\.csv was changed"):
        run.check_lengths({**lengths, "episodes.csv": lengths["episodes.csv"] - 3})
    run.close()


def test_latest_checkpoint(path: Path) -> None:
    with pytest.raises(UserError, match="has no checkpoint yet"):
        runs.latest_checkpoint(path)
    (path / "checkpoints").write_text("a file where a folder should be")
    with pytest.raises(UserError, match="has no checkpoint yet"):
        runs.latest_checkpoint(path)
    (path / "checkpoints").unlink()
    checkpoint.save(path / "checkpoints", 50, [{"x": jnp.zeros(2)}], {})
    with runs.latest_checkpoint(path) as saved:
        assert saved.frame == 50


# One process at a time.


HOLDER = """
import sys
from pathlib import Path
from ceqr.runs import read_config
from ceqr.training.run import Run
path = Path(sys.argv[1])
run = Run(path, read_config(path)[0], ())
print("held", flush=True)
sys.stdin.read()
"""


def test_one_process_at_a_time_also_after_a_kill(path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    with pytest.raises(UserError, match="is in use by another process; wait for it to end or stop it first"):
        Run(path, CONFIG, METRICS)
    process.kill()
    process.communicate()
    Run(path, CONFIG, METRICS).close()


def test_the_lock_holds_within_a_process_and_is_let_go(path: Path) -> None:
    run = Run(path, CONFIG, METRICS)
    with pytest.raises(UserError, match="in use"):
        Run(path, CONFIG, METRICS)
    run.close()
    Run(path, CONFIG, METRICS).close()
    assert {p.name for p in path.iterdir() if p.name.startswith(".")} <= {".lock"}


def test_what_reads_runs_needs_no_fcntl() -> None:
    """Windows has none."""
    script = "import sys; sys.modules['fcntl'] = None; import ceqr.runs, ceqr.plot, ceqr.training.run"
    subprocess.run([sys.executable, "-c", script], check=True)


# A disk that is full.


def _full(*_: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_under_the_tables(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = {name: (path / name).stat().st_size for name in TABLES}
    run = Run(path, CONFIG, METRICS)
    run.begin(lengths)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", _full)
        with pytest.raises(StorageFailed, match=r"episodes\.csv: No space left on device; no checkpoint was written y"):
            run.flush()
        with pytest.raises(StorageFailed, match=r"summary\.json: No space left"):
            run.write_summary(1)
        with pytest.raises(StorageFailed, match=r"config\.json: No space left"):
            run.write_config({})
    run.close()
    assert runs.read_config(path)[0] == CONFIG


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_device_that_is_really_full(path: Path) -> None:
    checkpoint.save(path / "checkpoints", 1_000, [{"x": jnp.zeros(2)}], {})
    lengths = {name: (path / name).stat().st_size for name in TABLES}
    run = Run(path, CONFIG, METRICS)
    run.begin(lengths)
    for table in run._tables.values():
        with open("/dev/full", "wb") as full:
            os.dup2(full.fileno(), table.fileno())
    stands = rf"No space left on device; the checkpoint of frame 1,000 stands, .* 'ceqr resume {path}'\."
    with pytest.raises(StorageFailed, match=rf"episodes\.csv: {stands}"):
        run.add_episodes(EPISODES * 1_000)
    run.add_metrics(7, 1, dict.fromkeys(METRICS, 0.5))
    run.close()  # though what is left in memory cannot be written
    (path / "timing.csv").unlink()
    (path / "timing.csv").symlink_to("/dev/full")
    with pytest.raises(StorageFailed, match=rf"timing\.csv: {stands}"):
        run.add_timing(1, 1.0, 1.0)


def test_a_full_disk_before_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", _full)
        with pytest.raises(StorageFailed) as failed:
            run_directory.create(tmp_path / "run", CONFIG, METRICS)
    write_run(tmp_path / "run")  # the folder is as good as new, and nobody holds it
    assert "config.json: No space left on device; nothing was written yet" in str(failed.value)
