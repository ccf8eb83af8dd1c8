"""Runs the runs of a sweep on an engine until all are done, have failed too often, or somebody stops it."""

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from ceqr.experiments.directory import DONE, SweepDirectory
from ceqr.experiments.engine import Engine, task_of
from ceqr.experiments.sweep import RunSpec

WAITING, RUNNING, FAILED = "waiting", "running", "failed"
REFRESH_SECONDS = 0.5


class Work(Protocol):
    """Where runs come from: a list, or a search that makes new ones of what it learned."""

    def first(self) -> list[RunSpec]:
        """The runs to begin with, finished ones among them."""
        ...

    def more(self, settled: set[str]) -> list[RunSpec]:
        """New runs, now that those of these names are done or have failed for good."""
        ...


@dataclass(frozen=True)
class Fixed:
    """All runs are known from the start."""

    specs: list[RunSpec]

    def first(self) -> list[RunSpec]:
        return self.specs

    def more(self, settled: set[str]) -> list[RunSpec]:
        return []


class Watcher(Protocol):
    """Who shows how it goes."""

    def update(self, status: "Status") -> None: ...

    def done(self, spec: RunSpec, status: "Status") -> None: ...

    def say(self, text: str) -> None: ...


@dataclass
class Status:
    """How a sweep stands."""

    directory: SweepDirectory
    retries: int  # how often a run that failed is tried again
    specs: dict[str, RunSpec] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)  # by name: waiting, running, done or failed
    skipped: int = 0  # runs that were done before
    stopped: bool = False

    def add(self, specs: Iterable[RunSpec]) -> list[RunSpec]:
        """Takes in new runs, by what their directories say; those that are left to do."""
        left = []
        for spec in specs:
            self.specs[spec.name] = spec
            if self.directory.state(spec) == DONE:
                self.states[spec.name] = DONE
                self.skipped += 1
            elif self._may_try(spec):
                self.states[spec.name] = WAITING
                left.append(spec)
            else:
                self.states[spec.name] = FAILED
        return left

    def failed(self, spec: RunSpec, error: str) -> bool:
        """Notes a failure; whether the run is to be tried again."""
        self.directory.add_failure(spec, error)
        again = self._may_try(spec)
        self.states[spec.name] = WAITING if again else FAILED
        return again

    def _may_try(self, spec: RunSpec) -> bool:
        return len(self.directory.failures.get(spec.name, ())) <= self.retries

    def of(self, state: str) -> list[RunSpec]:
        return [self.specs[name] for name, each in self.states.items() if each == state]

    @property
    def settled(self) -> set[str]:
        return {name for name, state in self.states.items() if state in (DONE, FAILED)}


def execute(
    work: Work,
    status: Status,
    engine: Engine,
    watcher: Watcher,
    received: list[int],
    imports: tuple[str, ...] = (),
) -> None:
    """Runs everything; `received` gets a signal's number when somebody wants it stopped."""
    pending = deque(status.add(work.first()))
    running, shown = 0, 0.0
    while True:
        if not received:
            pending.extend(status.add(work.more(status.settled)))
            while pending and engine.has_room(pending[0]):
                spec = pending.popleft()
                status.states[spec.name] = RUNNING
                engine.submit(spec, task_of(spec, status.directory, imports))
                running += 1
        elif not status.stopped:
            status.stopped = True
            watcher.say("Stopping: every run under way is saved first.")
            engine.stop()
        if not running and (received or not pending):
            break
        if time.monotonic() - shown >= REFRESH_SECONDS:
            watcher.update(status)
            shown = time.monotonic()
        for spec, outcome in engine.wait(REFRESH_SECONDS):
            running -= 1
            if outcome["state"] == "done":
                status.states[spec.name] = DONE
                watcher.done(spec, status)
                continue
            if outcome["state"] == "failed":
                again = status.failed(spec, outcome["error"])
                watcher.say(f"{spec.name} failed{' and is tried again' * again}: {outcome['error']}")
            else:  # interrupted: by us, or somebody ended its process alone
                status.states[spec.name], again = WAITING, True
            if again:
                pending.append(spec)
    watcher.update(status)
