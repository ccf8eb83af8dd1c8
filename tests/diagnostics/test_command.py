"""`ceqr diagnose` as a user has it: the folder, its numbers, its sentences."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ceqr.cli import main
from ceqr.diagnostics import command


@pytest.fixture(scope="session")
def told(diagnosis: Path) -> dict[str, Any]:
    return json.loads((diagnosis / "diagnostics.json").read_text())


def test_the_folder(diagnosis: Path) -> None:
    assert {path.name for path in diagnosis.iterdir()} == {"index.html", "diagnostics.json", "figures"}
    names = {path.stem for path in (diagnosis / "figures").iterdir()}
    assert {"coverage", "reliability", "time", "training", "exploration", "strange", "disentangled"} <= names
    for path in (diagnosis / "figures").glob("*.png"):
        assert path.read_bytes().startswith(b"\x89PNG")


def test_numbers_of_all_agents(told: dict[str, Any]) -> None:
    ua, plain, maze = told["runs"]
    assert [run["label"] for run in told["runs"]] == ["ua", "plain", "maze"]
    assert [seed["seed"] for seed in ua["seeds"]] == [3, 4]
    for name in ("returns", "td_quantiles", "miscalibration"):
        seeds = [seed[name]["value"] for seed in ua["seeds"]]
        assert ua[name]["value"] == pytest.approx(np.mean(seeds))
        assert name not in plain
        assert plain["absent"][name] == "the agent has no quantiles"
    assert ua[name]["low"] <= ua[name]["value"] <= ua[name]["high"]
    assert "bias" in plain
    assert set(ua["auroc"]) == {"shuffled", "weak_noise", "medium_noise", "strong_noise"}
    assert plain["auroc"] == {}
    assert plain["absent"]["shuffled"] == "the agent has no epistemic uncertainty"
    assert ua["absent"]["td_evidential"] == "the agent has no evidential interval"
    assert 0 <= maze["td_evidential"]["value"] <= 1
    assert 0 <= maze["exact"]["value"] <= 1
    assert -1 <= maze["correlation"]["spearman"]["epistemic_rarity"]["value"] <= 1
    assert maze["seeds"][0]["points"] > 0
    assert ua["correlation"] is None
    assert len(ua["reliability"]["value"]) == len(ua["reliability"]["level"]) == 101


def test_shares_are_those_of_the_tables(told: dict[str, Any], runs: dict[str, Path]) -> None:
    for run, path in zip(told["runs"], runs.values(), strict=True):
        rows: Any = pd.read_csv(path / "episodes.csv")
        for seed in run["seeds"]:
            own = rows[rows["seed"] == seed["seed"]]
            shares = seed["training"]
            assert shares["nongreedy"] == pytest.approx(np.average(own["nongreedy"], weights=own["length"]))
            assert shares["nongreedy_last"] == pytest.approx(own["nongreedy"].iloc[-100:].mean())
            if run["label"] == "plain":
                assert shares["difference"] is None
            else:
                off = (own["least_uncertain"] - (1 - own["nongreedy"])).abs()
                assert shares["difference"] == pytest.approx(off.mean())
                assert shares["within_paper"] == pytest.approx((off <= 0.001 + 1e-6).mean())


def test_the_page_says_what_is_missing_and_why(diagnosis: Path, runs: dict[str, Path]) -> None:
    page = (diagnosis / "index.html").read_text()
    assert "plain: the agent has no quantiles" in page
    assert "plain: no epistemic uncertainty, and so no least uncertain action" in page
    assert re.search(r"Of 20 episodes of maze \d differ", page)  # a greedy agent in the maze has little chance
    assert "maze: of a cell's number" in page.replace("&#39;", "'")
    for run in runs:
        assert f"<td>{run}</td>" in page
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_as_json_in_an_empty_folder(
    runs: dict[str, Path], told: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(["diagnose", str(runs["plain"]), "--episodes", "20", "--json"]) == 0
    out = capsys.readouterr()
    printed = json.loads(out.out)
    assert out.err == ""
    assert printed["runs"][0] == told["runs"][1]  # beside others or alone, the same
    assert printed == json.loads(Path("diagnosis/diagnostics.json").read_text())
    assert main(["diagnose", str(runs["plain"]), "--episodes", "20"]) == 2
    assert "diagnosis is not empty; choose another --out." in capsys.readouterr().err


def test_runs_of_one_name_have_their_paths(runs: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(runs["plain"], tmp_path / "plain")
    patients = command.admit([runs["plain"], tmp_path / "plain"], 1, 1)
    assert [each.label for each in patients] == [str(runs["plain"]), str(tmp_path / "plain")]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "Which runs? Name run directories: ceqr diagnose runs/x runs/y."),
        (["nowhere"], "nowhere is not a run: there is no"),
        (["RUN", "RUN"], "is given twice; name each run once."),
        (["RUN", "--episodes", "0"], "--episodes must be at least 1, not 0."),
        (["RUN", "--max-episode-frames", "0"], "--max-episode-frames must be at least 1, not 0."),
        (["RUN", "--out", "FULL"], "is not empty; choose another --out."),
        (["EMPTY"], "has no checkpoint yet; train it for longer."),
        (["STRANGER"], "if you trust it, say so with --import tests.probes."),
    ],
)
def test_mistakes(
    runs: dict[str, Path], tmp_path: Path, arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    shutil.copytree(runs["plain"], "empty", ignore=shutil.ignore_patterns("checkpoints"))
    shutil.copytree(runs["plain"], "stranger")
    config = Path("stranger/config.json")
    config.write_text(config.read_text().replace("probe/noisy-chain", "gymnasium/tests.probes:probe/Counting-v0"))
    Path("full").mkdir()
    Path("full/mine").write_text("mine")
    before = sorted(Path().rglob("*"))
    words = {"RUN": str(runs["plain"]), "FULL": "full", "EMPTY": "empty", "STRANGER": "stranger"}
    assert main(["diagnose", *(words.get(word, word) for word in arguments)]) == 2
    out = capsys.readouterr()
    assert sentence in out.err
    assert out.out == ""
    assert len(out.err.splitlines()) == 1
    assert sorted(Path().rglob("*")) == before


def test_half_a_diagnosis_is_not_left(runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(command, "write_json", full)
    assert main(["diagnose", str(runs["plain"]), "--episodes", "2", "--out", str(tmp_path / "out")]) == 1
    assert not (tmp_path / "out").exists()


def test_an_unfinished_run_is_told_as_such(runs: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(runs["plain"], out)
    config = json.loads((out / "config.json").read_text())
    config["config"]["frames"] = 1_000
    (out / "config.json").write_text(json.dumps(config))
    assert main(["diagnose", str(out), "--episodes", "1", "--out", str(tmp_path / "out")]) == 0
    assert "run is unfinished: it is shown at frame 60 of 1,000." in (tmp_path / "out" / "index.html").read_text()
    told = json.loads((tmp_path / "out" / "diagnostics.json").read_text())
    assert told["runs"][0]["bias"]["low"] is None  # one episode has no interval


def test_help_names_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["diagnose", "--help"])
    out = capsys.readouterr().out
    for option in ("RUN", "--out", "--episodes", "--max-episode-frames", "--import", "--json"):
        assert option in out
