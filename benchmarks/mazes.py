"""Draws the mazes with the two ways through each of them: `python benchmarks/mazes.py --out mazes.png`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ceqr.envs import make
from ceqr.envs.maze import Maze
from ceqr.envs.maze.drawing import draw

AVERSION = 0.5
WAYS: tuple[
    tuple[float, dict[str, Any], float, str], ...
] = (  # lambda_al, how its line looks, and how far it is drawn beside the middle of its places
    (0.0, {"color": "#cc79a7", "linestyle": "-"}, -0.1, "the way that is best on average"),
    (AVERSION, {"color": "#000000", "linestyle": ":"}, 0.1, f"the way averse to risk (lambda_al {AVERSION})"),
)
CLIFF = {"width": 3, "wind": 0.1}


@dataclass(frozen=True)
class Options:
    """Where to."""

    out: Path = Path("runs/mazes.png")
    """The picture."""


def main(options: Options) -> None:
    figure = Figure(figsize=(12, 7.6), layout="constrained")
    axes = figure.subplots(2, 3).flat
    mazes = {f"maze/traps, layout {i}": make("maze/traps", layout=i) for i in range(5)}
    mazes["maze/cliff, width 3, wind 0.1"] = make("maze/cliff", **CLIFF)
    handles: dict[str, Any] = {}
    for each, (title, maze) in zip(axes, mazes.items(), strict=True):
        draw(each, maze.grid, maze.positions[maze.start], title)
        legend = each.get_legend()
        handles |= {text.get_text(): patch for text, patch in zip(legend.texts, legend.legend_handles, strict=True)}
        legend.remove()
        for lambda_al, style, beside, _ in WAYS:
            places = walk(maze, maze.best_policy(lambda_al=lambda_al))
            each.plot(places[:, 1] + beside, places[:, 0] + beside, linewidth=2.5, **style)
    handles |= {label: Line2D([], [], linewidth=2.5, **style) for _, style, _, label in WAYS}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=5, frameon=False)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.out, dpi=110)
    print(f"Figure: {options.out}.")


def walk(maze: Maze, policy: np.ndarray) -> np.ndarray:
    """Rows and columns from start to goal, where chance does nothing."""
    cells = [maze.start]
    while not maze.terminal[cells[-1]]:
        cells.append(int(maze.model.successor[cells[-1], policy[cells[-1]], 0]))
    return maze.positions[cells]


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
