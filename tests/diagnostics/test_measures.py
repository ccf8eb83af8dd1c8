"""Measures against uncertainty-toolbox, scikit-learn and SciPy, and against arithmetic that can be done by hand."""

import numpy as np
import pytest
import uncertainty_toolbox as uct
from scipy import stats
from scipy.stats import binom
from sklearn.metrics import roc_auc_score

from ceqr.diagnostics.measures import (
    LEVELS,
    Contrast,
    Points,
    auroc,
    by_episode,
    by_tenth,
    estimate,
    miscalibration_area,
    place,
    reached,
    related,
    within,
)

RNG = np.random.default_rng(7)


# Over episodes.


def test_episodes_count_alike_however_long() -> None:
    values = np.array([1.0, 0.0, 0.0, 0.0, 1.0])
    episode = np.array([0, 1, 1, 1, 1])
    np.testing.assert_allclose(by_episode(values, episode), [1, 0.25])
    known = np.array([True, False, False, False, True])
    np.testing.assert_allclose(by_episode(values, episode, known), [1, 1])
    np.testing.assert_allclose(by_episode(values, episode, ~known), [0])  # the first episode has none
    both = by_episode(np.stack([values, 2 * values], 1), episode)
    np.testing.assert_allclose(both, [[1, 2], [0.25, 0.5]])


def test_estimates_against_scipys_bootstrap() -> None:
    episodes = RNG.exponential(size=40)
    found = estimate([episodes])
    theirs = stats.bootstrap((episodes,), np.mean, n_resamples=9999, method="percentile", rng=np.random.default_rng(0))
    assert found.value == pytest.approx(episodes.mean())
    width = theirs.confidence_interval.high - theirs.confidence_interval.low
    assert found.low == pytest.approx(theirs.confidence_interval.low, abs=0.05 * width)
    assert found.high == pytest.approx(theirs.confidence_interval.high, abs=0.05 * width)


def test_seeds_count_alike_and_a_statistic_is_of_each() -> None:
    one, two = np.full(3, 4.0), np.full(30, 16.0)
    assert estimate([one, two]).value == 10
    assert estimate([one, two], np.sqrt) == (3, 3, 3)
    alone = estimate([one[:1], two])
    assert alone.value == 10
    assert np.isnan(alone.low)


def test_intervals_are_wide_enough_for_steps_that_hang_together() -> None:
    """Each episode's 20 steps are one and the same coin: 60 episodes say no more than 60 coins do."""
    times, holds = 300, 0
    rng = np.random.default_rng(0)
    for _ in range(times):
        coins = (rng.random(60) < 0.7).astype(float)
        found = estimate([by_episode(np.repeat(coins, 20), np.repeat(np.arange(60), 20))], resamples=200)
        holds += found.low <= 0.7 <= found.high
    assert holds >= binom.ppf(1e-3, times, 0.91)  # percentile intervals of so few are a little too narrow


# Quantiles.


def test_places_invert_hazens_quantiles() -> None:
    quantiles = RNG.normal(size=(200, 9))
    inside = RNG.uniform(0.5 / 9, 1 - 0.5 / 9, 200)
    outcome = np.array([np.quantile(row, level, method="hazen") for row, level in zip(quantiles, inside, strict=True)])
    np.testing.assert_allclose(place(quantiles, outcome), inside, rtol=1e-9)
    outcome = RNG.normal(size=200)
    curves = np.array([np.quantile(row, LEVELS[1:-1], method="hazen") for row in quantiles])
    np.testing.assert_array_equal(reached(place(quantiles, outcome))[:, 1:-1], outcome[:, None] <= curves)


def test_places_at_the_ends_and_on_steps() -> None:
    quantiles = np.array([[1.0, 2.0, 2.0, 4.0]] * 5)
    outcome = np.array([0.5, 1.0, 2.0, 3.0, 4.5])
    # Levels are 1/8, 3/8, 5/8, 7/8; a quantile that is the outcome itself has reached it.
    np.testing.assert_allclose(place(quantiles, outcome), [0, 0, 3 / 8, 3 / 4, np.inf])
    np.testing.assert_allclose(place(quantiles[:, ::-1], outcome), [0, 0, 3 / 8, 3 / 4, np.inf])  # sorted first
    ends = reached(place(quantiles, outcome))[:, [0, -1]]
    np.testing.assert_array_equal(ends, [[False, True]] * 5)


def test_miscalibration_area_against_uncertainty_toolbox() -> None:
    for _ in range(20):
        observed = np.sort(RNG.random(len(LEVELS)))
        theirs = uct.metrics_calibration.miscalibration_area_from_proportions(LEVELS, observed)
        assert miscalibration_area(observed) == pytest.approx(theirs)
    assert miscalibration_area(LEVELS) == 0
    never = np.zeros(len(LEVELS))
    assert miscalibration_area(never) == pytest.approx(0.5)
    np.testing.assert_allclose(miscalibration_area(np.stack([LEVELS, never])), [0, 0.5])


@pytest.mark.parametrize(("bias", "scale"), [(0.0, 1.0), (0.0, 0.4), (0.0, 2.5), (0.8, 1.0)])
def test_quantiles_of_normals_against_uncertainty_toolbox(bias: float, scale: float) -> None:
    mean, std = RNG.normal(size=2_000), RNG.uniform(0.5, 2, 2_000)
    truth = mean + std * RNG.normal(size=2_000)
    mean, std = mean + bias * std, scale * std
    levels = (np.arange(1_000) + 0.5) / 1_000
    quantiles = mean[:, None] + std[:, None] * stats.norm.ppf(levels)
    observed = reached(place(quantiles, truth))
    theirs = uct.miscalibration_area(mean, std, truth, num_bins=101, vectorized=True, prop_type="quantile")
    assert estimate([observed], miscalibration_area).value == pytest.approx(theirs, abs=2e-3)
    if (bias, scale) == (0.0, 1.0):
        assert theirs < 0.02
    else:
        assert theirs > 0.1
    variance = (std**2)[:, None] * np.ones(3)  # sharpness is the root of the mean square
    assert estimate([variance.mean(1)], np.sqrt).value == pytest.approx(uct.sharpness(std))
    lower, upper = (mean + z * std for z in stats.norm.ppf([0.05, 0.95]))
    inside = within(lower, upper, truth).mean()
    assert inside == pytest.approx(uct.get_proportion_in_interval(mean, std, truth, 0.9))


def test_tenths_of_an_episode() -> None:
    progress = np.tile((np.arange(20) + 0.5) / 20, 3)
    episode = np.repeat(np.arange(3), 20)
    known = progress < 0.95
    found = by_tenth(progress >= 0.5, episode, progress, known)
    np.testing.assert_array_equal(found, [0] * 5 + [1] * 5)
    assert np.isnan(by_tenth(progress, episode, progress, progress < 0.9)[-1])


# Doubt.


def test_auroc_against_scikit_learn() -> None:
    ordinary = [np.round(RNG.normal(size=n), 1) for n in (4, 1, 7, 3)]
    strange = [np.round(RNG.normal(0.7, size=n), 1) for n in (5, 2, 6)]
    every = np.concatenate([*ordinary, *strange])
    truth = np.repeat([0, 1], [15, 13])
    weight = np.concatenate([np.full(len(e), 1 / len(e)) for e in (*ordinary, *strange)])
    theirs = roc_auc_score(truth, every, sample_weight=weight)
    found = auroc([Contrast(ordinary, strange, False)])
    assert found.value == pytest.approx(theirs)
    assert found.low < theirs < found.high
    swapped = auroc([Contrast(strange, ordinary, False)])
    assert swapped.value == pytest.approx(1 - theirs)
    both = auroc([Contrast(ordinary, strange, False), Contrast(strange, ordinary, False)])
    assert both.value == pytest.approx(0.5)


def test_auroc_of_episodes_that_have_both_kinds_or_one() -> None:
    ordinary = [np.array([1.0, 2.0]), np.array([3.0]), np.zeros(0)]
    strange = [np.array([2.0]), np.zeros(0), np.array([0.0, 4.0])]
    # Of pairs: episode 0 against 0: (1 + 1/2)/2, against 2: (0 + 1)/2; episode 1 against 0: 0, against 2: 1/2.
    found = auroc([Contrast(ordinary, strange, True)])
    assert found.value == pytest.approx((0.75 + 0.5 + 0 + 0.5) / 4)
    assert 0 <= found.low < found.high <= 1
    alone = auroc([Contrast(ordinary, strange[:1] * 1 + [np.zeros(0)] * 2, True)])
    assert np.isnan(alone.low)


# Truths.


def test_correlations_against_scipy() -> None:
    columns = RNG.normal(size=(60, 4))
    columns[:, 1] += columns[:, 3]
    columns[:, 2] = np.round(columns[:, 2] + 0.5 * columns[:, 3])  # with ties
    found = related([Points(columns, np.arange(60) // 4)])
    pairs = {"aleatoric_spread": (0, 2), "epistemic_rarity": (1, 3), "aleatoric_rarity": (0, 3), "truths": (2, 3)}
    for name, (i, j) in pairs.items():
        assert found.spearman[name].value == pytest.approx(stats.spearmanr(columns[:, i], columns[:, j])[0])
        assert found.pearson[name].value == pytest.approx(stats.pearsonr(columns[:, i], columns[:, j])[0])
        assert found.spearman[name].low < found.spearman[name].value < found.spearman[name].high
    # A partial correlation is that of what two regressions leave.
    ranks = stats.rankdata(columns, axis=0)
    rest = [ranks[:, i] - np.polyval(np.polyfit(ranks[:, 3], ranks[:, i], 1), ranks[:, 3]) for i in (1, 2)]
    assert found.given["epistemic_spread"].value == pytest.approx(stats.pearsonr(*rest)[0])


def test_what_an_agent_does_not_estimate_does_not_correlate() -> None:
    columns = RNG.normal(size=(30, 4))
    columns[:, 0] = np.nan
    columns[:, 1] = 2.0  # says the same of everything
    found = related([Points(columns, np.arange(30))])
    assert np.isnan(found.spearman["aleatoric_spread"].value)
    assert np.isnan(found.pearson["epistemic_rarity"].value)
    assert np.isfinite(found.spearman["truths"]).all()
