"""Reading a run directory; `ceqr.training.run` writes it, and says what is in it."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, NoReturn, TypeVar

from ceqr.agents import UnknownAgent
from ceqr.config import RunConfig, from_json
from ceqr.errors import UserError

if TYPE_CHECKING:
    from ceqr.agents.base import Agent, AgentState
    from ceqr.replay import ReplayState
    from ceqr.training.checkpoint import Saved
    from ceqr.training.loop import Loop

FORMAT = 2  # of the run directory; raised when an older one can no longer be resumed
EPISODE_COLUMNS = ("seed", "frame", "return", "length", "nongreedy", "least_uncertain")
METRIC_COLUMNS = ("seed", "frame")  # and those that the agent logs
RECENT_EPISODES = 100
LARGEST = 2**31  # no whole number of ours is as large

Cells = dict[str, str]  # of one row, by column
Row = TypeVar("Row")


class EpisodeRow(NamedTuple):
    """One row of episodes.csv."""

    seed: int
    frame: int  # frames the seed had played when the episode ended
    total: float
    length: int
    nongreedy: float  # share of actions that were not the greedy one
    least_uncertain: float  # share of actions that were the least uncertain one; NaN if the agent knows none


class MetricsRow(NamedTuple):
    """One row of metrics.csv."""

    seed: int
    frame: int
    values: dict[str, float]  # by column; NaN where there was nothing to log


def read_config(path: Path) -> tuple[RunConfig[Any], dict[str, Any]]:
    """The configuration of a run and the versions it was begun with."""
    return read_config_file(path / "config.json", f"{path} is not a run")


def read_config_file(path: Path, complaint: str) -> tuple[RunConfig[Any], dict[str, Any]]:
    """The same from a run's config.json itself."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UserError(f"{complaint}: there is no {path}.") from error
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {error}.") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise UserError(f"{path} was made by an incompatible version of ceqr (this one reads format {FORMAT}).")
    values = content.pop("config", None)
    try:
        config = from_json(values)
        for name, version in content.setdefault("packages", {}).items():
            if not isinstance(version, str):
                raise TypeError(f"{name} has no version.")
    except UnknownAgent as error:
        raise UserError(
            f"{path} names the agent {values['agent']!r}, which is unknown here; if it is your own, name its module by "
            "--import."
        ) from error
    except (UserError, TypeError, AttributeError) as error:
        raise UserError(f"{path} was made by an incompatible version of ceqr.") from error
    try:
        config.check_values()
    except UserError as error:
        raise UserError(f"{path} cannot be right: {error}") from error
    del content["format"]
    return config, content


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def read_episodes(path: Path, config: RunConfig[Any], length: int | None = None) -> Iterator[EpisodeRow]:
    """The rows of a run's episodes.csv, in its first `length` bytes if so asked."""

    def convert(cells: Cells) -> EpisodeRow:
        return EpisodeRow(
            seed=_seed(cells, config),
            frame=_whole(cells, "frame"),
            total=_number(cells, "return"),
            length=_whole(cells, "length"),
            nongreedy=_number(cells, "nongreedy"),
            least_uncertain=_number(cells, "least_uncertain"),
        )

    return _read_table(path / "episodes.csv", EPISODE_COLUMNS, convert, length)


def read_metrics(path: Path, config: RunConfig[Any]) -> Iterator[MetricsRow]:
    """The rows of a run's metrics.csv."""

    def convert(cells: Cells) -> MetricsRow:
        values = {name: _number(cells, name) for name in cells if name not in METRIC_COLUMNS}
        return MetricsRow(_seed(cells, config), _whole(cells, "frame"), values)

    return _read_table(path / "metrics.csv", METRIC_COLUMNS, convert)


def latest_checkpoint(path: Path) -> "Saved":
    """A run's newest checkpoint, opened."""
    from ceqr.training import checkpoint  # imports JAX, which a picture or a report can do without

    saved = checkpoint.latest(path / "checkpoints")
    if saved is None:
        raise UserError(f"{path} has no checkpoint yet; train it for longer.")
    return saved


def read_agent(path: Path, agent: "Agent", row: int, whole: bool = False) -> "tuple[AgentState, int]":
    """What the row-th seed of a run has learned, and at which frame, from its newest checkpoint.

    Unless the `whole` is asked for, to go on learning, only what acting needs is read (`Agent.at_play`).
    """
    import jax

    with latest_checkpoint(path) as saved:
        like = jax.eval_shape(agent.init, jax.random.key(0))
        if whole:
            return saved.read(like, rows=row, prefix="agent"), saved.frame
        averaged = agent.hyper.target_rate > 0  # then the target network plays, and the learning one is not read
        like = like._replace(optimiser=(), **{"params" if averaged else "target": ()})
        state = saved.read(like, rows=row, prefix="agent")
        return (state._replace(params=state.target, target=()) if averaged else state), saved.frame


def read_replay(path: Path, loop: "Loop", row: int) -> "ReplayState":
    """What replay holds of the row-th seed of a run, from its newest checkpoint: rings with a leading axis of lanes."""
    import jax

    with latest_checkpoint(path) as saved:
        return saved.read(jax.eval_shape(loop.replay.init), rows=row, prefix="replay")


def _read_table(
    path: Path, columns: Sequence[str], convert: Callable[[Cells], Row], length: int | None = None
) -> Iterator[Row]:
    """The rows of a CSV file of numbers; a last line that is still being written is left out."""
    try:
        file = open(path, "rb")  # noqa: SIM115
    except FileNotFoundError as error:
        raise UserError(f"{path.parent} has no results yet: there is no {path}; train it for longer.") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error
    with file:
        header: list[str] = []
        for number, line in enumerate(_whole_lines(file, length), 1):
            try:
                cells = line.decode("ascii").rstrip("\r\n").split(",")
                if not header:
                    header = _check_header(cells, columns)
                    continue
                if len(cells) != len(header):
                    raise ValueError(f"it has {len(cells)} cells, not {len(header)}")
                row = convert(dict(zip(header, cells, strict=True)))
            except UnicodeDecodeError as error:
                raise UserError(f"{path} is damaged in line {number}: it is no text.") from error
            except ValueError as error:
                raise UserError(f"{path} is damaged in line {number}: {error}.") from error
            yield row


def _whole_lines(file: BinaryIO, length: int | None) -> Iterator[bytes]:
    read = 0
    for line in file:
        read += len(line)
        if not line.endswith(b"\n") or (length is not None and read > length):
            return
        yield line


def _check_header(cells: list[str], columns: Sequence[str]) -> list[str]:
    missing = [name for name in columns if name not in cells]
    if missing:
        raise ValueError(f"there is no column {missing[0]!r}")
    if len(set(cells)) != len(cells):
        raise ValueError("a column is there twice")
    return cells


def _seed(cells: Cells, config: RunConfig[Any]) -> int:
    seed = _whole(cells, "seed")
    if seed not in config.seed_numbers:
        raise ValueError(f"the run has no seed {seed}")
    return seed


def _whole(cells: Cells, name: str) -> int:
    cell = cells[name]
    if not cell.isdecimal() or len(cell) > len(str(LARGEST)) or int(cell) >= LARGEST:
        raise ValueError(f"{name} must be a whole number, not {cell[:20]!r}")
    return int(cell)


def _number(cells: Cells, name: str) -> float:
    """The number in a cell; NaN if it is empty."""
    cell = cells[name]
    try:
        return float(cell) if cell else float("nan")
    except ValueError as error:
        raise ValueError(f"{name} must be a number, not {cell[:20]!r}") from error
