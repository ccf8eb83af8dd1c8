"""What is left of runs once a report has read them: `tables` reads it from their tables, `kept` from one file."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ceqr.config import RunConfig

GRID = 200  # points of a curve
METRICS = ("coverage", "epistemic", "aleatoric")  # columns of metrics.csv that a report shows

Columns = dict[str, np.ndarray]


@dataclass(frozen=True)
class SeedRecord:
    """What is left of one seed of a run."""

    seed: int
    episodes: int
    final: float  # mean return of the last 100 episodes
    best_mean: float  # highest mean return of 100 episodes in a row; NaN if there are fewer
    best: float  # highest return of an episode
    curves: Columns  # [GRID]: score, nongreedy and METRICS; NaN where there was nothing yet
    record_frames: np.ndarray  # frames at which the mean of 100 episodes was higher than ever before ...
    record_values: np.ndarray  # ... and how high

    def frames_to(self, score: float) -> float:
        """The first frame at which the mean of 100 episodes reached that score; infinity if it never did."""
        i = int(np.searchsorted(self.record_values, score))
        return float(self.record_frames[i]) if i < len(self.record_frames) else np.inf


@dataclass(frozen=True)
class RunRecord:
    """One run directory: how far it got, and its seeds if it can be reported."""

    path: Path
    config: RunConfig[Any] | None = None  # None: unreadable
    reached: int = 0  # frames it has trained
    frames: int = 0  # frames that are reported
    seeds: tuple[SeedRecord, ...] = ()
    problem: str = ""  # why the run is in no figure; a sentence
    damaged: bool = False  # whether that is more than being unfinished
    whole: bool = False  # whether it can be reported for all its frames alone
    timing: tuple[np.ndarray, np.ndarray] = (np.zeros(0), np.zeros(0))  # frames and the seconds until each

    @property
    def state(self) -> str:
        if self.damaged:
            return "damaged"
        if self.config is None or self.reached < self.config.frames:
            return "unfinished"
        return "finished"

    def seconds_to(self, frame: float) -> float:
        """Seconds of training until a frame, for all seeds of the run together; NaN where the clock's rows are gone."""
        frames, seconds = self.timing
        if not len(frames) or not frame <= frames.max():
            return np.inf if np.isinf(frame) else np.nan
        before = np.flatnonzero(frames < frame)  # a run that was resumed may have passed the frame twice
        if not len(before):
            return float(seconds[0] * frame / frames[0])
        i = int(before[-1])
        if i + 1 == len(frames):
            return np.nan
        share = (frame - frames[i]) / (frames[i + 1] - frames[i])
        return float(seconds[i] + share * (seconds[i + 1] - seconds[i]))


def grid(frames: int) -> np.ndarray:
    """The frames at which a curve has points."""
    return frames * np.arange(1, GRID + 1) / GRID


def common_reach(records: Collection[RunRecord]) -> int:
    """The frame that all unfinished runs which have results have reached; 0 if there are none."""
    reached = (r.reached for r in records if r.problem and not r.damaged and not r.whole and r.reached)
    return min(reached, default=0)
