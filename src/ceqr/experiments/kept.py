"""What a report needs of a run, in one small file: curves.json, beside config.json and summary.json.

A run of 200,000 frames has some megabytes of tables and 30 of checkpoints; boiled down it has some ten kilobytes, which
can be kept for good, committed and sent. Curves have their 200 points, numbers five digits. Records and means of
scores have nine, so that none is rounded up to a score that was not reached.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from ceqr.config import RunConfig
from ceqr.errors import UserError
from ceqr.experiments.records import GRID, METRICS, RunRecord, SeedRecord
from ceqr.files import write_aside

NAME = "curves.json"
FORMAT = 1
CURVES = ("score", "nongreedy", *METRICS)
SUMS = ("final", "best_mean", "best")
ROUGH, EXACT = 5, 9  # digits
LEVELS = 200  # of the rising record, to which the frames are kept


def keep(record: RunRecord) -> None:
    """Writes a finished run's file into its directory."""
    content = {
        "format": FORMAT,
        "frames": record.frames,
        "seeds": [_pack(seed) for seed in record.seeds],
        "timing": [_numbers(each) for each in _thinned(record.frames, *record.timing)],
    }
    write_aside(record.path / NAME, (json.dumps(content, separators=(",", ":"), allow_nan=False) + "\n").encode())


def _pack(seed: SeedRecord) -> dict[str, Any]:
    return {
        "seed": seed.seed,
        "episodes": seed.episodes,
        **{name: _number(getattr(seed, name), EXACT) for name in SUMS},
        "curves": {name: _numbers(seed.curves[name]) for name in CURVES},
        "records": [_numbers(each, EXACT) for each in _climb(seed.record_frames, seed.record_values)],
    }


def _climb(frames: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The records that first reach each of the levels between the first and the last."""
    if not len(values):
        return frames, values
    at = np.unique(np.searchsorted(values, np.linspace(values[0], values[-1], LEVELS)))
    at = at[at < len(values)]
    return frames[at], values[at]


def _thinned(frames: int, at: np.ndarray, seconds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The clock's rows at as many points as a curve has; the last row of each."""
    last = np.flatnonzero(np.diff(np.ceil(at * GRID / frames), append=np.inf))
    return at[last], seconds[last]


def _number(value: float, digits: int = ROUGH) -> float | int | None:
    """So many digits; whole numbers, such as frames, as they are."""
    if not np.isfinite(value):
        return None
    return int(value) if value == round(value) else float(f"{value:.{digits}g}")


def _numbers(values: np.ndarray, digits: int = ROUGH) -> list[float | int | None]:
    return [_number(float(value), digits) for value in values]


def read_kept(path: Path, config: RunConfig[Any], frames: int) -> RunRecord:
    """A run of which that file is left, if it is of so many frames; `UserError` if it is damaged."""
    try:
        content = json.loads((path / NAME).read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise UserError(f"{path / NAME} was made by an incompatible version of ceqr.")
        kept = int(content["frames"])
        seeds = tuple(map(_unpack, content["seeds"]))
        at, seconds = map(_array, content["timing"])
        if [seed.seed for seed in seeds] != list(config.seed_numbers) or at.shape != seconds.shape:
            raise ValueError("it is of another run")
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise UserError(f"{path / NAME} is damaged: {error}.") from error
    if kept != frames:
        problem = f"Its curves were kept for {kept:,} frames, and only for as many it can be reported."
        return RunRecord(path, config, kept, problem=problem, whole=True)
    return RunRecord(path, config, kept, kept, seeds, timing=(at, seconds), whole=True)


def _unpack(packed: dict[str, Any]) -> SeedRecord:
    curves = {name: _array(packed["curves"][name]) for name in CURVES}
    frames, values = map(_array, packed["records"])
    if any(len(curve) != GRID for curve in curves.values()) or frames.shape != values.shape:
        raise ValueError("a curve has lost points")
    sums = {name: float("nan") if packed[name] is None else float(packed[name]) for name in SUMS}
    return SeedRecord(
        seed=int(packed["seed"]),
        episodes=int(packed["episodes"]),
        curves=curves,
        record_frames=frames,
        record_values=values,
        **sums,
    )


def _array(values: list[float | None]) -> np.ndarray:
    return np.array([np.nan if v is None else float(v) for v in values])
