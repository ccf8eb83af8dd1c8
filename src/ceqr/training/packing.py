"""Trees of many small arrays as a few arrays, for programs that are called thousands of times a second.

JAX takes about two microseconds for every array that goes into a program and comes out again; a loop's state has a
hundred of them, most of a few numbers. Packed, small arrays of one type lie end to end in one array; large ones stay as
they are. Random keys, which JAX hands over in Python, go as their data.
"""

import math
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

SMALL = 4_096  # numbers; up to this many an array is packed with others

Tree = TypeVar("Tree")


class Packing(Generic[Tree]):
    """How trees of one structure are packed."""

    def __init__(self, like: Tree):
        self._like = like
        leaves, self._tree = jax.tree.flatten(like)
        self._is_key = [jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in leaves]
        plain = [
            jax.eval_shape(jax.random.key_data, x) if key else x for x, key in zip(leaves, self._is_key, strict=True)
        ]
        self._shapes = [leaf.shape for leaf in plain]
        self._sizes = [math.prod(leaf.shape) for leaf in plain]
        large = [i for i, size in enumerate(self._sizes) if size > SMALL]
        small = [i for i, size in enumerate(self._sizes) if size <= SMALL]
        kinds = list(dict.fromkeys(plain[i].dtype for i in small))
        # What lies in each of the arrays: one large one, or all small ones of a type.
        self._places = [[i] for i in large] + [[i for i in small if plain[i].dtype == kind] for kind in kinds]

    @property
    def shapes(self) -> list[jax.ShapeDtypeStruct]:
        """Of the arrays."""
        return jax.eval_shape(self.pack, self._like)

    def pack(self, tree: Tree) -> list[jax.Array]:
        """The arrays of a tree, inside a program or outside."""
        leaves = [
            jax.random.key_data(x) if key else x for x, key in zip(jax.tree.leaves(tree), self._is_key, strict=True)
        ]
        return [
            leaves[places[0]] if len(places) == 1 else jnp.concatenate([leaves[i].reshape(-1) for i in places])
            for places in self._places
        ]

    def unpack(self, arrays: Sequence[Any]) -> Tree:
        """The tree again, of the same kind of arrays: JAX's or NumPy's."""
        leaves: list[Any] = [None] * len(self._shapes)
        for array, places in zip(arrays, self._places, strict=True):
            ends = np.cumsum([self._sizes[i] for i in places])
            for i, end in zip(places, ends, strict=True):
                part = array if len(places) == 1 else array[end - self._sizes[i] : end].reshape(self._shapes[i])
                leaves[i] = jax.random.wrap_key_data(part) if self._is_key[i] else part
        return jax.tree.unflatten(self._tree, leaves)
