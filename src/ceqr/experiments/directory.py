"""A sweep's directory, which is its own state.

    sweep.toml      the whole declaration, written first
    runs/           one run directory for each run, as `ceqr train` writes it
    logs/           what each run said, by its name
    attempts.json   how often runs failed, and of what
    search.db       Optuna's storage, if the sweep is a search; best.toml, what it found
    .lock           empty; held by the process that runs the sweep

How far a run is stands in its own directory and nowhere else, so nothing here can contradict it.
"""

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import tomli_w
from filelock import FileLock, Timeout

from ceqr.errors import UserError
from ceqr.experiments.sweep import Declaration, Kind, RunSpec, complete, read
from ceqr.files import claim_folder, write_aside, write_json
from ceqr.runs import RECENT_EPISODES, read_config

NEW, BEGUN, DONE = "new", "begun", "done"
TAIL = 400  # bytes from a table's end that hold its last line


@dataclass(frozen=True)
class Progress:
    """How far a run is, by its own files."""

    frame: int = 0
    rate: float | None = None  # frames a second, of each seed
    score: float | None = None  # mean return of the last episodes, over its seeds; as of its last checkpoint


class SweepDirectory:
    """A sweep's directory. To change it, hold it; one process at a time may."""

    def __init__(self, path: Path):
        self.path = path
        self.failures = self._read_failures()  # of each run that failed, the errors
        self._lock: FileLock | None = None
        self._made = False

    @property
    def exists(self) -> bool:
        return (self.path / "sweep.toml").is_file()

    def hold(self) -> None:
        """Makes it, or takes it; `UserError` if it is something else, or another sweep runs in it."""
        self._made = not self.path.exists()
        if not self.exists:
            claim_folder(self.path)
        lock = FileLock(self.path / ".lock", timeout=0, thread_local=False)
        try:
            lock.acquire()
        except Timeout as error:
            raise UserError(f"{self.path} is in use by another sweep; wait for it to end or stop it.") from error
        except OSError as error:
            raise UserError(f"Cannot write to {self.path}: {error.strerror}; choose another --out.") from error
        self._lock = lock
        self.failures = self._read_failures()

    def let_go(self) -> None:
        if self._lock is None:
            return
        self._lock.release()
        if self._made and not self.exists:  # nothing came of it
            with suppress(OSError):
                (self.path / ".lock").unlink(missing_ok=True)
                self.path.rmdir()

    @property
    def search_storage(self) -> Path:
        return self.path / "search.db"

    def run(self, spec: RunSpec) -> Path:
        return self.path / "runs" / spec.name

    def log(self, spec: RunSpec) -> Path:
        return self.path / "logs" / f"{spec.name}.log"

    def declaration(self) -> Declaration:
        return complete(read(self.path / "sweep.toml"))

    def write_declaration(self, declared: Declaration) -> None:
        write_aside(self.path / "sweep.toml", tomli_w.dumps(declared).encode())
        for folder in ("runs", "logs"):
            (self.path / folder).mkdir(exist_ok=True)

    # How far runs are.

    def state(self, spec: RunSpec) -> str:
        """Whether a run is new, begun or done; `UserError` if its directory holds another one."""
        path = self.run(spec)
        if not (path / "config.json").exists():
            return NEW
        config, _ = read_config(path)
        if config != spec.config:
            raise UserError(f"{path} holds a run of another configuration than the sweep declares; move it away.")
        return DONE if self.progress(spec).frame >= config.frames else BEGUN

    def progress(self, spec: RunSpec) -> Progress:
        path, score, frame, rate = self.run(spec), None, 0, None
        with suppress(OSError, ValueError, KeyError, TypeError):
            seeds = json.loads((path / "summary.json").read_text(encoding="utf-8"))["seeds"]
            frame = min(seed["frames"] for seed in seeds)
            scores = [seed[f"mean_of_last_{RECENT_EPISODES}"] for seed in seeds]
            score = None if None in scores else sum(scores) / len(scores)
        if frame < spec.config.frames:  # between checkpoints, the clock's table knows more
            with suppress(OSError, ValueError):
                row = _last_line(path / "timing.csv").split(",")
                frame, rate = max(frame, min(int(row[1]), spec.config.frames - 1)), float(row[3])
        return Progress(frame, rate, score)

    # Failures.

    def _read_failures(self) -> dict[str, list[str]]:
        path = self.path / "attempts.json"
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            return {str(name): [str(error) for error in errors] for name, errors in content.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, AttributeError, TypeError) as error:
            raise UserError(f"{path} cannot be read: {error}; delete it to count failures anew.") from error

    def add_failure(self, spec: RunSpec, error: str) -> None:
        self.failures.setdefault(spec.name, []).append(error)
        write_json(self.path / "attempts.json", self.failures)


def check_grown(directory: SweepDirectory, before: Iterable[RunSpec | Kind], now: Iterable[RunSpec | Kind]) -> None:
    """Raises `UserError` unless a sweep has at most grown, by seeds or by values: all of before must be there now."""
    kept = {each.name: each.config for each in now}
    for each in before:
        if kept.get(each.name) != each.config:
            raise UserError(
                f"{directory.path} holds another sweep, whose {each.name} is not among those declared now; "
                "choose another --out."
            )


def _last_line(path: Path) -> str:
    """The last whole line of a file."""
    with open(path, "rb") as file:
        file.seek(max(0, file.seek(0, 2) - TAIL))
        lines = file.read().decode("ascii", "replace").split("\n")
    return lines[-2] if len(lines) > 1 else ""
