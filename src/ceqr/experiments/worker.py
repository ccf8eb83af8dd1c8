"""A process that takes run after run, with what it imported and compiled still there for the next.

`python -m ceqr.experiments.worker CORE...` pins itself to these cores, where the system can. It reads tasks from its
standard input, a line of JSON each, and answers each with a line. A run that crashes takes this process with it and
nobody else. SIGTERM, or the end of the input because whoever started it is gone, lets the run under way save itself
first. Ray's workers call `execute` as well, so that a run is the same whoever starts it.
"""

import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

Task = dict[str, Any]  # plain values: what `task_of` and `measure_of` make
Outcome = dict[str, Any]  # "state" is done, interrupted, failed (with "error") or measured (with what was)
PATIENCE = 60.0  # seconds to wait for a process that still holds a run: a driver that was killed leaves such
MEASURED_FRAMES = 200  # before a measurement: what is first is not what is usual


def execute(task: Task) -> Outcome:
    """Does what a task asks for, and says in all cases how it went."""
    try:
        Path(task["log"]).parent.mkdir(parents=True, exist_ok=True)
        with _output_to(Path(task["log"])):
            return _execute(task)
    except OSError as error:
        return {"state": "failed", "error": str(error)}


def _execute(task: Task) -> Outcome:
    from ceqr.errors import UserError
    from ceqr.training.train import Diverged, EnvironmentStopped, Interrupted

    try:
        _prepare(task["imports"])
        return _measure(task) if "seconds" in task else _train(task)
    except (Interrupted, KeyboardInterrupt) as stop:
        print(stop, file=sys.stderr)
        return {"state": "interrupted"}
    except (UserError, Diverged, OSError) as error:
        print(f"ceqr: {error}", file=sys.stderr)
        return {"state": "failed", "error": str(error)}
    except EnvironmentStopped as error:
        traceback.print_exception(error.__cause__)
        cause = error.__cause__
        return {"state": "failed", "error": f"The environment raised {type(cause).__name__}: {cause}"}
    except Exception as error:
        traceback.print_exc()
        return {"state": "failed", "error": f"{type(error).__name__}: {error}"}


def _prepare(imports: list[str]) -> None:
    from ceqr.compilation import use_compilation_cache
    from ceqr.envs import import_module

    use_compilation_cache()
    for module in imports:
        import_module(module)


def _train(task: Task) -> Outcome:
    from ceqr import envs
    from ceqr.config import from_json
    from ceqr.training.run import InUse
    from ceqr.training.train import resume, start

    config, path = from_json(task["config"]), Path(task["path"])
    until = time.monotonic() + PATIENCE
    while True:
        try:
            if (path / "config.json").exists():
                resume(path, imports=envs.modules(config.env))  # who declared the sweep has answered for them
            else:
                start(config, path)
            return {"state": "done"}
        except InUse:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def _measure(task: Task) -> Outcome:
    """Plays and learns for some seconds, without a run directory."""
    import jax

    from ceqr.config import from_json
    from ceqr.training import signals
    from ceqr.training.train import player_of

    config = from_json(task["config"])
    starts = max(config.hyper.batch_size, 1)
    player = player_of(config, learning_starts=starts)
    with signals.collected() as received:
        player.start()
        frame = episodes = 0
        until = starts + MEASURED_FRAMES
        while frame < until and not received:
            frame, _ = player.run(frame, until)
        began, first = time.monotonic(), frame
        while time.monotonic() - began < task["seconds"] and not received:
            frame, rows = player.run(frame, frame + MEASURED_FRAMES)
            episodes += len(rows)
        seconds = time.monotonic() - began
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(player.groups))
    player.close()
    if received:
        return {"state": "interrupted"}
    played = frame - first
    return {"state": "measured", "rate": played / seconds, "episodes": episodes / played, "bytes": size}


@contextmanager
def _output_to(log: Path) -> Iterator[None]:
    """Appends what this process prints to a file, and what libraries print past Python's streams."""
    with open(log, "a", encoding="utf-8", errors="replace") as file:
        before = [os.dup(number) for number in (1, 2)]
        try:
            for number in (1, 2):
                os.dup2(file.fileno(), number)
            with redirect_stdout(file), redirect_stderr(file):
                yield
        finally:
            file.flush()
            for number, kept in zip((1, 2), before, strict=True):
                os.dup2(kept, number)
                os.close(kept)


def main() -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, map(int, sys.argv[1:]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started us says when to stop, by SIGTERM
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    tasks: queue.Queue[Task | None] = queue.Queue()
    busy = threading.Event()

    def listen() -> None:
        for line in sys.stdin:
            tasks.put(json.loads(line))
        tasks.put(None)
        if busy.is_set():
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=listen, daemon=True).start()
    while (task := tasks.get()) is not None:
        busy.set()
        outcome = execute(task)
        busy.clear()
        try:
            answers.write(json.dumps(outcome) + "\n")
            answers.flush()
        except BrokenPipeError:  # nobody is there any more
            break
    os._exit(0)  # threads of libraries are not waited for


if __name__ == "__main__":
    main()
