"""Files that are there with all their content or as they were before."""

import json
import os
from pathlib import Path

import pytest

from ceqr import files
from ceqr.errors import UserError


def test_written_aside(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("old")
    files.write_json(path, {"a": 1})
    assert json.loads(path.read_text()) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]


@pytest.mark.parametrize("error", [RuntimeError("half done"), KeyboardInterrupt(), OSError(28, "No space left")])
def test_what_is_not_written_to_the_end_leaves_the_file_as_it_was(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "x"
    path.write_text("old")

    def write() -> None:
        with files.written_aside(path) as file:
            file.write(b"new")
            raise error

    with pytest.raises(type(error)):
        write()
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "agent"
    files.temporary_path(path).symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device") as failed:
        files.write_aside(path, b"x" * 10**6)
    assert str(path) in str(failed.value)
    assert list(tmp_path.iterdir()) == []


def test_a_system_that_opens_no_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows: a folder cannot be opened, and so not be flushed."""

    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    temporary, path = tmp_path / "a", tmp_path / "b"
    temporary.touch()
    with monkeypatch.context() as patch:
        patch.setattr(os, "name", "nt")
        patch.setattr(os, "open", refuse)
        files.rename(temporary, path)
    assert path.exists()


def test_claim_folder(tmp_path: Path) -> None:
    new = tmp_path / "a" / "b"
    files.claim_folder(new)
    assert new.is_dir()
    (new / ".lock").touch()
    files.claim_folder(new)  # a lock is no content
    (new / "notes.txt").touch()
    with pytest.raises(UserError, match="is not empty"):
        files.claim_folder(new)
    with pytest.raises(UserError, match="Cannot write to"):
        files.claim_folder(new / "notes.txt")
