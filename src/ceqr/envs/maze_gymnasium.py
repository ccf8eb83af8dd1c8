"""Mazes as Gymnasium environments; options are those of `ceqr.envs.maze`, `max_episode_frames` included."""

from typing import Any

import numpy as np

from ceqr.envs import make
from ceqr.envs.compiled_gymnasium import CompiledEnv
from ceqr.envs.maze import Maze


class MazeEnv(CompiledEnv):
    """A maze; `env` is the compiled one, which knows the truth."""

    env: Maze

    def __init__(self, maze: str, render_mode: str | None = None, **options: Any):
        super().__init__(make(f"maze/{maze}", **options), render_mode)

    def render(self) -> np.ndarray | None:
        if self.render_mode is None:
            return None
        return self.env.picture(int(self.env.cell_of(self._observation)))
