"""The paper's synthetic example (its Figure 2), of which everything is known, and what a model makes of it."""

import time
from typing import Any

import numpy as np

from ceqr.regression.estimator import EvidentialQuantileRegressor

TRAINING_ROWS = 10_000
DRAWN_ROWS = 1_000  # test points in the paper and in our picture
TEST_ROWS = 20_000  # test points that measure: with 1,000, coverage in range would be uncertain by 1.3 points
TRAINED, TESTED = 3.0, 6.0  # inputs are uniform on [-3, 3] in training, on [-6, 6] in the test
PRINTED: dict[str, Any] = {"location": "joint", "evidence": "learned"}  # as the paper prints its losses

Metrics = dict[str, float]


def mean(x: np.ndarray) -> np.ndarray:
    """f(x) = sin(3x) cos(2x) + 0.5 exp(-x^2) + x^2 - 0.1 x"""
    return np.sin(3 * x) * np.cos(2 * x) + 0.5 * np.exp(-(x**2)) + x**2 - 0.1 * x


def noise(x: np.ndarray) -> np.ndarray:
    """The noise's standard deviation, 1.5 exp(-0.4 |x|)."""
    return 1.5 * np.exp(-0.4 * np.abs(x))


def draw(rng: np.random.RandomState, rows: int, limit: float) -> tuple[np.ndarray, np.ndarray]:
    """Inputs [rows, 1], uniform on [-limit, limit], and noisy targets [rows]."""
    x = rng.uniform(-limit, limit, rows)
    return x[:, None], mean(x) + noise(x) * rng.standard_normal(rows)


def training_rows(seed: int) -> tuple[np.ndarray, np.ndarray]:
    return draw(np.random.RandomState([seed, 0]), TRAINING_ROWS, TRAINED)


def test_rows(seed: int) -> tuple[np.ndarray, np.ndarray]:
    return draw(np.random.RandomState([seed, 1]), TEST_ROWS, TESTED)


def fit(model: EvidentialQuantileRegressor, seed: int) -> Metrics:
    """Fits the model to that seed's training rows and measures it on its test rows."""
    began = time.perf_counter()
    model.set_params(random_state=seed).fit(*training_rows(seed))
    return {"seed": seed, **measure(model, seed), "fit_seconds": time.perf_counter() - began}


def measure(model: EvidentialQuantileRegressor, seed: int) -> Metrics:
    """Coverage, width, how much epistemic uncertainty rises off the data, how well aleatoric follows the noise."""
    x, y = test_rows(seed)
    lower, upper = model.predict_interval(x)
    aleatoric, epistemic = model.predict_uncertainty(x)
    inside = (lower <= y) & (y <= upper)
    trained = np.abs(x[:, 0]) <= TRAINED
    return {
        "coverage_in_range": float(np.mean(inside[trained])),
        "coverage_overall": float(np.mean(inside)),
        "coverage_in_range_of_drawn_points": float(np.mean(inside[:DRAWN_ROWS][trained[:DRAWN_ROWS]])),
        "mean_width_in_range": float(np.mean((upper - lower)[trained])),
        "mean_width_overall": float(np.mean(upper - lower)),
        "epistemic_ratio": float(np.mean(epistemic[~trained]) / np.mean(epistemic[trained])),
        "aleatoric_correlation": float(np.corrcoef(aleatoric[trained], noise(x[trained, 0]))[0, 1]),
    }


def overall(rows: list[Metrics]) -> dict[str, Metrics]:
    """Mean, least and greatest of every measure over the seeds."""
    names = [name for name in rows[0] if name != "seed"]
    values = {name: [row[name] for row in rows] for name in names}
    return {name: {"mean": float(np.mean(v)), "min": min(v), "max": max(v)} for name, v in values.items()}
