"""Conjugate evidence in control: how much of what was played speaks for a state and an action, in closed form.

A normal-inverse-gamma prior on a linear model of features phi has the posterior

    1 / nu(x, a) = phi(x)^T (I + sum_i phi_i phi_i^T)^-1 phi(x),

with the sum over the frames i in which a was taken (they count from the next refresh on, and fade slowly), so nu counts
what was seen: 1 before anything was, 1 + k after k visits to one state. phi has length 1 and never changes: for images
it is the last hidden layer of the network as it was at the start, for vectors random Fourier features. The learning
network's own would not do: while nothing pays it forgets how to tell states apart, and all of them look visited
(docs/evidence.md).
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from ceqr.networks import MOST_FEATURES, as_float, projection
from ceqr.sums import Sum

MEMORY = 100_000  # frames in which visits fade to a third, at the most: float32 cannot add them up for ever
LEAST_SHARPNESS = 2.0  # of the features of vectors: observations 1 apart share 14 % of what is known
SILENCE = 1e-3  # stands for the features where none is active
STEP = 0.5  # of what is heard of the doubt that follows: an average over a few times that an action was taken
BLOCK = 32  # rows of a matrix that is factorised column by column


class Evidence(NamedTuple):
    """What was counted, for A actions and P features."""

    visits: jax.Array  # [A, P, P]: the sum of phi phi^T over the frames in which an action was taken
    excess: jax.Array  # [A, P, P]: what rounding has added to visits; one state that recurs is always rounded alike
    fresh: jax.Array  # float32: frames since the last refresh
    root: jax.Array  # [A, P, P]: 1 / nu = |root phi|^2, as of the last refresh
    follows: jax.Array  # [2, A, P]: the doubt of what follows is phi^T follows, in units of the prior's; told twice


def nothing_seen(size: int, actions: int) -> Evidence:
    """Before anything is counted or heard, by so many features: nu is 1 everywhere, and nothing follows."""
    zero = jnp.zeros((actions, size, size))
    return Evidence(zero, zero, jnp.float32(0), zero + jnp.eye(size), jnp.zeros((2, actions, size)))


def sharpness(components: int, features: int) -> float:
    """How sharp the features of a vector are: as sharp as so many can be.

    They tell about as many places apart as they are themselves: n^(1 / d) along each of d components, which are about 2
    long. With few components that is far sharper than with many: 8 for 256 features of two components, and the least
    from four on.
    """
    return max(LEAST_SHARPNESS, features ** (1 / components) / 2)


class Fourier(eqx.Module):
    """cos(x W + b) of a vector x: random Fourier features (Rahimi and Recht 2007) of a Gaussian kernel.

    Two observations share exp(-sharpness^2 d^2 / 2) of what is known, d apart.
    """

    weight: jax.Array  # [components, P]
    offset: jax.Array  # [P]

    def __init__(self, key: jax.Array, components: int, features: int):
        weight_key, offset_key = jax.random.split(key)
        self.weight = sharpness(components, features) * jax.random.normal(weight_key, (components, features))
        self.offset = jax.random.uniform(offset_key, (features,), maxval=2 * jnp.pi)

    def __call__(self, observation: jax.Array) -> jax.Array:
        return jnp.cos(as_float(observation) @ self.weight + self.offset)


def to_phi(features: jax.Array, most: int = MOST_FEATURES) -> jax.Array:
    """[..., P], of length 1, from features [..., F], of which a random projection leaves so many at the most."""
    drawn = projection(features.shape[-1], most)
    if drawn is not None:
        features = features @ jnp.asarray(drawn, features.dtype)
    features = jnp.concatenate([features, jnp.full_like(features[..., :1], SILENCE)], axis=-1)
    return jax.lax.stop_gradient(features / jnp.linalg.norm(features, axis=-1, keepdims=True))


def count(evidence: Evidence, phi: jax.Array, action: jax.Array) -> Evidence:
    """With a few frames more: phi [lanes, P] and the actions taken [lanes]."""

    def one(lane: Any, sums: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        taken, (visits, excess) = action[lane], sums
        total = Sum(visits[taken], excess[taken]).add(jnp.outer(phi[lane], phi[lane]))
        return visits.at[taken].set(total.total), excess.at[taken].set(total.excess)

    lanes, sums = len(phi), (evidence.visits, evidence.excess)
    visits, excess = one(0, sums) if lanes == 1 else jax.lax.fori_loop(0, lanes, one, sums)
    return evidence._replace(visits=visits, excess=excess, fresh=evidence.fresh + lanes)


def refresh(evidence: Evidence, memory: int) -> Evidence:
    """With the inverse of what was counted up to now; visits fade with the frames since, at the rate 1 / memory."""
    visits = jnp.exp(-evidence.fresh / min(memory, MEMORY)) * (evidence.visits - evidence.excess)
    identity = jnp.eye(visits.shape[-1])
    # Action by action: XLA takes longer for a batch of small products than for each by itself.
    root = jax.lax.map(lambda each: inverse_root(identity + each), visits)
    return Evidence(visits, jnp.zeros_like(visits), jnp.float32(0), root, evidence.follows)


def inverse_nu(evidence: Evidence, phi: jax.Array) -> jax.Array:
    """1 / nu of each action, [..., A] from phi [..., P]; never above 1, not even by rounding."""
    squares = jnp.minimum(jnp.sum(_projected(evidence, phi.reshape(-1, phi.shape[-1])) ** 2, axis=1), 1.0)
    return squares.T.reshape(*phi.shape[:-1], -1)


def _projected(evidence: Evidence, rows: jax.Array) -> jax.Array:
    """root phi of each action, [A, P, rows] from rows [rows, P]."""
    actions, size, _ = evidence.root.shape
    # The large matrices on the left: with 513 features that is up to five times as fast as on the right.
    projected = jax.lax.dot_general(evidence.root.reshape(-1, size), rows, (((1,), (1,)), ((), ())))
    return projected.reshape(actions, size, -1)


def following(evidence: Evidence, phi: jax.Array) -> jax.Array:
    """The doubt of what follows each action, [..., A] from phi [..., P]: no more than the prior's."""
    return jnp.mean(following_twice(evidence, phi), axis=0)


def following_twice(evidence: Evidence, phi: jax.Array) -> jax.Array:
    """The same as each of two sets of weights tells it, [2, ..., A].

    Linear weights tell more than they heard of states that are rarer than those they heard of, and what they tell of a
    successor is heard in turn: without a bound doubt feeds on itself.
    """
    return jnp.clip(_told(evidence, phi), 0.0, 1.0)


def _told(evidence: Evidence, phi: jax.Array) -> jax.Array:
    return jnp.einsum("...p,kap->k...a", phi, evidence.follows)


def hear(evidence: Evidence, phi: jax.Array, action: jax.Array, doubt: jax.Array, listener: jax.Array) -> Evidence:
    """Taught by a batch what doubt follows: phi [batch, P], the actions taken, that doubt, and who listens (0 or 1).

    A step towards it, in the metric of what was counted: where nothing was seen the weights are free to move, and what
    is known of other states stays. Rows that are alike share a step, so that together they make one. With features that
    do not overlap it is Q-learning in a table with a step of STEP.
    """
    mine = jax.nn.one_hot(action, len(evidence.root), dtype=phi.dtype)  # [batch, A]
    listens = jax.nn.one_hot(listener, 2, dtype=phi.dtype)  # [batch, 2]
    projected = jnp.einsum("apb,ba->bp", _projected(evidence, phi), mine)
    together = (action[:, None] == action) & (listener[:, None] == listener)
    alike = jnp.where(together, projected @ projected.T, 0.0)
    error = doubt - jnp.einsum("kba,ba,bk->b", _told(evidence, phi), mine, listens)
    steps = STEP * error / jnp.sum(jnp.abs(alike), axis=1)
    moved = jnp.einsum("bp,ba,bk->kap", steps[:, None] * projected, mine, listens)
    return evidence._replace(follows=evidence.follows + jnp.einsum("apq,kap->kaq", evidence.root, moved))


def inverse_root(matrix: jax.Array) -> jax.Array:
    """The inverse of the lower Cholesky factor of a positive definite matrix.

    By halves, so that nearly all of it is products. LAPACK's takes as long on an idle machine (2.8 ms for 257 rows,
    ours 1.8), but its threads wait for each other: 118 ms where two other programs are running, as in any sweep.
    """
    return _factorise(matrix)[1]


def _factorise(matrix: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The Cholesky factor and its inverse."""
    size = len(matrix)
    if size <= BLOCK:
        factor = _cholesky(matrix)
        return factor, _invert(factor)
    half = size // 2
    above, above_inverse = _factorise(matrix[:half, :half])
    beside = matrix[half:, :half] @ above_inverse.T
    below, below_inverse = _factorise(matrix[half:, half:] - beside @ beside.T)
    zero = jnp.zeros((half, size - half), matrix.dtype)
    return (
        jnp.block([[above, zero], [beside, below]]),
        jnp.block([[above_inverse, zero], [-below_inverse @ beside @ above_inverse, below_inverse]]),
    )


def _cholesky(matrix: jax.Array) -> jax.Array:
    """Column by column."""
    place = jnp.arange(len(matrix))

    def eliminate(j: jax.Array, rest: jax.Array) -> jax.Array:
        column = jnp.where(place >= j, rest[:, j] / jnp.sqrt(rest[j, j]), 0.0)
        rest = rest - jnp.where(place > j, jnp.outer(column, column), 0.0)
        return rest.at[:, j].set(column)

    return jnp.tril(jax.lax.fori_loop(0, len(matrix), eliminate, matrix))


def _invert(factor: jax.Array) -> jax.Array:
    """Row by row."""
    place = jnp.arange(len(factor))

    def solve(i: jax.Array, inverse: jax.Array) -> jax.Array:
        row = (place == i) - jnp.where(place < i, factor[i], 0.0) @ inverse
        return inverse.at[i].set(row / factor[i, i])

    return jax.lax.fori_loop(0, len(factor), solve, jnp.zeros_like(factor))
