"""What a person sees of a sweep: a table of its runs on a terminal, plain lines elsewhere."""

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ceqr.experiments.execute import DONE, FAILED, RUNNING, WAITING, Status
from ceqr.experiments.sweep import RunSpec
from ceqr.progress import PLAIN_SECONDS, duration

if TYPE_CHECKING:
    from rich.table import Table

ORDER = (RUNNING, FAILED, WAITING, DONE)  # what is most worth a line of a terminal that has too few
STYLES = {RUNNING: "bold", FAILED: "red", WAITING: "dim", DONE: "green"}


class Live:
    """Shows a sweep's `Status`."""

    def __init__(self, quiet: bool = False):
        self._quiet, self._live, self._spoke = quiet, None, time.monotonic()
        if sys.stderr.isatty() and not quiet:
            from rich.console import Console
            from rich.live import Live as RichLive

            self._console = Console(stderr=True)
            self._live = RichLive(console=self._console, auto_refresh=False)

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def say(self, text: str) -> None:
        if self._live:
            self._console.print(text, highlight=False, markup=False)
        elif not self._quiet:
            print(text, file=sys.stderr, flush=True)

    def done(self, spec: RunSpec, status: Status) -> None:
        """A line for a run that is done, where no table says so."""
        if self._live or self._quiet:
            return
        score = status.directory.progress(spec).score
        result = "" if score is None else f", return {score:,.2f}"
        count = len(status.of(DONE))
        print(f"{spec.name} done ({count:,} of {len(status.specs):,}){result}", file=sys.stderr, flush=True)

    def update(self, status: Status) -> None:
        if self._live:
            self._live.update(table_of(status, self._console.height - 6), refresh=True)
        elif not self._quiet and time.monotonic() - self._spoke >= PLAIN_SECONDS:
            self._spoke = time.monotonic()
            print(f"sweep: {summary_of(status)}", file=sys.stderr, flush=True)


def summary_of(status: Status) -> str:
    """A line: runs by state, frames a second and the time left."""
    counts = {state: len(status.of(state)) for state in (DONE, RUNNING, WAITING, FAILED)}
    parts = [f"{counts[DONE]:,} of {len(status.specs):,} runs done"]
    parts += [f"{counts[state]:,} {state}" for state in (RUNNING, WAITING, FAILED) if counts[state]]
    rate = left = 0.0
    for spec in status.of(RUNNING):
        progress = status.directory.progress(spec)
        rate += (progress.rate or 0.0) * spec.config.seeds
        left += (spec.config.frames - progress.frame) * spec.config.seeds
    left += sum(spec.frames for spec in status.of(WAITING))
    if rate:
        parts += [f"{rate:,.0f} frames/s", f"about {duration(left / rate)} left"]
    return ", ".join(parts)


def table_of(status: Status, height: int) -> "Table":
    """The runs, those under way first; what does not fit into the height is counted."""
    from rich.table import Table

    table = Table(caption=summary_of(status), caption_justify="left", box=None, pad_edge=False)
    table.add_column("run", overflow="ellipsis", no_wrap=True, ratio=1)
    for title in ("state", "frames", "frames/s", "left", "return"):
        table.add_column(title, justify="right", no_wrap=True)
    specs = [spec for state in ORDER for spec in status.of(state)]
    shown = specs if len(specs) <= height else specs[: max(1, height - 1)]
    for spec in shown:
        state, progress = status.states[spec.name], status.directory.progress(spec)
        frames, rate, left, score = "", "", "", ""
        if progress.frame:
            frames = f"{progress.frame:,} of {spec.config.frames:,}"
        if state == RUNNING and progress.rate:
            rate = f"{progress.rate * spec.config.seeds:,.0f}"
            left = duration((spec.config.frames - progress.frame) / progress.rate)
        if progress.score is not None:
            score = f"{progress.score:,.2f}"
        table.add_row(spec.name, state, frames, rate, left, score, style=STYLES[state])
    if len(shown) < len(specs):
        table.add_row(f"... and {len(specs) - len(shown):,} more", style="dim")
    return table
