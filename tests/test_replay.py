"""The ring buffer against a plain list, its memory, and the uniformity of its draws."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from ceqr.agents.base import Batch
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


def _bits(seed: int, count: int) -> jax.Array:
    return jax.random.bits(jax.random.key(seed), (count,), jnp.uint32)


# Programs, shared by all buffers of one kind.


@partial(jax.jit, static_argnums=0)
def _init(buffer: Replay | LaneReplay) -> ReplayState:
    return buffer.init()


@partial(jax.jit, static_argnums=0)
def _add(buffer: Replay | LaneReplay, state: ReplayState, *transition: Any) -> ReplayState:
    return buffer.add(state, *transition)


@partial(jax.jit, static_argnums=0)
def _draw(buffer: Replay | LaneReplay, state: ReplayState, bits: jax.Array) -> Batch:
    return buffer.sample(state, bits)


def _sample(buffer: Replay | LaneReplay, state: ReplayState, bits: Any) -> Any:
    """A batch of NumPy's arrays."""
    return jax.tree.map(np.asarray, _draw(buffer, state, bits))


def _fill(buffer: Replay, steps: list[Step]) -> ReplayState:
    state = _init(buffer)
    for s in steps:
        state = _add(
            buffer, state, np.full(1, s.observation, np.float32), np.int32(s.action), np.float32(s.reward),
            np.bool_(s.terminated), np.bool_(s.truncated), np.full(1, s.successor, np.float32),
        )  # fmt: skip
    return state


@pytest.mark.parametrize(("steps", "truncation"), [(7, 0.0), (40, 0.0), (40, 0.3), (41, 1.0), (200, 0.2)])
def test_samples_are_exactly_the_transitions_still_held(steps: int, truncation: float) -> None:
    capacity = 16
    buffer = Replay(capacity, 4_000, (1,), np.dtype(np.float32))
    played = _play(steps, seed=steps, truncation=truncation)
    state = _fill(buffer, played)
    batch = _sample(buffer, state, _bits(0, buffer.batch_size))

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
    assert set(batch.reward.tolist()) == set(held)
    if truncation == 0:
        assert len(held) == min(steps, capacity)


def test_draws_are_uniform() -> None:
    buffer = Replay(50, 20_000, (1,), np.dtype(np.float32))
    state = _fill(buffer, _play(170, seed=1, truncation=0.3))
    rewards = _sample(buffer, state, _bits(3, buffer.batch_size)).reward
    _, counts = np.unique(rewards, return_counts=True)
    assert stats.chisquare(counts).pvalue > 1e-3


def test_boolean_observations_are_kept_as_bits_and_come_back() -> None:
    shape = (10, 10, 4)
    buffer = Replay(100_000, 3, shape, np.dtype(bool))
    state = jax.eval_shape(buffer.init)
    assert sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state)) < 60e6
    assert state.observation.shape == (100_001, 50)  # 400 bits, once

    small = Replay(4, 64, shape, np.dtype(bool))
    first, second = jax.random.bernoulli(jax.random.key(0), 0.3, (2, *shape))
    one = _add(small, _init(small), first, np.int32(1), np.float32(2), np.False_, np.False_, second)
    batch = _sample(small, one, _bits(1, 64))
    np.testing.assert_array_equal(batch.observation, np.broadcast_to(first, (64, *shape)))
    np.testing.assert_array_equal(batch.successor, np.broadcast_to(second, (64, *shape)))


def _add_lanes(buffer: LaneReplay, state: ReplayState, steps: list[Step]) -> ReplayState:
    columns = [np.array(column) for column in zip(*steps, strict=True)]
    observation, action, reward, terminated, truncated, successor = columns
    return _add(
        buffer, state, observation.astype(np.float32)[:, None], action, np.float32(reward), terminated, truncated,
        successor.astype(np.float32)[:, None],
    )  # fmt: skip


def _assert_drawn_as_played(batch: Any, lanes: list[list[Step]]) -> None:
    """Every drawn transition is one that was played, its successor included. Rewards tell the lanes apart."""
    by_reward = {s.reward: s for steps in lanes for s in steps}
    for observation, action, reward, terminated, successor in zip(*batch[:5], strict=True):
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
    state = _init(buffer)
    for steps in zip(*lanes, strict=True):
        state = _add_lanes(buffer, state, list(steps))
    batch = _sample(buffer, state, _bits(0, buffer.batch_size))
    _assert_drawn_as_played(batch, lanes)
    rewards, counts = np.unique(batch.reward, return_counts=True)
    assert stats.chisquare(counts).pvalue > 1e-3
    held = {lane: int(((rewards >= 1000 * lane) & (rewards < 1000 * lane + 1000)).sum()) for lane in range(3)}
    assert held[0] == 16  # a third of the capacity
    assert held[1] < held[2] <= 16  # truncated episodes take a slot more
    assert len(np.unique(batch.number)) == len(rewards)


@pytest.mark.parametrize("lanes", [1, 3])
def test_each_transition_has_its_share_of_all_bit_patterns(lanes: int) -> None:
    """Consecutive numbers go through all that is held, lane after lane; the largest number has its place, too."""
    played = [_apart(_play(40, seed=lane, truncation=0.3 * lane), 1000 * lane) for lane in range(lanes)]
    buffer = LaneReplay(16 * lanes, 1, (1,), np.dtype(np.float32), lanes)
    state = _init(buffer)
    for steps in zip(*played, strict=True):
        state = _add_lanes(buffer, state, list(steps))
    held = np.asarray(state.newest - state.oldest)
    assert lanes == 1 or len(set(held)) > 1
    count = int(held.sum())
    drawn = _sample(buffer, state, np.arange(count, dtype=np.uint32)).reward
    expected = [[s.reward for s in steps[-n:]] for steps, n in zip(played, held, strict=True)]
    np.testing.assert_array_equal(drawn, np.concatenate(expected))
    last = _sample(buffer, state, np.array([2**32 - 1], np.uint32)).reward
    assert last == drawn[(2**32 - 1) % count]


def test_one_lane_is_the_plain_buffer() -> None:
    steps = _play(70, seed=5, truncation=0.2)
    plain, lanes = Replay(16, 64, (1,), np.float32), LaneReplay(16, 64, (1,), np.float32, lanes=1)
    state = _init(lanes)
    for s in steps:
        state = _add_lanes(lanes, state, [s])
    bits = _bits(1, 64)
    ours, theirs = _sample(lanes, state, bits), _sample(plain, _fill(plain, steps), bits)
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


@pytest.mark.parametrize("cut_at", [5, 30])
def test_a_cut_lane_keeps_the_successor_of_its_last_step(cut_at: int) -> None:
    """After a cut the next transition follows on nothing: the one before still leads where it led."""
    before = _play(cut_at, seed=2, truncation=0.2)
    before[-1] = before[-1]._replace(terminated=False, truncated=False)
    after = _apart(_play(12, seed=3, truncation=0.2), 500)
    buffer = LaneReplay(16, 4_000, (1,), np.dtype(np.float32), lanes=1)
    state, batch = _init(buffer), None
    for i, s in enumerate(before + after):
        if i == cut_at:
            state = buffer.cut(state, jnp.array([True]))
        state = _add_lanes(buffer, state, [s])
        batch = _sample(buffer, state, _bits(i, buffer.batch_size))
        _assert_drawn_as_played(batch, [before + after])
    assert batch is not None
    assert before[-1].reward in batch.reward.tolist()  # it was still there to be looked at


# Several steps.


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("n_step", [2, 5])
def test_several_steps_are_those_that_follow_on_the_first(n_step: int, lanes: int) -> None:
    """Against a plain walk along what was played: to the end of the episode, or of what is known of it."""
    discount, cut_at = 0.9, 37
    played = [_apart(_play(60, seed=7 + lane, truncation=0.1), 1000 * lane) for lane in range(lanes)]
    played[0][cut_at - 1] = played[0][cut_at - 1]._replace(terminated=False, truncated=False)
    buffer = LaneReplay(30 * lanes, 3_000, (1,), np.dtype(np.float32), lanes, n_step, discount)
    state, firsts = _init(buffer), {}
    for i, steps in enumerate(zip(*played, strict=True)):
        if i == cut_at:  # the environment of the first lane begins anew
            state = buffer.cut(state, jnp.arange(lanes) == 0)
        state = _add_lanes(buffer, state, list(steps))
    batch = _sample(buffer, state, _bits(0, buffer.batch_size))
    for lane, steps in enumerate(played):
        for i in range(len(steps)):
            walk = [steps[i]]
            while len(walk) < n_step and not (walk[-1].terminated or walk[-1].truncated):
                after = i + len(walk)
                if after == len(steps) or (lane == 0 and after == cut_at):
                    break
                walk.append(steps[after])
            firsts[i * lanes + lane] = walk
    seen = set()
    for i, number in enumerate(batch.number.tolist()):
        walk = firsts[number]
        assert float(batch.observation[i, 0]) == walk[0].observation
        assert int(batch.action[i]) == walk[0].action
        assert int(batch.steps[i]) == len(walk)
        assert bool(batch.terminated[i]) == walk[-1].terminated
        np.testing.assert_allclose(batch.reward[i], sum(discount**k * s.reward for k, s in enumerate(walk)), rtol=1e-5)
        if not walk[-1].terminated:
            assert float(batch.successor[i, 0]) == walk[-1].successor
        seen.add((len(walk), walk[-1].terminated, walk[-1].truncated))
    assert {(n_step, False, False), (1, True, False), (1, False, True), (1, False, False)} <= seen


def test_one_step_says_nothing_of_steps() -> None:
    buffer = LaneReplay(16, 8, (1,), np.dtype(np.float32), lanes=1)
    assert jax.eval_shape(buffer.sample, jax.eval_shape(buffer.init), _bits(0, 8)).steps is None


@pytest.mark.parametrize("n_step", [1, 3])
def test_returns_are_bounded_by_all_rewards_that_were_ever_seen(n_step: int) -> None:
    """Of all lanes, forgotten ones too; and by 0, since episodes may end."""
    rewards = np.random.default_rng(3).uniform(-2, -1, (40, 2))
    rewards[3, 1], rewards[5, 0] = -7.0, 0.5  # the ring forgets both
    buffer = LaneReplay(16, 8, (1,), np.dtype(np.float32), 2, n_step, discount=0.9, bounded=True)
    state = _init(buffer)
    for row in rewards:
        steps = [Step(0.0, 0, float(reward), False, False, 0.0) for reward in row]
        state = _add_lanes(buffer, state, steps)
        bounds = _sample(buffer, state, _bits(0, 8)).bounds
        seen = rewards[: int(state.newest[0])]
        np.testing.assert_allclose(bounds, [10 * min(seen.min(), 0), 10 * max(seen.max(), 0)], rtol=1e-5)
    assert int(state.oldest[0]) > 5
    assert LaneReplay(16, 8, (1,), np.dtype(np.float32), 2).init().extremes == ()
