"""The folder of checkpoints: what is kept, what is passed over, what is left alone, and a disk that is full."""

import errno
import hashlib
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ceqr.errors import StorageFailed, UserError
from ceqr.training import checkpoint
from ceqr.training.checkpoint import CheckpointWarning, Saved
from tests.test_arrays import like, rows, same

TREE = {
    "agent": {"params": jnp.arange(6.0).reshape(2, 3)},
    "replay": jnp.zeros((2, 50)),
    "key": jax.random.split(jax.random.key(3), 2),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run" / "checkpoints"


@pytest.fixture(autouse=True)
def _run(folder: Path) -> None:
    folder.parent.mkdir()
    (folder.parent / "config.json").write_text("{}")


def _save(folder: Path, frame: int, tree: Any = TREE) -> Path:
    return checkpoint.save(folder, frame, [tree], {"frame": frame})


def _latest(folder: Path) -> Saved:
    saved = checkpoint.latest(folder)
    assert saved is not None
    return saved


def _names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_round_trip_and_the_last_two_are_kept(folder: Path) -> None:
    for frame in (10, 20, 30):
        tree = {**TREE, "replay": TREE["replay"] + frame}
        checkpoint.save(folder, frame, [rows(tree, slice(0, 1)), rows(tree, slice(1, 2))], {"frame": frame})
    npz = ["000000000020.npz", "000000000030.npz"]
    assert _names(folder) == sorted([*npz, *(f"{name}.sha256" for name in npz)])  # and nothing left aside
    with _latest(folder) as saved:
        assert saved.frame == 30
        assert saved.meta == {"frame": 30}
        saved.check(like(TREE))
        assert same(saved.read(like(TREE)), {**TREE, "replay": TREE["replay"] + 30})
        one = rows(TREE["agent"], 1)
        assert same(saved.read(like(one), rows=1, prefix="agent"), one)


def test_checksum_is_that_of_sha256sum(folder: Path) -> None:
    path = _save(folder, 1)
    digest, name = Path(f"{path}.sha256").read_text().split()
    assert digest == hashlib.sha256(path.read_bytes()).hexdigest()
    assert name == path.name


@pytest.mark.parametrize("damage", ["truncated", "flipped", "emptied"])
def test_a_damaged_newest_checkpoint_is_passed_over_with_a_warning(folder: Path, damage: str) -> None:
    _save(folder, 1)
    newest = _save(folder, 2)
    data = bytearray(newest.read_bytes())
    if damage == "flipped":
        data[len(data) // 2] ^= 1
    newest.write_bytes({"truncated": data[: len(data) // 2], "flipped": data, "emptied": b""}[damage])
    with pytest.warns(CheckpointWarning, match="000000000002"):
        assert _latest(folder).frame == 1
    _save(folder, 2)  # where training comes again
    assert _latest(folder).frame == 2


def test_a_checkpoint_without_its_checksum_was_never_completed(folder: Path) -> None:
    _save(folder, 1)
    newest = _save(folder, 2)
    Path(f"{newest}.sha256").unlink()
    assert _latest(folder).frame == 1


def test_nothing_readable(folder: Path) -> None:
    assert checkpoint.latest(folder) is None
    _save(folder, 1).write_bytes(b"rubbish")
    with pytest.warns(CheckpointWarning), pytest.raises(UserError, match="No checkpoint"):
        checkpoint.latest(folder)


@pytest.mark.parametrize("other", [{**TREE, "more": jnp.zeros(2)}, {"key": TREE["key"]}, rows(TREE, slice(0, 1))])
def test_a_checkpoint_of_another_tree_is_refused(folder: Path, other: Any) -> None:
    _save(folder, 1)
    with _latest(folder) as saved, pytest.raises(UserError, match="incompatible version"):
        saved.check(like(other))


def test_rubbish_with_a_right_checksum_is_refused(folder: Path) -> None:
    path = _save(folder, 1)
    path.write_bytes(b"rubbish")
    Path(f"{path}.sha256").write_text(f"{hashlib.sha256(b'rubbish').hexdigest()}  {path.name}\n")
    with pytest.raises(UserError, match="damaged"):
        _ = _latest(folder).meta


def test_one_that_training_drops_meanwhile(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluating a run under way: the checkpoint it was about to open is gone, or goes while it reads."""
    _save(folder, 1)
    listed = checkpoint.complete(folder)
    for frame in (2, 3):
        _save(folder, frame)
    answers = iter([listed, checkpoint.complete(folder)])
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "complete", lambda _: next(answers))
        saved = _latest(folder)
    for frame in (4, 5):
        _save(folder, frame)
    assert saved.frame == 3
    assert same(saved.read(like(TREE)), TREE)


def test_what_is_not_ours_is_left_alone(folder: Path) -> None:
    folder.mkdir()
    theirs = ["notes.txt", "best.npz", "best.npz.sha256", "1.npz", ".hidden", ".notes.txt.tmp", "00000000000a.npz"]
    for name in theirs:
        (folder / name).write_text("mine")
    folders = ["backup", "000000000099.npz", "000000000099.npz.sha256", ".000000000007.npz.tmp", "000000000003.npz"]
    for name in folders:
        (folder / name).mkdir()
    (folder / "000000000003.npz.sha256").write_text("mine")
    (folder / ".000000000008.npz.tmp").write_text("torn by a kill")
    for frame in (10, 20, 30):
        _save(folder, frame)
    assert _latest(folder).frame == 30
    assert set(theirs + folders) < set(_names(folder))
    assert all((folder / name).read_text() == "mine" for name in theirs)
    assert not (folder / ".000000000008.npz.tmp").exists()


# A disk that is full.


def _fails(monkeypatch: pytest.MonkeyPatch, call: int, number: int = errno.ENOSPC) -> None:
    """The n-th file from now on cannot be made durable."""
    original, calls = os.fsync, 0

    def fsync(file: int) -> None:
        nonlocal calls
        calls += 1
        if calls == call:
            raise OSError(number, os.strerror(number))
        original(file)

    monkeypatch.setattr(os, "fsync", fsync)


@pytest.mark.parametrize("call", range(1, 6))
@pytest.mark.parametrize("again", [False, True])
def test_a_full_disk_leaves_what_was_saved_and_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch, call: int, again: bool
) -> None:
    """At whatever moment; also where the frame that stands is the one being saved again."""
    _save(folder, 500)
    _save(folder, 1_000)
    with monkeypatch.context() as patch:
        _fails(patch, call)
        with pytest.raises(StorageFailed) as failed:
            _save(folder, 1_000 if again else 2_000)
    sentence = str(failed.value)
    assert f"{folder / ('000000001000' if again else '000000002000')}.npz: No space left on device; " in sentence
    standing = _latest(folder)
    assert f"the checkpoint of frame {standing.frame:,} stands, " in sentence
    assert f"'ceqr resume {folder.parent}'" in sentence
    assert same(standing.read(like(TREE)), TREE)
    assert not list(folder.glob(".*"))
    if call == 1 or (call < 5 and not again):  # there was no room, or the checksum has no name yet
        assert standing.frame == 1_000
    _save(folder, 2_000)
    assert _latest(folder).frame == 2_000


def test_a_full_disk_before_the_first_checkpoint(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fails(monkeypatch, 1)
    with pytest.raises(StorageFailed, match="no checkpoint was written yet, so mend that and begin anew with 'ceqr re"):
        _save(folder, 1)
    (folder.parent / "config.json").unlink()
    _fails(monkeypatch, 1)
    with pytest.raises(StorageFailed, match="nothing was written yet"):
        _save(folder, 1)


@pytest.mark.parametrize("number", [errno.EDQUOT, errno.EIO, errno.EROFS, errno.EACCES])
def test_other_refusals(folder: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    _save(folder, 1)
    _fails(monkeypatch, 1, number)
    with pytest.raises(StorageFailed, match=rf"000000000002\.npz: {os.strerror(number)}; the checkpoint of frame 1 st"):
        _save(folder, 2)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_device_that_is_really_full(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _save(folder, 1)
    (folder / ".000000000002.npz.tmp").symlink_to("/dev/full")
    with pytest.raises(StorageFailed, match="No space left on device; the checkpoint of frame 1 stands"):
        _save(folder, 2, {"replay": np.zeros((2, 2**20), np.uint8)})
    assert len(_names(folder)) == 2
