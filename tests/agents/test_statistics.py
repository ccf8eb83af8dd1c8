"""What an agent counts (`statistics`): updated with every learning batch, refreshed with the target network."""

from typing import Any

import jax
import numpy as np
import pytest
from jax import jit

from ceqr.agents.base import AgentState, Batch, Hyperparameters
from tests.agents.programs import equal, make_batch
from tests.probes import CountingAgent, Counts

HYPER = Hyperparameters(hidden=(8,), batch_size=6, learning_rate=1e-2)
AGENT = CountingAgent(HYPER, observation_shape=(3,), num_actions=2)
KEYS = jax.random.split(jax.random.key(7), 2)
FRAMES = np.array([500, 501], np.int32)
OBSERVATIONS = np.array([[0.1, -0.2, 0.3], [0.5, 0.4, -0.6]], np.float32)


class Silent(CountingAgent):
    """The same agent, but it counts nothing."""

    def update_statistics(
        self, state: AgentState, outputs: Any, successors: Any, batch: Batch, frame: jax.Array
    ) -> Counts:
        return state.statistics


def _batch(seed: int) -> Batch:
    return make_batch([0, 1, 1, 0, 1, 0], [False, False, True, False, True, False], size=3, seed=seed)


@pytest.fixture(scope="module")
def learn() -> Any:
    return jit(AGENT.learn)


@pytest.fixture(scope="module")
def copy_target() -> Any:
    return jit(AGENT.copy_target)


@pytest.fixture(scope="module")
def initial() -> AgentState:
    return jit(AGENT.init)(jax.random.key(0))


@pytest.fixture(scope="module")
def learned(initial: AgentState, learn: Any) -> list[AgentState]:
    """States after 0, 1, 2 and 3 updates."""
    states = [initial]
    for i in range(3):
        states.append(learn(states[-1], _batch(i), FRAMES[0], KEYS[0])[0])
    return states


def _moment(states: list[AgentState]) -> np.ndarray:
    """The sum over batches of phi phi^T, each with the parameters from which its update was made."""
    features = [np.asarray(state.params(_batch(i).observation).features) for i, state in enumerate(states)]
    return sum((f.T @ f for f in features), np.zeros((8, 8)))


def test_every_batch_is_counted_with_the_outputs_its_update_was_made_from(learned: list[AgentState]) -> None:
    counts: Counts = learned[-1].statistics
    assert int(counts.updates) == 3
    np.testing.assert_allclose(counts.moment, _moment(learned[:-1]), rtol=1e-5, atol=1e-5)
    assert np.asarray(counts.moment).any()
    np.testing.assert_array_equal(counts.inverse, np.eye(8))  # nothing was refreshed


def test_act_and_learn_counts_as_learn_does(learned: list[AgentState]) -> None:
    """The observations that ride along are acted on, not learned from."""
    draws = jax.vmap(AGENT.draws)(KEYS)
    _, together, _ = jit(AGENT.act_and_learn)(learned[2], (), OBSERVATIONS, _batch(2), FRAMES, draws)
    for a, b in zip(jax.tree.leaves(together), jax.tree.leaves(learned[3]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    assert int(together.statistics.updates) == 3


def test_a_copy_of_the_target_network_refreshes(learned: list[AgentState], copy_target: Any) -> None:
    refreshed = copy_target(learned[-1])
    expected = np.linalg.inv(np.eye(8) + _moment(learned[:-1]))
    np.testing.assert_allclose(refreshed.statistics.inverse, expected, rtol=1e-3, atol=1e-4)
    assert equal(refreshed.target, learned[-1].params)
    unchanged = learned[-1].statistics
    assert equal(refreshed.statistics._replace(inverse=unchanged.inverse), unchanged)


def test_counting_changes_nothing_that_is_learned_by_gradients(
    learned: list[AgentState], learn: Any, copy_target: Any
) -> None:
    """The same update whatever was counted; the optimiser knows of the parameters alone."""
    silent, _ = jit(Silent(HYPER, (3,), 2).learn)(learned[0], _batch(0), FRAMES[0], KEYS[0])
    assert int(silent.statistics.updates) == 0
    for a, b in zip(jax.tree.leaves(silent.params), jax.tree.leaves(learned[1].params), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
    elsewhere = learned[1]._replace(statistics=copy_target(learned[3]).statistics)
    after, metrics = learn(elsewhere, _batch(1), FRAMES[0], KEYS[0])
    assert equal(after.params, learned[2].params)
    assert float(metrics["updates"]) == 3  # `loss` reads the statistics before this batch is counted
    sizes = sorted(leaf.shape for leaf in jax.tree.leaves(learned[1].optimiser) if leaf.ndim)
    assert sizes == sorted(2 * [leaf.shape for leaf in jax.tree.leaves(learned[1].params)])


def test_beliefs_read_the_statistics(learned: list[AgentState], copy_target: Any) -> None:
    act_greedily = jit(AGENT.act_greedily)
    refreshed = copy_target(learned[-1])
    features = np.asarray(refreshed.params(OBSERVATIONS).features)
    for state in (learned[-1], refreshed):
        _, beliefs = act_greedily(state, OBSERVATIONS)
        inverse = np.asarray(state.statistics.inverse)
        expected = np.sqrt(np.einsum("bi,ij,bj->b", features, inverse, features))
        np.testing.assert_allclose(beliefs.epistemic, np.stack([expected, expected], 1), rtol=1e-4)
    before, after = (np.asarray(act_greedily(s, OBSERVATIONS)[1].epistemic) for s in (learned[-1], refreshed))
    assert (after < before).all()
