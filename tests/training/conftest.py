"""What the tests of training share."""

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(scope="module")
def quick_compiler() -> Iterator[None]:
    """Programs that compile in half the time: for tests of what is computed, not of how fast."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
