"""Conformal arithmetic: what can be said of something new from things of its kind, whatever their distribution.

Pure functions of NumPy arrays. Things may be single rows or the steps of episodes. Steps of one episode are not
exchangeable, episodes are: each episode then counts as one, shared equally by its steps (hierarchical conformal
prediction, Lee, Barber and Willett, 2023), and what is said is of a random step of a new episode. A row is an episode
of one step.
"""

import math
from typing import Any, NamedTuple

import numpy as np

SLACK = 1e-9  # sums of shares are rounded
FLOAT32 = 1e-5  # relative: more than two programs differ about one number of float32


def least_needed(coverage: float) -> int:
    """The fewest rows, or episodes, for which an interval of that coverage is finite.

    Examples:
        >>> from ceqr.conformal import least_needed
        >>> least_needed(0.9), least_needed(0.99)
        (9, 99)
    """
    return math.ceil(coverage / (1 - coverage) - SLACK)


def shares(lengths: np.ndarray) -> np.ndarray:
    """The weight of each step, episode by episode, from the number of steps that each episode has (none may be 0).

    Examples:
        >>> import numpy as np
        >>> from ceqr.conformal import shares
        >>> shares(np.array([1, 4])).tolist()  # an episode of one step, and one of four
        [1.0, 0.25, 0.25, 0.25, 0.25]
    """
    return np.repeat(1.0 / lengths, lengths)


def quantile(scores: np.ndarray, weight: np.ndarray, coverage: float) -> float:
    """The least score at or below which `coverage` of the mass lies; infinite if there is none.

    The mass is that of the weights and of one more, the new thing itself, which counts as infinite. A new score is at
    or below it with at least that probability.

    Examples:
        >>> import numpy as np
        >>> from ceqr.conformal import quantile
        >>> scores = np.arange(1.0, 20.0)  # 19 of them, so that the new one is the twentieth
        >>> quantile(scores, np.ones(19), 0.9)
        18.0
        >>> quantile(scores[:8], np.ones(8), 0.9)  # too few to say anything about 90 %
        inf
    """
    order = np.argsort(scores, kind="stable")
    reached = np.cumsum(weight[order])
    k = int(np.searchsorted(reached, (reached[-1] + 1) * coverage - SLACK))
    return float(scores[order[k]]) if k < len(scores) else math.inf


def discrepancy(lower: np.ndarray, upper: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """How far outside an interval the truth lies, negative inside (Romano, Patterson and Candes, 2019).

    Where both bounds are one prediction it is the absolute residual.

    Examples:
        >>> import numpy as np
        >>> from ceqr.conformal import discrepancy
        >>> lower, upper = np.zeros(3), np.ones(3)
        >>> discrepancy(lower, upper, np.array([-2.0, 0.5, 1.25])).tolist()
        [2.0, -0.5, 0.25]
    """
    return np.maximum(lower - truth, truth - upper)


class Rarity(NamedTuple):
    """How rare a score is: a step function that gives a p-value to any score, small if few were as large.

    Examples:
        >>> import numpy as np
        >>> from ceqr.conformal import rarity
        >>> rare = rarity(np.arange(99.0), np.ones(99))
        >>> rare.of(98.5), rare.of(-1.0)  # larger than all that were seen; smaller than all
        (np.float64(0.01), np.float64(1.0))
    """

    scores: np.ndarray  # [n], ascending
    p_values: np.ndarray  # [n + 1]: of a new score that is above the first i

    def of(self, new: Any) -> Any:
        """The p-value of each: the mass of the scores at least as large, with the new one's own.

        For a new thing of the same kind it is at most a with probability at most a.
        """
        return self.p_values[self.scores.searchsorted(new)]


def rarity(scores: np.ndarray, weight: np.ndarray, rounding: float = 0.0) -> Rarity:
    """From the scores that were seen, and how much each counts.

    A new score that is larger by no more than rounding (relative) counts as equal, which errs to the safe side.

    Examples:
        >>> import numpy as np
        >>> from ceqr.conformal import rarity
        >>> rarity(np.array([0.1, 0.2, 0.4]), np.ones(3)).of([0.1, 0.3, 0.5]).tolist()
        [1.0, 0.5, 0.25]
    """
    order = np.argsort(scores, kind="stable")
    above = np.concatenate([np.cumsum(weight[order][::-1])[::-1], [0.0]])
    seen = scores[order]
    return Rarity(seen + rounding * np.abs(seen), np.minimum((above + 1) / (np.sum(weight) + 1), 1.0))


def smoothed_p_value(before: np.ndarray, new: float, chance: float) -> float:
    """The p-value of a number among all before it and itself; ties are broken by `chance`, uniform on [0, 1].

    In a sequence of exchangeable numbers, each of them asked for among those before it, these are independent and
    uniform (Vovk, Nouretdinov and Gammerman, 2003). Among a fixed set they would not be.

    Examples:
        >>> import numpy as np
        >>> from ceqr.conformal import smoothed_p_value
        >>> before = np.array([1.0, 2.0, 3.0])
        >>> smoothed_p_value(before, 2.5, chance=0.5)  # one of three is larger, and half of itself
        0.375
    """
    return float((np.sum(before > new) + chance * (np.sum(before == new) + 1)) / (len(before) + 1))
