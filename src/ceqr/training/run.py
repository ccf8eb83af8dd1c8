"""A run directory: what a training run leaves behind, written so that it survives anything.

    config.json     every option, package versions, git revision: enough to repeat the run
    episodes.csv    one row for each finished episode
    metrics.csv     one row for each seed and log interval
    summary.json    per seed: frames, mean of the last 100 episodes, best episode
    timing.csv      whatever depends on the clock; the other files repeat to the byte
    checkpoints/    the two newest states of everything
    .lock           empty; held by the process that trains, and let go by the system when that ends, however it ends

The tables only grow. A checkpoint remembers how long they were, and resuming cuts them back to that length before going
on, so that an interrupted run ends with the same bytes as one that never stopped.
"""

import math
import os
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, TextIO

from filelock import FileLock, Timeout

from ceqr.config import RunConfig
from ceqr.errors import UserError
from ceqr.files import claim_folder, flush, write_json
from ceqr.provenance import provenance
from ceqr.runs import EPISODE_COLUMNS, FORMAT, METRIC_COLUMNS, RECENT_EPISODES, EpisodeRow, read_episodes
from ceqr.training.checkpoint import storing

TIMING_COLUMNS = ("started", "frame", "seconds", "frames_per_second")
LOCK = ".lock"


class InUse(UserError):
    """Another process holds the run."""


class EpisodeStatistics:
    """What the summary and the progress line say about one seed's episodes."""

    def __init__(self) -> None:
        self.count = 0
        self.best: float | None = None
        self.recent: deque[EpisodeRow] = deque(maxlen=RECENT_EPISODES)

    def add(self, row: EpisodeRow) -> None:
        self.count += 1
        self.best = row.total if self.best is None else max(self.best, row.total)
        self.recent.append(row)

    def mean_return(self) -> float | None:
        return math.fsum(r.total for r in self.recent) / len(self.recent) if self.recent else None


class Run:
    """An open run directory. One process at a time may hold it."""

    def __init__(self, path: Path, config: RunConfig[Any], metric_columns: Sequence[str]):
        self.path = path
        self.config = config
        self.episodes = {seed: EpisodeStatistics() for seed in config.seed_numbers}
        self._columns = {
            "episodes.csv": EPISODE_COLUMNS,
            "metrics.csv": (*METRIC_COLUMNS, *metric_columns),
        }
        self._tables: dict[str, TextIO] = {}
        self._checked: dict[str, int] | None = None
        self._started = time.time()
        # An object of our own, and not one for each thread: whoever closes the run lets go of it.
        self._lock = FileLock(path / LOCK, timeout=0, thread_local=False)
        with self._storing(LOCK):
            try:
                self._lock.acquire()
            except Timeout as error:
                raise InUse(f"{path} is in use by another process; wait for it to end or stop it first.") from error

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def _storing(self, name: str) -> AbstractContextManager[None]:
        return storing(self.path / name, self.path)

    def check_lengths(self, lengths: Any) -> None:
        """Raises `UserError` if a table is not what a checkpoint counts on; changes no file."""
        known = isinstance(lengths, dict) and set(lengths) == set(self._columns)
        if not known or not all(type(length) is int and length > 0 for length in lengths.values()):
            raise UserError(f"The checkpoints of {self.path} were made by an incompatible version of ceqr.")
        for name, length in lengths.items():
            path = self.path / name
            if not path.is_file() or path.stat().st_size < length:
                raise UserError(f"{path} is missing or shorter than its checkpoint says, so the run cannot go on.")
            with open(path, "rb") as file:
                file.seek(length - 1)
                if file.read(1) != b"\n":
                    raise UserError(f"{path} was changed since its checkpoint, so the run cannot go on.")
        self.episodes = {seed: EpisodeStatistics() for seed in self.config.seed_numbers}
        for row in read_episodes(self.path, self.config, lengths["episodes.csv"]):
            self.episodes[row.seed].add(row)
        self._checked = lengths

    def begin(self, lengths: dict[str, int] | None) -> None:
        """Opens the tables: cut back to the given lengths in bytes, or new."""
        if lengths is not None and lengths != self._checked:
            self.check_lengths(lengths)
        for name, columns in self._columns.items():
            with self._storing(name):
                file = open(self.path / name, "a", newline="", encoding="utf-8")  # noqa: SIM115
                self._tables[name] = file
                file.truncate(0 if lengths is None else lengths[name])
                if lengths is None:
                    file.write(_line(columns))
                    file.flush()
        with self._storing("timing.csv"), open(self.path / "timing.csv", "a+b") as timing:
            timing.seek(0)
            content = timing.read()
            if not content:
                timing.write(_line(TIMING_COLUMNS).encode())
            elif not content.endswith(b"\n"):  # a kill tore the last row
                timing.write(b"\n")

    def add_episodes(self, rows: Iterable[EpisodeRow]) -> None:
        with self._storing("episodes.csv"):
            for row in rows:
                row = row._replace(total=float(_number(row.total) or "nan"))  # what a resumed run will read back
                numbers = map(_number, (row.total, row.length, row.nongreedy, row.least_uncertain))
                self._tables["episodes.csv"].write(_line((row.seed, row.frame, *numbers)))
                self.episodes[row.seed].add(row)

    def add_metrics(self, seed: int, frame: int, values: dict[str, float]) -> None:
        columns = self._columns["metrics.csv"][2:]
        with self._storing("metrics.csv"):
            self._tables["metrics.csv"].write(_line((seed, frame, *(_number(values[name]) for name in columns))))

    def add_timing(self, frame: int, seconds: float, frames_per_second: float) -> None:
        started = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(self._started))
        with self._storing("timing.csv"), open(self.path / "timing.csv", "ab") as file:
            file.write(_line((started, frame, f"{seconds:.2f}", f"{frames_per_second:.1f}")).encode())

    def flush(self) -> dict[str, int]:
        """Makes the tables durable and says how long they are: what a checkpoint must remember."""
        lengths = {}
        for name, file in self._tables.items():
            with self._storing(name):
                flush(file)
                lengths[name] = os.fstat(file.fileno()).st_size
        return lengths

    def write_config(self, origin: dict[str, Any]) -> None:
        """Writes config.json with the versions that the run was begun with."""
        with self._storing("config.json"):
            write_json(self.path / "config.json", {"format": FORMAT, **origin, "config": self.config.to_json()})

    def write_summary(self, frame: int) -> None:
        seeds = [
            {
                "seed": seed,
                "frames": frame,
                "episodes": stats.count,
                f"mean_of_last_{RECENT_EPISODES}": _finite(stats.mean_return()),
                "max": _finite(stats.best),
            }
            for seed, stats in self.episodes.items()
        ]
        with self._storing("summary.json"):
            write_json(self.path / "summary.json", {"seeds": seeds})

    def close(self) -> None:
        for file in self._tables.values():
            with suppress(OSError):  # what a checkpoint counts on was flushed before it
                file.close()
        self._lock.release()


def create(path: Path, config: RunConfig[Any], metric_columns: Sequence[str]) -> Run:
    """Makes a new run directory; refuses one that holds anything."""
    if (path / "config.json").exists():
        raise UserError(f"{path} already holds a run; go on with 'ceqr resume {path}' or choose another --out.")
    claim_folder(path)
    run = Run(path, config, metric_columns)
    try:
        run.write_config(provenance())
    except BaseException:
        run.close()
        raise
    return run


def _finite(value: float | None) -> float | None:
    """JSON knows no other numbers."""
    return value if value is not None and math.isfinite(value) else None


def _number(value: float) -> str:
    """Enough digits to tell any two float32 numbers apart; nothing where there is no number."""
    return "" if math.isnan(value) else f"{value:.9g}"


def _line(cells: Iterable[Any]) -> str:
    return ",".join(map(str, cells)) + "\n"
