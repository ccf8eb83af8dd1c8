"""Files that are there with all their content or as they were before, whatever happens."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from ceqr.errors import UserError


def write_aside(path: Path, data: bytes) -> None:
    """Writes a file so that it is there with all its content or as it was before, whatever happens."""
    with written_aside(path) as file:
        file.write(data)


@contextmanager
def written_aside(path: Path) -> Iterator[BinaryIO]:
    """The same for whoever writes piece by piece: the file gets its name at the end, if nothing was raised."""
    temporary = temporary_path(path)
    try:
        with open(temporary, "wb") as file:
            yield file
            flush(file)
        rename(temporary, path)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink()  # a full disk should not be left fuller
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)
        raise


def temporary_path(path: Path) -> Path:
    """Where a file is written before it gets its name."""
    return path.with_name(f".{path.name}.tmp")


def flush(file: Any) -> None:
    """Makes what was written to an open file durable."""
    file.flush()
    os.fsync(file.fileno())


def rename(temporary: Path, path: Path) -> None:
    """Gives a flushed file its name, durably."""
    os.replace(temporary, path)
    if os.name == "nt":  # Windows opens no folders, and needs not: it writes their changes to a journal
        return
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_json(path: Path, content: Any) -> None:
    write_aside(path, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode())


def claim_folder(path: Path) -> None:
    """Makes a folder to write results to; refuses one that holds anything."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        held = [p for p in path.iterdir() if not p.name.startswith(".")]
    except OSError as error:
        raise UserError(f"Cannot write to {path}: {error.strerror}; choose another --out.") from error
    if held:
        raise UserError(f"{path} is not empty; choose another --out.")
    if not os.access(path, os.W_OK):
        raise UserError(f"Cannot write to {path}: Permission denied; choose another --out.")
