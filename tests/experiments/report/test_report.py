"""`ceqr report`: its tables against pandas and rliable, its page and pictures, its sentences."""

import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from scipy import stats as scipy_stats

from ceqr.cli import main
from ceqr.experiments import references
from ceqr.experiments.comparison import compare
from ceqr.experiments.report import page, results
from ceqr.experiments.report.figures import suite_figures
from ceqr.experiments.tables import find_runs, read_run
from tests.experiments.generated import config_of, write

PAPER = "minatar: paper protocol (no sticky actions), 4,000 frames, 128 hidden units"


def _table(report: Path, name: str) -> Any:
    return pd.read_csv(report / "tables" / f"{name}.csv")


def _raw(sweep: Path, name: str, seed: int) -> Any:
    """The returns of a seed, read by pandas."""
    frame: Any = pd.read_csv(sweep / "runs" / name / "episodes.csv")
    return frame[frame["seed"] == seed]["return"]


def test_scores_with_protocol_and_network_in_every_row(sweep: Path, report: Path) -> None:
    scores = _table(report, "scores")
    assert scores[["protocol", "network", "frames", "source", "seeds"]].notna().all().all()
    ours = scores[scores["source"] == "these runs"]
    row = ours[(ours["game"] == "breakout") & (ours["algorithm"] == "ua-dqn")].iloc[0]
    finals = [_raw(sweep, f"breakout-ua-dqn-{s - s % 2}", s).iloc[-100:].mean() for s in range(4)]
    low, high = scipy_stats.t.interval(0.95, 3, np.mean(finals), scipy_stats.sem(finals))
    assert row["seeds"] == 4
    assert row["final score"] == pytest.approx(np.mean(finals))
    assert (row["final score: 95 % low"], row["final score: 95 % high"]) == pytest.approx((low, high))
    assert row["best episode"] == 0.75 + 4
    assert row["network"] == "128 hidden units, 453,426 parameters"
    paper = scores[scores["source"].str.startswith("Stutts")].set_index(["game", "algorithm"])["best episode"]
    assert paper["breakout", "CEQR-DQN"] == 4481
    assert paper["asterix", "UA-DQN"] == 95


def test_what_is_incomparable_is_apart(report: Path) -> None:
    seeds = _table(report, "seeds")
    groups = seeds.groupby(["setting", "env", "algorithm"])["seed"].count()
    assert len(seeds["setting"].unique()) == 3
    standard = "minatar: standard protocol (sticky actions 0.1), 4,000 frames, 128 hidden units"
    assert groups[standard, "minatar/breakout", "ceqr-dqn"] == 1
    assert groups[PAPER, "minatar/breakout", "ceqr-dqn"] == 4
    text = (report / "index.html").read_text()
    assert "protocols (sticky actions), which makes their scores incomparable" in text
    assert "Too few seeds" in text


def test_aggregates_are_rliables(report: Path) -> None:
    from rliable import metrics

    seeds = _table(report, "seeds")
    seeds = seeds[seeds["setting"] == PAPER]
    aggregates = _table(report, "aggregates").set_index(["setting", "statistic", "algorithm"])["normalised score"]

    def matrix(agent: str) -> np.ndarray:
        mine = seeds[seeds["algorithm"] == agent]
        return mine.pivot(index="seed", columns="env", values="normalised final score").to_numpy()

    for agent in ("ceqr-dqn", "ua-dqn"):
        iqm = aggregates[PAPER, "interquartile mean", agent]
        assert iqm == pytest.approx(metrics.aggregate_iqm(matrix(agent)))
        gap = aggregates[PAPER, "optimality gap (less is better)", agent]
        assert gap == pytest.approx(metrics.aggregate_optimality_gap(matrix(agent)))
    improvement = _table(report, "improvement").set_index(["setting", "algorithm", "over"])["probability"]
    theirs = metrics.probability_of_improvement(matrix("ceqr-dqn"), matrix("ua-dqn"))
    assert improvement[PAPER, "ceqr-dqn", "ua-dqn"] == pytest.approx(theirs)


def test_scores_are_normalised_between_random_play_and_the_reference(report: Path) -> None:
    seeds = _table(report, "seeds")
    breakout = seeds[(seeds["env"] == "minatar/breakout") & (seeds["setting"] == PAPER)]
    scale = references.scale("minatar/breakout", "paper")
    assert scale is not None
    assert scale.reference == 18.11
    np.testing.assert_allclose(
        breakout["normalised final score"], (breakout["final score"] - scale.random) / (18.11 - scale.random), rtol=1e-5
    )
    assert seeds[seeds["env"] == "gymnasium/CartPole-v1"]["normalised final score"].isna().all()
    assert "There is no scale for gymnasium/" in (report / "index.html").read_text()


def test_random_play_scores_what_the_data_say() -> None:
    # Shipped numbers against another measurement: five standard errors of their difference.
    from benchmarks.random_play import random_returns

    from ceqr import envs

    returns = random_returns(envs.make("minatar/breakout", protocol="paper"), seed=1)
    scale = references.scale("minatar/breakout", "paper")
    assert scale is not None
    assert abs(returns.mean() - scale.random) < 7 * returns.std() / np.sqrt(len(returns))


def test_frames_and_seconds_to_a_score(report: Path) -> None:
    table = _table(report, "time-to-score").set_index(["setting", "game", "algorithm", "score to reach"])
    half = table.loc[(PAPER, "breakout", "ua-dqn", "half of the best final score")]
    # The mean of 100 episodes at frame f is (f - 495) / 1000 above the first return's offset of seed / 4.
    frames = np.median([1_000 * (half["return"] - s / 4) + 495 for s in range(4)])
    assert half["frames"] == pytest.approx(frames, abs=10)
    assert half["seconds"] == pytest.approx(half["frames"] / 100, abs=1e-6)
    assert half["seeds that reached it"] == "4 of 4"
    reference = table.loc[(PAPER, "breakout", "ua-dqn", "the reference")]
    assert (reference["seeds that reached it"], reference["return"]) == ("0 of 4", 18.11)
    assert np.isnan(reference["frames"])


def test_every_run_is_listed(report: Path) -> None:
    runs = _table(report, "runs")
    assert len(runs) == 13
    told = {Path(row["run"]).name: row for _, row in runs.iterrows()}
    assert told["half"]["state"] == "unfinished"
    assert told["half"]["why it is in no figure"] == "It is at frame 2,000 of 4,000."
    assert told["torn"]["state"] == "damaged"
    assert "there is no column 'return'" in told["torn"]["why it is in no figure"]
    text = (report / "index.html").read_text()
    assert "With --frames 2000" in text
    assert "torn" in text


def test_curves_are_those_of_the_seeds(sweep: Path, report: Path) -> None:
    curves = _table(report, "curves")
    mine = curves[
        (curves["setting"] == PAPER)
        & (curves["env"] == "minatar/breakout")
        & (curves["algorithm"] == "ceqr-dqn")
        & (curves["quantity"] == "score")
    ]
    assert len(mine) == 200 - 0
    ends = [
        _raw(sweep, f"breakout-ceqr-dqn-{s - s % 2}", s).rolling(100).mean().rolling(100).mean().iloc[-1]
        for s in range(4)
    ]
    assert mine["mean"].iloc[-1] == pytest.approx(np.mean(ends))
    assert set(curves["quantity"]) == {"score", "nongreedy", "coverage", "epistemic", "aleatoric"}
    assert not len(curves[(curves["algorithm"] == "ua-dqn") & (curves["quantity"] == "coverage")])


class _Links(HTMLParser):
    """Everything that a page would load or lead to."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value or "" for name, value in attrs if name in ("href", "src", "srcset", "action", "data")]
        self.ids += [value or "" for name, value in attrs if name == "id"]


def test_the_page_needs_nothing_else(report: Path) -> None:
    text = (report / "index.html").read_text()
    links = _Links()
    links.feed(text)
    outside = [link for link in links.found if not link.startswith(("#", "figures/", "tables/", "data:,"))]
    assert outside == []
    assert not re.search(r"@import|url\(|https?://", text)
    for link in links.found:
        if link.startswith("#"):
            assert link[1:] in links.ids
        elif not link.startswith("data:"):
            assert (report / link).exists()
    assert len(set(links.ids)) == len(links.ids)


def test_names_are_text_and_not_code(report: Path) -> None:
    text = (report / "index.html").read_text()
    assert "<script>alert" not in text
    assert "<b>Bold</b>" not in text
    assert "&lt;script&gt;alert(1)" in text


def test_pictures_are_there_in_both_kinds(report: Path) -> None:
    pictures = sorted((report / "figures").glob("minatar-paper-*.png"))
    kinds = {path.stem.rpartition("-")[2] for path in pictures}
    assert kinds == {
        "curves", "aggregates", "profiles", "improvement", "nongreedy", "coverage", "epistemic", "aleatoric",
    }  # fmt: skip
    for picture in pictures:
        assert picture.read_bytes().startswith(b"\x89PNG")
        root = ElementTree.parse(picture.with_suffix(".svg")).getroot()
        assert root.tag.endswith("svg")
    curves = (report / "figures" / "minatar-paper-4000-frames-128-curves.svg").read_text()
    assert "ceqr-dqn, 4 seeds" in curves  # text stays text


def _page(paths: list[Path], **options: Any) -> bytes:
    records = [read_run(path) for path in find_runs(paths)]
    computed = results.compute(records, compare(records, **options), {}, 200)
    figures = {page.slug(s.setting): suite_figures(s, computed) for s in computed.suites}
    return page.render(computed, figures, None)


def test_the_same_runs_make_the_same_page(sweep: Path) -> None:
    paths = [sweep / "runs" / f"breakout-{agent}-0" for agent in ("ceqr-dqn", "ua-dqn")]
    assert _page(paths) == _page(paths)


def test_one_seed_has_no_interval_and_two_are_drawn_singly(tmp_path: Path) -> None:
    write(tmp_path / "one", config_of("dqn", seeds=1))
    write(tmp_path / "two", config_of("qr-dqn", seeds=2))
    records = [read_run(path) for path in find_runs([tmp_path])]
    computed = results.compute(records, compare(records), {}, 200)
    (suite,) = computed.suites
    panel: Any = suite_figures(suite, computed)["curves"].panels[0]
    assert [(line.label, line.single, line.low is None) for line in panel.lines] == [
        ("dqn, 1 seed", False, True),
        ("qr-dqn, 2 seeds", True, True),
        ("qr-dqn, 2 seeds", True, True),
        ("qr-dqn, 2 seeds", False, True),
    ]
    one, two = suite.aggregates["iqm"].values()
    assert np.isnan(one.low)
    assert np.isfinite(two.low)


def test_algorithms_that_have_not_played_the_same_games(tmp_path: Path) -> None:
    write(tmp_path / "a", config_of("dqn", seeds=2))
    write(tmp_path / "b", config_of("dqn", "minatar/asterix", seeds=2))
    write(tmp_path / "c", config_of("qr-dqn", seeds=3))
    records = [read_run(path) for path in find_runs([tmp_path])]
    computed = results.compute(records, compare(records), {}, 200)
    assert computed.suites[0].games == ("minatar/breakout",)
    assert any("Not all algorithms have played minatar/asterix" in note for note in computed.notes)
    assert any("differ in their number of seeds" in note for note in computed.notes)


# The command.


def _fail(capsys: pytest.CaptureFixture[str], *argv: object) -> str:
    assert main(["report", *map(str, argv)]) == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    return error


def test_mistakes_get_a_sentence_and_leave_nothing(
    sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    runs = sweep / "runs"
    assert "Which runs?" in _fail(capsys)
    assert "There is no" in _fail(capsys, tmp_path / "nowhere", "--out", out)
    assert "--keep is of whole runs" in _fail(capsys, runs, "--keep", "--frames", "9", "--out", out)
    assert "--resamples must be from 100" in _fail(capsys, runs, "--resamples", "3", "--out", out)
    assert "--frames must be at least 1" in _fail(capsys, runs, "--frames", "0", "--out", out)
    assert "has got as far as is asked for; --frames 4000" in _fail(
        capsys, runs / "sticky", "--frames", "9000", "--out", out
    )
    assert "None of the 1 runs can be reported" in _fail(capsys, runs / "torn", "--out", out)
    assert "--scales" in _fail(capsys, runs, "--scales", tmp_path / "no.csv", "--out", out)
    (tmp_path / "bad.csv").write_text("env,random,reference\nminatar/breakout,1,1\n")
    assert "line 2 has not" in _fail(capsys, runs, "--scales", tmp_path / "bad.csv", "--out", out)
    assert not out.exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    assert "is not empty; choose another --out" in _fail(capsys, runs / "sticky", "--out", tmp_path / "full")
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["mine.txt"]


def test_what_is_interrupted_leaves_nothing(sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(figure: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("ceqr.experiments.report.picture.draw", interrupt)
    assert main(["report", str(sweep / "runs" / "sticky"), "--out", str(tmp_path / "out"), "--quiet"]) == 130
    assert not (tmp_path / "out").exists()


def test_what_is_kept_of_runs_makes_the_same_report(
    sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ceqr.experiments.report.picture.draw", lambda figure: {})
    whole = tmp_path / "runs"
    for name in ("sticky", "cartpole", "torn", "half"):
        shutil.copytree(sweep / "runs" / name, whole / name)
    assert main(["report", str(whole), "--keep", "--out", str(tmp_path / "whole"), "--quiet"]) == 0
    assert sorted(path.parent.name for path in whole.rglob("curves.json")) == ["cartpole", "sticky"]
    for table in whole.rglob("*.csv"):
        table.unlink()
    assert main(["report", str(whole), "--keep", "--out", str(tmp_path / "left"), "--quiet"]) == 0
    assert main(["report", str(whole / "sticky"), "--frames", "2000", "--out", str(tmp_path / "no")]) == 2
    assert "None of the 1 runs can be reported." in (said := capsys.readouterr().err)
    assert "Its curves were kept for 4,000 frames" in said
    for name in ("scores", "seeds", "time-to-score", "curves"):
        was, now = _table(tmp_path / "whole", name), _table(tmp_path / "left", name)
        numbers = was.select_dtypes("number").columns
        np.testing.assert_allclose(now[numbers], was[numbers], rtol=0.01)
        assert now.drop(columns=numbers).equals(was.drop(columns=numbers))


def test_runs_under_way_and_scales_of_ones_own(
    sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ceqr.experiments.report.picture.draw", lambda figure: {})
    (tmp_path / "scales.csv").write_text("env,random,reference\ngymnasium/CartPole-v1,0,4\n")
    paths = [sweep / "runs" / "half", sweep / "runs" / "cartpole"]
    options = ["--frames", "2000", "--scales", str(tmp_path / "scales.csv"), "--out", str(tmp_path / "out")]
    assert main(["report", *map(str, paths), *options]) == 0
    told = capsys.readouterr()
    assert told.out.endswith("index.html: 2 of 2 runs\n")
    assert "Note: Too few seeds" in told.err
    seeds = _table(tmp_path / "out", "seeds").set_index(["env", "seed"])
    cartpole = seeds.loc[("gymnasium/CartPole-v1", 0)]
    assert cartpole["normalised final score"] == pytest.approx(cartpole["final score"] / 4)
    assert seeds.loc[("minatar/breakout", 9)]["episodes"] == 200
