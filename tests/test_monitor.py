"""The alarm: its bets are fair, it is silent while nothing changes, and soon speaks when something does."""

import math

import numpy as np
import pytest
from scipy.integrate import quad

import ceqr
from ceqr.monitor import Bettor, DriftMonitor, payments


def test_bets_are_fair() -> None:
    for i in range(len(payments(0.5))):
        total, _ = quad(lambda p, i=i: payments(p)[i], 0, 1, limit=500)
        assert total == pytest.approx(1, abs=1e-3)
        assert total <= 1 + 1e-6


def test_capital_is_a_martingale() -> None:
    """Whatever came before, the mean capital after one more round is the capital before it."""
    rng = np.random.default_rng(0)
    history = rng.random(20) ** 2

    def after(p: float) -> float:
        bettor = Bettor()
        for each in (*history, p):
            bettor.bet(each)
        return math.exp(bettor.log_capital)

    bettor = Bettor()
    for each in history:
        bettor.bet(each)
    middle = quad(after, 0, 0.5, limit=100)[0] + quad(after, 0.5, 1, limit=100)[0]
    assert middle == pytest.approx(math.exp(bettor.log_capital), rel=5e-3)
    assert math.exp(bettor.log_capital) != pytest.approx(1, abs=0.1)


def test_a_change_is_noticed_soon_in_either_direction_early_or_late() -> None:
    rng = np.random.default_rng(0)
    for shift, calm, within in ((4.0, 0, 10), (-4.0, 0, 10), (4.0, 300, 25)):
        monitor = DriftMonitor({"doubt": rng.normal(size=200), "total": rng.normal(size=200)}, delta=0.01)
        for _ in range(calm):
            assert not monitor.update(doubt=rng.normal(), total=rng.normal())
        while not monitor.update(doubt=rng.normal() + shift, total=rng.normal()):
            assert monitor.episodes < calm + within
        assert monitor.alarmed_at == monitor.episodes
        assert monitor.capital == max(monitor.capitals.values()) >= 100 > monitor.capitals["total"]
        for _ in range(500):  # it stays one, and no number overflows
            assert monitor.update(doubt=rng.normal() + 1e6, total=1e30)
        assert monitor.alarmed_at is not None
        assert monitor.alarmed_at < monitor.episodes
        assert math.isfinite(monitor.capital)


def test_numbers_that_differ_by_rounding_are_ties() -> None:
    """Where all episodes are the same, and two programs disagree about the last bits."""
    monitor = DriftMonitor({"total": np.full(50, np.float32(0.1))})
    for _ in range(500):
        assert not monitor.update(total=0.1)
    assert monitor.capital < 5


def test_mistakes() -> None:
    assert ceqr.DriftMonitor is DriftMonitor
    for reference in ({}, {"a": []}, {"a": [[1.0]]}, {"a": [1.0, math.nan]}):
        with pytest.raises(ValueError, match="reference must have, by name, finite numbers of at least one episode"):
            DriftMonitor(reference)
    for delta in (0, 1, -0.1, math.nan):
        with pytest.raises(ValueError, match="delta must be above 0 and below 1"):
            DriftMonitor({"a": [1.0]}, delta)
    monitor = DriftMonitor({"a": [1.0], "b": [2.0]})
    with pytest.raises(ValueError, match=r"An episode has the numbers a, b, not a\."):
        monitor.update(a=1.0)
    with pytest.raises(ValueError, match="b must be a finite number, not inf"):
        monitor.update(a=1.0, b=math.inf)
    assert monitor.episodes == 0
    assert not monitor.update(a=1.0, b=2.0)
