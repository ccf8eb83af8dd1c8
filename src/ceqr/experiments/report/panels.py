"""What a figure is, whatever it shows: panels of lines or estimates. `svg` draws it for a page, `picture` for papers.

There are two kinds of panel: lines over frames (or over a threshold) with bands, and estimates with intervals, one
below the other. A line's style is a number, the same for an algorithm in every figure.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ceqr.experiments.stats import Interval


@dataclass(frozen=True)
class Line:
    """One curve; without bounds it has no band. `single`: one of several seeds, drawn thin."""

    label: str
    style: int
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    single: bool = False
    marked: bool = False  # with a dot at each point


@dataclass(frozen=True)
class LinePanel:
    """Curves over a common axis."""

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    goal: float | None = None  # a dotted line
    span: tuple[float, float] | None = None  # of the vertical axis, where panels should share it

    def extent(self) -> tuple[float, float]:
        """Lowest and highest value that must be visible."""
        numbers = [a[np.isfinite(a)] for line in self.lines for a in (line.y, line.low, line.high) if a is not None]
        every = np.concatenate([*numbers, [0.0], [] if self.goal is None else [self.goal]])
        return (float(every.min()), float(every.max())) if len(every) else (0.0, 1.0)


@dataclass(frozen=True)
class Estimate:
    """A value with its interval, in a row of its own."""

    label: str
    style: int
    interval: Interval


@dataclass(frozen=True)
class EstimatePanel:
    """Estimates, one below the other."""

    title: str
    x_label: str
    rows: Sequence[Estimate]
    mark: float | None = None  # a dotted line, such as that of no difference


Panel = LinePanel | EstimatePanel


@dataclass(frozen=True)
class Figure:
    """Panels side by side under one title."""

    name: str  # of its files
    title: str
    caption: str
    panels: Sequence[Panel]

    @property
    def legend(self) -> list[tuple[str, int]]:
        """Labels and styles of the lines, each once; rows of estimates carry theirs."""
        lines = [line for panel in self.panels if isinstance(panel, LinePanel) for line in panel.lines]
        return list(dict.fromkeys((line.label, line.style) for line in lines))
