"""The folder of checkpoints: an `.npz` named by its frame, and beside it its SHA-256 in the format of `sha256sum`.

A file is written aside, flushed and renamed, and its checksum after it, so a checkpoint is there entirely or not at
all. A checkpoint that does not match its checksum is passed over for the one before. The two newest are kept. Files of
other names, and folders of any name, are somebody else's, and left alone.
"""

import hashlib
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ceqr.arrays import ArrayFile, write
from ceqr.errors import StorageFailed, UserError
from ceqr.files import flush, write_aside, written_aside

KEPT = 2  # the newest, and one to fall back on
NAME = re.compile(r"\d{12}\.npz")
OURS = re.compile(r"\d{12}\.npz(\.sha256)?|\.\d{12}\.npz(\.sha256)?\.tmp")


class CheckpointWarning(UserWarning):
    """A checkpoint could not be used; another one was."""


class Saved(ArrayFile):
    """An opened checkpoint that matches its checksum."""

    @property
    def frame(self) -> int:
        return int(self.path.stem)

    def _digest(self) -> str:
        self._file.seek(0)
        return hashlib.file_digest(self._file, "sha256").hexdigest()


def _checksum_path(path: Path) -> Path:
    return path.with_suffix(".npz.sha256")


def save(folder: Path, frame: int, groups: Sequence[Any], meta: dict[str, Any]) -> Path:
    """Saves the checkpoint of that frame, and drops all but the last two.

    `groups` are trees whose leaves have a leading axis of their seeds; the file holds all seeds in that order.
    """
    path = folder / f"{frame:012d}.npz"
    with storing(path, folder.parent):
        folder.mkdir(exist_ok=True)
        with written_aside(path) as file:
            write(file, groups, meta)
            flush(file)
            # Where the same frame is saved again, its old checksum must not vouch for the new file.
            _checksum_path(path).unlink(missing_ok=True)
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        write_aside(_checksum_path(path), f"{digest}  {path.name}\n".encode())
        _drop_others(folder, path)
    return path


def _drop_others(folder: Path, path: Path) -> None:
    """Deletes all of ours but this checkpoint and the one before it."""
    # What is newer than this one was passed over as damaged; the rest is old, or was never completed.
    kept = [p for p in complete(folder) if p <= path][:KEPT]
    wanted = {*kept, *map(_checksum_path, kept)}
    for other in set(folder.iterdir()) - wanted:
        if OURS.fullmatch(other.name) and other.is_file():
            with suppress(OSError):  # somebody may have it open, which Windows minds; the next time will do
                other.unlink()


def complete(folder: Path) -> list[Path]:
    """Checkpoints that were written to the end, newest first."""
    try:
        ours = [p for p in folder.iterdir() if NAME.fullmatch(p.name)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted((p for p in ours if p.is_file() and _checksum_path(p).is_file()), reverse=True)


def latest(folder: Path) -> Saved | None:
    """The newest checkpoint that matches its checksum, opened; None if none was ever completed."""
    found = complete(folder)
    for path in found:
        try:
            saved, checksum = Saved(path), _checksum_path(path).read_bytes()
        except FileNotFoundError:  # training goes on meanwhile, and dropped it for a newer one
            return latest(folder)
        if checksum.split()[:1] == [saved._digest().encode()]:
            return saved
        saved.close()
        warnings.warn(
            f"Checkpoint {path} does not match its checksum; using the one before it.", CheckpointWarning, stacklevel=2
        )
    if found:
        raise UserError(f"No checkpoint in {folder} matches its checksum, so the run cannot go on; train it anew.")
    return None


@contextmanager
def storing(path: Path, run: Path) -> Iterator[None]:
    """Turns the system's refusal to write a file of a run into a sentence."""
    try:
        yield
    except StorageFailed:
        raise
    except OSError as error:
        raise StorageFailed(f"Cannot write {path}: {error.strerror or error}; {_what_stands(run)}.") from error


def _what_stands(run: Path) -> str:
    try:
        found = complete(run / "checkpoints")
    except OSError:
        found = []
    if found:
        return f"the checkpoint of frame {int(found[0].stem):,} stands, so mend that and go on with 'ceqr resume {run}'"
    if (run / "config.json").is_file():
        return f"no checkpoint was written yet, so mend that and begin anew with 'ceqr resume {run}'"
    return "nothing was written yet, so mend that and train anew"
