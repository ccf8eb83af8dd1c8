"""Rows held out, and what follows from them: the split-conformal correction of an interval (Romano et al., 2019), and
how rare a doubt is."""

import hashlib
from collections.abc import Iterable

import numpy as np

from ceqr.conformal import Rarity, discrepancy, quantile, rarity


def counts(weight: np.ndarray) -> bool:
    """Whether weights are whole numbers, and so how often a row was seen."""
    return bool(np.all(weight == np.floor(weight)))


def rows_held(weight: np.ndarray) -> float:
    """How many rows weights stand for: their sum where they count rows, else as many as there are."""
    return float(np.sum(weight)) if counts(weight) else float(np.count_nonzero(weight))


def widening(lower: np.ndarray, upper: np.ndarray, y: np.ndarray, weight: np.ndarray, coverage: float) -> float:
    """How far to move both bounds outwards (inwards where negative), from rows that the bounds have not seen.

    It is the k-th smallest conformity score max(lower - y, y - upper), k = ceil((n + 1) coverage), a row counting as
    often as its weight says (weights that are not whole numbers are first scaled to a mean of one, and the guarantee
    is then approximate). Infinite with too few rows.
    """
    return quantile(discrepancy(lower, upper, y), _in_rows(weight), coverage)


def rarity_of_rows(scores: np.ndarray, weight: np.ndarray, rounding: float) -> Rarity:
    """How rare a score is among those of rows that the model has not seen; weights are as for `widening`."""
    return rarity(scores, _in_rows(weight), rounding)


def _in_rows(weight: np.ndarray) -> np.ndarray:
    """Weights in a unit of which a new row has one."""
    return weight if counts(weight) else weight / np.mean(weight)


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
