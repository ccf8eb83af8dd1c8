"""A compiled environment of ours as a Gymnasium environment, so that others' agents can play exactly our games.

It plays an `Environment` step by step, with its random keys: after `reset(seed=...)`, `key` is the JAX key of an
integer that the environment's NumPy generator draws; it is split in two, one for the first `reset` and one into which
every step's number is folded. An episode that ends has, as in training, already drawn the start of the next.
"""

from functools import partial
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from ceqr.envs.base import Environment, EnvState, TimeStep


class CompiledEnv(gymnasium.Env[np.ndarray, np.int64]):
    """An environment whose observations are booleans; who inherits from it says how it is made and rendered."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}  # noqa: RUF012
    replays: bool = False  # whether all episodes of a seed draw the same, so that a reset in the middle does, too

    def __init__(self, env: Environment, render_mode: str | None):
        self.env = env
        self.render_mode = render_mode
        self.observation_space = spaces.Box(0, 1, env.observation_shape, np.bool_)  # pyright: ignore
        self.action_space = spaces.Discrete(env.num_actions)
        self.key: jax.Array | None = None  # of everything since the last seed
        self._steps = 0  # since the last seed
        self._resets = 0  # in the middle of an episode, since the last seed
        self._over = True
        self._state: EnvState
        self._observation: np.ndarray  # of the step before, or the first of an episode
        self._next_start: np.ndarray

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        if seed is not None or self.key is None:
            self.key = jax.random.key(int(self.np_random.integers(2**31)))
            self._steps = self._resets = 0
            self._begin(jax.random.split(self.key)[0])
        elif self._over:
            self._observation = self._next_start
        else:
            self._resets += not self.replays
            first = jax.random.split(self.key)[0]
            self._begin(jax.random.fold_in(first, self._resets) if self._resets else first)
        self._over = False
        return self._observation, {}

    def _begin(self, key: jax.Array) -> None:
        self._state, observation = _reset(self.env, key)
        self._observation = np.asarray(observation)

    def step(self, action: np.int64 | int) -> tuple[np.ndarray, float, bool, bool, dict]:
        if self._over or self.key is None:
            raise gymnasium.error.ResetNeeded("The episode is over; call reset before the next step.")
        if not self.action_space.contains(action):
            raise gymnasium.error.InvalidAction(f"{action!r} is not in {self.action_space}.")
        self._state, after = _step(self.env, self._state, int(action), self.key, self._steps)
        self._steps += 1
        terminated, truncated = bool(after.terminated), bool(after.truncated)
        self._over = terminated or truncated
        self._observation, self._next_start = np.asarray(after.successor), np.asarray(after.observation)
        return self._observation, float(after.reward), terminated, truncated, {}


@partial(jax.jit, static_argnums=0)
def _reset(env: Environment, key: jax.Array) -> tuple[EnvState, jax.Array]:
    return env.reset(key)


@partial(jax.jit, static_argnums=0)
def _step(
    env: Environment, state: EnvState, action: jax.Array, key: jax.Array, number: jax.Array
) -> tuple[EnvState, TimeStep]:
    return env.step(state, action, jax.random.fold_in(jax.random.split(key)[1], jnp.asarray(number)))
