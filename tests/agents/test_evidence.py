"""Conjugate evidence: what it counts is what Bayesian linear regression knows."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import jit
from scipy.stats import spearmanr

from ceqr.agents import evidence
from ceqr.agents.ceqr_dqn import CEQRDQN, CEQRDQNHyperparameters
from ceqr.agents.evidence import MEMORY, Evidence
from ceqr.networks import MOST_FEATURES
from ceqr.training.loop import Loop
from ceqr.training.players import make_player
from tests.probes import Grid, join, play

ACTIONS, FEATURES = 3, 7
FOR_EVER = 10**9
count = jit(evidence.count)
inverse_nu = jit(evidence.inverse_nu)
hear = jit(evidence.hear)
refresh = jit(lambda seen: evidence.refresh(seen, FOR_EVER))


def _seen(phi: np.ndarray, action: np.ndarray) -> Evidence:
    return refresh(count(evidence.nothing_seen(phi.shape[1], ACTIONS), phi, action))


def _data(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Features, and actions of which the last is never taken."""
    draw = np.random.default_rng(seed)
    features = draw.normal(0, 2, (rows, FEATURES)).astype(np.float32)
    return np.asarray(evidence.to_phi(jnp.asarray(features))), draw.integers(0, ACTIONS - 1, rows)


def test_it_is_bayesian_linear_regression_in_closed_form() -> None:
    """With noise of variance 1 and a standard normal prior, the posterior variance of the mean is 1 / nu."""
    phi, action = _data(40)
    new, _ = _data(11, seed=1)
    expected = []
    for a in range(ACTIONS):
        design = phi[action == a].astype(np.float64)
        covariance = np.linalg.inv(np.eye(phi.shape[1]) + design.T @ design)
        expected.append(np.einsum("bp,pq,bq->b", new, covariance, new))
    # Visits fade: 40 frames of 100,000, and so little does the variance grow.
    np.testing.assert_allclose(inverse_nu(_seen(phi, action), new), np.transpose(expected), rtol=1e-3)


@pytest.mark.parametrize("times", [1, 10, 1_000])
def test_nu_counts_what_is_repeated(times: int) -> None:
    phi, _ = _data(1)
    seen = _seen(np.repeat(phi, times, axis=0), np.zeros(times, np.int32))
    nu = 1 / np.asarray(inverse_nu(seen, phi))[0]
    fading = np.exp(-times / MEMORY)
    np.testing.assert_allclose(nu, [1 + fading * times, 1, 1], rtol=1e-4)


def test_an_action_never_taken_stays_at_its_prior() -> None:
    phi, action = _data(200)
    seen = np.asarray(inverse_nu(_seen(phi, action), phi))
    np.testing.assert_allclose(seen[:, -1], 1, rtol=1e-5)
    assert (seen <= 1).all()  # or the noise of nu - 1 observations would be that of fewer than none
    assert (seen[:, :-1] < 0.3).all()


def test_one_frame_at_a_time_is_all_at_once() -> None:
    phi, action = _data(20)
    one_by_one = evidence.nothing_seen(FEATURES + 1, ACTIONS)
    for i in range(20):
        one_by_one = count(one_by_one, phi[i : i + 1], action[i : i + 1])
    at_once = count(evidence.nothing_seen(FEATURES + 1, ACTIONS), phi, action)
    np.testing.assert_allclose(one_by_one.visits, at_once.visits, rtol=1e-5, atol=1e-6)
    assert float(at_once.fresh) == 20


def test_visits_fade_with_the_frames_since() -> None:
    phi, _ = _data(1)
    seen = count(evidence.nothing_seen(FEATURES + 1, ACTIONS), phi, np.zeros(1, np.int32))
    faded = jit(lambda seen: evidence.refresh(seen, 500))(seen._replace(fresh=jnp.float32(500)))
    np.testing.assert_allclose(faded.visits, np.exp(-1) * np.asarray(seen.visits), rtol=1e-5)
    assert float(faded.fresh) == 0


def test_features_have_length_one_and_many_are_projected() -> None:
    draw = np.random.default_rng(0)
    for features in (5, 1_000):
        rows = draw.normal(size=(4, features)).astype(np.float32)
        phi = np.asarray(evidence.to_phi(jnp.asarray(rows)))
        assert phi.shape == (4, min(features, MOST_FEATURES) + 1)
        np.testing.assert_allclose(np.linalg.norm(phi, axis=1), 1, rtol=1e-5)
    # Projected vectors keep their angles, about.
    alike = np.asarray(evidence.to_phi(jnp.asarray(np.stack([rows[0], rows[0] + 0.1 * rows[1]]))))
    assert alike[0] @ alike[1] > 0.95
    assert abs(phi[0] @ phi[1]) < 0.3
    # A torso that is silent sees one state everywhere.
    np.testing.assert_allclose(evidence.to_phi(jnp.zeros((1, 3))), [[0, 0, 0, 1]])


def test_vectors_are_told_apart_by_a_gaussian_kernel() -> None:
    """Many random features come near to the kernel; a vector and its double are two states."""
    features = evidence.Fourier(jax.random.key(0), 3, 20_000)
    x = np.array([0.3, -0.5, 0.2], np.float32)
    apart = np.array([0.0, 0.1, 0.4, 1.0, 3.0], np.float32)
    rows = x + apart[:, None] * np.array([0.6, 0.0, 0.8], np.float32)
    drawn = np.asarray(features(jnp.asarray(rows)))
    expected = np.exp(-0.5 * (evidence.sharpness(3, 20_000) * apart) ** 2)
    np.testing.assert_allclose(2 / 20_000 * drawn @ drawn[0], expected, atol=5 / np.sqrt(20_000))
    once, twice = np.asarray(evidence.to_phi(features(jnp.asarray(np.stack([x, 2 * x])))))
    assert once @ twice < 0.6


@pytest.mark.parametrize(("components", "expected"), [(1, 128), (2, 8), (3, 3.17), (4, 2), (900, 2)])
def test_few_components_are_told_apart_more_sharply(components: int, expected: float) -> None:
    assert evidence.sharpness(components, 256) == pytest.approx(expected, rel=1e-2)


def test_what_was_not_seen_stays_in_doubt_between_neighbours_that_were() -> None:
    """Of a grid of 256 places every other column is seen, and the others are doubted more."""
    places = np.stack(np.meshgrid(*2 * [np.linspace(-1, 1, 16)]), -1).reshape(-1, 2).astype(np.float32)
    phi = evidence.to_phi(evidence.Fourier(jax.random.key(0), 2, 256)(jnp.asarray(places)))
    half = np.arange(len(places)) % 2 == 0
    seen = refresh(count(evidence.nothing_seen(257, 1), phi[half], np.zeros(half.sum(), np.int32)))
    doubt = np.asarray(inverse_nu(seen, phi))[:, 0]
    assert doubt[half].max() < np.median(doubt[~half])


def _both_hear(so_far: Evidence, phi: Any, doubt: Any) -> Evidence:
    """Of the one action that there is."""
    action = jnp.zeros(len(phi), int)
    return hear(hear(so_far, phi, action, doubt, action), phi, action, doubt, action + 1)


def test_hearing_of_states_apart_is_a_table_in_which_steps_go_half_the_way() -> None:
    phi, action = jnp.eye(FEATURES), jnp.zeros(FEATURES, int).at[1].set(2)
    told = hear(
        evidence.nothing_seen(FEATURES, ACTIONS), phi, action, jnp.arange(FEATURES) + 1.0, jnp.zeros(FEATURES, int)
    )
    expected = np.zeros((ACTIONS, FEATURES))
    expected[0] = 0.5 * (np.arange(FEATURES) + 1)
    expected[2, 1], expected[0, 1] = expected[0, 1], 0
    np.testing.assert_allclose(told.follows[0], expected, rtol=1e-6)
    assert not np.asarray(told.follows[1]).any()  # who did not listen
    # However often a state was visited, and however often it is in the batch: together its rows make one step.
    visited = _seen(np.repeat(np.eye(FEATURES, dtype=np.float32)[:1], 99, axis=0), np.zeros(99, np.int32))
    listener = jnp.array([1, 1, 0, 1])
    told = hear(visited, phi[jnp.array([0, 0, 0, 0])], jnp.zeros(4, int), jnp.full(4, 3.0), listener)
    np.testing.assert_allclose(told.follows[:, 0, :2], [[1.5, 0], [1.5, 0]], rtol=1e-5)


def test_hearing_of_a_state_leaves_those_alone_that_were_visited() -> None:
    """Of two states that are alike one was visited often, and the other is heard of: the first keeps its own."""
    both = np.array([[1, 0], [0.8, 0.6]], np.float32)
    seen = refresh(count(evidence.nothing_seen(2, 1), both[:1].repeat(1_000, 0), np.zeros(1_000, np.int32)))
    told = _both_hear(seen, both[1:], np.ones(1, np.float32))
    first, second = np.asarray(evidence.following(told, jnp.asarray(both)))[:, 0]
    assert second == pytest.approx(0.5, rel=1e-5)
    assert abs(first) < 0.01


def test_doubt_travels_down_a_chain_and_repeated_steps_do_not_diverge() -> None:
    """Learned in turn from random features, as many as states, to the fixed point of a discounted chain."""
    states, discount = 8, 0.9
    draw = np.random.default_rng(0)
    phi = evidence.to_phi(jnp.asarray(draw.normal(size=(states, states)).astype(np.float32)))
    action = np.zeros(states, np.int32)
    so_far = refresh(count(evidence.nothing_seen(states + 1, 1), phi, action))
    for _ in range(400):
        behind = evidence.following(so_far, phi)[1:, 0]
        so_far = _both_hear(so_far, phi, discount * jnp.append(behind, 1.0))
    expected = discount ** np.arange(states, 0, -1)
    np.testing.assert_allclose(evidence.following(so_far, phi)[:, 0], expected, atol=0.01)


def test_rare_successors_of_common_states_do_not_blow_doubt_up() -> None:
    """What is heard of a state nearly common says more of its rarer successor, of which is heard in turn."""
    common, nearly, rare = np.array([[1, 0], [0.99, 0.141], [0.6, 0.8]], np.float32)
    told = refresh(count(evidence.nothing_seen(2, 1), common[None].repeat(1_000, 0), np.zeros(1_000, np.int32)))
    for _ in range(100):
        told = _both_hear(told, nearly[None], 0.1 + 0.99 * evidence.following(told, rare[None])[:, 0])
    assert float(evidence.following(told, nearly[None])[0, 0]) == pytest.approx(1, rel=1e-3)  # 1.09, cut off
    assert 1 < float(rare @ told.follows[0, 0]) < 10


def test_the_largest_of_many_noisy_doubts_is_not_heard_again_and_again() -> None:
    """Ten actions, all the same, of one state that leads to itself: doubt of 0.1, heard with noise.

    Who took the largest of what is told, and heard it from the same, would go up to the bound.
    """
    actions, draw = 10, np.random.default_rng(0)
    phi, rows = np.ones((1, 1), np.float32), np.ones((32, 1), np.float32)
    ends: list[list[float]] = [[], []]
    told = {"by itself": evidence.nothing_seen(1, actions), "by the other": evidence.nothing_seen(1, actions)}
    for i in range(600):
        action, listener = draw.integers(actions, size=32), draw.integers(2, size=32)
        noise = 0.1 * draw.normal(size=32)
        for kind, (who, so_far) in enumerate(told.items()):
            each = np.asarray(evidence.following_twice(so_far, jnp.asarray(phi)))[:, 0]
            best, teller = each.argmax(1)[listener], listener if kind == 0 else 1 - listener
            doubt = (0.01 + 0.9 * each[teller, best] + noise).astype(np.float32)
            told[who] = hear(so_far, rows, action, doubt, listener)
            if i >= 300:
                ends[kind].append(float(evidence.following(told[who], jnp.asarray(phi)).mean()))
    itself, other = np.mean(ends, axis=1)
    assert itself > 0.4
    assert other < 0.2  # in truth 0.1


def test_rows_that_are_opposite_do_not_make_large_steps() -> None:
    """Signed, what they share would cancel what they have of their own."""
    phi = jnp.array([[1, 0], [-0.99, 0.141]], jnp.float32)
    told = evidence.nothing_seen(2, 1)
    for _ in range(1_000):
        told = _both_hear(told, phi, jnp.array([0.5, -0.3]))
        assert float(jnp.max(jnp.abs(told.follows))) < 3
    np.testing.assert_allclose(phi @ told.follows[0, 0], [0.5, -0.3], atol=0.05)


def test_more_states_than_features_hear_about_what_least_squares_would_tell() -> None:
    """Of states that share features and hear of different doubts, for long, while more and more is counted."""
    states, features, draw = 64, 9, np.random.default_rng(0)
    phi = np.abs(draw.normal(size=(states, features))).astype(np.float32)
    phi /= np.linalg.norm(phi, axis=1, keepdims=True)
    doubt = draw.uniform(size=states).astype(np.float32)
    fitted = np.clip(phi @ np.linalg.lstsq(phi, doubt, rcond=None)[0], 0, 1)
    told = evidence.nothing_seen(features, 1)
    for i in range(2_000):
        rows = draw.integers(states, size=32)
        if i % 50 == 0:
            told = refresh(count(told, phi[rows], np.zeros(32, np.int32)))
        told = _both_hear(told, phi[rows], doubt[rows])
    heard = np.asarray(evidence.following(told, jnp.asarray(phi)))[:, 0]
    assert float(jnp.max(jnp.abs(told.follows))) < 5
    assert np.abs(heard - doubt).mean() < 1.1 * np.abs(fitted - doubt).mean()


@pytest.mark.parametrize("size", [1, 32, 33, 100])
def test_the_root_is_that_of_the_inverse(size: int) -> None:
    rows = np.random.default_rng(0).normal(size=(2 * size, size))
    matrix = np.eye(size) + rows.T @ rows
    root = np.asarray(jit(evidence.inverse_root)(matrix.astype(np.float32)), np.float64)
    np.testing.assert_allclose(root, np.linalg.inv(np.linalg.cholesky(matrix)), atol=1e-4)


def test_a_million_frames_leave_a_sound_matrix() -> None:
    """In float32, with features that nearly depend on each other, so that most directions are never seen."""
    size = 17

    @jit
    def play(frames: Any) -> Evidence:
        mix = jax.random.normal(jax.random.key(1), (3, size - 1))  # of rank 3, but for the ReLU

        def tick(i: jax.Array, so_far: Evidence) -> Evidence:
            drawn = jax.random.normal(jax.random.fold_in(jax.random.key(0), i), (1, 3))
            phi = evidence.to_phi(jax.nn.relu(drawn @ mix) * (jnp.arange(size - 1) < 10))
            return evidence.count(so_far, phi, i[None] % 2)

        def period(i: jax.Array, so_far: Evidence) -> Evidence:
            so_far = jax.lax.fori_loop(1_000 * i, 1_000 * i + 1_000, tick, so_far)
            return evidence.refresh(so_far, FOR_EVER)

        return jax.lax.fori_loop(0, frames // 1_000, period, evidence.nothing_seen(size, 3))

    seen = play(1_000_000)
    assert np.isfinite(seen.root).all()
    for visits, root in zip(np.asarray(seen.visits, np.float64), np.asarray(seen.root, np.float64), strict=True):
        precision = np.eye(size) + visits
        assert np.linalg.eigvalsh(precision).min() > 0.9  # unseen directions stay at their prior
        for phi in np.random.default_rng(0).normal(size=(5, size)):
            assert np.sum((root @ phi) ** 2) == pytest.approx(phi @ np.linalg.solve(precision, phi), rel=0.05)


def test_one_state_for_ever_leaves_a_sound_matrix() -> None:
    """Each frame is rounded alike, so that errors add up instead of cancelling: a large sum must not see them."""
    phi = evidence.to_phi(jax.random.normal(jax.random.key(0), (1, 32)))

    @jit
    def play() -> Evidence:
        def period(_: jax.Array, so_far: Evidence) -> Evidence:
            action = jnp.zeros(1, int)
            so_far = jax.lax.fori_loop(0, 1_000, lambda _, seen: evidence.count(seen, phi, action), so_far)
            return evidence.refresh(so_far, evidence.MEMORY)

        return jax.lax.fori_loop(0, 300, period, evidence.nothing_seen(33, 1))

    seen = play()
    assert np.linalg.eigvalsh(np.eye(33) + np.asarray(seen.visits[0], np.float64)).min() > 0.9
    # All that memory holds: 100,000 frames, but for those that have faded in 300,000.
    assert 1 / float(inverse_nu(seen, phi)[0, 0]) == pytest.approx(95_000, rel=0.02)


def test_doubt_falls_with_visits_in_a_grid_world() -> None:
    """Far cells are rarely reached: nu must rank states and actions as the true numbers of visits do."""
    env = Grid()
    hyper = CEQRDQNHyperparameters(
        hidden=(64,), quantiles=5, batch_size=32, replay_size=4_000, learning_starts=200, target_period=100,
        evidence="conjugate", location="calibrated", lambda_ep=1.0,
    )  # fmt: skip
    agent = CEQRDQN(hyper, env.observation_shape, env.num_actions)
    player = make_player(Loop(agent, env.observation_dtype), env, [0])
    play(player, 1_500)
    player.close()
    state = jax.tree.map(lambda x: x[0], join(player.groups))
    replay = state.replay
    slots = np.asarray(replay.slots)[0, : int(replay.newest[0])]
    cells, actions = np.asarray(replay.observation)[0, slots].argmax(-1), np.asarray(replay.action)[0, slots]
    visits = np.zeros((env.cells, env.num_actions))
    np.add.at(visits, (cells, actions), 1)
    assert visits.sum() == 1_500
    assert (visits == 0).any()

    everywhere = jnp.eye(env.cells)
    learned = agent.copy_target(state.agent)
    outputs = agent.forward(learned.params, learned.frozen, everywhere, None)
    nu = 1 / np.asarray(evidence.inverse_nu(learned.statistics.evidence, outputs.phi))
    result: Any = spearmanr(visits.ravel(), nu.ravel())
    assert result.statistic > 0.9
    _, beliefs = agent.act_greedily(learned, everywhere)
    doubt = np.asarray(beliefs.epistemic)
    assert np.median(doubt[visits == 0]) > np.median(doubt[visits > 0])
    # Doubt of what follows is in it: of most of what was seen, too, something unknown is not far.
    counted = learned.statistics
    alone = counted._replace(evidence=counted.evidence._replace(follows=jnp.zeros_like(counted.evidence.follows)))
    _, beliefs = agent.act_greedily(learned._replace(statistics=alone), everywhere)
    assert np.median((doubt**2 - np.asarray(beliefs.epistemic) ** 2)[visits > 0]) > 0.1
