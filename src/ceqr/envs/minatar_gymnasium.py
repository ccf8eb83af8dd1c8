"""MinAtar as a Gymnasium environment, so that others' agents can play exactly our games."""

import numpy as np

from ceqr.envs.compiled_gymnasium import CompiledEnv
from ceqr.envs.minatar import MinAtar

CELL = 8  # pixels a side of a rendered cell


class MinAtarEnv(CompiledEnv):
    """One game under one protocol: `paper` (the default), `released` or `standard`."""

    def __init__(self, game: str, protocol: str = "paper", render_mode: str | None = None):
        super().__init__(MinAtar(game, protocol), render_mode)
        # A run under `released` has one seed, which its first reset drew and all its episodes replay.
        self.replays = protocol == "released"

    def render(self) -> np.ndarray | None:
        if self.render_mode is None:
            return None
        channels = self._observation.shape[-1]
        # Of things in one cell the last channel shows; black is empty.
        seen = (self._observation * np.arange(1, channels + 1)).max(-1)
        return _palette(channels)[seen].repeat(CELL, 0).repeat(CELL, 1)


def _palette(channels: int) -> np.ndarray:
    from matplotlib import colormaps

    colours = colormaps["hsv"](np.linspace(0, 1, channels, endpoint=False))[:, :3]
    return (255 * np.concatenate([np.zeros((1, 3)), colours])).astype(np.uint8)
