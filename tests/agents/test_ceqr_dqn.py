"""CEQR-DQN's targets, its acting rule, and the shared learner under it."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ceqr import losses
from ceqr.agents.base import AgentState, Batch, Beliefs, pick
from ceqr.agents.ceqr_dqn import CEQRDQN, CEQRDQNHyperparameters, CEQROutputs

HYPER = CEQRDQNHyperparameters(hidden=(16,), quantiles=4, batch_size=6, lambda_ep=0.3)
AGENT = CEQRDQN(HYPER, observation_shape=(3,), num_actions=2)


@pytest.fixture(scope="module")
def state() -> AgentState:
    return AGENT.init(jax.random.key(0))


@pytest.fixture(scope="module")
def batch() -> Batch:
    keys = jax.random.split(jax.random.key(1), 3)
    return Batch(
        observation=jax.random.normal(keys[0], (6, 3)),
        action=jnp.array([0, 1, 1, 0, 1, 0]),
        reward=jax.random.normal(keys[1], (6,)),
        terminated=jnp.array([False, False, True, False, True, False]),
        successor=jax.random.normal(keys[2], (6, 3)),
    )


def _loss(state: AgentState, batch: Batch) -> float:
    return float(jax.jit(AGENT.learn)(state, batch)[1]["loss"])


def test_target_is_r_plus_discount_times_the_best_action_of_the_target_network(
    state: AgentState, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = {}
    monkeypatch.setattr(
        losses, "quantile_huber", lambda theta, target, kappa: seen.update(theta=theta, y=target) or 0.0
    )
    # Two actions with means 2.5 and 4: the second is best. r = 1, discount 0.99:
    #   1 + 0.99 * [1, 3, 5, 7] = [1.99, 3.97, 5.95, 7.93], and where terminated just [1, 1, 1, 1].
    quantiles = jnp.array([[[1.0, 2, 3, 4], [1.0, 3, 5, 7]]] * 2)
    outputs = CEQROutputs(quantiles, jnp.zeros((2, 2, 4, 2, 4)))
    two = Batch(jnp.zeros((2, 3)), jnp.array([0, 1]), jnp.ones(2), jnp.array([False, True]), jnp.zeros((2, 3)))
    AGENT.loss(outputs, outputs, two)
    np.testing.assert_allclose(seen["y"], [[1.99, 3.97, 5.95, 7.93], [1, 1, 1, 1]], rtol=1e-6)
    np.testing.assert_allclose(seen["theta"], [[1, 2, 3, 4], [1, 3, 5, 7]])


def test_loss_is_the_sum_of_its_terms(state: AgentState, batch: Batch) -> None:
    _, metrics = jax.jit(AGENT.learn)(state, batch)
    terms = ("quantile_huber", "calibration", "evidential", "interval")
    assert float(metrics["loss"]) == pytest.approx(sum(float(metrics[t]) for t in terms), rel=1e-6)


def test_without_calibration_two_terms_remain(state: AgentState, batch: Batch) -> None:
    agent = dataclasses.replace(AGENT, hyper=dataclasses.replace(HYPER, calibration="none"))
    _, metrics = jax.jit(agent.learn)(state, batch)
    assert float(metrics["calibration"]) == float(metrics["interval"]) == 0
    assert float(metrics["evidential"]) != 0


def test_termination_cuts_the_future_and_truncation_does_not(state: AgentState, batch: Batch) -> None:
    """A truncated step is one that is not terminated: its successor counts."""
    elsewhere = batch._replace(successor=batch.successor + 1)
    assert _loss(state, elsewhere) != _loss(state, batch)
    over = batch._replace(terminated=jnp.ones(6, bool))
    over_elsewhere = over._replace(successor=batch.successor + 1)
    assert _loss(state, over_elsewhere) == _loss(state, over)


def test_target_network_is_read_and_gets_no_gradient(state: AgentState, batch: Batch) -> None:
    disturbed = state._replace(target=jax.tree.map(lambda w: w + 0.1, state.target))
    assert _loss(disturbed, batch) != _loss(state, batch)

    def objective(target: object) -> jax.Array:
        return AGENT._total_loss(state.params(batch.observation), state._replace(target=target), batch)[0]

    grads = jax.grad(objective)(state.target)
    assert all(float(jnp.abs(g).max()) == 0 for g in jax.tree.leaves(grads))


def test_learning_changes_the_network_but_not_the_target_until_it_is_copied(state: AgentState, batch: Batch) -> None:
    after, _ = jax.jit(AGENT.learn)(state, batch)
    assert not eqx.tree_equal(after.params, state.params)
    assert eqx.tree_equal(after.target, state.target)
    copied = AGENT.copy_target(after)
    assert eqx.tree_equal(copied.target, after.params)


def test_learning_repeatedly_on_one_batch_lowers_the_loss(state: AgentState, batch: Batch) -> None:
    agent = dataclasses.replace(AGENT, hyper=dataclasses.replace(HYPER, learning_rate=1e-2))
    learn = jax.jit(agent.learn)
    seen = []
    for _ in range(50):
        state, metrics = learn(state, batch)
        seen.append(float(metrics["loss"]))
    assert seen[-1] < 0.7 * seen[0]


def test_one_pass_for_acting_and_learning_is_the_same_as_two(state: AgentState, batch: Batch) -> None:
    observation, key = jnp.array([0.1, -0.2, 0.3]), jax.random.key(5)
    action, _, beliefs, learned, metrics = jax.jit(AGENT.act_and_learn)(state, (), observation, batch, key)
    action_alone, _, beliefs_alone = jax.jit(AGENT.act)(state, (), observation, key)
    learned_alone, metrics_alone = jax.jit(AGENT.learn)(state, batch)
    assert int(action) == int(action_alone)
    for a, b in zip(
        jax.tree.leaves((beliefs, learned, metrics)),
        jax.tree.leaves((beliefs_alone, learned_alone, metrics_alone)),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-6)


def test_thompson_sample_has_variance_lambda_ep_times_epistemic() -> None:
    # Action 1 is worse by 1 on average and doubted with epistemic 2: the difference of the two samples is
    # Normal(-1, 0.3 * (0 + 2)), so action 1 is taken with probability Phi(-1 / sqrt 0.6) = 0.0984.
    beliefs = Beliefs(jnp.array([1.0, 0.0]), jnp.array([0.0, 2.0]), jnp.zeros(2))
    keys = jax.random.split(jax.random.key(0), 20_000)
    actions = jax.vmap(lambda k: AGENT.explore(beliefs, (), k))(keys)
    assert float(actions.mean()) == pytest.approx(0.0984, abs=4 * np.sqrt(0.0984 * 0.9016 / 20_000))


def test_aversion_to_risk_and_the_least_uncertain_action() -> None:
    averse = dataclasses.replace(AGENT, hyper=dataclasses.replace(HYPER, lambda_al=0.5))
    # mean - 0.5 * aleatoric = [0.75, 0.9]; mean - 0.3 * epistemic = [0.4, 0.7].
    beliefs = Beliefs(jnp.array([1.0, 0.9]), jnp.array([2.0, 0.2 / 0.3]), jnp.array([0.5, 0.0]))
    assert int(AGENT.greedy(beliefs)) == 0
    assert int(averse.greedy(beliefs)) == 1
    assert int(AGENT.least_uncertain(beliefs)) == 1


def test_lambda_ep_depends_on_the_game() -> None:
    games = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")
    found = [CEQRDQNHyperparameters().for_env(f"minatar/{game}").lambda_ep for game in games]
    assert found == [0.001, 0.01, 0.0002, 0.005, 0.0005]


def test_pick_and_its_gradient() -> None:
    values = jax.random.normal(jax.random.key(0), (5, 3, 2))
    action = jnp.array([2, 0, 1, 1, 2])
    np.testing.assert_array_equal(pick(values, action), values[jnp.arange(5), action])
    grad = jax.grad(lambda v: jnp.sum(pick(v, action) ** 2))(values)
    expected = jax.grad(lambda v: jnp.sum(v[jnp.arange(5), action] ** 2))(values)
    np.testing.assert_allclose(grad, expected)
