"""A PyTree of arrays and a little JSON in one `.npz` file; nothing is unpickled.

It is written leaf by leaf, from several groups as if they were one, and read leaf by leaf: all of it, some leaves, or
some rows of them. No more is held in memory than is asked for. A file from a stranger can neither run nor take memory
at will: members are stored as they are, and what one declares is compared with what is expected before it is read.
"""

import hashlib
import json
import math
import os
import struct
import weakref
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple, Self, TypeVar

import jax
import numpy as np

from ceqr.errors import UserError
from ceqr.files import written_aside

META = "meta"
META_LIMIT = 2**20  # bytes
LOCAL_HEADER = struct.Struct("<4s22xHH")  # before a member: signature, lengths of its name and of its extra field
SIGNATURE = b"PK\3\4"

Tree = TypeVar("Tree")


def save_file(path: Path, tree: Any, meta: dict[str, Any]) -> None:
    """Saves a PyTree and a little JSON as one file of that name, entirely or not at all."""
    with written_aside(path) as file:
        write(file, [tree], meta)


def load_meta(path: Path) -> dict[str, Any]:
    """The JSON of a file alone."""
    with ArrayFile(path) as file:
        return file.meta


def load_file(path: Path, like: Tree) -> tuple[Tree, dict[str, Any]]:
    """A file's tree, of the same structure, shapes and types as `like`, and its JSON."""
    with ArrayFile(path) as file:
        file.check(like)
        return file.read(like), file.meta


def write(file: BinaryIO, groups: Sequence[Any], meta: dict[str, Any]) -> None:
    """Writes trees of one structure, joined along the leading axis of their leaves if there are several."""
    text = np.array(json.dumps(meta))
    if text.nbytes > META_LIMIT // 2:  # the other half is for the member's own header, and then some
        raise ValueError(f"The JSON of a file may have {META_LIMIT // 8:,} characters, not {text.nbytes // 4:,}.")
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        _write_member(archive, META, [text])
        for named in zip(*map(_named_leaves, groups), strict=True):
            (name, _), *others = named
            assert name != META
            assert all(other == name for other, _ in others)
            _write_member(archive, name, [_plain(leaf) for _, leaf in named])


def digest(tree: Any) -> str:
    """The SHA-256 of a tree: of its leaves' names, types, shapes and numbers."""
    total = hashlib.sha256()
    for name, leaf in _named_leaves(tree):
        array = np.ascontiguousarray(_plain(leaf))
        total.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        total.update(array.reshape(-1).view(np.uint8).data)
    return total.hexdigest()


def _write_member(archive: zipfile.ZipFile, name: str, parts: Sequence[np.ndarray]) -> None:
    """Writes one array, given in parts; none of them is copied."""
    first, *others = parts
    assert all(part.dtype == first.dtype and part.shape[1:] == first.shape[1:] for part in others)
    shape = (sum(map(len, parts)), *first.shape[1:]) if others else first.shape
    header = {"descr": np.lib.format.dtype_to_descr(first.dtype), "fortran_order": False, "shape": shape}
    with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
        np.lib.format.write_array_header_1_0(member, header)
        for part in parts:
            member.write(np.asarray(part, order="C").reshape(-1).view(np.uint8).data)


def _named_leaves(tree: Any) -> Iterator[tuple[str, Any]]:
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        yield jax.tree_util.keystr(path, simple=True, separator="/"), leaf


def _is_key(leaf: Any) -> bool:
    return jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _plain(leaf: Any) -> np.ndarray:
    return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)


class _Member(NamedTuple):
    """Where in the file an array is, and what it declares to be."""

    start: int  # of the numbers, in bytes
    dtype: np.dtype
    shape: tuple[int, ...]
    info: zipfile.ZipInfo


class ArrayFile:
    """An opened file. It is closed by `close`, at the end of a `with`, or when nobody refers to it any longer."""

    def __init__(self, path: Path):
        self.path = path
        self._file = open(path, "rb")  # noqa: SIM115
        self._closer = weakref.finalize(self, self._file.close)

    def close(self) -> None:
        self._closer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @cached_property
    def meta(self) -> dict[str, Any]:
        """The JSON."""
        try:
            member = self._member(META)
            if member.info.file_size > META_LIMIT or member.dtype.kind != "U" or member.shape != ():
                raise ValueError("The member that should be JSON is none.")
            array = np.empty((), member.dtype)
            self._fill(array, member, member.start)
            return dict(json.loads(str(array)))
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise self._damaged() from error

    def check(self, like: Any) -> None:
        """Raises `UserError` unless the file holds exactly this tree; no array is read."""
        leaves = dict(_named_leaves(like))
        if set(leaves) | {META} != set(self._directory):
            raise self._incompatible()
        for name, leaf in leaves.items():
            self._find(name, leaf, None)

    def read(self, like: Tree, rows: int | slice | None = None, prefix: str = "") -> Tree:
        """A tree of the same structure, shapes and types as `like`, which may hold `jax.ShapeDtypeStruct`s.

        `rows` reads a part of every leaf. With a slice, `like` is still the tree with all rows, and these are read of
        its leading axis; with a number, `like` is that one row, without this axis. `prefix` is the path of the tree
        within the one that was saved. The rest of the file is not read.
        """
        names = ["/".join(filter(None, (prefix, name))) for name, _ in _named_leaves(like)]
        leaves = [self._read_leaf(n, leaf, rows) for n, leaf in zip(names, jax.tree.leaves(like), strict=True)]
        return jax.tree.unflatten(jax.tree.structure(like), leaves)

    def _read_leaf(self, name: str, like: Any, rows: int | slice | None) -> jax.Array:
        member, skipped, shape = self._find(name, like, rows)
        array = np.empty(shape, member.dtype)
        self._fill(array, member, member.start + skipped)
        # A copy that JAX owns: the training loop gives its buffers away.
        leaf = jax.numpy.array(array)
        leaf = jax.random.wrap_key_data(leaf) if _is_key(like) else leaf
        if leaf.dtype != like.dtype:
            raise self._incompatible()
        return leaf

    def _find(self, name: str, like: Any, rows: int | slice | None) -> tuple[_Member, int, tuple[int, ...]]:
        """The member that has such a leaf, how many of its bytes come before those rows, and the shape that they have.

        Raises `UserError` if it is another leaf.
        """
        try:
            member = self._member(name)
        except KeyError as error:
            raise self._incompatible() from error
        stored, (count, *rest) = _stored(like), member.shape or (0,)
        one = isinstance(rows, int)
        expected = tuple(rest) if one else member.shape
        if stored.shape != expected or stored.dtype != member.dtype or (one and not 0 <= rows < count):
            raise self._incompatible()
        if rows is None:
            return member, 0, member.shape
        start, stop = (rows, rows + 1) if one else (rows.start, rows.stop)
        assert 0 <= start < stop <= count
        row = math.prod(rest) * member.dtype.itemsize
        return member, start * row, tuple(rest) if one else (stop - start, *rest)

    def _fill(self, array: np.ndarray, member: _Member, start: int) -> None:
        """Reads an array from that place on."""
        view = array.reshape(-1).view(np.uint8).data
        self._file.seek(start)
        if self._file.readinto(view) != view.nbytes:
            raise self._damaged()
        if array.shape == member.shape and zlib.crc32(view, self._header_sum(member)) != member.info.CRC:
            raise self._damaged()

    def _header_sum(self, member: _Member) -> int:
        """The checksum of what comes before a member's numbers: its own is of both."""
        length = member.info.file_size - math.prod(member.shape) * member.dtype.itemsize
        self._file.seek(member.start - length)
        return zlib.crc32(self._file.read(length))

    @cached_property
    def _directory(self) -> dict[str, zipfile.ZipInfo]:
        """What the archive says that it holds; no member is larger than the file lets it be.

        Members are read as they stand: one that is compressed is no array.
        """
        size = os.fstat(self._file.fileno()).st_size
        try:
            with zipfile.ZipFile(self._file) as archive:
                members = archive.infolist()
        except Exception as error:  # a damaged archive fails in many ways
            raise self._damaged() from error
        names = {member.filename.removesuffix(".npy"): member for member in members}
        if len(names) != len(members) or sum(m.file_size for m in members) > size:
            raise self._damaged()
        return names

    def _member(self, name: str) -> _Member:
        """KeyError if there is none of that name."""
        info = self._directory[name]
        try:
            self._file.seek(info.header_offset)
            signature, *lengths = LOCAL_HEADER.unpack(self._file.read(LOCAL_HEADER.size))
            begin = info.header_offset + LOCAL_HEADER.size + sum(lengths)
            self._file.seek(begin)
            # The first version is all that we write, and its header is short.
            if signature != SIGNATURE or np.lib.format.read_magic(self._file) != (1, 0):
                raise ValueError("The member is no array.")
            shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(self._file)
            start = self._file.tell()
            if fortran_order or start - begin + math.prod(shape) * dtype.itemsize != info.file_size:
                raise ValueError("The member is larger or smaller than its array.")
        except Exception as error:  # as above
            raise self._damaged() from error
        return _Member(start, dtype, shape, info)

    def _damaged(self) -> UserError:
        return UserError(f"{self.path} is damaged, or was not saved by ceqr.")

    def _incompatible(self) -> UserError:
        return UserError(f"{self.path} was made by an incompatible version of ceqr or of its configuration.")


def _stored(like: Any) -> Any:
    """A leaf's shape and type as they are in a file."""
    return jax.eval_shape(jax.random.key_data, like) if _is_key(like) else like
