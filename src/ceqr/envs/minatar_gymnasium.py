"""MinAtar as a Gymnasium environment, so that others' agents can play exactly our games.

It plays `ceqr.envs.minatar` step by step, with its random keys: after `reset(seed=...)`, `key` is the JAX key of an
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

from ceqr.envs.base import TimeStep
from ceqr.envs.minatar import MinAtar, State

CELL = 8  # pixels a side of a rendered cell


class MinAtarEnv(gymnasium.Env[np.ndarray, np.int64]):
    """One game under one protocol: `paper` (the default), `released` or `standard`."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}  # noqa: RUF012

    def __init__(self, game: str, protocol: str = "paper", render_mode: str | None = None):
        self.env = MinAtar(game, protocol)
        self.render_mode = render_mode
        self.observation_space = spaces.Box(0, 1, self.env.observation_shape, np.bool_)  # pyright: ignore
        self.action_space = spaces.Discrete(self.env.num_actions)
        self.key: jax.Array | None = None  # of everything since the last seed
        self._steps = 0  # since the last seed
        self._resets = 0  # in the middle of an episode, since the last seed
        self._over = True
        self._state: State
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
            # A run under `released` has one seed, which its first reset drew and all its episodes replay.
            self._resets += self.env.protocol != "released"
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
        self._over = bool(after.terminated)
        self._observation, self._next_start = np.asarray(after.successor), np.asarray(after.observation)
        return self._observation, float(after.reward), self._over, False, {}

    def render(self) -> np.ndarray | None:
        if self.render_mode is None:
            return None
        channels = self._observation.shape[-1]
        # Of things in one cell the last channel shows; black is empty.
        seen = (self._observation * np.arange(1, channels + 1)).max(-1)
        return _palette(channels)[seen].repeat(CELL, 0).repeat(CELL, 1)


@partial(jax.jit, static_argnums=0)
def _reset(env: MinAtar, key: jax.Array) -> tuple[State, jax.Array]:
    return env.reset(key)


@partial(jax.jit, static_argnums=0)
def _step(env: MinAtar, state: State, action: jax.Array, key: jax.Array, number: jax.Array) -> tuple[State, TimeStep]:
    return env.step(state, action, jax.random.fold_in(jax.random.split(key)[1], jnp.asarray(number)))


def _palette(channels: int) -> np.ndarray:
    from matplotlib import colormaps

    colours = colormaps["hsv"](np.linspace(0, 1, channels, endpoint=False))[:, :3]
    return (255 * np.concatenate([np.zeros((1, 3)), colours])).astype(np.uint8)
