"""Reading a run directory; `ceqr.training.run` writes it, and says what is in it."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ceqr.config import RunConfig, from_json
from ceqr.errors import UserError

FORMAT = 2  # of the run directory; raised when an older one can no longer be resumed
EPISODE_COLUMNS = ("seed", "frame", "return", "length", "nongreedy", "least_uncertain")
RECENT_EPISODES = 100


class EpisodeRow(NamedTuple):
    """One row of episodes.csv."""

    seed: int
    frame: int  # frames the seed had played when the episode ended
    total: float
    length: int
    nongreedy: float  # share of actions that were not the greedy one
    least_uncertain: float  # share of actions that were the least uncertain one; NaN if the agent knows none


def read_config(path: Path) -> tuple[RunConfig[Any], dict[str, Any]]:
    """The configuration of a run and the versions it was begun with."""
    return read_config_file(path / "config.json", f"{path} is not a run")


def read_config_file(path: Path, complaint: str) -> tuple[RunConfig[Any], dict[str, Any]]:
    """The same from a run's config.json itself."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UserError(f"{complaint}: there is no {path}.") from error
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}.") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise UserError(f"{path} was made by an incompatible version of ceqr (this one reads format {FORMAT}).")
    try:
        config = from_json(content.pop("config"))
    except (UserError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} was made by an incompatible version of ceqr.") from error
    del content["format"]
    return config, content


def read_table(path: Path) -> Iterator[dict[str, str]]:
    """The rows of a CSV file; a last line that is still being written is left out."""
    with open(path, newline="", encoding="utf-8") as file:
        yield from csv.DictReader(line for line in file if line.endswith("\n"))


def read_episodes(path: Path) -> Iterator[EpisodeRow]:
    for row in read_table(path / "episodes.csv"):
        seed, frame, total, length, nongreedy, least_uncertain = (row[name] for name in EPISODE_COLUMNS)
        shares = float(nongreedy), float(least_uncertain or "nan")
        yield EpisodeRow(int(seed), int(frame), float(total), int(length), *shares)
