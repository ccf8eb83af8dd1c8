"""The loop's arithmetic: which frames learn, before which the target network is copied, and sums that do not drift."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ceqr.agents.base import Hyperparameters
from ceqr.compilation import jit
from ceqr.envs.base import TimeStep
from ceqr.sums import Sum
from ceqr.training.loop import NEVER, Loop, LoopState
from ceqr.training.players import _mean
from tests.probes import CountingAgent

LANES = (1, 2, 3, 4, 7)
PERIODS = (1, 2, 3, 4, 5, 7, 10, 30)
STARTS = range(8)  # a loaded agent may go on with other lanes, so ticks need not start at a multiple of them


def _loop(lanes: int, **options: Any) -> Loop:
    hyper = Hyperparameters(hidden=(8,), batch_size=4, replay_size=50, **options)
    return Loop(CountingAgent(hyper, (4,), 2), np.float32, lanes)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("every", PERIODS)
def test_an_update_is_due_for_each_frame_that_update_every_divides(lanes: int, every: int) -> None:
    loop = _loop(lanes, update_every=every)
    for frame in range(100):
        due = sum(f % every == 0 for f in range(frame, frame + lanes))
        assert loop.updates_due(frame) == due
        assert due <= loop.most_updates
    assert max(loop.updates_due(frame) for frame in range(every)) == loop.most_updates
    # As it is computed in a program.
    frames = jnp.arange(100)
    np.testing.assert_array_equal(loop.updates_due(frames), [loop.updates_due(f) for f in range(100)])


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("period", PERIODS)
def test_the_target_is_copied_before_each_tick_that_holds_a_frame_of_its_period(lanes: int, period: int) -> None:
    loop = _loop(lanes, target_period=period)
    for start in STARTS:
        ticks = range(start, start + 150 * lanes, lanes)
        due = [any(f % period == 0 for f in range(tick, tick + lanes)) for tick in ticks]
        assert [bool(loop.copy_due(tick)) for tick in ticks] == due
        for i, tick in enumerate(ticks[:100]):
            following = next(later for later, is_due in zip(ticks[i + 1 :], due[i + 1 :], strict=True) if is_due)
            assert loop.next_copy(tick) == following
        frames = jnp.array(ticks[:100])
        np.testing.assert_array_equal(loop.copy_due(frames), due[:100])
        np.testing.assert_array_equal(loop.next_copy(frames), [loop.next_copy(tick) for tick in ticks[:100]])


@pytest.mark.parametrize(
    ("options", "bounded"),
    [({"bound_returns": True}, True), ({"bound_returns": True, "discount": 1.0}, False), ({}, False)],
)
def test_a_batch_tells_what_returns_can_be_where_that_is_asked_for(options: dict[str, Any], bounded: bool) -> None:
    """Without discount, a return can be anything."""
    state = jax.eval_shape(_loop(2, **options).init, jnp.int32(0))
    assert (state.batch.bounds is not None) == bounded
    assert (state.replay.extremes != ()) == bounded


def test_a_mean_over_a_million_numbers_does_not_drift() -> None:
    """A plain sum in float32 reads 0.892 for the mean of so many 0.9."""
    count = 1_000_000
    nothing = Sum(jnp.float32(0), jnp.float32(0))

    @jit  # with the options of our own programs: a compiler that reorders sums would undo the compensation
    def add(number: jax.Array) -> tuple[Sum, jax.Array]:
        both = (nothing, jnp.float32(0))
        return jax.lax.fori_loop(0, count, lambda _, sums: (sums[0].add(number), sums[1] + number), both)

    total, plain = jax.tree.map(np.asarray, add(jnp.float32(0.9)))
    assert abs(plain / count - 0.9) > 0.005  # the test can tell
    assert abs(_mean(total, np.array(count)) - 0.9) < 1e-6


# What was not finite.


THREE = _loop(3)
INIT = jax.jit(THREE.init)
BEGIN = jax.jit(THREE.begin)
STEP = TimeStep(np.zeros((3, 4)), np.zeros((3, 4)), np.zeros(3), np.zeros(3, bool), np.zeros(3, bool))


@jax.jit
def _absorb(state: LoopState, after: TimeStep, frame: jax.Array) -> LoopState:
    chance = THREE.chance(state.key, frame)
    return THREE.absorb(state, THREE.act(state, frame, chance), after, frame, chance)[0]


def _broken(shape: tuple[int, ...], bad: float) -> np.ndarray:
    """In the second and the third lane."""
    array = np.zeros(shape)
    array[1:, ...] = bad
    return array


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", ["reward", "observation", "successor"])
def test_what_an_environment_gives_is_looked_at_in_every_lane(kind: str, bad: float) -> None:
    """The frame is that of the lane, and the first such frame stays."""
    state = _absorb(INIT(0), STEP, 0)
    assert [int(frame) for frame in state.trouble] == [NEVER] * 3
    after = STEP._replace(**{kind: _broken(getattr(STEP, kind).shape, bad)})
    state = _absorb(_absorb(state, after, 3), after, 6)
    field = "reward" if kind == "reward" else "observation"
    assert {name: int(frame) for name, frame in state.trouble._asdict().items()} == {
        **dict.fromkeys(state.trouble._fields, NEVER),
        field: 4,
    }


def test_a_first_observation_is_looked_at_too() -> None:
    """It comes from a reset, before any step."""
    observation = _broken((3, 4), np.nan)
    assert int(_absorb(INIT(0, (), observation), STEP, 0).trouble.observation) == 1
    begun = BEGIN(INIT(0), observation, jax.random.key(0))
    assert int(_absorb(begun, STEP, 12).trouble.observation) == 13
