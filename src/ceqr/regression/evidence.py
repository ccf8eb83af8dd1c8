"""Conjugate evidence: how much data supports an input, in closed form.

A normal-inverse-gamma prior on a linear model of features phi has the posterior

    1 / nu(x) = phi(x)^T (kappa I + sum_i w_i phi_i phi_i^T)^-1 phi(x),

so nu counts the observations that speak for x. phi is the network's last hidden layer with a constant 1 appended.
"""

from collections.abc import Iterable

import numpy as np
from scipy.linalg import solve_triangular

from ceqr.networks import MOST_FEATURES

KAPPA = 1.0  # the prior's precision


def projection_bytes(features: int) -> int:
    return 0 if features <= MOST_FEATURES else 8 * features * MOST_FEATURES


def phi(features: np.ndarray, projected: np.ndarray | None) -> np.ndarray:
    """[B, P]: features, projected if they are many, and a constant."""
    if projected is not None:
        features = features @ projected
    return np.concatenate([features, np.ones((len(features), 1))], axis=1)


def precision_factor(batches: Iterable[tuple[np.ndarray, np.ndarray]], size: int) -> np.ndarray:
    """The lower Cholesky factor [P, P] of the precision matrix of batches (phi [B, P], weight [B])."""
    precision = KAPPA * np.eye(size)
    for each, weight in batches:
        precision += each.T @ (weight[:, None] * each)
    return np.linalg.cholesky(precision)


def inverse_nu(factor: np.ndarray, phi: np.ndarray) -> np.ndarray:
    """1 / nu [B] of phi [B, P]."""
    return np.sum(solve_triangular(factor, phi.T, lower=True, check_finite=False) ** 2, axis=0)


def mean_nu(weight: float, size: int) -> float:
    """What nu is on a training row, on average: its inverses there sum to at most the number of features.

    This stands for nu in the likelihood that fits alpha and beta, where the posterior is not yet known.
    """
    return max(1.0, weight / size)
