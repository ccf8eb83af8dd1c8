"""The estimator as scikit-learn and its users meet it.

Most fits here are of 80 to 120 rows of two features with `SMALL`: shapes are padded, so that they share one program.
"""

import os
import pickle
import subprocess
import sys
from typing import Any

import jax.numpy as jnp
import joblib
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures

from ceqr import EvidentialQuantileRegressor, losses
from ceqr.regression import network
from ceqr.regression.estimator import PREDICTED_ROWS, automatic_batch_size, distinct

SMALL = {"hidden": (16,), "epochs": 20, "random_state": 0}

ALL_CHECKS = """
from sklearn.utils.estimator_checks import check_estimator
from ceqr import EvidentialQuantileRegressor
results = check_estimator(EvidentialQuantileRegressor({options}), on_skip=None)
assert len(results) > 50
assert not [result for result in results if result["status"] != "passed"]
"""

IMPORTS = """
import builtins, sys
guilty, original = [], builtins.__import__

def watched(name, importer=None, *rest):
    if name == "fcntl" and importer and importer["__name__"].startswith("ceqr"):
        guilty.append(importer["__name__"])
    return original(name, importer, *rest)

builtins.__import__ = watched
import ceqr.regression, ceqr.regression.table, ceqr.regression.figure
guilty += [name for name in sys.modules if name.startswith("ceqr.training")]
assert not guilty, guilty
"""


def small(**options) -> EvidentialQuantileRegressor:
    return EvidentialQuantileRegressor(**{**SMALL, **options})


def rows(n: int = 120, features: int = 2, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2, 2, (n, features))
    return x, 30 + 5 * x[:, 0] ** 2 + rng.normal(0, 1, n)


def everything(model: EvidentialQuantileRegressor, x: np.ndarray) -> np.ndarray:
    return np.column_stack([model.predict(x), *model.predict_interval(x), *model.predict_uncertainty(x)])


def run(program: str, **environment: str) -> None:
    """Runs a program in a process of its own."""
    command = [sys.executable, "-W", "error::RuntimeWarning", "-c", program]
    result = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    "options", ["hidden=(8,), epochs=20, learning_rate=0.02", pytest.param("", marks=pytest.mark.slow)]
)
def test_every_check_of_scikit_learn_passes(options: str):
    # The check of array API inputs is skipped unless SciPy knows of it when first imported.
    run(ALL_CHECKS.replace("{options}", options), SCIPY_ARRAY_API="1")


def test_regression_needs_nothing_of_the_training_of_agents():
    # Nor does it ask for `fcntl`, which Windows has not.
    run(IMPORTS)


def test_a_fit_is_any_good():
    x, y = rows(1000)
    model = EvidentialQuantileRegressor(random_state=0, epochs=50).fit(x, y)
    assert model.score(*rows(500, seed=1)) > 0.95
    x, y = rows(2000, seed=2)
    lower, upper = model.predict_interval(x)
    assert 0.85 < np.mean((lower <= y) & (y <= upper)) < 0.95
    assert np.mean(upper - lower) < 1.4 * 3.29  # the true interval is 2 * 1.645 wide


def test_percentiles_follow_the_coverage():
    x, y = rows(1000)
    lower, upper = small(coverage=0.5, learning_rate=0.01, epochs=60).fit(x, y).predict_interval(x)
    assert_allclose([np.mean(y < lower), np.mean(y > upper)], [0.25, 0.25], atol=0.08)


def test_the_same_seed_is_the_same_model_and_another_is_not():
    x, y = rows()
    first, again, other = (everything(small(random_state=seed).fit(x, y), x) for seed in (1, 1, 2))
    assert_array_equal(first, again)
    assert not np.allclose(first, other)
    shared = np.random.RandomState(1)
    assert_array_equal(everything(small(random_state=shared).fit(x, y), x), first)
    small(random_state=None).fit(x, y)


@pytest.mark.parametrize("options", [{}, {"conformal": True}, {"early_stopping": False}, {"evidence": "learned"}])
def test_a_weight_is_a_repetition_to_the_last_bit(options: dict):
    x, y = rows()
    weight = np.random.default_rng(1).integers(0, 6, len(y))
    repeated = small(**options).fit(np.repeat(x, weight, axis=0), np.repeat(y, weight))
    weighted = small(**options).fit(x, y, sample_weight=weight)
    assert_array_equal(everything(repeated, x), everything(weighted, x))
    unweighted = small(**options).fit(x, y)
    assert not np.allclose(everything(unweighted, x), everything(weighted, x))


def test_the_order_of_the_rows_does_not_matter():
    x, y = rows()
    order = np.random.default_rng(0).permutation(len(y))
    assert_array_equal(everything(small().fit(x, y), x), everything(small().fit(x[order], y[order]), x))


def test_more_weight_is_more_evidence():
    x, y = rows()
    far = [[9.0, 9.0]]
    once = small().fit(x, y).predict_uncertainty(far)[1]
    often = small().fit(x, y, sample_weight=np.full(len(y), 100.0)).predict_uncertainty(far)[1]
    assert often < 0.5 * once


def test_distinct_rows_by_hand():
    x = np.array([[2.0], [1.0], [2.0], [2.0], [5.0]])
    y = np.array([0.0, 3.0, 0.0, 1.0, 9.0])
    got = distinct(x, y, np.array([1.0, 2.0, 0.5, 1.0, 0.0]))
    assert [each.tolist() for each in got] == [[[1.0], [2.0], [2.0]], [3.0, 0.0, 1.0], [2.0, 1.5, 1.0]]


@pytest.mark.parametrize(("n", "batch"), [(1, 16), (442, 16), (1600, 32), (8000, 128), (10**7, 128)])
def test_automatic_batch_size(n: int, batch: int):
    assert automatic_batch_size(n) == batch


@pytest.mark.parametrize(
    ("evidence", "activation"),
    [("conjugate", "relu"), ("learned", "relu"), ("conjugate", "silu"), ("learned", "tanh")],
)
def test_prediction_in_numpy_is_what_training_computes(evidence: str, activation: str):
    # The same network through JAX and through ceqr.losses.
    x, y = rows()
    model = small(evidence=evidence, activation=activation).fit(x, y)
    standard = jnp.asarray((x - model.x_mean_) / model.x_scale_, jnp.float32)
    features = network.features(model.parameters_, standard, activation)
    point, raw = network.split(network.heads(model.parameters_, features))
    nig = network.nig(raw, 1.0)
    if evidence == "conjugate":
        phi = np.column_stack([features, np.ones(len(x))])
        # By hand: a weighted sum of outer products, and an inverse rather than a Cholesky factor.
        precision = np.eye(17) + sum(np.outer(each, each) for each in phi)
        nu = 1 / np.einsum("bi,ij,bj->b", phi, np.linalg.inv(precision), phi)
        nig = nig._replace(nu=jnp.broadcast_to(jnp.asarray(nu, jnp.float32)[:, None, None], nig.gamma.shape))
    aleatoric, epistemic = losses.uncertainty(nig)
    scale = model.y_scale_
    assert_allclose(model.predict(x), model.y_mean_ + scale * np.asarray(point), rtol=1e-4)
    assert_allclose(model.predict_uncertainty(x)[0], scale * np.asarray(aleatoric), rtol=1e-3, atol=1e-4)
    assert_allclose(model.predict_uncertainty(x)[1], scale * np.asarray(epistemic), rtol=1e-3)
    bounds = model.y_mean_ + scale * np.sort(np.asarray(nig.gamma)[..., 0], axis=1)
    assert_allclose(np.column_stack(model.predict_interval(x)), bounds, rtol=1e-4)


def test_without_a_hidden_layer_evidence_is_that_of_bayesian_linear_regression():
    # scikit-learn's own posterior with the same prior: alpha = lambda = 1, so that Sigma = (I + X^T X)^-1.
    from sklearn.linear_model import BayesianRidge

    x, y = rows(80, features=3)
    model = small(hidden=()).fit(x, y)
    standard = (x - model.x_mean_) / model.x_scale_
    phi = np.column_stack([standard, np.ones(len(x))])
    bayes = BayesianRidge(fit_intercept=False, max_iter=1, alpha_init=1.0, lambda_init=1.0, compute_score=False)
    bayes.coef_, bayes.sigma_, bayes.alpha_ = np.zeros(4), np.linalg.inv(np.eye(4) + phi.T @ phi), 1.0
    bayes.X_offset_, bayes.intercept_ = np.zeros(4), 0.0
    new = np.column_stack([np.random.default_rng(0).normal(0, 3, (20, 3)), np.ones(20)])
    _, predictive = bayes.predict(new, return_std=True)  # sqrt(1 / alpha + phi^T Sigma phi)
    _, _, inverse_nu, *_ = model._bounds(new[:, :3])
    assert_allclose(inverse_nu[:, 0], predictive**2 - 1, rtol=1e-8)


def test_pipelines_searches_and_scores():
    x, y = rows()
    pipeline = make_pipeline(PolynomialFeatures(include_bias=False), small())
    assert pipeline.fit(x, y).predict(x).shape == y.shape
    assert cross_val_score(small(epochs=32, learning_rate=0.02), x, y, cv=3).mean() > 0.5
    search = GridSearchCV(small(), {"learning_rate": [1e-6, 1e-2], "lambda_reg": [0.1]}, cv=3).fit(x, y)
    assert search.best_params_["learning_rate"] == 1e-2
    assert len(search.best_estimator_.predict_interval(x)) == 2


@pytest.mark.parametrize("store", ["pickle", "joblib"])
def test_a_stored_model_predicts_the_same(store: str, tmp_path):
    x, y = rows()
    model = small(conformal=True).fit(x, y)
    if store == "pickle":
        again = pickle.loads(pickle.dumps(model))
    else:
        joblib.dump(model, tmp_path / "model.joblib")
        again = joblib.load(tmp_path / "model.joblib")
    assert_array_equal(everything(model, x), everything(again, x))
    for value in vars(model).values():  # nothing that lives on a device
        assert type(value).__module__.split(".")[0] in ("builtins", "numpy")
    copy: Any = clone(model)
    assert copy.get_params() == model.get_params()
    assert not hasattr(copy, "parameters_")


def test_names_of_pandas_columns():
    x, y = rows()
    frame = pd.DataFrame(x, columns=["width", "height"])
    model = small().fit(frame, pd.Series(y))
    assert_array_equal(model.__dict__["feature_names_in_"], ["width", "height"])
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict_interval(frame[["height", "width"]])
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        model.predict(x)


def test_many_rows_are_predicted_in_parts():
    x, y = rows()
    model = small().fit(x, y)
    many = np.tile(x, (2 * PREDICTED_ROWS // len(x) + 1, 1))
    assert len(many) > 2 * PREDICTED_ROWS
    got = everything(model, many)
    assert_allclose(got, np.tile(everything(model, x), (len(many) // len(x), 1)), rtol=1e-10)


@pytest.mark.parametrize("value", [0.0, 7.0, 1e8])
def test_constant_targets(value: float):
    x, _ = rows()
    model = small(epochs=32).fit(x, np.full(len(x), value))
    assert_allclose(model.predict(x), value, atol=0.5)
    assert np.isfinite(everything(model, x)).all()


def test_constant_columns_and_large_numbers():
    x, y = rows()
    x = np.column_stack([x, np.full(len(x), 1e6), 1e12 * x[:, 0], np.zeros(len(x))])
    assert np.isfinite(everything(small().fit(x, 1e9 * y), x)).all()
    assert np.isfinite(everything(small().fit(x.astype(np.float32), y.astype(np.float32)), x)).all()


@pytest.mark.parametrize(
    ("x", "y", "sentence"),
    [
        ([[1.0], [np.nan]], [1, 2], "NaN"),
        ([[1.0], [2.0]], [1, np.inf], "infinity"),
        ([[1.0], [2.0]], [1, 2, 3], "inconsistent numbers of samples"),
        ([1.0, 2.0], [1, 2], "Reshape your data"),
        ([[1.0], [2.0]], [[1, 2], [3, 4]], "y should be a 1d array"),
        ([[1.0]], [1.0], "n_samples = 1"),
        (np.empty((0, 2)), [], "0 sample"),
        ([[1.0], [-1e308]], [1, 2], r"X has numbers as large as 1e\+308, .* overflows; scale them to below 1e\+100"),
        ([[1.0], [2.0]], [1e308, 2], r"y has numbers as large as 1e\+308"),
    ],
)
def test_bad_input(x, y, sentence: str):
    with pytest.raises(ValueError, match=sentence):
        small().fit(x, y)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"coverage": 1.0}, "coverage must be a number above 0 and below 1; got 1.0"),
        ({"coverage": "high"}, "coverage must be"),
        ({"hidden": (16, 0)}, "hidden must be a tuple of whole numbers"),
        ({"hidden": 16}, "hidden must be a tuple"),
        ({"epochs": 0}, "epochs must be"),
        ({"batch_size": "large"}, "batch_size must be"),
        ({"learning_rate": float("nan")}, "learning_rate must be"),
        ({"lambda_reg": -1}, "lambda_reg must be"),
        ({"lambda_cal": 1.5}, "lambda_cal must be"),
        ({"calibration": "some"}, "calibration must be one of 'paper', 'released', 'none'"),
        ({"location": None}, "location must be one of"),
        ({"evidence": "both"}, "evidence must be one of"),
        ({"activation": "sine"}, "activation must be one of"),
        ({"calibration": "none"}, "needs location='joint'"),
        ({"validation_fraction": 0}, "validation_fraction must be"),
        ({"learning_rate": 1e30}, "Training diverged"),
        (
            {"learning_rate": 1e30, "early_stopping": False},
            "Training diverged: a learning rate of 1e[+]30 is too large",
        ),
        (
            {"hidden": (10**9,)},
            r"Hidden layers of 1,000,000,000 units need about [\d,]+\.\d GiB of memory for 2 inputs, but",
        ),
        ({"hidden": (10**6, 10**6)}, r"Hidden layers of 1,000,000 and 1,000,000 units need about 4[\d,]+\.\d GiB"),
    ],
)
def test_bad_parameters(options: dict, sentence: str):
    model = small(**options)  # the constructor takes anything
    with pytest.raises(ValueError, match=sentence):
        model.fit(*rows())


def test_numbers_too_large_to_predict_from():
    model = small().fit(*rows())
    for method in ("predict", "predict_interval", "predict_uncertainty"):
        with pytest.raises(ValueError, match="X has numbers as large as"):
            getattr(model, method)([[1e200, 0.0]])


def test_the_memory_that_training_takes():
    # 3 * 5 + 6 * 7 parameters by hand, 12 bytes for each hidden unit of 16 rows, and no projection of 5 features.
    assert network.training_bytes(2, (5,), 7, 16) == 48 * 57 + 12 * 16 * 5
    assert network.training_bytes(1, (300,), 7, 1) == 48 * (600 + 301 * 7) + 12 * 300 + 8 * 300 * 256


def test_an_unfitted_model_says_so():
    for method in ("predict", "predict_interval", "predict_uncertainty"):
        with pytest.raises(NotFittedError):
            getattr(small(), method)([[1.0]])


@pytest.mark.parametrize(
    "options",
    [
        {"location": "joint"},
        {"location": "joint", "calibration": "none"},
        {"calibration": "released"},
        {"evidence": "learned", "location": "joint"},
        {"hidden": (8, 300)},  # above 256 features, evidence is counted in a projection
        {"batch_size": 7},
        {"batch_size": 1000},
    ],
)
def test_every_option_fits(options: dict):
    x, y = rows()
    assert np.isfinite(everything(small(**options).fit(x, y), x)).all()


def test_location_decides_what_teaches_the_bounds():
    # The likelihood is symmetric about gamma and so draws both bounds to the centre.
    x, y = rows()
    options = {"epochs": 32, "learning_rate": 0.01, "evidence": "learned"}
    widths = {}
    for location in ("calibrated", "joint"):
        lower, upper = small(location=location, **options).fit(x, y).predict_interval(x)
        widths[location] = np.mean(upper - lower)
    assert widths["joint"] < 0.9 * widths["calibrated"]


def test_progress_is_shown_only_when_asked_for(capsys: pytest.CaptureFixture[str]):
    x, y = rows()
    small().fit(x, y)
    assert capsys.readouterr() == ("", "")
    small(verbose=True).fit(x, y)
    assert "20 of 20 epochs" in capsys.readouterr().err
