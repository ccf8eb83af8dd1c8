"""The first episode as an animation: the game, what the agent believes of each action, and the time line below.

A GIF is written by Pillow, an MP4 by ffmpeg, to which the pictures are handed through a pipe.
"""

import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from ceqr.errors import UserError
from ceqr.files import rename, temporary_path, written_aside
from ceqr.progress import Progress
from ceqr.viewer.page import Watched, axis_of
from ceqr.viewer.record import Episode, Subject
from ceqr.viewer.scenes import COLOURS as THINGS
from ceqr.viewer.scenes import GREEN, GREY, GROUND, ORANGE, PURPLE, SKY, WHITE, Scene

WIDTH, HEIGHT = 720, 420  # of one agent
FINE = 2  # drawn so much larger, and then reduced: edges are smooth
LONGEST = 300  # frames of a GIF
SECONDS, SLOWEST, FASTEST = 20, 8, 30  # how long it should last; frames a second
COLOURS = 96  # of a GIF, besides those that have a meaning
PAGE, CARD, RULE = "#14161a", "#1e2127", "#363b45"
INKS = (PAGE, CARD, RULE, GROUND, GREY, GREEN)
MARGIN, GAME, TOP, LINE = 16, 264, 44, 78  # pixels: around all, the game's side, of the heading, of the time line
LEFT = MARGIN + GAME + 16  # where beliefs begin
MOST_ROWS = 8  # actions that there is room for


def require_ffmpeg() -> str:
    """Where ffmpeg is; `UserError` if it is nowhere."""
    found = shutil.which("ffmpeg")
    if found is None:
        raise UserError(
            "--mp4 needs ffmpeg, which is not installed (Debian: apt-get install ffmpeg); --gif needs nothing."
        )
    return found


def frames_per_second(frames: int) -> int:
    return min(max(round(frames / SECONDS), SLOWEST), FASTEST)


def write_gif(path: Path, watched: Watched, quiet: bool = False) -> list[str]:
    """Writes the GIF; what there is to say about it."""
    length = max(map(len, watched.pairs[0]))
    shown = min(length, LONGEST)
    drawn = list(_pictures(watched, shown, quiet))
    palette = _palette(drawn[:: max(1, shown // 6)])  # one for all, so that what stands still is not stored again
    pictures = [picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in drawn]
    with written_aside(path) as file:
        pictures[0].save(
            file, "GIF", save_all=True, append_images=pictures[1:], loop=0, optimize=False, disposal=1,
            duration=round(100 / frames_per_second(shown)) * 10,
        )  # fmt: skip
    return [f"{path} shows the first {shown:,} of {length:,} frames."] if shown < length else []


def _palette(pictures: list[Image.Image]) -> Image.Image:
    """The colours of some pictures, and for certain those by which things are told apart, however small they are."""
    strip = Image.new("RGB", (pictures[0].width, pictures[0].height * len(pictures)))
    for i, picture in enumerate(pictures):
        strip.paste(picture, (0, i * picture.height))
    found = strip.quantize(COLOURS).getpalette() or []
    named = [int(colour[i : i + 2], 16) for colour in (*THINGS, *INKS) for i in (1, 3, 5)]
    palette = Image.new("P", (1, 1))
    palette.putpalette(named + found[: 3 * COLOURS])
    return palette


def write_mp4(path: Path, watched: Watched, quiet: bool = False) -> list[str]:
    """Writes the MP4; what there is to say about it."""
    length = max(map(len, watched.pairs[0]))
    aside = temporary_path(path)
    command = [
        require_ffmpeg(), "-y", "-loglevel", "error", "-f", "rawvideo", "-pix_fmt", "rgb24",
        "-s", f"{WIDTH * len(watched.subjects)}x{HEIGHT}", "-r", str(frames_per_second(length)), "-i", "-",
        "-c:v", "libx264", "-pix_fmt", "yuv420p", "-movflags", "+faststart", "-f", "mp4", str(aside),
    ]  # fmt: skip
    try:
        with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdin is not None
            assert process.stderr is not None
            try:
                for picture in _pictures(watched, length, quiet):
                    process.stdin.write(picture.tobytes())
                process.stdin.close()
            except BrokenPipeError:
                pass  # it has ended already, and says why
            said = process.stderr.read().decode(errors="replace").strip()
        if process.returncode:
            reason = said.splitlines()[-1] if said else f"exit code {process.returncode}"
            raise UserError(f"ffmpeg could not write {path}: {reason.rstrip('.')}.")
        rename(aside, path)
    finally:
        aside.unlink(missing_ok=True)
    return []


def _pictures(watched: Watched, count: int, quiet: bool) -> Iterator[Image.Image]:
    """So many frames of the first episode; agents side by side."""
    panels = [
        _Panel(subject, episode, watched.scene, watched.actions, span)
        for (subject, episode), (_, span) in zip(
            zip(watched.subjects, watched.pairs[0], strict=True), axis_of(watched.pairs[0]), strict=True
        )
    ]
    with Progress("drawing", count, quiet=quiet) as progress:
        for frame in range(count):
            whole = Image.new("RGB", (WIDTH * len(panels), HEIGHT))
            for i, panel in enumerate(panels):
                whole.paste(panel.draw(frame), (i * WIDTH, 0))
            yield whole
            progress.update(frame + 1, "")


@cache
def _font(size: float) -> Any:
    return ImageFont.load_default(size * FINE)


class _Panel:
    """The pictures of one agent: what stands still is drawn once."""

    def __init__(self, subject: Subject, episode: Episode, scene: Scene, actions: Any, span: float):
        self._episode, self._scene, self._actions, self._span = episode, scene, list(actions), span
        ((self._middle, _),) = axis_of((episode,))
        high = min(GAME, GAME / scene.ratio)
        wide = high * scene.ratio
        self._game = (MARGIN + (GAME - wide) / 2, TOP + (GAME - high) / 2, wide, high)
        shown = self._actions[:MOST_ROWS]
        self._row = (GAME - 22) / len(shown)
        self._back = Image.new("RGB", (WIDTH * FINE, HEIGHT * FINE), PAGE)
        self._lines = [
            (name, colour, values)
            for name, colour, values in (
                ("value", SKY, episode.of_greedy("mean")), ("epistemic", ORANGE, episode.of_greedy("epistemic")),
            )
            if values is not None
        ]  # fmt: skip
        self._draw_back(subject)

    def _text(
        self, pen: Any, x: float, y: float, text: str, colour: str = WHITE, size: int = 12, anchor: str = "lm"
    ) -> None:
        pen.text((x * FINE, y * FINE), text, fill=colour, font=_font(size), anchor=anchor)

    def _box(self, pen: Any, box: tuple[float, float, float, float], colour: str, radius: int = 0, **line: Any) -> None:
        left, top, wide, high = (each * FINE for each in box)
        pen.rounded_rectangle((left, top, left + wide, top + high), radius * FINE, fill=colour, **line)

    def _draw_back(self, subject: Subject) -> None:
        pen = ImageDraw.Draw(self._back)
        config = subject.config
        self._text(pen, MARGIN, 22, config.agent, size=17)
        after = MARGIN + _font(17).getlength(config.agent) / FINE + 8
        self._text(pen, after, 23, f"on {config.env}, {subject.frame:,} frames of training", GREY, 13)
        self._box(pen, (LEFT, TOP, WIDTH - LEFT - MARGIN, GAME), CARD, 8)
        right = WIDTH - MARGIN - 10
        self._text(pen, LEFT + 10, TOP + 12, "return from here on", GREY, 11)
        for x, name, colour, told in self._columns(right):
            self._text(pen, x, TOP + 12, name if told is not None else "", colour, 11, "rm")
        top = TOP + GAME + 14
        self._strip = (MARGIN, top, WIDTH - 2 * MARGIN, LINE)
        self._box(pen, self._strip, CARD, 6)
        x = MARGIN + 10
        for name, colour, values in self._lines:
            points = [(FINE * px, FINE * py) for px, py in self._curve(values)]
            if len(points) > 1:
                pen.line(points, fill=colour, width=2 * FINE, joint="curve")
            self._text(pen, x, top + 10, name, colour, 11)
            x += _font(11).getlength(name) / FINE + 14

    def _columns(self, right: float) -> list[tuple[float, str, str, Any]]:
        beliefs = self._episode.beliefs
        return [
            (right - 128, "mean", SKY, beliefs.mean),
            (right - 62, "epistemic", ORANGE, beliefs.epistemic),
            (right, "aleatoric", GREEN, beliefs.aleatoric),
        ]

    def _curve(self, values: np.ndarray) -> list[tuple[float, float]]:
        left, top, wide, high = self._strip
        low, most = min(float(values.min()), 0.0), float(values.max())
        share = (values - low) / ((most - low) or 1.0)
        x = left + 8 + np.linspace(0, 1, len(values)) * (wide - 16)
        return list(zip(x.tolist(), (top + high - 8 - share * (high - 30)).tolist(), strict=True))

    def draw(self, frame: int) -> Image.Image:
        """The frame, or the last one there is."""
        frame = min(frame, len(self._episode) - 1)
        image = self._back.copy()
        pen = ImageDraw.Draw(image)
        left, top, wide, high = self._game
        self._scene.draw(image, (left * FINE, top * FINE, wide * FINE, high * FINE), self._episode, frame)
        for a in range(min(len(self._actions), MOST_ROWS)):
            self._draw_row(pen, a, frame)
        left, top, wide, high = self._strip
        x = left + 8 + (wide - 16) * (frame / max(len(self._episode) - 1, 1))
        pen.line([(x * FINE, (top + 4) * FINE), (x * FINE, (top + high - 4) * FINE)], fill=WHITE, width=FINE)
        for _, colour, values in self._lines:
            px, py = self._curve(values)[frame]
            pen.circle((px * FINE, py * FINE), 4 * FINE, fill=colour, outline=PAGE)
        total = self._episode.total(frame + 1)
        self._text(
            pen, WIDTH - MARGIN, 22, f"frame {frame + 1} of {len(self._episode)} · return {total:g}", GREY, 13, "rm"
        )
        return image.reduce(FINE)

    def _draw_row(self, pen: Any, a: int, frame: int) -> None:
        episode, beliefs = self._episode, self._episode.beliefs
        top, high = TOP + 22 + a * self._row, self._row
        right = WIDTH - MARGIN - 10
        if episode.action[frame] == a:
            self._box(pen, (LEFT + 3, top + 1, right + 4 - LEFT, high - 3), "#1d2b3c", 6, outline=SKY, width=FINE)
        sampled = episode.sampled[frame] == a and episode.sampled[frame] != episode.action[frame]
        self._text(pen, LEFT + 10, top + high / 2 - 7 * sampled, self._actions[a], size=13)
        if sampled:
            self._text(pen, LEFT + 10, top + high / 2 + 8, "sampled", ORANGE, 10)
        for x, _, _, told in self._columns(right):
            if told is not None:
                value = float(told[frame, a])
                self._text(pen, x, top + high / 2, f"{value:.3f}", size=12, anchor="rm")
        begin, end = LEFT + 74, right - 172
        low = self._middle[frame] - self._span / 2

        def place(value: Any) -> Any:
            return begin + np.clip((np.asarray(value) - low) / self._span, 0, 1) * (end - begin)

        base = top + high * 0.62
        pen.line([(begin * FINE, base * FINE), (end * FINE, base * FINE)], fill=RULE, width=FINE)
        if beliefs.quantiles is not None:
            x = np.linspace(begin, end, 120)
            kernel = np.exp(-0.5 * ((x[:, None] - place(beliefs.quantiles[frame, a])[None]) / 3.0) ** 2).sum(1)
            y = base - kernel / kernel.max() * (high * 0.5)
            points = [(begin, base), *zip(x.tolist(), y.tolist(), strict=True), (end, base)]
            pen.polygon([(px * FINE, py * FINE) for px, py in points], fill="#1f5a4b")
            pen.line([(px * FINE, py * FINE) for px, py in points[1:-1]], fill=GREEN, width=FINE)
        mean = float(beliefs.mean[frame, a])
        if beliefs.epistemic is not None:
            doubt = float(beliefs.epistemic[frame, a])
            near, far = float(place(mean - doubt)), float(place(mean + doubt))
            self._box(pen, (near, base + 3, max(far - near, 2), 3), ORANGE)
        self._box(pen, (float(place(mean)) - 1, base - high * 0.5, 2, high * 0.5 + 6), SKY)
        if beliefs.interval is not None and episode.greedy[frame] == a:
            ends = [float(place(bound[frame])) for bound in beliefs.interval]
            y = base + 12
            points = [(ends[0], y - 4), (ends[0], y), (ends[1], y), (ends[1], y - 4)]
            pen.line([(px * FINE, py * FINE) for px, py in points], fill=PURPLE, width=2 * FINE)
