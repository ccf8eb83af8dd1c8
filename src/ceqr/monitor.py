"""An alarm for a deployed agent: it bets against "nothing has changed", and alarms when it has won enough.

Each episode gives a few numbers, such as its return and the mean doubt of its steps. As long as the world is as it was,
an episode's numbers are exchangeable with those of the calibration, so each has a p-value that is uniform and
independent of those before. Bets on such p-values are fair: the capital is a test martingale, and the chance that it
ever grows by 1/delta, however long one watches, is at most delta (Ville's inequality; Vovk, Nouretdinov and Gammerman,
2003; Vovk, 2021).
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ceqr.conformal import smoothed_p_value

POWERS = (0.25, 0.5, 0.75)  # bets: e p^(e - 1) and e (1 - p)^(e - 1), the more daring the smaller e
JUMPS = (1e-4, 1e-3, 1e-2, 1e-1)  # share of the capital that changes its bet each time: how soon a change may come
SMALLEST = 1e-12  # p-value: bets are bounded, which only loses
LARGEST = 1e300  # capital that is told
DIGITS = 2**12  # numbers closer than that (relative) are ties: programs that differ in rounding must agree on them


class Bettor:
    """Capital that is bet on p-values: a test martingale as long as they are independent and uniform.

    It is spread over bets on small p-values, on large ones and on neither. In each round a share of it is spread anew,
    so that it is never too late to find the right bet (the Simple Jumper of Vovk et al., 2021, with power functions);
    how large that share should be is not known, so there is a bettor of each kind, and the capital is their mean.
    """

    def __init__(self) -> None:
        bets = 1 + 2 * len(POWERS)
        self._spread = np.full((len(JUMPS), bets), 1 / bets)
        self._log = np.zeros(len(JUMPS))

    @property
    def log_capital(self) -> float:
        most = self._log.max()
        return float(most + np.log(np.mean(np.exp(self._log - most))))

    def bet(self, p: float) -> None:
        """One round."""
        jump = np.array(JUMPS)[:, None]
        spread = (1 - jump) * self._spread + jump / self._spread.shape[1]
        won = spread * payments(p)
        growth = won.sum(1)
        self._spread = won / growth[:, None]
        self._log += np.log(growth)


def payments(p: float) -> np.ndarray:
    """What each bet pays for a p-value; each integrates to 1 over [0, 1]."""
    power = np.array(POWERS)
    small, large = max(p, SMALLEST), max(1 - p, SMALLEST)
    return np.concatenate([[1.0], power * small ** (power - 1), power * large ** (power - 1)])


def rounded(numbers: Any) -> np.ndarray:
    """To about four digits."""
    mantissa, exponent = np.frexp(np.asarray(numbers, float))
    return np.ldexp(np.round(mantissa * DIGITS) / DIGITS, exponent)


class DriftMonitor:
    """Watches a deployed agent, episode by episode, for any change of the world or of the agent.

        monitor = agent.monitor(delta=0.01)  # of a calibrated agent
        ...
        if monitor.update(doubt=np.mean(doubts), total=sum(rewards)):  # after each episode
            print(f"something has changed: capital {monitor.capital:.3g}")

    As long as nothing changes, it ever alarms with probability at most delta. Each kind of number has a bettor of its
    own with an equal part of the stake, and the first to reach 1/delta raises the alarm: p-values of two kinds may
    depend on each other, and the mean of two martingales need not be one.

    Examples:
        >>> import numpy as np
        >>> from ceqr import DriftMonitor
        >>> rng = np.random.default_rng(0)
        >>> monitor = DriftMonitor({"total": rng.normal(100, 10, 200)})  # the returns of 200 episodes
        >>> any(monitor.update(total=x) for x in rng.normal(100, 10, 100))  # nothing has changed
        False
        >>> any(monitor.update(total=x) for x in rng.normal(60, 10, 100))  # now it has
        True
        >>> monitor.alarmed_at - 100 < 30  # it took less than 30 episodes to notice
        True
    """

    def __init__(self, reference: Mapping[str, Any], delta: float = 0.01, seed: int = 0):
        """Before the first episode.

        Args:
            reference: For each kind of number, those of episodes from before, such as `agent.calibration.reference`.
            delta: The probability of ever alarming although nothing has changed.
            seed: Of the chance that breaks ties.
        """
        if not 0 < delta < 1:
            raise ValueError(f"delta must be above 0 and below 1, not {delta!r}.")
        self.delta = delta
        self.episodes = 0
        """Episodes so far."""
        self.alarmed_at: int | None = None
        """The episode, counted from 1, at which it alarmed."""
        self._seen = {name: rounded(numbers) for name, numbers in reference.items()}
        if not self._seen or any(n.ndim != 1 or not len(n) or not np.isfinite(n).all() for n in self._seen.values()):
            raise ValueError("reference must have, by name, finite numbers of at least one episode.")
        self._bettors = {name: Bettor() for name in self._seen}
        self._chance = np.random.default_rng(seed)

    @property
    def alarm(self) -> bool:
        """Whether the capital has ever passed 1/delta."""
        return self.alarmed_at is not None

    @property
    def capital(self) -> float:
        """What the stake of 1 has become: the largest part of it, the others counted as nothing."""
        return max(self.capitals.values())

    @property
    def capitals(self) -> dict[str, float]:
        """What each kind of number has made of its own part."""
        logs = {name: b.log_capital - math.log(len(self._bettors)) for name, b in self._bettors.items()}
        return {name: min(math.exp(min(log, 700.0)), LARGEST) for name, log in logs.items()}

    def update(self, **numbers: float) -> bool:
        """Takes the numbers of one more episode; whether there is, or was, an alarm."""
        if numbers.keys() != self._seen.keys():
            raise ValueError(f"An episode has the numbers {', '.join(self._seen)}, not {', '.join(numbers) or 'none'}.")
        for name, number in numbers.items():
            if not math.isfinite(number):
                raise ValueError(f"{name} must be a finite number, not {number!r}.")
        for name, seen in self._seen.items():
            new = float(rounded(numbers[name]))
            self._bettors[name].bet(smoothed_p_value(seen, new, self._chance.random()))
            self._seen[name] = np.append(seen, new)
        self.episodes += 1
        if self.alarmed_at is None and self.capital >= 1 / self.delta:
            self.alarmed_at = self.episodes
        return self.alarm
