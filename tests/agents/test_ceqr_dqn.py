"""CEQR-DQN's targets, its acting rule, and picking an action."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import jit

from ceqr import losses
from ceqr.agents.base import AgentState, Beliefs, Successors, pick
from ceqr.agents.ceqr_dqn import CEQRDQN, CEQRDQNHyperparameters, CEQROutputs
from ceqr.errors import UserError
from tests.agents.programs import equal, make_batch, normal

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


def test_double_values_by_the_target_network_what_the_learning_network_chose() -> None:
    quantiles = jnp.array([[[1.0, 2, 3, 4], [1.0, 3, 5, 7]]])
    evidence = normal(0, 1, 2, 4, 2, 4)
    target = CEQROutputs(quantiles, evidence)
    online = CEQROutputs(-quantiles, evidence)  # of which the first action is best
    one = make_batch([0], [False], size=3)._replace(reward=np.ones(1, np.float32))
    agent = _with(double=True)
    assert (agent.double, AGENT.double) == (True, False)
    found = jit(agent._target)(Successors(target, online), one)
    np.testing.assert_allclose(found, [[1.99, 2.98, 3.97, 4.96]], rtol=1e-6)


def _with(**changes: Any) -> CEQRDQN:
    return dataclasses.replace(AGENT, hyper=dataclasses.replace(HYPER, **changes))


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
    draw = jax.vmap(lambda k: AGENT.explore(NOTHING, beliefs, (), NOTHING, AGENT.draw(k)))
    actions = jit(lambda: draw(jax.random.split(jax.random.key(0), 20_000)))()
    assert float(actions.mean()) == pytest.approx(0.0984, abs=4 * np.sqrt(0.0984 * 0.9016 / 20_000))


def test_aversion_to_risk_and_the_least_uncertain_action() -> None:
    averse = dataclasses.replace(AGENT, hyper=dataclasses.replace(HYPER, lambda_al=0.5))
    # mean - 0.5 * aleatoric = [0.75, 0.9]; mean - 0.3 * epistemic = [0.4, 0.7].
    beliefs = Beliefs(jnp.array([1.0, 0.9]), jnp.array([2.0, 0.2 / 0.3]), jnp.array([0.5, 0.0]))
    assert int(AGENT.greedy(beliefs)) == 0
    assert int(averse.greedy(beliefs)) == 1
    assert int(AGENT.least_uncertain(beliefs)) == 1


@pytest.mark.parametrize(("kept", "dropped"), [("interval", "calibration"), ("calibration", "interval")])
def test_each_calibration_has_a_switch_of_its_own(kept: str, dropped: str) -> None:
    option = {"calibration": "calibrate_quantiles", "interval": "calibrate_interval"}[dropped]
    metrics, as_printed = _terms(_with(**{option: False})), _terms(AGENT)
    assert metrics[dropped] == 0
    assert metrics[kept] == pytest.approx(as_printed[kept])
    assert metrics["evidential"] == pytest.approx(as_printed["evidential"])


def _evidence_gradient(agent: CEQRDQN) -> np.ndarray:
    """Of the loss with respect to gamma, [6, 2, 2, 4]."""
    quantiles, evidence = normal(0, 6, 2, 4), normal(1, 6, 2, 4, 2, 4)
    batch = make_batch([0, 1, 0, 1, 0, 1], [False] * 6, size=3)

    def loss(evidence: jax.Array) -> jax.Array:
        outputs = CEQROutputs(quantiles, evidence)
        return agent.loss(outputs, jax.lax.stop_gradient(Successors(outputs, None)), batch, NOTHING)[0]

    return np.asarray(jit(jax.grad(loss))(evidence))


def test_a_calibrated_location_is_moved_by_the_interval_alone() -> None:
    joint, calibrated = _evidence_gradient(AGENT), _evidence_gradient(_with(location="calibrated"))
    silent = _evidence_gradient(_with(location="calibrated", calibrate_interval=False))
    assert (silent[:, :, 0] == 0).all()
    assert (joint[:, :, 0] != calibrated[:, :, 0]).any()
    np.testing.assert_array_equal(joint[:, :, 1:], calibrated[:, :, 1:])  # nu, alpha and beta learn as before


def test_coverage_is_judged_on_an_average_over_updates() -> None:
    agent = _with(coverage_window=10)
    state = jit(agent.init)(jax.random.key(0))
    np.testing.assert_allclose(state.statistics.share, 0.9)  # on the goal: nothing to mend yet
    evidence = jnp.asarray(normal(1, 6, 2, 4, 2, 4))
    outputs = CEQROutputs(normal(0, 6, 2, 4), evidence.at[..., 0, 0, :].set(50).at[..., 0, 1, :].set(60))
    batch = make_batch([0, 1, 0, 1, 0, 1], [False] * 6, size=3)
    successors = Successors(outputs, None)
    counted = jit(agent.update_statistics)(state, outputs, successors, batch, jnp.int32(7))
    np.testing.assert_allclose(counted.share, 0.9 - 0.09, rtol=1e-6)  # no target was inside

    def interval(share: float) -> float:
        judged = state._replace(statistics=counted._replace(share=jnp.full(4, share)))
        return float(jit(agent.loss)(outputs, successors, batch, judged)[1]["interval"])

    assert interval(0.5) > interval(0.9)  # too little: widen
    assert interval(0.99) > interval(0.9)  # too much: tighten


class TestConjugate:
    agent = CEQRDQN(
        dataclasses.replace(HYPER, evidence="conjugate", location="calibrated", prior_scale=2.0, lambda_ep=0.5),
        observation_shape=(3,),
        num_actions=2,
    )

    def _outputs(self, width: float) -> CEQROutputs:
        evidence = jnp.zeros((1, 2, 1, 2, 4)).at[..., 1, :].set(width)
        return CEQROutputs(jnp.zeros((1, 2, 4)), evidence, phi=jnp.zeros((1, 17)).at[0, 0].set(1))

    def _state(self, visits: float, follows: float = 0.0) -> Any:
        """In which action 0 was taken that many times at the one state there is, with that doubt after it."""
        state = jit(self.agent.init)(jax.random.key(0))
        evidence = state.statistics.evidence
        seen = evidence._replace(
            visits=evidence.visits.at[0, 0, 0].set(visits), follows=evidence.follows.at[:, :, 0].set(follows)
        )
        state = state._replace(statistics=state.statistics._replace(evidence=seen))
        return state._replace(statistics=self.agent.refresh_statistics(state))

    def test_its_doubt_is_the_posterior_deviation_of_the_mean(self) -> None:
        # nu = 1 + 9 and 1. The noise of ten observations: the prior's 2^2 once, 0.1^2 nine times, so that the variance
        # of their mean is (4 + 9 * 0.01) / 10 / 10 = 0.0409; never taken: 4.
        beliefs = self.agent.beliefs_of(self._state(9, follows=-1.0), self._outputs(width=0.329))
        np.testing.assert_allclose(beliefs.epistemic, [[np.sqrt(0.0409), 2]], rtol=1e-4)
        np.testing.assert_allclose(beliefs.aleatoric, 0.329, rtol=1e-6)
        # Doubt of what follows adds its variance, (2 * 0.3)^2, as far as anything is known: by 1 - 1 / nu.
        beliefs = self.agent.beliefs_of(self._state(9, follows=0.3), self._outputs(width=0.329))
        np.testing.assert_allclose(beliefs.epistemic, np.sqrt([[0.0409 + 0.9 * 0.36, 4]]), rtol=1e-4)

    def _heard(self, state: AgentState, ended: bool) -> float:
        """The doubt of what follows action 0, in units of the prior's, after one update that took it."""
        batch, outputs = make_batch([0], [ended], size=3), self._outputs(width=0.0)
        counted = jit(self.agent.update_statistics)(state, outputs, Successors(outputs, None), batch, jnp.int32(7))
        return float(counted.evidence.follows[0, 0, 0])

    def test_doubt_travels_back_from_the_most_promising_successor(self) -> None:
        # Action 1, of which nothing is known: 1 in units of the prior's, of which a step goes half the way.
        assert self._heard(self._state(9), ended=False) == pytest.approx(0.5 * 0.99, rel=1e-4)
        assert self._heard(self._state(9, follows=0.8), ended=True) == pytest.approx(0.4, rel=1e-4)

    def test_doubt_of_several_steps_later_is_discounted_as_often_and_ends_with_the_episode(self) -> None:
        """Four rows that share nothing, each with a successor of which nothing is known."""
        phi = jnp.eye(4, 17)
        outputs = CEQROutputs(jnp.zeros((4, 2, 4)), jnp.zeros((4, 2, 1, 2, 4)), phi)
        unknown = outputs._replace(phi=jnp.eye(4, 17, k=8))
        batch = make_batch([0, 0, 1, 1], [False, False, False, True], size=3)._replace(steps=jnp.array([1, 3, 2, 2]))
        counted = jit(self.agent.update_statistics)(
            self._state(0), outputs, Successors(unknown, None), batch, jnp.int32(7)
        )
        told = np.asarray(counted.evidence.follows @ phi.T)
        expected = 0.5 * np.array([[0.99, 0.99**3, 0, 0], [0, 0, 0.99**2, 0]])
        np.testing.assert_allclose(told[0], expected, rtol=1e-5)
        assert not told[1].any()
        # Transitions of which each second one was played a frame later.
        counted = jit(self.agent.update_statistics)(
            self._state(0), outputs, Successors(unknown, None), batch._replace(number=jnp.arange(4) // 2), jnp.int32(7)
        )
        told = np.asarray(counted.evidence.follows @ phi.T)
        halves = np.array([[1, 0, 0, 1], [0, 1, 1, 0]])
        np.testing.assert_allclose(told, halves[:, None] * expected, rtol=1e-5)

    @pytest.mark.parametrize(("ahead", "doubt"), [(0.8, 1.0), (1.0, 0.1)])
    def test_doubt_follows_on_what_exploring_would_prefer(self, ahead: float, doubt: float) -> None:
        """lambda_ep, 0.5, times deviations of 0.2 and 2: action 1 is preferred unless 0 is better by more than 0.9."""
        outputs = self._outputs(width=0.0)
        after = outputs._replace(quantiles=outputs.quantiles.at[:, 0].add(ahead))
        batch = make_batch([0], [False], size=3)
        counted = jit(self.agent.update_statistics)(
            self._state(9), outputs, Successors(after, None), batch, jnp.int32(7)
        )
        assert float(counted.evidence.follows[0, 0, 0]) == pytest.approx(0.5 * 0.99 * doubt, rel=1e-4)

    def test_doubt_follows_on_what_an_averse_agent_would_prefer(self) -> None:
        """Action 1 promises most, with twice the prior's doubt; but its noise is 10, of which lambda_al takes half."""
        agent = dataclasses.replace(self.agent, hyper=dataclasses.replace(self.agent.hyper, lambda_al=0.5))
        outputs = self._outputs(width=0.0)
        noisy = outputs._replace(evidence=outputs.evidence.at[:, 1, 0, 1].add(10.0))
        for after, doubt in ((outputs, 1.0), (noisy, 0.1)):
            batch = make_batch([0], [False], size=3)
            counted = jit(agent.update_statistics)(
                self._state(9), outputs, Successors(after, None), batch, jnp.int32(7)
            )
            heard = float(counted.evidence.follows[0, 0, 0])
            assert heard == pytest.approx(0.5 * 0.99 * doubt, rel=1e-4)

    def test_what_was_counted_is_refreshed_where_the_target_network_follows_by_itself(self) -> None:
        agent = dataclasses.replace(self.agent, hyper=dataclasses.replace(self.agent.hyper, target_rate=0.25))
        state = jit(agent.init)(jax.random.key(0))
        seen = jnp.zeros((1, 17)).at[0, 0].set(1)
        state = state._replace(statistics=agent.count_frames(state, seen, jnp.array([1])))
        after = jit(agent.copy_target)(state)
        assert equal(after.target, state.target)
        assert float(after.statistics.evidence.root[1, 0, 0]) == pytest.approx(np.sqrt(0.5), rel=1e-4)

    def test_doubt_is_finite_where_the_prior_is_nothing_beside_the_noise(self) -> None:
        """1 / nu must not exceed 1, not even by rounding: the noise of other observations would be negative."""
        agent = dataclasses.replace(self.agent, hyper=dataclasses.replace(self.agent.hyper, prior_scale=0.01))
        state = jit(agent.init)(jax.random.key(0))
        phi = jnp.asarray(normal(3, 64, 17))
        evidence = jnp.zeros((64, 2, 1, 2, 4)).at[..., 1, :].set(1e5)
        outputs = CEQROutputs(jnp.zeros((64, 2, 4)), evidence, phi / jnp.linalg.norm(phi, axis=1, keepdims=True))
        assert np.isfinite(agent.beliefs_of(state, outputs).epistemic).all()

    def test_doubt_cannot_feed_on_itself(self) -> None:
        """However much was heard: at the most nothing is known of what follows, for which the prior speaks."""
        state = self._state(9, follows=100.0)
        assert self._heard(state, ended=False) == pytest.approx(0.5 * (100 + 0.99), rel=1e-6)
        beliefs = self.agent.beliefs_of(state, self._outputs(width=0.329))
        np.testing.assert_allclose(beliefs.epistemic, np.sqrt([[0.0409 + 0.9 * 4, 4]]), rtol=1e-4)

    def test_frames_are_counted_as_they_are_played(self) -> None:
        state = jit(self.agent.init)(jax.random.key(0))
        seen = jnp.array([[0.3, -0.2, 0.5]])

        @jit
        def count(state: AgentState) -> AgentState:
            phi = self.agent.seen(self.agent.forward(state.params, state.frozen, seen, None))
            return state._replace(statistics=self.agent.count_frames(state, phi, jnp.array([1])))

        for _ in range(5):
            state = count(state)
        state = jit(self.agent.copy_target)(state)
        doubt = np.asarray(jit(self.agent.act_greedily)(state, seen)[1].epistemic)[0]
        assert doubt[1] < 0.5 * doubt[0]

    def test_lambda_ep_is_a_number_of_deviations_and_no_game_changes_it(self) -> None:
        assert float(self.agent.deviation(jnp.float32(3))) == 1.5
        assert self.agent.hyper.for_env("minatar/asterix").lambda_ep == 0.5

    @pytest.mark.parametrize(("asked", "vector", "image"), [(0, 16, 16), (24, 24, 16), (5, 5, 5)])
    def test_it_counts_by_as_many_features_as_asked_for(self, asked: int, vector: int, image: int) -> None:
        """For vectors, any number of random ones; for images, at most as many as the last hidden layer has."""
        for shape, features in (((3,), vector), ((10, 10, 2), image)):
            hyper = dataclasses.replace(self.agent.hyper, evidence_features=asked)
            agent = CEQRDQN(hyper, shape, num_actions=2)
            state = agent.init(jax.random.key(0))
            assert state.statistics.evidence.visits.shape == (2, features + 1, features + 1)
            outputs = agent.forward(state.params, state.frozen, jnp.ones((3, *shape)), None)
            assert outputs.phi.shape == (3, features + 1)
            np.testing.assert_allclose(jnp.linalg.norm(outputs.phi, axis=1), 1, rtol=1e-5)

    def test_it_learns_no_likelihood(self) -> None:
        with pytest.raises(UserError, match="needs --location calibrated"):
            dataclasses.replace(self.agent.hyper, location="joint").check()
        network = self.agent.init_params(jax.random.key(0))
        assert network.evidence_head.weight.shape == (16, 2 * 2 * 4)


def test_what_a_thompson_sample_is_drawn_for() -> None:
    beliefs = Beliefs(jnp.array([1.0, 0.0]), jnp.array([0.0, 2.0]), jnp.zeros(2))
    keys = jax.random.split(jax.random.key(0), 1_000)

    def actions(agent: CEQRDQN, memory: Any) -> set[int]:
        draw = jit(jax.vmap(lambda key: agent.explore(NOTHING, beliefs, memory, NOTHING, agent.draw(key))))
        return set(np.asarray(draw(keys)).tolist())

    by_step, by_episode, optimistic = (_with(thompson=each) for each in ("step", "episode", "optimistic"))
    assert by_step.init_memory(NOTHING, keys[0]) == ()
    assert actions(by_step, ()) == {0, 1}
    # Through an episode the same noise: deviation sqrt(0.3 * 2) = 0.77 times 2 is more than 1, times 1 is not.
    assert actions(by_episode, jnp.array([0.0, 2.0])) == {1}
    assert actions(by_episode, jnp.array([0.0, 1.0])) == {0}
    assert actions(optimistic, jnp.float32(2.0)) == {1}
    noise = jit(jax.vmap(lambda key: by_episode.init_memory(NOTHING, key)))(keys)
    assert noise.shape == (1_000, 2)
    np.testing.assert_allclose(np.std(noise, axis=0), 1, atol=0.1)
    hope = jit(jax.vmap(lambda key: optimistic.init_memory(NOTHING, key)))(keys)
    assert hope.shape == (1_000,)
    assert (hope >= 0).all()
    assert float(hope.mean()) == pytest.approx(np.sqrt(2 / np.pi), abs=0.1)


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
