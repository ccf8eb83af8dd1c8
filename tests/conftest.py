"""What all tests share: one compilation cache, so that each small program is compiled once."""

import os
import signal
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from ceqr.arrays import ArrayFile

TINY = [
    "--hidden", "16", "--quantiles", "5", "--batch-size", "8", "--replay-size", "300",
    "--learning-starts", "60", "--target-period", "50", "--log-every", "50", "--quiet",
]  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    # Whoever starts tests in the background may have SIGINT ignored, and processes that tests start would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # One folder for all workers, kept between sessions: what it holds is named by the program and all versions.
    folder = Path(config.rootpath, ".pytest_cache", "programs")
    os.environ["CEQR_CACHE_DIR"] = str(folder)  # subprocesses, too
    jax.config.update("jax_compilation_cache_dir", str(folder / "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


@pytest.fixture
def tiny() -> list[str]:
    """Options of `ceqr train` for a run of seconds."""
    return list(TINY)


@pytest.fixture
def bytes_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of all arrays that are read from files from now on."""
    read: list[int] = []
    fill = ArrayFile._fill

    def count(self: ArrayFile, array: np.ndarray, *rest: Any) -> None:
        read.append(array.nbytes)
        fill(self, array, *rest)

    monkeypatch.setattr(ArrayFile, "_fill", count)
    return read
