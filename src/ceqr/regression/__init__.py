"""Calibrated evidential quantile regression on tables: the paper's losses as a scikit-learn estimator."""

from ceqr.regression.estimator import EvidentialQuantileRegressor

__all__ = ["EvidentialQuantileRegressor"]
