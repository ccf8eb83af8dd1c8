"""The scikit-learn estimator: intervals, and two uncertainties, for anyone with a table of data."""

import math
import sys
from collections.abc import Iterator
from numbers import Integral, Real
from typing import Any, Self

import jax
import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from ceqr.conformal import Rarity, least_needed
from ceqr.losses import FLOOR, VARIANTS
from ceqr.memory import GIB, free_memory
from ceqr.networks import phi_size, projection
from ceqr.progress import Progress
from ceqr.regression import conformal, evidence, network
from ceqr.regression.training import Rows, train

PREDICTED_ROWS = 4096  # at a time, so that memory does not grow with X
PREDICTED_UNITS = 2**24  # of one hidden layer at a time, over all rows
LARGEST = 1e100  # magnitude of a number: squares of larger ones, and of what a network makes of them, overflow
ROUNDING = 1e-12  # relative: more than rounding makes of a prediction, less than anyone can see


class EvidentialQuantileRegressor(RegressorMixin, BaseEstimator):
    """Regression with calibrated intervals and with epistemic uncertainty that rises off the data.

    A neural network predicts a point, the two percentiles that bound the central interval of the given coverage, and
    for each of them the evidence behind it. See docs/regression.md for the equations. Inputs and target are
    standardised inside.

    Parameters
    ----------
    coverage : float, default=0.9
        The share of targets that the interval should contain. Its bounds are the percentiles (1 - coverage) / 2 and
        (1 + coverage) / 2.
    hidden : tuple of int, default=(128, 128)
        Units of each hidden layer; () is a linear model.
    activation : {"relu", "silu", "tanh"}, default="relu"
        What follows a hidden layer. Features that keep growing off the data ("relu", "silu") make the conjugate
        evidence fall there; "tanh" saturates.
    epochs : int, default=100
        Passes over the training rows, at most.
    batch_size : int or "auto", default="auto"
        Rows of one update. "auto" is about a fiftieth of them, a power of two from 16 to 128.
    learning_rate : float, default=1e-3
        Adam's, at the start; it falls to zero along half a cosine.
    lambda_reg : float, default=0.05
        Strength of the evidence regulariser.
    lambda_cal : float, default=0.5
        Share of sharpness, as against coverage, in the interval's calibration.
    calibration : {"paper", "released", "none"}, default="paper"
        The interval's calibration: the paper's equations, what its authors' code computes, or none at all (only with
        location="joint", since gamma then learns from the likelihood alone).
    location : {"calibrated", "joint"}, default="calibrated"
        Whether the interval's bounds learn from the calibration alone or also, as the paper prints it, from the
        likelihood, which draws them inwards.
    evidence : {"conjugate", "learned"}, default="conjugate"
        Whether nu is the posterior's count of observations near an input or, as the paper prints it, an output of the
        network, which the likelihood cannot identify.
    early_stopping : bool, default=True
        Hold out `validation_fraction` of the rows, stop when they have not been predicted better for 20 epochs, and
        go back to the parameters that predicted them best.
    validation_fraction : float, default=0.1
        Share of the rows (after those for `conformal`) that early stopping watches.
    conformal : bool, default=False
        Hold out `conformal_fraction` of the rows and move the bounds by their conformity quantile: the interval then
        covers at least `coverage` of new rows from the same distribution, whatever the network has learned.
        `predict_novelty` stands on them, too.
    conformal_fraction : float, default=0.25
        Share of the rows that `conformal` holds out.
    random_state : int, RandomState instance or None, default=None
        Seeds initial weights, the order of the rows, and what is held out.
    verbose : bool, default=False
        Show a progress bar.

    Attributes
    ----------
    n_features_in_ : int
        Number of columns seen in `fit`.
    feature_names_in_ : ndarray of str
        Their names, where X had names that are strings.
    parameters_ : dict
        The network's weights and biases as NumPy arrays.
    precision_factor_ : ndarray or None
        Cholesky factor of the conjugate evidence's precision matrix.
    conformal_widening_ : float
        How far `conformal` moved both bounds outwards (negative: inwards), in units of y; 0 without it.
    rarity_ : tuple of two ndarrays, or None
        The epistemic uncertainties of the rows held out by `conformal`, ascending, and p-values; None without it.
    n_iter_ : int
        Epochs trained.
    best_epoch_ : int
        The epoch that the parameters are from.
    loss_curve_ : ndarray
        The mean training loss of each epoch.
    validation_scores_ : ndarray or None
        Early stopping's score after each epoch: squared error plus interval score, on the standardised target.

    Examples
    --------
    >>> import numpy as np
    >>> from ceqr import EvidentialQuantileRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-2, 2, (500, 1))
    >>> y = X[:, 0] ** 2 + rng.normal(0, 0.3, 500)
    >>> model = EvidentialQuantileRegressor(random_state=0).fit(X, y)
    >>> lower, upper = model.predict_interval(X)
    >>> aleatoric, epistemic = model.predict_uncertainty([[0.0], [8.0]])
    >>> bool(epistemic[1] > 3 * epistemic[0])
    True
    """

    def __init__(
        self,
        coverage: float = 0.9,
        *,
        hidden: tuple[int, ...] = (128, 128),
        activation: str = "relu",
        epochs: int = 100,
        batch_size: int | str = "auto",
        learning_rate: float = 1e-3,
        lambda_reg: float = 0.05,
        lambda_cal: float = 0.5,
        calibration: str = "paper",
        location: str = "calibrated",
        evidence: str = "conjugate",
        early_stopping: bool = True,
        validation_fraction: float = 0.1,
        conformal: bool = False,
        conformal_fraction: float = 0.25,
        random_state: Any = None,
        verbose: bool = False,
    ):
        self.coverage = coverage
        self.hidden = hidden
        self.activation = activation
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.lambda_reg = lambda_reg
        self.lambda_cal = lambda_cal
        self.calibration = calibration
        self.location = location
        self.evidence = evidence
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.conformal = conformal
        self.conformal_fraction = conformal_fraction
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fits the network, and the evidence and the conformal correction after it.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)
        sample_weight : array-like of shape (n_samples,), default=None
            How many observations each row stands for: a weight of 2 is the row given twice, 0 the row left out.
            Twice the weight is twice the evidence.

        Returns
        -------
        self : the fitted estimator
        """
        self.check_parameters()
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        y = y.astype(np.float64)
        weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        if not np.any(weight > 0):
            raise ValueError("Sample weights must contain at least one non-zero number.")
        for name, values in (("X", X), ("y", y), ("sample_weight", weight)):
            _check_magnitude(name, values)
        self.check_memory(X.shape[1])
        rng = check_random_state(self.random_state)
        kept, calibrating = self._hold_out_for_conformal(rng, distinct(X, y, weight))
        # From here on, all is of the kept rows alone: the guarantee holds only for bounds that have seen nothing of the
        # others, not even through the mean that they are standardised by.
        self.x_mean_, self.x_scale_ = _centre_and_scale(kept.x, kept.weight)
        self.y_mean_, self.y_scale_ = map(float, _centre_and_scale(kept.y, kept.weight))
        kept = Rows((kept.x - self.x_mean_) / self.x_scale_, (kept.y - self.y_mean_) / self.y_scale_, kept.weight)
        learning, watched = self._hold_out_for_validation(rng, kept)
        self._train(rng, learning, watched)
        self._count_evidence(kept)
        self.conformal_widening_ = 0.0 if calibrating is None else self._widening(calibrating)
        self.rarity_ = None if calibrating is None else tuple(self._rarity(calibrating))
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The point prediction, an estimate of the mean: (n_samples,)."""
        batches = self._in_batches(self._checked(X))
        return np.concatenate([self.y_mean_ + self.y_scale_ * point for point, *_ in batches])

    def predict_interval(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper bound of the interval, each (n_samples,)."""
        lower, upper = self._percentiles(self._checked(X))
        lower, upper = lower - self.conformal_widening_, upper + self.conformal_widening_
        # An interval tightened to nothing is its middle.
        middle = (lower + upper) / 2
        return np.minimum(lower, middle), np.maximum(upper, middle)

    def predict_uncertainty(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Aleatoric and epistemic uncertainty in units of y, each (n_samples,).

        Aleatoric is the distance of the two percentiles, the world's noise. Epistemic is the mean width of the belief
        about where they are, the model's own doubt.
        """
        batches = [(upper - lower, epistemic) for _, lower, upper, epistemic in self._in_batches(self._checked(X))]
        aleatoric, epistemic = (self.y_scale_ * np.concatenate(each) for each in zip(*batches, strict=True))
        return aleatoric, epistemic

    def predict_novelty(self, X: Any) -> np.ndarray:
        """The conformal p-value of the epistemic uncertainty, from the rows that `conformal` held out: (n_samples,).

        Small means unlike the data. A new row from the same distribution has one of at most a with probability at most
        a, so `predict_novelty(X) <= 0.01` takes at most 1 % of such rows for strange.
        """
        X = self._checked(X)
        if self.rarity_ is None:
            raise ValueError("predict_novelty needs rows that were held out: fit with conformal=True.")
        return Rarity(*self.rarity_).of(self._epistemic(X))

    # -----------------------------------------------------------------------------------------------------
    # The parts of fit.

    def _train(self, rng: np.random.RandomState, rows: Rows, watched: Rows | None) -> None:
        objective = self._objective()
        hidden = tuple(self.hidden)
        parameters = network.initial(rng, rows.x.shape[1], hidden, objective.outputs)
        size = phi_size(hidden[-1] if hidden else rows.x.shape[1])
        nu = evidence.mean_nu(float(np.sum(rows.weight)), size)
        batch_size = automatic_batch_size(len(rows.y)) if self.batch_size == "auto" else int(self.batch_size)
        title = type(self).__name__
        with Progress(title, int(self.epochs), unit="epochs", quiet=not self.verbose) as progress:
            fitted = train(
                rng,
                parameters,
                rows,
                watched,
                objective,
                network.Strengths(float(self.lambda_reg), float(self.lambda_cal), nu),
                int(self.epochs),
                batch_size,
                float(self.learning_rate),
                lambda epoch, loss: progress.update(epoch, f"loss {loss:.4g}"),
            )
        finite = all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(fitted.parameters))
        if not finite or fitted.best_epoch == 0:  # no epoch had a score that is a number
            raise ValueError(
                f"Training diverged: a learning rate of {self.learning_rate} is too large for these data; "
                "take a smaller one."
            )
        self.parameters_ = jax.tree.map(lambda leaf: leaf.astype(np.float64), fitted.parameters)
        self.loss_curve_, self.validation_scores_ = fitted.losses, fitted.scores
        self.n_iter_, self.best_epoch_ = len(fitted.losses), fitted.best_epoch

    def _count_evidence(self, rows: Rows) -> None:
        """The precision matrix over the rows that `conformal` left, with those that early stopping watched."""
        self.projection_ = self.precision_factor_ = None
        if self.evidence == "learned":
            return
        width = self.parameters_["head"]["weight"].shape[0]
        self.projection_ = projection(width)

        def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
            for part in self._slices(len(rows.y)):
                phi = network.features(self.parameters_, rows.x[part], self.activation)
                yield evidence.phi(phi, self.projection_), rows.weight[part]

        size = phi_size(width)
        self.precision_factor_ = evidence.precision_factor(batches(), size)

    def _hold_out_for_validation(self, rng: np.random.RandomState, rows: Rows) -> tuple[Rows, Rows | None]:
        if not self.early_stopping:
            return rows, None
        held = conformal.hold_out(rng, rows.weight, self.validation_fraction)
        if np.sum(held) >= np.sum(rows.weight):
            raise ValueError(
                "Early stopping needs at least 2 rows, one of them to watch, but got n_samples = "
                f"{conformal.rows_held(rows.weight):,.0f}; give more rows or do without it."
            )
        return _shared(rows, rows.weight - held), _shared(rows, held)

    def _hold_out_for_conformal(self, rng: np.random.RandomState, rows: Rows) -> tuple[Rows, Rows | None]:
        if not self.conformal:
            return rows, None
        needed = least_needed(self.coverage)
        held = conformal.hold_out(conformal.shuffling(rng, rows), rows.weight, self.conformal_fraction, needed)
        kept = rows.weight - held
        fewest = 2 if self.early_stopping else 1
        if conformal.rows_held(held) < needed or conformal.rows_held(kept) < fewest:
            raise ValueError(
                f"The conformal correction for a coverage of {self.coverage} holds out at least {needed:,} rows and "
                f"needs {fewest} more to learn from, but got n_samples = {conformal.rows_held(rows.weight):,.0f}; "
                "give more rows or do without it."
            )
        return _shared(rows, kept), _shared(rows, held)

    def _widening(self, held: Rows) -> float:
        lower, upper = self._percentiles(held.x)
        # A new row that equals one of these is inside even if its bounds are rounded otherwise.
        rounding = ROUNDING * max(np.max(np.abs(values)) for values in (lower, upper, held.y))
        return float(conformal.widening(lower, upper, held.y, held.weight, self.coverage) + rounding)

    def _rarity(self, held: Rows) -> Rarity:
        return conformal.rarity_of_rows(self._epistemic(held.x), held.weight, ROUNDING)

    # -----------------------------------------------------------------------------------------------------
    # Prediction.

    def _checked(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        _check_magnitude("X", X)
        return X

    def _percentiles(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Both percentiles as the network predicts them, in units of y."""
        batches = [(lower, upper) for _, lower, upper, _ in self._in_batches(X)]
        lower, upper = (self.y_mean_ + self.y_scale_ * np.concatenate(each) for each in zip(*batches, strict=True))
        return lower, upper

    def _epistemic(self, X: np.ndarray) -> np.ndarray:
        """In units of y."""
        return self.y_scale_ * np.concatenate([epistemic for *_, epistemic in self._in_batches(X)])

    def _in_batches(self, X: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
        """Point, lower, upper and epistemic of the standardised target, a few thousand rows at a time."""
        for part in self._slices(len(X)):
            x = (X[part] - self.x_mean_) / self.x_scale_
            point, raw, inverse_nu, lower, upper = self._bounds(x)
            alpha_1, beta = np.logaddexp(0, raw[1:3]) + FLOOR
            sigma = np.sqrt(beta / alpha_1 * inverse_nu)  # [B, 2], as in losses.uncertainty
            yield point, lower, upper, np.sum(sigma, axis=1)

    def _bounds(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Point, raw evidential outputs, 1 / nu, and both percentiles in order, of standardised inputs."""
        features = network.features(self.parameters_, x, self.activation)
        point, raw = network.split(network.heads(self.parameters_, features))
        if self.precision_factor_ is None:
            inverse_nu = 1 / (np.logaddexp(0, raw[3]) + FLOOR)
        else:
            inverse_nu = evidence.inverse_nu(self.precision_factor_, evidence.phi(features, self.projection_))[:, None]
        return point, raw, inverse_nu, np.min(raw[0], axis=1), np.max(raw[0], axis=1)

    def _slices(self, n: int) -> Iterator[slice]:
        """As many rows at a time that memory grows neither with them nor with the network's width."""
        rows = min(PREDICTED_ROWS, max(1, PREDICTED_UNITS // max(self.hidden, default=1)))
        for start in range(0, n, rows):
            yield slice(start, start + rows)

    # -----------------------------------------------------------------------------------------------------
    # At the door.

    def check_parameters(self) -> None:
        """Parameters are checked in fit, not in the constructor: scikit-learn sets them at any time."""

        def check(ok: bool, name: str, must: str) -> None:
            if not ok:
                raise ValueError(f"{name} must be {must}; got {getattr(self, name)!r}.")

        def number(name: str, low: float, high: float = math.inf, closed: bool = False) -> bool:
            value: Any = getattr(self, name)
            if not isinstance(value, Real) or isinstance(value, bool) or not math.isfinite(value):
                return False
            return low < float(value) < high or (closed and float(value) == low)

        def positive_integer(value: Any) -> bool:
            return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1

        for name in ("coverage", "validation_fraction", "conformal_fraction"):
            check(number(name, 0, 1), name, "a number above 0 and below 1")
        check(number("learning_rate", 0), "learning_rate", "a finite number above 0")
        check(number("lambda_reg", 0, closed=True), "lambda_reg", "a finite number of at least 0")
        check(number("lambda_cal", 0, closed=True) and self.lambda_cal <= 1, "lambda_cal", "a number from 0 to 1")
        check(positive_integer(self.epochs), "epochs", "a whole number of at least 1")
        auto = isinstance(self.batch_size, str) and self.batch_size == "auto"
        check(auto or positive_integer(self.batch_size), "batch_size", "'auto' or a whole number of at least 1")
        layers = isinstance(self.hidden, list | tuple) and all(map(positive_integer, self.hidden))
        check(layers, "hidden", "a tuple of whole numbers of at least 1")
        for name, known in (
            ("activation", tuple(network.ACTIVATIONS)),
            ("calibration", VARIANTS),
            ("location", ("calibrated", "joint")),
            ("evidence", ("conjugate", "learned")),
        ):
            value = getattr(self, name)
            check(isinstance(value, str) and value in known, name, f"one of {', '.join(map(repr, known))}")
        if self.calibration == "none" and self.location == "calibrated":
            raise ValueError(
                "calibration='none' needs location='joint': with location='calibrated' nothing would teach the bounds."
            )

    def check_memory(self, inputs: int) -> None:
        """Refuses, before any of it is taken, a network of so many inputs that does not fit into memory."""
        hidden = tuple(map(int, self.hidden))
        batch = automatic_batch_size(sys.maxsize) if self.batch_size == "auto" else int(self.batch_size)
        needed, free = network.training_bytes(inputs, hidden, self._objective().outputs, batch), free_memory()
        if free is not None and needed > free:
            units = " and ".join(f"{each:,}" for each in hidden)
            raise ValueError(
                f"Hidden layers of {units} units need about {needed / GIB:,.1f} GiB of memory for {inputs:,} inputs, "
                f"but {free / GIB:,.1f} GiB are free; take fewer units."
            )

    def _objective(self) -> network.Objective:
        return network.Objective(float(self.coverage), self.calibration, self.location, self.evidence, self.activation)


def distinct(x: np.ndarray, y: np.ndarray, weight: np.ndarray) -> Rows:
    """Distinct rows of (x, y) in a fixed order, with their weights summed; rows of weight zero are dropped.

    All that follows depends on these alone. So the order of the rows does not matter, and a row repeated is, to the
    last bit, a row with a weight.
    """
    seen = weight > 0
    cells = np.column_stack([x, y])[seen] + 0.0  # there is no -0
    rows, inverse = np.unique(cells, axis=0, return_inverse=True)
    return Rows(rows[:, :-1], rows[:, -1], np.bincount(inverse.ravel(), weights=weight[seen]))


def automatic_batch_size(n: int) -> int:
    """About a fiftieth of the rows, a power of two from 16 to 128: few rows still get many updates."""
    return 2 ** int(np.clip(round(math.log2(max(n, 1) / 50)), 4, 7))


def _centre_and_scale(values: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weighted mean and standard deviation; the deviation of what does not vary counts as one."""
    mean = np.average(values, axis=0, weights=weight)
    scale = np.sqrt(np.average((values - mean) ** 2, axis=0, weights=weight))
    return mean, np.where(scale > 10 * np.finfo(float).eps * np.abs(mean), scale, 1.0)


def _check_magnitude(name: str, values: np.ndarray) -> None:
    largest = np.max(np.abs(values), initial=0.0)
    if largest > LARGEST:
        raise ValueError(
            f"{name} has numbers as large as {largest:.3g}, with which floating-point arithmetic overflows; "
            f"scale them to below {LARGEST:g}."
        )


def _shared(rows: Rows, weight: np.ndarray) -> Rows:
    chosen = weight > 0
    return Rows(rows.x[chosen], rows.y[chosen], weight[chosen])
