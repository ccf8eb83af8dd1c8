"""Reinforcement learning that knows what it does not know.

Names are imported when they are first used, so that `import ceqr` is cheap.
"""

import importlib
from typing import TYPE_CHECKING, Any

from ceqr import gym

if TYPE_CHECKING:
    from ceqr.library import CEQRDQN, DQN, DUVN, QRDQN, UADQN, BootstrappedDQN
    from ceqr.monitor import DriftMonitor
    from ceqr.regression import EvidentialQuantileRegressor

__all__ = ["CEQRDQN", "DQN", "DUVN", "QRDQN", "UADQN", "BootstrappedDQN", "DriftMonitor", "EvidentialQuantileRegressor"]

ELSEWHERE = {"DriftMonitor": "ceqr.monitor", "EvidentialQuantileRegressor": "ceqr.regression"}


def __getattr__(name: str) -> Any:
    if name in __all__:
        module = ELSEWHERE.get(name, "ceqr.library")
        return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


gym.register_when_imported()
