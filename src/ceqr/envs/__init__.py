"""Environments by name: `make("minatar/breakout")`, `make("gymnasium/CartPole-v1")`.

Importing this package is cheap: JAX and the games are imported when an environment is built.
"""

import ast
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ceqr.errors import nearest

if TYPE_CHECKING:
    from ceqr.envs.base import Environment, EnvState, MissingExtra, TimeStep
    from ceqr.envs.gymnasium import HostEnvironment

__all__ = [
    "ENVIRONMENTS",
    "MINATAR_GAMES",
    "MINATAR_PROTOCOLS",
    "EnvState",
    "Environment",
    "HostEnvironment",
    "MissingExtra",
    "TimeStep",
    "make",
]

MINATAR_GAMES = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")
MINATAR_PROTOCOLS = ("paper", "released", "standard")
ENVIRONMENTS = tuple(f"minatar/{game}" for game in MINATAR_GAMES)


HOST = "gymnasium/"


def is_host(name: str) -> bool:
    """Whether the name is one of a Gymnasium environment, which the host plays."""
    return name.startswith(HOST)


def make(name: str, **options: Any) -> Any:
    """Builds the environment of that name; `options` are those of its class, or of `gymnasium.from_id`.

    An `Environment` that can be compiled, or for Gymnasium's a `HostEnvironment`.
    """
    if is_host(name):
        from ceqr.envs.gymnasium import from_id

        return from_id(name.removeprefix(HOST), **options)
    if name not in ENVIRONMENTS:
        raise ValueError(_unknown(name))
    from ceqr.envs.minatar import MinAtar

    return MinAtar(name.removeprefix("minatar/"), **options)


def _unknown(name: str) -> str:
    from ceqr.envs.gymnasium import find_spec

    try:
        find_spec(name)
    except (ValueError, ImportError):
        return nearest("environment", name, (*ENVIRONMENTS, "gymnasium/<id>"))
    return f"Unknown environment {name!r}; Gymnasium has it as 'gymnasium/{name}'."


def parse_kwargs(pairs: Iterable[str]) -> dict[str, Any]:
    """Keyword arguments from "key=value" texts: Python literals, true, false, none, and plain words for the rest."""
    parsed: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key.isidentifier():
            raise ValueError(f"--env-kwargs takes key=value pairs, such as gravity=-9.8, not {pair!r}.")
        if key in parsed:
            raise ValueError(f"--env-kwargs gives {key} twice.")
        words = {"true": True, "false": False, "none": None}
        try:
            parsed[key] = words[text.lower()] if text.lower() in words else ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            parsed[key] = text
    return parsed


def __getattr__(name: str) -> Any:
    if name in ("Environment", "EnvState", "MissingExtra", "TimeStep"):
        from ceqr.envs import base

        return getattr(base, name)
    if name == "HostEnvironment":
        from ceqr.envs import gymnasium

        return gymnasium.HostEnvironment
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
