"""What is true of returns in a maze under a policy, by dynamic programming on its model.

Means and deviations are exact: both are solutions of linear equations. The whole distribution is found on a grid of
returns (categorical dynamic programming, as in C51): what one step makes of a distribution is divided between the two
nearest points of the grid, until nothing changes any more. Dividing keeps the mean and adds a little to the variance;
`Truth.blur` says how much. All of it is of episodes without a limit in time, which is what an agent learns that
bootstraps where the limit cuts an episode off.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array

from ceqr.envs.maze.model import Model

POINTS = 2_001
COARSE = 401  # of these, while the range is looked for
SETTLED = 0.1  # points of the grid that probability may still be moved by further sweeps
SWEEPS = 20_000
NEGLIGIBLE = 1e-8  # probability that the grid need not have room for
FAR = 60.0  # standard deviations around the mean, where returns have no bound
WORTH_IT = 0.7  # a range that shrinks by more is looked at more closely
NARROWEST = 1e-3  # range of a grid, where all returns are alike


@dataclass(frozen=True)
class Truth:
    """The discounted return of every action in every cell, with a policy to follow."""

    policy: np.ndarray  # [cells, actions]: probabilities
    discount: float
    mean: np.ndarray  # [cells, actions], exact
    std: np.ndarray  # [cells, actions], exact: the world's own (aleatoric) uncertainty, and the policy's if it draws
    atoms: np.ndarray  # [points]: returns, evenly spaced
    probabilities: np.ndarray  # [cells, actions, points]

    @property
    def blur(self) -> float:
        """The largest standard deviation of what the grid added to a return; quantiles are right to a few of it."""
        grid = self.probabilities @ self.atoms**2 - (self.probabilities @ self.atoms) ** 2
        return float(np.sqrt(np.maximum(grid - self.std**2, 0)).max())

    def cdf(self, returns: Any) -> np.ndarray:
        """The probability of a return of at most that: [cells, actions, n] for n returns, [cells, actions] for one."""
        below = np.concatenate([np.zeros_like(self.probabilities[..., :1]), self.probabilities.cumsum(-1)], -1)
        # A return that lies on a point of the grid counts as reached, rounding or not.
        slack = 1e-9 * max(1.0, float(np.abs(self.atoms).max()))
        return below[..., np.searchsorted(self.atoms, np.asarray(returns, float) + slack, side="right")]

    def quantiles(self, levels: Any) -> np.ndarray:
        """The least returns whose cdf reaches those levels: [cells, actions, n] for n levels."""
        levels = np.atleast_1d(np.asarray(levels, float))
        if not ((levels > 0) & (levels < 1)).all():
            raise ValueError("Levels of quantiles must lie between 0 and 1.")
        cumulated = self.probabilities.cumsum(-1)
        flat = cumulated.reshape(-1, cumulated.shape[-1])
        index = np.stack([np.searchsorted(row, levels - 1e-9) for row in flat]).clip(max=len(self.atoms) - 1)
        return self.atoms[index].reshape(*cumulated.shape[:-1], len(levels))


def as_probabilities(policy: Any, cells: int, actions: int) -> np.ndarray:
    """A policy as probabilities [cells, actions], from such or from one action for each cell [cells]."""
    policy = np.asarray(policy)
    if policy.shape == (cells,) and policy.dtype.kind in "iu" and ((policy >= 0) & (policy < actions)).all():
        return np.eye(actions)[policy]
    if policy.shape == (cells, actions) and policy.dtype.kind in "fiu":
        rows = policy.astype(float)
        if (rows >= 0).all() and np.allclose(rows.sum(1), 1, atol=1e-5):
            return rows / rows.sum(1, keepdims=True)
    raise ValueError(
        f"A policy must be whole numbers from 0 to {actions - 1} of shape ({cells},), or probabilities of shape "
        f"({cells}, {actions}) whose rows sum to one."
    )


def check_discount(discount: float) -> float:
    if not 0 <= discount <= 1:
        raise ValueError(f"The discount must lie between 0 and 1, not {discount}.")
    return float(discount)


def going_on(model: Model) -> np.ndarray:
    """The probability of going on in each cell after each action: [cells, actions, cells]."""
    cells, actions, _ = model.successor.shape
    following = np.zeros((cells, actions, cells))
    at = np.arange(cells)[:, None, None], np.arange(actions)[None, :, None], model.successor
    np.add.at(following, at, model.probability * ~model.terminated)
    return following


def moments(model: Model, policy: np.ndarray, discount: float) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of returns [cells, actions], by two linear solves."""
    cells = len(policy)
    following = going_on(model)
    between = np.einsum("sa,sat->st", policy, following)
    if discount == 1 and not _always_ends(between).all():
        raise ValueError("With this policy some episodes never end, so that a discount of 1 gives them no return.")
    # Cells in which episodes end, and nothing follows, make rows of zeros: never singular.
    paid = (model.probability * model.reward).sum(-1)
    value = np.linalg.solve(np.eye(cells) - discount * between, (policy * paid).sum(1))
    mean = paid + discount * following @ value
    # E[(r + g V)^2] = E[r^2 + 2 r g E[V]] + g^2 E[V^2], less the square of the mean, term by term: a difference of
    # two large numbers would leave rounding where there is no variance at all.
    following_value = ~model.terminated * value[model.successor]
    surprise = model.reward + discount * following_value - mean[..., None]
    own = (model.probability * surprise**2).sum(-1)
    spread = ((policy * (mean - value[:, None]) ** 2).sum(1), (policy * own).sum(1))
    variance = np.linalg.solve(np.eye(cells) - discount**2 * between, sum(spread))
    return mean, np.sqrt(own + discount**2 * following @ variance)


def truth(model: Model, policy: Any, discount: float, points: int = POINTS) -> Truth:
    """Solves for means and deviations, then for distributions on a grid of that many points."""
    cells, actions, _ = model.successor.shape
    policy, discount = as_probabilities(policy, cells, actions), check_discount(discount)
    mean, std = moments(model, policy, discount)
    return Truth(policy, discount, mean, std, *_distribution(model, policy, discount, mean, std, points))


def _always_ends(between: np.ndarray) -> np.ndarray:
    """Whether the episode ends from each cell on, sooner or later."""
    ends = between.sum(1) < 1 - 1e-12
    for _ in range(len(ends)):  # cells from which an end can be reached ...
        ends = ends | ((between > 0) & ends).any(1)
    doomed = ~ends
    for _ in range(len(ends)):  # ... and which never lead to one from which it cannot
        doomed = doomed | ((between > 0) & doomed).any(1)
    return ~doomed


def _extremes(model: Model, policy: np.ndarray, discount: float, mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """Bounds of all returns: the worst and the best that can be, or far from the mean where there are no such."""
    taken = (model.probability > 0) & (policy[:, :, None] > 0)
    bounds = []
    for sign in (-1.0, 1.0):
        value, change = np.zeros(len(policy)), np.inf
        for _ in range(SWEEPS):
            outcome = model.reward + discount * ~model.terminated * value[model.successor]
            new = sign * np.where(taken, sign * outcome, -np.inf).max((1, 2))
            value, change = new, np.abs(new - value).max()
            if change < 1e-9:
                break
        outcome = model.reward + discount * ~model.terminated * value[model.successor]
        extreme = np.where(model.probability > 0, sign * outcome, -np.inf).max()
        bounds.append(sign * (extreme if change < 1e-9 else (sign * mean + FAR * std).max()))
    return np.array(bounds)


def _distribution(
    model: Model, policy: np.ndarray, discount: float, mean: np.ndarray, std: np.ndarray, points: int
) -> tuple[np.ndarray, np.ndarray]:
    """Atoms and probabilities: coarsely first, between bounds that may be far too wide, then where returns lie."""
    low, high = _extremes(model, policy, discount, mean, std)
    atoms = np.linspace(low, max(high, low + NARROWEST), COARSE)
    step = _Step(model, policy, discount)
    value = _divide((policy * mean).sum(1), atoms).toarray()
    while True:
        value = step.settle(value, atoms)
        likely = np.flatnonzero((step.returns(value, atoms) > NEGLIGIBLE).any((0, 1)))
        low, high = atoms[max(likely[0] - 1, 0)], atoms[min(likely[-1] + 1, COARSE - 1)]
        shrinks = high - low < WORTH_IT * (atoms[-1] - atoms[0])
        finer = np.linspace(low, max(high, low + NARROWEST), COARSE if shrinks else points)
        value, atoms = value @ _divide(atoms, finer), finer  # a good guess, from which little is left to do
        if not shrinks:
            value = step.settle(value, atoms)
            return atoms, step.returns(value, atoms)


class _Step:
    """What one step makes of the distributions [cells, points] of what follows."""

    def __init__(self, model: Model, policy: np.ndarray, discount: float):
        self._model, self._policy, self._discount = model, policy, discount
        self._rewards, number = np.unique(model.reward, return_inverse=True)
        self._number = number.reshape(model.reward.shape)
        cells = len(policy)
        share = policy[:, :, None] * model.probability
        here = np.broadcast_to(np.arange(cells)[:, None, None], share.shape)
        self._between, self._ending = [], []  # by reward: from cell to cell, and to an end
        for i in range(len(self._rewards)):
            on, over = (share * (self._number == i) * each for each in (~model.terminated, model.terminated))
            at = on > 0
            self._between.append(csr_array((on[at], (here[at], model.successor[at])), shape=(cells, cells)))
            self._ending.append(over.sum((1, 2)))
        between = sum(each.toarray() for each in self._between)
        # The steps ahead at most, each for what its discount leaves of it: by so much a change may yet grow.
        horizon = np.linalg.solve(np.eye(cells) - min(discount, 1 - 1e-9) * between, np.ones(cells)).max()
        self._patience = SETTLED / horizon

    def settle(self, value: np.ndarray, atoms: np.ndarray) -> np.ndarray:
        """The distributions that a step leaves as they are, from a first guess."""
        shifts = [_divide(r + self._discount * atoms, atoms).T.tocsr() for r in self._rewards]
        ends = [_divide(np.array([r]), atoms).toarray() for r in self._rewards]
        over = sum(np.outer(share, end) for share, end in zip(self._ending, ends, strict=True))
        moves = [(b, shift) for b, shift in zip(self._between, shifts, strict=True) if b.nnz]
        for _ in range(SWEEPS):
            new = np.asarray(over + sum(b @ (shift @ value.T).T for b, shift in moves))
            # How far probability was moved, in points of the grid.
            change = np.abs((new - value).cumsum(1)).sum(1).max()
            value = new
            if change < self._patience:
                break
        return value

    def returns(self, value: np.ndarray, atoms: np.ndarray) -> np.ndarray:
        """The distributions [cells, actions, points] of actions that lead there."""
        model = self._model
        shifts = [_divide(r + self._discount * atoms, atoms).T.tocsr() for r in self._rewards]
        moved = np.stack([(shift @ value.T).T for shift in shifts])
        ends = np.concatenate([_divide(np.array([r]), atoms).toarray() for r in self._rewards])
        found = np.zeros((*model.reward.shape[:2], len(atoms)))
        for i in range(model.reward.shape[2]):
            number, over = self._number[..., i], model.terminated[..., i, None]
            led = np.where(over, ends[number], moved[number, model.successor[..., i]])
            found += model.probability[..., i, None] * led
        return found


def _divide(returns: np.ndarray, atoms: np.ndarray) -> csr_array:
    """Rows that divide each return between the two nearest atoms, in proportion: [returns, atoms]."""
    place = ((returns - atoms[0]) / (atoms[1] - atoms[0])).clip(0, len(atoms) - 1)
    lower = np.minimum(np.floor(place).astype(int), len(atoms) - 2)
    upper_share = place - lower
    rows = np.arange(len(returns))
    share, at = (1 - upper_share, upper_share), (lower, lower + 1)
    return csr_array(
        (np.concatenate(share), (np.concatenate([rows, rows]), np.concatenate(at))), shape=(len(returns), len(atoms))
    )


def best_policy(model: Model, discount: float, lambda_al: float = 0.0) -> np.ndarray:
    """The action with the highest mean return in each cell [cells], of several as good the first; by value iteration.

    With `lambda_al`, what an agent would do that knew the truth: it learns returns of the policy that is best on
    average, and acts on their mean minus `lambda_al` times their deviation.
    """
    cells, actions, _ = model.successor.shape
    check_discount(discount)
    value, q = np.zeros(cells), np.zeros((cells, actions))
    for _ in range(SWEEPS):
        q = (model.probability * (model.reward + discount * ~model.terminated * value[model.successor])).sum(-1)
        value, change = q.max(1), np.abs(q.max(1) - value).max()
        if change < 1e-12:
            break
    policy = (q >= q.max(1, keepdims=True) - 1e-9).argmax(1)
    if lambda_al == 0:
        return policy
    mean, std = moments(model, as_probabilities(policy, cells, actions), discount)
    averse = mean - lambda_al * std
    return (averse >= averse.max(1, keepdims=True) - 1e-9).argmax(1)


class Episodes(NamedTuple):
    """What episodes bring on average."""

    visits: np.ndarray  # [cells]: how many times each is entered; the start counts once
    reward: float  # undiscounted


def episodes(model: Model, policy: Any, start: int, frames: int) -> Episodes:
    """What episodes of at most that many frames bring, step by step and exactly."""
    cells, actions, _ = model.successor.shape
    policy = as_probabilities(policy, cells, actions)
    share = policy[:, :, None] * model.probability
    at = np.broadcast_to(np.arange(cells)[:, None, None], share.shape), model.successor
    on, over = np.zeros((cells, cells)), np.zeros((cells, cells))
    np.add.at(on, at, share * ~model.terminated)
    np.add.at(over, at, share * model.terminated)
    paid = (share * model.reward).sum((1, 2))
    here = np.eye(cells)[start]
    visits, reward = here.copy(), 0.0
    for _ in range(frames):
        reward += float(here @ paid)
        visits += here @ over
        here = here @ on
        visits += here
    return Episodes(visits, reward)
