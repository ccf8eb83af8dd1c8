"""The split-conformal correction: by hand, against MAPIE's formula, and its guarantee over many seeds."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import betabinom, binom

from ceqr import EvidentialQuantileRegressor
from ceqr.conformal import least_needed
from ceqr.regression import conformal
from ceqr.regression.conformal import hold_out, widening
from ceqr.regression.estimator import distinct


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
    assert least_needed(coverage) == rows
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


def covered(fits: int, coverage: float, draw: Callable[[np.random.Generator], Any], **options: Any) -> int:
    """In how many fits, each of newly drawn rows, the last of these is inside, which the model has not been given."""
    hits = 0
    for seed in range(fits):
        x, y = draw(np.random.default_rng(seed))
        model = EvidentialQuantileRegressor(coverage, **{"conformal": True, "random_state": seed, **options})
        lower, upper = model.fit(x[:-1], y[:-1]).predict_interval(x[-1:])
        hits += int(lower[0] <= y[-1] <= upper[0])
    return hits


LINEAR = {"hidden": (), "epochs": 1, "early_stopping": False}


@pytest.mark.parametrize("sign", [1, -1])
def test_coverage_is_guaranteed_for_one_row_to_learn_from_and_one_to_correct_by(sign: int):
    # Half of the new rows are inside. Were both rows standardised by, the interval would lie between them and have a
    # third. Were always the greater row held out, or always the lesser, it would have 38 % for one sign.
    def draw(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        x = sign * np.exp(6 * rng.normal(size=3))
        return x[:, None], x

    low, high = binom.ppf([1e-4, 1 - 1e-4], 400, 0.5)
    assert low <= covered(400, 0.5, draw, **LINEAR, random_state=0) <= high


def test_coverage_is_guaranteed_for_few_rows():
    # 12 to 18 rows, of which 9 are held out: exactly 9 of 10 new rows are inside. Hardly anything is learned.
    hits = covered(300, 0.9, lambda rng: sample(rng, int(rng.integers(13, 20))), hidden=(4,), epochs=1)
    low, high = binom.ppf([1e-4, 1 - 1e-4], 300, 0.9)
    assert low <= hits <= high
    plain = covered(60, 0.9, lambda rng: sample(rng, 20), hidden=(4,), epochs=1, conformal=False)
    assert plain < binom.ppf(1e-4, 60, 0.9)


def test_new_rows_of_one_fit_share_its_correction():
    # With 39 rows held out k = 32; how many of a fit's new rows are inside is then beta-binomial.
    seeds, new, held, k = 80, 40, 39, 32
    counts = []
    for seed in range(seeds):
        x, y = sample(np.random.default_rng(seed), 78 + new)
        model = EvidentialQuantileRegressor(0.8, **LINEAR, conformal=True, conformal_fraction=0.5, random_state=seed)
        lower, upper = model.fit(x[:78], y[:78]).predict_interval(x[78:])
        counts.append(np.sum((lower <= y[78:]) & (y[78:] <= upper)))
    mean, variance = betabinom.stats(new, k, held + 1 - k)
    assert abs(np.mean(counts) - mean) < 4 * math.sqrt(variance / seeds)


@pytest.mark.parametrize("weighted", [False, True])
def test_bounds_have_seen_nothing_of_the_rows_held_out(weighted: bool):
    # They are, to the last bit, those of a model that was given the other rows alone.
    x, y = sample(np.random.default_rng(0), 60)
    weight = np.random.default_rng(1).integers(1, 4, 60) if weighted else np.ones(60)
    options = {"hidden": (4,), "epochs": 5}
    model = EvidentialQuantileRegressor(conformal=True, random_state=3, **options).fit(x, y, weight)
    rng = np.random.RandomState(3)
    kept, held = model._hold_out_for_conformal(rng, distinct(x, y, weight.astype(float)))
    assert held is not None
    assert np.sum(held.weight) == round(np.sum(weight) / 4)
    other = EvidentialQuantileRegressor(random_state=rng, **options).fit(kept.x, kept.y, kept.weight)
    for mine, its in zip(model.predict_interval(x), other.predict_interval(x), strict=True):
        assert_allclose(np.abs(mine - its), abs(model.conformal_widening_), rtol=1e-9)
    assert_array_equal(model.predict(x), other.predict(x))
    assert_array_equal(model.predict_uncertainty(x), other.predict_uncertainty(x))


def test_a_row_like_one_held_out_is_inside_however_it_is_rounded():
    # Half of the rows share the greater score, so that it is the correction.
    for seed in range(10):
        x, y = np.full((40, 1), 0.3), seed + np.tile([0.1, 0.7], 20)
        model = EvidentialQuantileRegressor(**LINEAR, conformal=True, random_state=seed).fit(x, y)
        for rows in (slice(None), slice(7), slice(1)):
            lower, upper = model.predict_interval(x[rows])
            assert np.all((lower <= y[rows]) & (y[rows] <= upper))


def test_what_is_held_out_depends_on_the_seed_and_on_the_rows():
    def held(seed: int, *rows: float) -> list[int]:
        return conformal.shuffling(np.random.RandomState(seed), [np.array(rows)]).permutation(50).tolist()

    assert held(0, 1, 2) == held(0, 1, 2)
    assert held(0, 1, 2) != held(1, 1, 2)
    assert held(0, 1, 2) != held(0, 1, 3)
    rng, other = np.random.RandomState(0), np.random.RandomState(0)
    conformal.shuffling(rng, [np.ones(3)])
    conformal.shuffling(other, [np.arange(1000.0)])
    assert rng.randint(2**31) == other.randint(2**31)


def test_too_few_rows_to_correct_by():
    x, y = sample(np.random.default_rng(0), 10)
    with pytest.raises(ValueError, match=r"holds out at least 9 rows and needs 2 more.*n_samples = 10"):
        EvidentialQuantileRegressor(conformal=True).fit(x, y)
    # Rows that are all alike are as many as they are.
    with pytest.raises(ValueError, match="n_samples = 10"):
        EvidentialQuantileRegressor(conformal=True).fit(np.ones((10, 1)), np.ones(10))
    x, y = sample(np.random.default_rng(0), 11)
    model = EvidentialQuantileRegressor(conformal=True, hidden=(4,), epochs=1).fit(x, y)
    assert np.isfinite(model.conformal_widening_)


def test_an_interval_tightened_to_nothing_is_a_point():
    x, y = sample(np.random.default_rng(0), 60)
    model = EvidentialQuantileRegressor(**LINEAR, random_state=0).fit(x, y)
    model.conformal_widening_ = -1e3
    lower, upper = model.predict_interval(x)
    assert_array_equal(lower, upper)


def test_novelty_is_a_p_value():
    """A new row's is at most a with probability at most a, and not much less: 9 of 20 rows are held out."""
    p_values = []
    for seed in range(300):
        x, y = sample(np.random.default_rng(seed), 21)
        model = EvidentialQuantileRegressor(**LINEAR, conformal=True, random_state=seed).fit(x[:20], y[:20])
        p_values.append(model.predict_novelty(x[20:])[0])
    for level in (0.1, 0.3, 0.5):
        low, high = binom.ppf([1e-4, 1 - 1e-4], 300, level)
        assert low <= np.sum(np.array(p_values) <= level + 1e-9) <= high


def test_novelty_by_hand():
    x, y = sample(np.random.default_rng(0), 60)
    weight = np.random.default_rng(1).integers(1, 4, 60).astype(float)
    model = EvidentialQuantileRegressor(**LINEAR, conformal=True, random_state=3).fit(x, y, weight)
    _, held = model._hold_out_for_conformal(np.random.RandomState(3), distinct(x, y, weight))
    assert held is not None
    seen, (new,) = model.predict_uncertainty(held.x)[1], model.predict_uncertainty([[0.2]])[1]
    expected = (held.weight @ (seen >= new) + 1) / (held.weight.sum() + 1)
    assert_allclose(model.predict_novelty([[0.2], [1e6]]), [expected, 1 / (held.weight.sum() + 1)])
    repeated = np.repeat(np.arange(60), weight.astype(int))
    other = EvidentialQuantileRegressor(**LINEAR, conformal=True, random_state=3).fit(x[repeated], y[repeated])
    assert_array_equal(other.predict_novelty(x), model.predict_novelty(x))
    plain = EvidentialQuantileRegressor(**LINEAR, random_state=3).fit(x, y)
    with pytest.raises(ValueError, match="predict_novelty needs rows that were held out: fit with conformal=True"):
        plain.predict_novelty(x)
