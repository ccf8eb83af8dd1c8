"""Greedy evaluation: one whole episode a game, counted as it was played."""

import equinox as eqx
import jax
import numpy as np
import pytest

from ceqr.agents.ceqr_dqn import CEQRDQN, CEQRDQNHyperparameters
from ceqr.envs.base import Environment
from ceqr.evaluate import EVALUATION, play
from ceqr.training.loop import Loop
from tests.probes import NoisyChain, Treadmill


def _loop(env: Environment) -> Loop:
    hyper = CEQRDQNHyperparameters(hidden=(8,), quantiles=3, batch_size=4, replay_size=20)
    return Loop(env, CEQRDQN(hyper, env.observation_shape, env.num_actions))


def test_each_game_plays_one_episode_to_its_end() -> None:
    loop = _loop(Treadmill(limit=250))  # longer than a chunk of evaluation, every step pays 1
    network = loop.agent.network(jax.random.key(0))
    seen: list[int] = []
    games = play(loop, network, jax.random.key(1), episodes=3, limit=1_000, report=seen.append)
    assert np.asarray(games.total).tolist() == [250.0] * 3
    assert games.truncated.all()
    assert not games.terminated.any()
    assert seen == [0, 0, 3]


def test_a_game_that_does_not_end_is_cut_and_counts_as_it_stands() -> None:
    loop = _loop(Treadmill(limit=250))
    games = play(loop, loop.agent.network(jax.random.key(0)), jax.random.key(1), episodes=2, limit=130)
    assert np.asarray(games.total).tolist() == [130.0] * 2
    assert not (games.truncated | games.terminated).any()


def test_games_have_randomness_of_their_own() -> None:
    loop = _loop(NoisyChain(consolation=0.0))
    network = loop.agent.network(jax.random.key(3))
    forward = jax.tree.map(lambda x: x * 0, network)  # equal values: action 0 everywhere, which gives up
    assert np.asarray(play(loop, forward, jax.random.key(0), 4, 10).total).tolist() == [0.0] * 4
    # Prefer action 1 everywhere: its three quantiles are the last of the head's outputs.
    onward = eqx.tree_at(lambda n: n.quantile_head.bias, forward, forward.quantile_head.bias.at[3:].set(1.0))
    first, again, other = (np.asarray(play(loop, onward, jax.random.key(k), 50, 10).total) for k in (0, 0, EVALUATION))
    np.testing.assert_array_equal(first, again)
    assert len(set(first.tolist())) == 50
    assert not np.array_equal(first, other)
    assert first.mean() == pytest.approx(1.5, abs=0.6)
