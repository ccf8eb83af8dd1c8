"""The rivals against rlax, SciPy and arithmetic done by hand."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

from ceqr.agents.base import Batch, Beliefs, Successors
from ceqr.agents.bootstrapped_dqn import BootstrappedDQN, BootstrappedDQNHyperparameters
from ceqr.agents.dqn import DQN, DQNHyperparameters
from ceqr.agents.duvn import DUVN, DUVNHyperparameters, Gaussian, gaussian_kl
from ceqr.agents.epsilon import EpsilonGreedyHyperparameters, epsilon_greedy
from ceqr.agents.qr_dqn import QRDQN, QRDQNHyperparameters
from ceqr.agents.ua_dqn import (
    UADQN,
    Anchors,
    UADQNHyperparameters,
    UAOutputs,
    aleatoric_deviation,
    epistemic_variance,
)
from ceqr.training.loop import Loop
from tests.probes import PROBE_OPTIONS, NoisyChain, train_probe

rlax = pytest.importorskip("rlax")

B, A, N = 7, 3, 5
NOTHING: Any = None
FRAME = jnp.int32(0)
NOWHERE = jnp.zeros((B, 2))
BATCH = Batch(
    observation=NOWHERE,
    action=jnp.array([0, 1, 2, 2, 1, 0, 1]),
    reward=jax.random.normal(jax.random.key(3), (B,)),
    terminated=jnp.array([False, True, False, False, True, False, False]),
    successor=NOWHERE,
    number=jnp.arange(B),
)
DISCOUNTS = 0.99 * (1.0 - BATCH.terminated)


def _normal(seed: int, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape)


@pytest.mark.parametrize("double", [False, True])
def test_dqn_td_error_is_that_of_rlax(double: bool) -> None:
    agent = DQN(DQNHyperparameters(double=double), (2,), A)
    q, target, online = _normal(0, B, A), _normal(1, B, A), _normal(2, B, A)
    ours = agent.td_error(q, Successors(target, online if double else None), BATCH)
    if double:
        theirs = jax.vmap(rlax.double_q_learning)(q, BATCH.action, BATCH.reward, DISCOUNTS, target, online)
    else:
        theirs = jax.vmap(rlax.q_learning)(q, BATCH.action, BATCH.reward, DISCOUNTS, target)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    loss, _ = agent.loss(q, Successors(target, online if double else None), BATCH)
    np.testing.assert_allclose(loss, rlax.huber_loss(theirs).mean(), rtol=1e-5)


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("kappa", [0.0, 0.5, 1.0])
def test_qr_dqn_loss_is_that_of_rlax(double: bool, kappa: float) -> None:
    agent = QRDQN(QRDQNHyperparameters(double=double, kappa=kappa, quantiles=N), (2,), A)
    z, target, online = _normal(0, B, A, N), _normal(1, B, A, N), _normal(2, B, A, N)
    ours, _ = agent.loss(z, Successors(target, online if double else None), BATCH)
    levels = jnp.broadcast_to((jnp.arange(N) + 0.5) / N, (B, N))
    last = lambda x: x.swapaxes(1, 2)  # noqa: E731 - rlax has quantiles before actions
    theirs = jax.vmap(rlax.quantile_q_learning, in_axes=(0, 0, 0, 0, 0, 0, 0, None))(
        last(z), levels, BATCH.action, BATCH.reward, DISCOUNTS, last(online if double else target), last(target), kappa
    )
    # rlax does not divide the Huber loss by kappa, as QR-DQN's equation does; 0 means the pinball loss to both.
    np.testing.assert_allclose(ours, theirs.mean() / (kappa or 1.0), rtol=1e-5)


def test_epsilon_falls_in_a_straight_line_and_then_stays() -> None:
    hyper = EpsilonGreedyHyperparameters()
    # 1 -> 0.03 over 100,000 frames: 0.515 half way.
    found = [float(hyper.epsilon(jnp.int32(f))) for f in (0, 50_000, 100_000, 2_000_000)]
    np.testing.assert_allclose(found, [1.0, 0.515, 0.03, 0.03], rtol=1e-6)
    keys = jax.random.split(jax.random.key(0), 20_000)
    actions = jax.vmap(lambda k: epsilon_greedy(jnp.int32(2), 4, jnp.float32(0.4), k))(keys)
    # Greedy with 0.6, and a quarter of the other 0.4: 0.7 in all; each other action 0.1.
    np.testing.assert_allclose(np.bincount(actions, minlength=4) / 20_000, [0.1, 0.1, 0.7, 0.1], atol=0.012)


class TestUADQN:
    agent = UADQN(
        UADQNHyperparameters(quantiles=2, hidden=(4,), lambda_ep=0.5, lambda_al=2.0, replay_size=100, batch_size=8),
        (2,),
        2,
    )

    def test_uncertainties_by_hand(self) -> None:
        # Two quantiles of one action: p1 = [1, 3], p2 = [2, 8].
        #   epistemic variance = ((1 - 2)^2 + (3 - 8)^2) / 2 / 2 = (1 + 25) / 4 = 6.5
        #   p1 - mean = [-1, 1], p2 - mean = [-3, 3]; covariance = (3 + 3) / 2 = 3; aleatoric = sqrt 3
        first, second = jnp.array([1.0, 3.0]), jnp.array([2.0, 8.0])
        assert float(epistemic_variance(first, second)) == pytest.approx(6.5)
        assert float(aleatoric_deviation(first, second)) == pytest.approx(3**0.5)
        assert float(aleatoric_deviation(first, -second)) == 0  # a negative covariance counts as none

    def test_thompson_sample(self) -> None:
        # Means 1 and 0; epistemic deviations 0 and 2 weighted by 0.5: action 1 wins with Phi(-1 / 1) = 0.1587.
        beliefs = Beliefs(jnp.array([1.0, 0.0]), jnp.array([0.0, 2.0]), jnp.zeros(2))
        keys = jax.random.split(jax.random.key(0), 20_000)
        actions = jax.vmap(lambda k: self.agent.explore(NOTHING, beliefs, (), FRAME, k))(keys)
        assert float(actions.mean()) == pytest.approx(stats.norm.cdf(-1), abs=0.011)
        risky = beliefs._replace(aleatoric=jnp.array([0.6, 0.0]))
        assert int(self.agent.greedy(beliefs)) == 0
        assert int(self.agent.greedy(risky)) == 1  # 1 - 2 * 0.6 < 0

    def test_anchor_by_hand(self) -> None:
        # All weights of both posteriors moved by 0.1: |w - w_anchor|^2 = 0.01 a weight. With prior scales 2 and 4,
        # noise scale 1 and 50 frames: 0.01 W / (4 * 50) + 0.01 W / (16 * 50), W the number of weights of one.
        params = self.agent.network(jax.random.key(0))
        moved = jax.tree.map(lambda w: w + 0.1, params)
        anchors = Anchors(params.posteriors, jnp.array([2.0, 4.0]))
        count = sum(leaf.size for leaf in jax.tree.leaves(params.posteriors[0]))
        expected = 0.01 * count * (1 / 200 + 1 / 800)
        assert float(self.agent.penalty(moved, anchors, jnp.int32(50))) == pytest.approx(expected, rel=1e-4)
        # n is capped by the size of replay, 100.
        at_100, later = (float(self.agent.penalty(moved, anchors, jnp.int32(f))) for f in (100, 5_000))
        assert at_100 == later == pytest.approx(expected / 2, rel=1e-4)
        assert float(self.agent.penalty(params, anchors, jnp.int32(50))) == 0

    def test_prior_scale_and_gain(self) -> None:
        params = self.agent.network(jax.random.key(0))
        frozen = self.agent.frozen(params)
        weights = [w for w in jax.tree.leaves(params.posteriors[1]) if w.ndim == 2]
        assert float(frozen.prior_scale[1]) == pytest.approx(np.mean([np.std(w) for w in weights]), rel=1e-5)
        head = np.asarray(params.posteriors[0].head.weight)
        np.testing.assert_allclose(head.T @ head, 9 * np.eye(4), atol=1e-4)  # gain 3

    def test_all_three_networks_learn_the_same_target(self) -> None:
        z, p, q = _normal(0, B, 2, 2), _normal(1, B, 2, 2), _normal(2, B, 2, 2)
        batch = BATCH._replace(action=BATCH.action % 2)
        successors = Successors(UAOutputs(_normal(3, B, 2, 2), p, q), None)
        hyper = QRDQNHyperparameters(quantiles=2)
        alone = sum(
            QRDQN(hyper, (2,), 2).loss(x, Successors(successors.target.quantiles, None), batch)[0] for x in (z, p, q)
        )
        together, _ = self.agent.loss(UAOutputs(z, p, q), successors, batch)
        assert float(together) == pytest.approx(float(alone), rel=1e-5)


class TestBootstrappedDQN:
    hyper = BootstrappedDQNHyperparameters(heads=4, hidden=(8,), batch_size=8)
    agent = BootstrappedDQN(hyper, (2,), A)

    def test_gradient_of_a_head_does_not_depend_on_the_others(self) -> None:
        outputs, target = _normal(0, B, 4, A), _normal(1, B, 4, A)
        grad = jax.grad(lambda q, t: self.agent.loss(q, Successors(t, None), BATCH)[0])
        one = grad(outputs, target)
        other = grad(outputs.at[:, 1].add(5.0), target.at[:, 1].add(-3.0))
        np.testing.assert_array_equal(one[:, [0, 2, 3]], other[:, [0, 2, 3]])
        assert not np.array_equal(one[:, 1], other[:, 1])

    def test_each_head_is_a_dqn_of_its_own(self) -> None:
        outputs, target = _normal(0, B, 4, A), _normal(1, B, 4, A)
        loss, _ = self.agent.loss(outputs, Successors(target, None), BATCH)
        dqn = DQN(DQNHyperparameters(), (2,), A)
        alone = sum(float(dqn.loss(outputs[:, k], Successors(target[:, k], None), BATCH)[0]) for k in range(4))
        assert float(loss) == pytest.approx(alone, rel=1e-5)

    def test_gradient_into_the_torso_is_scaled_by_the_number_of_heads(self) -> None:
        network = self.agent.network(jax.random.key(0))
        x = _normal(5, 6, 2)

        def features_grad(scaled: bool) -> Any:
            def loss(body: Any) -> jax.Array:
                features = body(x)
                if scaled:
                    return jnp.sum(dataclasses.replace(network, torso=body)(x))
                return jnp.sum(network.head(features))

            return jax.grad(loss)(network.torso)

        for a, b in zip(jax.tree.leaves(features_grad(True)), jax.tree.leaves(features_grad(False)), strict=True):
            np.testing.assert_allclose(a, b / 4, rtol=1e-4, atol=1e-6)

    def test_masks_belong_to_transitions_and_are_respected(self) -> None:
        half = BootstrappedDQN(dataclasses.replace(self.hyper, mask_probability=0.5), (2,), A)
        many = BATCH._replace(number=jnp.arange(5_000))
        masks = np.asarray(half.masks(many))
        assert masks.mean() == pytest.approx(0.5, abs=0.015)
        assert abs(np.corrcoef(masks.T) - np.eye(4)).max() < 0.06  # heads draw independently
        again = np.asarray(half.masks(BATCH._replace(number=jnp.array([42, 7]))))
        np.testing.assert_array_equal(again, masks[[42, 7]])
        grad = jax.grad(lambda q: half.loss(q, Successors(_normal(1, B, 4, A), None), BATCH)[0])(_normal(0, B, 4, A))
        np.testing.assert_array_equal(np.asarray(grad != 0).any(-1), half.masks(BATCH))

    def test_the_acting_head_changes_only_at_episode_starts(self) -> None:
        env = NoisyChain()
        hyper = dataclasses.replace(self.hyper, learning_starts=10_000, replay_size=50)
        loop = Loop(env, BootstrappedDQN(hyper, env.observation_shape, 2))
        state = loop.init(jnp.int32(0))
        step = jax.jit(lambda s, f: loop.step(s, f, loop.frame_keys(s.key, f), learning=False))
        heads, changed, ends = set(), 0, 0
        for frame in range(60):
            before = int(state.memory)
            state, finished = step(state, jnp.int32(frame))
            ends += bool(finished.ended)
            changed += int(state.memory) != before
            assert bool(finished.ended) or int(state.memory) == before
            heads.add(int(state.memory))
        assert heads == {0, 1, 2, 3}
        assert changed > ends / 3

    def test_the_drawn_head_acts_greedily(self) -> None:
        outputs = jnp.array([[3.0, 1.0, 2.0], [1.0, 2.0, 3.0]])
        assert int(self.agent.explore(outputs, self.agent.beliefs(outputs), jnp.int32(1), FRAME, NOTHING)) == 2
        assert int(self.agent.greedy(self.agent.beliefs(outputs))) == 2  # means 2, 1.5, 2.5


class TestDUVN:
    def test_kl_against_a_numerical_one(self) -> None:
        for tm, ts, m, s in ((0.3, 0.7, -0.4, 1.3), (2.0, 0.2, 1.5, 0.5)):
            p, q = (tm, ts), (m, s)
            numerical, _ = integrate.quad(
                lambda x, p=p, q=q: stats.norm.pdf(x, *p) * (stats.norm.logpdf(x, *p) - stats.norm.logpdf(x, *q)),
                tm - 9 * ts,
                tm + 9 * ts,
            )
            assert float(gaussian_kl(*map(jnp.float32, (tm, ts, m, s)))) == pytest.approx(numerical, rel=1e-5)

    def test_target_by_hand(self) -> None:
        # r = 1, discount 0.5, successor's best action Normal(4, 2^2): target Normal(3, 1). Prediction Normal(2, 0.5):
        # KL = (4 - 1 - log 4 + (1 / 0.5)^2) / 2 = (7 - log 4) / 2. Terminated: Normal(1, floor 0.1).
        agent = DUVN(DUVNHyperparameters(discount=0.5, min_std=0.1), (2,), 2)
        mean, std = jnp.array([[0.0, 4.0]]), jnp.array([[9.0, 2.0]])
        predicted = (jnp.array([[2.0, 0.0]]), jnp.array([[0.5, 1.0]]))
        none = jnp.zeros((1, 2))
        one = Batch(none, jnp.array([0]), jnp.ones(1), jnp.array([False]), none, jnp.arange(1))
        outputs, following = Gaussian(*predicted, none), Successors(Gaussian(mean, std, none), None)
        assert float(agent.loss(outputs, following, one)[0]) == pytest.approx((7 - np.log(4)) / 2, rel=1e-5)
        over = one._replace(terminated=jnp.array([True]))
        expected = 0.5 * (0.04 - 1 - np.log(0.04) + 4)
        assert float(agent.loss(outputs, following, over)[0]) == pytest.approx(expected, rel=1e-5)

    def test_doubt_is_the_deviation_over_dropout_masks(self) -> None:
        agent = DUVN(DUVNHyperparameters(dropout=0.3, hidden=(32,)), (2,), A)
        network = agent.network(jax.random.key(0))
        x = jnp.array([[0.5, -1.0]])
        draws = jax.vmap(lambda k: agent.forward(network, x, k).mean[0])(jax.random.split(jax.random.key(1), 20_000))
        still = agent.forward(network, x, None)
        np.testing.assert_allclose(draws.std(0), still.doubt[0], rtol=0.03)
        np.testing.assert_allclose(draws.mean(0), still.mean[0], atol=0.03)

    @pytest.mark.slow
    def test_noise_travels_back_through_the_chain(self) -> None:
        """Only the last step is noisy, with deviation 1: two, one and no steps before it, 0.81, 0.9 and 1 are left."""
        env = NoisyChain()
        options = {name: value for name, value in PROBE_OPTIONS.items() if name != "quantiles"}
        hyper = DUVNHyperparameters(**options, dropout=0.0)  # pyright: ignore[reportArgumentType]
        agent = DUVN(hyper, env.observation_shape, 2)
        states = train_probe(Loop(env, agent), 15_000)
        network = jax.tree.map(lambda x: x[0], states.agent.params)
        found = agent.forward(network, jnp.eye(4)[:3], None)
        np.testing.assert_allclose(found.std[:, 1], [0.81, 0.9, 1.0], rtol=0.2)
        np.testing.assert_allclose(found.mean[:, 1], [1.215, 1.35, 1.5], rtol=0.2)
