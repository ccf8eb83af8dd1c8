"""Statistics of many runs: means and intervals over seeds, and the aggregates of Agarwal et al. (2021) over games.

*Deep Reinforcement Learning at the Edge of the Statistical Precipice* argues for the interquartile mean, performance
profiles and the probability of improvement, with intervals from a bootstrap that is stratified by game. Here the scores
of an algorithm are a sequence with one array a game, [..., runs]: games may differ in their number of runs, and leading
axes are resamples. Where all games have equally many runs the values are those of the authors' library, rliable.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy import special

Scores = Sequence[np.ndarray]  # one array a game: [..., runs]
Statistic = Callable[..., np.ndarray]

RESAMPLES = 2_000
CONFIDENCE = 0.95
BLOCK = 2**22  # numbers that a block of resamples may hold


class Interval(NamedTuple):
    """A value, and the bounds that its interval of confidence has; NaN where there are too few runs for one.

    Examples:
        >>> import numpy as np
        >>> from ceqr.experiments.stats import mean_interval
        >>> interval = mean_interval(np.array([1.0, 2.0, 3.0]))
        >>> bool(interval.low < interval.value < interval.high)
        True
    """

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray


# Over seeds.


def mean_interval(values: np.ndarray, confidence: float = CONFIDENCE) -> Interval:
    """The mean over the first axis with Student's interval; bounds are NaN where there is one value alone.

    NaN stands for a value that is not there: it makes the mean NaN, so that no mean is over other seeds than its
    neighbours are.

    Examples:
        >>> import numpy as np
        >>> from ceqr.experiments.stats import mean_interval
        >>> value, low, high = mean_interval(np.array([10.0, 12.0, 14.0]))  # the scores of three seeds
        >>> float(value), round(float(low), 2), round(float(high), 2)
        (12.0, 7.03, 16.97)
    """
    values = np.asarray(values, np.float64)
    if not len(values):
        raise ValueError("There must be at least one value.")
    mean = values.mean(0)
    if len(values) == 1:
        return Interval(mean, np.full_like(mean, np.nan), np.full_like(mean, np.nan))
    reach = _student(len(values) - 1, confidence) * values.std(0, ddof=1) / np.sqrt(len(values))
    return Interval(mean, mean - reach, mean + reach)


def _student(degrees: int, confidence: float) -> float:
    """The quantile of Student's distribution that leaves half of the rest above it."""
    return float(special.stdtrit(degrees, (1 + confidence) / 2))


def running_mean(values: np.ndarray, window: int) -> np.ndarray:
    """The mean of the last `window` values, of all so far where there are fewer.

    Examples:
        >>> import numpy as np
        >>> from ceqr.experiments.stats import running_mean
        >>> running_mean(np.array([1.0, 3.0, 5.0, 7.0]), window=2).tolist()
        [1.0, 2.0, 4.0, 6.0]
    """
    if window < 1:
        raise ValueError(f"The window must be at least 1, not {window}.")
    values = np.asarray(values, np.float64)
    sums = np.cumsum(np.concatenate([[0.0], values]))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - window)
    return (sums[ends] - sums[starts]) / (ends - starts)


def second_order_running_mean(values: np.ndarray, window: int) -> np.ndarray:
    """The running mean of the running mean: what the paper's Figure 3 shows.

    Examples:
        >>> import numpy as np
        >>> from ceqr.experiments.stats import second_order_running_mean
        >>> second_order_running_mean(np.array([1.0, 3.0, 5.0, 7.0]), window=2).tolist()
        [1.0, 1.5, 3.0, 5.0]
    """
    return running_mean(running_mean(values, window), window)


# Over games.


def normalise(scores: np.ndarray, random: float, reference: float) -> np.ndarray:
    """Scores on the scale where random play is 0 and the reference is 1.

    Examples:
        >>> import numpy as np
        >>> from ceqr.experiments.stats import normalise
        >>> normalise(np.array([0.5, 5.5, 10.5]), random=0.5, reference=10.5).tolist()
        [0.0, 0.5, 1.0]
    """
    if not np.isfinite(random) or not np.isfinite(reference) or random == reference:
        raise ValueError(f"Random play ({random}) and the reference ({reference}) must be two different numbers.")
    return (np.asarray(scores, np.float64) - random) / (reference - random)


def mean(scores: Scores) -> np.ndarray:
    """The mean over games of the mean over runs.

    Examples:
        >>> import numpy as np
        >>> from ceqr.experiments.stats import mean
        >>> float(mean([np.array([0.0, 1.0]), np.array([2.0, 2.0, 2.0])]))  # games count alike, whatever their runs
        1.25
    """
    return np.mean([game.mean(-1) for game in scores], axis=0)


def median(scores: Scores) -> np.ndarray:
    """The median over games of the mean over runs.

    Examples:
        >>> import numpy as np
        >>> from ceqr.experiments.stats import median
        >>> float(median([np.array([0.0, 1.0]), np.array([2.0, 2.0]), np.array([90.0, 110.0])]))
        2.0
    """
    return np.median([game.mean(-1) for game in scores], axis=0)


def interquartile_mean(scores: Scores) -> np.ndarray:
    """The mean of all runs of all games without the lowest and the highest quarter (rounded down, as SciPy does).

    All runs count alike, so a game with more runs has more weight.

    Examples:
        >>> import numpy as np
        >>> from ceqr.experiments.stats import interquartile_mean
        >>> float(interquartile_mean([np.array([-50.0, 1.0]), np.array([3.0, 900.0])]))
        2.0
    """
    pooled = np.concatenate(scores, axis=-1)
    number = pooled.shape[-1]
    cut = number // 4
    middle = np.partition(pooled, (cut, number - cut - 1), axis=-1)[..., cut : number - cut]
    return middle.mean(-1)


def optimality_gap(scores: Scores, goal: float = 1.0) -> np.ndarray:
    """By how much runs fall short of the goal on average; what is above it makes up for nothing.

    Examples:
        >>> import numpy as np
        >>> from ceqr.experiments.stats import optimality_gap
        >>> float(optimality_gap([np.array([0.5, 3.0])]))  # one run lacks a half, one lacks nothing
        0.25
    """
    return goal - mean([np.minimum(game, goal) for game in scores])


def probability_of_improvement(better: Scores, than: Scores) -> np.ndarray:
    """How probable it is that a run of the one scores higher than a run of the other, averaged over games.

    Equal scores count a half: per game this is the statistic of Mann and Whitney, divided by the number of pairs.

    Examples:
        >>> import numpy as np
        >>> from ceqr.experiments.stats import probability_of_improvement
        >>> float(probability_of_improvement([np.array([2.0, 4.0])], [np.array([1.0, 3.0])]))  # in 3 of 4 pairs
        0.75
    """
    if len(better) != len(than):
        raise ValueError(f"Both need the same games; one has {len(better)}, the other {len(than)}.")
    games = []
    for x, y in zip(better, than, strict=True):
        difference = np.sign(x[..., :, None] - y[..., None, :])
        games.append((difference.mean((-1, -2)) + 1) / 2)
    return np.mean(games, axis=0)


def performance_profile(scores: Scores, thresholds: np.ndarray) -> np.ndarray:
    """[..., thresholds]: the share of runs that score above each threshold, averaged over games.

    Examples:
        >>> import numpy as np
        >>> from ceqr.experiments.stats import performance_profile
        >>> performance_profile([np.array([0.2, 0.4, 0.6, 0.8])], np.array([0.0, 0.5, 1.0])).tolist()
        [1.0, 0.5, 0.0]
    """
    shares = []
    for game in scores:
        ordered = np.sort(game, axis=-1)
        flat = ordered.reshape(-1, ordered.shape[-1])
        below = np.stack([np.searchsorted(row, thresholds, side="right") for row in flat])
        shares.append(1 - below.reshape(*ordered.shape[:-1], len(thresholds)) / ordered.shape[-1])
    return np.mean(shares, axis=0)


def bootstrap(
    statistic: Statistic,
    *samples: Scores,
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
    seed: int = 0,
) -> Interval:
    """A statistic with its stratified bootstrap interval: each game's runs are drawn anew, with replacement.

    Args:
        statistic: Of as many scores as are given; takes leading axes, and may itself give an array.
        samples: Scores of one or more algorithms, which are resampled independently.
        resamples: How many times.
        confidence: What the percentile interval should contain.
        seed: Of the draws.

    The bounds are NaN where some game has one run alone: it would always draw itself, and look certain.

    Examples:
        >>> import numpy as np
        >>> from ceqr.experiments.stats import bootstrap, interquartile_mean
        >>> scores = [np.array([0.8, 1.0, 1.2]), np.array([0.1, 0.2, 0.4])]  # two games, three runs each
        >>> value, low, high = bootstrap(interquartile_mean, scores, resamples=200)
        >>> bool(low < value < high)
        True
    """
    value = np.asarray(statistic(*samples), np.float64)
    if any(game.shape[-1] < 2 for scores in samples for game in scores):
        return Interval(value, np.full_like(value, np.nan), np.full_like(value, np.nan))
    generator = np.random.default_rng(seed)
    numbers = sum(game.shape[-1] for scores in samples for game in scores)
    block = max(1, min(resamples, BLOCK // (numbers * numbers if len(samples) > 1 else numbers)))
    drawn = []
    for start in range(0, resamples, block):
        count = min(block, resamples - start)
        drawn.append(statistic(*([_resample(game, count, generator) for game in scores] for scores in samples)))
    tail = (1 - confidence) / 2
    low, high = np.quantile(np.concatenate(drawn), (tail, 1 - tail), axis=0)
    return Interval(value, low, high)


def _resample(game: np.ndarray, count: int, generator: np.random.Generator) -> np.ndarray:
    return game[generator.integers(len(game), size=(count, len(game)))]
