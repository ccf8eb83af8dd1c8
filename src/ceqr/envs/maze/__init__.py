"""Mazes in which the truth is known: `maze/traps` after the paper's Figure 1, and `maze/cliff`, UA-DQN's windy cliff.

A maze is an `Environment` like others, and tells besides what it is made of: its `grid` of kinds, the `model` from
which `step` draws, what the network reads in every cell (`cell_observations`; the attribute `observations` of an
environment is something else, its format), and, by dynamic programming, the `truth` about returns under any policy.

Both mazes have the same four actions. In `traps` a step costs 0.1 and the goal pays 2; a trap springs one time in four
(`spring`) on whoever enters it and then costs 1; the episode goes on. In `cliff` a step costs 1 and the goal pays 10;
in each step that ends at the brink the wind blows the agent off with probability `wind`, 0.2, and a fall pays `fall`,
-5, on top of the step and ends the episode. These are the rules and prices of the environment that UA-DQN's authors
released, but for two things: there, time is part of the observation, and a limit of 15 steps ends an episode; here the
limit (four frames a cell) truncates it.
"""

from ceqr.envs.maze.drawing import COLOURS
from ceqr.envs.maze.game import OPTIONS, Maze, from_name
from ceqr.envs.maze.layouts import LAYOUTS, Kind
from ceqr.envs.maze.model import ACTIONS, Model, Rules
from ceqr.envs.maze.truth import Episodes, Truth

__all__ = [
    "ACTIONS",
    "COLOURS",
    "LAYOUTS",
    "OPTIONS",
    "Episodes",
    "Kind",
    "Maze",
    "Model",
    "Rules",
    "Truth",
    "from_name",
]
