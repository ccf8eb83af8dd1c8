"""Strange states: made of played ones by shuffling or noise, taken from another game, or never visited."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ceqr import envs
from ceqr.agents.base import AgentState, Beliefs, Choices, Draws
from ceqr.diagnostics.play import ROWS, Played, play

KINDS: dict[str, str] = {  # by key: what a reader is told
    "other_game": "another game",
    "shuffled": "shuffled",
    "weak_noise": "weak noise",
    "medium_noise": "medium noise",
    "strong_noise": "strong noise",
    "never_visited": "never visited",
}
FLIPPED = {"weak_noise": 0.01, "medium_noise": 0.05, "strong_noise": 0.2}  # of components that are true or false
DEVIATIONS = {"weak_noise": 0.1, "medium_noise": 0.5, "strong_noise": 2.0}  # of the others, in their own deviation
WANDER_STEPS, WANDER_LIMIT = 20, 1_000  # states of an episode of another game; its length at the most


class Strange(NamedTuple):
    """States, and the episode that each is from."""

    observation: np.ndarray
    episode: np.ndarray
    paired: bool  # whether these are the episodes of the ordinary states


def shuffled(observation: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Each state with its pixels (all channels together) or its components in an order of its own."""
    changed = np.empty_like(observation)
    for rows in _blocks(observation):
        part = observation[rows]
        flat = part.reshape(len(part), -1, part.shape[-1] if part.ndim == 4 else 1)
        order = np.argsort(rng.random(flat.shape[:2]), axis=1)
        changed[rows] = np.take_along_axis(flat, order[..., None], 1).reshape(part.shape)
    return changed


def noisy(observation: np.ndarray, kind: str, rng: np.random.Generator) -> np.ndarray:
    """Each state with components flipped, or moved by normal noise in units of what they vary by among the states.

    A component that never varies gets the mean deviation of those that do.
    """
    changed, dtype = np.empty_like(observation), observation.dtype
    if dtype == np.bool_:
        for rows in _blocks(observation):
            changed[rows] = observation[rows] ^ (rng.random(observation[rows].shape) < FLIPPED[kind])
        return changed
    scale = DEVIATIONS[kind] * _spread(observation)
    for rows in _blocks(observation):
        moved = observation[rows] + scale * rng.standard_normal(observation[rows].shape)
        if dtype.kind in "iu":
            moved = np.clip(np.rint(moved), np.iinfo(dtype).min, np.iinfo(dtype).max)
        changed[rows] = moved
    return changed


def _spread(observation: np.ndarray) -> np.ndarray:
    """The standard deviation of each component, or the mean of the others' where it is zero."""
    mean = observation.mean(0, dtype=np.float64)
    square = sum(((observation[rows] - mean) ** 2).sum(0) for rows in _blocks(observation))
    spread = np.sqrt(square / len(observation))
    varies = spread > 0
    return np.where(varies, spread, spread[varies].mean() if varies.any() else 1.0)


def _blocks(observation: np.ndarray) -> Iterator[slice]:
    """Some rows at a time: thousands of large images as numbers of eight bytes would fill the memory."""
    return (slice(start, start + ROWS) for start in range(0, len(observation), ROWS))


# Another game.


@dataclass(frozen=True)
class Wanderer:
    """Acts evenly at random; so much of an agent as `rollout` asks for."""

    num_actions: int

    def at_play(self, state: Any) -> Any:
        return state

    def init_memory(self, state: Any, key: jax.Array) -> Any:
        return ()

    def act_greedily(self, state: Any, observations: jax.Array) -> tuple[jax.Array, Beliefs]:
        nothing = jnp.zeros((len(observations), self.num_actions))
        return jnp.zeros(len(observations), jnp.int32), Beliefs(nothing)

    def draws(self, key: jax.Array) -> Draws:
        return Draws(key, jax.random.randint(key, (), 0, self.num_actions))

    def act(self, state: Any, memory: Any, observations: jax.Array, frames: jax.Array, draws: Draws) -> Choices:
        return Choices(draws.explore, self.act_greedily(state, observations)[1], (), memory)


def other_games(name: str, env: Any) -> list[str]:
    """Games of the same family whose images have the same shape and type, and so the same channels."""
    if len(env.observation_shape) != 3:
        return []
    form = (tuple(env.observation_shape), np.dtype(env.observation_dtype))
    others = []
    for other in envs.family(name).full_names if envs.family(name).names else ():
        if other != name:
            made = envs.make(other)
            if (tuple(made.observation_shape), np.dtype(made.observation_dtype)) == form:
                others.append(other)
    return others


def wander(name: str, seed: int, episodes: int) -> Strange:
    """States of a game that is played at random."""
    env = envs.make(name)
    nobody: Any = AgentState((), (), (), ())
    options = {"explore": True, "steps": WANDER_STEPS}
    played = play(Wanderer(env.num_actions), nobody, env, seed, episodes, WANDER_LIMIT, 1.0, **options)
    return Strange(played.observation, played.episode, False)


# What was never visited.


def unseen(observation: np.ndarray, replay: np.ndarray) -> np.ndarray:
    """Whether each state is in none of the rows of replay, [M]; both as rows of bytes."""
    known = {row.tobytes() for row in replay}
    return np.array([row.tobytes() not in known for row in observation], bool)


def made_of(played: Played, kind: str, rng: np.random.Generator) -> Strange:
    """Strange states out of those that were played."""
    made = shuffled(played.observation, rng) if kind == "shuffled" else noisy(played.observation, kind, rng)
    return Strange(made, played.episode, True)
