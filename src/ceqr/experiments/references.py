"""What runs are set beside: random play, the paper's scores, and the curves that UA-DQN's authors published.

The numbers lie in data/, each file with its source in data/README.md. Scores are normalised so that random play
(measured under the run's own protocol) is 0 and UA-DQN, as its authors published it at 2.5 million frames, is 1. The
paper's own scores would make no such scale: they are the best single episodes of 25 seeds, and no mean comes near
them.
"""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from ceqr.errors import UserError

REFERENCE_FRAMES = 2_500_000
REFERENCE = "UA-DQN at 2,500,000 frames as published by its authors (one seed)"
PUBLISHED_BY = "Clements et al. (2020)"
PUBLISHED_PROTOCOL = "sticky actions 0.1, six actions"
PUBLISHED_HIDDEN = "128 hidden units"
PUBLISHED_NAMES = {"UADQN": "UA-DQN", "QRDQN": "QR-DQN", "Bootstrapped": "Bootstrapped DQN", "DQN": "DQN"}
PAPER = "Stutts et al. (2024)"
PAPER_SEEDS, PAPER_FRAMES = 25, 2_500_000
PAPER_HIDDEN = {"CEQR-DQN": "1,600 hidden units", "UA-DQN": "128 hidden units"}


@dataclass(frozen=True)
class Scale:
    """What is 0 and what is 1 in normalised scores of one environment."""

    random: float
    reference: float


@dataclass(frozen=True)
class Published:
    """A learning curve of UA-DQN's authors: the mean of the last 100 episodes at each frame, one seed."""

    game: str
    agent: str
    frames: tuple[int, ...]
    scores: tuple[float, ...]

    def at(self, frames: int) -> tuple[int, float] | None:
        """The last published point that is not past so many frames."""
        points = [(f, s) for f, s in zip(self.frames, self.scores, strict=True) if f <= frames]
        return points[-1] if points else None


@dataclass(frozen=True)
class PaperScore:
    """The best episode of 25 seeds, from the caption of the paper's Figure 3."""

    game: str
    agent: str
    best: float


def scale(env: str, protocol: str) -> Scale | None:
    """The scale of an environment of the shipped tables; None for all others."""
    random = _random_play().get((env, protocol))
    reference = next((p for p in published() if f"minatar/{p.game}" == env and p.agent == "UA-DQN"), None)
    if random is None or reference is None:
        return None
    return Scale(random, dict(zip(reference.frames, reference.scores, strict=True))[REFERENCE_FRAMES])


def read_scales(path: Path) -> dict[str, Scale]:
    """Scales of a user's own: a CSV file with the columns env, random and reference."""
    try:
        with open(path, newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"--scales {path} cannot be read: {getattr(error, 'strerror', None) or error}.") from error
    scales = {}
    for number, row in enumerate(rows, 2):
        try:
            made = Scale(float(row["random"]), float(row["reference"]))
            if not abs(made.reference - made.random) > 0 or abs(made.reference - made.random) == float("inf"):
                raise ValueError
            scales[row["env"]] = made
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"--scales {path} must have the columns env, random and reference with two different numbers in each "
                f"row; line {number} has not."
            ) from error
    if not scales:
        raise UserError(f"--scales {path} has no rows; it needs the columns env, random and reference.")
    return scales


def _rows(name: str) -> Iterator[dict[str, str]]:
    text = resources.files("ceqr.experiments").joinpath("data", name).read_text(encoding="utf-8")
    return csv.DictReader(text.splitlines())


@cache
def _random_play() -> dict[tuple[str, str], float]:
    return {(row["env"], row["protocol"]): float(row["mean"]) for row in _rows("random-play-minatar.csv")}


@cache
def published() -> tuple[Published, ...]:
    """The curves of UA-DQN's authors."""
    curves = []
    for row in _rows("ua-dqn-authors-minatar.csv"):
        game, agent = row.pop("game"), row.pop("agent")
        frames, scores = tuple(map(int, row)), tuple(map(float, row.values()))
        curves.append(Published(game, PUBLISHED_NAMES[agent], frames, scores))
    return tuple(curves)


@cache
def paper_scores() -> tuple[PaperScore, ...]:
    return tuple(
        PaperScore(row["game"], row["agent"], float(row["max_episode_score"])) for row in _rows("paper-minatar.csv")
    )
