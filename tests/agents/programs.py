"""Helps the tests of the agents to compile little: their programs run a few times, so compiling is what they cost."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np


def jit(function: Callable[..., Any]) -> Any:
    """`jax.jit` with a compiler that spends no time on speed."""
    cpu = jax.default_backend() == "cpu"
    return jax.jit(function, compiler_options={"xla_backend_optimization_level": 0} if cpu else {})


def equal(a: Any, b: Any) -> bool:
    """Whether two PyTrees of arrays are equal to the bit."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(x, y) for x, y in pairs)
