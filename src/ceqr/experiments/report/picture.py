"""Figures for papers: PNG and SVG files by matplotlib, white, in colours that a colour-blind reader can tell apart."""

import io
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, MaxNLocator

from ceqr.experiments.report.panels import EstimatePanel, Figure, LinePanel, Panel
from ceqr.experiments.report.style import COLOURS, DASHES, style_of

WIDTH, HEIGHT, COLUMNS = 4.2, 3.1, 3  # inches of a panel; panels in a row
ROW = 0.32  # inches of an estimate
# Text stays text, and ids follow from the content: the same report has the same bytes.
SETTINGS: Any = {"svg.fonttype": "none", "svg.hashsalt": "ceqr", "font.size": 9, "axes.titlesize": 10}


def draw(figure: Figure) -> dict[str, bytes]:
    """The figure's files by their endings."""
    with plt.rc_context(SETTINGS):
        drawn = _draw(figure)
        files = {}
        try:
            for kind, options in (("png", {"dpi": 144}), ("svg", {"metadata": {"Date": None}})):
                content = io.BytesIO()
                drawn.savefig(content, format=kind, **options)
                files[kind] = content.getvalue()
        finally:
            plt.close(drawn)
    return files


def _draw(figure: Figure) -> Any:
    columns = min(COLUMNS, len(figure.panels))
    rows = -(-len(figure.panels) // columns)
    most = max((len(p.rows) for p in figure.panels if isinstance(p, EstimatePanel)), default=0)
    height = max(1.5, 1.1 + ROW * most) if most else HEIGHT
    width = WIDTH * 1.3 if most else WIDTH
    drawn, axes = plt.subplots(rows, columns, figsize=(width * columns, height * rows + 0.6), squeeze=False)
    drawn.set_layout_engine("constrained")
    for axis in axes.flat[len(figure.panels) :]:
        axis.set_visible(False)
    for axis, panel in zip(axes.flat, figure.panels, strict=False):
        _draw_panel(axis, panel)
        axis.set_title(panel.title, parse_math=False)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25, axis="both" if isinstance(panel, LinePanel) else "x")
    drawn.suptitle(figure.title, parse_math=False)
    if figure.legend:
        handles = [
            Line2D([], [], color=_colour(style), linestyle=_dash(style), linewidth=1.8) for _, style in figure.legend
        ]
        labels = [label.replace("$", r"\$") for label, _ in figure.legend]
        drawn.legend(handles, labels, loc="outside lower center", ncols=min(3, len(labels)), frameon=False)
    return drawn


def _draw_panel(axis: Any, panel: Panel) -> None:
    axis.set_xlabel(panel.x_label, parse_math=False)
    if isinstance(panel, LinePanel):
        axis.set_ylabel(panel.y_label, parse_math=False)
        for line in panel.lines:
            look = {"color": _colour(line.style), "linestyle": _dash(line.style)}
            width, alpha = (0.8, 0.5) if line.single else (1.8, 1.0)
            axis.plot(line.x, line.y, linewidth=width, alpha=alpha, marker="o" if line.marked else None, ms=3, **look)
            if line.low is not None and line.high is not None:
                axis.fill_between(line.x, line.low, line.high, color=look["color"], alpha=0.18, linewidth=0)
        if panel.goal is not None:
            axis.axhline(panel.goal, color="grey", linestyle=":", linewidth=1)
        low, high = panel.span or panel.extent()
        margin = 0.04 * (high - low) or 1.0
        axis.set_ylim(low - (margin if low < 0 else 0), high + margin)
        axis.set_xlim(0 if panel.x_label == "frames" else None, max(float(line.x[-1]) for line in panel.lines))
        axis.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
        if panel.x_label == "frames":
            axis.xaxis.set_major_formatter(EngFormatter(sep=""))
        return
    for i, row in enumerate(panel.rows):
        value, low, high = map(float, row.interval)
        colour = _colour(row.style)
        if np.isfinite(low):
            axis.plot([low, high], [i, i], color=colour, linewidth=6, alpha=0.35, solid_capstyle="butt")
        axis.plot([value], [i], marker="|", color=colour, markersize=14, markeredgewidth=2.5)
    if panel.mark is not None:
        axis.axvline(panel.mark, color="grey", linestyle=":", linewidth=1)
    axis.set_yticks(range(len(panel.rows)), [row.label for row in panel.rows], parse_math=False)
    axis.set_ylim(len(panel.rows) - 0.5, -0.5)
    axis.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))


def _colour(style: int) -> str:
    return COLOURS[style_of(style)[0]][0]


def _dash(style: int) -> Any:
    dash = DASHES[style_of(style)[1]]
    return (0, tuple(float(n) / 2 for n in dash.split())) if dash else "-"
