"""What is recorded of an episode is what the agent computes for each of its frames, and what the world did."""

import dataclasses
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from ceqr import CEQRDQN
from ceqr.config import RunConfig
from ceqr.errors import UserError
from ceqr.viewer.pictures import open_picture
from ceqr.viewer.record import Episode, Subject, _with_pictures, open_run, play
from tests.viewer.conftest import EPISODES
from tests.viewer.subjects import subject

Recorded = tuple[Subject, list[Episode]]


def test_beliefs_and_choices_are_the_agents(breakout: Recorded) -> None:
    watched, episodes = breakout
    assert len(episodes) == EPISODES
    for episode in episodes:
        greedy, beliefs = watched.agent.act_greedily(watched.state, jnp.asarray(episode.observation))
        np.testing.assert_array_equal(episode.greedy, greedy)
        np.testing.assert_array_equal(episode.action, greedy)
        for name in ("mean", "epistemic", "aleatoric", "quantiles"):
            np.testing.assert_allclose(getattr(episode.beliefs, name), getattr(beliefs, name), rtol=1e-4, atol=1e-6)
    assert any((episode.sampled != episode.greedy).any() for episode in episodes)


def test_a_run_is_watched_as_the_library_predicts_it(run: Path) -> None:
    watched = open_run(run, 8, ["tests.probe_family"])
    agent = CEQRDQN.from_run(run, seed=8, imports="tests.probe_family")
    assert (watched.seed, watched.frame) == (8, 300)
    for episode in play(watched, seed=3, episodes=4, limit=50):
        for t, observation in enumerate(episode.observation):
            action, beliefs = agent.predict(observation)
            assert action == episode.action[t]
            assert beliefs.novelty == pytest.approx(episode.beliefs.novelty[t])
            for mine, theirs in zip(episode.beliefs.interval, beliefs.interval, strict=True):
                assert mine[t] == pytest.approx(theirs, rel=1e-5)
            np.testing.assert_allclose(episode.beliefs.mean[t], beliefs.mean, rtol=1e-5)


def test_what_followed_is_the_discounted_sum_of_rewards(run: Path) -> None:
    watched = open_run(run, imports=["tests.probe_family"])
    discount = watched.agent.hyper.discount
    for episode in play(watched, seed=3, episodes=4, limit=50):
        assert episode.end == "terminated"
        for t in range(len(episode)):
            assert episode.outcome[t] == pytest.approx(sum(discount**k * r for k, r in enumerate(episode.reward[t:])))
    cut = play(watched, seed=3, episodes=4, limit=1)
    assert {(each.end, len(each)) for each in cut} <= {("cut", 1), ("terminated", 1)}
    assert all(np.isnan(each.outcome).all() for each in cut if each.end == "cut")


def test_two_agents_meet_the_same_chance(breakout: Recorded, plain: Recorded) -> None:
    for one, other in zip(breakout[1], plain[1], strict=True):
        np.testing.assert_array_equal(one.observation[0], other.observation[0])
    assert any((one.observation[0] != breakout[1][0].observation[0]).any() for one in play(breakout[0], 8, 8, 1))


def test_exploring_is_acting_on_the_sample(breakout: Recorded) -> None:
    for episode in play(breakout[0], 7, EPISODES, 100, explore=True):
        np.testing.assert_array_equal(episode.action, episode.sampled)


def test_a_run_is_refused_in_one_sentence(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no seed 3; it has 7, 8"):
        open_run(run, 3, ["tests.probe_family"])
    with pytest.raises(UserError, match="is not a run"):
        open_run(tmp_path)


def test_an_agent_that_has_diverged_is_refused(breakout: Recorded) -> None:
    lost = jax.tree.map(lambda leaf: leaf * np.nan, breakout[0].state)
    with pytest.raises(UserError, match="diverged"):
        play(dataclasses.replace(breakout[0], state=lost), 7, 1, 5)


class Screen(gymnasium.Env[np.ndarray, Any]):
    """Shows and pays how many steps it has made, and ends after six; without a screen unless asked for one."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    observation_space = spaces.Box(0, 255, (4,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        self._steps = 0
        return np.full(4, 0, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._steps += 1
        return np.full(4, self._steps, np.float32), float(self._steps), self._steps == 6, False, {}

    def render(self) -> Any:
        return np.full((30, 40, 3), 10 * self._steps, np.uint8) if self.render_mode == "rgb_array" else None


class NoScreen(Screen):
    metadata = {"render_modes": []}  # noqa: RUF012

    def render(self) -> Any:
        raise NotImplementedError


@pytest.fixture
def screens() -> Any:
    kinds: Any = (Screen, NoScreen)
    for kind in kinds:
        gymnasium.register(f"tests/{kind.__name__}-v0", kind)
    yield
    for kind in kinds:
        del gymnasium.registry[f"tests/{kind.__name__}-v0"]


def test_gymnasium_shows_itself_frame_by_frame(screens: Any) -> None:
    raw = subject("dqn", "gymnasium/tests/Screen-v0")
    shown = _with_pictures(raw.config)
    (episode,) = play(dataclasses.replace(raw, env=shown, pictures=True), 0, 1, 50)
    assert episode.pictures is not None
    assert len(episode.pictures) == len(episode) == 6
    for t, picture in enumerate(episode.pictures):
        image = np.asarray(open_picture(picture))
        assert (image == 10 * t).all()
        assert image.shape[1] / image.shape[0] == pytest.approx(40 / 30)


def test_an_environment_without_a_screen_is_played_without(screens: Any) -> None:
    config: Any = RunConfig(subject("dqn", "gymnasium/tests/Screen-v0").config.hyper, env="gymnasium/tests/NoScreen-v0")
    assert _with_pictures(config) is None


def test_rounding_leaves_nothing_of_a_sum(breakout: Recorded) -> None:
    rewards = np.array([-0.1] * 20 + [2.0], np.float32)
    assert rewards.sum(dtype=np.float64) != 0
    episode = dataclasses.replace(breakout[1][0], reward=rewards)
    assert str(episode.total(21)) == "0.0"
    assert episode.total(3) == pytest.approx(-0.3)
