"""Split-conformal correction of an interval (conformalised quantile regression, Romano et al., 2019)."""

import hashlib
import math
from collections.abc import Iterable

import numpy as np


def counts(weight: np.ndarray) -> bool:
    """Whether weights are whole numbers, and so how often a row was seen."""
    return bool(np.all(weight == np.floor(weight)))


def rows_held(weight: np.ndarray) -> float:
    """How many rows weights stand for: their sum where they count rows, else as many as there are."""
    return float(np.sum(weight)) if counts(weight) else float(np.count_nonzero(weight))


def rows_needed(coverage: float) -> int:
    """The fewest rows to calibrate on for which the corrected interval is finite."""
    return math.ceil(coverage / (1 - coverage) - 1e-9)


def widening(lower: np.ndarray, upper: np.ndarray, y: np.ndarray, weight: np.ndarray, coverage: float) -> float:
    """How far to move both bounds outwards (inwards where negative), from rows that the bounds have not seen.

    It is the k-th smallest conformity score max(lower - y, y - upper), k = ceil((n + 1) coverage), a row counting as
    often as its weight says (weights that are not whole numbers are first scaled to a mean of one, and the guarantee
    is then approximate). Infinite with too few rows.
    """
    if not counts(weight):
        weight = weight / np.mean(weight)
    scores = np.maximum(lower - y, y - upper)
    order = np.argsort(scores, kind="stable")
    reached = np.cumsum(weight[order])
    wanted = (reached[-1] + 1) * coverage - 1e-9
    k = int(np.searchsorted(reached, wanted))
    return float(scores[order[k]]) if k < len(scores) else math.inf


def shuffling(rng: np.random.RandomState, rows: Iterable[np.ndarray]) -> np.random.RandomState:
    """A generator that depends on the rows as well as on `rng`, of which it takes one number whatever they are.

    Rows come sorted. One seed alone would hold out the same ranks of every table, which are not rows drawn at random:
    coverage would be right on average over seeds, but wrong for any one of them.
    """
    digest = hashlib.sha256()
    for array in rows:
        digest.update(np.ascontiguousarray(array).data)
    return np.random.RandomState([rng.randint(2**32, dtype=np.uint32), *np.frombuffer(digest.digest(), np.uint32)])


def hold_out(rng: np.random.RandomState, weight: np.ndarray, share: float, least: int = 1) -> np.ndarray:
    """Weights [n] of what is held out; the rest, weight - held out, is kept.

    Whole-number weights count rows, and rows are then drawn one by one, as if they were written out: repeated rows
    may end on both sides, as they do in any random split, so that held-out rows are exchangeable with new ones.
    Other weights are held out or kept as they are.
    """
    n = len(weight)
    if counts(weight) and np.sum(weight) < 1e8:
        repeated = np.repeat(np.arange(n), weight.astype(np.int64))
        count = max(least, round(share * len(repeated)))
        return np.bincount(rng.permutation(repeated)[:count], minlength=n).astype(float)
    held = np.zeros(n)
    chosen = rng.permutation(n)[: max(least, round(share * n))]
    held[chosen] = weight[chosen]
    return held
