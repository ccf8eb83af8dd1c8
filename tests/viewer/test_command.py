"""`ceqr watch` as a newcomer meets it."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from ceqr.cli import main
from tests.viewer.conftest import CHAIN


def _watch(*arguments: object) -> int:
    return main(["watch", *map(str, arguments), *CHAIN])


def _data(page: Path) -> Any:
    (found,) = re.findall(r'id="data">(.*?)</script>', page.read_text())
    return json.loads(found)


def test_a_page_is_written_into_the_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = run / "doubt.html"
    try:
        assert _watch(run) == 0
        assert capsys.readouterr().out.split() == [str(page)]
        told = _data(page)
        assert len(told["episodes"]) == 3
        assert [agent["seed"] for agent in told["agents"]] == [7]
        assert told["agents"][0]["coverage"] == 0.9
        before = page.read_bytes()
        assert _watch(run) == 0  # a page that is there is replaced, by the same one
        assert page.read_bytes() == before
        assert _watch(run, "--seed", 1) == 0
        assert page.read_bytes() != before
    finally:
        page.unlink()


def test_all_options(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / "a.html", tmp_path / "a.gif"]
    options = ["--compare", run, "--episodes", 2, "--agent-seed", 8, "--max-episode-frames", 2, "--explore"]
    assert _watch(run, *options, "--out", files[0], "--gif", files[1]) == 0
    assert capsys.readouterr().out.split() == [str(file) for file in files]
    told = _data(files[0])
    assert [agent["seed"] for agent in told["agents"]] == [8, 8]
    assert len(told["episodes"]) == 2
    for episode in told["episodes"]:
        assert {one["length"] for one in episode["agents"]} <= {1, 2}
    assert files[1].read_bytes().startswith(b"GIF89a")


def test_it_opens_a_browser_if_asked(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda address: bool(opened.append(address)) or True)
    assert _watch(run, "--out", tmp_path / "a.html", "--quiet") == 0
    assert opened == []
    assert _watch(run, "--out", tmp_path / "a.html", "--quiet", "--open") == 0
    assert opened == [(tmp_path / "a.html").as_uri()]


@pytest.fixture(scope="module")
def elsewhere(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same agent in another environment, not calibrated."""
    copy = tmp_path_factory.mktemp("elsewhere") / "run"
    shutil.copytree(run, copy, ignore=shutil.ignore_patterns("calibration*"))
    config = (copy / "config.json").read_text().replace("probe/noisy-chain", "probe/generous-chain")
    (copy / "config.json").write_text(config)
    return copy


def test_mistakes_are_one_sentence_and_nothing_is_written(
    run: Path, elsewhere: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))  # where there is no ffmpeg
    empty = tmp_path / "empty"
    shutil.copytree(run, empty, ignore=shutil.ignore_patterns("checkpoints", "calibration*"))
    folder = tmp_path / "folder.html"
    folder.mkdir()
    out = ["--out", tmp_path / "a.html"]
    for arguments, words in (
        ([tmp_path, *out], "is not a run: there is no"),
        ([empty, *out], "has no checkpoint yet"),
        ([run, *out, "--agent-seed", 3], "has no seed 3; it has 7, 8"),
        ([run, *out, "--episodes", 0], "--episodes must be at least 1, not 0"),
        ([run, *out, "--max-episode-frames", 0], "--max-episode-frames must be at least 1"),
        ([run, *out, "--seed", -1], "--seed must be from 0"),
        ([run, *out, "--compare", elsewhere], "--compare takes a run of the same environment"),
        ([run, *out, "--compare", tmp_path / "none"], "is not a run"),
        ([run, "--out", tmp_path / "none" / "a.html"], "there is no folder"),
        ([run, "--out", folder], "it is a folder"),
        ([run, "--out", tmp_path / "a.png"], "--out must name a .html file"),
        ([run, *out, "--gif", tmp_path / "a.mp4"], "--gif must name a .gif file"),
        ([run, *out, "--mp4", tmp_path / "a.mp4"], "--mp4 needs ffmpeg, which is not installed"),
    ):
        assert _watch(*arguments) == 2, arguments
        said = capsys.readouterr()
        assert said.out == ""
        assert words in said.err
        assert said.err.startswith("ceqr: ")
        assert said.err.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "folder.html"]


def test_a_run_that_is_not_calibrated_is_told_how(
    elsewhere: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _watch(elsewhere, "--out", tmp_path / "a.html") == 0
    assert f"ceqr calibrate {elsewhere}" in capsys.readouterr().err
    assert _data(tmp_path / "a.html")["agents"][0]["coverage"] is None
