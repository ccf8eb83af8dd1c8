"""The ring buffer against a plain list, its memory, and the uniformity of its draws."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from ceqr.replay import Replay, ReplayState


class Step(NamedTuple):
    observation: float
    action: int
    reward: float
    terminated: bool
    truncated: bool
    successor: float


def _play(steps: int, seed: int, truncation: float) -> list[Step]:
    """Steps with numbered observations; an episode's last observation is a number of its own."""
    rng = np.random.default_rng(seed)
    number, now, played = 1, 0.0, []
    for i in range(steps):
        terminated = rng.random() < 0.1
        truncated = not terminated and rng.random() < truncation
        successor, number = float(number), number + 1
        played.append(Step(now, int(rng.integers(5)), float(i), terminated, truncated, successor))
        now = successor
        if terminated or truncated:
            now, number = float(number), number + 1
    return played


def _fill(buffer: Replay, steps: list[Step]) -> ReplayState:
    add = jax.jit(buffer.add)
    state = buffer.init()
    for s in steps:
        state = add(
            state, jnp.full(1, s.observation), jnp.int32(s.action), jnp.float32(s.reward),
            jnp.bool_(s.terminated), jnp.bool_(s.truncated), jnp.full(1, s.successor),
        )  # fmt: skip
    return state


@pytest.mark.parametrize(("steps", "truncation"), [(7, 0.0), (40, 0.0), (40, 0.3), (41, 1.0), (200, 0.2)])
def test_samples_are_exactly_the_transitions_still_held(steps: int, truncation: float) -> None:
    capacity = 16
    buffer = Replay(capacity, 4_000, (1,), np.dtype(np.float32))
    played = _play(steps, seed=steps, truncation=truncation)
    state = _fill(buffer, played)
    batch = jax.jit(buffer.sample)(state, jax.random.key(0))

    np.testing.assert_array_equal(batch.number, batch.reward)  # the reward counts the steps, too
    by_reward = {s.reward: s for s in played}
    for i in range(buffer.batch_size):
        s = by_reward[float(batch.reward[i])]
        assert (s.observation, s.action, s.terminated) == (
            float(batch.observation[i, 0]), int(batch.action[i]), bool(batch.terminated[i]),
        )  # fmt: skip
        if not s.terminated:  # nothing follows a terminated step, so its successor is never read
            assert float(batch.successor[i, 0]) == s.successor

    # What is held: the newest transitions whose slots fit, a truncated episode's last observation taking one more.
    held, used = [], 1  # one slot for the newest successor
    for s in reversed(played):
        used += 1 + (s.truncated and bool(held))
        if used > capacity + 1:
            break
        held.append(s.reward)
    assert set(np.asarray(batch.reward).tolist()) == set(held)
    if truncation == 0:
        assert len(held) == min(steps, capacity)


def test_draws_are_uniform() -> None:
    buffer = Replay(50, 20_000, (1,), np.dtype(np.float32))
    state = _fill(buffer, _play(170, seed=1, truncation=0.3))
    rewards = np.asarray(buffer.sample(state, jax.random.key(3)).reward)
    _, counts = np.unique(rewards, return_counts=True)
    assert stats.chisquare(counts).pvalue > 1e-3


def test_boolean_observations_are_kept_as_bits_and_come_back() -> None:
    shape = (10, 10, 4)
    buffer = Replay(100_000, 3, shape, np.dtype(bool))
    state = jax.eval_shape(buffer.init)
    assert sum(leaf.size * leaf.dtype.itemsize for leaf in state) < 60e6
    assert state.observation.shape == (100_001, 50)  # 400 bits, once

    small = Replay(4, 64, shape, np.dtype(bool))
    first, second = jax.random.bernoulli(jax.random.key(0), 0.3, (2, *shape))
    one = small.add(small.init(), first, jnp.int32(1), jnp.float32(2), jnp.bool_(False), jnp.bool_(False), second)
    batch = small.sample(one, jax.random.key(1))
    np.testing.assert_array_equal(batch.observation, np.broadcast_to(first, (64, *shape)))
    np.testing.assert_array_equal(batch.successor, np.broadcast_to(second, (64, *shape)))
