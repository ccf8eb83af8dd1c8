"""The ring buffer against a plain list, its memory, and the uniformity of its draws."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from ceqr.replay import LaneReplay, Replay, ReplayState


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


def _add_lanes(buffer: LaneReplay, state: ReplayState, steps: list[Step]) -> ReplayState:
    columns = [np.array(column) for column in zip(*steps, strict=True)]
    observation, action, reward, terminated, truncated, successor = columns
    return jax.jit(buffer.add)(
        state, observation.astype(np.float32)[:, None], action, np.float32(reward), terminated, truncated,
        successor.astype(np.float32)[:, None],
    )  # fmt: skip


def _assert_drawn_as_played(batch: Any, lanes: list[list[Step]]) -> None:
    """Every drawn transition is one that was played, its successor included. Rewards tell the lanes apart."""
    by_reward = {s.reward: s for steps in lanes for s in steps}
    for observation, action, reward, terminated, successor in zip(*map(np.asarray, batch[:5]), strict=True):
        s = by_reward[float(reward)]
        assert (s.observation, s.action, s.terminated) == (float(observation[0]), int(action), bool(terminated))
        if not s.terminated:
            assert float(successor[0]) == s.successor


def _apart(steps: list[Step], by: float) -> list[Step]:
    """The same steps with other numbers."""
    return [s._replace(observation=s.observation + by, successor=s.successor + by, reward=s.reward + by) for s in steps]


def test_lanes_keep_their_episodes_apart_and_are_drawn_uniformly() -> None:
    lanes = [
        _apart(_play(60, seed=lane, truncation=truncation), 1000 * lane)
        for lane, truncation in enumerate((0.0, 0.4, 0.1))
    ]
    buffer = LaneReplay(48, 20_000, (1,), np.dtype(np.float32), lanes=3)
    state = buffer.init()
    for steps in zip(*lanes, strict=True):
        state = _add_lanes(buffer, state, list(steps))
    batch = jax.jit(buffer.sample)(state, jax.random.key(0))
    _assert_drawn_as_played(batch, lanes)
    rewards, counts = np.unique(np.asarray(batch.reward), return_counts=True)
    assert stats.chisquare(counts).pvalue > 1e-3
    held = {lane: int(((rewards >= 1000 * lane) & (rewards < 1000 * lane + 1000)).sum()) for lane in range(3)}
    assert held[0] == 16  # a third of the capacity
    assert held[1] < held[2] <= 16  # truncated episodes take a slot more
    assert len(np.unique(np.asarray(batch.number))) == len(rewards)


def test_one_lane_is_the_plain_buffer() -> None:
    steps = _play(70, seed=5, truncation=0.2)
    plain, lanes = Replay(16, 64, (1,), np.float32), LaneReplay(16, 64, (1,), np.float32, lanes=1)
    state = lanes.init()
    for s in steps:
        state = _add_lanes(lanes, state, [s])
    ours, theirs = lanes.sample(state, jax.random.key(1)), plain.sample(_fill(plain, steps), jax.random.key(1))
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


@pytest.mark.parametrize("cut_at", [5, 30])
def test_a_cut_lane_keeps_the_successor_of_its_last_step(cut_at: int) -> None:
    """After a cut the next transition follows on nothing: the one before still leads where it led."""
    before = _play(cut_at, seed=2, truncation=0.2)
    before[-1] = before[-1]._replace(terminated=False, truncated=False)
    after = _apart(_play(12, seed=3, truncation=0.2), 500)
    buffer = LaneReplay(16, 4_000, (1,), np.dtype(np.float32), lanes=1)
    state, batch = buffer.init(), None
    for i, s in enumerate(before + after):
        if i == cut_at:
            state = buffer.cut(state, jnp.array([True]))
        state = _add_lanes(buffer, state, [s])
        batch = jax.jit(buffer.sample)(state, jax.random.key(i))
        _assert_drawn_as_played(batch, [before + after])
    assert batch is not None
    assert before[-1].reward in np.asarray(batch.reward).tolist()  # it was still there to be looked at
