"""What the tests of the regressor share: programs that are compiled quickly rather than well."""

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(scope="package", autouse=True)
def _quick_compilation() -> Iterator[None]:
    """Most tests here compile for a second or two and then train for a few milliseconds."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
