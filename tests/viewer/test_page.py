"""The page's file: what is packed can be read back, it stays small, and it says what it must."""

import base64
import json
import re
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ceqr.agents.base import Agent
from ceqr.viewer import page
from ceqr.viewer.heat import heat_of
from ceqr.viewer.record import Episode, Subject, play
from tests.viewer.subjects import invented, subject, watched

Recorded = tuple[Subject, list[Episode]]


class Scripts(HTMLParser):
    """The scripts of a page by their ids."""

    def __init__(self, text: str):
        super().__init__()
        self.found: dict[str, str] = {}
        self._id: str | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._id = dict(attrs).get("id") if tag == "script" else None

    def handle_data(self, data: str) -> None:
        if self._id:
            self.found[self._id] = self.found.get(self._id, "") + data


def _arrays(text: str, episode: int = 0, agent: int = 0) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    scripts = Scripts(text).found
    told = json.loads(scripts["data"])["episodes"][episode]["agents"][agent]
    data = zlib.decompress(base64.b64decode(scripts[told["block"]]))
    arrays = {}
    for each in told["layout"]:
        assert each["offset"] % 4 == 0
        count = int(np.prod(each["shape"]))
        arrays[each["name"]] = np.frombuffer(data, each["dtype"], count, each["offset"]).reshape(each["shape"])
    return arrays, told


def test_numbers_are_the_recorded_ones_to_the_bit(breakout: Recorded) -> None:
    text = page.render(watched([breakout[0]], [breakout[1]])).decode()
    for number, episode in enumerate(breakout[1]):
        arrays, told = _arrays(text, number)
        for name in ("mean", "epistemic", "aleatoric", "novelty"):
            np.testing.assert_array_equal(arrays[name], np.float32(getattr(episode.beliefs, name)))
        np.testing.assert_array_equal(arrays["lower"], np.float32(episode.beliefs.interval.lower))
        for name in ("action", "greedy", "sampled", "reward"):
            np.testing.assert_array_equal(arrays[name], getattr(episode, name))
        low, high = arrays["quantiles"].astype(np.uint32)
        whole = (low + 256 * high).cumsum(-1)
        quantiles = told["quantiles"]["low"] + told["quantiles"]["span"] * whole / page.STEPS
        error = np.abs(quantiles - np.sort(episode.beliefs.quantiles, -1)).max()
        assert error <= 0.51 * told["quantiles"]["span"] / page.STEPS
        assert (told["length"], told["total"]) == (len(episode), episode.reward.sum())


def test_a_long_episode_stays_small() -> None:
    """5,000 steps of Seaquest's size, with numbers that hardly compress."""
    chance = np.random.default_rng(0)
    seen = chance.random((5_000, 10, 10, 10)) < 0.1
    made = subject("ceqr-dqn", "minatar/seaquest")
    size = len(page.render(watched([made], [[invented(5_000, 6, 50, seen)]])))
    assert 1_000_000 < size < 15_000_000


def test_with_many_actions_there_are_fewer_quantiles() -> None:
    quantiles = np.arange(2 * 18 * 50, dtype=np.float32).reshape(2, 18, 50)
    thinned = page._thinned(quantiles)
    assert thinned.shape[-1] * 18 <= page.MOST_QUANTILES
    np.testing.assert_array_equal(thinned[..., [0, -1]], quantiles[..., [0, -1]])
    np.testing.assert_array_equal(page._thinned(quantiles[:, :6]), quantiles[:, :6])


def test_the_axis_has_room_for_most_frames_and_moves_in_strides() -> None:
    episode = invented(400, 3, 20, np.zeros((400, 1)))
    ((middle, span),) = page.axis_of([episode])
    quantiles = episode.beliefs.quantiles
    inside = (np.abs(quantiles - middle[:, None, None]) <= span / 2).mean()
    assert inside > 0.97
    assert len(np.unique(middle)) < 40


def test_it_says_what_it_must(breakout: Recorded, plain: Recorded, tmp_path: Path) -> None:
    one = page.render(watched([breakout[0]], [breakout[1]])).decode()
    assert "ceqr-dqn <span>on minatar/breakout (paper protocol)</span>" in one
    assert "Plays greedily" in one
    assert "1,000 frames of training" in one
    assert not re.search(r'(src|href)="(?!data:|#)', one)  # nothing from elsewhere
    exploring = page.render(watched([breakout[0]], [breakout[1]], explore=True)).decode()
    assert "Plays as it does while it learns" in exploring
    both = page.render(watched([breakout[0], plain[0]], [breakout[1], plain[1]])).decode()
    assert "ceqr-dqn and dqn" in both
    assert "the same for both" in both
    arrays, _ = _arrays(both, agent=1)
    assert not {"epistemic", "aleatoric", "quantiles", "lower", "novelty"} & set(arrays)


def test_a_runs_name_is_text(breakout: Recorded) -> None:
    import dataclasses

    named = dataclasses.replace(breakout[0], path=Path("<script>alert(1)</script>"))
    text = page.render(watched([named], [breakout[1]])).decode()
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)" in text


@pytest.fixture(scope="module")
def maze() -> Subject:
    return subject("ceqr-dqn", "maze/cliff")


def test_every_cell_of_a_maze_is_shown_beside_the_truth(maze: Subject) -> None:
    heat = heat_of(maze)
    assert heat is not None
    env, agent = maze.env, maze.agent
    assert isinstance(agent, Agent)
    greedy, beliefs = agent.act_greedily(maze.state, env.cell_observations())
    greedy = np.asarray(greedy)
    truth = env.truth(greedy, agent.hyper.discount)
    every = np.arange(env.cells)
    expected = {
        "epistemic: the agent's doubt": np.asarray(beliefs.epistemic)[every, greedy],
        "truth: how far its value is off": np.abs(np.asarray(beliefs.mean) - truth.mean)[every, greedy],
        "aleatoric: the noise that it sees": np.asarray(beliefs.aleatoric)[every, greedy],
        "truth: standard deviation of the return": truth.std[every, greedy],
        "value of the greedy action": np.asarray(beliefs.mean)[every, greedy],
        "truth: mean return": truth.mean[every, greedy],
    }
    maps = {each.name: each for each in heat.maps}
    assert list(maps) == list(expected)
    for name, values in expected.items():
        for cell, (row, column) in enumerate(env.positions):
            shown = maps[name].cells[row, column]
            if env.terminal[cell]:
                assert np.isnan(shown)
            else:
                assert shown == pytest.approx(values[cell], rel=1e-4, abs=1e-6)
    assert np.isnan(maps["truth: mean return"].cells).sum() == (env.grid.size - (~env.terminal).sum())
    text = page.render(watched([maze], [play(maze, 0, 1, 10)], heats=[heat])).decode()
    told = json.loads(Scripts(text).found["data"])["agents"][0]["heat"]
    assert len(told["maps"]) == 6
    assert "beside the truth" in text


def test_other_environments_have_no_such_map(breakout: Recorded) -> None:
    assert heat_of(breakout[0]) is None
