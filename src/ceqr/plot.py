"""The learning curves of a run as one picture."""

import io
from collections import defaultdict
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np

from ceqr.config import RunConfig
from ceqr.errors import UserError
from ceqr.experiments.stats import running_mean
from ceqr.files import write_aside
from ceqr.runs import RECENT_EPISODES, EpisodeRow, MetricsRow, read_config, read_episodes, read_metrics

GRID = 200  # points of a mean over seeds
COLOUR = "#1f4e9c"

Series = dict[int, tuple[list[int], np.ndarray]]  # frames and values, by seed


def plot(path: Path, out: Path | None = None) -> Path:
    """Draws returns, non-greedy share, coverage and both uncertainties over frames; returns the picture's path."""
    config, _ = read_config(path)
    out = out or path / "learning_curve.png"
    if out.suffix != ".png":
        raise UserError(f"--out must name a .png file, not {out}.")
    episodes: dict[int, list[EpisodeRow]] = defaultdict(list)
    metrics: dict[int, list[MetricsRow]] = defaultdict(list)
    for row in read_episodes(path, config):
        episodes[row.seed].append(row)
    for row in read_metrics(path, config):
        metrics[row.seed].append(row)
    if not episodes:
        raise UserError(f"{path} has no finished episode yet; train it for longer.")
    figure = _draw(config, episodes, metrics)
    picture = io.BytesIO()
    try:
        figure.savefig(picture, dpi=120, format="png")
        write_aside(out, picture.getvalue())
    except OSError as error:
        raise UserError(f"Cannot write {out}: {error.strerror}.") from error
    finally:
        plt.close(figure)
    return out


def _draw(config: RunConfig[Any], episodes: dict[int, list[EpisodeRow]], metrics: dict[int, list[MetricsRow]]) -> Any:
    figure, axes = plt.subplots(2, 3, figsize=(13, 6.4), sharex=True, layout="constrained")
    returns, nongreedy, coverage, epistemic, aleatoric, value = axes.flat
    for axis, name, label, scale in (
        (returns, "total", "return", 1),
        (nongreedy, "nongreedy", "non-greedy actions (%)", 100),
    ):
        _curves(axis, {seed: _running(rows, name, scale) for seed, rows in episodes.items()})
        axis.set_ylabel(f"{label}\n(running mean of {RECENT_EPISODES} episodes)")
    for axis, column, label, scale in (
        (coverage, "coverage", "TD targets inside the\nevidential interval (%)", 100),
        (epistemic, "epistemic", "epistemic uncertainty\n(of the chosen action, in returns)", 1),
        (aleatoric, "aleatoric", "aleatoric uncertainty\n(of the chosen action, in returns)", 1),
        (value, "start_value", "value at the episode's start\n(discounted return)", 1),
    ):
        axis.set_ylabel(label)
        series = {seed: _column(rows, column, scale) for seed, rows in metrics.items()}
        if any(len(frames) for frames, _ in series.values()):
            _curves(axis, series)
        else:
            axis.text(0.5, 0.5, "not estimated (yet)", transform=axis.transAxes, ha="center", color="grey")
            axis.set_yticks([])
    if coverage.lines:
        coverage.axhline(90, color="grey", linestyle=":", linewidth=1)
        coverage.annotate("goal", (0.01, 90), xycoords=("axes fraction", "data"), va="bottom", color="grey", fontsize=8)
    for axis in axes[1]:
        axis.set_xlabel("frames")
    for axis in axes.flat:
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_xlim(left=0)
    coverage.set_ylim(0, 102)
    for axis in (nongreedy, epistemic, aleatoric):  # what cannot be negative; returns and values can
        axis.set_ylim(bottom=0)
    if returns.lines:
        returns.legend(loc="best", frameon=False, fontsize=8)
    figure.suptitle(_title(config), parse_math=False)
    return figure


def _title(config: RunConfig[Any]) -> str:
    return f"{config.agent} on {config.describe_env()}, {config.seeds} seed{'s' if config.seeds > 1 else ''}"


def _running(rows: list[EpisodeRow], name: str, scale: float) -> tuple[list[int], np.ndarray]:
    """A running mean over the episodes that have a number."""
    filled = [row for row in rows if np.isfinite(getattr(row, name))]
    values = np.array([getattr(row, name) for row in filled])
    return [row.frame for row in filled], scale * running_mean(values, RECENT_EPISODES)


def _column(rows: list[MetricsRow], name: str, scale: float) -> tuple[list[int], np.ndarray]:
    """What was logged under that name, where something was."""
    filled = [row for row in rows if np.isfinite(row.values.get(name, np.nan))]
    return [row.frame for row in filled], scale * np.array([row.values[name] for row in filled])


def _curves(axis: Any, series: Series) -> None:
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
