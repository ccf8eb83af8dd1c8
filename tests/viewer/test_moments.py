"""Which frames are worth seeing."""

import dataclasses

import numpy as np
import pytest

from ceqr.agents.base import Beliefs
from ceqr.viewer.moments import moments, peaks, surprise
from ceqr.viewer.record import Episode
from tests.viewer.subjects import invented


def _episode(**beliefs: np.ndarray | None) -> Episode:
    """Five frames with two actions, of which the first is greedy and the second is done in the third frame."""
    mean = np.array([[1, 0], [2, 0], [3, 9], [4, 0], [5, 0]], np.float32)
    made = invented(5, 2, 3, np.zeros((5, 1)))
    return dataclasses.replace(
        made, greedy=np.zeros(5, int), action=np.array([0, 0, 1, 0, 0]), reward=np.array([1, 0, 0, 0, 2], np.float32),
        beliefs=Beliefs(mean, **beliefs), end="terminated",
    )  # fmt: skip


def test_surprise_is_the_error_of_a_step_in_predicted_spreads() -> None:
    errors = np.abs(np.array([1 + 0.5 * 2 - 1, 0.5 * 3 - 2, 0.5 * 4 - 9, 0.5 * 5 - 4, 2 - 5]))
    np.testing.assert_allclose(surprise(_episode(), 0.5), errors)  # no spread is predicted
    doubt = np.array([[1, 1], [2, 1], [1, 4], [0, 1], [0.5, 1]], np.float32)  # of what was done: 1, 2, 4, 0, 0.5
    np.testing.assert_allclose(surprise(_episode(epistemic=doubt), 0.5), errors / [1, 2, 4, 1, 1])  # the median is 1
    quantiles = doubt[..., None] * np.array([-1, 1, -1, 1], np.float32)
    np.testing.assert_allclose(surprise(_episode(quantiles=quantiles), 0.5), errors / [1, 2, 4, 1, 1])


def test_nobody_knows_what_came_of_a_step_that_was_cut_off() -> None:
    cut = dataclasses.replace(_episode(), end="cut")
    assert np.isnan(surprise(cut, 0.5)).tolist() == [False] * 4 + [True]


def test_moments_are_peaks_and_lie_apart() -> None:
    values = np.zeros(200)
    values[[20, 22, 100, 150, 151, 199]] = [5, 4, 9, 3, 3, 7]
    assert peaks(values, most=4) == [100, 199, 20, 150]  # 22 is near a higher one, and 151 near its like
    assert peaks(values, most=2) == [100, 199]
    assert peaks(np.linspace(0, 1, 100)) == [99]  # a slope has but one top
    assert peaks(np.full(9, 2.0)) == []
    assert peaks(np.array([])) == []
    plain = np.concatenate([[5.0], np.ones(100) + 1e-6 * np.arange(100) % 3e-6])
    assert peaks(plain) == [0]  # what is rounded does not stand out
    assert peaks(np.array([np.nan, 1.0, 2.0])) == [2]


def test_an_agent_without_doubt_is_never_least_certain() -> None:
    assert {moment.kind for moment in moments(_episode(), 0.5)} == {"surprise"}
    doubt = np.arange(10, dtype=np.float32).reshape(5, 2)
    found = moments(_episode(epistemic=doubt), 0.5)
    (least_certain,) = [moment for moment in found if moment.kind == "doubt"]
    assert (least_certain.frame, least_certain.value) == (4, pytest.approx(8))
    assert [moment.frame for moment in found] == sorted(moment.frame for moment in found)
