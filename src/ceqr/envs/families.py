"""What a family of environments is: a prefix, a way to make them, and the options that it takes."""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ceqr.errors import nearest

Function = str | Callable[..., Any]  # "module:function" is imported when it is called


@dataclass(frozen=True)
class Option:
    """An option of a family's environments; values have the type of the default.

    Examples:
        >>> from ceqr.envs import Option
        >>> slip = Option(0.1, "how often a step goes astray", least=0.0)
        >>> slip.check("slip", 0.25)
        >>> slip.check("slip", -1.0)
        Traceback (most recent call last):
            ...
        ValueError: slip must be at least 0.0, not -1.0.
    """

    default: Any
    help: str = ""
    choices: tuple[Any, ...] = ()
    least: float | None = None
    most: float | None = None

    def check(self, name: str, value: Any) -> None:
        """Raises ValueError in one sentence for a value that cannot be."""
        kind = type(self.default)
        if type(value) is not kind and not (kind is float and type(value) is int):
            raise ValueError(f"{name} must be of type {kind.__name__}, not {value!r}.")
        if self.choices and value not in self.choices:
            raise ValueError(nearest(name, str(value), map(str, self.choices)))
        if self.least is not None and not value >= self.least:
            raise ValueError(f"{name} must be at least {self.least}, not {value}.")
        if self.most is not None and not value <= self.most:
            raise ValueError(f"{name} must be at most {self.most}, not {value}.")


@dataclass(frozen=True)
class Family:
    """Environments whose names begin with one prefix.

    Examples:
        >>> from ceqr.envs import Family, Option
        >>> mazes = Family(
        ...     prefix="maze",
        ...     make="my_mazes:make",
        ...     compiled=True,
        ...     about="mazes of my own",
        ...     names=("small", "large"),
        ...     options={"slip": Option(0.1, "how often a step goes astray", least=0.0)},
        ... )
        >>> mazes.full_names
        ('maze/small', 'maze/large')
        >>> mazes.check("small", {"slip": 0.2})
    """

    prefix: str
    """What stands before the slash of a name."""
    make: Function
    """Called as make(name_without_prefix, **options). ValueError or `MissingExtra` for what cannot be made."""
    compiled: bool
    """Whether they are pure functions (`ceqr.envs.base.Environment`); otherwise the host plays them, in lanes."""
    about: str
    """What they are, in a phrase, for help and messages."""
    options: Mapping[str, Option] | None = field(default_factory=dict)
    """Every option that `make` takes; None if that depends on the environment, and `make` checks."""
    names: tuple[str, ...] = ()
    """The names there are, without prefix; none if there may be others."""
    preset: str | None = None
    """The preset of all of them; unless given, it follows from what they let an agent see."""
    knows: Function | None = None
    """Whether there is an environment of a name, asked only to word a mistake. It must not run others' code."""
    modules: Function | None = None
    """The modules that are imported to make an environment because its name says so."""

    def __post_init__(self) -> None:
        if not self.prefix.isidentifier():
            raise ValueError(f"The prefix of a family must be a word, not {self.prefix!r}.")

    @property
    def full_names(self) -> tuple[str, ...]:
        """The names with their prefix; a pattern, and what it stands for, where there may be others."""
        return tuple(f"{self.prefix}/{name}" for name in self.names) or (f"{self.prefix}/<id> ({self.about})",)

    def check(self, name: str, options: Mapping[str, Any]) -> None:
        """Raises ValueError in one sentence if there is no such name or option."""
        if self.names and name not in self.names:
            raise ValueError(nearest("environment", f"{self.prefix}/{name}", self.full_names))
        if self.options is not None:
            check_options(f"{self.prefix}/{name}", options, self.options)


def check_options(name: str, options: Mapping[str, Any], known: Mapping[str, Option]) -> None:
    """Raises ValueError in one sentence for the first option of an environment that there is not, or not so."""
    for key, value in options.items():
        if key not in known:
            has = ", ".join(f"{k} ({o.help})" if o.help else k for k, o in known.items())
            raise ValueError(f"{name} has no option {key!r}; it has {has or 'none'}.")
        known[key].check(key, value)


def call(function: Function, *args: Any, **kwargs: Any) -> Any:
    """Calls what "module:function" names, or the function itself.

    Examples:
        >>> from ceqr.envs.families import call
        >>> call("math:sqrt", 9.0)
        3.0
    """
    if not isinstance(function, str):
        return function(*args, **kwargs)
    module, _, attribute = function.partition(":")
    return getattr(importlib.import_module(module), attribute)(*args, **kwargs)
