"""Runs found and read: what is left of them, and what is said of those that are unfinished or damaged."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ceqr import runs
from ceqr.errors import UserError
from ceqr.experiments import kept, records, tables
from ceqr.experiments.tables import find_runs, read_run
from tests.experiments.generated import config_of, write
from tests.test_runs import CONFIG, write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seeds 0 to 2 with returns seed + frame / 1000, 4,000 frames."""
    path = tmp_path_factory.mktemp("tables") / "run"
    write(path, config_of())
    return path


def test_what_is_left_of_a_run(run: Path) -> None:
    record = read_run(run)
    assert (record.state, record.reached, record.frames, record.problem) == ("finished", 4_000, 4_000, "")
    frame: Any = pd.read_csv(run / "episodes.csv")
    for seed in record.seeds:
        returns = frame[frame["seed"] == seed.seed].set_index("frame")["return"]
        assert seed.episodes == 400 == len(returns)
        assert seed.final == pytest.approx(returns.iloc[-100:].mean())
        assert seed.best == returns.max()
        assert seed.best_mean == pytest.approx(returns.rolling(100).mean().max())
        twice = returns.rolling(100, min_periods=1).mean().rolling(100, min_periods=1).mean()
        at = records.grid(4_000)
        np.testing.assert_allclose(seed.curves["score"], twice.reindex(at, method="ffill"))
        first = returns.rolling(100).mean()
        target = float(first.max()) - 0.3
        assert seed.frames_to(target) == first.index[np.argmax(first.to_numpy() >= target)]
        assert seed.frames_to(1e9) == np.inf
        assert seed.curves["nongreedy"][0] == 0.25
        np.testing.assert_allclose(seed.curves["epistemic"][-1], 0.5)
        np.testing.assert_allclose(seed.curves["coverage"][-1], 0.9)


def test_the_first_frames_alone(run: Path) -> None:
    record = read_run(run, 2_000)
    assert (record.frames, [seed.episodes for seed in record.seeds]) == (2_000, [200] * 3)
    assert [seed.best for seed in record.seeds] == [2, 3, 4]
    assert record.seeds[0].final == pytest.approx(np.mean(np.arange(1_010, 2_001, 10)) / 1_000)


def test_a_curve_begins_with_the_first_episode(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    summary = {"seeds": [{"seed": s, "frames": 50, "episodes": n} for s, n in ((7, 2), (8, 1))]}
    (tmp_path / "run" / "summary.json").write_text(json.dumps(summary))
    record = read_run(tmp_path / "run", 50)
    seven, eight = record.seeds
    score = seven.curves["score"]
    assert np.isnan(score[records.grid(50) < 12]).all()
    assert (score[(records.grid(50) >= 12) & (records.grid(50) < 30)] == 1).all()
    assert score[-1] == (1 + (1 + 3) / 2) / 2
    assert (seven.final, eight.final, seven.best) == (2, -2.5, 3)
    assert np.isnan(seven.best_mean)  # of fewer than 100 episodes
    assert seven.frames_to(0) == np.inf


def test_seconds_are_summed_over_starts(run: Path, tmp_path: Path) -> None:
    record = read_run(run)
    assert record.seconds_to(200) == pytest.approx(2)
    assert record.seconds_to(300) == pytest.approx(3)
    assert record.seconds_to(np.inf) == np.inf
    write_run(tmp_path / "run")
    (tmp_path / "run" / "timing.csv").write_text(
        "started,frame,seconds,frames_per_second\na,100,10,10\na,200,20,10\nb,150,5,10\ntorn,2\nb,250,15,10\n"
    )
    frames, seconds = tables._read_timing(tmp_path / "run")
    assert frames.tolist() == [100, 200, 150, 250]
    assert seconds.tolist() == [10, 20, 25, 35]
    timing = records.RunRecord(tmp_path, timing=(frames, seconds))
    assert timing.seconds_to(50) == 5
    assert timing.seconds_to(200) == 30  # the second time, which counts
    assert np.isnan(timing.seconds_to(300))


def _without_tables(run: Path, to: Path) -> Path:
    """What is committed of a run."""
    to.mkdir()
    for name in ("config.json", "summary.json", kept.NAME):
        shutil.copyfile(run / name, to / name)
    return to


def test_a_run_of_which_the_curves_were_kept(run: Path, tmp_path: Path) -> None:
    whole = read_run(run)
    kept.keep(whole)
    assert (run / kept.NAME).stat().st_size < 40_000  # of three seeds
    left = read_run(_without_tables(run, tmp_path / "left"))
    assert (left.state, left.reached, left.frames, left.problem) == ("finished", 4_000, 4_000, "")
    for was, now in zip(whole.seeds, left.seeds, strict=True):
        assert (was.seed, was.episodes) == (now.seed, now.episodes)
        assert [now.final, now.best_mean, now.best] == pytest.approx([was.final, was.best_mean, was.best], rel=1e-8)
        for name, curve in was.curves.items():
            np.testing.assert_allclose(now.curves[name], curve, rtol=1e-4)
        for share in (0.0, 0.3, 0.7, 1.0):  # a level's frame is known to a two-hundredth of the climb
            first, last = was.record_values[[0, -1]]
            score = first + share * (last - first) * 0.9999
            assert was.frames_to(score) <= now.frames_to(score) <= was.frames_to(score + (last - first) / 199)
    assert left.seconds_to(2_000) == pytest.approx(whole.seconds_to(2_000), rel=0.01)
    assert read_run(left.path, 2_000).problem == (
        "Its curves were kept for 4,000 frames, and only for as many it can be reported."
    )


def test_numbers_that_are_not_there_are_kept_as_such(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    summary = {"seeds": [{"seed": s, "frames": CONFIG.frames, "episodes": n} for s, n in ((7, 2), (8, 1))]}
    (tmp_path / "run" / "summary.json").write_text(json.dumps(summary))
    whole = read_run(tmp_path / "run")
    kept.keep(whole)
    left = read_run(_without_tables(tmp_path / "run", tmp_path / "left"))
    assert np.isnan(left.seeds[0].best_mean)
    assert left.seeds[0].frames_to(0) == np.inf
    for name, curve in whole.seeds[0].curves.items():
        np.testing.assert_array_equal(np.isnan(left.seeds[0].curves[name]), np.isnan(curve))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('{"format":1', '{"format":9', "incompatible version"),
        ('"frames":4000', '"frames":"many"', "damaged"),
        ('"score":[', '"score":[1,', "a curve has lost points"),
        ('{"seed":2', '{"seed":5', "of another run"),
        ('"frames":4000', '"frames":1e999', "damaged"),
        ('"score":[', '"score":[[1],', "damaged"),
        ("}", "", "damaged"),
    ],
)
def test_kept_curves_that_are_damaged(run: Path, tmp_path: Path, old: str, new: str, said: str) -> None:
    kept.keep(read_run(run))
    left = _without_tables(run, tmp_path / "left")
    text = (left / kept.NAME).read_text()
    assert old in text
    (left / kept.NAME).write_text(text.replace(old, new, 1))
    record = read_run(left)
    assert record.damaged
    assert said in record.problem


def test_runs_are_found_wherever_they_are(run: Path, tmp_path: Path) -> None:
    deep = tmp_path / "sweep" / "runs" / "a"
    write(deep, config_of(frames=1_000, seeds=1))
    (deep / "checkpoints" / "no-run").mkdir(parents=True)
    (deep / "checkpoints" / "no-run" / "config.json").write_text("{}")
    (tmp_path / "sweep" / "linked").symlink_to(run)
    (tmp_path / "sweep" / "loop").symlink_to(tmp_path / "sweep")
    found = [tmp_path / "sweep" / "linked", deep]
    assert find_runs([tmp_path]) == found
    assert find_runs([tmp_path, deep, run]) == found  # each once
    for path, sentence in ((tmp_path / "nowhere", "There is no"), (deep / "config.json", "is no directory")):
        with pytest.raises(UserError, match=sentence):
            find_runs([path])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"no config\.json anywhere below"):
        find_runs([tmp_path / "empty"])


def test_an_unfinished_run(tmp_path: Path) -> None:
    write(tmp_path / "run", config_of(), until=2_000)
    record = read_run(tmp_path / "run")
    assert (record.state, record.damaged, record.seeds) == ("unfinished", False, ())
    assert record.problem == "It is at frame 2,000 of 4,000."
    assert read_run(tmp_path / "run", 2_000).problem == ""
    write(tmp_path / "short", config_of(frames=2_000))
    assert read_run(tmp_path / "short", 3_000).problem == "It has 2,000 frames in all."
    (tmp_path / "run" / "summary.json").unlink()
    assert read_run(tmp_path / "run").problem == "It has no checkpoint yet."


def _append(text: str) -> Callable[[Path], Any]:
    def change(path: Path) -> None:
        with open(path / "episodes.csv", "a") as file:
            file.write(text)

    return change


def _say(**options: Any) -> Callable[[Path], Any]:
    def change(path: Path) -> None:
        content = json.loads((path / "config.json").read_text())
        content["config"].update(options)
        (path / "config.json").write_text(json.dumps(content))

    return change


def _lose(path: Path) -> None:
    lines = (path / "episodes.csv").read_text().splitlines(keepends=True)
    (path / "episodes.csv").write_text("".join(lines[:-5]))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (_append("0,4001,1\n"), r"episodes\.csv is damaged in line 1202: it has 3 cells, not 6"),
        (_append("0,4001,1,2,3,4,5\n"), r"line 1202: it has 7 cells, not 6"),
        (_append("0,x,1,10,0,0\n"), r"line 1202: frame must be a whole number, not 'x'"),
        (_append("9,4001,1,10,0,0\n"), r"line 1202: the run has no seed 9"),
        (_append("0,,1,10,0,0\n"), r"line 1202: frame must be a whole number"),
        (_append("0,-5,1,10,0,0\n"), r"line 1202: frame must be a whole number"),
        (_append("0,10,1,10,0,0\n"), r"has 401 episodes of seed 0 where summary\.json counts 400"),
        (_lose, r"has 399 episodes of seed 0 where summary\.json counts 400"),
        (lambda path: (path / "episodes.csv").write_bytes(b"\xff\xfe\n"), r"line 1: it is no text"),
        (lambda path: (path / "episodes.csv").unlink(), r"there is no .*episodes\.csv"),
        (lambda path: (path / "summary.json").write_text("[]"), r"summary\.json is damaged"),
        (lambda path: (path / "config.json").write_text("{"), r"config\.json cannot be read"),
        (lambda path: (path / "config.json").write_text("{}"), "incompatible version"),
        (_say(seeds=0), r"config\.json cannot be right: --seeds must be at least 1, not 0"),
        (_say(frames=1), r"config\.json cannot be right: --frames 1 ends before learning starts"),
    ],
)
def test_a_damaged_run_is_told_with_its_reason(tmp_path: Path, change: Callable[[Path], Any], sentence: str) -> None:
    write(tmp_path / "run", config_of())
    change(tmp_path / "run")
    record = read_run(tmp_path / "run")
    assert record.state == "damaged"
    assert record.seeds == ()
    with pytest.raises(UserError, match=sentence):
        raise UserError(record.problem)


def test_both_readers_agree(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, _ = runs.read_config(run)
    fast = tables._read_episodes(run, config), tables._read_metrics(run, config)
    monkeypatch.setattr(tables, "_read_fast", lambda *_: None)
    slow = tables._read_episodes(run, config), tables._read_metrics(run, config)
    for one, other in zip(fast, slow, strict=True):
        assert set(one) == set(other)
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


def test_a_line_that_is_still_being_written_is_left_out(tmp_path: Path) -> None:
    write(tmp_path / "run", config_of())
    _append("0,40")(tmp_path / "run")
    assert read_run(tmp_path / "run").problem == ""


def test_an_empty_cell_is_no_number(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    columns = tables._read_episodes(tmp_path / "run", CONFIG)
    assert np.isnan(columns["least_uncertain"]).tolist() == [False, True, False]
    assert columns["return"].tolist() == [1, -2.5, 3]
