"""The replay buffer: a ring of observations in which each transition's successor is simply the next slot.

A buffer is a record of pure functions over a `ReplayState`. No observation is stored twice: the transition in
slot s leads to the observation in slot s + 1. Two details make that exact:

* Where an episode was truncated, its last observation still counts (the step bootstraps from it), so it keeps a
  slot of its own and the next episode starts one slot further. Such a slot begins no transition; `slots` maps the
  running number of a transition to its slot, so that sampling stays uniform over transitions.
* After termination the successor is never read, and the next episode overwrites its slot.

Of several steps (`n_step`), a transition is read as the first of them, the discounted sum of their rewards and where
the last one led. They end with their episode and with the newest transition; an episode was cut off where the next
running number is not in the next slot.

Boolean observations (MinAtar) are kept as bits. Where it is asked for, the smallest and the largest reward that was
ever added are remembered, which bound what a return can be.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from ceqr.agents.base import Batch


class ReplayState(NamedTuple):
    """Everything the buffer remembers; C = capacity + 1 slots."""

    observation: jax.Array  # [C, ...], bits for boolean observations
    action: jax.Array  # [C] int32
    reward: jax.Array  # [C] float32
    terminated: jax.Array  # [C] bool
    slots: jax.Array  # [C] int32: running number of a transition (mod C) -> its slot, counted without wrapping
    head: jax.Array  # slot of the next transition, counted without wrapping
    newest: jax.Array  # running number of the next transition: how many were ever added
    oldest: jax.Array  # running number of the oldest transition still whole
    extremes: Any = ()  # [2]: the smallest and the largest reward so far, and 0; an empty tuple where nobody asks


@dataclass(frozen=True)
class Replay:
    """A buffer of the last `capacity` transitions (a few less where truncated episodes end)."""

    capacity: int
    batch_size: int
    observation_shape: tuple[int, ...]
    observation_dtype: DTypeLike
    n_step: int = 1
    discount: float = 1.0  # of the rewards of several steps, and of returns
    bounded: bool = False  # whether batches tell what a return can be

    @property
    def _slots(self) -> int:
        return self.capacity + 1  # the newest transition's successor needs a slot, too

    def _pack(self, observation: jax.Array) -> jax.Array:
        return jnp.packbits(observation.reshape(-1)) if self.observation_dtype == jnp.bool_ else observation

    def _unpack(self, stored: jax.Array) -> jax.Array:
        if self.observation_dtype != jnp.bool_:
            return stored
        bits = jnp.unpackbits(stored, axis=-1, count=int(np.prod(self.observation_shape)))
        return bits.astype(jnp.bool_).reshape(*stored.shape[:-1], *self.observation_shape)

    def init(self) -> ReplayState:
        """An empty buffer."""
        one = jax.eval_shape(self._pack, jax.ShapeDtypeStruct(self.observation_shape, self.observation_dtype))
        n = self._slots
        return ReplayState(
            observation=jnp.zeros((n, *one.shape), one.dtype),
            action=jnp.zeros(n, jnp.int32),
            reward=jnp.zeros(n, jnp.float32),
            terminated=jnp.zeros(n, jnp.bool_),
            slots=jnp.zeros(n, jnp.int32),
            head=jnp.int32(0),
            newest=jnp.int32(0),
            oldest=jnp.int32(0),
            extremes=jnp.zeros(2) if self.bounded else (),
        )

    def add(
        self,
        state: ReplayState,
        observation: jax.Array,
        action: jax.Array,
        reward: jax.Array,
        terminated: jax.Array,
        truncated: jax.Array,
        successor: jax.Array,
    ) -> ReplayState:
        """Appends one transition, forgetting the oldest where the ring is full."""
        n = self._slots
        here, after = state.head % n, (state.head + 1) % n
        stored = state.observation.at[here].set(self._pack(observation))
        stored = stored.at[after].set(self._pack(successor))
        slots = state.slots.at[state.newest % n].set(state.head)

        # Slots up to head + 1 - n were just overwritten. A step moves the head by at most two, so at most two
        # transitions die with it.
        oldest = state.oldest
        for _ in range(2):
            oldest = oldest + (slots[oldest % n] <= state.head + 1 - n)
        return ReplayState(
            observation=stored,
            action=state.action.at[here].set(action.astype(jnp.int32)),
            reward=state.reward.at[here].set(reward),
            terminated=state.terminated.at[here].set(terminated),
            slots=slots,
            head=state.head + 1 + (truncated & ~terminated),
            newest=state.newest + 1,
            oldest=oldest,
            extremes=state.extremes if not self.bounded else _reaching(state.extremes, reward),
        )

    def sample(self, state: ReplayState, bits: jax.Array) -> Batch:
        """Transitions by random bits (uint32 [batch]): uniform, with replacement; the buffer must hold at least one.

        The remainder is less uneven than replay is large (2^-32 of it).
        """
        held = (state.newest - state.oldest).astype(jnp.uint32)
        return self._read(state, state.oldest + (bits % held).astype(jnp.int32))

    def _read(self, state: ReplayState, number: jax.Array, *lane: jax.Array) -> Batch:
        """The transitions of those running numbers, from those lanes if the arrays have such an axis."""
        n = self._slots
        slot = state.slots[*lane, number % n] % n
        batch = Batch(
            observation=self._unpack(state.observation[*lane, slot]),
            action=state.action[*lane, slot],
            reward=state.reward[*lane, slot],
            terminated=state.terminated[*lane, slot],
            successor=self._unpack(state.observation[*lane, (slot + 1) % n]),
            number=number,
        )
        if self.bounded:
            least, most = state.extremes.reshape(-1, 2).T
            batch = batch._replace(bounds=jnp.stack([least.min(), most.max()]) / (1 - self.discount))
        return batch if self.n_step == 1 else self._go_on(state, batch, *lane)

    def _go_on(self, state: ReplayState, batch: Batch, *lane: jax.Array) -> Batch:
        """Those transitions with the steps that follow on them."""
        n = self._slots
        newest, first = state.newest[*lane], state.slots[*lane, batch.number % n]
        reward, terminated, steps = batch.reward, batch.terminated, jnp.ones_like(batch.number)
        for k in range(1, self.n_step):
            slot = state.slots[*lane, (batch.number + k) % n]
            follows = (steps == k) & ~terminated & (batch.number + k < newest) & (slot == first + k)
            reward = reward + jnp.where(follows, self.discount**k * state.reward[*lane, slot % n], 0.0)
            terminated = terminated | (follows & state.terminated[*lane, slot % n])
            steps = steps + follows
        successor = self._unpack(state.observation[*lane, (first + steps) % n])
        return batch._replace(reward=reward, terminated=terminated, successor=successor, steps=steps)


def _reaching(extremes: jax.Array, reward: jax.Array) -> jax.Array:
    return jnp.stack([jnp.minimum(extremes[0], reward), jnp.maximum(extremes[1], reward)])


@dataclass(frozen=True)
class LaneReplay:
    """A ring for each of several environments that are played side by side; draws are uniform over all of them.

    A transition's successor is the next slot of its ring, so environments must not share one. Each ring keeps its
    share of `capacity`. With one lane it is `Replay`, draw for draw.
    """

    capacity: int
    batch_size: int
    observation_shape: tuple[int, ...]
    observation_dtype: DTypeLike
    lanes: int
    n_step: int = 1
    discount: float = 1.0
    bounded: bool = False

    @property
    def _ring(self) -> Replay:
        share = max(2, -(-self.capacity // self.lanes))
        shape, dtype = self.observation_shape, self.observation_dtype
        return Replay(share, self.batch_size, shape, dtype, self.n_step, self.discount, self.bounded)

    def init(self) -> ReplayState:
        """Empty rings: every array of a `ReplayState` with a leading axis of lanes."""
        return jax.tree.map(lambda leaf: jnp.stack([leaf] * self.lanes), self._ring.init())

    def add(self, state: ReplayState, *transitions: jax.Array) -> ReplayState:
        """Appends one transition to each ring: what `Replay.add` takes, with a leading axis of lanes."""
        return jax.vmap(self._ring.add)(state, *transitions)

    def cut(self, state: ReplayState, under_way: jax.Array) -> ReplayState:
        """Treats the newest transition of the lanes under the mask as truncated: their next one follows on nothing."""
        return state._replace(head=state.head + under_way)

    def sample(self, state: ReplayState, bits: jax.Array) -> Batch:
        """Transitions by random bits, uniform over all lanes; the buffer must hold at least one."""
        held = (state.newest - state.oldest).astype(jnp.uint32)  # rings differ by the slots that truncation takes
        last = jnp.cumsum(held)
        place = bits % last[-1]
        lane = jnp.sum(place[:, None] >= last, axis=1)
        drawn = state.oldest[lane] + (place - (last - held)[lane]).astype(jnp.int32)
        batch = self._ring._read(state, drawn, lane)
        return batch._replace(number=drawn * self.lanes + lane.astype(jnp.int32))
