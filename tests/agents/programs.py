"""What the tests of the agents learn from, and how they compare what came of it."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from ceqr.agents.base import Batch


def normal(seed: int, *shape: int) -> Any:
    """Standard normal numbers, made by NumPy: with its arrays nothing is compiled outside a program."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def make_batch(action: Sequence[int], terminated: Sequence[bool], size: int, seed: int = 0) -> Any:
    """A `Batch` of transitions between random vectors of that size, with random rewards."""
    rows = len(action)
    observation, successor = normal(seed, 2, rows, size)
    number, reward = np.arange(rows), normal(seed + 1, rows)
    fields: Any = (observation, np.array(action), reward, np.array(terminated), successor, number)
    return Batch(*fields)


def equal(a: Any, b: Any) -> bool:
    """Whether two PyTrees of arrays are equal to the bit."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(x, y) for x, y in pairs)
