"""The split-conformal correction: by hand, against MAPIE's formula, and its guarantee over many seeds."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import betabinom, binom

from ceqr import EvidentialQuantileRegressor
from ceqr.regression.conformal import hold_out, rows_needed, widening


def test_widening_by_hand():
    # Scores of y = 1..9 against [0, 0] are 1..9; k = ceil((9 + 1) * 0.9) = 9, and ceil(10 * 0.75) = 8.
    y, zero, one = np.arange(1.0, 10), np.zeros(9), np.ones(9)
    assert widening(zero, zero, y, one, 0.9) == 9
    assert widening(zero, zero, y, one, 0.75) == 8
    assert widening(zero, zero, y, one, 0.91) == math.inf
    # Inside [0, 20] the nearer bound counts, and the correction tightens: scores -1..-9, the 8th smallest is -2.
    assert widening(zero, zero + 20, y, one, 0.75) == -2
    # A weight repeats a row: 1 is there 11 times, n = 19, k = ceil(20 * 0.6) = 12, the first 2.
    assert widening(zero, zero, y, np.array([11.0, 1, 1, 1, 1, 1, 1, 1, 1]), 0.6) == 2


@pytest.mark.parametrize("n", [20, 57, 200])
def test_widening_is_the_quantile_of_romano_et_al(n: int):
    rng = np.random.default_rng(n)
    lower, y = rng.normal(size=(2, n))
    upper = lower + rng.exponential(size=n)
    scores = np.maximum(lower - y, y - upper)
    level = math.ceil((n + 1) * 0.9) / n
    expected = np.quantile(scores, level, method="higher" if level < 1 else "linear")
    got = widening(lower, upper, y, np.ones(n), 0.9)
    assert_allclose(got, np.sort(scores)[math.ceil((n + 1) * 0.9) - 1])
    assert got <= expected + 1e-12


def test_weights_that_are_not_counts_have_no_scale():
    y, zero = np.arange(1.0, 30), np.zeros(29)
    weight = np.random.default_rng(0).uniform(0.5, 1.5, 29)
    assert widening(zero, zero, y, weight, 0.8) == widening(zero, zero, y, weight / 1000, 0.8)
    assert widening(zero, zero, y, np.full(29, 0.123), 0.8) == widening(zero, zero, y, np.ones(29), 0.8) == 24


@pytest.mark.parametrize(("coverage", "rows"), [(0.5, 1), (0.9, 9), (0.95, 19), (0.99, 99)])
def test_rows_needed(coverage: float, rows: int):
    assert rows_needed(coverage) == rows
    zero = np.zeros(rows)
    assert math.isfinite(widening(zero, zero, zero, zero + 1, coverage))
    assert widening(zero[1:], zero[1:], zero[1:], zero[1:] + 1, coverage) == math.inf if rows > 1 else True


def test_repeated_rows_are_held_out_one_by_one():
    weight = np.array([100.0, 1, 1, 1, 1, 96])
    held = hold_out(np.random.RandomState(0), weight, 0.25)
    assert held.sum() == 50
    assert np.all((held >= 0) & (held <= weight))
    assert held[0] > 10
    assert held[5] > 10
    fractions = hold_out(np.random.RandomState(0), weight + 0.5, 0.5)
    assert_array_equal(np.isin(fractions, [0, *(weight + 0.5)]), True)
    assert np.count_nonzero(fractions) == 3


def sample(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    x = rng.uniform(-1, 1, (n, 1))
    return x, (1 + np.abs(x[:, 0])) * rng.standard_t(3, n)


def test_coverage_is_guaranteed_whatever_the_network_learned():
    # One epoch of a tiny network learns next to nothing: without the correction its interval covers far too little.
    seeds, new, held, coverage = 300, 40, 39, 0.8
    inside = {True: np.zeros((seeds, new), bool), False: np.zeros((seeds, new), bool)}
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        x, y = sample(rng, 78)
        x_new, y_new = sample(rng, new)
        for conformal in inside:
            model = EvidentialQuantileRegressor(
                coverage, hidden=(4,), epochs=1, early_stopping=False, conformal=conformal, conformal_fraction=0.5,
                random_state=seed,
            ).fit(x, y)  # fmt: skip
            lower, upper = model.predict_interval(x_new)
            inside[conformal][seed] = (lower <= y_new) & (y_new <= upper)
    # With 39 rows held out k = 32, and a new row is inside with probability exactly 32 / 40 = 0.8.
    k = math.ceil((held + 1) * coverage)
    hits = int(inside[True][:, 0].sum())
    low, high = binom.ppf([1e-4, 1 - 1e-4], seeds, k / (held + 1))
    assert low <= hits <= high
    assert inside[False][:, 0].sum() < low
    # All new rows of a seed share its correction: their number inside is beta-binomial.
    mean, variance = betabinom.stats(new, k, held + 1 - k)
    assert abs(inside[True].sum(axis=1).mean() - mean) < 4 * math.sqrt(variance / seeds)


def test_too_few_rows_to_correct_by():
    x, y = sample(np.random.default_rng(0), 10)
    with pytest.raises(ValueError, match=r"holds out at least 9 rows and needs 2 more.*n_samples = 10"):
        EvidentialQuantileRegressor(conformal=True).fit(x, y)
    x, y = sample(np.random.default_rng(0), 11)
    model = EvidentialQuantileRegressor(conformal=True, hidden=(4,), epochs=2).fit(x, y)
    assert np.isfinite(model.conformal_widening_)


def test_an_interval_tightened_to_nothing_is_a_point():
    x, y = sample(np.random.default_rng(0), 200)
    model = EvidentialQuantileRegressor(hidden=(4,), epochs=2, random_state=0).fit(x, y)
    model.conformal_widening_ = -1e3
    lower, upper = model.predict_interval(x)
    assert_array_equal(lower, upper)
