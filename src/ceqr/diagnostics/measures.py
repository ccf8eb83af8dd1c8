"""What beliefs are worth, in numbers: pure functions of arrays.

Steps of an episode hang together, episodes do not. So a number is a mean over episodes of means over their steps, that
of a random step of a random episode, and its interval is from a bootstrap over episodes. Seeds count alike, and each
keeps its own episodes when they are drawn anew: intervals are of these very agents, not of agents trained anew.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from ceqr.experiments.stats import CONFIDENCE, RESAMPLES, Interval

LEVELS = np.linspace(0, 1, 101)  # of the reliability diagram
TENTHS = 10  # parts of an episode
FEW = 3  # points or fewer always correlate well

Statistic = Callable[[np.ndarray], np.ndarray]


# Over episodes.


def by_episode(values: np.ndarray, episode: np.ndarray, known: np.ndarray | None = None) -> np.ndarray:
    """Means over the steps of each episode that are known, [episodes, ...]; episodes without any are left out."""
    if known is not None:
        values, episode = values[known], episode[known]
    _, place, counts = np.unique(episode, return_inverse=True, return_counts=True)
    sums = np.zeros((len(counts), *values.shape[1:]))
    np.add.at(sums, place, values.astype(np.float64))
    return sums / counts.reshape(-1, *[1] * (values.ndim - 1))


def estimate(
    seeds: Sequence[np.ndarray], statistic: Statistic = lambda mean: mean, resamples: int = RESAMPLES
) -> Interval:
    """A statistic of the mean over episodes, averaged over seeds, with its bootstrap interval.

    Args:
        seeds: [episodes, ...] of each seed.
        statistic: Of means [..., *], with leading axes of resamples.
        resamples: How many.

    The bounds are NaN where a seed has one episode alone: it would always draw itself, and look certain.
    """
    value = np.mean([statistic(each.mean(0)) for each in seeds], axis=0)
    if any(len(each) < 2 for each in seeds):
        return Interval(value, np.full_like(value, np.nan), np.full_like(value, np.nan))
    rng = np.random.default_rng(0)
    drawn = [statistic(np.tensordot(draw_episodes(rng, len(each), resamples), each, 1)) for each in seeds]
    return _percentiles(value, np.mean(drawn, axis=0))


def draw_episodes(rng: np.random.Generator, episodes: int, resamples: int) -> np.ndarray:
    """The share of each episode when as many are drawn with replacement, [resamples, episodes]."""
    return rng.multinomial(episodes, np.full(episodes, 1 / episodes), size=resamples) / episodes


def _percentiles(value: np.ndarray, drawn: np.ndarray) -> Interval:
    tail = (1 - CONFIDENCE) / 2
    with np.errstate(invalid="ignore"):
        low, high = np.nanquantile(drawn, (tail, 1 - tail), axis=0)
    return Interval(value, low, high)


# Quantiles against what came of them.


def place(quantiles: np.ndarray, outcome: np.ndarray) -> np.ndarray:
    """The least level whose quantile reaches the outcome, [steps] from [steps, N]; infinite if none does.

    Quantiles are at the levels (i - 1/2) / N, with straight lines between them; the outermost stand for all beyond.
    Learned ones may cross, so they are sorted first.
    """
    ordered = np.sort(quantiles, axis=-1).astype(np.float64)
    count = ordered.shape[-1]
    below = (ordered < outcome[:, None]).sum(-1)
    left, right = np.clip(below - 1, 0, count - 1), np.clip(below, 0, count - 1)
    rows = np.arange(len(outcome))
    gap = ordered[rows, right] - ordered[rows, left]
    part = np.divide(outcome - ordered[rows, left], gap, out=np.zeros(len(outcome)), where=gap > 0)
    level = (left + 0.5 + part) / count
    return np.where(below == 0, 0.0, np.where(below == count, np.inf, level))


def reached(level: np.ndarray) -> np.ndarray:
    """Whether an outcome at that place lies below the quantile of each level, [steps, LEVELS]; its means should be
    LEVELS. Nothing lies below the first, and everything below the last."""
    inside = level[:, None] <= LEVELS
    inside[:, 0], inside[:, -1] = False, True
    return inside


def miscalibration_area(observed: np.ndarray) -> np.ndarray:
    """The area between observed proportions [..., LEVELS] and the diagonal: 0 if calibrated, 1/2 at the worst."""
    off = observed - LEVELS
    one, two = off[..., :-1], off[..., 1:]
    width = np.diff(LEVELS)
    total = np.abs(one) + np.abs(two)
    crossing = one * two < 0
    # Where the curve crosses the diagonal there are two triangles instead of a trapezoid.
    share = np.divide(one**2 + two**2, total, out=np.zeros_like(total), where=crossing & (total > 0))
    return (width * np.where(crossing, share, total) / 2).sum(-1)


def within(lower: np.ndarray, upper: np.ndarray, outcome: np.ndarray) -> np.ndarray:
    """Whether outcomes are in their intervals: bounds count."""
    return (lower <= outcome) & (outcome <= upper)


def by_tenth(values: np.ndarray, episode: np.ndarray, progress: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Means by how much of its episode (0 to 1) was over, [TENTHS], each over the episodes that have such steps."""
    tenth = np.minimum((progress * TENTHS).astype(int), TENTHS - 1)
    parts = [by_episode(values, episode, known & (tenth == i)) for i in range(TENTHS)]
    return np.array([part.mean() if len(part) else np.nan for part in parts])


# Doubt of what is strange.


class Contrast(NamedTuple):
    """Doubts of ordinary and of strange states, by the episodes that they are from."""

    ordinary: Sequence[np.ndarray]
    strange: Sequence[np.ndarray]
    paired: bool  # whether both are of the same episodes, in the same order, some perhaps with none of a kind


def auroc(contrasts: Sequence[Contrast], resamples: int = RESAMPLES) -> Interval:
    """How probable it is that a strange state has the larger doubt, equal ones a half; one contrast a seed.

    It is the area under the curve of receiver operating characteristics, each state with the weight 1 / (episodes x
    states of its episode). Episodes are drawn anew; of both kinds together where they are the same ones.
    """
    rng = np.random.default_rng(0)
    values, drawn = [], []
    for contrast in contrasts:
        ours, theirs = (np.array([len(each) > 0 for each in kind]) for kind in (contrast.ordinary, contrast.strange))
        pair = _exceedance(contrast.ordinary, contrast.strange)
        values.append(pair[ours][:, theirs].mean())
        draws = [draw_episodes(rng, len(kind), resamples) for kind in (ours, theirs)]
        if contrast.paired:
            draws[1] = draws[0]
        first, second = draws[0] * ours, draws[1] * theirs
        with np.errstate(invalid="ignore"):  # a draw may have none of a kind, and says nothing then
            drawn.append(((first @ pair) * second).sum(1) / (first.sum(1) * second.sum(1)))
    value = np.asarray(np.mean(values))
    if any(sum(len(each) > 0 for each in kind) < 2 for c in contrasts for kind in (c.ordinary, c.strange)):
        return Interval(value, np.full_like(value, np.nan), np.full_like(value, np.nan))
    return _percentiles(value, np.mean(drawn, axis=0))


def _exceedance(ordinary: Sequence[np.ndarray], strange: Sequence[np.ndarray]) -> np.ndarray:
    """[ordinary episodes, strange episodes]: the share of pairs of their states in which the strange one is larger; 0
    where there is no pair."""
    sizes = np.array([len(each) for each in strange])
    every, owner = np.concatenate(strange), np.repeat(np.arange(len(sizes)), sizes)
    rows = np.zeros((len(ordinary), len(sizes)))
    for row, each in zip(rows, ordinary, strict=True):
        if len(each):
            ordered = np.sort(each)
            sides = [np.searchsorted(ordered, every, side=side) for side in ("left", "right")]
            larger = np.bincount(owner, (sides[0] + sides[1]) / (2 * len(each)), len(sizes))
            row[:] = larger / np.maximum(sizes, 1)
    return rows


# Two uncertainties, two truths.

ALEATORIC, EPISTEMIC, SPREAD, RARITY = range(4)  # columns: what the agent says of either, and what is true of either
PAIRS: dict[str, tuple[int, int]] = {  # which should go together, which should not, and whether the truths do
    "aleatoric_spread": (ALEATORIC, SPREAD),
    "epistemic_rarity": (EPISTEMIC, RARITY),
    "aleatoric_rarity": (ALEATORIC, RARITY),
    "epistemic_spread": (EPISTEMIC, SPREAD),
    "truths": (SPREAD, RARITY),
}


class Points(NamedTuple):
    """State-actions of one seed."""

    columns: np.ndarray  # [points, 4]; NaN for what the agent does not estimate
    group: np.ndarray  # int [points]: the state, whose actions hang together


class Related(NamedTuple):
    """Correlations by the names of `PAIRS`; `given`: of ranks, once the other truth is taken out of a cross term."""

    spearman: dict[str, Interval]
    pearson: dict[str, Interval]
    given: dict[str, Interval]


def related(seeds: Sequence[Points], resamples: int = 500) -> Related:
    """All correlations, averaged over seeds, with intervals from a bootstrap over states."""
    rng = np.random.default_rng(0)
    values, drawn = [], []
    for columns, group in seeds:
        members = [np.flatnonzero(group == each) for each in np.unique(group)]
        values.append(_correlations(columns))
        draws = (rng.integers(len(members), size=len(members)) for _ in range(resamples))
        drawn.append([_correlations(columns[np.concatenate([members[i] for i in draw])]) for draw in draws])
    value, every = np.mean(values, axis=0), np.mean(drawn, axis=0)
    known = np.isfinite(every).any(0)
    bounds = np.full((2, len(value)), np.nan)
    bounds[:, known] = _percentiles(value[known], every[:, known])[1:]
    found = [Interval(*each) for each in zip(value, *bounds, strict=True)]
    names, count = list(PAIRS), len(PAIRS)
    return Related(
        dict(zip(names, found[:count], strict=True)),
        dict(zip(names, found[count : 2 * count], strict=True)),
        dict(zip(("aleatoric_rarity", "epistemic_spread"), found[2 * count :], strict=True)),
    )


def _correlations(columns: np.ndarray) -> np.ndarray:
    """Of ranks for each of PAIRS, of numbers for each, and the two cross terms of ranks with the other truth out."""
    ranks = np.stack([np.where(np.isfinite(c).all(), stats.rankdata(c), np.nan) for c in columns.T], axis=1)
    spearman, pearson = correlation_matrix(ranks), correlation_matrix(columns)
    given = [
        partial(spearman[ALEATORIC, RARITY], spearman[ALEATORIC, SPREAD], spearman[RARITY, SPREAD]),
        partial(spearman[EPISTEMIC, SPREAD], spearman[EPISTEMIC, RARITY], spearman[SPREAD, RARITY]),
    ]
    return np.array([*(spearman[p] for p in PAIRS.values()), *(pearson[p] for p in PAIRS.values()), *given])


def correlation_matrix(columns: np.ndarray) -> np.ndarray:
    """Pearson's, [k, k] from [points, k]; NaN where a column does not vary, or there are too few points."""
    if len(columns) <= FEW:
        return np.full((columns.shape[1],) * 2, np.nan)
    centred = columns - columns.mean(0)
    length = np.sqrt((centred**2).sum(0))
    length = np.where(np.ptp(columns, axis=0) > 0, length, np.nan)
    return np.clip((centred / length).T @ (centred / length), -1, 1)


def partial(xy: float, xz: float, yz: float) -> float:
    """The correlation of x and y once what z says of either is taken out."""
    rest = (1 - xz**2) * (1 - yz**2)
    return float((xy - xz * yz) / np.sqrt(rest)) if rest > 1e-12 else float("nan")
