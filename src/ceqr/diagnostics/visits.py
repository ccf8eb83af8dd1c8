"""What a run has visited, as far as its replay remembers: the last `replay_size` frames or so."""

from typing import Any, NamedTuple

import numpy as np

from ceqr.replay import ReplayState


class Visited(NamedTuple):
    """The transitions that replay holds."""

    observation: np.ndarray  # [n, ...] as it is stored: bits for observations that are true or false
    action: np.ndarray  # int [n]


def visited(replay: ReplayState) -> Visited:
    """All lanes' transitions that are still whole."""
    parts = []
    for lane in range(len(np.asarray(replay.head))):
        slots = np.asarray(replay.slots[lane])
        numbers = np.arange(int(replay.oldest[lane]), int(replay.newest[lane]))
        slot = slots[numbers % len(slots)] % len(slots)
        parts.append((np.asarray(replay.observation[lane])[slot], np.asarray(replay.action[lane])[slot]))
    return Visited(*(np.concatenate(each) for each in zip(*parts, strict=True)))


def as_stored(observation: np.ndarray) -> np.ndarray:
    """Observations as replay stores them, [n, ...]."""
    if observation.dtype != np.bool_:
        return observation
    return np.packbits(observation.reshape(len(observation), -1), axis=1)


def count_cells(env: Any, found: Visited) -> np.ndarray:
    """How often each action was taken in each cell of a maze, [cells, actions]."""
    number = {row.tobytes(): cell for cell, row in enumerate(as_stored(np.asarray(env.cell_observations())))}
    cells = np.array([number[row.tobytes()] for row in found.observation], int)
    counts = np.zeros((len(number), env.num_actions), int)
    np.add.at(counts, (cells, found.action), 1)
    return counts
