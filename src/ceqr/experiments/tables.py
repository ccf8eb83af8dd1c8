"""Reading many runs fast: each is found by its config.json and boiled down to what a report needs of it.

A run of 2.5 million frames has some 100,000 episodes, and there may be hundreds of runs, so tables are read by polars
(docs/how-to-report.md has the measurement that chose it), one run at a time, and no run's rows outlive its summary.
What polars does not take goes to the plain reader of `ceqr.runs`, which says what is wrong in which line. A run that
cannot be used is still a `RunRecord`, with the reason.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from ceqr import runs
from ceqr.config import RunConfig
from ceqr.errors import UserError
from ceqr.experiments import kept
from ceqr.experiments.records import METRICS, Columns, RunRecord, SeedRecord, grid
from ceqr.experiments.stats import running_mean, second_order_running_mean
from ceqr.runs import EPISODE_COLUMNS, LARGEST, METRIC_COLUMNS, RECENT_EPISODES

WHOLE = ("seed", "frame", "length")  # columns of whole numbers
NOT_RUNS = ("checkpoints", "tensorboard")  # folders of a run in which there are no others


def find_runs(paths: Iterable[Path]) -> list[Path]:
    """The directories below the paths that hold a config.json, each once."""
    found: dict[Path, Path] = {}
    for path in paths:
        if not path.exists():
            raise UserError(f"There is no {path}; name run directories, or directories that hold some.")
        if not path.is_dir():
            raise UserError(f"{path} is no directory; name run directories, or directories that hold some.")
        for folder in _walk(path, set()):
            found.setdefault(folder.resolve(), folder)
    if not found:
        raise UserError(f"There is no run in {', '.join(map(str, paths))}: no config.json anywhere below.")
    return sorted(found.values())


def _walk(folder: Path, seen: set[Path]) -> Iterator[Path]:
    """Links are followed, since whole sweeps are often kept elsewhere; a loop of them is entered once."""
    real = folder.resolve()
    if real in seen:
        return
    seen.add(real)
    try:
        below = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    except OSError as error:
        raise UserError(f"{folder} cannot be read: {error.strerror}.") from error
    is_run = (folder / "config.json").is_file()
    if is_run:
        yield folder
    for name in below:
        if not name.startswith(".") and not (is_run and name in NOT_RUNS):
            yield from _walk(folder / name, seen)


def read_run(path: Path, frames: int | None = None) -> RunRecord:
    """A run, to its end or, if so asked, its first `frames` frames. Nothing is raised for a run that is no good."""
    config = None
    reached = 0
    try:
        config, _ = runs.read_config(path)
        summary = _read_summary(path)
        reached = _reached(config, summary)
        wanted = frames or config.frames
        if reached < wanted:
            if reached == config.frames:
                problem = f"It has {reached:,} frames in all."
            else:
                problem = (
                    f"It is at frame {reached:,} of {config.frames:,}." if reached else "It has no checkpoint yet."
                )
            return RunRecord(path, config, reached, problem=problem)
        if (path / kept.NAME).is_file() and not (path / "episodes.csv").exists():
            return kept.read_kept(path, config, wanted)
        episodes, metrics = _read_episodes(path, config), _read_metrics(path, config)
        _check_counts(path, config, summary, episodes)
        seeds = tuple(_summarise(seed, episodes, metrics, wanted, path) for seed in config.seed_numbers)
        return RunRecord(path, config, reached, wanted, seeds, timing=_read_timing(path))
    except UserError as error:
        return RunRecord(path, config, reached, problem=str(error), damaged=True)


# Tables.


def _read_episodes(path: Path, config: RunConfig[Any]) -> Columns:
    def slowly() -> Columns:
        rows = [
            (*row[:2], row.total, *row[3:]) for row in runs.read_episodes(path, config)
        ]  # raises in the damaged line
        return _columns(rows, EPISODE_COLUMNS)

    return _read(path / "episodes.csv", EPISODE_COLUMNS, EPISODE_COLUMNS, config, slowly)


def _read_metrics(path: Path, config: RunConfig[Any]) -> Columns:
    def slowly() -> Columns:
        rows = [(r.seed, r.frame, *(r.values.get(n, np.nan) for n in METRICS)) for r in runs.read_metrics(path, config)]
        return _columns(rows, (*METRIC_COLUMNS, *METRICS))

    return _read(path / "metrics.csv", METRIC_COLUMNS, (*METRIC_COLUMNS, *METRICS), config, slowly)


def _columns(rows: Sequence[Sequence[float]], names: Sequence[str]) -> Columns:
    table = np.array(rows, np.float64).reshape(len(rows), len(names))
    return {name: table[:, i] for i, name in enumerate(names)}


def _read(
    path: Path, needed: Sequence[str], wanted: Sequence[str], config: RunConfig[Any], slowly: Callable[[], Columns]
) -> Columns:
    """The wanted columns as float64; those that are not needed and not there are NaN."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return slowly()  # has a sentence for it
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error
    data = data[: data.rfind(b"\n") + 1]  # a last line that is still being written is left out
    fast = _read_fast(data, needed, wanted, config.seed_numbers)
    return slowly() if fast is None else fast


def _read_fast(data: bytes, needed: Sequence[str], wanted: Sequence[str], seeds: range) -> Columns | None:
    """The same by polars; None for anything that is not exactly as a run writes it."""
    header = data[: data.find(b"\n") + 1].decode("ascii", "replace").rstrip("\r\n").split(",")
    if not set(needed) <= set(header) or len(set(header)) != len(header):
        return None
    there = [name for name in header if name in wanted]
    try:
        table = pl.read_csv(
            data,
            columns=there,
            schema_overrides={name: pl.Int64 if name in WHOLE else pl.Float64 for name in header},
            quote_char=None,
        )
    except (pl.exceptions.PolarsError, UnicodeDecodeError):
        return None
    # Rows with more cells were refused; rows with fewer would have been filled up.
    if data.count(b",") != (len(table) + 1) * (len(header) - 1):
        return None
    for name in WHOLE:
        if name in there and len(table):
            column = table[name]
            low, high = (seeds[0], seeds[-1]) if name == "seed" else (0, LARGEST - 1)
            if column.null_count() or column.min() < low or column.max() > high:  # pyright: ignore
                return None
    columns = {name: table[name].cast(pl.Float64).to_numpy() for name in there}  # an empty cell is NaN
    return columns | {name: np.full(len(table), np.nan) for name in wanted if name not in there}


def _read_summary(path: Path) -> dict[int, dict[str, Any]]:
    """What summary.json says of each seed; empty where there is none yet."""
    try:
        content = json.loads((path / "summary.json").read_text(encoding="utf-8"))
        return {
            row["seed"]: {"frames": int(row["frames"]), "episodes": int(row["episodes"])} for row in content["seeds"]
        }
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{path / 'summary.json'} is damaged; the run's other files may still be whole.") from error


def _reached(config: RunConfig[Any], summary: dict[int, dict[str, Any]]) -> int:
    """The frame that all seeds have reached and to which all tables are written: that of the newest checkpoint."""
    return min(summary.get(seed, {"frames": 0})["frames"] for seed in config.seed_numbers)


def _check_counts(path: Path, config: RunConfig[Any], summary: dict[int, dict[str, Any]], episodes: Columns) -> None:
    """A table that lost rows still looks whole; the summary remembers how many there were."""
    for seed, row in summary.items():
        there = int(np.sum((episodes["seed"] == seed) & (episodes["frame"] <= row["frames"])))
        if seed in config.seed_numbers and there != row["episodes"]:
            raise UserError(
                f"{path / 'episodes.csv'} is damaged: it has {there:,} episodes of seed {seed} where summary.json "
                f"counts {row['episodes']:,}."
            )


def _read_timing(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Frames, and the seconds of training until each over all starts of the run. A kill may have torn rows."""
    try:
        data = (path / "timing.csv").read_bytes()
        table = pl.read_csv(
            data[: data.rfind(b"\n") + 1],
            columns=["started", "frame", "seconds"],
            schema_overrides={"started": pl.String, "frame": pl.Float64, "seconds": pl.Float64},
            truncate_ragged_lines=True,
            ignore_errors=True,
            quote_char=None,
        ).drop_nulls()
    except (OSError, pl.exceptions.PolarsError):
        return np.zeros(0), np.zeros(0)
    frames, seconds = table["frame"].to_numpy(), table["seconds"].to_numpy()
    again = table["started"].to_numpy()[1:] != table["started"].to_numpy()[:-1]
    steps = np.diff(seconds, prepend=0.0)
    steps[1:] = np.where(again, seconds[1:], steps[1:])
    return frames, np.cumsum(np.maximum(steps, 0))


# What is left of a seed.


def _summarise(seed: int, episodes: Columns, metrics: Columns, frames: int, path: Path) -> SeedRecord:
    mine = (episodes["seed"] == seed) & (episodes["frame"] <= frames) & np.isfinite(episodes["return"])
    at, returns, nongreedy = (episodes[name][mine] for name in ("frame", "return", "nongreedy"))
    if np.any(np.diff(at) < 0):
        raise UserError(f"{path / 'episodes.csv'} is damaged: the frames of seed {seed} go back.")
    points = grid(frames)
    recent = running_mean(returns, RECENT_EPISODES)
    whole = recent[RECENT_EPISODES - 1 :]  # means of fewer episodes are too noisy to set a record
    ever = np.maximum.accumulate(whole) if len(whole) else whole
    new = np.diff(ever, prepend=-np.inf) > 0
    known = np.isfinite(nongreedy)
    curves = {
        "score": _as_of(points, at, second_order_running_mean(returns, RECENT_EPISODES)),
        "nongreedy": _as_of(points, at[known], running_mean(nongreedy[known], RECENT_EPISODES)),
    }
    rows = (metrics["seed"] == seed) & (metrics["frame"] <= frames)
    for name in METRICS:
        curves[name] = _binned(points, metrics["frame"][rows], metrics[name][rows])
    return SeedRecord(
        seed=seed,
        episodes=len(returns),
        final=float(recent[-1]) if len(recent) else np.nan,
        best_mean=float(ever[-1]) if len(ever) else np.nan,
        best=float(returns.max()) if len(returns) else np.nan,
        curves=curves,
        record_frames=at[RECENT_EPISODES - 1 :][new],
        record_values=ever[new],
    )


def _as_of(points: np.ndarray, at: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The newest value at each point; NaN before the first."""
    i = np.searchsorted(at, points, side="right") - 1
    return np.where(i >= 0, values[np.maximum(i, 0)], np.nan) if len(values) else np.full(len(points), np.nan)


def _binned(points: np.ndarray, at: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The mean of the values since the point before; the newest value where there are none."""
    known = np.isfinite(values)
    at, values = at[known], values[known]
    order = np.argsort(at, kind="stable")
    at, values = at[order], values[order]
    bins = np.searchsorted(points, at)
    sums = np.bincount(bins, values, minlength=len(points) + 1)[: len(points)]
    counts = np.bincount(bins, minlength=len(points) + 1)[: len(points)]
    return np.where(counts > 0, sums / np.maximum(counts, 1), _as_of(points, at, values))
