"""Checkpoints: a PyTree of arrays in one `.npz` file, with its SHA-256 beside it in the format of `sha256sum`.

A file is written aside, flushed and renamed, and its checksum after it, so a checkpoint is there entirely or not at
all. A checkpoint that does not match its checksum is passed over for the one before. Nothing is unpickled: an array
that would need it is refused.
"""

import hashlib
import json
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np

from ceqr.errors import UserError
from ceqr.files import flush, rename, temporary_path, write_aside

KEPT = 2  # the newest, and one to fall back on
META = "meta"

Tree = TypeVar("Tree")


class CheckpointWarning(UserWarning):
    """A checkpoint could not be used; another one was."""


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _checksum_path(path: Path) -> Path:
    return path.with_suffix(".npz.sha256")


def _named_leaves(tree: Any) -> Iterator[tuple[str, Any]]:
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        yield jax.tree_util.keystr(path, simple=True, separator="/"), leaf


def _is_key(leaf: Any) -> bool:
    return jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def save(folder: Path, frame: int, tree: Any, meta: dict[str, Any]) -> Path:
    """Saves a PyTree and a little JSON as the checkpoint of that frame, and drops all but the last two."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{frame:012d}.npz"
    temporary = _write_tree_aside(path, tree, meta)
    digest = _digest(temporary)
    # Where the same frame is saved again, its old checksum must not vouch for the new file.
    _checksum_path(path).unlink(missing_ok=True)
    rename(temporary, path)
    write_aside(_checksum_path(path), f"{digest}  {path.name}\n".encode())
    # What is newer than this one was passed over as damaged; the rest is old, or was never completed.
    kept = [p for p in complete(folder) if p <= path][:KEPT]
    wanted = {*kept, *map(_checksum_path, kept)}
    for other in set(folder.iterdir()) - wanted:
        other.unlink(missing_ok=True)
    return path


def save_file(path: Path, tree: Any, meta: dict[str, Any]) -> None:
    """Saves a PyTree and a little JSON as one file of that name, entirely or not at all."""
    rename(_write_tree_aside(path, tree, meta), path)


def _write_tree_aside(path: Path, tree: Any, meta: dict[str, Any]) -> Path:
    arrays = {
        name: np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf) for name, leaf in _named_leaves(tree)
    }
    assert META not in arrays
    temporary = temporary_path(path)
    try:
        with open(temporary, "wb") as file:
            np.savez(file, allow_pickle=False, **{META: np.array(json.dumps(meta))}, **arrays)
            flush(file)
    except BaseException:
        temporary.unlink(missing_ok=True)  # a full disk should not be left fuller
        raise
    return temporary


def complete(folder: Path) -> list[Path]:
    """Checkpoints that were written to the end, newest first."""
    return sorted((p for p in folder.glob("*.npz") if _checksum_path(p).exists()), reverse=True)


def load_latest(folder: Path, like: Tree) -> tuple[Tree, dict[str, Any]] | None:
    """The newest readable checkpoint as a tree of the same structure, shapes and types as `like`, and its JSON.

    None if no checkpoint was ever completed. `like` may hold `jax.ShapeDtypeStruct`s.
    """
    found = complete(folder)
    for path in found:
        expected = _checksum_path(path).read_bytes().split()[:1]
        if expected != [_digest(path).encode()]:
            warnings.warn(
                f"Checkpoint {path} does not match its checksum; using the one before it.",
                CheckpointWarning,
                stacklevel=2,
            )
            continue
        return load_file(path, like)
    if found:
        raise UserError(f"No checkpoint in {folder} matches its checksum, so the run cannot go on; train it anew.")
    return None


def load_meta(path: Path) -> dict[str, Any]:
    """The JSON of a file alone, after a look at the checksums of all that is in it."""
    try:
        with open(path, "rb") as raw, zipfile.ZipFile(raw) as archive:
            if archive.testzip() is not None:
                raise ValueError("A checksum is wrong.")
            raw.seek(0)
            with np.load(raw, allow_pickle=False) as file:
                return dict(json.loads(str(file[META])))
    except (FileNotFoundError, IsADirectoryError, PermissionError):
        raise
    except Exception as error:  # a damaged archive fails in many ways
        raise UserError(f"{path} is damaged, or was not saved by ceqr.") from error


def load_file(path: Path, like: Tree) -> tuple[Tree, dict[str, Any]]:
    """A file's tree, of the same structure, shapes and types as `like`, and its JSON."""
    incompatible = UserError(f"Checkpoint {path} was made by an incompatible version of ceqr or of its configuration.")
    try:
        with np.load(path, allow_pickle=False) as file:
            meta = json.loads(str(file[META]))
            leaves = [_read(file, name, leaf) for name, leaf in _named_leaves(like)]
            surplus = len(file.files) - 1 - len(leaves)
    except (KeyError, ValueError, zipfile.BadZipFile, OSError) as error:
        raise incompatible from error
    if surplus:
        raise incompatible
    return jax.tree.unflatten(jax.tree.structure(like), leaves), meta


def _read(file: Any, name: str, like: Any) -> jax.Array:
    array = file[name]
    # A copy that JAX owns: the training loop gives its buffers away.
    leaf = jax.random.wrap_key_data(array) if _is_key(like) else jax.numpy.array(array)
    if leaf.shape != like.shape or leaf.dtype != like.dtype:
        raise ValueError(f"{name} is {leaf.dtype}{leaf.shape}, not {like.dtype}{like.shape}.")
    return leaf
