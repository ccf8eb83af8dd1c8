"""Reinforcement learning that knows what it does not know.

Names are imported when they are first used, so that `import ceqr` is cheap.
"""

import importlib
from typing import Any

_WHERE: dict[str, str] = {
    "EvidentialQuantileRegressor": "ceqr.regression",
}  # public name -> the module that defines it

__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(importlib.import_module(_WHERE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_WHERE])
