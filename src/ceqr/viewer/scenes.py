"""How an environment is drawn: as a grid of named things, as a few shapes, or by its own screen.

A scene is data: the page's script and `animation` draw the same from it. Coordinates of shapes are in units of the
scene's height, y downwards. Colours are Okabe and Ito's on a dark ground, and every thing has a shape of its own, too,
so that nobody needs the colours.
"""

import abc
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from ceqr.envs import is_compiled, observation_format
from ceqr.viewer.heat import ground_of, is_maze
from ceqr.viewer.pictures import Sheets, encode, open_picture, shrink
from ceqr.viewer.record import Episode

GROUND = "#10141b"
FAINT = "#2a323e"
SKY, ORANGE, GREEN, YELLOW, BLUE, VERMILION, PURPLE, WHITE, GREY = (
    "#56b4e9", "#e69f00", "#00b587", "#f0e442", "#4a8fe0", "#e8702a", "#cc79a7", "#f4f4f4", "#8b95a5",
)  # fmt: skip
MOST_BARS = 32  # numbers of an observation that are drawn as bars
MOST_LAYERS = 24  # kinds of things that a legend can name

Box = tuple[float, float, float, float]  # left, top, width, height
Polygon = list[tuple[float, float]]

# Shapes of things, in a cell that reaches from (0, 0) to (1, 1).


def _rectangle(left: float, top: float, right: float, bottom: float) -> Polygon:
    return [(left, top), (right, top), (right, bottom), (left, bottom)]


def _disc(radius: float, x: float = 0.5, y: float = 0.5, corners: int = 20) -> Polygon:
    turns = [2 * math.pi * i / corners for i in range(corners)]
    return [(round(x + radius * math.cos(t), 4), round(y + radius * math.sin(t), 4)) for t in turns]


def _cross(arm: float, half: float) -> Polygon:
    """A saltire."""
    quarter = [(half, 0.0), (arm, arm - half), (arm - half, arm), (0.0, half)]
    points = []
    for right, down, order in ((1, 1, 1), (-1, 1, -1), (-1, -1, 1), (1, -1, -1)):
        points += [(0.5 + right * x, 0.5 + down * y) for x, y in quarter[::order]]
    return points


SHAPES: dict[str, list[Polygon]] = {
    "square": [_rectangle(0.06, 0.06, 0.94, 0.94)],
    "slab": [_rectangle(0.0, 0.3, 1.0, 0.8)],
    "disc": [_disc(0.36)],
    "dot": [_disc(0.16)],
    "diamond": [[(0.5, 0.1), (0.9, 0.5), (0.5, 0.9), (0.1, 0.5)]],
    "up": [[(0.5, 0.08), (0.94, 0.9), (0.06, 0.9)]],
    "left": [[(0.1, 0.5), (0.86, 0.1), (0.86, 0.9)]],
    "right": [[(0.9, 0.5), (0.14, 0.1), (0.14, 0.9)]],
    "cross": [_cross(0.42, 0.14)],
    "small cross": [_cross(0.26, 0.1)],
    "small left": [[(0.28, 0.5), (0.66, 0.24), (0.66, 0.76)]],
    "small right": [[(0.72, 0.5), (0.34, 0.24), (0.34, 0.76)]],
    "upright": [_rectangle(0.4, 0.15, 0.6, 0.85)],
    "level": [_rectangle(0.12, 0.38, 0.88, 0.62)],
    "pair": [_disc(0.17, 0.27), _disc(0.17, 0.73)],
    "frame": [
        _rectangle(0.08, 0.08, 0.92, 0.24), _rectangle(0.08, 0.76, 0.92, 0.92),
        _rectangle(0.08, 0.24, 0.24, 0.76), _rectangle(0.76, 0.24, 0.92, 0.76),
    ],
    **{f"{n} strokes": [_rectangle(0.08 + 0.19 * i, 0.3, 0.17 + 0.19 * i, 0.7) for i in range(n)] for n in range(1, 6)},
}  # fmt: skip


@dataclass(frozen=True)
class Layer:
    """A kind of thing on a grid."""

    name: str
    colour: str
    shape: str

    @property
    def area(self) -> float:
        """The share of a cell that it covers."""
        corners = [np.array(polygon).T for polygon in SHAPES[self.shape]]
        return sum(abs(x @ np.roll(y, 1) - y @ np.roll(x, 1)) / 2 for x, y in corners)

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "colour": self.colour, "polygons": SHAPES[self.shape]}


NAMED = {  # MinAtar's things: blue is oneself, vermilion is what hurts, yellow and green are wanted
    "player": (SKY, "up"), "enemy": (VERMILION, "cross"), "trail": (GREY, "dot"), "gold": (YELLOW, "diamond"),
    "paddle": (SKY, "slab"), "ball": (YELLOW, "disc"), "brick": (VERMILION, "square"),
    "chicken": (YELLOW, "up"), "car": (VERMILION, "square"),
    **{f"speed {n}": (SKY, f"{n} strokes") for n in range(1, 6)},
    "submarine": (SKY, "disc"), "stern": (BLUE, "slab"), "own bullet": (WHITE, "upright"),
    "enemy bullet": (YELLOW, "small cross"), "fish": (PURPLE, "left"), "enemy submarine": (VERMILION, "square"),
    "oxygen": (GREEN, "level"), "divers aboard": (GREEN, "pair"), "diver": (GREEN, "diamond"),
    "cannon": (SKY, "up"), "alien": (VERMILION, "square"),
    "moving left": (WHITE, "small left"), "moving right": (WHITE, "small right"),
}  # fmt: skip
COLOURS = (SKY, VERMILION, YELLOW, GREEN, PURPLE, ORANGE, WHITE, BLUE)
ORDER = ("square", "disc", "diamond", "up", "cross", "frame", "left", "right", "upright", "level", "pair", "dot")


def layer(number: int, name: str) -> Layer:
    """A layer of that name, as it is always drawn if the name is known, otherwise as the number-th of several."""
    colour, shape = NAMED.get(name, (COLOURS[number % len(COLOURS)], ORDER[number % len(ORDER)]))
    return Layer(name, colour, shape)


class Scene(abc.ABC):
    """How the frames of episodes in one environment are drawn."""

    kind: str
    ratio: float  # width by height

    @abc.abstractmethod
    def to_json(self) -> dict[str, Any]:
        """What is the same in all frames."""

    def arrays(self, episode: Episode) -> dict[str, np.ndarray]:
        """What is not: arrays of [steps, ...]."""
        return {}

    def sheets(self, episode: Episode) -> Sheets | None:
        """Pictures, where that is what is drawn."""
        return None

    @abc.abstractmethod
    def draw(self, image: Image.Image, box: Box, episode: Episode, frame: int) -> None:
        """The frame in a box of an image."""


@dataclass(frozen=True)
class GridScene(Scene):
    """Named things in cells, perhaps on a ground that never changes."""

    height: int
    width: int
    layers: tuple[Layer, ...]
    cells: Any  # observations -> bool [steps, height, width, layers]
    ground: tuple[tuple[int, ...], ...] = ()  # [height, width]: the kind of each cell
    grounds: tuple[tuple[str, str], ...] = ()  # names and colours of the kinds
    kind: str = "grid"

    @property
    def ratio(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.width / self.height

    @property
    def order(self) -> list[int]:
        """The layers in the order in which they are drawn: what is large must not cover what is small."""
        return sorted(range(len(self.layers)), key=lambda i: -self.layers[i].area)

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind, "ratio": self.ratio, "height": self.height, "width": self.width,
            "layers": [each.to_json() for each in self.layers], "order": self.order, "ground": self.ground,
            "grounds": [{"name": name, "colour": colour} for name, colour in self.grounds],
        }  # fmt: skip

    def arrays(self, episode: Episode) -> dict[str, np.ndarray]:
        cells = self.cells(episode.observation)
        return {"cells": np.packbits(cells.reshape(len(cells), -1), axis=1, bitorder="little")}

    def draw(self, image: Image.Image, box: Box, episode: Episode, frame: int) -> None:
        pen = ImageDraw.Draw(image)
        left, top, wide, _ = box
        size = wide / self.width
        pen.rectangle(_corners(box), fill=GROUND)
        for y, row in enumerate(self.ground):
            for x, kind in enumerate(row):
                place = (left + x * size, top + y * size, size, size)
                pen.rectangle(_corners(place), fill=self.grounds[kind][1], outline=GROUND)
        cells = self.cells(episode.observation[frame : frame + 1])[0]
        for number in self.order:
            each = self.layers[number]
            for y, x in np.argwhere(cells[..., number]):
                for polygon in SHAPES[each.shape]:
                    pen.polygon([(left + (x + u) * size, top + (y + v) * size) for u, v in polygon], fill=each.colour)


@dataclass(frozen=True)
class Part:
    """A polygon, a line or a word; its points are fixed, or lie in the frame's numbers from `at` on."""

    kind: str
    colour: str
    points: Sequence[tuple[float, float]] = ()
    at: int = -1
    count: int = 0
    width: float = 0.01  # of a line
    text: str = ""

    def to_json(self) -> dict[str, Any]:
        return vars(self)

    def placed(self, numbers: np.ndarray) -> list[tuple[float, float]]:
        if self.at < 0:
            return list(self.points)
        return [tuple(xy) for xy in numbers[self.at : self.at + 2 * self.count].reshape(-1, 2).tolist()]


@dataclass(frozen=True)
class ShapesScene(Scene):
    """A few shapes that move."""

    ratio: float
    parts: tuple[Part, ...]
    numbers: Any  # observations -> float32 [steps, numbers]
    kind: str = "shapes"

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "ratio": self.ratio, "parts": [part.to_json() for part in self.parts]}

    def arrays(self, episode: Episode) -> dict[str, np.ndarray]:
        return {"numbers": self.numbers(episode.observation).astype(np.float32)}

    def draw(self, image: Image.Image, box: Box, episode: Episode, frame: int) -> None:
        pen = ImageDraw.Draw(image)
        left, top, _, high = box
        pen.rectangle(_corners(box), fill=GROUND)
        numbers = self.numbers(episode.observation[frame : frame + 1])[0]
        for part in self.parts:
            points = [(left + x * high, top + y * high) for x, y in part.placed(numbers)]
            if part.kind == "text":
                pen.text(points[0], part.text, fill=part.colour, font_size=0.05 * high, anchor="rm")
            elif part.kind == "line":
                pen.line(points, fill=part.colour, width=max(1, round(part.width * high)), joint="curve")
            else:
                pen.polygon(points, fill=part.colour)


@dataclass(frozen=True)
class PicturesScene(Scene):
    """The environment's own screen, or what an agent sees where that is a picture."""

    ratio: float
    look: Any = None  # observations -> uint8 [steps, height, width, 3]; None where the episode has pictures
    kind: str = "pictures"
    _kept: dict[int, list[bytes]] = field(default_factory=dict, compare=False)

    def pictures(self, episode: Episode) -> list[bytes]:
        if self.look is None:
            assert episode.pictures is not None
            return episode.pictures
        if id(episode) not in self._kept:
            self._kept[id(episode)] = [
                shrink(self.look(episode.observation[i : i + 1])[0]) for i in range(len(episode))
            ]
        return self._kept[id(episode)]

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "ratio": self.ratio}

    def sheets(self, episode: Episode) -> Sheets:
        return encode(self.pictures(episode))

    def draw(self, image: Image.Image, box: Box, episode: Episode, frame: int) -> None:
        left, top, wide, high = map(round, box)
        image.paste(open_picture(self.pictures(episode)[frame]).resize((wide, high)), (left, top))


def _corners(box: Box) -> tuple[float, float, float, float]:
    left, top, wide, high = box
    return left, top, left + wide - 1, top + high - 1


# Which scene an environment has.


def scene_of(env: Any, episodes: Sequence[Episode]) -> Scene:
    """How to draw an environment, from what it tells of itself and from what was seen in it."""
    first = episodes[0]
    if first.pictures is not None:
        wide, high = open_picture(first.pictures[0]).size
        return PicturesScene(wide / high)
    if is_maze(env):
        return _maze(env)
    form = observation_format(env)
    seen = np.concatenate([episode.observation for episode in episodes])
    binary = seen.dtype == bool or bool(np.isin(seen, (0, 1)).all())
    known = CONTROL.get(env.name.rpartition("/")[2].partition("-")[0])
    if known and seen.ndim == 2 and seen.shape[1] == known[0]:
        scale = np.asarray(form.scale or 1.0, np.float32)
        ratio, parts, numbers = known[1]()
        return ShapesScene(ratio, parts, lambda observations: numbers(np.asarray(observations) / scale))
    if seen.ndim == 4:
        height, width, channels = seen.shape[1:]
        if binary and channels <= MOST_LAYERS:
            return GridScene(height, width, _layers(env, channels), lambda x: np.asarray(x) > 0)
        return _image(seen)
    if len(form.shape) == 2 and binary:
        height, width = form.shape
        return GridScene(height, width, _layers(env, 1), lambda x: (np.asarray(x) > 0).reshape(-1, height, width, 1))
    if form.kind == "number":
        height, width = _near_square(form.count)
        spare = height * width - form.count
        return GridScene(
            height, width, (layer(1, "where it is"),),
            lambda x: np.pad(np.asarray(x) > 0, ((0, 0), (0, spare))).reshape(-1, height, width, 1),
        )  # fmt: skip
    if seen.shape[1] <= MOST_BARS:
        return _bars(seen)
    height, width = form.shape if len(form.shape) == 2 else _near_square(seen.shape[1])
    spare = height * width - seen.shape[1]
    return _image(np.pad(seen, ((0, 0), (0, spare))).reshape(-1, height, width, 1), seen.shape[1:])


def _near_square(count: int) -> tuple[int, int]:
    """Rows and columns for so many cells; one row for a few."""
    if count <= 12:
        return 1, count
    width = math.ceil(math.sqrt(count))
    return math.ceil(count / width), width


def _layers(env: Any, channels: int) -> tuple[Layer, ...]:
    told = told_by(env, "channel_names") or ()
    names = told if len(told) == channels else [f"channel {i}" for i in range(channels)] if channels > 1 else ["seen"]
    return tuple(layer(i, str(name)) for i, name in enumerate(names))


def told_by(env: Any, name: str) -> Any:
    """What an environment tells of itself under a name, or a Gymnasium environment within it; None if neither does."""
    if hasattr(env, name) or is_compiled(env):
        return getattr(env, name, None)
    made = env.build()
    try:
        return getattr(made.unwrapped, name, None)
    finally:
        if env.owned:
            made.close()


def _image(seen: np.ndarray, shape: tuple[int, ...] | None = None) -> PicturesScene:
    """What an agent sees, as it is: of several frames or channels, the last."""
    height, width, channels = seen.shape[1:]
    low, high = (0.0, 255.0) if seen.dtype == np.uint8 else (float(seen.min()), float(seen.max()))
    span = (high - low) or 1.0

    def look(observations: np.ndarray) -> np.ndarray:
        values = np.asarray(observations, np.float32)
        if shape is not None:
            values = np.pad(values, ((0, 0), (0, height * width - values.shape[1]))).reshape(-1, height, width, 1)
        values = values if channels == 3 else np.repeat(values[..., -1:], 3, axis=-1)
        return np.clip(255 * (values - low) / span, 0, 255).astype(np.uint8)

    return PicturesScene(width / height, look)


def _bars(seen: np.ndarray) -> ShapesScene:
    """Every number of an observation as a bar from 0, in units of the largest of its kind."""
    count, left, right = seen.shape[1], 0.14, 1.3
    middle = (left + right) / 2 if seen.min() < 0 else left
    reach = right - middle - 0.04
    largest = np.maximum(np.abs(seen).max(0).astype(np.float64), 1e-9)
    high = 0.92 / count
    parts = [Part("line", GREY, [(middle, 0.03), (middle, 0.97)], width=0.004)]
    for i in range(count):
        y = 0.04 + high * (i + 0.5)
        parts.append(Part("text", GREY, [(left - 0.03, y)], text=str(i)))
        parts.append(Part("polygon", COLOURS[i % len(COLOURS)], at=8 * i, count=4))

    def numbers(observations: np.ndarray) -> np.ndarray:
        tip = middle + reach * np.asarray(observations, np.float64) / largest
        y = 0.04 + high * np.arange(count)[None].repeat(len(tip), 0)
        corners = [(middle + 0 * tip, y + 0.15 * high), (tip, y + 0.15 * high)]
        corners += [(tip, y + 0.85 * high), (middle + 0 * tip, y + 0.85 * high)]
        return np.stack([np.stack(xy, -1) for xy in corners], 2).reshape(len(tip), -1)

    return ShapesScene(1.35, tuple(parts), numbers)


def _maze(env: Any) -> GridScene:
    """A maze: its cells as the ground, and the agent on them."""
    ground, grounds = ground_of(env)
    height, width = len(ground), len(ground[0])
    positions = np.asarray(env.positions)

    def cells(observations: np.ndarray) -> np.ndarray:
        place = positions[np.asarray(env.cell_of(np.asarray(observations)))]
        shown = np.zeros((len(place), height, width, 1), bool)
        shown[np.arange(len(place)), place[:, 0], place[:, 1], 0] = True
        return shown

    return GridScene(height, width, (Layer("agent", "#0072b2", "disc"),), cells, ground, grounds)


# Classic control, from observations alone: gymnax's have no screen.


def _cartpole() -> tuple[float, tuple[Part, ...], Any]:
    ratio, ground, unit = 1.5, 0.78, 1.5 / 5.2  # a track from -2.6 to 2.6; it ends at 2.4
    ends = [ratio / 2 + x * unit for x in (-2.4, 2.4)]
    parts = (
        Part("line", GREY, [(0, ground), (ratio, ground)], width=0.008),
        *(Part("line", VERMILION, [(x, ground - 0.03), (x, ground + 0.03)], width=0.012) for x in ends),
        Part("polygon", SKY, at=0, count=4),
        Part("line", YELLOW, at=8, count=2, width=0.035),
    )  # fmt: skip

    def numbers(seen: np.ndarray) -> np.ndarray:
        x, angle = ratio / 2 + seen[:, 0] * unit, seen[:, 2]
        y, half, high = np.full_like(x, ground), 0.09, 0.1
        corners = [x - half, y - high, x + half, y - high, x + half, y, x - half, y]
        pole = [x, y - high, x + 0.42 * np.sin(angle), y - high - 0.42 * np.cos(angle)]
        return np.stack(corners + pole, -1)

    return ratio, parts, numbers


def _acrobot() -> tuple[float, tuple[Part, ...], Any]:
    unit = 0.21
    parts = (
        Part("line", GREEN, [(0, 0.5 - unit), (1, 0.5 - unit)], width=0.008),
        Part("line", SKY, at=0, count=2, width=0.05),
        Part("line", YELLOW, at=2, count=2, width=0.05),
        Part("polygon", WHITE, [(0.5 + 0.03 * (x - 0.5), 0.5 + 0.03 * (y - 0.5)) for x, y in _disc(1.0)]),
    )

    def numbers(seen: np.ndarray) -> np.ndarray:
        one = np.arctan2(seen[:, 1], seen[:, 0])
        both = one + np.arctan2(seen[:, 3], seen[:, 2])
        half = np.full_like(one, 0.5)
        x, y = half + unit * np.sin(one), half + unit * np.cos(one)
        return np.stack([half, half, x, y, x + unit * np.sin(both), y + unit * np.cos(both)], -1)

    return 1.0, parts, numbers


def _mountain_car() -> tuple[float, tuple[Part, ...], Any]:
    ratio, low, high = 1.5, -1.2, 0.6

    def place(x: Any) -> tuple[Any, Any]:
        return ratio * (x - low) / (high - low), 0.86 - 0.33 * (np.sin(3 * x) + 1)

    hill = [(float(u), float(v)) for u, v in zip(*place(np.linspace(low, high, 60)), strict=True)]
    u, v = map(float, place(0.5))
    parts = (
        Part("line", GREY, hill, width=0.01),
        Part("line", GREEN, [(u, v), (u, v - 0.16)], width=0.01),
        Part("polygon", GREEN, [(u, v - 0.16), (u - 0.08, v - 0.13), (u, v - 0.1)]),
        Part("polygon", SKY, at=0, count=4),
    )  # fmt: skip

    def numbers(seen: np.ndarray) -> np.ndarray:
        u, v = place(seen[:, 0])
        slope = np.arctan2(-0.33 * 3 * np.cos(3 * seen[:, 0]), ratio / (high - low))
        corners = []
        for along, up in ((-0.06, 0.0), (0.06, 0.0), (0.05, 0.07), (-0.05, 0.07)):
            corners += [u + along * np.cos(slope) + up * np.sin(slope), v + along * np.sin(slope) - up * np.cos(slope)]
        return np.stack(corners, -1)

    return ratio, parts, numbers


CONTROL = {"CartPole": (4, _cartpole), "Acrobot": (6, _acrobot), "MountainCar": (2, _mountain_car)}
ACTIONS = {
    "CartPole": ("push left", "push right"),
    "MountainCar": ("push left", "coast", "push right"),
    "Acrobot": ("torque −1", "no torque", "torque +1"),
    "LunarLander": ("coast", "left engine", "main engine", "right engine"),
}


def action_names(env: Any) -> list[str]:
    """What the actions are called: by the environment, by what is known of it, or by their numbers."""
    told = told_by(env, "action_names") or ACTIONS.get(env.name.rpartition("/")[2].partition("-")[0])
    if told is None:
        meanings = told_by(env, "get_action_meanings")  # ALE's
        told = None if meanings is None else [str(name).lower().replace("_", " ") for name in meanings()]
    if told is None or len(told) != env.num_actions:
        return [f"action {i}" for i in range(env.num_actions)]
    return list(map(str, told))
