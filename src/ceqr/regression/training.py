"""Training as one compiled program: whole epochs, with early stopping inside.

A program depends on array shapes, which are rounded up, and on the objective. Everything else (how many rows, epochs
and batches there are, learning rate, strengths) is an input, so that a grid search or cross-validation compiles once.
The order of the rows is drawn on the host for a few epochs at a time: memory does not depend on how many there are.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ceqr.regression.network import Objective, Parameters, Strengths, loss, score

PATIENCE = 20  # epochs without a better validation score, after which early stopping stops
AVERAGED = 5  # epochs, about, over which parameters are averaged: the latest ones alone swing with the latest batches
CHUNK = 2**17  # rows visited in one call of the program, about; one epoch at least

Number = Any  # JAX's inside the program, NumPy's before it

_adam = optax.scale_by_adam()


class Rows(NamedTuple):
    """Inputs [n, D], targets [n] and weights [n]."""

    x: np.ndarray
    y: np.ndarray
    weight: np.ndarray


class State(NamedTuple):
    """What goes from epoch to epoch. Parameters are one long vector: as a tree, Adam alone would be a dozen loops, and
    compilation would take twice as long."""

    parameters: Number
    average: Number  # of the parameters over the last epochs: what is scored, and kept
    adam: Any
    share: Number  # running coverage of the interval
    epoch: Number
    best: Number
    best_score: Number
    best_epoch: Number


class Fitted(NamedTuple):
    """What training leaves."""

    parameters: Parameters
    losses: np.ndarray  # the mean over each epoch
    scores: np.ndarray | None  # on the validation rows, after each epoch
    best_epoch: int


def _round_up(n: int, least: int = 1) -> int:
    """The next power of two: how shapes are rounded, so that few programs are compiled."""
    return max(least, 1 << max(n - 1, 0).bit_length())


def _pad(x: np.ndarray, n: int) -> np.ndarray:
    return np.concatenate([x, np.zeros((n - len(x), *x.shape[1:]), x.dtype)]).astype(np.float32)


def draw(rng: np.random.RandomState, weight: np.ndarray, count: int) -> np.ndarray:
    """`count` row numbers in random order, each row as often as its weight demands, to within one.

    Equally spaced points on the cumulated weights: with equal weights and count = n that is a permutation, and in
    general it has far less variance than independent draws.
    """
    ends = np.cumsum(weight) * (count / np.sum(weight))
    points = np.arange(count) + rng.uniform()
    rows = np.minimum(np.searchsorted(ends, points, side="right"), np.flatnonzero(weight)[-1])
    return rng.permutation(rows)


class Layout(NamedTuple):
    """How parameters lie in one vector."""

    tree: Any
    shapes: tuple[tuple[int, ...], ...]

    def vector(self, parameters: Parameters, stack: Any = jnp) -> Any:
        return stack.concatenate([leaf.reshape(-1) for leaf in jax.tree.leaves(parameters)])

    def parameters(self, vector: Any) -> Parameters:
        ends = np.cumsum([math.prod(shape) for shape in self.shapes])
        pieces = [
            vector[end - math.prod(shape) : end].reshape(shape) for shape, end in zip(self.shapes, ends, strict=True)
        ]
        return jax.tree.unflatten(self.tree, pieces)


@functools.partial(jax.jit, static_argnames=("layout", "objective", "validate"), donate_argnames="state")
def _epochs(
    state: State,
    x: jax.Array,
    y: jax.Array,
    held_out: tuple[jax.Array, jax.Array, jax.Array],
    indices: jax.Array,
    counts: tuple[jax.Array, jax.Array, jax.Array],
    rate: jax.Array,
    strengths: Strengths,
    layout: Layout,
    objective: Objective,
    validate: bool,
) -> tuple[State, jax.Array, jax.Array]:
    """Trains for several epochs. indices: [epochs, batches, batch], of which only counts = (epochs, batches) are
    meant; counts[2] is how many epochs there are in all. Returns mean losses and scores [epochs], too."""
    epochs, batches, total = counts
    step_loss = jax.value_and_grad(functools.partial(loss, objective=objective, strengths=strengths), has_aux=True)

    def update(b: jax.Array, carry: tuple) -> tuple:
        state, sum_, e = carry
        rows = indices[e, b]
        (value, share), grads = step_loss(layout.parameters(state.parameters), state.share, x[rows], y[rows])
        direction: Any
        direction, adam = _adam.update(layout.vector(grads), state.adam)
        # Half a cosine down to zero: at a constant rate the percentiles keep swinging with the last batches.
        progress = (state.epoch + b / batches) / total
        now = rate * 0.5 * (1 + jnp.cos(jnp.pi * progress))
        parameters = state.parameters - now * direction
        # The average is over all updates so far until there are enough.
        weight = jnp.maximum(1 / (AVERAGED * batches), 1 / (state.epoch * batches + b + 1))
        average = state.average + weight * (parameters - state.average)
        return state._replace(parameters=parameters, average=average, adam=adam, share=share), sum_ + value, e

    def epoch(carry: tuple) -> tuple:
        state, e, means, scores = carry
        state, sum_, _ = jax.lax.fori_loop(0, batches, update, (state, jnp.float32(0), e))
        state = state._replace(epoch=state.epoch + 1)
        if validate:
            value = score(layout.parameters(state.average), *held_out, objective)
            better = value < state.best_score
            state = state._replace(
                best=jnp.where(better, state.average, state.best),
                best_score=jnp.where(better, value, state.best_score),
                best_epoch=jnp.where(better, state.epoch, state.best_epoch),
            )
            scores = scores.at[e].set(value)
        return state, e + 1, means.at[e].set(sum_ / batches), scores

    def goes_on(carry: tuple) -> jax.Array:
        state, e, *_ = carry
        patient = state.epoch - state.best_epoch < PATIENCE if validate else True
        return (e < epochs) & patient

    empty = jnp.zeros(len(indices))
    state, _, means, scores = jax.lax.while_loop(goes_on, epoch, (state, jnp.int32(0), empty, empty))
    return state, means, scores


def train(
    rng: np.random.RandomState,
    parameters: Parameters,
    rows: Rows,
    held_out: Rows | None,
    objective: Objective,
    strengths: Strengths,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    report: Callable[[int, float], None] = lambda epoch, loss: None,
) -> Fitted:
    """Trains with Adam; with rows held out, stops early and goes back to the best epoch.

    report: called now and then with the number of epochs done and the latest loss.
    """
    n = len(rows.y)
    batch = min(batch_size, _round_up(n, 16))
    batches = -(-n // batch)
    chunk = min(max(1, CHUNK // (_round_up(batches, 4) * batch)), _round_up(epochs, 4))
    x, y = (jax.device_put(_pad(array, _round_up(n, 64))) for array in rows[:2])
    validate = held_out is not None
    held = held_out if validate else Rows(rows.x[:0], rows.y[:0], rows.weight[:0])
    held = tuple(jax.device_put(_pad(array, _round_up(len(held.y), 64))) for array in held)

    # NumPy arrays throughout: with JAX's, every operation outside the program would be compiled for every shape.
    layout = Layout(jax.tree.structure(parameters), tuple(leaf.shape for leaf in jax.tree.leaves(parameters)))
    vector = layout.vector(parameters, np)
    adam = optax.ScaleByAdamState(np.zeros((), np.int32), np.zeros_like(vector), np.zeros_like(vector))
    nothing_yet = (np.float32(objective.coverage), np.int32(0), vector, np.float32(np.inf), np.int32(0))
    state = State(vector, vector, adam, *nothing_yet)
    strengths = Strengths(*map(np.float32, strengths))
    indices = np.zeros((chunk, _round_up(batches, 4), batch), np.int32)
    means, scores, done = [], [], 0
    while done < epochs:
        count = min(chunk, epochs - done)
        for e in range(count):
            indices[e, :batches] = draw(rng, rows.weight, batches * batch).reshape(batches, batch)
        counts = (np.int32(count), np.int32(batches), np.int32(epochs))
        state, mean, value = _epochs(
            state, x, y, held, indices, counts, np.float32(learning_rate), strengths, layout, objective, validate
        )
        now = int(state.epoch)
        means.append(np.asarray(mean)[: now - done])
        scores.append(np.asarray(value)[: now - done])
        stopped = now < done + count or (validate and now - int(state.best_epoch) >= PATIENCE)
        done = now
        report(done, float(means[-1][-1]) if len(means[-1]) else float("nan"))
        if stopped:
            break
    best = state.best if validate else state.average
    return Fitted(
        layout.parameters(np.asarray(best)),
        np.concatenate(means),
        np.concatenate(scores) if validate else None,
        int(state.best_epoch) if validate else done,
    )
