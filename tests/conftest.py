"""What all tests share: a compiler in a hurry, and one compilation cache, so that each program is compiled once."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from ceqr import compilation
from ceqr.arrays import ArrayFile
from tests.browsing import CHROMIUM, Visit, Visiting
from tests.browsing import FLAGS as FLAGS_OF_CHROMIUM

# Most programs run for milliseconds, so compiling is what they cost: with these flags a fifth of what it costs without.
QUICK = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 1,
}
FLAGS = " ".join(f"--{name}={str(value).lower()}" for name, value in QUICK.items())
# What XLA does without them, for programs that run for longer.
THOROUGH = {
    "xla_backend_optimization_level": 3,
    "xla_llvm_disable_expensive_passes": False,
    "xla_cpu_use_fusion_emitters": True,
    "xla_cpu_parallel_codegen_split_count": 32,
}

TINY = [
    "--hidden", "16", "--quantiles", "5", "--batch-size", "8", "--replay-size", "300",
    "--learning-starts", "60", "--target-period", "50", "--log-every", "50", "--quiet",
]  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    # Whoever starts tests in the background may have SIGINT ignored, and processes that tests start would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not hasattr(config, "workerinput"):  # xdist's workers inherit them
        _compile_quickly()
    # One folder for all workers, kept between sessions: what it holds is named by the program and all versions.
    folder = Path(config.rootpath, ".pytest_cache", "programs")
    os.environ["CEQR_CACHE_DIR"] = str(folder)  # subprocesses, too
    jax.config.update("jax_compilation_cache_dir", str(folder / "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Long ones first, so that workers end together.
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_report_header() -> str:
    reason = "as for a user: this XLA does not know the flags of a quick one"
    return f"compiler: {'in a hurry' if _in_a_hurry() else reason}"


def _in_a_hurry() -> bool:
    return FLAGS in os.environ.get("XLA_FLAGS", "")


def _compile_quickly() -> None:
    """Sets XLA's flags in the environment, where workers and subprocesses find them, too."""
    environment = {**os.environ, "XLA_FLAGS": f"{FLAGS} {os.environ.get('XLA_FLAGS', '')}"}
    # An XLA that does not know one of them ends its process, so let it be another one.
    trial = [sys.executable, "-c", "import jax; jax.devices()"]
    if subprocess.run(trial, env=environment, capture_output=True, check=False).returncode == 0:
        os.environ.update(environment)


def jit(function: Callable[..., Any], **options: Any) -> Any:
    """`jax.jit` that compiles as for a user, for tests of what arithmetic comes out of that."""
    return jax.jit(function, compiler_options=THOROUGH if _in_a_hurry() else {}, **options)


@pytest.fixture
def thorough_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiles our programs as for a user, for tests that train for longer than that takes."""
    if _in_a_hurry():
        options = compilation._compiler_options
        monkeypatch.setattr(compilation, "_compiler_options", lambda *given: {**options(*given), **THOROUGH})


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium."""
    if CHROMIUM is None:
        pytest.skip("there is no Chromium on this machine (Debian: apt-get install chromium)")
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (pip install playwright)")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS_OF_CHROMIUM)
        yield browser
        browser.close()


@pytest.fixture
def visiting(browser: Any) -> Iterator[Visiting]:
    """Opens the page of a folder; at the end nothing may have gone wrong with it."""
    visits: list[Visit] = []

    def go(folder: Path, size: str = "desk", scheme: str = "light") -> Visit:
        visits.append(Visit(browser, folder, size, scheme))
        return visits[-1]

    yield go
    for each in visits:
        each.close()


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
