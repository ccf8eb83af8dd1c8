"""Environments so small that their optimum and the distribution of their returns are known on paper, and an agent that
counts what it learns from."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import optax
from gymnasium import spaces

from ceqr.agents.base import (
    Agent,
    AgentState,
    Batch,
    Beliefs,
    Hyperparameters,
    Memory,
    Metrics,
    Successors,
    pick,
    td_target,
)
from ceqr.envs.base import TimeStep
from ceqr.networks import Linear, Torso, torso
from ceqr.runs import EpisodeRow
from ceqr.training.loop import Loop, LoopState
from ceqr.training.players import Player, make_player

Tree = TypeVar("Tree")


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


class GridState(NamedTuple):
    cell: jax.Array
    frame: jax.Array


@dataclass(frozen=True)
class Grid:
    """A walk over `size` x `size` cells from a corner, in four directions, truncated after `limit` steps.

    Leaving the grid leaves the cell as it is, and nothing ever pays but the far corner, which ends the episode.
    """

    size: int = 6
    limit: int = 12

    name = "probe/grid"
    num_actions = 4
    observation_dtype = np.float32

    @property
    def cells(self) -> int:
        return self.size**2

    @property
    def observation_shape(self) -> tuple[int, ...]:
        return (self.cells,)

    def _observe(self, cell: jax.Array) -> jax.Array:
        return jax.nn.one_hot(cell, self.cells, dtype=jnp.float32)

    def reset(self, key: jax.Array) -> tuple[GridState, jax.Array]:
        zero = jnp.int32(0)
        return GridState(zero, zero), self._observe(zero)

    def step(self, state: GridState, action: jax.Array, key: jax.Array) -> tuple[GridState, TimeStep]:
        way = jnp.array([[0, 1], [1, 0], [0, -1], [-1, 0]], jnp.int32)[action]
        place = jnp.clip(jnp.stack(jnp.divmod(state.cell, self.size)) + way, 0, self.size - 1)
        cell, frame = place[0] * self.size + place[1], state.frame + 1
        terminated = cell == self.cells - 1
        truncated = ~terminated & (frame >= self.limit)
        over = terminated | truncated
        after = GridState(jnp.where(over, 0, cell), jnp.where(over, 0, frame))
        reward = terminated.astype(jnp.float32)
        return after, TimeStep(self._observe(after.cell), self._observe(cell), reward, terminated, truncated)


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


def train_probe(loop: Loop, env: Any, frames: int, seeds: int = 1) -> LoopState:
    """Trains in this process, without a run directory; the states of all seeds, with a leading axis."""
    player = make_player(loop, env, range(seeds))
    play(player, frames)
    player.close()
    assert player.find_trouble() is None
    return join(player.groups)


def play(player: Player, *cuts: int) -> list[EpisodeRow]:
    """Plays a new player from frame 0 to each of the cuts in turn; the episodes that ended."""
    player.start()
    return go_on(player, 0, *cuts)


def go_on(player: Player, frame: int, *cuts: int) -> list[EpisodeRow]:
    """Plays from a frame to each of the cuts in turn; the episodes that ended."""
    rows = []
    for cut in cuts:
        while frame < cut:
            frame, ended = player.run(frame, cut)
            rows += ended
    return rows


def join(groups: Sequence[Tree]) -> Tree:
    """The states of all seeds in one tree, in memory of their own."""
    return jax.tree.map(lambda *leaves: jnp.copy(jnp.concatenate(leaves)), *groups)


class Counts(NamedTuple):
    """The statistics of `CountingAgent`; F features."""

    updates: jax.Array  # int32
    moment: jax.Array  # [F, F]: the sum of phi phi^T over all transitions learned from
    inverse: jax.Array  # [F, F]: of identity + moment, as of the last copy of the target network


class FeaturesAndValues(NamedTuple):
    features: jax.Array  # [batch, F]
    values: jax.Array  # [batch, A]


class CountingNetwork(eqx.Module):
    """A torso and one linear head, of which both can be read."""

    torso: Torso
    head: Linear

    def __call__(self, observation: jax.Array) -> FeaturesAndValues:
        features = self.torso(observation)
        return FeaturesAndValues(features, self.head(features))


@dataclass(frozen=True)
class CountingAgent(Agent):
    """Q-learning that counts the features phi it has seen: its doubt is sqrt(phi^T (I + sum phi phi^T)^-1 phi)."""

    hyper: Hyperparameters

    def init_params(self, key: jax.Array) -> CountingNetwork:
        torso_key, head_key = jax.random.split(key)
        body = torso(torso_key, self.observation_shape, self.hyper.hidden, self.hyper.torso)
        return CountingNetwork(body, Linear(head_key, body.features, self.num_actions))

    def init_statistics(self, params: CountingNetwork) -> Counts:
        size = params.torso.features
        return Counts(jnp.int32(0), jnp.zeros((size, size)), jnp.eye(size))

    def update_statistics(
        self, state: AgentState, outputs: FeaturesAndValues, successors: Successors, batch: Batch, frame: jax.Array
    ) -> Counts:
        counts: Counts = state.statistics
        seen = outputs.features.T @ outputs.features
        return counts._replace(updates=counts.updates + 1, moment=counts.moment + seen)

    def refresh_statistics(self, state: AgentState) -> Counts:
        counts: Counts = state.statistics
        identity = jnp.eye(len(counts.moment))
        factor = jnp.linalg.cholesky(identity + counts.moment)
        return counts._replace(inverse=jax.scipy.linalg.cho_solve((factor, True), identity))

    def beliefs(self, outputs: FeaturesAndValues, state: AgentState) -> Beliefs:
        features, counts = outputs.features, state.statistics
        doubt = jnp.sqrt(features @ counts.inverse @ features)
        return Beliefs(outputs.values, epistemic=jnp.full_like(outputs.values, doubt))

    def explore(
        self, outputs: FeaturesAndValues, beliefs: Beliefs, memory: Memory, frame: jax.Array, drawn: jax.Array
    ) -> jax.Array:
        return jnp.argmax(beliefs.mean + beliefs.epistemic * jax.random.normal(drawn, beliefs.mean.shape))

    def loss(
        self, outputs: FeaturesAndValues, successors: Successors, batch: Batch, state: AgentState
    ) -> tuple[jax.Array, Metrics]:
        target = td_target(batch, self.hyper.discount, successors.target.values.max(-1))
        error = target - pick(outputs.values, batch.action)
        return jnp.mean(optax.losses.huber_loss(error)), {"updates": state.statistics.updates.astype(jnp.float32)}


class Counting(gymnasium.Env[np.ndarray, Any]):
    """Observes (steps in this episode, episodes before it); pays 1 a step; ends after `length` steps."""

    observation_space = spaces.Box(0, np.inf, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, length: int = 5, ending: str = "truncated", raises_at: int = 0):
        self._length, self._ending, self._raises_at = length, ending, raises_at
        self._steps, self._episodes, self._played = 0, -1, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._steps, self._episodes = 0, self._episodes + 1
        return self._observe(), {}

    def _observe(self) -> np.ndarray:
        return np.array([self._steps, self._episodes], np.float32)

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._steps, self._played = self._steps + 1, self._played + 1
        if self._played == self._raises_at:
            raise RuntimeError("the joint is broken")
        over = self._steps == self._length
        return self._observe(), 1.0, over and self._ending == "terminated", over and self._ending == "truncated", {}


class HostChain(gymnasium.Env[np.ndarray, Any]):
    """`NoisyChain` without noise, truncated after two steps, on the host."""

    observation_space = spaces.Box(0, 1, (4,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._position = 0
        return np.eye(4, dtype=np.float32)[0], {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._position += 1
        gives_up = action == 0
        reward = 0.5 if gives_up else 0.0
        truncated = not gives_up and self._position == 2
        return np.eye(4, dtype=np.float32)[self._position], reward, gives_up, truncated, {}


class HostTreadmill(gymnasium.Env[np.ndarray, Any]):
    """`Treadmill` on the host: one state, every step pays 1, and every second step ends the episode."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, terminates: bool = False):
        self._terminates, self._steps = terminates, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._steps = 0
        return np.ones(1, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._steps += 1
        over = self._steps == 2
        return np.ones(1, np.float32), 1.0, over and self._terminates, over and not self._terminates, {}


COUNTING = "tests.probes:probe/Counting-v0"  # an id that Gymnasium finds by importing this module
gymnasium.register("probe/Counting-v0", entry_point="tests.probes:Counting")
