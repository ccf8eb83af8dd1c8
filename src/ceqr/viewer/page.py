"""The page that shows an agent's doubt: one HTML file that needs nothing else, neither a network nor fonts nor files.

Numbers of an episode travel as one block of bytes, deflated and in base64, which the page opens when the episode is
first shown. What is shown as a number is float32, as the agent computed it; quantiles, which are only drawn, are
rounded to 1/65,535 of their range.
"""

import base64
import importlib.metadata
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup

from ceqr.viewer.heat import Heat
from ceqr.viewer.moments import moments, surprise
from ceqr.viewer.pictures import ACROSS, DOWN
from ceqr.viewer.record import Episode, Subject
from ceqr.viewer.scenes import Scene

DIGITS = 4  # of the largest number of a kind
MOST_QUANTILES = 300  # numbers of a frame: with many actions, each has fewer quantiles
STEPS = 65_535
AXIS, STRIDES = 1.25, 8  # the axis is so much longer than what is on it, and moves by a share of its length


@dataclass(frozen=True)
class Watched:
    """All that a page shows."""

    subjects: Sequence[Subject]  # one, or two to compare
    episodes: Sequence[Sequence[Episode]]  # of each of them
    scene: Scene
    actions: Sequence[str]
    seed: int
    explore: bool
    heats: Sequence[Heat | None]

    @property
    def pairs(self) -> list[tuple[Episode, ...]]:
        """The episodes of one number, by all of them."""
        return list(zip(*self.episodes, strict=True))


def render(watched: Watched) -> bytes:
    """The page."""
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_part), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    blocks: dict[str, str] = {}
    episodes = []
    for i, pair in enumerate(watched.pairs):
        played = []
        for j, (subject, episode, (middle, span)) in enumerate(zip(watched.subjects, pair, axis_of(pair), strict=True)):
            told = _episode(subject, episode, watched.scene, {"middle": middle}, f"e{i}a{j}", blocks)
            played.append(told | {"span": span})
        episodes.append({"agents": played})
    agents = [_agent(subject, heat) for subject, heat in zip(watched.subjects, watched.heats, strict=True)]
    data = {
        "actions": list(watched.actions),
        "scene": watched.scene.to_json(),
        "agents": agents,
        "episodes": episodes,
        "decimals": _decimals([episode for pair in watched.pairs for episode in pair]),
    }
    text = environment.get_template("page.html").render(
        watched=watched,
        subjects=watched.subjects,
        env=watched.subjects[0].config.describe_env(),
        agents=agents,
        actions=watched.actions,
        episodes=episodes,
        legend=_legend(watched.scene),
        data=data,
        blocks=blocks,
        heats=watched.heats,
        version=importlib.metadata.version("ceqr"),
        css=Markup(_part("page.css")),
        js=Markup(_part("page.js")),
    )
    return text.encode()


def _part(name: str) -> str:
    return resources.files("ceqr.viewer").joinpath(name).read_text(encoding="utf-8")


def _agent(subject: Subject, heat: Heat | None) -> dict[str, Any]:
    calibration = subject.calibration
    return {
        "label": subject.config.agent,
        "run": str(subject.path),
        "seed": subject.seed,
        "frame": subject.frame,
        "discount": subject.agent.hyper.discount,
        "coverage": calibration and calibration.coverage,
        "novelty": calibration is not None and calibration.rarity is not None,
        "heat": heat and heat.to_json(),
    }


def _legend(scene: Scene) -> list[dict[str, Any]]:
    """Names, colours and shapes of what is on a grid."""
    told = scene.to_json()
    square = [[(0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0)]]
    ground = [{**each, "polygons": square} for each in told.get("grounds", ())]
    return [*told.get("layers", ()), *ground]


# Numbers.


def _episode(
    subject: Subject, episode: Episode, scene: Scene, more: dict[str, np.ndarray], name: str, blocks: dict[str, str]
) -> dict[str, Any]:
    """What the page is told of an episode; its bytes go into blocks by name."""
    beliefs = episode.beliefs
    arrays: dict[str, np.ndarray] = {
        "action": episode.action.astype(np.uint16),
        "greedy": episode.greedy.astype(np.uint16),
        "sampled": episode.sampled.astype(np.uint16),
        "reward": episode.reward.astype(np.float32),
        "outcome": episode.outcome.astype(np.float32),
        "surprise": surprise(episode, subject.agent.hyper.discount).astype(np.float32),
        "mean": beliefs.mean.astype(np.float32),
    } | {kind: each.astype(np.float32) for kind, each in more.items()}
    for kind in ("epistemic", "aleatoric", "novelty"):
        if getattr(beliefs, kind) is not None:
            arrays[kind] = np.asarray(getattr(beliefs, kind), np.float32)
    if beliefs.interval is not None:
        arrays["lower"], arrays["upper"] = (np.asarray(each, np.float32) for each in beliefs.interval)
    told: dict[str, Any] = {}
    if beliefs.quantiles is not None:
        arrays["quantiles"], told["quantiles"] = _rounded(_thinned(beliefs.quantiles))
    arrays |= scene.arrays(episode)
    sheets = scene.sheets(episode)
    if sheets is not None:
        names = [f"{name}p{i}" for i in range(len(sheets.sheets))]
        blocks |= {each: base64.b64encode(sheet).decode() for each, sheet in zip(names, sheets.sheets, strict=True)}
        told["pictures"] = {**sheets._asdict(), "sheets": names, "across": ACROSS, "down": DOWN}
    blocks[name], layout = pack(arrays)
    found = moments(episode, subject.agent.hyper.discount)
    inside = None
    if beliefs.interval is not None and not np.isnan(episode.outcome).all():
        known = ~np.isnan(episode.outcome)
        within = (beliefs.interval.lower <= episode.outcome) & (episode.outcome <= beliefs.interval.upper)
        inside = float(within[known].mean())
    return {
        "length": len(episode),
        "total": episode.total(len(episode)),
        "end": episode.end,
        "inside": inside,
        "moments": [moment._asdict() for moment in found],
        "block": name,
        "layout": layout,
        **told,
    }


def pack(arrays: dict[str, np.ndarray]) -> tuple[str, list[dict[str, Any]]]:
    """Arrays as one text, and where each of them lies; each begins at a multiple of four bytes."""
    parts, layout, offset = [], [], 0
    for name, array in arrays.items():
        data = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
        layout.append({"name": name, "dtype": array.dtype.name, "shape": array.shape, "offset": offset})
        data += bytes(-len(data) % 4)
        parts.append(data)
        offset += len(data)
    return base64.b64encode(zlib.compress(b"".join(parts), 6)).decode(), layout


def _thinned(quantiles: np.ndarray) -> np.ndarray:
    """With many actions, as many quantiles of each as can be drawn; evenly, the outermost among them."""
    actions, count = quantiles.shape[1:]
    most = max(MOST_QUANTILES // actions, 8)
    if count <= most:
        return quantiles
    return quantiles[..., np.linspace(0, count - 1, most).round().astype(int)]


def _rounded(quantiles: np.ndarray) -> tuple[np.ndarray, dict[str, float]]:
    """Quantiles as whole numbers, each as its distance to the one before: small numbers, which deflate well.

    The low bytes of all come first and then the high ones, most of which are 0.
    """
    low, high = float(quantiles.min()), float(quantiles.max())
    span = (high - low) or 1.0
    whole = np.rint((np.sort(quantiles, -1).astype(np.float64) - low) / span * STEPS).astype(np.uint16)
    steps = np.diff(whole, axis=-1, prepend=np.uint16(0))
    halves = np.stack([(steps & 0xFF).astype(np.uint8), (steps >> 8).astype(np.uint8)])
    return halves, {"low": low, "span": span}


def _reach(episode: Episode) -> tuple[np.ndarray, np.ndarray]:
    """[steps]: the least and the largest return that is drawn in each frame."""
    beliefs = episode.beliefs
    low = high = beliefs.mean
    if beliefs.quantiles is not None:
        low, high = beliefs.quantiles.min(-1), beliefs.quantiles.max(-1)
    elif beliefs.epistemic is not None:
        low, high = beliefs.mean - beliefs.epistemic, beliefs.mean + beliefs.epistemic
    low, high = low.min(-1), high.max(-1)
    if beliefs.interval is not None:
        low, high = np.minimum(low, beliefs.interval.lower), np.maximum(high, beliefs.interval.upper)
    return low, high


def axis_of(pair: Sequence[Episode]) -> list[tuple[np.ndarray, float]]:
    """The axis that an episode's distributions are drawn over: its middle in each frame, and its length.

    It is as long in all frames and for all agents, so that widths can be compared: enough for most frames. It follows
    what is believed, but in strides, so that it mostly stands still.
    """
    reaches = [_reach(episode) for episode in pair]
    widths = np.concatenate([high - low for low, high in reaches])
    largest = max(float(np.abs(episode.beliefs.mean).max()) for episode in pair)
    span = AXIS * max(float(np.quantile(widths, 0.9)), 0.02 * largest, 1e-6)
    stride = span / STRIDES
    return [(np.rint((low + high) / 2 / stride) * stride, span) for low, high in reaches]


def _decimals(episodes: Sequence[Episode]) -> dict[str, int]:
    """Digits after the point, by kind: so many that the largest number has `DIGITS`, and the same in all frames."""
    kinds: dict[str, list[np.ndarray]] = {
        "mean": [e.beliefs.mean for e in episodes],
        "epistemic": [e.beliefs.epistemic for e in episodes if e.beliefs.epistemic is not None],
        "aleatoric": [e.beliefs.aleatoric for e in episodes if e.beliefs.aleatoric is not None],
        "reward": [e.reward for e in episodes],
    }
    decimals = {}
    for kind, arrays in kinds.items():
        largest = max((float(np.abs(each).max()) for each in arrays), default=0.0)
        whole = math.floor(math.log10(largest)) + 1 if largest > 0 else 1
        decimals[kind] = min(max(DIGITS - whole, 0), DIGITS + 1)
    if all(float(each).is_integer() for array in kinds["reward"] for each in np.unique(array)):
        decimals["reward"] = 0
    return decimals
