"""Reinforcement learning that knows what it does not know.

Names are imported when they are first used, so that `import ceqr` is cheap.
"""

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ceqr.library import CEQRDQN, DQN, DUVN, QRDQN, UADQN, BootstrappedDQN  # noqa: F401
    from ceqr.regression import EvidentialQuantileRegressor  # noqa: F401

_WHERE = {  # public name -> the module that defines it
    "BootstrappedDQN": "ceqr.library",
    "CEQRDQN": "ceqr.library",
    "DQN": "ceqr.library",
    "DUVN": "ceqr.library",
    "EvidentialQuantileRegressor": "ceqr.regression",
    "QRDQN": "ceqr.library",
    "UADQN": "ceqr.library",
}

__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(importlib.import_module(_WHERE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_WHERE])


class _WhenGymnasiumComes(importlib.abc.MetaPathFinder):
    """Registers our environments as soon as Gymnasium is imported; importing it ourselves would slow `import ceqr`."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> Any:
        if fullname != "gymnasium":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def load_and_register(module: Any) -> None:
            load(module)
            _register_environments()

        spec.loader.exec_module = load_and_register
        return spec


def _register_environments() -> None:
    from ceqr import gym

    gym.register()


if "gymnasium" in sys.modules:
    _register_environments()
else:
    sys.meta_path.insert(0, _WhenGymnasiumComes())
