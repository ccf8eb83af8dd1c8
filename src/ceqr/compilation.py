"""How our programs are compiled: XLA's options for the CPU, where its defaults cost a good part of the speed."""

from collections.abc import Callable
from functools import cache
from typing import Any

import jax

# By default XLA hands matrix products and reductions to YNNPACK. For a product of a few rows with a large matrix of
# weights, which is what a frame consists of, Eigen is half as fast again, and so are XLA's own loops for reductions
# (docs/performance.md). The option names the kinds of operation that YNNPACK may have: we name one that we do not use.
CPU_OPTIONS = {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_CONVOLUTION"}


@cache
def compiler_options() -> dict[str, Any]:
    """The options for this machine; none where the installed XLA does not know them."""
    if jax.default_backend() != "cpu":
        return {}
    try:
        jax.jit(lambda x: x + 1, compiler_options=CPU_OPTIONS).lower(0.0).compile()
    except Exception:  # what it raises depends on the version, and without the option all still works
        return {}
    return CPU_OPTIONS


def jit(function: Callable[..., Any], **options: Any) -> Any:
    """`jax.jit` with our options for the compiler."""
    return jax.jit(function, compiler_options=compiler_options(), **options)
