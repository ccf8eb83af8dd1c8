"""What a run writes down while it trains: rows, what TensorBoard or Weights & Biases show, and a line for a person."""

import os
import secrets
from pathlib import Path
from typing import Any

import numpy as np

from ceqr.errors import UserError
from ceqr.files import write_aside
from ceqr.runs import EpisodeRow
from ceqr.training.run import Run


class Log:
    """Turns what the player brings into rows of the run."""

    def __init__(self, run: Run):
        self._run = run
        self._last: dict[str, float] = {}
        self._boards: list[_TensorBoard | _WandB] = []
        if run.config.tensorboard:
            self._boards.append(_TensorBoard(run.path))
        if run.config.wandb:
            self._boards.append(_WandB(run))

    def episodes(self, rows: list[EpisodeRow]) -> None:
        self._run.add_episodes(rows)
        for board in self._boards:
            for row in rows:
                board.add(row.seed, row.frame, {"episode/return": row.total, "episode/nongreedy": row.nongreedy})

    def metrics(self, frame: int, columns: dict[str, np.ndarray]) -> None:
        """A row for each seed."""
        for i, seed in enumerate(self._run.config.seed_numbers):
            values = {name: float(column[i]) for name, column in columns.items()}
            self._run.add_metrics(seed, frame, values)
            for board in self._boards:
                board.add(seed, frame, {f"metrics/{k}": v for k, v in values.items() if not np.isnan(v)})
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
        for board in self._boards:
            board.close()


class _TensorBoard:
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


class _WandB:
    """Weights & Biases: a run of its own for each seed, which goes on when the run does.

    The seeds of a run are a group, and so are the runs of a sweep. WANDB_MODE, WANDB_PROJECT and whatever else it reads
    from the environment count.
    """

    def __init__(self, run: Run):
        import wandb

        (run.path / "wandb").mkdir(exist_ok=True)
        try:
            self._runs = {seed: self._begin(run, seed) for seed in run.config.seed_numbers}
        except (wandb.Error, TimeoutError) as error:
            raise UserError(
                f"Weights & Biases cannot be reached: {' '.join(str(error).split()).rstrip('.')}; log in with "
                "'wandb login', or set WANDB_MODE=offline."
            ) from error

    def add(self, seed: int, frame: int, values: dict[str, float]) -> None:
        self._runs[seed].log({"frame": frame, **values})

    def _begin(self, run: Run, seed: int) -> Any:
        import wandb

        sweep = run.path.absolute().parent.parent
        begun = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "ceqr"),
            group=sweep.name if (sweep / "sweep.toml").is_file() else run.path.name,
            name=f"{run.path.name}-seed{seed}",
            id=self._id(run.path / "wandb" / f"seed{seed}.id"),
            resume="allow",
            dir=str(run.path),
            config={**run.config.to_json(), "seed": seed},
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off"),
        )
        begun.define_metric("*", step_metric="frame")
        return begun

    @staticmethod
    def _id(path: Path) -> str:
        """The name by which it knows the run of a seed: drawn once, and kept beside what it writes."""
        if not path.exists():
            write_aside(path, secrets.token_hex(8).encode())
        return path.read_text()

    def close(self) -> None:
        for each in self._runs.values():
            each.finish()
