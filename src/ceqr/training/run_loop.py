"""The one run loop, behind `ceqr train` and `agent.learn`: plays to the last frame or a signal, and tells a listener.

It knows no file and no environment. What is done with episodes, metrics and states is the listener's business.
"""

from typing import Protocol

from ceqr.progress import Progress
from ceqr.runs import EpisodeRow
from ceqr.training.players import EnvironmentFailed, Player


class Diverged(Exception):
    """Something was not finite; the states are not to be used any more."""


class Listener(Protocol):
    """What a run loop tells of itself."""

    @property
    def log_every(self) -> int | None:
        """Frames between two calls of `metrics`; None for never."""
        ...

    def episodes(self, rows: list[EpisodeRow]) -> None:
        """Episodes ended."""
        ...

    def metrics(self, frame: int) -> None:
        """It is time to take the player's metrics."""
        ...

    def looked_up(self, frame: int, last: bool) -> None:
        """The player's states are whole at that frame; the last such call comes before training ends or fails."""
        ...

    def status(self) -> str:
        """How it goes, in a line."""
        ...


def run_loop(player: Player, frame: int, last: int, listener: Listener, received: list[int], progress: Progress) -> int:
    """Plays from `frame` to `last`, or until a signal was received, and returns the frame reached.

    Raises `Diverged`, and `EnvironmentFailed` after the listener has seen the state of the tick before.
    """
    row_due, failed = None, None
    while frame < last and not received and failed is None:
        if listener.log_every is not None:
            row_due = (frame // listener.log_every + 1) * listener.log_every
        try:
            frame, rows = player.run(frame, last if row_due is None else min(row_due, last))
        except EnvironmentFailed as error:
            frame, rows, failed = error.frame, error.episodes, error
        check_finite(player)
        listener.episodes(rows)
        if row_due is not None and frame >= row_due:
            listener.metrics(frame)
        if frame < last:
            listener.looked_up(frame, last=False)
        progress.update(min(frame, last), listener.status(), player.frames_per_second)
    check_parameters(player, frame)
    listener.looked_up(frame, last=True)
    if failed is not None:
        raise failed
    return frame


def check_finite(player: Player) -> None:
    """Raises `Diverged` if a loss was not finite, or what an environment gave."""
    found = player.find_trouble()
    if found is None:
        return
    frame, seed, kind = found
    if kind == "loss":
        raise Diverged(f"The loss of seed {seed} was not finite in frame {frame:,}")
    raise Diverged(
        f"The environment of seed {seed} gave {'an observation' if kind == 'observation' else 'a reward'} that is not "
        f"finite (NaN or infinite) in frame {frame:,}"
    )


def check_parameters(player: Player, frame: int) -> None:
    """Raises `Diverged` if counts are broken, or a network, which its loss would tell only in the next frame."""
    for seed in player.broken_seeds():
        raise Diverged(f"Parameters or counts of seed {seed} were not finite after frame {frame - 1:,}")
