"""How our programs are compiled and run: XLA's options for the CPU, and several programs side by side on its cores."""

import os
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import cache
from pathlib import Path
from typing import Any

import jax

# By default XLA hands matrix products and reductions to YNNPACK. For a product of a few rows with a large matrix of
# weights, which is what a frame consists of, Eigen is half as fast again (docs/performance.md). The option names the
# kinds of operation that YNNPACK may have: we name one that we do not use.
_EIGEN = {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_CONVOLUTION"}
_ONE_THREAD = {"xla_cpu_multi_thread_eigen": False}


def jit(function: Callable[..., Any], *, one_thread: bool = False, **options: Any) -> Any:
    """`jax.jit` with our options for the compiler; `one_thread` for programs that run side by side, or are small."""
    return jax.jit(function, compiler_options=_compiler_options(one_thread), **options)


@cache
def _compiler_options(one_thread: bool) -> dict[str, Any]:
    """The options for this machine; none where the installed XLA does not know them."""
    if jax.default_backend() != "cpu":
        return {}
    options = {**_EIGEN, **(_ONE_THREAD if one_thread else {})}
    try:
        jax.jit(lambda x: x + 1, compiler_options=options).lower(0.0).compile()
    except Exception:  # what it raises depends on the version, and without the options all still works
        return {}
    return options


_kept: OrderedDict[Hashable, Any] = OrderedDict()
KEPT = 64  # programs, of some megabytes each


def kept(key: Hashable, make: Callable[[], Any]) -> Any:
    """What was made under that key before in this process, or is made now.

    Tracing a program takes seconds even where it needs not be compiled: a process that trains one run after the other
    should do it once. What is kept must hold no state of the run that it was made for.
    """
    try:
        _kept.move_to_end(key)
    except KeyError:
        _kept[key] = make()
        if len(_kept) > KEPT:
            _kept.popitem(last=False)
    except TypeError:  # an environment that cannot be a key
        return make()
    return _kept[key]


def use_one_thread() -> None:
    """Has this process's XLA run programs on the thread that calls them, if it has not begun to work yet.

    For programs of a fraction of a millisecond: waking another thread, and waiting for it, takes longer than they do
    (docs/performance.md). XLA reads the number of its threads from the environment variable NPROC when it begins.
    """
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    before = os.environ.get("NPROC")
    os.environ["NPROC"] = "1"
    try:
        jax.devices()
    finally:
        if before is None:
            del os.environ["NPROC"]
        else:
            os.environ["NPROC"] = before


def side_by_side(programs: int) -> int:
    """How many of so many programs should run at once: on a CPU as many as it has cores for us, else one."""
    return min(programs, cores()) if jax.default_backend() == "cpu" else 1


def cores() -> int:
    """How many cores of the machine are ours; XLA has as many threads, by the same two rules."""
    if os.environ.get("NPROC", "").isdecimal():
        return max(1, int(os.environ["NPROC"]))
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def use_compilation_cache() -> None:
    """Keeps compiled programs between starts, in CEQR_CACHE_DIR or the user's cache folder."""
    folder = cache_folder()
    if folder is None:
        return
    jax.config.update("jax_compilation_cache_dir", str(folder / "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def cache_folder() -> Path | None:
    """Where compiled programs are kept; None for a user without a home, who goes on without."""
    for variable, below in (("CEQR_CACHE_DIR", ""), ("XDG_CACHE_HOME", "ceqr")):
        if os.environ.get(variable):
            return Path(os.environ[variable], below)
    try:
        return Path.home() / ".cache" / "ceqr"
    except RuntimeError:
        return None
