"""Environments by name: `make("minatar/breakout")`.

Importing this package is cheap: JAX and the games are imported when an environment is built.
"""

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ceqr.envs.base import Environment, EnvState, MissingExtra, TimeStep

__all__ = [
    "ENVIRONMENTS",
    "MINATAR_GAMES",
    "MINATAR_PROTOCOLS",
    "EnvState",
    "Environment",
    "MissingExtra",
    "TimeStep",
    "make",
]

MINATAR_GAMES = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")
MINATAR_PROTOCOLS = ("paper", "released", "standard")
ENVIRONMENTS = tuple(f"minatar/{game}" for game in MINATAR_GAMES)


def make(name: str, **options: Any) -> "Environment":
    """Builds the environment of that name; `options` are those of its class."""
    if name not in ENVIRONMENTS:
        raise ValueError(nearest("environment", name, ENVIRONMENTS))
    from ceqr.envs.minatar import MinAtar

    return MinAtar(name.removeprefix("minatar/"), **options)


def nearest(kind: str, given: str, known: Iterable[str]) -> str:
    """The sentence about an unknown name: what was probably meant, and what there is."""
    known = tuple(known)
    close = difflib.get_close_matches(given, known, n=1, cutoff=0.4)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    return f"Unknown {kind} {given!r}{hint}; known are {', '.join(known)}."


def __getattr__(name: str) -> Any:
    if name in ("Environment", "EnvState", "MissingExtra", "TimeStep"):
        from ceqr.envs import base

        return getattr(base, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
