"""From seeds to the numbers of a report: scores, aggregates over games, frames and seconds to a score, and notes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np

from ceqr import envs
from ceqr.config import RunConfig
from ceqr.errors import UserError
from ceqr.experiments import references, stats
from ceqr.experiments.comparison import Algorithm, Comparison, Entry, Setting, describe_hidden, describe_options
from ceqr.experiments.records import RunRecord, common_reach
from ceqr.experiments.references import Scale
from ceqr.experiments.stats import Interval

FEW_SEEDS = 10  # below, a reader is told so
BAND_SEEDS = 3  # from here on an interval over seeds is drawn
TARGETS = (("half of the best final score", 0.5), ("90 % of the best final score", 0.9))
AGGREGATES: dict[str, tuple[str, stats.Statistic]] = {
    "iqm": ("interquartile mean", stats.interquartile_mean),
    "median": ("median of the games' means", stats.median),
    "optimality_gap": ("optimality gap (less is better)", stats.optimality_gap),
}
PROFILE_POINTS = 101


@dataclass(frozen=True)
class Target:
    """How long an algorithm took to a score."""

    what: str
    score: float
    reached: int  # seeds that reached it
    seeds: int
    frames: float  # median over seeds; infinity if half of them or more did not reach it
    seconds: float


@dataclass(frozen=True)
class Group:
    """The seeds of one algorithm in one environment of one setting."""

    setting: Setting
    env: str
    algorithm: Algorithm
    label: str
    entries: Sequence[Entry]
    scale: Scale | None
    targets: tuple[Target, ...] = ()

    @property
    def seeds(self) -> int:
        return len(self.entries)

    @property
    def config(self) -> RunConfig[Any]:
        assert self.entries[0].run.config is not None
        return self.entries[0].run.config

    @property
    def finals(self) -> np.ndarray:
        return np.array([entry.seed.final for entry in self.entries])

    @property
    def final(self) -> Interval:
        return stats.mean_interval(self.finals)

    @property
    def best_mean(self) -> Interval:
        return stats.mean_interval(np.array([entry.seed.best_mean for entry in self.entries]))

    @property
    def best(self) -> float:
        return float(np.max([entry.seed.best for entry in self.entries]))

    @property
    def normalised(self) -> np.ndarray:
        assert self.scale is not None
        return stats.normalise(self.finals, self.scale.random, self.scale.reference)

    def curve(self, name: str) -> Interval:
        return stats.mean_interval(np.array([entry.seed.curves[name] for entry in self.entries]))

    @property
    def hidden(self) -> str:
        return describe_hidden(self.config.hyper.hidden)

    @property
    def parameters(self) -> int | None:
        return count_parameters(self.config)


@dataclass(frozen=True)
class Suite:
    """A setting with its groups, and what is aggregated over its games."""

    setting: Setting
    groups: Sequence[Group]
    games: tuple[str, ...] = ()  # those that aggregates are over
    aggregates: Mapping[str, Mapping[str, Interval]] = field(default_factory=dict)  # by statistic and label
    improvement: Mapping[tuple[str, str], Interval] = field(default_factory=dict)
    thresholds: np.ndarray = field(default_factory=lambda: np.zeros(0))
    profiles: Mapping[str, Interval] = field(default_factory=dict)

    @property
    def envs(self) -> list[str]:
        return sorted({group.env for group in self.groups})

    def of(self, env: str) -> list[Group]:
        return [group for group in self.groups if group.env == env]


@dataclass(frozen=True)
class Results:
    """All that a report tells."""

    records: Sequence[RunRecord]
    suites: Sequence[Suite]
    labels: Sequence[str]  # of the algorithms, in the order of their colours
    options: Mapping[str, str]  # of each
    notes: Sequence[str]


def compute(
    records: Sequence[RunRecord],
    comparison: Comparison,
    scales: Mapping[str, Scale],
    resamples: int,
) -> Results:
    """Everything that is computed from the seeds."""
    notes = _about_runs(records) + list(comparison.notes)
    suites = []
    for setting in comparison.settings:
        groups = []
        for env, by_algorithm in sorted(comparison.entries[setting].items()):
            scale = scales.get(env) or references.scale(env, setting.protocol)
            here = [
                Group(setting, env, algorithm, comparison.labels[algorithm], by_algorithm[algorithm], scale)
                for algorithm in comparison.algorithms(setting)
                if algorithm in by_algorithm
            ]
            groups += _with_targets(here)
        suites.append(_aggregate(setting, groups, resamples, notes))
    notes += _about_seeds(suites)
    options = {label: describe_options(algorithm) for algorithm, label in comparison.labels.items()}
    return Results(records, suites, list(comparison.labels.values()), options, notes)


def _with_targets(groups: Sequence[Group]) -> list[Group]:
    """The groups of one environment, each with how long it took to scores that are the same for all."""
    scores: list[tuple[str, float]] = []
    finals = [float(group.final.value) for group in groups]
    best = np.nanmax(finals) if np.isfinite(finals).any() else np.nan
    scale = groups[0].scale
    curves = np.concatenate([group.curve("score").value for group in groups])
    start = scale.random if scale else (np.nanmin(curves) if np.isfinite(curves).any() else np.nan)
    if best > start:
        scores += [(what, start + share * (best - start)) for what, share in TARGETS]
    if scale:
        scores.append(("the reference", scale.reference))
    return [_with(group, scores) for group in groups]


def _with(group: Group, scores: Iterable[tuple[str, float]]) -> Group:
    targets = []
    for what, score in scores:
        frames = np.array([entry.seed.frames_to(score) for entry in group.entries])
        seconds = np.array([e.run.seconds_to(f) for e, f in zip(group.entries, frames, strict=True)])
        reached = int(np.isfinite(frames).sum())
        targets.append(Target(what, score, reached, group.seeds, float(np.median(frames)), float(np.median(seconds))))
    return replace(group, targets=tuple(targets))


def _aggregate(setting: Setting, groups: Sequence[Group], resamples: int, notes: list[str]) -> Suite:
    """Aggregates over the games that all algorithms of the setting have played and that have a scale."""
    usable = [g for g in groups if g.scale is not None and np.isfinite(g.finals).all()]
    bare = sorted({group.env for group in groups if group.scale is None})
    if bare:
        notes.append(
            f"There is no scale for {', '.join(bare)} ({setting.describe_rules()}), so its scores are not normalised "
            "and enter no aggregate; --scales FILE.csv gives one."
        )
    if not usable:
        return Suite(setting, groups)
    labels = list(dict.fromkeys(group.label for group in groups))
    by_label = {label: {g.env: g.normalised for g in usable if g.label == label} for label in labels}
    by_label = {label: games for label, games in by_label.items() if games}
    common = sorted(set.intersection(*(set(games) for games in by_label.values())))
    played = {group.env for group in usable}
    if set(common) != played:
        notes.append(
            f"Not all algorithms have played {', '.join(sorted(played - set(common)))} ({setting.describe()}); "
            f"aggregates are over {', '.join(common) or 'no game'}."
        )
    if not common:
        return Suite(setting, groups)
    scores = {label: [games[env] for env in common] for label, games in by_label.items()}
    if len({len(game) for games in scores.values() for game in games}) > 1:
        notes.append(
            f"Algorithms or games differ in their number of seeds ({setting.describe()}); in the interquartile mean a "
            "game with more seeds has more weight."
        )
    aggregates = {
        key: {label: stats.bootstrap(statistic, games, resamples=resamples) for label, games in scores.items()}
        for key, (_, statistic) in AGGREGATES.items()
    }
    improvement = {
        (x, y): stats.bootstrap(stats.probability_of_improvement, scores[x], scores[y], resamples=resamples)
        for i, x in enumerate(scores)
        for y in list(scores)[i + 1 :]
    }
    highest = max(float(game.max()) for games in scores.values() for game in games)
    lowest = min(0.0, *(float(game.min()) for games in scores.values() for game in games))
    thresholds = np.linspace(lowest, max(highest * 1.02, 0.05), PROFILE_POINTS)

    def profile(games: stats.Scores) -> np.ndarray:
        return stats.performance_profile(games, thresholds)

    profiles = {label: stats.bootstrap(profile, games, resamples=resamples) for label, games in scores.items()}
    return Suite(setting, groups, tuple(common), aggregates, improvement, thresholds, profiles)


# What a reader must know.


def _about_runs(records: Sequence[RunRecord]) -> list[str]:
    notes = []
    unfinished = [r for r in records if r.problem and not r.damaged]
    damaged = [r for r in records if r.damaged]
    if unfinished:
        reach = common_reach(records)
        hint = f" With --frames {reach}, what all of them have reached is reported." if reach else ""
        notes.append(
            f"{len(unfinished):,} of {len(records):,} runs have not got as far as is reported and are in no figure; "
            f"they are listed under Runs.{hint}"
        )
    if damaged:
        notes.append(f"{len(damaged):,} of {len(records):,} runs are damaged and in no figure; see under Runs.")
    return notes


def _about_seeds(suites: Sequence[Suite]) -> list[str]:
    notes = []
    groups = [group for suite in suites for group in suite.groups]
    few = sorted({group.seeds for group in groups if group.seeds < FEW_SEEDS})
    if few:
        number = sum(group.seeds < FEW_SEEDS for group in groups)
        seeds = f"{few[0]}" if len(few) == 1 else f"{few[0]} to {few[-1]}"
        notes.append(
            f"Too few seeds: {number} of {len(groups)} groups have {seeds}, fewer than {FEW_SEEDS}. Differences may be "
            f"chance. With fewer than {BAND_SEEDS}, single seeds are drawn instead of an interval."
        )
    silent = [f"{g.label} on {g.env}" for g in groups if not np.isfinite(g.finals).all()]
    if silent:
        notes.append(f"Some seeds have not finished an episode, so there is no mean for {', '.join(silent)}.")
    return notes


def count_parameters(config: RunConfig[Any]) -> int | None:
    """How many numbers the agent of a run learns; None where that would take an environment that is not to be had."""
    return _count_parameters(config.agent, config.hyper, config.env, config.env_kwargs, config.protocol)


@cache
def _count_parameters(agent: str, hyper: Any, env: str, env_kwargs: tuple[str, ...], protocol: str) -> int | None:
    if envs.modules(env):  # to make it would run somebody's code
        return None
    from ceqr.training.players import make_loop

    try:
        made = RunConfig(hyper, env=env, env_kwargs=env_kwargs, agent=agent, protocol=protocol).make_env()
    except UserError:
        return None
    return make_loop(agent, hyper, made).agent.parameter_count()
