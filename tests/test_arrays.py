"""Arrays in one file: round trip, reading in part, memory, and files that mean harm."""

import io
import json
import struct
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ceqr import arrays
from ceqr.arrays import ArrayFile
from ceqr.errors import UserError

TREE = {
    "weights": jnp.arange(12.0).reshape(4, 3),
    "inner": {"bits": jnp.array([True, False, True, True]), "count": jnp.arange(4)},
    "key": jax.random.split(jax.random.key(3), 4),
    "nothing": (),
    "empty": jnp.zeros((4, 0), jnp.int32),
}
MB = 2**20


def like(tree: Any) -> Any:
    return jax.eval_shape(lambda: tree)


def rows(tree: Any, which: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[which], tree)


def same(a: Any, b: Any) -> bool:
    def equal(x: Any, y: Any) -> bool:
        return x.dtype == y.dtype and np.array_equal(arrays._plain(x), arrays._plain(y))

    return jax.tree.structure(a) == jax.tree.structure(b) and all(jax.tree.leaves(jax.tree.map(equal, a, b)))


def saved(path: Path, *groups: Any, meta: Any = None) -> Path:
    with open(path, "wb") as file:
        arrays.write(file, groups, meta or {})
    return path


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "x"
    arrays.save_file(path, TREE, {"frame": 3})
    tree, meta = arrays.load_file(path, like(TREE))
    assert same(tree, TREE)
    assert meta == arrays.load_meta(path) == {"frame": 3}
    assert [p.name for p in tmp_path.iterdir()] == ["x"]
    with np.load(path, allow_pickle=False) as file:  # NumPy can read it, too
        assert np.array_equal(file["weights"], TREE["weights"])
        assert np.array_equal(file["inner/count"], TREE["inner"]["count"])


def test_a_scalar_stays_one(tmp_path: Path) -> None:
    tree = {"count": jnp.int32(7), "key": jax.random.key(1)}
    arrays.save_file(tmp_path / "x", tree, {})
    assert same(arrays.load_file(tmp_path / "x", like(tree))[0], tree)


def test_groups_are_joined_to_the_bytes_of_one(tmp_path: Path) -> None:
    one = saved(tmp_path / "one", TREE)
    parts = saved(tmp_path / "parts", rows(TREE, slice(0, 1)), rows(TREE, slice(1, 4)))
    assert one.read_bytes() == parts.read_bytes()


def test_groups_of_other_kinds_cannot_be_joined(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="shorter"):
        saved(tmp_path / "x", TREE, {})


@pytest.mark.parametrize("which", [slice(0, 1), slice(1, 3), slice(0, 4), slice(3, 4), 0, 2])
def test_rows(tmp_path: Path, which: int | slice) -> None:
    wanted = rows(TREE, which)
    with ArrayFile(saved(tmp_path / "x", TREE)) as file:
        assert same(file.read(like(TREE if isinstance(which, slice) else wanted), rows=which), wanted)


def test_a_part_of_the_tree(tmp_path: Path) -> None:
    with ArrayFile(saved(tmp_path / "x", TREE)) as file:
        assert same(file.read(like(TREE["inner"]), prefix="inner"), TREE["inner"])
        wanted = rows(TREE["inner"], 2)
        assert same(file.read(like(wanted), rows=2, prefix="inner"), wanted)
        with pytest.raises(UserError, match="incompatible version"):
            file.read(like(TREE["inner"]), prefix="outer")


@pytest.mark.parametrize(
    ("other", "which"),
    [
        ({"weights": jnp.zeros((3, 3))}, None),
        ({"weights": jnp.zeros((4, 3), jnp.int32)}, None),
        ({"weights": jnp.zeros((4, 2))}, slice(0, 4)),
        ({"weights": jnp.zeros((5, 3))}, slice(3, 5)),
        ({"weights": jnp.zeros((3, 3))}, slice(0, 1)),
        ({"weights": jnp.zeros(3)}, 4),
        ({"weights": jnp.zeros(3)}, -1),
        ({"weights": jnp.zeros((4, 3))}, 0),
        ({"more": jnp.zeros((4, 3))}, None),
        ({"key": jnp.zeros((4, 2))}, None),
        ({"weights": jax.random.split(jax.random.key(0), 4)}, None),
    ],
)
def test_what_is_not_there_is_refused(tmp_path: Path, other: Any, which: Any) -> None:
    with ArrayFile(saved(tmp_path / "x", TREE)) as file, pytest.raises(UserError, match="incompatible version"):
        file.read(like(other), rows=which)


def test_what_is_there_and_not_expected_is_refused_when_all_is_checked(tmp_path: Path) -> None:
    path = saved(tmp_path / "x", TREE)
    less = {k: v for k, v in TREE.items() if k != "key"}
    with ArrayFile(path) as file:
        file.check(like(TREE))
        assert same(file.read(like(less)), less)
        with pytest.raises(UserError, match="incompatible version"):
            file.check(like(less))
    with pytest.raises(UserError, match="incompatible version"):
        arrays.load_file(path, like(less))


def test_a_file_that_nobody_refers_to_is_closed(tmp_path: Path) -> None:
    file = ArrayFile(saved(tmp_path / "x", TREE))
    raw = file._file
    del file
    assert raw.closed


# Memory.


def _peak(function: Any) -> int:
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight seeds with 4 MB of replay and a small network each."""
    groups = [{"params": np.full((1, 100), i, np.float32), "replay": np.zeros((1, 4, MB), np.uint8)} for i in range(8)]
    return saved(tmp_path_factory.mktemp("large") / "x", *groups, meta={"frame": 1})


def test_writing_copies_no_leaf(tmp_path: Path) -> None:
    groups = [{"replay": np.zeros((1, 4, MB), np.uint8)} for _ in range(8)]
    with open(tmp_path / "x", "wb") as file:
        assert _peak(lambda: arrays.write(file, groups, {})) < MB
        assert _peak(lambda: arrays.write(file, groups[:1], {})) < MB


def test_reading_takes_what_is_asked_for(large: Path) -> None:
    assert _peak(lambda: arrays.load_meta(large)) < MB
    with ArrayFile(large) as file:
        params = {"params": np.zeros(100, np.float32)}
        assert _peak(lambda: file.read(params, rows=3)) < MB
        one = {**params, "replay": np.zeros((4, MB), np.uint8)}
        assert 4 * MB <= _peak(lambda: file.read(one, rows=3)) < 9 * MB  # that of NumPy, and perhaps JAX's
        assert np.asarray(file.read(params, rows=5)["params"])[0] == 5


def test_a_part_is_read_from_where_it_is(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ArrayFile(large) as file:
        read = 0

        class Counting(io.BufferedReader):
            def read(self, size: int | None = -1) -> bytes:
                nonlocal read
                data = super().read(size)
                read += len(data)
                return data

            def readinto(self, buffer: Any) -> int:
                nonlocal read
                read += (count := super().readinto(buffer))
                return count

        file._file = Counting(io.FileIO(large))
        file.read({"replay": np.zeros((8, 4, MB), np.uint8)}, rows=slice(7, 8))
        file._file.close()
    assert 4 * MB <= read < 5 * MB


# Harm.


def _zip(path: Path, members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)
    return path


def _npy(shape: tuple[int, ...], data: bytes, dtype: str = "<f4") -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
    return file.getvalue() + data


def _meta(text: str = "{}") -> bytes:
    array = np.array(text)
    return _npy((), array.tobytes(), array.dtype.str)


HUGE = {"weights": jax.ShapeDtypeStruct((2**20, 2**20), jnp.float32)}


def test_a_small_file_that_declares_huge_arrays_is_refused_before_memory_is_taken(tmp_path: Path) -> None:
    """Also where the caller believes its JSON and asks for just that."""
    path = _zip(tmp_path / "x", {"meta": _meta(), "weights": _npy((2**20, 2**20), b"1234")})

    def refused() -> None:
        for asked in (HUGE, {"weights": jnp.zeros((2, 2))}):
            with pytest.raises(UserError, match=r"damaged|incompatible"):
                arrays.load_file(path, asked)

    assert _peak(refused) < MB


def test_a_directory_that_declares_more_than_the_file_holds_is_refused(tmp_path: Path) -> None:
    path = _zip(tmp_path / "x", {"meta": _meta(), "weights": _npy((2**10, 2**10), b"1234")})
    data = path.read_bytes()
    size = len(_npy((2**10, 2**10), b"1234"))
    assert data.count(struct.pack("<II", size, size)) == 2
    declared = size - 4 + 4 * MB
    path.write_bytes(data.replace(struct.pack("<II", size, size), struct.pack("<II", declared, declared)))
    asked = {"weights": jax.ShapeDtypeStruct((2**10, 2**10), jnp.float32)}

    def refused() -> None:
        with pytest.raises(UserError, match="damaged"):
            arrays.load_file(path, asked)

    assert _peak(refused) < MB


def test_a_compressed_bomb_is_refused_unread(tmp_path: Path) -> None:
    members = {"meta": _meta(), "weights": _npy((64, MB), bytes(64 * MB), "|u1")}
    path = _zip(tmp_path / "x", members, zipfile.ZIP_DEFLATED)
    del members
    assert path.stat().st_size < MB

    def refused() -> None:
        for go in (arrays.load_meta, lambda path: arrays.load_file(path, {"weights": np.zeros((64, 1), np.uint8)})):
            with pytest.raises(UserError, match="damaged"):
                go(path)

    assert _peak(refused) < MB


@pytest.mark.parametrize(
    "meta",
    [
        _meta("[1]"),
        _meta("not json"),
        _meta("[" * 100_000),
        _meta(json.dumps({"a": "x" * arrays.META_LIMIT})),
        _npy((1,), b"{}\0\0", "<U1"),
        _npy((), b"{}", "|S2"),
        _npy((), b"\xff" * 8, "<U2"),
        b"rubbish",
        b"",
    ],
)
def test_json_that_is_none(tmp_path: Path, meta: bytes) -> None:
    path = _zip(tmp_path / "x", {"meta": meta})
    with pytest.raises(UserError, match=r"is damaged, or was not saved by ceqr\."):
        arrays.load_meta(path)


def test_json_that_could_not_be_read_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="characters"):
        arrays.save_file(tmp_path / "x", TREE, {"a": "x" * arrays.META_LIMIT})
    assert list(tmp_path.iterdir()) == []


def test_any_flipped_byte_is_noticed_or_harmless(tmp_path: Path) -> None:
    """Every byte of the numbers is under a checksum; nothing else leads to anything but our own sentence."""
    small = {"weights": TREE["weights"]}
    path = saved(tmp_path / "x", small, meta={"a": 1})
    content = path.read_bytes()
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0x11]) + content[place + 1 :])
        try:
            tree, meta = arrays.load_file(path, small)
        except UserError:
            continue
        assert same(tree, small)
        assert meta == {"a": 1}


@pytest.mark.parametrize("share", [0, 0.3, 0.9, 0.999])
def test_a_torn_file_is_refused(tmp_path: Path, share: float) -> None:
    path = saved(tmp_path / "x", TREE)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(UserError, match="damaged"):
        arrays.load_file(path, like(TREE))


def test_a_member_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with zipfile.ZipFile(_zip(path, {"meta": _meta('{"a": 1}')}), "a") as archive, pytest.warns(match="Duplicate"):
        archive.writestr("meta.npy", _meta('{"a": 2}'))
    with pytest.raises(UserError, match="damaged"):
        arrays.load_meta(path)


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    ran = tmp_path / "ran"

    class Bomb:
        def __reduce__(self) -> tuple[Any, Any]:
            return Path.touch, (ran,)

    bomb = io.BytesIO()
    np.lib.format.write_array(bomb, np.array([Bomb()], dtype=object), allow_pickle=True)
    path = _zip(tmp_path / "x", {"meta": _meta(), "weights": bomb.getvalue()})
    for asked in ({"weights": jnp.zeros(1)}, {"weights": np.zeros(1, object)}):
        with pytest.raises(UserError, match=r"damaged|incompatible"):
            arrays.load_file(path, asked)
    path = _zip(tmp_path / "x", {"meta": bomb.getvalue()})
    with pytest.raises(UserError, match="damaged"):
        arrays.load_meta(path)
    assert not ran.exists()
