"""CEQR-DQN's targets, its acting rule, and picking an action."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ceqr import losses
from ceqr.agents.base import Beliefs, Successors, pick
from ceqr.agents.ceqr_dqn import CEQRDQN, CEQRDQNHyperparameters, CEQROutputs
from tests.agents.programs import jit, make_batch, normal

HYPER = CEQRDQNHyperparameters(hidden=(16,), quantiles=4, batch_size=6, lambda_ep=0.3)
AGENT = CEQRDQN(HYPER, observation_shape=(3,), num_actions=2)
NOTHING: Any = None  # an argument that is not read


def test_target_is_r_plus_discount_times_the_best_action_of_the_target_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = {}
    monkeypatch.setattr(
        losses, "quantile_huber", lambda theta, target, kappa: seen.update(theta=theta, y=target) or 0.0
    )
    # Two actions with means 2.5 and 4: the second is best. r = 1, discount 0.99:
    #   1 + 0.99 * [1, 3, 5, 7] = [1.99, 3.97, 5.95, 7.93], and where terminated just [1, 1, 1, 1].
    quantiles = jnp.array([[[1.0, 2, 3, 4], [1.0, 3, 5, 7]]] * 2)
    outputs = CEQROutputs(quantiles, normal(0, 2, 2, 4, 2, 4))
    two = make_batch([0, 1], [False, True], size=3)._replace(reward=np.ones(2, np.float32))

    @jit
    def theta_and_target(outputs: CEQROutputs) -> tuple[jax.Array, jax.Array]:
        AGENT.loss(outputs, Successors(outputs, None), two, NOTHING)
        return seen["theta"], seen["y"]

    theta, target = theta_and_target(outputs)
    np.testing.assert_allclose(target, [[1.99, 3.97, 5.95, 7.93], [1, 1, 1, 1]], rtol=1e-6)
    np.testing.assert_allclose(theta, [[1, 2, 3, 4], [1, 3, 5, 7]])


def _terms(agent: CEQRDQN) -> dict[str, float]:
    outputs = CEQROutputs(normal(0, 6, 2, 4), normal(1, 6, 2, 4, 2, 4))
    batch = make_batch([0, 1, 0, 1, 0, 1], [False] * 6, size=3)
    loss, metrics = jit(agent.loss)(outputs, Successors(outputs, None), batch, NOTHING)
    return {"loss": float(loss)} | {name: float(value) for name, value in metrics.items()}


def test_loss_is_the_sum_of_its_terms() -> None:
    metrics = _terms(AGENT)
    terms = ("quantile_huber", "calibration", "evidential", "interval")
    assert metrics["loss"] == pytest.approx(sum(metrics[t] for t in terms), rel=1e-6)
    assert all(metrics[t] != 0 for t in terms)


def test_without_calibration_two_terms_remain() -> None:
    metrics = _terms(dataclasses.replace(AGENT, hyper=dataclasses.replace(HYPER, calibration="none")))
    assert metrics["calibration"] == metrics["interval"] == 0
    assert metrics["evidential"] != 0


def test_thompson_sample_has_variance_lambda_ep_times_epistemic() -> None:
    # Action 1 is worse by 1 on average and doubted with epistemic 2: the difference of the two samples is
    # Normal(-1, 0.3 * (0 + 2)), so action 1 is taken with probability Phi(-1 / sqrt 0.6) = 0.0984.
    beliefs = Beliefs(jnp.array([1.0, 0.0]), jnp.array([0.0, 2.0]), jnp.zeros(2))
    draw = jax.vmap(lambda k: AGENT.explore(NOTHING, beliefs, (), NOTHING, k))
    actions = jit(lambda: draw(jax.random.split(jax.random.key(0), 20_000)))()
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
    values, action = normal(0, 5, 3, 2), jnp.array([2, 0, 1, 1, 2])
    taken, grad = jit(lambda v: (pick(v, action), jax.grad(lambda v: jnp.sum(pick(v, action) ** 2))(v)))(values)
    np.testing.assert_array_equal(taken, values[np.arange(5), action])
    expected = np.zeros_like(values)
    expected[np.arange(5), action] = 2 * values[np.arange(5), action]
    np.testing.assert_allclose(grad, expected)
