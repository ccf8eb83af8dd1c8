"""What a step in a maze can do, as arrays: the game samples from them, and dynamic programming computes with them.

Four actions: up, right, down, left. Who walks into a wall stays. A step costs; so do a trap that springs on whoever
enters it (one in four does, and the episode goes on) and a fall off the cliff, which ends the episode as the goal does.
At the brink, wherever the step came from, the wind may blow one off.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ceqr.envs.maze.layouts import Kind

ACTIONS = ("up", "right", "down", "left")
MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))
OUTCOMES = 2  # chance decides between two at most
ENDS = (Kind.GOAL, Kind.CLIFF)


@dataclass(frozen=True)
class Rules:
    """Prices, as rewards, and chances."""

    step: float
    goal: float
    fall: float = 0.0
    wind: float = 0.0
    trap: float = 0.0
    spring: float = 0.0


class Model(NamedTuple):
    """Transitions, [cells, actions, outcomes] each; a cell in which episodes end leads to itself, for nothing."""

    probability: np.ndarray  # float64; sums to one over outcomes
    successor: np.ndarray  # int32: the cell
    reward: np.ndarray  # float64
    terminated: np.ndarray  # bool


def positions(grid: np.ndarray) -> np.ndarray:
    """Row and column of every cell [cells, 2]: all places but walls, row by row."""
    return np.argwhere(grid != Kind.WALL)


def build(grid: np.ndarray, rules: Rules) -> Model:
    """The model of a grid of kinds."""
    places = positions(grid)
    number = {(int(r), int(c)): i for i, (r, c) in enumerate(places)}
    shape = (len(places), len(ACTIONS), OUTCOMES)
    probability = np.zeros(shape)
    probability[..., 0] = 1.0
    successor = np.broadcast_to(np.arange(len(places), dtype=np.int32)[:, None, None], shape).copy()
    reward = np.zeros(shape)
    terminated = np.zeros(shape, bool)
    for (row, column), cell in number.items():
        if grid[row, column] in ENDS:
            terminated[cell] = True
            continue
        for action, (down, right) in enumerate(MOVES):
            place = (row + down, column + right)
            at = (cell, action)
            reward[at] = rules.step
            if place not in number:
                continue
            successor[at] = number[place]
            match grid[place]:
                case Kind.GOAL:
                    reward[at] += rules.goal
                    terminated[at] = True
                case Kind.CLIFF:
                    reward[at] += rules.fall
                    terminated[at] = True
                case Kind.TRAP:
                    probability[at] = (1 - rules.spring, rules.spring)
                    reward[at][1] += rules.trap
                case Kind.EDGE:
                    probability[at] = (1 - rules.wind, rules.wind)
                    successor[at][1] = number[place[0] + 1, place[1]]
                    reward[at][1] += rules.fall
                    terminated[at][1] = True
    return Model(probability, successor, reward, terminated)
