"""Mazes: exact returns against played ones, and agents whose two uncertainties are the two truths, or swapped."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ceqr import envs
from ceqr.agents.base import Agent, AgentState, Beliefs, Hyperparameters
from ceqr.diagnostics import disentangle
from ceqr.diagnostics.measures import auroc, estimate, related
from ceqr.diagnostics.subject import Subject, examine_agent
from ceqr.diagnostics.visits import Visited, as_stored, count_cells

MAZE: Any = envs.make("maze/cliff", width=6, wind=0.02)  # so little that the best way is along the brink
DISCOUNT = 0.95
LEVELS = (np.arange(40) + 0.5) / 40


class Tables(NamedTuple):
    """What is believed of each cell and action."""

    mean: Any
    epistemic: Any
    aleatoric: Any
    quantiles: Any


@dataclass(frozen=True)
class Tabled(Agent):
    """Reads its beliefs from tables."""

    def init_params(self, key: jax.Array) -> Any:
        raise NotImplementedError

    def forward(self, params: Tables, frozen: Any, observations: jax.Array, key: jax.Array | None) -> Tables:
        cell = jnp.argmax(observations, -1)
        return jax.tree.map(lambda table: jnp.asarray(table, jnp.float32)[cell], params)

    def beliefs(self, outputs: Tables, state: AgentState) -> Beliefs:
        return Beliefs(*outputs)

    def explore(self, outputs: Any, beliefs: Beliefs, memory: Any, frame: Any, drawn: Any) -> jax.Array:
        raise NotImplementedError

    def loss(self, outputs: Any, successors: Any, batch: Any, state: AgentState) -> Any:
        raise NotImplementedError


AGENT = Tabled(Hyperparameters(discount=DISCOUNT), MAZE.observation_shape, MAZE.num_actions)
POLICY = MAZE.best_policy(DISCOUNT)
TRUTH = MAZE.truth(POLICY, DISCOUNT)
VISITS = np.random.default_rng(5).geometric(0.05, (MAZE.cells, 4)) * ~MAZE.terminal[:, None]
VISITS[:3] = 0  # of three cells nothing is known


def _stored() -> Visited:
    cell, action = np.nonzero(VISITS)
    number = VISITS[cell, action]
    return Visited(as_stored(MAZE.cell_observations()[np.repeat(cell, number)]), np.repeat(action, number))


def _state(epistemic: np.ndarray, aleatoric: np.ndarray, width: float = 1.0) -> AgentState:
    mean = TRUTH.mean + 1e-3 * np.eye(4)[POLICY]  # no ties
    quantiles = TRUTH.quantiles(LEVELS)
    middle = quantiles.mean(-1, keepdims=True)
    tables = Tables(mean, epistemic, aleatoric, middle + width * (quantiles - middle))
    return AgentState(tables, tables, (), ())


RARITY = 1 / np.sqrt(np.maximum(VISITS, 0.5))


def _examine(state: AgentState) -> Subject:
    return examine_agent(AGENT, state, MAZE, "maze/cliff", 0, 400, 500, _stored())


@pytest.fixture(scope="module")
def knowing() -> Subject:
    return _examine(_state(RARITY, TRUTH.std))


def test_visits_are_counted_from_replay() -> None:
    np.testing.assert_array_equal(count_cells(MAZE, _stored()), VISITS)


def test_exact_returns_are_those_that_are_played(knowing: Subject) -> None:
    exact, played = (estimate([knowing.per_episode[name]]) for name in ("exact", "returns"))
    assert exact.value >= 0.9  # returns are few, so the quantiles at 5 and at 95 % hold more between them
    assert played.low - 0.03 <= exact.value <= played.high + 0.03
    narrow = _examine(_state(RARITY, TRUTH.std, width=0.1))
    exact, played = (estimate([narrow.per_episode[name]]) for name in ("exact", "returns"))
    assert exact.value < 0.6
    assert played.low - 0.03 <= exact.value <= played.high + 0.03
    assert estimate([knowing.per_episode["exact_bias"]]).value == pytest.approx(1e-3, abs=1e-4)  # see `_state`
    # Curves too, at every level.
    curves = [narrow.per_episode[name].mean(0) for name in ("exact_miscalibration", "miscalibration")]
    np.testing.assert_allclose(*curves, atol=0.1)


def test_who_has_both_truths(knowing: Subject) -> None:
    assert knowing.points is not None
    found = related([knowing.points])
    truths = found.spearman["truths"].value
    assert found.spearman["aleatoric_spread"].value == pytest.approx(1)
    assert found.pearson["epistemic_rarity"].value == pytest.approx(1)
    for cross in ("aleatoric_rarity", "epistemic_spread"):
        assert found.spearman[cross].value == pytest.approx(truths)  # no more than the truths themselves
    assert len(knowing.points.group) == (VISITS > 0).sum()


def test_who_has_them_the_wrong_way_round_or_neither() -> None:
    cells = disentangle.look(AGENT, _state(TRUTH.std, RARITY), MAZE, VISITS)
    found = related([disentangle.points(cells)])
    assert found.spearman["aleatoric_rarity"].value == pytest.approx(1)
    assert found.spearman["epistemic_spread"].value == pytest.approx(1)
    assert found.spearman["aleatoric_spread"].value == pytest.approx(found.spearman["truths"].value)
    # Neither: on average over twenty agents that say anything, of some 36 state-actions each.
    rng = np.random.default_rng(6)
    told = [_state(*rng.normal(size=(2, *VISITS.shape))) for _ in range(20)]
    found = related([disentangle.points(disentangle.look(AGENT, each, MAZE, VISITS)) for each in told], resamples=2)
    for pair in ("aleatoric_spread", "epistemic_rarity", "aleatoric_rarity", "epistemic_spread"):
        assert abs(found.spearman[pair].value) < 3.3 / np.sqrt(20 * 36)


def test_cells_that_were_never_visited(knowing: Subject) -> None:
    assert auroc([knowing.contrasts["never_visited"]]).value == 1  # 1 / sqrt(1/2) is above all others
    assert sum(map(len, knowing.contrasts["never_visited"].strange)) == 3
    assert "another cell" in knowing.absent["shuffled"]


def test_without_discount_a_policy_that_never_ends_has_no_truth() -> None:
    agent = Tabled(Hyperparameters(discount=1.0), MAZE.observation_shape, 4)
    state = _state(RARITY, TRUTH.std)
    up = np.zeros((MAZE.cells, 4)) + np.eye(4)[0]
    state = state._replace(params=state.params._replace(mean=up))
    found = examine_agent(agent, state, MAZE, "maze/cliff", 0, 3, 20, _stored())
    assert "never end" in found.absent["exact"]
    assert found.points is None
    assert found.absent["never_visited"] == found.absent["exact"]
