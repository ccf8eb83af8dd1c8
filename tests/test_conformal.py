"""Conformal arithmetic, by hand and by enumeration over which episode is the new one."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ceqr.conformal import discrepancy, least_needed, quantile, rarity, shares, smoothed_p_value

EPISODES = st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=4), min_size=2, max_size=7)


def _flat(episodes: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    return np.concatenate([np.array(e, float) for e in episodes]), shares(np.array([len(e) for e in episodes]))


def test_by_hand() -> None:
    # Three episodes of masses 1/4 each, and 1/4 at infinity: 2 of mass 1/4, then 1, 5 of 1/8 each, then 3 of 1/4.
    scores, weight = _flat([[2], [1, 5], [3]])
    np.testing.assert_array_equal(weight, [1, 0.5, 0.5, 1])
    assert [quantile(scores, weight, c) for c in (0.1, 0.125, 0.3, 0.375, 0.6, 0.7, 0.75)] == [1, 1, 2, 2, 3, 5, 5]
    assert quantile(scores, weight, 0.76) == math.inf
    found = rarity(scores, weight)
    np.testing.assert_allclose(found.of(np.array([6.0, 5, 4, 3, 2.5, 2, 1, 0])), np.array([2, 3, 3, 5, 5, 7, 8, 8]) / 8)
    assert rarity(scores, weight, 1e-5).of(5 * (1 + 1e-6)) == 3 / 8  # but for rounding it is 5
    assert found.of(5 * (1 + 1e-6)) == 2 / 8
    assert [least_needed(c) for c in (0.5, 0.9, 0.99)] == [1, 9, 99]
    np.testing.assert_array_equal(discrepancy(np.zeros(3), np.ones(3), np.array([-2, 0.25, 4])), [2, -0.25, 3])


@given(EPISODES, st.sampled_from([0.1, 0.5, 0.8, 0.9]))
@settings(max_examples=200, deadline=None)
def test_guarantees_are_exact_on_average_over_the_new_episode(episodes: list[list[int]], level: float) -> None:
    """Exchangeable means that any of them is as likely to be the new one; ties and lengths are arbitrary."""
    covered, small = [], []
    for i, new in enumerate(episodes):
        scores, weight = _flat(episodes[:i] + episodes[i + 1 :])
        covered.append(np.mean(np.array(new) <= quantile(scores, weight, level)))
        small.append(np.mean(rarity(scores, weight).of(np.array(new, float)) <= level + 1e-9))
    assert np.mean(covered) >= level - 1e-9
    assert np.mean(small) <= level + 1e-9


def test_guarantees_are_not_slack() -> None:
    """Without ties coverage is at most 2 / (K + 1) too large; with the steps' weights alike it would be too small."""
    rng = np.random.default_rng(0)
    # Long episodes have small scores: counted step by step, they would outvote the others.
    episodes = [list(rng.random(n) + (2 if n == 1 else 0)) for n in [1] * 20 + [40] * 20]
    ours, pooled = [], []
    for i, new in enumerate(episodes):
        scores, weight = _flat(episodes[:i] + episodes[i + 1 :])
        ours.append(np.mean(np.array(new) <= quantile(scores, weight, 0.8)))
        pooled.append(np.mean(np.array(new) <= quantile(scores, np.ones_like(scores), 0.8)))
    assert 0.8 <= np.mean(ours) <= 0.8 + 2 / 40
    assert np.mean(pooled) < 0.6


@pytest.mark.parametrize("numbers", [(1, 2, 3, 4), (1, 2, 2, 3), (5, 5, 5, 5)])
def test_smoothed_p_values_in_sequence_are_independent_and_uniform(numbers: tuple[int, ...]) -> None:
    """P(p_3 <= a, p_4 <= b) = a b, exactly, over all orders; each p-value is uniform between its two extremes."""
    below: dict[tuple[float, float], list[float]] = {}
    for order in itertools.permutations(numbers):
        cdf = []
        for n in (2, 3):
            before, new = np.array(order[:n]), order[n]
            low, high = (smoothed_p_value(before, new, chance) for chance in (0.0, 1.0))
            cdf.append(lambda a, low=low, high=high: np.clip((a - low) / (high - low), 0, 1))
        for a, b in itertools.product((0.1, 0.3, 0.5, 0.9), repeat=2):
            below.setdefault((a, b), []).append(cdf[0](a) * cdf[1](b))
    for (a, b), each in below.items():
        assert np.mean(each) == pytest.approx(a * b)
