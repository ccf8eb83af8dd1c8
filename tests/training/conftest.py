"""What the tests of training share."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

SMALL = [
    "--agent", "dqn", "--hidden", "8", "--batch-size", "4", "--replay-size", "100", "--learning-starts", "20",
    "--target-period", "50", "--quiet",
]  # fmt: skip
"""Options of `ceqr train` for what compiles in no time."""


def assert_equal(a: Any, b: Any) -> None:
    """Two trees are equal to the bit."""

    def plain(leaf: Any) -> np.ndarray:
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return np.asarray(jax.random.key_data(leaf) if is_key else leaf)

    jax.tree.map(lambda x, y: np.testing.assert_array_equal(plain(x), plain(y)), a, b)
