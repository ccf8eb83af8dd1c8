"""The learning curves of a run as one picture."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np

from ceqr.errors import UserError
from ceqr.runs import RECENT_EPISODES, read_config, read_episodes, read_table

GRID = 200  # points of a mean over seeds
COLOUR = "#1f4e9c"


def plot(path: Path, out: Path | None = None) -> Path:
    """Draws returns, non-greedy share, coverage and both uncertainties over frames; returns the picture's path."""
    config, _ = read_config(path)
    out = out or path / "learning_curve.png"
    if out.suffix != ".png":
        raise UserError(f"--out must name a .png file, not {out}.")
    episodes = defaultdict(list)
    metrics: dict[int, list[dict[str, str]]] = defaultdict(list)
    try:
        for row in read_episodes(path):
            episodes[row.seed].append(row)
        for row in read_table(path / "metrics.csv"):
            metrics[int(row["seed"])].append(row)
    except FileNotFoundError as error:
        raise UserError(f"{path} has no results yet; train it for longer.") from error
    if not episodes:
        raise UserError(f"{path} has no finished episode yet; train it for longer.")

    figure, axes = plt.subplots(2, 3, figsize=(13, 6.4), sharex=True, layout="constrained")
    returns, nongreedy, coverage, epistemic, aleatoric, value = axes.flat

    def smooth(values: Sequence[float]) -> np.ndarray:
        return _running_mean(np.asarray(values), RECENT_EPISODES)

    _curves(
        returns,
        {s: ([r.frame for r in rows], smooth([r.total for r in rows])) for s, rows in episodes.items()},
    )
    returns.set_ylabel(f"return\n(running mean of {RECENT_EPISODES} episodes)")
    _curves(
        nongreedy,
        {s: ([r.frame for r in rows], 100 * smooth([r.nongreedy for r in rows])) for s, rows in episodes.items()},
    )
    nongreedy.set_ylabel(f"non-greedy actions (%)\n(running mean of {RECENT_EPISODES} episodes)")
    for axis, column, label, scale in (
        (coverage, "coverage", "TD targets inside the\nevidential interval (%)", 100),
        (epistemic, "epistemic", "epistemic uncertainty\n(of the chosen action, in returns)", 1),
        (aleatoric, "aleatoric", "aleatoric uncertainty\n(of the chosen action, in returns)", 1),
        (value, "start_value", "value at the episode's start\n(discounted return)", 1),
    ):
        axis.set_ylabel(label)
        if any(row.get(column) for rows in metrics.values() for row in rows):
            _curves(axis, {seed: _column(rows, column, scale) for seed, rows in metrics.items()})
        else:
            axis.text(0.5, 0.5, "not estimated (yet)", transform=axis.transAxes, ha="center", color="grey")
    coverage.axhline(90, color="grey", linestyle=":", linewidth=1)
    coverage.annotate("goal", (0.01, 90), xycoords=("axes fraction", "data"), va="bottom", color="grey", fontsize=8)
    for axis in axes[1]:
        axis.set_xlabel("frames")
    for axis in axes.flat:
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_xlim(left=0)
    for axis in (returns, nongreedy, coverage, epistemic, aleatoric):
        axis.set_ylim(bottom=0)
    returns.legend(loc="upper left", frameon=False, fontsize=8)
    figure.suptitle(f"{config.agent} on {config.env}, {config.protocol} protocol, {config.seeds} seed(s)")
    temporary = out.with_name(f".{out.name}.tmp")
    try:
        figure.savefig(temporary, dpi=120, format="png")
        temporary.replace(out)
    except OSError as error:
        raise UserError(f"Cannot write {out}: {error.strerror}.") from error
    finally:
        plt.close(figure)
    return out


def _column(rows: list[dict[str, str]], name: str, scale: float) -> tuple[list[int], np.ndarray]:
    filled = [row for row in rows if row.get(name)]
    return [int(row["frame"]) for row in filled], scale * np.array([float(row[name]) for row in filled])


def _curves(axis: Any, series: dict[int, tuple[Sequence[int], np.ndarray]]) -> None:
    """One thin line a seed, and their mean where all of them have values."""
    drawn = {seed: (np.asarray(x), y) for seed, (x, y) in sorted(series.items()) if len(x)}
    alone = len(drawn) == 1
    for seed, (x, y) in drawn.items():
        axis.plot(
            x, y, color=COLOUR, alpha=1 if alone else 0.4, linewidth=1.6 if alone else 0.9,
            label=f"seed {seed}" if alone else ("one seed" if seed == min(drawn) else None),
        )  # fmt: skip
    if len(drawn) > 1:
        start, stop = max(x[0] for x, _ in drawn.values()), min(x[-1] for x, _ in drawn.values())
        if start < stop:
            grid = np.linspace(start, stop, GRID)
            mean = np.mean([np.interp(grid, x, y) for x, y in drawn.values()], axis=0)
            axis.plot(grid, mean, color=COLOUR, linewidth=2.2, label=f"mean of {len(drawn)} seeds")


def _running_mean(values: np.ndarray, window: int) -> np.ndarray:
    """The mean of the last `window` values, of all so far where there are fewer."""
    sums = np.cumsum(np.concatenate([[0.0], values]))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - window)
    return (sums[ends] - sums[starts]) / (ends - starts)
