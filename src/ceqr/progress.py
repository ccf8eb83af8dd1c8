"""What a person sees while something runs: a bar on a terminal, a plain line now and then elsewhere."""

import sys
import time
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.console import RenderableType

PLAIN_SECONDS = 10.0  # between two plain lines


class Progress:
    """Progress through a known number of frames, from one that may be past the start."""

    def __init__(self, title: str, total: int, start: int = 0, unit: str = "frames", quiet: bool = False):
        self._title, self._total, self._start, self._unit = title, total, start, unit
        self._quiet = quiet
        self._began = self._spoke = time.monotonic()
        self._status = ""
        self._bar = None
        if sys.stderr.isatty() and not quiet:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            progress = self

            class TwoLines(Bar):
                """The bar, and below it how it goes: one line would not fit a terminal of 80 columns."""

                def get_renderables(self) -> "Iterator[RenderableType]":
                    yield self.make_tasks_table(self.tasks)
                    yield progress._status

            self._bar = TwoLines(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]}"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
            )
            self._task = self._bar.add_task(title, total=total, completed=start, rate="")

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()

    def update(self, done: int, status: str, rate: float | None = None) -> None:
        """Shows how far it got; `rate` is in units a second."""
        speed = f"{rate:,.0f} {self._unit}/s" if rate else ""
        if self._bar:
            self._status = status
            self._bar.update(self._task, completed=done, rate=speed, refresh=True)
            return
        now = time.monotonic()
        if self._quiet or (now - self._spoke < PLAIN_SECONDS and done < self._total):
            return
        self._spoke = now
        parts = [f"{self._title}: {done:,} of {self._total:,} {self._unit}"]
        if rate:
            parts += [speed, f"{duration((self._total - done) / rate)} left"]
        print(", ".join([*parts, status] if status else parts), file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """Seconds as m:ss or h:mm:ss."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
