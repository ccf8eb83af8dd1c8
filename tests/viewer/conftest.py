"""What the tests of the viewer look at: an agent in Breakout that is calibrated, one without doubt, and a run."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from ceqr.calibrate import calibrate
from ceqr.cli import main
from ceqr.viewer import page
from ceqr.viewer.record import Episode, Subject, play
from tests.conftest import TINY
from tests.sharing import shared_programs
from tests.viewer.subjects import subject, watched

EPISODES = 3
CHAIN = ["--import", "tests.probe_family"]


@pytest.fixture(scope="session")
def breakout() -> tuple[Subject, list[Episode]]:
    """CEQR-DQN, calibrated, and three episodes of it."""
    raw = subject("ceqr-dqn", "minatar/breakout")
    found = calibrate(raw.agent, raw.state, raw.env, 0, 20, 0.9, 200)
    ready = dataclasses.replace(raw, calibration=found)
    return ready, play(ready, 7, EPISODES, 100)


@pytest.fixture(scope="session")
def plain() -> tuple[Subject, list[Episode]]:
    """DQN, which has neither doubt nor quantiles, in the same game on the same randomness."""
    raw = subject("dqn", "minatar/breakout", seed=1)
    return raw, play(raw, 7, EPISODES, 100)


@pytest.fixture(scope="session")
def alone(breakout: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a page of one agent."""
    folder = tmp_path_factory.mktemp("alone")
    (folder / "index.html").write_bytes(page.render(watched([breakout[0]], [breakout[1]], seed=7)))
    return folder


@pytest.fixture(scope="session")
def beside(breakout: Any, plain: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a page of two."""
    folder = tmp_path_factory.mktemp("beside")
    both = watched([breakout[0], plain[0]], [breakout[1], plain[1]], seed=7)
    (folder / "index.html").write_bytes(page.render(both))
    return folder


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run of two seeds, calibrated."""
    out = tmp_path_factory.mktemp("watch") / "run"
    with shared_programs():
        seeds = ["--seeds", "2", "--seed-start", "7"]
        chain = [*CHAIN, "--env", "probe/noisy-chain"]
        assert main(["train", *chain, *TINY, *seeds, "--frames", "300", "--out", str(out)]) == 0
        assert main(["calibrate", str(out), *CHAIN, "--episodes", "20", "--json"]) == 0
    return out
