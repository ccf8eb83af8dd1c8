"""The picture of a run: what its axes show and what its title says."""

import dataclasses
import io
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest

from ceqr import plot as plot_module
from ceqr.config import RunConfig
from ceqr.envs import FAMILIES, Family, Option
from ceqr.errors import UserError
from ceqr.plot import plot
from ceqr.runs import EpisodeRow, MetricsRow
from tests.test_runs import CONFIG, write_run

NAN = float("nan")


def _figure(
    config: RunConfig[Any] = CONFIG, returns: float = -200.0, seeds: int = 2, values: dict[str, float] | None = None
) -> Any:
    values = {"coverage": 0.85, "epistemic": 1.0, "aleatoric": 2.0, "start_value": -5.0} if values is None else values
    numbers = range(7, 7 + seeds)
    episodes = {s: [EpisodeRow(s, f, returns + f / 10, 50, 0.1, NAN) for f in range(50, 500, 50)] for s in numbers}
    metrics = {s: [MetricsRow(s, f, values) for f in range(100, 500, 100)] for s in numbers}
    figure = plot_module._draw(config, episodes, metrics)
    plt.close(figure)
    return figure


def test_negative_returns_are_in_the_picture() -> None:
    returns, *_, value = _figure().axes
    for axis in (returns, value):
        lowest, highest = axis.get_ylim()
        for line in axis.lines:
            assert lowest <= min(line.get_ydata()) <= max(line.get_ydata()) <= highest


def test_a_protocol_is_named_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _figure().get_suptitle() == "ceqr-dqn on minatar/breakout (paper protocol), 2 seeds"
    config = dataclasses.replace(CONFIG, env="gymnasium/$\\frac$", seeds=1)
    figure = _figure(config)
    assert figure.get_suptitle() == "ceqr-dqn on gymnasium/$\\frac$, 1 seed"
    figure.savefig(io.BytesIO())  # and is not taken for mathematics
    abroad = dataclasses.replace(CONFIG, env="abroad/x", env_kwargs=("size=3",))
    assert _figure(abroad).get_suptitle() == "ceqr-dqn on abroad/x (size=3), 2 seeds"  # of a family not imported
    family = Family("abroad", make=str, compiled=True, about="x", options={"protocol": Option("paper")})
    monkeypatch.setitem(FAMILIES, "abroad", family)
    assert _figure(abroad).get_suptitle() == "ceqr-dqn on abroad/x (paper protocol, size=3), 2 seeds"


@pytest.mark.parametrize(("seeds", "lines"), [(1, ["seed 7"]), (3, ["one seed", "mean of 3 seeds"])])
def test_lines_are_named(seeds: int, lines: list[str]) -> None:
    returns = _figure(seeds=seeds).axes[0]
    assert [text.get_text() for text in returns.get_legend().get_texts()] == lines


def test_an_agent_that_estimates_no_uncertainty() -> None:
    _, _, coverage, epistemic, aleatoric, value = _figure(values={"loss": 1.0, "start_value": 3.0}).axes
    for axis in (coverage, epistemic, aleatoric):
        assert axis.texts[0].get_text() == "not estimated (yet)"
        assert not axis.lines
    assert value.lines


def test_the_picture_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run"
    write_run(path)
    assert plot(path) == path / "learning_curve.png"
    assert (path / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    assert not plt.get_fignums()
    monkeypatch.setattr(plot_module, "_draw", lambda *_: plt.figure(figsize=(1, 1)))
    assert plot(path, tmp_path / "x.png") == tmp_path / "x.png"
    with pytest.raises(UserError, match=r"must name a \.png file"):
        plot(path, tmp_path / "x.pdf")
    with pytest.raises(UserError, match=r"Cannot write .*: No such file or directory\."):
        plot(path, tmp_path / "nowhere" / "x.png")
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(UserError, match=r"Cannot write .*: Is a directory\."):
        plot(path, tmp_path / "folder.png")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder.png", "run", "x.png"]
    assert not plt.get_fignums()
