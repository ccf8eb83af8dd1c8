"""What may be compared: runs are sorted into settings, and within a setting into algorithms whose seeds are averaged.

A *setting* is what makes scores comparable: the environment with its options and protocol, the frames, and the size of
the network. Runs of two settings never meet in a panel, let alone in a mean. An *algorithm* is an agent with its
hyperparameters; those that are the default of the environment at hand (the paper's lambda_ep differs by game) do not
tell two algorithms apart, so that one algorithm can be followed through all games.
"""

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ceqr.agents import AGENTS
from ceqr.config import RunConfig
from ceqr.experiments.records import RunRecord, SeedRecord

PROTOCOLS = {
    "paper": "paper protocol (no sticky actions)",
    "released": "released protocol (no sticky actions, one environment seed replayed)",
    "standard": "standard protocol (sticky actions 0.1)",
}
LONGEST_LABEL = 2  # options that a label may name


class Setting(NamedTuple):
    """What runs must share for their scores to be comparable, but for the environment's name."""

    family: str  # of environments
    protocol: str  # empty where there is none
    env_kwargs: tuple[str, ...]
    max_episode_frames: int
    frames: int
    hidden: tuple[int, ...] | None  # None: networks of all sizes, at the user's own wish

    def describe_rules(self) -> str:
        """Protocol and options, for people."""
        parts = [PROTOCOLS.get(self.protocol, f"{self.protocol} protocol")] if self.protocol else []
        parts += self.env_kwargs
        parts += [f"episodes of at most {self.max_episode_frames:,} frames"] * bool(self.max_episode_frames)
        return ", ".join(parts) or "the environment's own rules"

    def describe_size(self) -> str:
        return "networks of several sizes" if self.hidden is None else describe_hidden(self.hidden)

    def describe(self) -> str:
        return f"{self.family}: {self.describe_rules()}, {self.frames:,} frames, {self.describe_size()}"


class Algorithm(NamedTuple):
    """An agent and those of its options that are not the default."""

    agent: str
    options: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Entry:
    """One seed of one run, where it belongs."""

    run: RunRecord
    seed: SeedRecord


@dataclass
class Comparison:
    """All seeds by setting, environment and algorithm, and what a reader must know about them."""

    entries: dict[Setting, dict[str, dict[Algorithm, list[Entry]]]]
    labels: dict[Algorithm, str]
    notes: list[str]

    @property
    def settings(self) -> list[Setting]:
        return sorted(self.entries, key=lambda s: (s.family, s.protocol, -s.frames, s.hidden or (), s.env_kwargs))

    def algorithms(self, setting: Setting) -> list[Algorithm]:
        """Those of a setting, in the order of their labels everywhere."""
        there = {a for by_algorithm in self.entries[setting].values() for a in by_algorithm}
        return [algorithm for algorithm in self.labels if algorithm in there]


def describe_hidden(hidden: tuple[int, ...]) -> str:
    return " and ".join(f"{units:,}" for units in hidden) + " hidden units" if hidden else "no hidden layer"


def compare(records: Iterable[RunRecord], across_capacity: bool = False) -> Comparison:
    """Sorts the runs that can be reported."""
    entries: dict[Setting, dict[str, dict[Algorithm, list[Entry]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    twice: list[str] = []
    for record in records:
        if record.problem or record.config is None:
            continue
        setting = setting_of(record.config, record.frames, across_capacity)
        group = entries[setting][record.config.env][algorithm_of(record.config, across_capacity)]
        known = {entry.seed.seed: entry.run for entry in group}
        for seed in record.seeds:
            if seed.seed in known:  # the same seed again is the same run again, not new evidence
                twice.append(f"seed {seed.seed} of {record.path} is also in {known[seed.seed].path}")
            else:
                group.append(Entry(record, seed))
    plain = {setting: {env: dict(groups) for env, groups in by_env.items()} for setting, by_env in entries.items()}
    labels = _labels(plain)
    notes = [_repeated(twice)] if twice else []
    notes += _sizes(plain, labels) if across_capacity else []
    return Comparison(plain, labels, notes + _apart(plain))


def _repeated(twice: Sequence[str]) -> str:
    more = f", and {len(twice) - 1:,} more" if len(twice) > 1 else ""
    return f"A seed that was run twice counts once: {twice[0]}{more}."


def _sizes(entries: dict[Setting, Any], labels: dict[Algorithm, str]) -> list[str]:
    """What the user asked for, and what it means."""
    sizes = {
        algorithm: group[0].run.config.hyper.hidden
        for by_env in entries.values()
        for groups in by_env.values()
        for algorithm, group in groups.items()
    }
    if len(set(sizes.values())) < 2:
        return []
    told = ", ".join(f"{label} {describe_hidden(sizes[algorithm])}" for algorithm, label in labels.items())
    return [f"Networks of different sizes share panels and aggregates, as asked for: {told}."]


def _apart(entries: dict[Setting, Any]) -> list[str]:
    """Why there are several settings, if there are."""
    if len(entries) < 2:
        return []
    reasons = [
        name
        for name, values in (
            ("environments' families", {s.family for s in entries}),
            ("protocols (sticky actions)", {s.protocol for s in entries}),
            ("environment options", {s.env_kwargs for s in entries}),
            ("limits of an episode", {s.max_episode_frames for s in entries}),
            ("frames", {s.frames for s in entries}),
            ("network sizes", {s.hidden for s in entries}),
        )
        if len(values) > 1
    ]
    return [
        f"The runs differ in {' and '.join(reasons)}, which makes their scores incomparable: they are in "
        f"{len(entries)} separate settings, and never averaged together."
    ]


def setting_of(config: RunConfig[Any], frames: int, across_capacity: bool = False) -> Setting:
    return Setting(
        family=config.env.partition("/")[0],
        protocol=config.rules,
        env_kwargs=tuple(sorted(config.env_kwargs)),
        max_episode_frames=config.max_episode_frames,
        frames=frames,
        hidden=None if across_capacity else config.hyper.hidden,
    )


def algorithm_of(config: RunConfig[Any], across_capacity: bool = False) -> Algorithm:
    """The agent with the options that are not what its environment would have by default."""
    hyper, options = config.hyper, {}
    for field in dataclasses.fields(hyper):
        value = getattr(hyper, field.name)
        usual = getattr(dataclasses.replace(hyper, **{field.name: field.default}).for_env(config.env), field.name)
        if value != usual and (across_capacity or field.name != "hidden"):
            options[field.name] = value
    if config.num_envs != RunConfig.num_envs:
        options["num_envs"] = config.num_envs
    return Algorithm(config.agent, tuple(sorted(options.items())))


def _labels(entries: dict[Setting, dict[str, dict[Algorithm, list[Entry]]]]) -> dict[Algorithm, str]:
    """A name for each algorithm: its agent's, with what tells it from others of that agent."""
    examples: dict[Algorithm, RunConfig[Any]] = {}
    for by_env in entries.values():
        for groups in by_env.values():
            for algorithm, group in groups.items():
                assert group[0].run.config is not None
                examples.setdefault(algorithm, group[0].run.config)
    by_agent: dict[str, list[Algorithm]] = defaultdict(list)
    order = list(AGENTS)
    for algorithm in sorted(examples, key=lambda a: (order.index(a.agent), len(a.options), str(a.options))):
        by_agent[algorithm.agent].append(algorithm)
    labels = {}
    for agent, algorithms in by_agent.items():
        presets = Counter(examples[algorithm].preset for algorithm in algorithms)
        differing = differing_options(algorithms)
        for number, algorithm in enumerate(algorithms, 1):
            config = examples[algorithm]
            own = [name for name, _ in algorithm.options if name in differing]
            named = differing if len(differing) <= LONGEST_LABEL else own
            if len(named) <= LONGEST_LABEL:
                told = ", ".join(f"{_words(n)} {_value(_option(algorithm, config, n))}" for n in named)
            elif presets[config.preset] == 1:
                told = f"preset {config.preset}"
            else:
                told = f"variant {number}"
            labels[algorithm] = f"{agent} ({told})" if told else agent
    return labels


def differing_options(algorithms: Iterable[Algorithm]) -> list[str]:
    """The options in which algorithms of one agent differ."""
    options = [dict(algorithm.options) for algorithm in algorithms]
    names = sorted({name for each in options for name in each})
    return [n for n in names if len({str(each.get(n)) if n in each else None for each in options}) > 1]


def _option(algorithm: Algorithm, config: RunConfig[Any], name: str) -> Any:
    given = dict(algorithm.options)
    if name in given:
        return given[name]
    return config.num_envs if name == "num_envs" else getattr(config.hyper, name)


def _words(name: str) -> str:
    return name.replace("_", " ")


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return "x".join(map(str, value)) or "none"
    return str(value)


def describe_options(algorithm: Algorithm) -> str:
    """All options that are not the default, for people."""
    return ", ".join(f"{_words(name)} {_value(value)}" for name, value in algorithm.options) or "the agent's defaults"
