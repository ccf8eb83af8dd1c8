"""Beliefs about all cells of a maze, beside the truth, which is known there.

What an agent believes does not change while it plays, so one picture of each kind serves for all episodes. The truth is
that of the agent's own greedy policy.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np

from ceqr.viewer.record import Subject


@dataclass(frozen=True)
class Map:
    """One number for every cell."""

    name: str
    cells: np.ndarray  # [rows, columns]; NaN where nobody acts
    low: float
    high: float

    def to_json(self) -> dict[str, Any]:
        told = [[None if np.isnan(value) else float(f"{value:.4g}") for value in row] for row in self.cells]
        row, column = np.unravel_index(np.nanargmax(self.cells), self.cells.shape)
        text = (
            f"{self.name}: from {np.nanmin(self.cells):.3g} to {np.nanmax(self.cells):.3g}, "
            f"largest in row {row + 1}, column {column + 1}."
        )
        return {"name": self.name, "cells": told, "low": self.low, "high": self.high, "text": text}


@dataclass(frozen=True)
class Heat:
    """The maps of one agent."""

    maps: tuple[Map, ...]

    def to_json(self) -> dict[str, Any]:
        height, width = self.maps[0].cells.shape
        return {"height": height, "width": width, "maps": [each.to_json() for each in self.maps]}


def is_maze(env: Any) -> bool:
    """Whether an environment is made of cells about which the truth is known (`ceqr.envs.maze`)."""
    return hasattr(env, "cell_observations") and hasattr(env, "truth")


def ground_of(env: Any) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[str, str], ...]]:
    """The kind of each place, and names and colours of the kinds that there are."""
    from ceqr.envs.maze import COLOURS, Kind

    there = [kind for kind in Kind if (env.grid == kind).any()]
    number = {int(kind): i for i, kind in enumerate(there)}
    ground = tuple(tuple(number[int(kind)] for kind in row) for row in env.grid)
    return ground, tuple(COLOURS[kind.name.lower()] for kind in there)


def heat_of(subject: Subject) -> Heat | None:
    """The maps of an agent in a maze; None for other environments."""
    env = subject.env
    if not is_maze(env):
        return None
    greedy, beliefs = _believe(subject.agent, subject.state, env.cell_observations())
    greedy, beliefs = jax.tree.map(np.asarray, (greedy, beliefs))
    every = np.arange(len(greedy))
    truth = env.truth(greedy, subject.agent.hyper.discount)
    value, true_value = beliefs.mean[every, greedy], truth.mean[every, greedy]
    made = _Maker(env)
    maps = []
    if beliefs.epistemic is not None:
        maps += [made("epistemic: the agent's doubt", beliefs.epistemic[every, greedy], zero=True)]
        maps += [made("truth: how far its value is off", np.abs(value - true_value), zero=True)]
    if beliefs.aleatoric is not None:
        maps += [made("aleatoric: the noise that it sees", beliefs.aleatoric[every, greedy], zero=True)]
        maps += [made("truth: standard deviation of the return", truth.std[every, greedy], zero=True)]
    both = np.concatenate([value[~env.terminal], true_value[~env.terminal]])
    ends = float(both.min()), float(both.max())
    maps += [made("value of the greedy action", value, ends), made("truth: mean return", true_value, ends)]
    return Heat(tuple(maps))


@partial(jax.jit, static_argnums=0)
def _believe(agent: Any, state: Any, observations: jax.Array) -> Any:
    return agent.act_greedily(state, observations)


class _Maker:
    """Makes maps of one maze."""

    def __init__(self, env: Any):
        self._env = env

    def __call__(
        self, name: str, values: np.ndarray, ends: tuple[float, float] | None = None, zero: bool = False
    ) -> Map:
        env = self._env
        cells = np.full(env.grid.shape, np.nan)
        acts = ~env.terminal
        cells[tuple(env.positions[acts].T)] = values[acts]
        low, high = ends or (0.0 if zero else float(np.nanmin(cells)), float(np.nanmax(cells)))
        return Map(name, cells, low, high)
