"""A search finds the best of what it tried, and interrupted it tries the same."""

import json
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import tests.probe_family  # noqa: F401  # makes the probe known here, too
from ceqr.cli import main
from ceqr.experiments import estimate
from ceqr.experiments.sweep import complete, expand, read
from tests.experiments.conftest import PROBE, finish, start, wait_for_checkpoint

SEARCH = [
    *PROBE, "--agents", "dqn", "--hidden", "16", "--batch-size", "8", "--replay-size", "300", "--learning-starts", "60",
    "--log-every", "50", "--frames", "200", "--epsilon-end", "0.1,0.9", "--seeds", "2", "--search", "--trials", "5",
]  # fmt: skip
"""Two programs to compile, and two batches of trials."""


def _trials(sweep: Path) -> list[tuple[Any, ...]]:
    """What Optuna's own storage says of each trial."""
    with sqlite3.connect(sweep / "search.db") as storage:
        return storage.execute(
            "SELECT number, state, value, param_name, param_value FROM trials JOIN trial_values USING (trial_id) "
            "JOIN trial_params USING (trial_id) ORDER BY number, param_name"
        ).fetchall()


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("search") / "sweep"
    text = finish(start(*SEARCH, "--out", str(out)))
    assert "best of 5 trials is" in text
    return out


def test_every_trial_is_told_and_the_best_is_declared(searched: Path) -> None:
    rows = _trials(searched)
    assert [row[:2] for row in rows] == [(n, "COMPLETE") for n in range(5)]
    assert len(list(searched.glob("runs/*"))) == 5 * 2
    _, _, value, name, choice = max(rows, key=lambda row: row[2])
    assert name == "epsilon_end"
    specs = expand(complete(read(searched / "best.toml")))
    assert [spec.config.hyper.epsilon_end for spec in specs] == [[0.1, 0.9][int(choice)]] * 2
    # A trial's value is the mean over its seeds of what their own summaries say.
    number = next(row[0] for row in rows if row[2] == value)
    summaries = [json.loads(p.read_text()) for p in searched.glob(f"runs/*-trial{number:03d}-*/summary.json")]
    assert value == pytest.approx(sum(s["seeds"][0]["mean_of_last_100"] for s in summaries) / 2)


def test_interrupted_it_ends_with_the_same_trials(searched: Path, tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    process = start(*SEARCH, "--out", str(out))
    wait_for_checkpoint(out)
    process.send_signal(signal.SIGINT)
    finish(process, 130)
    assert len(_trials(out)) < 5
    finish(start(str(out), "--import", "tests.probe_family"))
    assert _trials(out) == _trials(searched)


def test_a_search_may_be_given_more_trials(
    searched: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimate, "SECONDS", 0.1)
    assert main(["sweep", str(searched), "--import", "tests.probe_family", "--trials", "7", "--dry-run"]) == 0
    assert "14 runs" in capsys.readouterr().out
