"""A maze as a picture: an array of pixels, or a figure with a legend.

Colours are those of Okabe and Ito, which people tell apart whatever they see of colours. `COLOURS` names them by kind,
for whoever draws a maze elsewhere; the agent is a disc.
"""

from typing import Any

import numpy as np

from ceqr.envs.maze.layouts import Kind

COLOURS: dict[str, tuple[str, str]] = {  # by kind, or "agent": what a legend calls it, and the colour
    "wall": ("wall", "#333333"),
    "floor": ("floor", "#ffffff"),
    "start": ("start", "#56b4e9"),
    "goal": ("goal", "#009e73"),
    "trap": ("trap: may spring", "#e69f00"),
    "cliff": ("cliff: a fall", "#d55e00"),
    "edge": ("windy edge", "#f0e442"),
    "agent": ("agent", "#0072b2"),
}
CELL = 16  # pixels a side


def rgb(colour: str) -> np.ndarray:
    """Bytes [3] of a colour such as "#56b4e9"."""
    return np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)], np.uint8)


def pixels(grid: np.ndarray, agent: Any = None, side: int = CELL) -> np.ndarray:
    """The maze as bytes [height, width, 3], with the agent at a row and column if given."""
    palette = np.stack([rgb(COLOURS[kind.name.lower()][1]) for kind in Kind])
    picture = palette[grid].repeat(side, 0).repeat(side, 1)
    line = rgb("#dddddd")
    picture[::side], picture[:, ::side] = line, line
    walls = (grid == Kind.WALL).repeat(side, 0).repeat(side, 1)
    picture[walls] = palette[Kind.WALL]
    if agent is not None:
        row, column = (int(each) * side for each in agent)
        middle = (side - 1) / 2
        y, x = np.ogrid[:side, :side]
        disc = (y - middle) ** 2 + (x - middle) ** 2 <= (0.36 * side) ** 2
        picture[row : row + side, column : column + side][disc] = rgb(COLOURS["agent"][1])
    return picture


def draw(axes: Any, grid: np.ndarray, agent: Any = None, title: str = "") -> None:
    """Draws the maze on axes of Matplotlib, with rows and columns as coordinates and a legend of what there is."""
    from matplotlib.patches import Patch

    height, width = grid.shape
    axes.imshow(pixels(grid, agent, side=32), extent=(-0.5, width - 0.5, height - 0.5, -0.5), interpolation="nearest")
    axes.set(xlabel="column", ylabel="row", title=title)
    axes.set_xticks(range(0, width, max(1, width // 10)))
    axes.set_yticks(range(0, height, max(1, height // 10)))
    there = [kind.name.lower() for kind in Kind if (grid == kind).any()] + ["agent"] * (agent is not None)
    patches = [Patch(facecolor=COLOURS[each][1], edgecolor="#888888", label=COLOURS[each][0]) for each in there]
    axes.legend(handles=patches, loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize="small")


def figure(grid: np.ndarray, agent: Any = None, title: str = "") -> Any:
    """A figure of Matplotlib with the maze and its legend."""
    from matplotlib.figure import Figure

    height, width = grid.shape
    made = Figure(figsize=(2.6 + 0.32 * width, max(2.0, 0.9 + 0.32 * height)), layout="constrained")
    draw(made.subplots(), grid, agent, title)
    return made
