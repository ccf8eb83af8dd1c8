"""Statistics against closed forms, SciPy and rliable: equal, or within Monte Carlo error where something is drawn."""

import warnings
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from ceqr.experiments import stats

RESAMPLES = 4_000


@pytest.fixture(scope="module")
def rliable() -> Any:
    """rliable's library. Its dependency arch calls a private function of pandas that has other arguments since 3.0."""
    import pandas.util._decorators as decorators

    def passed_on(*_: Any, **__: Any) -> Any:
        return lambda function: function

    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setattr(decorators, "deprecate_kwarg", passed_on, raising=False)
        import rliable.library
    return rliable.library


@pytest.fixture(scope="module")
def metrics() -> ModuleType:
    import rliable.metrics

    return rliable.metrics


def _scores(runs: int, games: int, seed: int = 0) -> np.ndarray:
    """[runs, games], skewed and with ties, as scores are."""
    return np.round(np.random.default_rng(seed).gamma(2.0, 0.4, (runs, games)), 1)


def _columns(scores: np.ndarray) -> list[np.ndarray]:
    return list(scores.T)


# Over seeds.


@pytest.mark.parametrize("number", [2, 3, 25])
def test_the_interval_of_a_mean_is_students(number: int) -> None:
    values = np.random.default_rng(number).normal(size=(number, 4))
    mean, low, high = stats.mean_interval(values)
    theirs = scipy_stats.t.interval(0.95, number - 1, values.mean(0), scipy_stats.sem(values, axis=0))
    np.testing.assert_allclose((low, high), theirs)
    np.testing.assert_allclose(mean, values.mean(0))


def test_the_interval_of_a_mean_covers_it_as_often_as_it_says() -> None:
    values = np.random.default_rng(0).normal(3.0, 2.0, (5, 20_000))
    _, low, high = stats.mean_interval(values)
    covered = np.mean((low <= 3) & (high >= 3))
    assert abs(covered - 0.95) < 4 * np.sqrt(0.95 * 0.05 / 20_000)


def test_one_value_has_no_interval_and_none_no_mean() -> None:
    mean, low, high = stats.mean_interval(np.array([[1.0, 2.0]]))
    assert mean.tolist() == [1, 2]
    assert np.isnan([low, high]).all()
    with pytest.raises(ValueError, match="at least one"):
        stats.mean_interval(np.zeros((0, 3)))


def test_a_mean_where_a_seed_is_missing_is_missing() -> None:
    mean, low, _ = stats.mean_interval(np.array([[1.0, np.nan], [2.0, 5.0]]))
    assert mean[0] == 1.5
    assert np.isnan([mean[1], low[1]]).all()


@given(st.lists(st.floats(-1e6, 1e6), max_size=40), st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_a_running_mean_is_the_mean_of_the_last(values: list[float], window: int) -> None:
    expected = [np.mean(values[max(0, i + 1 - window) : i + 1]) for i in range(len(values))]
    np.testing.assert_allclose(stats.running_mean(np.array(values), window), expected, atol=1e-6)


def test_the_second_order_of_a_ramp_lags_twice() -> None:
    # The mean of the last w of 0, 1, 2, ... is (w - 1) / 2 behind; the mean of these another (w - 1) / 2.
    ramp = np.arange(100.0)
    np.testing.assert_allclose(stats.second_order_running_mean(ramp, 11)[30:], ramp[30:] - 10)
    with pytest.raises(ValueError, match="at least 1"):
        stats.running_mean(ramp, 0)


# Over games.


@pytest.mark.parametrize(("runs", "games"), [(1, 1), (2, 5), (3, 5), (10, 4), (25, 5)])
def test_aggregates_are_those_of_rliable(metrics: Any, runs: int, games: int) -> None:
    scores = _scores(runs, games)
    ours = _columns(scores)
    assert stats.mean(ours) == pytest.approx(metrics.aggregate_mean(scores))
    assert stats.median(ours) == pytest.approx(metrics.aggregate_median(scores))
    assert stats.interquartile_mean(ours) == pytest.approx(metrics.aggregate_iqm(scores))
    assert stats.interquartile_mean(ours) == pytest.approx(scipy_stats.trim_mean(scores.ravel(), 0.25))
    assert stats.optimality_gap(ours) == pytest.approx(metrics.aggregate_optimality_gap(scores))


@pytest.mark.parametrize(("first", "second"), [(25, 25), (3, 10), (1, 4)])
def test_the_probability_of_improvement_is_rliables_and_mann_and_whitneys(
    metrics: Any, first: int, second: int
) -> None:
    x, y = _scores(first, 5, 1), _scores(second, 5, 2)
    value = stats.probability_of_improvement(_columns(x), _columns(y))
    assert value == pytest.approx(metrics.probability_of_improvement(x, y))
    theirs = [scipy_stats.mannwhitneyu(a, b).statistic / (first * second) for a, b in zip(x.T, y.T, strict=True)]
    assert value == pytest.approx(np.mean(theirs))
    assert stats.probability_of_improvement(_columns(y), _columns(x)) == pytest.approx(1 - value)


def test_the_probability_of_improvement_in_closed_form() -> None:
    # X uniform on {1, 2}, Y on {0, 1}: of the four pairs three are greater and one is equal.
    assert stats.probability_of_improvement([np.array([1.0, 2.0])], [np.array([0.0, 1.0])]) == 0.875
    with pytest.raises(ValueError, match="same games"):
        stats.probability_of_improvement([np.ones(2)], [np.ones(2)] * 2)


def test_performance_profiles_are_rliables(rliable: Any) -> None:
    scores, thresholds = _scores(10, 5), np.linspace(0, 3, 31)
    theirs = rliable.score_distributions(scores, thresholds)
    np.testing.assert_allclose(stats.performance_profile(_columns(scores), thresholds), theirs)


def test_games_with_other_numbers_of_runs() -> None:
    ragged = [np.array([0.0, 1.0, 2.0, 3.0]), np.array([10.0])]
    assert stats.mean(ragged) == (1.5 + 10) / 2
    assert stats.interquartile_mean(ragged) == (1 + 2 + 3) / 3  # of five, one is cut at either end
    assert stats.optimality_gap(ragged) == 1 - (0.75 + 1) / 2
    assert stats.performance_profile(ragged, np.array([1.0, 5.0])).tolist() == [(0.5 + 1) / 2, 0.5]


def test_normalising() -> None:
    assert stats.normalise(np.array([1.0, 3.0, 7.0]), random=1, reference=5).tolist() == [0, 0.5, 1.5]
    for random, reference in ((1.0, 1.0), (np.nan, 1.0)):
        with pytest.raises(ValueError, match="two different numbers"):
            stats.normalise(np.ones(1), random, reference)


# Intervals.


def test_the_bootstrap_of_a_mean_has_its_known_width() -> None:
    # A bootstrap mean of n values has the deviation std / sqrt(n) (of the sample, without Bessel's correction).
    values = np.random.default_rng(0).normal(size=400)
    interval = stats.bootstrap(stats.mean, [values], resamples=20_000)
    deviation = values.std() / 20
    assert interval.value == pytest.approx(values.mean())
    for bound, sign in ((interval.low, -1), (interval.high, 1)):
        assert abs(bound - (values.mean() + sign * 1.96 * deviation)) < 0.06 * deviation


@pytest.mark.parametrize("ours", [stats.interquartile_mean, stats.median, stats.optimality_gap])
def test_bootstrap_intervals_agree_with_rliables(rliable: Any, metrics: Any, ours: stats.Statistic) -> None:
    names = {"interquartile_mean": "iqm"}
    theirs = getattr(metrics, f"aggregate_{names.get(ours.__name__, ours.__name__)}")
    scores = _scores(12, 5, 3)
    np.random.seed(0)  # noqa: NPY002 - rliable draws from it
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, intervals = rliable.get_interval_estimates({"x": scores}, lambda s: np.array([theirs(s)]), reps=2_000)
    interval = stats.bootstrap(ours, _columns(scores), resamples=RESAMPLES, seed=1)
    _agree((interval.low, interval.high), intervals["x"][:, 0], float(interval.high - interval.low))


def test_intervals_of_improvement_agree_with_rliables(rliable: Any, metrics: Any) -> None:
    x, y = _scores(8, 3, 4) + 0.2, _scores(6, 3, 5)
    np.random.seed(0)  # noqa: NPY002
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, intervals = rliable.get_interval_estimates({"x": (x, y)}, metrics.probability_of_improvement, reps=1_000)
    interval = stats.bootstrap(stats.probability_of_improvement, _columns(x), _columns(y), resamples=RESAMPLES)
    _agree((interval.low, interval.high), np.ravel(intervals["x"]), float(interval.high - interval.low))


def _agree(ours: Any, theirs: Any, width: float) -> None:
    """A quantile at 2.5 % of 1,000 draws is off by about 2 % of the width; four to five such errors are allowed."""
    np.testing.assert_allclose(ours, theirs, atol=0.09 * width)


def test_draws_are_by_seed_and_not_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = _columns(_scores(6, 3))
    intervals = [stats.bootstrap(stats.mean, scores, seed=seed) for seed in (0, 0, 1)]
    assert intervals[0] == intervals[1] != intervals[2]
    monkeypatch.setattr(stats, "BLOCK", 200)
    blocks = stats.bootstrap(stats.mean, scores)
    assert abs(blocks.low - intervals[0].low) < 0.05
    profile = stats.bootstrap(lambda s: stats.performance_profile(s, np.linspace(0, 2, 7)), scores, resamples=500)
    assert profile.low.shape == profile.high.shape == (7,)
    assert (profile.low <= profile.value).all()
    assert (profile.value <= profile.high).all()


def test_one_run_has_no_interval() -> None:
    interval = stats.bootstrap(stats.mean, [np.ones(5), np.ones(1)])
    assert interval.value == 1
    assert np.isnan([interval.low, interval.high]).all()
