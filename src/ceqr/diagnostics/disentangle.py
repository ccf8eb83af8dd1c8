"""Mazes, where the truth is known: exact returns of the greedy policy, and both uncertainties against both truths.

The world's noise in a cell and action is the standard deviation of the return of the greedy policy after it, by dynamic
programming. What the agent cannot know is told by the visits that its replay remembers: 1 / sqrt(visits). Aleatoric
uncertainty should follow the first and not the second, epistemic uncertainty the second and not the first. Where noise
and visits go together in a maze, a cross term is not the agent's fault alone; `Related.given` takes that out.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from ceqr.agents.base import Agent, AgentState, Beliefs
from ceqr.diagnostics.measures import LEVELS, Points, place, reached, within

EXACT = (np.arange(200) + 0.5) / 200  # levels at which exact returns stand for their distribution


class Cells(NamedTuple):
    """What an agent believes of a maze, and what is true of it, [cells, ...]."""

    beliefs: Beliefs  # [cells, actions]
    greedy: np.ndarray
    value: np.ndarray  # exact mean return of the greedy action
    returns: np.ndarray  # [cells, len(EXACT)]: exact quantiles of it
    spread: np.ndarray  # [cells, actions]: exact standard deviations
    visits: np.ndarray  # int [cells, actions]
    blur: float  # how exact `returns` are


def has_truth(env: Any) -> bool:
    """Whether an environment knows the truth about its returns, as mazes do."""
    return hasattr(env, "truth") and hasattr(env, "cell_observations")


@partial(jax.jit, static_argnums=0)
def _greedily(agent: Agent, state: AgentState, observations: jax.Array) -> tuple[jax.Array, Beliefs]:
    return agent.act_greedily(state, observations)


def look(agent: Agent, state: AgentState, env: Any, visits: np.ndarray) -> Cells:
    """ValueError where the greedy policy has no return: without discount, it must come to an end."""
    greedy, beliefs = jax.tree.map(np.asarray, _greedily(agent, state, env.cell_observations()))
    truth = env.truth(greedy, agent.hyper.discount)
    value, exact = (np.asarray(each)[np.arange(len(greedy)), greedy] for each in (truth.mean, truth.quantiles(EXACT)))
    return Cells(beliefs, greedy, value, exact, np.asarray(truth.std), visits, float(truth.blur))


def exact_coverage(lower: np.ndarray, upper: np.ndarray, returns: np.ndarray, blur: float) -> np.ndarray:
    """The share of the exact returns [rows, EXACT] that each interval holds, [rows]; what they are blurred by is not
    held against it."""
    return within(lower[:, None] - blur, upper[:, None] + blur, returns).mean(1)


def exact_reached(quantiles: np.ndarray, returns: np.ndarray) -> np.ndarray:
    """The share of the exact returns below each level's quantile, [rows, LEVELS]; once for rows that are the same."""
    both, where = np.unique(np.concatenate([quantiles, returns], 1), axis=0, return_inverse=True)
    shares = np.empty((len(both), len(LEVELS)))
    for i, row in enumerate(both):
        own, exact = np.split(row, [quantiles.shape[1]])
        shares[i] = reached(place(np.broadcast_to(own, (len(exact), len(own))), exact)).mean(0)
    return shares[where.reshape(-1)]


def points(cells: Cells) -> Points:
    """The state-actions that were visited; what was not has no 1 / sqrt(visits), and is a matter for OOD."""
    cell, action = np.nonzero(cells.visits)
    nothing = np.full(cells.visits.shape, np.nan)
    said = [nothing if each is None else each for each in (cells.beliefs.aleatoric, cells.beliefs.epistemic)]
    truths = [cells.spread, 1 / np.sqrt(np.maximum(cells.visits, 1))]
    columns = np.stack([np.asarray(each, float)[cell, action] for each in (*said, *truths)], axis=1)
    return Points(columns, cell)
