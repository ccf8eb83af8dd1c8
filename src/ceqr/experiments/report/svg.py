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

from ceqr.experiments.report.panels import EstimatePanel, Line, LinePanel, Panel
from ceqr.experiments.report.style import style_of

WIDTH, HEIGHT = 440, 290
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 10, 44
ROW, LINE = 44, 16  # of an estimate: its label above, the interval below; a line more where labels are long
LONG, LONGEST = 38, 60  # characters of a label that leave no room for the value beside it; that fit at all
DIGITS = 7  # that the page keeps of a number


def draw(panel: Panel) -> str:
    """The panel as an <svg> element."""
    return _lines(panel) if isinstance(panel, LinePanel) else _estimates(panel)


# Numbers for people.


def short(value: float) -> str:
    """Four digits, thousands apart; a dash where there is no number."""
    if not np.isfinite(value):
        return "–"
    if value != 0 and abs(value) < 1e-3:
        return f"{value:.2g}".replace("-", "−")
    digits = min(3, max(0, 3 - int(np.floor(np.log10(abs(value)))))) if value else 0
    text = f"{value:,.{digits}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text).replace("-", "−")


def interval_text(value: float, low: float, high: float) -> str:
    """A value and its interval: 1.2 [0.9, 1.5]."""
    return f"{short(value)} [{short(low)}, {short(high)}]" if np.isfinite(low) else short(value)


def compact(value: float) -> str:
    """A number on an axis: 2.5M, 500k."""
    for least, size, unit in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(value) >= least:
            return f"{value / size:g}{unit}".replace("-", "−")
    return f"{value:,g}".replace("-", "−")


def _clip(label: str) -> str:
    """A label that fits; all of it is in the panel's words."""
    return label if len(label) <= LONGEST else f"{label[: LONGEST - 1]}…"


# Elements.


def _text(kind: str, x: float, y: float, text: str, anchor: str = "middle") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _rule(kind: str, x1: float, y1: float, x2: float, y2: float, more: str = "") -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"{more}/>'


def _box(kind: str, x: float, y: float, width: float, height: float) -> str:
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"/>'


def style_class(style: int) -> str:
    colour, dash = style_of(style)
    return f"c{colour} d{dash}"


def swatch(style: int) -> str:
    """A sample of a line, for legends."""
    line = f'<path class="line {style_class(style)}" d="M1 5L27 5"/>'
    return f'<svg class="swatch" viewBox="0 0 28 10" aria-hidden="true">{line}</svg>'


def _ticks(low: float, high: float) -> list[float]:
    ticks = MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    slack = 1e-9 * (high - low)
    return [float(f"{t:.9g}") if abs(t) > slack else 0.0 for t in ticks if low - slack <= t <= high + slack]


# Lines.


def _lines(panel: LinePanel) -> str:
    xs = np.concatenate([line.x for line in panel.lines])
    x_low, x_high = 0.0 if panel.x_label == "frames" else float(xs.min()), float(xs.max())
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
        parts.append(_rule("grid", LEFT, up(tick), right, up(tick)))
        parts.append(_text("tick", LEFT - 6, up(tick) + 4, compact(tick), "end"))
    for tick in _ticks(x_low, x_high):
        parts.append(_rule("grid", across(tick), TOP, across(tick), bottom))
        at_edge = across(tick) > right - 4  # the text of a tick there would be cut
        parts.append(
            _text("tick", WIDTH - 2, bottom + 16, compact(tick), "end")
            if at_edge
            else _text("tick", across(tick), bottom + 16, compact(tick))
        )
    if panel.goal is not None:
        parts.append(_rule("mark", LEFT, up(panel.goal), right, up(panel.goal)))
        parts.append(_text("tick", LEFT + 4, up(panel.goal) - 4, "goal", "start"))
    for line in panel.lines:
        if line.low is not None and line.high is not None:
            outline = _outline(across(line.x), up(line.low), up(line.high))
            parts.append(f'<path class="band {style_class(line.style)}" d="{outline}"/>')
    for line in panel.lines:
        look = f"{style_class(line.style)}{' single' if line.single else ''}"
        parts.append(f'<path class="line {look}" d="{_path(across(line.x), up(line.y))}"/>')
        if line.marked:
            known = np.isfinite(line.y)
            dots = zip(across(line.x[known]), up(line.y[known]), strict=True)
            parts += [f'<circle class="dot {look}" cx="{x:.1f}" cy="{y:.1f}" r="2.6"/>' for x, y in dots]
    parts.append(_rule("axis", LEFT, bottom, right, bottom))
    parts.append(_text("label", (LEFT + right) / 2, HEIGHT - 8, panel.x_label))
    turned = f"translate(13 {(TOP + bottom) / 2}) rotate(-90)"
    parts.append(f'<g transform="{turned}">{_text("label", 0, 0, panel.y_label)}</g>')
    parts.append(_rule("cursor", 0, TOP, 0, bottom, ' visibility="hidden"'))
    data = {
        "x": {"low": x_low, "high": x_high, "left": LEFT, "right": right, "label": panel.x_label},
        "lines": [_data(line) for line in panel.lines if not line.single],
    }
    told = escape(json.dumps(data, separators=(",", ":"), allow_nan=False))
    head = f'<svg class="panel" viewBox="0 0 {WIDTH} {HEIGHT}" tabindex="0" role="img"'
    return f'{head} aria-label="{escape(_words(panel))}" data-panel="{told}">{"".join(parts)}</svg>'


def _words(panel: LinePanel) -> str:
    """What the panel shows, for those who do not see it."""
    ends = []
    for line in panel.lines:
        known = np.flatnonzero(np.isfinite(line.y))
        if len(known) and not line.single:
            ends.append(f"{line.label} ends at {short(float(line.y[known[-1]]))}")
    return f"{panel.title}: {panel.y_label} over {panel.x_label}. {'; '.join(ends)}. Arrow keys read values."


def _data(line: Line) -> dict[str, Any]:
    data = {"label": line.label, "style": style_class(line.style), "x": _round(line.x), "y": _round(line.y)}
    if line.low is not None and line.high is not None:
        data |= {"low": _round(line.low), "high": _round(line.high)}
    return data


def _round(values: np.ndarray) -> list[float | None]:
    return [float(f"{v:.{DIGITS}g}") if np.isfinite(v) else None for v in values]


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


def _outline(x: np.ndarray, low: np.ndarray, high: np.ndarray) -> str:
    outlines = []
    for stretch in _stretches(x, low, high):
        there = [f"{a:.1f} {c:.1f}" for a, _, c in stretch]
        back = [f"{a:.1f} {b:.1f}" for a, b, _ in reversed(stretch)]
        outlines.append("M" + "L".join(there + back) + "Z")
    return "".join(outlines)


def table_points(panel: LinePanel, number: int = 10) -> Sequence[int]:
    """Which points of a panel's lines its table shows: some, evenly apart, the last one among them."""
    length = len(panel.lines[0].x)
    number = min(number, length)
    return [round((i + 1) * length / number) - 1 for i in range(number)]


# Estimates.


def _estimates(panel: EstimatePanel) -> str:
    numbers = np.array([each for row in panel.rows for each in map(float, row.interval)])
    shown = np.concatenate([numbers[np.isfinite(numbers)], [0.0, 1.0, panel.mark] if panel.mark is not None else [0.0]])
    low, high = float(shown.min()), float(shown.max())
    margin = 0.04 * (high - low) or 1.0
    low, high = low - (margin if low < 0 else 0), high + (0 if panel.mark is not None else margin)
    long = any(len(row.label) > LONG for row in panel.rows)
    tall = ROW + LINE * long
    left, right, height = 14, WIDTH - 20, TOP + tall * len(panel.rows) + BOTTOM
    bottom = height - BOTTOM

    def across(x: float) -> float:
        return left + (x - low) / (high - low) * (right - left)

    parts, words = [], []
    for tick in _ticks(low, high):
        parts.append(_rule("grid", across(tick), TOP, across(tick), bottom))
        parts.append(_text("tick", across(tick), bottom + 16, compact(tick)))
    if panel.mark is not None:
        parts.append(_rule("mark", across(panel.mark), TOP, across(panel.mark), bottom))
    for i, row in enumerate(panel.rows):
        value, below, above = map(float, row.interval)
        y, look = TOP + tall * (i + 1) - 14, style_class(row.style)
        text = interval_text(value, below, above)
        told = f"{row.label}: {text}"
        words.append(told)
        parts.append(
            f'<g class="row" tabindex="0" role="img" aria-label="{escape(told)}"><title>{escape(told)}</title>'
        )
        parts.append(_box("back", 0, y - tall + 16, WIDTH, tall - 4))
        parts.append(_text("name", left, y - 12 - LINE * long, _clip(row.label), "start"))
        parts.append(_text("number", left if long else right, y - 12, text, "start" if long else "end"))
        if np.isfinite(below):
            parts.append(_box(f"reach {look}", across(below), y - 5, max(across(above) - across(below), 1), 10))
        parts.append(_box(f"point {look}", across(value) - 1.5, y - 8, 3, 16) + "</g>")
    parts.append(_rule("axis", left, bottom, right, bottom))
    parts.append(_text("label", (left + right) / 2, height - 8, panel.x_label))
    label = escape(f"{panel.title}, {panel.x_label}. {'; '.join(words)}.")
    return f'<svg class="panel" viewBox="0 0 {WIDTH} {height}" role="group" aria-label="{label}">{"".join(parts)}</svg>'
