"""Runs side by side: every measure with its interval, what a reader must know of them, and all of it as JSON."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ceqr.calibrate import COVERAGE, MISSING
from ceqr.config import RunConfig
from ceqr.diagnostics import ood
from ceqr.diagnostics.exploration import PAPER_DIFFERENCE, PAPER_NONGREEDY, Exploration
from ceqr.diagnostics.measures import LEVELS, Related, Statistic, auroc, estimate, miscalibration_area, related
from ceqr.diagnostics.subject import Subject
from ceqr.experiments.stats import Interval

FORMAT = 1  # of diagnostics.json
FEW_DISTINCT = 0.5  # share of the episodes that differ, below which a reader is told


class Measure(NamedTuple):
    """A number of which every episode has one."""

    title: str  # of a panel
    column: str  # of a table
    statistic: Statistic = lambda mean: mean
    share: bool = False  # of one; shown in percent


MEASURES: dict[str, Measure] = {
    "td_evidential": Measure("TD targets in the evidential interval", "TD targets, evidential (%)", share=True),
    "td_quantiles": Measure("TD targets in the quantiles' interval", "TD targets, quantiles (%)", share=True),
    "returns": Measure("returns in the quantiles' interval", "returns, quantiles (%)", share=True),
    "returns_evidential": Measure("returns in the evidential interval", "returns, evidential (%)", share=True),
    "exact": Measure("exact returns in the quantiles' interval", "exact returns, quantiles (%)", share=True),
    "miscalibration": Measure("miscalibration area", "miscalibration area", miscalibration_area),
    "exact_miscalibration": Measure(
        "miscalibration area, exact returns", "miscalibration area, exact", miscalibration_area
    ),
    "sharpness": Measure("sharpness", "sharpness", np.sqrt),
    "width": Measure("width of the quantiles' interval", "width"),
    "bias": Measure("value minus return", "value minus return"),
    "exact_bias": Measure("value minus exact value", "value minus exact value"),
}
COVERAGES = tuple(name for name, measure in MEASURES.items() if measure.share)
PAIR_TITLES = {
    "aleatoric_spread": "aleatoric and true spread",
    "epistemic_rarity": "epistemic and 1/√visits",
    "aleatoric_rarity": "aleatoric and 1/√visits",
    "epistemic_spread": "epistemic and true spread",
    "truths": "true spread and 1/√visits",
}
REASON_OF = {"exact_miscalibration": "exact", "exact_bias": ""}  # measures that are absent for another's reason


@dataclass(frozen=True)
class RunDiagnosis:
    """One run, with all of its seeds."""

    path: Path
    label: str
    config: RunConfig[Any]
    subjects: Sequence[Subject]
    exploration: Sequence[Exploration]  # of each seed, in the same order

    @property
    def frame(self) -> int:
        return self.subjects[0].frame

    @property
    def env(self) -> str:
        return self.config.describe_env()

    @cached_property
    def total(self) -> Interval:
        """The undiscounted return of greedy episodes."""
        return estimate([each.totals for each in self.subjects])

    @cached_property
    def measures(self) -> dict[str, Interval]:
        """Those that every seed has."""
        found = {}
        for name, measure in MEASURES.items():
            per_seed = [each.per_episode.get(name) for each in self.subjects]
            if all(each is not None for each in per_seed):
                found[name] = estimate(per_seed, measure.statistic)  # pyright: ignore[reportArgumentType]
        return found

    def reliability(self, name: str) -> Interval | None:
        """Observed proportions at LEVELS: of `miscalibration` or `exact_miscalibration`."""
        per_seed = [each.per_episode[name] for each in self.subjects if name in each.per_episode]
        return estimate(per_seed) if len(per_seed) == len(self.subjects) else None

    @cached_property
    def aurocs(self) -> dict[str, Interval]:
        """By kind of strange state."""
        kinds = [kind for kind in ood.KINDS if all(kind in each.contrasts for each in self.subjects)]
        return {kind: auroc([each.contrasts[kind] for each in self.subjects]) for kind in kinds}

    @cached_property
    def related(self) -> Related | None:
        points = [each.points for each in self.subjects if each.points is not None]
        return related(points) if len(points) == len(self.subjects) else None

    @cached_property
    def tenths(self) -> np.ndarray | None:
        """Coverage of returns by tenths of an episode, the mean over seeds."""
        known = [each.tenths for each in self.subjects if each.tenths is not None]
        return np.mean(known, axis=0) if len(known) == len(self.subjects) else None

    def mean_of(self, name: str) -> float:
        """A number of `Exploration`, the mean over seeds; the range's ends are those of all seeds."""
        pick = {"nongreedy_least": min, "nongreedy_most": max}.get(name, np.mean)
        return float(pick([getattr(each, name) for each in self.exploration]))

    def reason(self, name: str) -> str:
        """Why something is not there."""
        name = REASON_OF.get(name, name)
        return next((each.absent[name] for each in self.subjects if name in each.absent), "")

    def to_json(self) -> dict[str, Any]:
        return {
            "run": str(self.path),
            "label": self.label,
            "agent": self.config.agent,
            "env": self.env,
            "frame": self.frame,
            "seeds": [_seed_json(each, trained) for each, trained in zip(self.subjects, self.exploration, strict=True)],
            "return": _plain(self.total),
            **{name: _plain(value) for name, value in self.measures.items()},
            "reliability": _curve(self.reliability("miscalibration")),
            "exact_reliability": _curve(self.reliability("exact_miscalibration")),
            "returns_by_tenth": None if self.tenths is None else [_number(each) for each in self.tenths],
            "auroc": {kind: _plain(value) for kind, value in self.aurocs.items()},
            "correlation": None
            if self.related is None
            else {kind: {k: _plain(v) for k, v in found.items()} for kind, found in self.related._asdict().items()},
            "absent": {k: self.reason(k) for k in dict.fromkeys(k for each in self.subjects for k in each.absent)},
        }


def _seed_json(subject: Subject, trained: Exploration) -> dict[str, Any]:
    single = {name: _plain(estimate([each], MEASURES[name].statistic)) for name, each in subject.per_episode.items()}
    shares = {name: _number(value) for name, value in vars(trained).items() if name != "curves"}
    return {
        "seed": subject.seed,
        "episodes": len(subject.totals),
        "distinct": subject.distinct,
        "cut": subject.cut,
        "return_known": subject.known,
        "return": _plain(estimate([subject.totals])),
        **single,
        "auroc": {kind: _plain(auroc([each])) for kind, each in subject.contrasts.items()},
        "other_game": subject.game or None,
        "points": 0 if subject.points is None else len(subject.points.group),
        "training": shares,
    }


def _number(value: Any) -> float | None:
    return float(value) if math.isfinite(value) else None


def _plain(value: Interval) -> dict[str, float | None]:
    return {name: _number(each) for name, each in value._asdict().items()}


def _curve(value: Interval | None) -> dict[str, list[float | None]] | None:
    if value is None:
        return None
    return {"level": LEVELS.tolist(), **{k: [_number(each) for each in v] for k, v in value._asdict().items()}}


@dataclass(frozen=True)
class Diagnosis:
    """All runs, and how they were examined."""

    runs: Sequence[RunDiagnosis]
    episodes: int
    limit: int

    @property
    def envs(self) -> list[str]:
        return list(dict.fromkeys(run.env for run in self.runs))

    @property
    def notes(self) -> list[str]:
        """What a reader must know before the numbers."""
        notes = []
        for run in self.runs:
            if run.frame < run.config.frames:
                notes.append(f"{run.label} is unfinished: it is shown at frame {run.frame:,} of {run.config.frames:,}.")
            distinct = min(each.distinct for each in run.subjects)
            if distinct < FEW_DISTINCT * self.episodes:
                notes.append(
                    f"Of {self.episodes:,} episodes of {run.label} {distinct:,} differ: with so little chance in its "
                    "world, its numbers are of these few, and their intervals say little."
                )
            cut = sum(each.cut for each in run.subjects)
            if cut:
                notes.append(
                    f"{cut:,} of {self.episodes * len(run.subjects):,} episodes of {run.label} were cut off; of their "
                    f"returns those count of which at most {100 * MISSING:g} % is missing."
                )
        for env in self.envs:
            here = [run for run in self.runs if run.env == env]
            differ = [
                what
                for what, values in (
                    ("frames", {run.frame for run in here}),
                    ("sizes of the network", {run.config.hyper.hidden for run in here}),
                    ("discounts", {run.config.hyper.discount for run in here}),
                )
                if len(values) > 1
            ]
            if differ:
                notes.append(f"Runs on {env} differ in {' and '.join(differ)}.")
        seeds = sorted({len(run.subjects) for run in self.runs})
        several = " to ".join(map(str, dict.fromkeys((seeds[0], seeds[-1]))))
        notes.append(
            "Intervals are 95 %, from a bootstrap over episodes of play. They are of these agents; another seed may "
            f"differ by more, and a run here has {several} seed{'s' if seeds[-1] > 1 else ''}."
        )
        return notes

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "episodes": self.episodes,
            "max_episode_frames": self.limit,
            "coverage": COVERAGE,
            "paper": {"nongreedy": list(PAPER_NONGREEDY), "least_uncertain_difference": PAPER_DIFFERENCE},
            "notes": self.notes,
            "runs": [run.to_json() for run in self.runs],
        }
