"""What all tests share: one compilation cache, so that each small program is compiled once."""

import os
from pathlib import Path

import jax
import pytest

TINY = [
    "--hidden", "16", "--quantiles", "5", "--batch-size", "8", "--replay-size", "300",
    "--learning-starts", "60", "--target-period", "50", "--log-every", "50", "--quiet",
]  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    # One folder for all workers, kept between sessions: what it holds is named by the program and all versions.
    folder = Path(config.rootpath, ".pytest_cache", "programs")
    os.environ["CEQR_CACHE_DIR"] = str(folder)  # subprocesses, too
    jax.config.update("jax_compilation_cache_dir", str(folder / "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


@pytest.fixture
def tiny() -> list[str]:
    """Options of `ceqr train` for a run of seconds."""
    return list(TINY)
