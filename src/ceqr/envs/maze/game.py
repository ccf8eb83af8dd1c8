"""A maze as an `Environment`: it samples from its model, so that model and game cannot differ."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ceqr.envs.base import TimeStep
from ceqr.envs.families import Option, check_options
from ceqr.envs.maze import drawing, layouts, model, truth
from ceqr.envs.maze.layouts import Kind
from ceqr.envs.maze.model import Model, Rules
from ceqr.envs.maze.truth import Episodes, Truth

FRAMES_A_CELL = 4  # the limit of an episode, unless another is given
LIMIT = Option(0, "frames after which an episode is truncated; 0 for four a cell", least=0)
OPTIONS = {
    "traps": {
        "layout": Option(0, "which labyrinth", choices=tuple(range(layouts.LAYOUTS))),
        "size": Option(5, "rooms a side", least=5, most=12),
        "spring": Option(layouts.SPRING, "the probability that a trap springs", least=0, most=1),
        "max_episode_frames": LIMIT,
    },
    "cliff": {
        "width": Option(5, "columns", least=3, most=40),
        "height": Option(2, "rows above the abyss", least=2, most=40),
        "wind": Option(0.2, "the probability that the wind blows one off the edge", least=0, most=1),
        "fall": Option(-5.0, "the reward of a fall, besides that of the step", most=0),
        "max_episode_frames": LIMIT,
    },
}


class State(NamedTuple):
    """What `Maze` carries from step to step."""

    cell: jax.Array  # int32
    frame: jax.Array  # int32: steps taken in this episode


@dataclass(frozen=True)
class Maze:
    """One of the mazes with its options; `from_name` checks both."""

    kind: str
    options: tuple[tuple[str, Any], ...] = ()  # all of them, sorted
    max_episode_frames: int = 0  # 0: FRAMES_A_CELL

    num_actions = len(model.ACTIONS)
    action_names = model.ACTIONS
    observation_dtype = np.dtype(bool)

    @property
    def name(self) -> str:
        return f"maze/{self.kind}"

    @property
    def observation_shape(self) -> tuple[int, ...]:
        return (self.cells,)

    # What it is made of.

    @cached_property
    def grid(self) -> np.ndarray:
        """What is where: `Kind` [rows, columns]."""
        given = dict(self.options)
        if self.kind == "cliff":
            return layouts.cliff(given["width"], given["height"])
        return layouts.traps(given["layout"], given["size"])

    @cached_property
    def positions(self) -> np.ndarray:
        """Row and column of every cell [cells, 2]. Cells are all places but walls, goal and cliff included."""
        return model.positions(self.grid)

    @property
    def cells(self) -> int:
        """How many there are."""
        return len(self.positions)

    @cached_property
    def kinds(self) -> np.ndarray:
        """What every cell is: `Kind` [cells]."""
        return self.grid[tuple(self.positions.T)]

    @cached_property
    def terminal(self) -> np.ndarray:
        """The cells in which an episode ends, where nobody acts: bool [cells]."""
        return np.isin(self.kinds, model.ENDS)

    @property
    def start(self) -> int:
        """The cell in which episodes begin."""
        return int(np.flatnonzero(self.kinds == Kind.START)[0])

    @cached_property
    def rules(self) -> Rules:
        """Its prices and chances."""
        given = dict(self.options)
        if self.kind == "cliff":
            return Rules(step=-1.0, goal=10.0, fall=float(given["fall"]), wind=float(given["wind"]))
        return Rules(layouts.STEP, layouts.GOAL, trap=layouts.TRAP, spring=float(given["spring"]))

    @cached_property
    def model(self) -> Model:
        """What a step can do, as arrays [cells, actions, outcomes]; `step` draws from them."""
        return model.build(self.grid, self.rules)

    @property
    def limit(self) -> int:
        """Frames after which an episode is truncated."""
        return self.max_episode_frames or FRAMES_A_CELL * self.cells

    # What an agent sees.

    def cell_observations(self) -> np.ndarray:
        """What the network reads in each cell, bool [cells, cells]: one component for each cell."""
        return np.eye(self.cells, dtype=bool)

    def cell_of(self, observation: Any) -> np.ndarray:
        """The cell of each observation: int [...] of [..., cells]."""
        return np.asarray(observation).argmax(-1)

    # The game.

    def reset(self, key: jax.Array) -> tuple[State, jax.Array]:
        state = State(jnp.int32(self.start), jnp.int32(0))
        return state, self._observe(state.cell)

    def step(self, state: State, action: jax.Array, key: jax.Array) -> tuple[State, TimeStep]:
        at = (state.cell, action)
        reached = jnp.asarray(self.model.probability.cumsum(-1)[..., :-1], jnp.float32)[at]
        outcome = (*at, (jax.random.uniform(key) >= reached).sum())
        cell = jnp.asarray(self.model.successor)[outcome]
        reward = jnp.asarray(self.model.reward, jnp.float32)[outcome]
        terminated = jnp.asarray(self.model.terminated)[outcome]
        frame = state.frame + 1
        truncated = ~terminated & (frame >= self.limit)
        over = terminated | truncated
        after = State(jnp.where(over, jnp.int32(self.start), cell), jnp.where(over, 0, frame))
        return after, TimeStep(self._observe(after.cell), self._observe(cell), reward, terminated, truncated)

    def _observe(self, cell: jax.Array) -> jax.Array:
        return jnp.arange(self.cells) == cell

    # What is true of it.

    def truth(self, policy: Any, discount: float = 0.99, points: int = truth.POINTS) -> Truth:
        """The return of every action in every cell with a policy to follow, by dynamic programming.

        Args:
            policy: Probabilities [cells, actions], or an action for each cell [cells].
            discount: Of what is a step away.
            points: Of the grid of returns on which distributions are computed.
        """
        return truth.truth(self.model, policy, discount, points)

    def best_policy(self, discount: float = 0.99, lambda_al: float = 0.0) -> np.ndarray:
        """The action in each cell [cells] whose return is highest on average, or with `lambda_al` minus so many times
        its deviation: what an agent would do that knew the truth about the policy that is best on average."""
        return truth.best_policy(self.model, discount, lambda_al)

    def episodes(self, policy: Any) -> Episodes:
        """How many times an episode enters each cell, and its undiscounted return: averages, the limit included."""
        return truth.episodes(self.model, policy, self.start, self.limit)

    # How it looks.

    def picture(self, cell: int | None = None, side: int = drawing.CELL) -> np.ndarray:
        """Bytes [height, width, 3] of the maze, with the agent in a cell if one is given; `side` pixels a place."""
        return drawing.pixels(self.grid, None if cell is None else self.positions[cell], side)

    def figure(self, cell: int | None = None) -> Any:
        """The same as a figure of Matplotlib with a legend."""
        return drawing.figure(self.grid, None if cell is None else self.positions[cell], self.name)


def from_name(kind: str, /, **options: Any) -> Maze:
    """A maze with options of its own; ValueError in one sentence if it cannot be made."""
    known = OPTIONS[kind]
    check_options(f"maze/{kind}", options, known)
    given = {name: option.default for name, option in known.items()} | options
    limit = given.pop("max_episode_frames")
    return Maze(kind, tuple(sorted(given.items())), limit)
