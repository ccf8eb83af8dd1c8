"""Checkpoints: round trip, damage, and that nothing in them can run."""

import hashlib
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ceqr.errors import UserError
from ceqr.training import checkpoint
from ceqr.training.checkpoint import CheckpointWarning

TREE = {
    "weights": jnp.arange(6.0).reshape(2, 3),
    "bits": jnp.array([True, False]),
    "key": jax.random.split(jax.random.key(3), 2),
    "nothing": (),
    "empty": jnp.zeros((2, 0), jnp.int32),
}


def _like(tree: Any) -> Any:
    return jax.eval_shape(lambda: tree)


def _same(a: Any, b: Any) -> bool:
    def plain(x: Any) -> np.ndarray:
        return np.asarray(jax.random.key_data(x) if checkpoint._is_key(x) else x)

    return all(np.array_equal(plain(x), plain(y)) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def test_round_trip_and_the_last_two_are_kept(tmp_path: Path) -> None:
    for frame in (10, 20, 30):
        checkpoint.save(tmp_path, frame, {**TREE, "weights": TREE["weights"] + frame}, {"frame": frame})
    assert sorted(p.name for p in tmp_path.glob("*.npz")) == ["000000000020.npz", "000000000030.npz"]
    assert len(list(tmp_path.iterdir())) == 4  # two checkpoints, two checksums, nothing left aside
    loaded = checkpoint.load_latest(tmp_path, _like(TREE))
    assert loaded is not None
    tree, meta = loaded
    assert meta == {"frame": 30}
    assert _same(tree, {**TREE, "weights": TREE["weights"] + 30})
    assert tree["key"].dtype == TREE["key"].dtype


def test_checksum_is_that_of_sha256sum(tmp_path: Path) -> None:
    path = checkpoint.save(tmp_path, 1, TREE, {})
    digest, name = Path(f"{path}.sha256").read_text().split()
    assert digest == hashlib.sha256(path.read_bytes()).hexdigest()
    assert name == path.name


@pytest.mark.parametrize("damage", ["truncated", "flipped", "emptied"])
def test_a_damaged_newest_checkpoint_is_passed_over_with_a_warning(tmp_path: Path, damage: str) -> None:
    checkpoint.save(tmp_path, 1, TREE, {"frame": 1})
    newest = checkpoint.save(tmp_path, 2, TREE, {"frame": 2})
    data = bytearray(newest.read_bytes())
    if damage == "flipped":
        data[len(data) // 2] ^= 1
    newest.write_bytes({"truncated": data[: len(data) // 2], "flipped": data, "emptied": b""}[damage])
    with pytest.warns(CheckpointWarning, match="000000000002"):
        loaded = checkpoint.load_latest(tmp_path, _like(TREE))
    assert loaded is not None
    assert loaded[1] == {"frame": 1}


def test_a_checkpoint_without_its_checksum_was_never_completed(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, 1, TREE, {"frame": 1})
    newest = checkpoint.save(tmp_path, 2, TREE, {"frame": 2})
    Path(f"{newest}.sha256").unlink()
    loaded = checkpoint.load_latest(tmp_path, _like(TREE))
    assert loaded is not None
    assert loaded[1] == {"frame": 1}


def test_nothing_readable(tmp_path: Path) -> None:
    assert checkpoint.load_latest(tmp_path, _like(TREE)) is None
    only = checkpoint.save(tmp_path, 1, TREE, {})
    only.write_bytes(b"rubbish")
    with pytest.warns(CheckpointWarning), pytest.raises(UserError, match="No checkpoint"):
        checkpoint.load_latest(tmp_path, _like(TREE))


@pytest.mark.parametrize(
    "other",
    [
        {**TREE, "weights": jnp.zeros((3, 3))},
        {**TREE, "weights": jnp.zeros((2, 3), jnp.int32)},
        {**TREE, "more": jnp.zeros(1)},
        {k: v for k, v in TREE.items() if k != "bits"},
    ],
)
def test_a_checkpoint_of_another_shape_is_refused(tmp_path: Path, other: Any) -> None:
    checkpoint.save(tmp_path, 1, TREE, {})
    with pytest.raises(UserError, match="incompatible version"):
        checkpoint.load_latest(tmp_path, _like(other))


def test_an_untrusted_checkpoint_cannot_execute_code(tmp_path: Path) -> None:
    """A pickled object inside a file whose checksum is right is refused, not loaded."""
    ran = tmp_path / "ran"

    class Bomb:
        def __reduce__(self) -> tuple[Any, Any]:
            return Path.touch, (ran,)

    bomb = np.array([Bomb()], dtype=object)
    folder = tmp_path / "checkpoints"
    path = checkpoint.save(folder, 1, TREE, {})
    arrays = {k: v for k, v in np.load(path).items() if k != "weights"}
    with open(path, "wb") as file:
        np.savez(file, allow_pickle=True, weights=bomb, **arrays)
    Path(f"{path}.sha256").write_text(f"{checkpoint._digest(path)}  {path.name}\n")
    with pytest.raises(UserError, match="incompatible version"):
        checkpoint.load_latest(folder, _like(TREE))
    assert not ran.exists()
    with pytest.raises(ValueError, match="allow_pickle"):  # the bomb was a real one
        np.load(path)["weights"]


def test_written_aside(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("old")
    checkpoint.write_aside(path, json.dumps({"a": 1}).encode())
    assert json.loads(path.read_text()) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]
