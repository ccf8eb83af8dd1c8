"""What an agent did and how its intervals fared while it learned, from the tables of its run.

The paper says that 5 to 30 % of the actions are uncertain ones throughout training, and that in an episode the share of
least uncertain actions is that of greedy ones, within 0.1 %.
"""

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ceqr.config import RunConfig
from ceqr.experiments.stats import running_mean
from ceqr.runs import RECENT_EPISODES, read_episodes, read_metrics

PAPER_NONGREEDY = (0.05, 0.30)
PAPER_DIFFERENCE = 0.001


@dataclass(frozen=True)
class Exploration:
    """One seed's training; NaN for what is not known."""

    nongreedy: float  # share of all actions
    nongreedy_last: float  # mean of the last 100 episodes
    nongreedy_least: float  # of running means over 100 episodes
    nongreedy_most: float
    in_paper_range: float  # share of the frames at which that running mean was within the paper's 5 to 30 %
    difference: float  # mean absolute difference, an episode, between the shares of least uncertain and greedy actions
    within_paper: float  # share of the episodes in which it is at most 0.1 %
    curves: dict[str, tuple[np.ndarray, np.ndarray]]  # frames and values, those there are: `coverage`, `nongreedy`


def read_exploration(path: Path, config: RunConfig[Any]) -> dict[int, Exploration]:
    """By seed."""
    episodes, metrics = defaultdict(list), defaultdict(list)
    for row in read_episodes(path, config):
        episodes[row.seed].append((row.frame, row.length, row.nongreedy, row.least_uncertain))
    for row in read_metrics(path, config):
        metrics[row.seed].append((row.frame, row.values.get("coverage", np.nan)))
    return {seed: _of_seed(_table(episodes[seed], 4), _table(metrics[seed], 2)) for seed in config.seed_numbers}


def _table(rows: list[tuple[float, ...]], columns: int) -> np.ndarray:
    return np.array(rows, float).reshape(-1, columns).T


def _of_seed(episodes: np.ndarray, metrics: np.ndarray) -> Exploration:
    curves = {}
    known = np.isfinite(metrics[1])
    if known.any():
        curves["coverage"] = (metrics[0][known], metrics[1][known])
    frame, length, nongreedy, least = episodes
    if not len(frame):
        return Exploration(*[np.nan] * 7, curves=curves)
    recent = running_mean(nongreedy, RECENT_EPISODES)
    whole = recent[min(RECENT_EPISODES, len(recent)) - 1 :]  # means over fewer episodes jump about
    frames = length[-len(whole) :]
    low, high = PAPER_NONGREEDY
    difference = np.abs(least - (1 - nongreedy))
    # Shares are float32: 0.1 % is met if it is to that precision.
    within = np.where(np.isfinite(difference), difference <= PAPER_DIFFERENCE + 1e-6, np.nan)
    return Exploration(
        nongreedy=float(np.average(nongreedy, weights=length)),
        nongreedy_last=float(nongreedy[-RECENT_EPISODES:].mean()),
        nongreedy_least=float(whole.min()),
        nongreedy_most=float(whole.max()),
        in_paper_range=float(np.average((low <= whole) & (whole <= high), weights=frames)),
        difference=float(difference.mean()),
        within_paper=float(within.mean()),
        curves={**curves, "nongreedy": (frame, recent)},
    )
