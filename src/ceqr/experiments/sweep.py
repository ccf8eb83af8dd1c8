"""What a sweep is: a declaration, as TOML or as flags, and the runs that it stands for.

A declaration names agents, environments and seeds, and any option of `ceqr train` with one value or a list of values;
the runs are all combinations. An option that only some of the agents have multiplies the runs of those alone:
`calibration = ["paper", "none"]` makes two kinds of CEQR-DQN and leaves UA-DQN one. Tables `[[arms]]` each stand for a
sweep of their own over what is declared above them. A list is always several values: layers are a list in the list
(`hidden = [[256, 256]]`), and one layer is a number.
"""

import dataclasses
import hashlib
import itertools
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from ceqr import envs
from ceqr.agents import AGENTS, agent_classes
from ceqr.agents.base import LARGEST
from ceqr.config import RunConfig, default_config, of_type, require_trust
from ceqr.errors import UserError, nearest

Declaration = dict[str, Any]  # as in TOML; `complete` has made it whole
PRESETS = Path(__file__).parent / "presets"
METRICS = ("final", "mean")
WHOLE = {"seeds": (1, 1), "seed_start": (0, 0), "seeds_per_run": (1, 1), "cores": (0, 0)}  # default, least
OWN = ("agents", "envs", *WHOLE, "arms", "search")
SEARCH = {"trials": 20, "metric": "final", "batch": 4, "seed": 0}
NOT_SWEPT = ("hyper", "env", "agent", "seeds", "seed_start")  # a declaration has words of its own for them
LARGE_CORES = 2  # of a run whose updates are large; docs/how-to-sweep.md has the measurement
LONGEST_NAME = 120  # characters; folders may have some 255 bytes


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, to search in."""

    low: float
    high: float
    log: bool = False

    @classmethod
    def of(cls, name: str, table: Mapping[str, Any]) -> "Range":
        ends = [table.get(end) for end in ("low", "high")]
        numbers = all(isinstance(end, int | float) and not isinstance(end, bool) for end in ends)
        if not numbers or not set(table) <= {"low", "high", "log"} or not isinstance(table.get("log", False), bool):
            raise UserError(f"A range is {name} = {{ low = 0.001, high = 1.0, log = true }}, not {dict(table)}.")
        made = cls(**table)
        if not made.low < made.high or (made.log and made.low <= 0):
            raise UserError(
                f"The range of {name} must rise{', from above 0,' * made.log} not go {made.low}..{made.high}."
            )
        return made


@dataclass(frozen=True)
class RunSpec:
    """One run of a sweep: its folder's name, its configuration, and the cores it gets."""

    name: str
    config: RunConfig[Any]
    cores: int
    memory: int  # bytes, about

    @property
    def frames(self) -> int:
        """Frames of all its seeds."""
        return self.config.frames * self.config.seeds


@dataclass(frozen=True)
class Kind:
    """Runs that differ in their seeds alone; with a space, what is yet to be chosen."""

    name: str
    config: RunConfig[Any]
    space: dict[str, Any]  # by option: a Range, or a tuple of choices
    options: dict[str, Any]  # what was declared for it, with one value each


# Reading a declaration.


def find(given: str) -> Path:
    """The file of a declaration: a path, a sweep's directory, or the name of one that comes with the package."""
    path = Path(given)
    if (path / "sweep.toml").is_file():
        return path / "sweep.toml"
    if path.is_file():
        return path
    shipped = {each.stem: each for each in sorted(PRESETS.glob("*.toml"))}
    if given in shipped:
        return shipped[given]
    if path.is_dir():
        raise UserError(f"{path} is not a sweep: there is no {path / 'sweep.toml'}.")
    raise UserError(f"There is no file {given}, and no such sweep comes with ceqr (known are {', '.join(shipped)}).")


def read(path: Path) -> Declaration:
    """The declaration in a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}.") from error


def from_flags(pairs: Mapping[str, str], agents: Sequence[str]) -> Declaration:
    """What options on the command line declare: values apart by commas, layers by x, ranges as low..high[:log]."""
    types, declared = _types(agents), {}
    for name, text in pairs.items():
        if name not in types:
            raise UserError(_unknown(name, types))
        found = re.fullmatch(r"([^,]+?)\.\.([^,:]+)(:log)?", text)
        if found and types[name] in (int, float):
            low, high = (_from_text(name, each, types[name]) for each in found.groups()[:2])
            declared[name] = {"low": low, "high": high, "log": bool(found[3])}
        else:
            values = [_from_text(name, each, types[name]) for each in text.split(",")]
            declared[name] = values[0] if len(values) == 1 and not isinstance(values[0], list) else values
    return declared


def _from_text(name: str, text: str, kind: Any) -> Any:
    try:
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        if kind in (int, float):
            return kind(text)
        if get_origin(kind) is tuple and get_args(kind)[0] is int:
            layers = [int(each) for each in text.split("x")] if text else []
            return layers[0] if len(layers) == 1 else layers
        return text
    except (KeyError, ValueError) as error:
        what = {bool: "true or false", int: "whole numbers", float: "numbers"}.get(
            kind, "layers, such as 128 or 256x256,"
        )
        raise UserError(f"{_flag(name)} takes {what} with commas between several, not {text!r}.") from error


def complete(declared: Declaration) -> Declaration:
    """The declaration with every word of its own said, names spelled out and checked; options follow them."""
    whole: Declaration = {}
    rest = {key.replace("-", "_"): value for key, value in declared.items()}
    whole["agents"] = _agents(rest.pop("agents", "ceqr-dqn"))
    whole["envs"] = _envs(rest.pop("envs", "minatar/breakout"))
    for name, (default, least) in WHOLE.items():
        whole[name] = value = rest.pop(name, default)
        if type(value) is not int or not least <= value <= LARGEST:
            raise UserError(f"{_flag(name)} must be a whole number of at least {least}, not {value!r}.")
    arms, search = rest.pop("arms", None), rest.pop("search", None)
    for singular in ("agent", "env"):
        if singular in rest:
            raise UserError(f"A sweep names its {singular}s by {singular}s = [...], not by {singular}.")
    whole |= rest
    if arms is not None:
        if not isinstance(arms, list) or not arms or not all(isinstance(arm, dict) for arm in arms):
            raise UserError("arms must be tables of options, each under a line [[arms]].")
        whole["arms"] = [_complete_arm(arm) for arm in arms]
    if search is not None:
        whole["search"] = _complete_search(search)
    return whole


def _complete_arm(arm: Declaration) -> Declaration:
    arm = {key.replace("-", "_"): value for key, value in arm.items()}
    for name in (*WHOLE, "arms", "search"):
        if name in arm:
            raise UserError(f"{name} is for the whole sweep and cannot differ between [[arms]].")
    for name, check in (("agents", _agents), ("envs", _envs)):
        if name in arm:
            arm[name] = check(arm[name])
    return arm


def _complete_search(search: Any) -> Declaration:
    if not isinstance(search, dict):
        raise UserError("search must be a table: [search], with trials = 20 below it.")
    for name in search:
        if name not in SEARCH:
            raise UserError(nearest("word in [search]", name, SEARCH))
    whole = {**SEARCH, **search}
    for name, least in (("trials", 1), ("batch", 1), ("seed", 0)):
        if type(whole[name]) is not int or not least <= whole[name] <= LARGEST:
            raise UserError(f"search.{name} must be a whole number of at least {least}, not {whole[name]!r}.")
    if whole["metric"] not in METRICS:
        raise UserError(nearest("metric", str(whole["metric"]), METRICS))
    return whole


def _names(given: Any, what: str) -> list[str]:
    names = given.split(",") if isinstance(given, str) else given
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        raise UserError(f"{what} must be one name or several, not {given!r}.")
    return names


def _agents(given: Any) -> list[str]:
    names = list(AGENTS) if given == "all" else _names(given, "agents")
    for name in names:
        agent_classes(name)
    return list(dict.fromkeys(names))


def _envs(given: Any) -> list[str]:
    """Names of environments; family/all stands for all of a family that has a list of them."""
    found: dict[str, None] = {}
    for name in _names(given, "envs"):
        try:
            family = envs.family(name)
        except ValueError as error:
            raise UserError(str(error)) from error
        if name.partition("/")[2] == "all":
            if not family.names:
                raise UserError(f"{name} has no end: {family.prefix} stands for {family.about}; name those you mean.")
            found |= dict.fromkeys(family.full_names)
        else:
            found[name] = None
    return list(found)


# From a declaration to runs.


def kinds(declared: Declaration, trusted: Collection[str] | None = None) -> list[Kind]:
    """What a complete declaration combines, in its order, each checked.

    trusted: modules that environments may import by their names; all, unless given.
    """
    found: dict[str, Kind] = {}
    searched = "search" in declared
    arms = declared.get("arms", [{}])
    all_of_arms = {key for arm in arms for key in arm if key not in OWN}
    own_of_arms = {key for key in all_of_arms if len({repr((declared | arm).get(key)) for arm in arms}) > 1}
    for arm in arms:
        merged = declared | arm
        options = {k: _values(k, v) for k, v in merged.items() if k not in OWN}
        _check_known(options, merged["agents"])
        for name, values in options.items():
            if isinstance(values, Range) and not searched:
                raise UserError(f"{name} is a range, which can only be searched: give --search.")
        for env, agent in itertools.product(merged["envs"], merged["agents"]):
            if trusted is not None:
                require_trust(env, trusted, "The sweep")
            known = {k: v for k, v in options.items() if k in _types([agent])}
            open_ = {k: v for k, v in known.items() if isinstance(v, Range) or len(v) > 1}
            space = open_ if searched else {}
            axes = {k: v for k, v in known.items() if k not in space and not isinstance(v, Range)}
            for values in itertools.product(*axes.values()):
                chosen = dict(zip(axes, values, strict=True))
                told = [k for k in chosen if k in open_ or k in own_of_arms]
                name = _name([env, agent, *(f"{k}={_text(chosen[k])}" for k in told)])
                if name in found:
                    raise UserError(f"The sweep declares {name} twice.")
                found[name] = Kind(name, configure(agent, env, chosen), space, chosen)
    from ceqr.training.train import require_extras

    for kind in found.values():
        if searched and not kind.space:
            raise UserError(f"There is nothing to search for {kind.name}: give an option of it a range or a list.")
        kind.config.check()
        require_extras(kind.config)
    return list(found.values())


def runs_of(kind: Kind, declared: Declaration) -> Iterator[RunSpec]:
    """The runs of a kind, by their seeds."""
    seeds, start, together = declared["seeds"], declared["seed_start"], declared["seeds_per_run"]
    cores = declared["cores"] or cores_for(kind.config)
    for first in range(start, start + seeds, together):
        count = min(together, start + seeds - first)
        config = dataclasses.replace(kind.config, seeds=count, seed_start=first)
        config.share_env(kind.config)
        numbers = f"seed{first}" if count == 1 else f"seeds{first}-{first + count - 1}"
        yield RunSpec(_name([kind.name, numbers]), config, cores, memory_of(config))


def expand(declared: Declaration, trusted: Collection[str] | None = None) -> list[RunSpec]:
    """The runs of a complete declaration: the first seeds of all kinds first, so that all can be compared early."""
    by_kind = [list(runs_of(kind, declared)) for kind in kinds(declared, trusted)]
    specs = [spec for together in zip(*by_kind, strict=True) for spec in together]
    for spec in specs:
        spec.config.check_values()
    return specs


def configure(agent: str, env: str, chosen: Mapping[str, Any]) -> RunConfig[Any]:
    """The configuration of a run with these options; what is not given comes from the preset."""
    base = default_config(agent, chosen.get("preset"), env, chosen.get("env_kwargs", ()))
    own = {f.name for f in dataclasses.fields(base.hyper)}
    hyper = dataclasses.replace(base.hyper, **{k: v for k, v in chosen.items() if k in own})
    rest = {k: v for k, v in chosen.items() if k not in own and k != "preset"}
    config = dataclasses.replace(base, hyper=hyper, **rest)
    config.share_env(base)
    return config


def cores_for(config: RunConfig[Any]) -> int:
    """The cores that a run makes good use of."""
    from ceqr.training.players import is_small, make_loop

    return 1 if is_small(make_loop(config.agent, config.hyper, config.make_env()).agent) else LARGE_CORES


def memory_of(config: RunConfig[Any]) -> int:
    """Bytes that a run takes, about: what it keeps, and what a process of ours takes without."""
    from ceqr.config import training_memory
    from ceqr.memory import GIB

    agent_class, _ = agent_classes(config.agent)
    env = config.make_env()
    agent = agent_class(config.hyper, env.observation_shape, env.num_actions)
    return GIB // 2 + sum(training_memory(agent, env.observation_dtype)) * config.seeds


def _values(name: str, given: Any) -> Range | tuple[Any, ...]:
    if isinstance(given, dict):
        return Range.of(name, given)
    values = given if isinstance(given, list) else [given]
    if not values:
        raise UserError(f"{name} has no value; give one or several.")
    kind = _types(list(AGENTS)).get(name)
    if get_origin(kind) is tuple:
        values = [each if isinstance(each, list | tuple) else [each] for each in values]
    if kind is not None:
        try:
            values = [of_type(name, each, kind) for each in values]
        except ValueError as error:
            raise UserError(str(error)) from error
    return tuple(dict.fromkeys(values))


def _check_known(options: Collection[str], agents: Sequence[str]) -> None:
    types = _types(agents)
    for name in options:
        if name not in types:
            raise UserError(_unknown(name, types))


def _types(agents: Sequence[str]) -> dict[str, Any]:
    """The options that a run of one of these agents has, with their types."""
    return {name: kind for agent in agents for name, kind in _types_of(agent_classes(agent)[1]).items()}


@cache
def _types_of(hyper: type) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in (RunConfig, hyper):
        hints = get_type_hints(each)
        found |= {f.name: hints[f.name] for f in dataclasses.fields(each) if f.name not in NOT_SWEPT}
    return found


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _unknown(name: str, types: Collection[str]) -> str:
    known = [_flag(each) for each in (*OWN[:6], *types)]
    return nearest("option", _flag(name), known)


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return "x".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _name(parts: Sequence[str]) -> str:
    """A name for a folder, the same for the same parts, and apart from others even where it had to be cut."""
    plain = "-".join(re.sub(r"[^\w.=+]+", "-", part).strip("-.") for part in parts)
    if len(plain) <= LONGEST_NAME:
        return plain
    return f"{plain[: LONGEST_NAME - 9]}-{hashlib.sha256('/'.join(parts).encode()).hexdigest()[:8]}"
