"""Environments so small that their optimum and the distribution of their returns are known on paper."""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ceqr.envs.base import TimeStep
from ceqr.training.loop import CHUNK_FRAMES, NEVER, Loop, LoopState


class ChainState(NamedTuple):
    position: jax.Array
    frame: jax.Array


@dataclass(frozen=True)
class NoisyChain:
    """Three steps long, two actions. At each step, action 1 goes on and action 0 gives up.

    Giving up pays 0.5 and ends the episode. Going on pays nothing until the third step, which pays Normal(1.5, 1) and
    ends it. With discount 0.9 the return of always going on is 0.81 * Normal(1.5, 1) = Normal(1.215, 0.81 deviation) at
    the start and its mean is above 0.5 at every step, so going on is optimal everywhere.
    """

    length: int = 3
    pay: float = 1.5
    noise: float = 1.0
    consolation: float = 0.5
    limit: int = 0  # frames after which an episode is truncated; 0 for none

    name = "probe/noisy-chain"
    num_actions = 2
    observation_dtype = np.float32

    @property
    def observation_shape(self) -> tuple[int, ...]:
        return (self.length + 1,)

    def _observe(self, position: jax.Array) -> jax.Array:
        return jax.nn.one_hot(position, self.length + 1, dtype=jnp.float32)

    def reset(self, key: jax.Array) -> tuple[ChainState, jax.Array]:
        zero = jnp.int32(0)
        return ChainState(zero, zero), self._observe(zero)

    def step(self, state: ChainState, action: jax.Array, key: jax.Array) -> tuple[ChainState, TimeStep]:
        onward = action == 1
        position = state.position + 1
        arrived = onward & (position == self.length)
        pay = self.pay + self.noise * jax.random.normal(key)
        reward = jnp.where(arrived, pay, jnp.where(onward, 0.0, self.consolation)).astype(jnp.float32)
        terminated = ~onward | arrived
        frame = state.frame + 1
        truncated = ~terminated & (frame >= self.limit) if self.limit else jnp.zeros((), bool)
        over = terminated | truncated
        successor = self._observe(position)
        after = ChainState(jnp.where(over, 0, position), jnp.where(over, 0, frame))
        return after, TimeStep(self._observe(after.position), successor, reward, terminated, truncated)


@dataclass(frozen=True)
class Treadmill:
    """One state, no end: every step pays 1 and every `limit` steps the episode is truncated.

    Because truncation bootstraps, the value is 1 / (1 - discount) and not the sum of `limit` rewards. If it
    `terminates` instead, the value is that sum.
    """

    limit: int = 5
    terminates: bool = False

    name = "probe/treadmill"
    num_actions = 2
    observation_shape = (1,)
    observation_dtype = np.float32

    def reset(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.int32(0), jnp.ones(1)

    def step(self, state: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, TimeStep]:
        frame = state + 1
        over, no = frame >= self.limit, jnp.zeros((), bool)
        terminated, truncated = (over, no) if self.terminates else (no, over)
        return jnp.where(over, 0, frame), TimeStep(jnp.ones(1), jnp.ones(1), jnp.float32(1), terminated, truncated)


PROBE_OPTIONS = {  # enough to learn the noisy chain in some thousand frames
    "hidden": (64,),
    "quantiles": 20,
    "batch_size": 64,
    "replay_size": 5_000,
    "learning_starts": 200,
    "target_period": 100,
    "discount": 0.9,
    "learning_rate": 1e-3,
}


def train_probe(loop: Loop, frames: int, seeds: int = 1) -> LoopState:
    """Trains in this process, without a run directory."""
    starts = loop.agent.hyper.learning_starts
    states = jax.jit(loop.init_seeds)(jnp.arange(seeds))
    programs = {
        learning: jax.jit(partial(loop.chunk, learning=learning), donate_argnums=0) for learning in (False, True)
    }
    frame = 0
    while frame < frames:
        end = min(frame + CHUNK_FRAMES, frames, starts if frame < starts else frames)
        states, _ = programs[frame >= starts](states, jnp.int32(frame), jnp.int32(end))
        frame = end
    assert (np.asarray(states.nonfinite) == NEVER).all()
    return states
