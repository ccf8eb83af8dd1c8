"""Panels as SVG for the page: drawn in the page's own colours, light or dark, with the data that hovering shows.

Colours, dashes and text sizes are classes that page.css defines; page.js reads `data-panel` and shows values under the
pointer, or under the arrow keys once a panel has the focus.
"""

import json
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator

from ceqr.experiments.report.figures import EstimatePanel, LinePanel, Panel
from ceqr.experiments.report.style import style_of

WIDTH, HEIGHT = 440, 290
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 10, 44
ROW = 44  # of an estimate: its label above, the interval below
DIGITS = 4  # that are shown and kept


def draw(panel: Panel) -> str:
    """The panel as an <svg> element."""
    return _lines(panel) if isinstance(panel, LinePanel) else _estimates(panel)


def short(value: float) -> str:
    """A number for people: four digits, thousands apart, a dash where there is none."""
    if not np.isfinite(value):
        return "–"
    if value != 0 and abs(value) < 1e-3:
        return f"{value:.2g}".replace("-", "−")
    digits = max(0, 3 - int(np.floor(np.log10(abs(value))))) if value else 0
    text = f"{value:,.{min(digits, 3)}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text).replace("-", "−")


def compact(value: float) -> str:
    """A number on an axis: 2.5M, 500k."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if unit == 'k' else size):g}{unit}".replace("-", "−")
    return f"{value:,g}".replace("-", "−")


def _lines(panel: LinePanel) -> str:
    xs = np.concatenate([line.x for line in panel.lines])
    x_low = 0.0 if panel.x_label == "frames" else float(xs.min())
    x_high = float(xs.max())
    y_low, y_high = panel.span or panel.extent()
    margin = 0.04 * (y_high - y_low) or 1.0
    y_low, y_high = y_low - (margin if y_low < 0 else 0), y_high + margin
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM

    def across(x: Any) -> Any:
        return LEFT + (x - x_low) / (x_high - x_low) * (right - LEFT)

    def up(y: Any) -> Any:
        return bottom - (y - y_low) / (y_high - y_low) * (bottom - TOP)

    parts = []
    for tick in _ticks(y_low, y_high):
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{up(tick):.1f}" y2="{up(tick):.1f}"/>')
        parts.append(
            f'<text class="tick" x="{LEFT - 6}" y="{up(tick) + 4:.1f}" text-anchor="end">{compact(tick)}</text>'
        )
    for tick in _ticks(x_low, x_high):
        parts.append(f'<line class="grid" x1="{across(tick):.1f}" x2="{across(tick):.1f}" y1="{TOP}" y2="{bottom}"/>')
        parts.append(
            f'<text class="tick" x="{across(tick):.1f}" y="{bottom + 16}" text-anchor="middle">{compact(tick)}</text>'
        )
    if panel.goal is not None:
        y = up(panel.goal)
        parts.append(f'<line class="mark" x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{right}" y="{y - 4:.1f}" text-anchor="end">goal</text>')
    for line in panel.lines:
        if line.low is not None and line.high is not None:
            parts.append(_band(across(line.x), up(line.low), up(line.high), line.style))
    for line in panel.lines:
        look = f"{style_class(line.style)}{' single' if line.single else ''}"
        parts.append(f'<path class="line {look}" d="{_path(across(line.x), up(line.y))}"/>')
        if line.marked:
            parts += [
                f'<circle class="dot {style_class(line.style)}" cx="{across(x):.1f}" cy="{up(y):.1f}" r="2.6"/>'
                for x, y in zip(line.x, line.y, strict=True)
            ]
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}"/>')
    parts.append(
        f'<text class="label" x="{(LEFT + right) / 2}" y="{HEIGHT - 8}" text-anchor="middle">{escape(panel.x_label)}</text>'
    )
    middle = (TOP + bottom) / 2
    parts.append(
        f'<text class="label" transform="translate(13 {middle}) rotate(-90)" text-anchor="middle">{escape(panel.y_label)}</text>'
    )
    parts.append(f'<line class="cursor" x1="0" x2="0" y1="{TOP}" y2="{bottom}" visibility="hidden"/>')
    data = {
        "x": {"low": x_low, "high": x_high, "left": LEFT, "right": right, "label": panel.x_label},
        "lines": [_data(line) for line in panel.lines if not line.single],
    }
    return (
        f'<svg class="panel" viewBox="0 0 {WIDTH} {HEIGHT}" tabindex="0" role="img" aria-label="{escape(_words(panel))}" '
        f'data-panel="{escape(json.dumps(data, separators=(",", ":"), allow_nan=False))}">{"".join(parts)}</svg>'
    )


def _words(panel: LinePanel) -> str:
    """What the panel shows, for those who do not see it."""
    ends = []
    for line in panel.lines:
        known = np.flatnonzero(np.isfinite(line.y))
        if len(known) and not line.single:
            ends.append(f"{line.label} ends at {short(line.y[known[-1]])}")
    return f"{panel.title}: {panel.y_label} over {panel.x_label}. {'; '.join(ends)}. Arrow keys read values."


def _data(line: Any) -> dict[str, Any]:
    data = {"label": line.label, "style": style_class(line.style), "x": _round(line.x), "y": _round(line.y)}
    if line.low is not None and line.high is not None:
        data |= {"low": _round(line.low), "high": _round(line.high)}
    return data


def _round(values: np.ndarray) -> list[float | None]:
    return [float(f"{v:.{DIGITS + 3}g}") if np.isfinite(v) else None for v in values]


def _ticks(low: float, high: float) -> list[float]:
    ticks = MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    slack = 1e-9 * (high - low)
    return [0.0 if abs(t) < slack else float(t) for t in ticks if low - slack <= t <= high + slack]


def _stretches(*columns: np.ndarray) -> list[list[tuple[float, ...]]]:
    """The rows without a gap between them."""
    stretches: list[list[tuple[float, ...]]] = [[]]
    for row in zip(*columns, strict=True):
        if np.isfinite(row).all():
            stretches[-1].append(row)
        elif stretches[-1]:
            stretches.append([])
    return [stretch for stretch in stretches if stretch]


def _path(x: np.ndarray, y: np.ndarray) -> str:
    return "".join("M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in stretch) for stretch in _stretches(x, y))


def _band(x: np.ndarray, low: np.ndarray, high: np.ndarray, style: int) -> str:
    outlines = []
    for stretch in _stretches(x, low, high):
        there = [f"{a:.1f} {c:.1f}" for a, _, c in stretch]
        back = [f"{a:.1f} {b:.1f}" for a, b, _ in reversed(stretch)]
        outlines.append("M" + "L".join(there + back) + "Z")
    return f'<path class="band {style_class(style)}" d="{"".join(outlines)}"/>'


def _estimates(panel: EstimatePanel) -> str:
    numbers = np.array([each for row in panel.rows for each in map(float, row.interval)])
    shown = np.concatenate([numbers[np.isfinite(numbers)], [0.0, 1.0] if panel.mark is not None else [0.0]])
    low, high = float(shown.min()), float(shown.max())
    margin = 0.04 * (high - low) or 1.0
    low, high = low - (margin if low < 0 else 0), high + (0 if panel.mark is not None else margin)
    left, right, height = 14, WIDTH - 20, TOP + ROW * len(panel.rows) + BOTTOM
    bottom = height - BOTTOM

    def across(x: float) -> float:
        return left + (x - low) / (high - low) * (right - left)

    parts = []
    for tick in _ticks(low, high):
        parts.append(f'<line class="grid" x1="{across(tick):.1f}" x2="{across(tick):.1f}" y1="{TOP}" y2="{bottom}"/>')
        parts.append(
            f'<text class="tick" x="{across(tick):.1f}" y="{bottom + 16}" text-anchor="middle">{compact(round(tick, 6))}</text>'
        )
    if panel.mark is not None:
        x = across(panel.mark)
        parts.append(f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{bottom}"/>')
    words = []
    for i, row in enumerate(panel.rows):
        value, below, above = map(float, row.interval)
        y = TOP + ROW * i + 30
        text = interval_text(value, below, above)
        words.append(f"{row.label} {text}")
        look = style_class(row.style)
        parts.append(f'<g class="row" tabindex="0" role="img" aria-label="{escape(f"{row.label}: {text}")}">')
        parts.append(f"<title>{escape(f'{row.label}: {text}')}</title>")
        parts.append(f'<rect class="back" x="0" y="{TOP + ROW * i + 2}" width="{WIDTH}" height="{ROW - 4}"/>')
        parts.append(f'<text class="name" x="{left}" y="{y - 12}">{escape(row.label)}</text>')
        parts.append(f'<text class="number" x="{right}" y="{y - 12}" text-anchor="end">{text}</text>')
        if np.isfinite(below):
            width = max(across(above) - across(below), 1)
            parts.append(
                f'<rect class="reach {look}" x="{across(below):.1f}" y="{y - 5}" width="{width:.1f}" height="10"/>'
            )
        parts.append(
            f'<rect class="point {look}" x="{across(value) - 1.5:.1f}" y="{y - 8}" width="3" height="16"/></g>'
        )
    parts.append(f'<line class="axis" x1="{left}" x2="{right}" y1="{bottom}" y2="{bottom}"/>')
    parts.append(
        f'<text class="label" x="{(left + right) / 2}" y="{height - 8}" text-anchor="middle">{escape(panel.x_label)}</text>'
    )
    label = escape(f"{panel.title}, {panel.x_label}: {'; '.join(words)}.")
    return f'<svg class="panel" viewBox="0 0 {WIDTH} {height}" role="group" aria-label="{label}">{"".join(parts)}</svg>'


def interval_text(value: float, low: float, high: float) -> str:
    """A value and its interval: 1.2 [0.9, 1.5]."""
    return f"{short(value)} [{short(low)}, {short(high)}]" if np.isfinite(low) else short(value)


def style_class(style: int) -> str:
    colour, dash = style_of(style)
    return f"c{colour} d{dash}"


def swatch(style: int) -> str:
    """A sample of a line, for legends."""
    return f'<svg class="swatch" viewBox="0 0 28 10" aria-hidden="true"><path class="line {style_class(style)}" d="M1 5L27 5"/></svg>'


def table_points(panel: LinePanel, number: int = 10) -> Sequence[int]:
    """Which points of a panel's lines its table shows: some, evenly apart, the last one among them."""
    length = len(panel.lines[0].x)
    return sorted({round((i + 1) * length / min(number, length)) - 1 for i in range(min(number, length))})
