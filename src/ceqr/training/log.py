"""What a run writes down while it trains: rows, TensorBoard's events, and the line that a person sees."""

from pathlib import Path
from typing import Any

import numpy as np

from ceqr.runs import EpisodeRow
from ceqr.training.run import Run


class Log:
    """Turns what the player brings into rows of the run."""

    def __init__(self, run: Run):
        self._run = run
        self._last: dict[str, float] = {}
        self._board = _Board(run.path) if run.config.tensorboard else None

    def episodes(self, rows: list[EpisodeRow]) -> None:
        self._run.add_episodes(rows)
        if self._board:
            for row in rows:
                self._board.add(row.seed, row.frame, {"episode/return": row.total, "episode/nongreedy": row.nongreedy})

    def metrics(self, frame: int, columns: dict[str, np.ndarray]) -> None:
        """A row for each seed."""
        for i, seed in enumerate(self._run.config.seed_numbers):
            values = {name: float(column[i]) for name, column in columns.items()}
            self._run.add_metrics(seed, frame, values)
            if self._board:
                self._board.add(seed, frame, {f"metrics/{k}": v for k, v in values.items() if not np.isnan(v)})
        self._last = {name: float(np.mean(column)) for name, column in columns.items()}

    def status(self) -> str:
        recent = [row for stats in self._run.episodes.values() for row in stats.recent]
        parts = []
        if recent:
            parts.append(f"return {np.mean([r.total for r in recent]):.2f}")
            parts.append(f"non-greedy {np.mean([r.nongreedy for r in recent]):.1%}")
        for name, text in (("coverage", "coverage {:.1%}"), ("loss", "loss {:.3f}")):
            if not np.isnan(self._last.get(name, np.nan)):
                parts.append(text.format(self._last[name]))
        return ", ".join(parts)

    def close(self) -> None:
        if self._board:
            self._board.close()


class _Board:
    """TensorBoard event files, one folder a seed."""

    def __init__(self, path: Path):
        self._path = path / "tensorboard"
        self._writers: dict[int, Any] = {}

    def add(self, seed: int, frame: int, values: dict[str, float]) -> None:
        if seed not in self._writers:
            from tensorboardX import SummaryWriter

            self._writers[seed] = SummaryWriter(str(self._path / f"seed{seed}"), purge_step=frame)
        for name, value in values.items():
            self._writers[seed].add_scalar(name, value, frame)

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()
