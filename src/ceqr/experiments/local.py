"""The engine of one machine: processes, each pinned to cores of its own, that take run after run.

XLA has as many threads as a process has cores (NPROC says it to both), so a run's bits follow from the cores that the
sweep gives it and not from what else the machine does.
"""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass

from ceqr.errors import UserError
from ceqr.experiments.sweep import RunSpec
from ceqr.experiments.worker import Outcome, Task
from ceqr.memory import GIB, machine_memory

SPARED = 0.85  # share of the machine's memory that runs may take
LIVING = 5.0  # seconds for idle workers to end by themselves


@dataclass(eq=False)
class _Worker:
    """A process of `ceqr.experiments.worker` and the cores it is pinned to."""

    cores: tuple[int, ...]
    process: subprocess.Popen[str]
    spec: RunSpec | None = None  # None while it is idle

    def tell(self, task: Task) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it has died, and whoever listens to it will say so
            self.process.stdin.write(json.dumps(task) + "\n")
            self.process.stdin.flush()

    def hang_up(self) -> None:
        """There is nothing more to do for it."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()


class LocalEngine:
    """As many runs at once as there are cores and memory for."""

    def __init__(self) -> None:
        pinned = hasattr(os, "sched_getaffinity")
        self._cores = sorted(os.sched_getaffinity(0)) if pinned else list(range(os.cpu_count() or 1))
        self.cores = len(self._cores)
        self._workers: list[_Worker] = []
        self._answers: queue.Queue[tuple[_Worker, Outcome | None]] = queue.Queue()
        self._stopping = False

    def check(self, spec: RunSpec) -> None:
        """Raises `UserError` if a run could never be placed."""
        there_is = machine_memory()
        if there_is is not None and spec.memory > there_is:
            raise UserError(
                f"{spec.name} would take about {spec.memory / GIB:,.1f} GiB of memory, and this machine has "
                f"{there_is / GIB:,.1f}: set --seeds-per-run, --replay-size or --hidden lower."
            )

    def _width(self, spec: RunSpec) -> int:
        return min(spec.cores, self.cores)

    def _free(self) -> list[int]:
        taken = {core for worker in self._workers if worker.spec for core in worker.cores}
        return [core for core in self._cores if core not in taken]

    def has_room(self, spec: RunSpec) -> bool:
        busy = [worker.spec for worker in self._workers if worker.spec]
        there_is = machine_memory()
        fits = not busy or there_is is None or sum(s.memory for s in (*busy, spec)) <= SPARED * there_is
        return fits and len(self._free()) >= self._width(spec)

    def submit(self, spec: RunSpec, task: Task) -> None:
        width, free = self._width(spec), self._free()
        idle = [worker for worker in self._workers if worker.spec is None]
        fitting = [worker for worker in idle if len(worker.cores) == width and set(worker.cores) <= set(free)]
        if fitting:
            worker = fitting[0]
        else:
            for other in idle:  # of another width: it would only take memory
                self._dismiss(other)
            worker = self._start(tuple(free[:width]))
        worker.spec = spec
        worker.tell(task)

    def _start(self, cores: tuple[int, ...]) -> _Worker:
        process = subprocess.Popen(
            # -P: what lies in the folder that the user is in must not stand in for modules of ours.
            [sys.executable, "-P", "-m", "ceqr.experiments.worker", *map(str, cores)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # What we can import, it can.
            env={**os.environ, "NPROC": str(len(cores)), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,  # signals to all that belongs to a terminal reach us, and we tell the workers once
        )
        worker = _Worker(cores, process)
        self._workers.append(worker)
        threading.Thread(target=self._listen, args=(worker,), daemon=True).start()
        return worker

    def _listen(self, worker: _Worker) -> None:
        assert worker.process.stdout is not None
        with worker.process.stdout as answers:
            for line in answers:
                self._answers.put((worker, json.loads(line)))
        worker.process.wait()
        self._answers.put((worker, None))

    def wait(self, seconds: float) -> list[tuple[RunSpec, Outcome]]:
        ended: list[tuple[RunSpec, Outcome]] = []
        try:
            self._take(*self._answers.get(timeout=seconds), ended)
            while True:
                self._take(*self._answers.get_nowait(), ended)
        except queue.Empty:
            return ended

    def _take(self, worker: _Worker, outcome: Outcome | None, ended: list[tuple[RunSpec, Outcome]]) -> None:
        spec, worker.spec = worker.spec, None
        if outcome is None:  # the process has died
            if worker in self._workers:
                self._dismiss(worker)
            outcome = {"state": "interrupted"} if self._stopping else _died(worker.process.returncode)
        if spec is not None:
            ended.append((spec, outcome))

    def stop(self) -> None:
        self._stopping = True
        for worker in self._workers:
            worker.process.send_signal(signal.SIGTERM)

    def _dismiss(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        worker.hang_up()

    def close(self) -> None:
        self._stopping = True
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.hang_up()
            if worker.spec is not None:
                worker.process.kill()
        for worker in workers:
            try:
                worker.process.wait(LIVING)
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()


def _died(code: int) -> Outcome:
    if code >= 0:
        return {"state": "failed", "error": f"The process that trained it ended with exit code {code}."}
    name = signal.Signals(-code).name
    hint = ", perhaps because memory was short" if name == "SIGKILL" else ""
    return {"state": "failed", "error": f"The process that trained it died of {name}{hint}."}
