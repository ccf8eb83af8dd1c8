"""Epsilon-greedy agents: those whose estimates say nothing about what to explore. All of them can be double."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ceqr.agents.base import Agent, AgentState, Beliefs, Hyperparameters, Memory, Outputs


@dataclass(frozen=True)
class EpsilonGreedyHyperparameters(Hyperparameters):
    """Options of agents that explore at random."""

    epsilon_start: float = field(default=1.0, metadata={"least": 0.0, "most": 1.0})
    """Share of random actions in the first frame."""
    epsilon_end: float = field(default=0.03, metadata={"least": 0.0, "most": 1.0})
    """Share of random actions after --epsilon-frames."""
    epsilon_frames: int = field(default=100_000, metadata={"least": 1})
    """Frames over which the share of random actions falls in a straight line."""
    epsilon_hold: int = field(default=1, metadata={"least": 1})
    """Frames for which an action is random, or greedy, at the most: each time so many are drawn, and a random action is
    kept as long. Single random actions undo each other where one step changes little."""
    double: bool = False
    """Let the learning network choose the successor's action and the target network value it (van Hasselt 2016)."""

    def epsilon(self, frame: jax.Array) -> jax.Array:
        """The share of random actions at a frame."""
        done = jnp.minimum(frame / self.epsilon_frames, 1.0)
        return self.epsilon_start + (self.epsilon_end - self.epsilon_start) * done


class Whim(NamedTuple):
    """What is drawn in every frame, whether or not it is followed."""

    chance: jax.Array  # float32, uniform in [0, 1): below epsilon, the action is taken
    action: jax.Array  # any
    frames: Any = ()  # int32: how long it is kept, where it is kept


@dataclass(frozen=True)
class EpsilonGreedyAgent(Agent):
    """An agent that acts greedily but for a share of random actions."""

    hyper: EpsilonGreedyHyperparameters

    @property
    def double(self) -> bool:
        return self.hyper.double

    def draw(self, key: jax.Array) -> Whim:
        chance_key, action_key = jax.random.split(key)
        whim = Whim(jax.random.uniform(chance_key), jax.random.randint(action_key, (), 0, self.num_actions))
        if self.hyper.epsilon_hold == 1:
            return whim
        frames_key = jax.random.fold_in(key, 2)  # the two above are splits, and no folds
        return whim._replace(frames=jax.random.randint(frames_key, (), 1, self.hyper.epsilon_hold + 1))

    def init_memory(self, state: AgentState, key: jax.Array) -> Memory:
        """The whim that is followed, with the frames that are left of it: at the start none."""
        if self.hyper.epsilon_hold == 1:
            return ()
        return Whim(jnp.float32(0), jnp.int32(0), jnp.int32(0))

    def remember(self, memory: Memory, drawn: Whim) -> Memory:
        followed = jax.tree.map(lambda new, old: jnp.where(memory.frames > 0, old, new), drawn, memory)
        return followed._replace(frames=followed.frames - 1)

    def explore(self, outputs: Outputs, beliefs: Beliefs, memory: Memory, frame: jax.Array, drawn: Whim) -> jax.Array:
        whim = drawn if self.hyper.epsilon_hold == 1 else memory
        return jnp.where(whim.chance < self.hyper.epsilon(frame), whim.action, self.greedy(beliefs))
