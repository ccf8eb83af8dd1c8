"""Animations: as many pictures as frames, and what an MP4 is made of reaches ffmpeg."""

import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ceqr.errors import UserError
from ceqr.viewer import animation
from ceqr.viewer.record import Episode, Subject
from ceqr.viewer.scenes import NAMED
from tests.viewer.subjects import watched

Recorded = tuple[Subject, list[Episode]]


def _count(gif: Any) -> int:
    return gif.n_frames


def test_a_gif_shows_every_frame(breakout: Recorded, tmp_path: Path) -> None:
    out = tmp_path / "episode.gif"
    assert animation.write_gif(out, watched([breakout[0]], [breakout[1]]), quiet=True) == []
    with Image.open(out) as gif:
        assert _count(gif) == len(breakout[1][0])
        assert gif.size == (animation.WIDTH, animation.HEIGHT)
        assert gif.info["loop"] == 0
        first = np.asarray(gif.convert("RGB"))
        gif.seek(_count(gif) - 1)
        last = np.asarray(gif.convert("RGB"))
    assert (first != last).any()
    ball = [int(NAMED["ball"][0][i : i + 2], 16) for i in (1, 3, 5)]
    assert (np.abs(first.astype(int) - ball).max(-1) <= 2).sum() > 50  # its colour survives the palette


def test_a_long_gif_is_cut_and_says_so(breakout: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(animation, "LONGEST", 3)
    (note,) = animation.write_gif(tmp_path / "a.gif", watched([breakout[0]], [breakout[1]]), quiet=True)
    assert f"the first 3 of {len(breakout[1][0])} frames" in note
    with Image.open(tmp_path / "a.gif") as gif:
        assert _count(gif) == 3


def test_two_agents_are_side_by_side(breakout: Recorded, plain: Recorded, tmp_path: Path) -> None:
    both = watched([breakout[0], plain[0]], [breakout[1], plain[1]])
    animation.write_gif(tmp_path / "a.gif", both, quiet=True)
    with Image.open(tmp_path / "a.gif") as gif:
        assert gif.size == (2 * animation.WIDTH, animation.HEIGHT)
        assert _count(gif) == max(len(breakout[1][0]), len(plain[1][0]))


FAKE = """#!{python}
import sys
data = sys.stdin.buffer.read()
open(sys.argv[-1], "wb").write(b"%d" % len(data))
"""
FAILING = """#!{python}
import sys
sys.exit("libx264 is not there")
"""


@pytest.fixture
def ffmpeg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts a program of that name first on the path."""

    def install(script: str) -> None:
        program = tmp_path / "bin" / "ffmpeg"
        program.parent.mkdir(exist_ok=True)
        program.write_text(script.format(python=sys.executable))
        program.chmod(program.stat().st_mode | stat.S_IEXEC)
        monkeypatch.setenv("PATH", str(program.parent))

    return install


def test_all_frames_are_handed_to_ffmpeg(breakout: Recorded, tmp_path: Path, ffmpeg: Any) -> None:
    ffmpeg(FAKE)
    animation.write_mp4(tmp_path / "a.mp4", watched([breakout[0]], [breakout[1]]), quiet=True)
    expected = animation.WIDTH * animation.HEIGHT * 3 * len(breakout[1][0])
    assert (tmp_path / "a.mp4").read_bytes() == b"%d" % expected
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.mp4", "bin"]


def test_what_ffmpeg_says_is_told_and_nothing_is_left(breakout: Recorded, tmp_path: Path, ffmpeg: Any) -> None:
    ffmpeg(FAILING)
    with pytest.raises(UserError, match=r"could not write .*a\.mp4: libx264 is not there"):
        animation.write_mp4(tmp_path / "a.mp4", watched([breakout[0]], [breakout[1]]), quiet=True)
    assert [path.name for path in tmp_path.iterdir()] == ["bin"]


@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="there is no ffmpeg on this machine")
def test_a_real_film(breakout: Recorded, tmp_path: Path) -> None:
    animation.write_mp4(tmp_path / "a.mp4", watched([breakout[0]], [breakout[1]]), quiet=True)
    said = subprocess.run(["ffmpeg", "-i", tmp_path / "a.mp4"], capture_output=True, text=True, check=False).stderr
    assert f"{animation.WIDTH}x{animation.HEIGHT}" in said


def test_without_ffmpeg_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="--mp4 needs ffmpeg, which is not installed"):
        animation.require_ffmpeg()


@pytest.mark.parametrize(("frames", "speed"), [(10, 8), (160, 8), (300, 15), (5_000, 30)])
def test_it_lasts_about_twenty_seconds(frames: int, speed: int) -> None:
    assert animation.frames_per_second(frames) == speed
