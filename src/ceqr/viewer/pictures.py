"""Pictures of an environment's screen, small enough to fit a page: sheets of many frames each, as WebP or PNG.

Frames of one sheet look alike, and its compression makes use of that; a browser opens a sheet once and draws any frame
of it at once. The finest form that fits the budget is taken.
"""

import io
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, features

LARGEST_SIDE = 320  # pixels
ACROSS, DOWN = 8, 4  # frames of a sheet
BUDGET = 5_000_000  # bytes of an episode's pictures
RUNGS = ((320, None), (240, None), (240, 60), (160, 60), (160, 30), (120, 20))  # side; quality, None for lossless


class Sheets(NamedTuple):
    """The pictures of an episode."""

    width: int  # of one frame
    height: int
    mime: str
    every: int  # frames that share a picture; 1 unless nothing else would fit
    sheets: list[bytes]


def shrink(picture: np.ndarray) -> bytes:
    """One frame as PNG, no larger than will ever be shown: thousands of screens would fill the memory."""
    image = Image.fromarray(np.ascontiguousarray(picture[..., :3]))
    file = io.BytesIO()
    _fitted(image, LARGEST_SIDE).save(file, "PNG", compress_level=1)
    return file.getvalue()


def open_picture(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data)).convert("RGB")


def _fitted(image: Image.Image, side: int) -> Image.Image:
    """Not larger than `side`; what is tiny is enlarged by a whole factor, so that its pixels stay square."""
    factor = side / max(image.size)
    if factor >= 2:
        return image.resize((image.width * int(factor), image.height * int(factor)), Image.Resampling.NEAREST)
    if factor >= 1:
        return image
    size = (max(1, round(image.width * factor)), max(1, round(image.height * factor)))
    return image.resize(size, Image.Resampling.BOX)


def encode(pictures: Sequence[bytes], budget: int = BUDGET) -> Sheets:
    """The sheets of an episode; not larger than the budget."""
    webp = bool(features.check("webp"))
    per_sheet = ACROSS * DOWN
    starts = range(0, len(pictures), per_sheet)
    looked_at = [starts[i] for i in sorted({0, len(starts) // 2, len(starts) - 1})]
    rungs = RUNGS if webp else tuple((side, None) for side, _ in RUNGS)
    side, quality, expected = rungs[-1][0], rungs[-1][1], 0.0
    for side, quality in rungs:
        sizes = [len(_sheet(pictures[i : i + per_sheet], side, quality, webp)) for i in looked_at]
        expected = max(sizes) * len(starts)
        if expected <= budget:
            break
    every = max(1, math.ceil(expected / budget))
    while True:
        kept = pictures[::every]
        sheets = [_sheet(kept[i : i + per_sheet], side, quality, webp) for i in range(0, len(kept), per_sheet)]
        if sum(map(len, sheets)) <= budget or len(sheets) == 1:
            break
        every += 1
    first = _fitted(open_picture(pictures[0]), side)
    return Sheets(first.width, first.height, "image/webp" if webp else "image/png", every, sheets)


def _sheet(pictures: Sequence[bytes], side: int, quality: int | None, webp: bool) -> bytes:
    frames = [_fitted(open_picture(each), side) for each in pictures]
    width, height = frames[0].size
    down = math.ceil(len(frames) / ACROSS)
    sheet = Image.new("RGB", (width * ACROSS, height * down))
    for i, frame in enumerate(frames):
        sheet.paste(frame, (i % ACROSS * width, i // ACROSS * height))
    file = io.BytesIO()
    options: dict[str, Any] = {"quality": quality} if quality is not None else {"lossless": True, "quality": 30}
    if webp:
        sheet.save(file, "WEBP", method=2, **options)
    else:
        sheet.quantize(128).save(file, "PNG", optimize=True)
    return file.getvalue()
