"""An agent at play: one whole episode a game, what was played as it was played, and greedy evaluation on top of it."""

from functools import cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ceqr import rollout as rollout_module
from ceqr.agents.base import Agent, AgentState
from ceqr.agents.bootstrapped_dqn import BootstrappedDQN, BootstrappedDQNHyperparameters
from ceqr.agents.qr_dqn import QRDQN, QRDQNHyperparameters
from ceqr.envs.gymnasium import from_env
from ceqr.evaluate import play_episodes
from ceqr.rollout import Steps, rollout
from tests.probes import Counting, NoisyChain, Treadmill

SMALL: Any = {"hidden": (8,), "batch_size": 4, "replay_size": 20}


@cache
def _agent(shape: tuple[int, ...]) -> tuple[Agent, AgentState]:
    agent = QRDQN(QRDQNHyperparameters(**SMALL, quantiles=3), shape, 2)
    return agent, agent.init(jax.random.key(0))


def _prefers(action: int) -> tuple[Agent, AgentState]:
    """An agent that values one action at 1 and the other at 0, everywhere."""
    agent, state = _agent((4,))
    zero = jax.tree.map(jnp.zeros_like, state.params)
    bias = zero.head.bias.at[3 * action : 3 * action + 3].set(1.0)
    return agent, state._replace(params=eqx.tree_at(lambda n: n.head.bias, zero, bias))


def test_each_game_plays_one_episode_to_its_end() -> None:
    agent, state = _agent((1,))
    env, seen = Treadmill(limit=250), []  # longer than a stretch, every step pays 1
    returns, cut = play_episodes(agent, state, env, seed=1, episodes=3, limit=1_000, report=seen.append)
    assert (returns, cut) == ([250.0] * 3, 0)
    assert seen == [0, 0, 3]


def test_a_game_that_does_not_end_is_cut_and_counts_as_it_stands() -> None:
    agent, state = _agent((1,))
    assert play_episodes(agent, state, Treadmill(limit=250), 1, episodes=2, limit=130) == ([130.0] * 2, 2)


def test_games_have_randomness_of_their_own() -> None:
    env = NoisyChain(consolation=0.0)
    assert play_episodes(*_prefers(0), env, seed=0, episodes=4, limit=10) == ([0.0] * 4, 0)
    first, again, other = (np.array(play_episodes(*_prefers(1), env, seed, 50, 10)[0]) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert len(set(first.tolist())) == 50
    assert not np.array_equal(first, other)
    assert first.mean() == pytest.approx(1.5, abs=0.6)


def test_more_episodes_than_games(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every episode is there once, and in the end no more than were asked for."""
    monkeypatch.setattr(rollout_module, "COMPILED_GAMES", 4)
    monkeypatch.setattr(rollout_module, "HOST_GAMES", 4)
    played: list[int] = []
    for steps in rollout(*_prefers(1), NoisyChain(), seed=0, episodes=10, limit=10, keep=()):
        ends = steps.going & (steps.terminated | steps.truncated)
        played += steps.episode[np.nonzero(ends)[1]].tolist()
        assert steps.observation is steps.action is steps.beliefs is None
    assert sorted(played) == list(range(10))
    agent, state = _agent((2,))
    env = from_env(Counting(length=3))
    returns, cut = play_episodes(agent, state, env, seed=0, episodes=5, limit=10)
    assert (returns, cut) == ([3.0] * 5, 0)


def _check_beliefs(agent: Agent, state: AgentState, steps: Steps) -> None:
    flat = jnp.asarray(steps.observation.reshape(-1, *agent.observation_shape))
    action, beliefs = agent.act_greedily(state, flat)
    np.testing.assert_array_equal(steps.greedy.reshape(-1), action)
    np.testing.assert_allclose(steps.beliefs.quantiles.reshape(-1, 2, 3), beliefs.quantiles, rtol=1e-5)
    np.testing.assert_allclose(steps.beliefs.mean.reshape(-1, 2), beliefs.mean, rtol=1e-5)


def test_what_is_brought_of_a_compiled_environment_is_what_happened() -> None:
    """The chain goes on from where it was, pays only at its end, and begins anew; beliefs are of what was seen."""
    agent, state = _prefers(1)
    (steps,) = rollout(agent, state, NoisyChain(), seed=3, episodes=5, limit=10)
    length = steps.going.sum(0)
    assert length.tolist() == [3] * 5
    np.testing.assert_array_equal(steps.observation[:3].argmax(-1), np.arange(3)[:, None].repeat(5, 1))
    np.testing.assert_array_equal(steps.successor[:3].argmax(-1), np.arange(1, 4)[:, None].repeat(5, 1))
    assert (steps.reward[:2] == 0).all()
    assert (steps.reward[2] != 0).all()
    assert steps.terminated[2].all()
    assert (steps.action[:3] == 1).all()
    _check_beliefs(agent, state, steps)


def test_what_is_brought_of_an_environment_of_the_host_is_what_happened() -> None:
    agent, state = _agent((2,))
    env = from_env(Counting(length=4, ending="terminated"))
    trace = list(rollout(agent, state, env, seed=3, episodes=2, limit=10))
    assert [s.episode.tolist() for s in trace] == [[0]] * 4 + [[1]] * 4
    np.testing.assert_array_equal([s.observation[0, 0, 0] for s in trace], [0, 1, 2, 3] * 2)
    np.testing.assert_array_equal([s.successor[0, 0, 0] for s in trace], [1, 2, 3, 4] * 2)
    assert [bool(s.terminated[0, 0]) for s in trace] == [False, False, False, True] * 2
    for steps in trace:
        _check_beliefs(agent, state, steps)


def test_what_is_drawn_for_an_episode_is_kept_through_it() -> None:
    """Bootstrapped DQN explores with one head an episode: in one state it always takes that head's action."""
    agent = BootstrappedDQN(BootstrappedDQNHyperparameters(**SMALL, heads=5), (1,), 2)
    state = agent.init(jax.random.key(1))
    (steps,) = rollout(agent, state, Treadmill(limit=20), seed=0, episodes=30, limit=20, explore=True)
    assert (steps.action == steps.action[:1]).all()
    assert len(np.unique(steps.action)) == 2
    assert (steps.greedy == steps.greedy[0, 0]).all()
