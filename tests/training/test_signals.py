"""Signals that ask a run to stop are collected; what is not ours to collect is left alone."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest

from ceqr.training import signals
from tests.conftest import TINY

DEADLINE = 120  # seconds for what takes one


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    """Whatever a test does to the handlers is undone."""
    before = {number: signal.getsignal(number) for number in signals.STOPPING}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", signals.STOPPING)
def test_a_signal_is_collected_and_handlers_come_back(number: signal.Signals) -> None:
    heard: list[int] = []

    def mine(got: int, _: FrameType | None) -> None:
        heard.append(got)

    for each in signals.STOPPING:
        signal.signal(each, mine)
    with signals.collected() as received:
        assert received == []
        signal.raise_signal(number)
        assert received == [number]
        # The second one, of whichever kind, is not ours any more.
        for each in signals.STOPPING:
            signal.raise_signal(each)
        assert received == [number]
        assert heard == list(signals.STOPPING)
    assert all(signal.getsignal(each) is mine for each in signals.STOPPING)


def test_handlers_come_back_when_nothing_was_received_and_when_something_was_raised() -> None:
    before = [signal.getsignal(number) for number in signals.STOPPING]
    with signals.collected():
        assert [signal.getsignal(number) for number in signals.STOPPING] != before
    with pytest.raises(RuntimeError), signals.collected():
        raise RuntimeError
    assert [signal.getsignal(number) for number in signals.STOPPING] == before


@pytest.mark.parametrize("ignored", signals.STOPPING)
def test_a_signal_that_is_ignored_stays_ignored(ignored: signal.Signals) -> None:
    signal.signal(ignored, signal.SIG_IGN)
    (other,) = set(signals.STOPPING) - {ignored}
    with signals.collected() as received:
        signal.raise_signal(ignored)
        assert received == []
        signal.raise_signal(other)
        assert received == [other]
        signal.raise_signal(ignored)
    assert signal.getsignal(ignored) is signal.SIG_IGN


def test_a_handler_that_python_does_not_know_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Python is embedded, `getsignal` says None, and None cannot be set again."""
    changed: list[int] = []
    monkeypatch.setattr(signal, "getsignal", lambda number: None if number == signal.SIGINT else signal.SIG_DFL)
    monkeypatch.setattr(signal, "signal", lambda number, handler: changed.append(number) or signal.SIG_DFL)
    with signals.collected():
        pass
    assert signal.SIGINT not in changed
    assert signal.SIGTERM in changed


def test_outside_the_main_thread_nothing_is_touched() -> None:
    before = [signal.getsignal(number) for number in signals.STOPPING]
    seen: list[object] = []

    def work() -> None:
        with signals.collected() as received:
            seen.extend([received, [signal.getsignal(number) for number in signals.STOPPING]])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [[], before]


# In processes of their own.

WAITING = """
import sys, time
from ceqr.training import signals
with signals.collected() as received:
    print("ready", flush=True)
    while True:
        time.sleep(0.01)
        if received:
            print("received", *received, flush=True)
            received.clear()
"""


def _start(command: list[str], ignored: signal.Signals | None = None) -> "subprocess.Popen[str]":
    """A process, started with a signal ignored if so asked."""

    # By ignoring it here for a moment: a function to run in the child would need a fork, which JAX's threads forbid.
    before = signal.signal(ignored, signal.SIG_IGN) if ignored is not None else None
    try:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    finally:
        if ignored is not None:
            signal.signal(ignored, before)


@pytest.mark.parametrize("first", signals.STOPPING)
@pytest.mark.parametrize("second", signals.STOPPING)
def test_a_second_signal_kills_as_usual(first: signal.Signals, second: signal.Signals) -> None:
    with _start([sys.executable, "-c", WAITING]) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(first)
        assert process.stdout.readline() == f"received {int(first)}\n"
        process.send_signal(second)
        _, error = process.communicate(timeout=DEADLINE)
        assert process.returncode == -second  # Python itself dies of the signal after a KeyboardInterrupt
        assert ("KeyboardInterrupt" in error) == (second == signal.SIGINT)


@pytest.mark.slow
def test_a_run_that_was_started_to_ignore_interrupts(tmp_path: Path) -> None:
    """As `nohup` and shells do for what runs in the background: SIGINT goes past it, SIGTERM stops it and it saves."""
    out = tmp_path / "run"
    options = ["--import", "tests.probe_family", "--env", "probe/noisy-chain", "--frames", "10000000"]
    command = ["train", *TINY, *options, "--checkpoint-seconds", "0", "--out", str(out)]
    with _start([sys.executable, "-m", "ceqr.cli", *command], ignored=signal.SIGINT) as process:
        try:
            _wait(lambda: _newest(out) > 0, process)
            process.send_signal(signal.SIGINT)
            reached = _newest(out)
            _wait(lambda: _newest(out) > reached + 200, process)
            assert process.poll() is None
            process.send_signal(signal.SIGTERM)
            _, error = process.communicate(timeout=DEADLINE)
        finally:
            process.kill()
    assert process.returncode == 143, error
    assert "Stopped by SIGTERM" in error
    assert f"at frame {_newest(out):,} and saved" in error


def _newest(run: Path) -> int:
    return max((int(path.name.split(".")[0]) for path in run.glob("checkpoints/*.npz.sha256")), default=0)


def _wait(until: Callable[[], bool], process: "subprocess.Popen[str]") -> None:
    began = time.monotonic()
    while not until():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() - began < DEADLINE
        time.sleep(0.01)
