"""The compiled training program: what it draws, when it stops, what it costs."""

import gc
import os
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from ceqr import EvidentialQuantileRegressor
from ceqr.regression import training
from ceqr.regression.training import draw


def test_with_equal_weights_a_draw_is_a_permutation():
    rows = draw(np.random.RandomState(0), np.full(1000, 0.3), 1000)
    assert_array_equal(np.sort(rows), np.arange(1000))
    assert (rows != np.arange(1000)).any()
    twice = draw(np.random.RandomState(0), np.ones(1000), 2000)
    assert_array_equal(np.bincount(twice), np.full(1000, 2))


def test_rows_are_drawn_as_often_as_their_weight_says():
    weight = np.array([1.0, 2.0, 0.0, 4.0, 0.5])
    counts = np.bincount(draw(np.random.RandomState(0), weight, 75), minlength=5)
    assert np.all(np.abs(counts - 10 * weight) < 1)
    assert draw(np.random.RandomState(0), np.array([1.0, 0.0]), 8).max() == 0


def data(n: int = 120) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 2))
    return x, x[:, 0] + rng.normal(size=n)


def test_early_stopping_stops_and_goes_back_to_the_best_epoch():
    x, y = data()
    model = EvidentialQuantileRegressor(hidden=(16,), epochs=64, learning_rate=0.03, random_state=0).fit(x, y)
    assert model.validation_scores_ is not None
    assert model.n_iter_ == model.best_epoch_ + training.PATIENCE < 64
    assert model.best_epoch_ == 1 + np.argmin(model.validation_scores_)
    assert len(model.loss_curve_) == len(model.validation_scores_) == model.n_iter_
    assert model.loss_curve_[-1] < model.loss_curve_[0]


def test_the_best_epoch_does_not_depend_on_how_epochs_are_grouped(monkeypatch: pytest.MonkeyPatch):
    x, y = data()
    options = {"hidden": (16,), "epochs": 64, "learning_rate": 0.03, "random_state": 0}
    together = EvidentialQuantileRegressor(**options).fit(x, y)
    monkeypatch.setattr(training, "CHUNK", 1)  # one epoch at a time
    alone = EvidentialQuantileRegressor(**options).fit(x, y)
    assert_array_equal(together.loss_curve_, alone.loss_curve_)
    assert_array_equal(together.predict(x), alone.predict(x))


def test_without_early_stopping_all_epochs_are_trained():
    x, y = data()
    model = EvidentialQuantileRegressor(hidden=(16,), epochs=32, learning_rate=0.1, early_stopping=False).fit(x, y)
    assert model.n_iter_ == model.best_epoch_ == 32 > training.PATIENCE
    assert model.validation_scores_ is None


def programs() -> int:
    program: Any = training._epochs
    return program._cache_size()


def test_other_numbers_need_no_new_program():
    x, y = data()
    options = {"hidden": (16,), "batch_size": 16, "random_state": 0}
    EvidentialQuantileRegressor(epochs=20, **options).fit(x, y)
    before = programs()
    for n in (115, 100):
        others = {"learning_rate": 0.01, "lambda_reg": 0.3, "lambda_cal": 0.2, "epochs": 22}
        EvidentialQuantileRegressor(**options, **others).fit(x[:n], y[:n])
    assert programs() == before


def resident() -> float:
    """Megabytes in memory."""
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs Linux to tell its memory")
def test_memory_does_not_grow_with_epochs():
    x, y = data(4000)
    options = {"hidden": (), "batch_size": 4096, "early_stopping": False, "random_state": 0}
    EvidentialQuantileRegressor(epochs=40, **options).fit(x, y)
    before = resident()
    EvidentialQuantileRegressor(epochs=600, **options).fit(x, y)
    # The order of the rows alone, were it drawn for all epochs at once, would take 39 MB.
    assert resident() - before < 15
