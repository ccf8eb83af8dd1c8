"""Environments by name: `make("minatar/breakout")`, `make("gymnasium/CartPole-v1")`, `make("gymnax/CartPole-v1")`.

What stands before the slash is a family: a line below, and a file. Every environment has `name`, `num_actions`,
`observation_shape` and `observation_dtype`; a compiled one is an `Environment`, one of the host makes lanes (`vector`).
Importing this package is cheap: JAX and the games are imported when an environment is made.
"""

import ast
import importlib
import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ceqr.envs.families import Family, Option, call
from ceqr.errors import nearest

if TYPE_CHECKING:
    from ceqr.envs.base import Environment, EnvState, MissingExtra, TimeStep
    from ceqr.envs.gymnasium import HostEnvironment
    from ceqr.envs.observations import ObservationFormat

__all__ = [
    "ENVIRONMENTS",
    "FAMILIES",
    "MINATAR_GAMES",
    "MINATAR_PROTOCOLS",
    "EnvState",
    "Environment",
    "Family",
    "HostEnvironment",
    "MissingExtra",
    "Option",
    "TimeStep",
    "family",
    "first_action",
    "is_compiled",
    "make",
    "modules",
    "observation_format",
    "register",
]

MINATAR_GAMES = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")
MINATAR_PROTOCOLS = ("paper", "released", "standard")
ENVIRONMENTS = tuple(f"minatar/{game}" for game in MINATAR_GAMES)

FAMILIES: dict[str, Family] = {}


def register(family: Family) -> None:
    """Makes the environments of a family known by their names, to the command line too.

    Examples:
        >>> from ceqr import envs
        >>> corridors = envs.Family(
        ...     prefix="corridor",
        ...     make="corridors:make",  # imported when the first one is made
        ...     compiled=True,
        ...     about="corridors of my own",
        ...     names=("short", "long"),
        ... )
        >>> envs.register(corridors)
        >>> envs.family("corridor/short").about
        'corridors of my own'
        >>> _ = envs.FAMILIES.pop("corridor")
    """
    if family.prefix in FAMILIES:
        raise ValueError(f"There is already a family {family.prefix!r}.")
    FAMILIES[family.prefix] = family


register(
    Family(
        prefix="minatar",
        make="ceqr.envs.minatar:MinAtar",
        compiled=True,
        about="MinAtar's five games",
        names=MINATAR_GAMES,
        options={
            "protocol": Option("paper", "MinAtar's rules", choices=MINATAR_PROTOCOLS),
            "max_episode_frames": Option(0, "frames after which an episode is truncated", least=0),
        },
        preset="paper",
    )
)
register(
    Family(
        prefix="gymnasium",
        make="ceqr.envs.gymnasium:from_id",
        compiled=False,
        about="any id of Gymnasium with discrete actions",
        options=None,
        knows="ceqr.envs.gymnasium:knows",
        modules="ceqr.envs.gymnasium:modules",
    )
)
register(
    Family(
        prefix="gymnax",
        make="ceqr.envs.gymnax:from_id",
        compiled=True,
        about="any id of gymnax with discrete actions",
        options=None,
        knows="ceqr.envs.gymnax:knows",
    )
)
register(
    Family(
        prefix="maze",
        make="ceqr.envs.maze:from_name",
        compiled=True,
        about="mazes in which the truth about returns is known",
        names=("traps", "cliff"),
        options=None,  # each of them has its own
    )
)


def family(name: str) -> Family:
    """The family that a name belongs to; ValueError, saying what was probably meant, if there is none.

    Examples:
        >>> from ceqr import envs
        >>> envs.family("minatar/breakout").about
        "MinAtar's five games"
        >>> envs.family("CartPole-v1")
        Traceback (most recent call last):
            ...
        ValueError: Unknown environment 'CartPole-v1'; there is 'gymnasium/CartPole-v1' and 'gymnax/CartPole-v1'.
    """
    prefix, slash, _ = name.partition("/")
    if slash and prefix in FAMILIES:
        return FAMILIES[prefix]
    meant = [f"{each.prefix}/{name}" for each in FAMILIES.values() if each.knows and call(each.knows, name)]
    if meant:
        raise ValueError(f"Unknown environment {name!r}; there is {' and '.join(map(repr, meant))}.")
    raise ValueError(nearest("environment", name, (n for each in FAMILIES.values() for n in each.full_names)))


def make(name: str, **options: Any) -> Any:
    """The environment of that name, with options of its family; ValueError or `MissingExtra` if it cannot be made.

    Examples:
        >>> from ceqr import envs
        >>> env = envs.make("gymnasium/CartPole-v1")
        >>> env.num_actions, env.observation_shape
        (2, (4,))
    """
    of, rest = family(name), name.partition("/")[2]
    of.check(rest, options)
    made = call(of.make, rest, **options)
    if is_compiled(made) != of.compiled:
        what = "lacks" if is_compiled(made) else "has"
        raise TypeError(f"The family {of.prefix} says compiled={of.compiled}, but what it makes {what} 'vector'.")
    return made


def modules(name: str) -> tuple[str, ...]:
    """The modules that making an environment imports because its name says so: somebody's code, which then runs.

    Examples:
        >>> from ceqr import envs
        >>> envs.modules("gymnasium/my_package:Maze-v0"), envs.modules("gymnasium/CartPole-v1")
        (('my_package',), ())
    """
    prefix, slash, rest = name.partition("/")
    of = FAMILIES.get(prefix) if slash else None
    return () if of is None or of.modules is None else call(of.modules, rest)


def is_compiled(env: Any) -> bool:
    """Whether an environment is an `Environment`, pure functions that JAX compiles; otherwise the host plays it.

    Examples:
        >>> from ceqr import envs
        >>> envs.is_compiled(envs.make("gymnasium/CartPole-v1"))
        False
    """
    return not hasattr(env, "vector")


def observation_format(env: Any) -> "ObservationFormat":
    """How an environment's observations become what a network reads.

    Examples:
        >>> from ceqr import envs
        >>> form = envs.observation_format(envs.make("gymnasium/CartPole-v1"))
        >>> form.network_shape
        (4,)
    """
    from ceqr.envs.observations import ObservationFormat

    told = getattr(env, "observations", None)
    return told or ObservationFormat.of_network(env.observation_shape, env.observation_dtype)


def first_action(env: Any) -> int:
    """The number that an environment gives to its first action.

    Examples:
        >>> from ceqr import envs
        >>> envs.first_action(envs.make("gymnasium/CartPole-v1"))
        0
    """
    return getattr(env, "first_action", 0)


def parse_kwargs(pairs: Iterable[str]) -> dict[str, Any]:
    """Keyword arguments from "key=value" texts: Python literals, true, false, none, and plain words for the rest.

    Examples:
        >>> from ceqr.envs import parse_kwargs
        >>> parse_kwargs(["gravity=-9.8", "enable_wind=true", "render_mode=none"])
        {'gravity': -9.8, 'enable_wind': True, 'render_mode': None}
    """
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


def import_module(name: str) -> None:
    """Imports a module that the user named, also from the folder they are in; ValueError if it cannot be.

    Examples:
        >>> from ceqr.envs import import_module
        >>> import_module("no_such_module")
        Traceback (most recent call last):
            ...
        ValueError: The module 'no_such_module' cannot be imported: No module named 'no_such_module'.
    """
    here = os.getcwd()
    added = here not in sys.path
    if added:
        sys.path.append(here)
    try:
        importlib.import_module(name)
    except Exception as error:  # a relative name, a syntax error, whatever the module itself raises
        reason = str(error) if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
        raise ValueError(f"The module {name!r} cannot be imported: {' '.join(reason.split()).rstrip('.')}.") from error
    finally:
        if added and here in sys.path:
            sys.path.remove(here)


def __getattr__(name: str) -> Any:
    if name in ("Environment", "EnvState", "MissingExtra", "TimeStep"):
        from ceqr.envs import base

        return getattr(base, name)
    if name == "HostEnvironment":
        from ceqr.envs import gymnasium

        return gymnasium.HostEnvironment
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
