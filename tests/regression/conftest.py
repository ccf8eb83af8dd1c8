"""What the tests of the regressor share: programs that are compiled quickly rather than well."""

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(autouse=True)
def _quick_compilation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Most tests here compile for a second and then train for a few milliseconds; the slow ones train for longer."""
    if "slow" in request.keywords:
        yield
        return
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # subprocesses, too
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
