"""The rivals against rlax, SciPy and arithmetic done by hand."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import jit
from scipy import integrate, stats

from ceqr.agents.base import Beliefs, Successors
from ceqr.agents.bootstrapped_dqn import BootstrappedDQN, BootstrappedDQNHyperparameters
from ceqr.agents.dqn import DQN, DQNHyperparameters
from ceqr.agents.duvn import DUVN, DUVNHyperparameters, DUVNOutputs, Gaussian, gaussian_kl
from ceqr.agents.epsilon import EpsilonGreedyHyperparameters
from ceqr.agents.qr_dqn import QRDQN, QRDQNHyperparameters
from ceqr.agents.ua_dqn import (
    UADQN,
    Anchors,
    UADQNHyperparameters,
    UAOutputs,
    aleatoric_deviation,
    epistemic_variance,
)
from ceqr.networks import parameter_count
from ceqr.training.compiled import CompiledPlayer
from ceqr.training.loop import Loop
from tests.agents.programs import make_batch, normal
from tests.probes import PROBE_OPTIONS, NoisyChain, train_probe

rlax = pytest.importorskip("rlax")

B, A, N = 7, 3, 5
NOTHING: Any = None  # an argument that is not read
BATCH: Any = make_batch([0, 1, 2, 2, 1, 0, 1], [False, True, False, False, True, False, False], size=2)
DISCOUNTS = np.float32(0.99) * (1 - BATCH.terminated.astype(np.float32))


@pytest.mark.parametrize("double", [False, True])
def test_dqn_td_error_is_that_of_rlax(double: bool) -> None:
    agent = DQN(DQNHyperparameters(double=double), (2,), A)
    q, target, online = normal(0, B, A), normal(1, B, A), normal(2, B, A)
    successors = Successors(target, online if double else None)
    ours = jit(agent.td_error)(q, successors, BATCH)
    if double:
        theirs = jit(jax.vmap(rlax.double_q_learning))(q, BATCH.action, BATCH.reward, DISCOUNTS, target, online)
    else:
        theirs = jit(jax.vmap(rlax.q_learning))(q, BATCH.action, BATCH.reward, DISCOUNTS, target)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    loss, _ = jit(agent.loss)(q, successors, BATCH, NOTHING)
    np.testing.assert_allclose(loss, np.mean(jit(rlax.huber_loss)(theirs)), rtol=1e-5)


def test_targets_of_several_steps_discount_what_follows_as_often() -> None:
    agent = DQN(DQNHyperparameters(), (2,), A)
    q, target = normal(0, B, A), normal(1, B, A)
    steps = np.array([1, 2, 3, 3, 2, 1, 3])
    ours = jit(agent.td_error)(q, Successors(target, None), BATCH._replace(steps=steps))
    discounts = np.float32(0.99) ** steps * (1 - BATCH.terminated.astype(np.float32))
    theirs = jit(jax.vmap(rlax.q_learning))(q, BATCH.action, BATCH.reward, discounts, target)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("kappa", [0.0, 0.5, 1.0])
def test_qr_dqn_loss_is_that_of_rlax(double: bool, kappa: float) -> None:
    agent = QRDQN(QRDQNHyperparameters(double=double, kappa=kappa, quantiles=N), (2,), A)
    z, target, online = normal(0, B, A, N), normal(1, B, A, N), normal(2, B, A, N)
    ours, _ = jit(agent.loss)(z, Successors(target, online if double else None), BATCH, NOTHING)
    levels = np.broadcast_to((np.arange(N, dtype=np.float32) + 0.5) / N, (B, N))
    last = lambda x: x.swapaxes(1, 2)  # noqa: E731 - rlax has quantiles before actions
    loss = jit(jax.vmap(lambda *rows: rlax.quantile_q_learning(*rows, kappa)))
    theirs = loss(
        last(z), levels, BATCH.action, BATCH.reward, DISCOUNTS, last(online if double else target), last(target)
    )
    # rlax does not divide the Huber loss by kappa, as QR-DQN's equation does; 0 means the pinball loss to both.
    np.testing.assert_allclose(ours, theirs.mean() / (kappa or 1.0), rtol=1e-5)


def _many(draw: Any) -> np.ndarray:
    """What 20,000 keys draw."""
    return np.asarray(jit(lambda: jax.vmap(draw)(jax.random.split(jax.random.key(0), 20_000)))())


def test_epsilon_falls_in_a_straight_line_and_then_stays() -> None:
    hyper = EpsilonGreedyHyperparameters()
    # 1 -> 0.03 over 100,000 frames: 0.515 half way.
    found = jit(hyper.epsilon)(np.array([0, 50_000, 100_000, 2_000_000], np.int32))
    np.testing.assert_allclose(found, [1.0, 0.515, 0.03, 0.03], rtol=1e-6)
    hyper = DQNHyperparameters(epsilon_start=0.4, epsilon_end=0.4)
    agent, beliefs = DQN(hyper, (1,), 4), Beliefs(jnp.array([0.0, 0.0, 1.0, 0.0]))
    actions = _many(lambda k: agent.explore(NOTHING, beliefs, (), jnp.int32(7), agent.draw(k)))
    # Greedy with 0.6, and a quarter of the other 0.4: 0.7 in all; each other action 0.1.
    np.testing.assert_allclose(np.bincount(actions, minlength=4) / 20_000, [0.1, 0.1, 0.7, 0.1], atol=0.012)


def test_random_and_greedy_actions_are_kept_for_as_long_as_was_drawn() -> None:
    """Lengths are uniform from 1 to the most, random frames are epsilon of all, and one action is kept to the end."""
    hyper = DQNHyperparameters(epsilon_start=0.4, epsilon_end=0.4, epsilon_hold=5)
    agent, beliefs = DQN(hyper, (1,), 4), Beliefs(jnp.array([0.0, 0.0, 1.0, 0.0]))

    @jit
    def play() -> tuple[jax.Array, Any]:
        def frame(memory: Any, key: jax.Array) -> tuple[Any, tuple[jax.Array, Any]]:
            memory = agent.remember(memory, agent.draw(key))
            return memory, (agent.explore(NOTHING, beliefs, memory, jnp.int32(7), NOTHING), memory)

        start = agent.init_memory(NOTHING, NOTHING)
        return jax.lax.scan(frame, start, jax.random.split(jax.random.key(0), 20_000))[1]

    actions, whims = jax.tree.map(np.asarray, play())
    ends = np.flatnonzero(whims.frames == 0)
    lengths = np.diff(ends)
    assert stats.chisquare(np.bincount(lengths, minlength=6)[1:]).pvalue > 1e-3
    for first, last in zip(ends[:-1] + 1, ends[1:], strict=True):
        assert len(set(actions[first : last + 1])) == len(set(whims.chance[first : last + 1])) == 1
    assert np.all(np.diff(whims.chance[ends]) != 0)  # each is drawn anew
    assert np.mean(whims.chance < 0.4) == pytest.approx(0.4, abs=0.03)
    np.testing.assert_array_equal(actions, np.where(whims.chance < 0.4, whims.action, 2))


def test_training_keeps_random_actions_from_frame_to_frame() -> None:
    """In the chain action 0 gives up at once: who keeps an action does so in the first step or never."""
    hyper = DQNHyperparameters(hidden=(4,), batch_size=4, learning_starts=50, epsilon_end=1.0, epsilon_hold=5_000)
    state = train_probe(Loop(DQN(hyper, (4,), 2), np.float32), NoisyChain(), 200)
    action, terminated = (np.asarray(x)[0, 0, :200] for x in (state.replay.action, state.replay.terminated))
    episodes = np.split(action, np.flatnonzero(terminated) + 1)[:-1]
    assert {tuple(each.tolist()) for each in episodes} == {(0,), (1, 1, 1)}


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
        beliefs = Beliefs(np.array([1.0, 0.0]), np.array([0.0, 2.0]), np.zeros(2))
        actions = _many(lambda k: self.agent.explore(NOTHING, beliefs, (), NOTHING, self.agent.draw(k)))
        assert float(actions.mean()) == pytest.approx(stats.norm.cdf(-1), abs=0.011)
        risky = beliefs._replace(aleatoric=np.array([0.6, 0.0]))
        assert int(self.agent.greedy(beliefs)) == 0
        assert int(self.agent.greedy(risky)) == 1  # 1 - 2 * 0.6 < 0

    def test_anchor_by_hand(self) -> None:
        # All weights of both posteriors moved by 0.1: |w - w_anchor|^2 = 0.01 a weight. With prior scale 2, noise scale
        # 1 and 50 frames: 0.01 * 2 W / (4 * 50), W the number of weights of one.
        shapes = jax.eval_shape(self.agent.init_params, jax.random.key(0))
        params = jax.tree.map(lambda leaf: normal(0, *leaf.shape), shapes)
        moved = jax.tree.map(lambda w: w + np.float32(0.1), params)
        anchors = Anchors(params.posteriors, np.float32(2.0))  # pyright: ignore[reportArgumentType]
        penalty = jit(self.agent.penalty)
        expected = 0.01 * parameter_count(params.posteriors) / 200
        assert float(penalty(moved, anchors, np.int32(50))) == pytest.approx(expected, rel=1e-4)
        # n is capped by the size of replay, 100.
        at_100, later = (float(penalty(moved, anchors, np.int32(f))) for f in (100, 5_000))
        assert at_100 == later == pytest.approx(expected / 2, rel=1e-4)
        assert float(penalty(params, anchors, np.int32(50))) == 0

    def test_prior_scale_on_breakout_is_its_authors(self) -> None:
        """0.140: the mean over all arrays of the first posterior, zero biases included; 0.279 without the biases."""
        agent = UADQN(UADQNHyperparameters(), (10, 10, 4), 3)
        params, frozen = jit(lambda key: (agent.init_params(key), agent.init_frozen(agent.init_params(key), key)))(
            jax.random.key(0)
        )
        assert frozen.prior_scale.shape == ()  # one for both
        assert float(frozen.prior_scale) == pytest.approx(0.140, abs=0.001)
        expected = np.mean([np.std(leaf) for leaf in jax.tree.leaves(params.posteriors[0])])
        assert float(frozen.prior_scale) == pytest.approx(expected, rel=1e-4)
        head = np.asarray(params.posteriors[0].torso.dense[0].weight)
        np.testing.assert_allclose(head.T @ head, 9 * np.eye(128), atol=1e-3)  # gain 3

    def test_all_three_networks_learn_the_same_target(self) -> None:
        z, p, q = normal(0, B, 2, 2), normal(1, B, 2, 2), normal(2, B, 2, 2)
        batch = BATCH._replace(action=BATCH.action % 2)
        successors = Successors(UAOutputs(normal(3, B, 2, 2), p, q), None)
        loss = jit(QRDQN(QRDQNHyperparameters(quantiles=2), (2,), 2).loss)
        alone = sum(float(loss(x, Successors(successors.target.quantiles, None), batch, NOTHING)[0]) for x in (z, p, q))
        together, _ = jit(self.agent.loss)(UAOutputs(z, p, q), successors, batch, NOTHING)
        assert float(together) == pytest.approx(alone, rel=1e-5)


class TestBootstrappedDQN:
    hyper = BootstrappedDQNHyperparameters(heads=4, hidden=(8,), batch_size=8)
    agent = BootstrappedDQN(hyper, (2,), A)

    def test_gradient_of_a_head_does_not_depend_on_the_others(self) -> None:
        outputs, target = normal(0, B, 4, A), normal(1, B, 4, A)
        grad = jit(jax.grad(lambda q, t: self.agent.loss(q, Successors(t, None), BATCH, NOTHING)[0]))
        one = np.asarray(grad(outputs, target))
        outputs[:, 1] += 5
        target[:, 1] -= 3
        other = np.asarray(grad(outputs, target))
        np.testing.assert_array_equal(one[:, [0, 2, 3]], other[:, [0, 2, 3]])
        assert not np.array_equal(one[:, 1], other[:, 1])

    def test_each_head_is_a_dqn_of_its_own(self) -> None:
        outputs, target = normal(0, B, 4, A), normal(1, B, 4, A)
        loss, _ = jit(self.agent.loss)(outputs, Successors(target, None), BATCH, NOTHING)
        dqn = jit(DQN(DQNHyperparameters(), (2,), A).loss)
        alone = sum(float(dqn(outputs[:, k], Successors(target[:, k], None), BATCH, NOTHING)[0]) for k in range(4))
        assert float(loss) == pytest.approx(alone, rel=1e-5)

    def test_of_an_image_the_heads_share_the_convolution_alone(self) -> None:
        """Osband et al.: K = 10 heads, each with a hidden layer of its own."""
        agent = BootstrappedDQN(BootstrappedDQNHyperparameters(), (10, 10, 4), 3)
        params = jax.eval_shape(agent.init_params, jax.random.key(0))
        assert parameter_count(params.torso) == 36 * 16 + 16
        assert parameter_count(params.heads) == 10 * ((1024 * 128 + 128) + (128 * 3 + 3))

    @pytest.mark.parametrize(
        ("hidden", "shared", "own"),
        [((), 0, 2 * A + A), ((8,), 0, (2 * 8 + 8) + (8 * A + A)), ((6, 8), 2 * 6 + 6, (6 * 8 + 8) + (8 * A + A))],
    )
    def test_of_a_vector_they_share_all_hidden_layers_but_the_last(
        self, hidden: tuple[int, ...], shared: int, own: int
    ) -> None:
        agent = BootstrappedDQN(dataclasses.replace(self.hyper, hidden=hidden), (2,), A)
        params = jax.eval_shape(agent.init_params, jax.random.key(0))
        assert (parameter_count(params.torso), parameter_count(params.heads)) == (shared, 4 * own)
        assert jax.eval_shape(agent.forward, params, (), BATCH.observation, None).shape == (B, 4, A)

    def test_gradient_into_the_torso_is_scaled_by_the_number_of_heads(self) -> None:
        agent = BootstrappedDQN(dataclasses.replace(self.hyper, hidden=(6, 8)), (2,), A)
        x = normal(5, 6, 2)

        @jit
        def grads(key: jax.Array) -> Any:
            network = agent.init_params(key)
            ours = jax.grad(lambda net: jnp.sum(jnp.sin(net(x))))
            plain = jax.grad(lambda net: jnp.sum(jnp.sin(net.heads(net.torso(x)))))
            return ours(network), plain(network)

        ours, plain = grads(jax.random.key(0))
        for a, b in zip(jax.tree.leaves(ours.torso), jax.tree.leaves(plain.torso), strict=True):
            np.testing.assert_allclose(a, np.asarray(b) / 4, rtol=1e-4, atol=1e-6)
            assert np.asarray(a).any()
        for a, b in zip(jax.tree.leaves(ours.heads), jax.tree.leaves(plain.heads), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)

    def test_masks_belong_to_transitions_and_seeds_and_are_respected(self) -> None:
        half = BootstrappedDQN(dataclasses.replace(self.hyper, mask_probability=0.3), (2,), A)
        masks = jit(lambda key, number: half.masks(BATCH._replace(number=number), half.init(key).frozen))
        numbers = np.arange(5_000)
        first, second = (np.asarray(masks(jax.random.key(seed), numbers)) for seed in (0, 1))
        for drawn in (first, second):
            assert drawn.mean() == pytest.approx(0.3, abs=0.015)
            assert abs(np.corrcoef(drawn.T) - np.eye(4)).max() < 0.06  # heads draw independently
        assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 0.03  # and so do seeds
        again = masks(jax.random.key(0), numbers[::-1])  # in another place of another batch
        np.testing.assert_array_equal(np.asarray(again)[::-1], first)

        @jit
        def grad(key: jax.Array) -> jax.Array:
            successors, state = Successors(normal(1, B, 4, A), None), half.init(key)
            return jax.grad(lambda q: half.loss(q, successors, BATCH, state)[0])(jnp.asarray(normal(0, B, 4, A)))

        np.testing.assert_array_equal(np.asarray(grad(jax.random.key(1)) != 0).any(-1), second[:B])

    def test_the_acting_head_changes_only_at_episode_starts(self) -> None:
        env = NoisyChain()
        hyper = dataclasses.replace(self.hyper, learning_starts=10_000, replay_size=50)
        loop = Loop(BootstrappedDQN(hyper, env.observation_shape, 2), env.observation_dtype)
        player = CompiledPlayer(loop, env, [0])
        state = player.init_seed(jnp.int32(0))
        step = jax.jit(lambda s, f: player.tick(s, f, loop.chance(s.key, f), learning=False))
        heads, changed, ends = set(), 0, 0
        for frame in range(60):
            before = int(state.memory[0])
            state, finished = step(state, jnp.int32(frame))
            ends += bool(finished.ended[0])
            changed += int(state.memory[0]) != before
            assert bool(finished.ended[0]) or int(state.memory[0]) == before
            heads.add(int(state.memory[0]))
        assert heads == {0, 1, 2, 3}
        assert changed > ends / 3

    def test_the_drawn_head_acts_greedily(self) -> None:
        outputs = np.array([[3.0, 1.0, 2.0], [1.0, 2.5, 2.0]])
        beliefs: Any = self.agent.beliefs(outputs, NOTHING)  # pyright: ignore[reportArgumentType]
        acts = [int(self.agent.explore(outputs, beliefs, head, NOTHING, NOTHING)) for head in (0, 1)]  # pyright: ignore[reportArgumentType]
        assert acts == [0, 1]
        assert int(self.agent.greedy(beliefs)) == 0  # means 2, 1.75, 2


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
        # It is the drawn prediction that learns, and the successor's without dropout that it learns from.
        agent = DUVN(DUVNHyperparameters(discount=0.5, min_std=0.1), (2,), 2)
        unread = Gaussian(jnp.array([[7.0, 7.0]]), jnp.array([[7.0, 7.0]]))
        drawn = Gaussian(jnp.array([[2.0, 0.0]]), jnp.array([[0.5, 1.0]]))
        still = Gaussian(jnp.array([[0.0, 4.0]]), jnp.array([[9.0, 2.0]]))
        one = make_batch([0], [False], size=2)._replace(reward=np.ones(1, np.float32))
        outputs, following = DUVNOutputs(drawn, unread, NOTHING), Successors(DUVNOutputs(unread, still, NOTHING), None)
        loss = jit(agent.loss)
        assert float(loss(outputs, following, one, NOTHING)[0]) == pytest.approx((7 - np.log(4)) / 2, rel=1e-5)
        over = one._replace(terminated=np.array([True]))
        expected = 0.5 * (0.04 - 1 - np.log(0.04) + 4)
        assert float(loss(outputs, following, over, NOTHING)[0]) == pytest.approx(expected, rel=1e-5)

    def test_doubt_is_the_deviation_over_dropout_masks(self) -> None:
        agent = DUVN(DUVNHyperparameters(dropout=0.3, hidden=(32,)), (2,), A)
        rows = jnp.asarray(np.tile(np.array([0.5, -1.0], np.float32), (20_000, 1)))
        forward = jit(lambda key: agent.forward(agent.init_params(key), (), rows, key))
        drawn, still, doubt = jax.tree.map(np.asarray, forward(jax.random.key(0)))
        np.testing.assert_allclose(drawn.mean.std(0), doubt[0], rtol=0.03)
        np.testing.assert_allclose(drawn.mean.mean(0), still.mean[0], atol=0.03)

    def test_what_is_best_is_told_without_dropout_and_tried_with_it(self) -> None:
        """The same observation many times: its beliefs are those of evaluation, and the actions follow the draws."""
        agent = DUVN(DUVNHyperparameters(dropout=0.5, hidden=(16,), min_std=1e-3), (2,), A)

        @jit
        def play(key: jax.Array) -> Any:
            state = agent.init(key)
            # Returns are as good as certain, so that nothing but dropout makes actions differ.
            head = state.params.std_head
            certain = eqx.tree_at(lambda h: (h.weight, h.bias), head, (0 * head.weight, head.bias - 50))
            state = state._replace(params=eqx.tree_at(lambda p: p.std_head, state.params, certain))
            observations = jnp.tile(jnp.array([0.5, -1.0]), (200, 1))
            keys = jax.random.split(key, 200)
            draws = jax.vmap(agent.draws)(keys)
            actions, beliefs, _, _ = agent.act(state, (), observations, jnp.arange(200), draws)
            return actions, beliefs, agent.act_greedily(state, observations[:1])

        actions, beliefs, (best, evaluated) = play(jax.random.key(0))
        for a, b in zip(beliefs, evaluated, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                np.testing.assert_allclose(a, np.tile(b, (200, 1)), rtol=1e-5, atol=1e-7)
        other = np.mean(np.asarray(actions) != np.asarray(best))
        assert 0.05 < other < 0.95

    @pytest.mark.slow
    def test_noise_travels_back_through_the_chain(self) -> None:
        """Only the last step is noisy, with deviation 1: two, one and no steps before it, 0.81, 0.9 and 1 are left."""
        env = NoisyChain()
        options = {name: value for name, value in PROBE_OPTIONS.items() if name != "quantiles"}
        hyper = DUVNHyperparameters(**options, dropout=0.0)  # pyright: ignore[reportArgumentType]
        agent = DUVN(hyper, env.observation_shape, 2)
        states = train_probe(Loop(agent, env.observation_dtype), env, 10_000)
        network = jax.tree.map(lambda x: x[0], states.agent.params)
        found = agent.forward(network, (), jnp.eye(4)[:3], None).still
        np.testing.assert_allclose(found.std[:, 1], [0.81, 0.9, 1.0], rtol=0.2)
        np.testing.assert_allclose(found.mean[:, 1], [1.215, 1.35, 1.5], rtol=0.2)
