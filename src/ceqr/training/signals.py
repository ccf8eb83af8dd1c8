"""Signals that ask a run to stop: collected, so that it can save itself first."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

STOPPING = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def collected() -> Iterator[list[int]]:
    """Collects SIGINT and SIGTERM instead of dying of them; a second one kills as usual.

    A signal that the process was started to ignore stays ignored: whoever started it sees to its end. A handler that
    Python does not know of, and all signals outside the main thread, are somebody else's business.
    """
    received: list[int] = []
    before: dict[int, Any] = {}

    def note(number: int, _frame: Any) -> None:
        received.append(number)
        _restore(before)

    try:
        for number in STOPPING:
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                before[number] = signal.signal(number, note)
    except ValueError:  # not the main thread
        before = {}
    try:
        yield received
    finally:
        _restore(before)


def _restore(handlers: dict[int, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)
