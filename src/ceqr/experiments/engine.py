"""What runs the runs of a sweep: the protocol that `local` and `ray` follow, and the tasks that they are given."""

import os
from typing import Protocol

from ceqr.experiments.directory import SweepDirectory
from ceqr.experiments.sweep import RunSpec
from ceqr.experiments.worker import Outcome, Task


class Engine(Protocol):
    """A machine, or many."""

    cores: int
    """Cores in all."""

    def check(self, spec: RunSpec) -> None:
        """Raises `UserError` if a run could never be placed."""
        ...

    def has_room(self, spec: RunSpec) -> bool:
        """Whether a run may be submitted now."""
        ...

    def submit(self, spec: RunSpec, task: Task) -> None:
        """Has a task done, with the cores of the run."""
        ...

    def wait(self, seconds: float) -> list[tuple[RunSpec, Outcome]]:
        """What has ended, after so many seconds at the most."""
        ...

    def stop(self) -> None:
        """Has all runs under way save themselves and end; `wait` tells of them."""
        ...

    def close(self) -> None:
        """Ends all processes, at once."""
        ...


def task_of(spec: RunSpec, directory: SweepDirectory, imports: tuple[str, ...]) -> Task:
    """A run, new or to go on with."""
    paths = {"path": str(directory.run(spec).absolute()), "log": str(directory.log(spec).absolute())}
    return {**paths, "config": spec.config.to_json(), "imports": list(imports)}


def measure_of(spec: RunSpec, seconds: float, imports: tuple[str, ...]) -> Task:
    """A short measurement of a run's speed."""
    return {"config": spec.config.to_json(), "log": os.devnull, "seconds": seconds, "imports": list(imports)}
