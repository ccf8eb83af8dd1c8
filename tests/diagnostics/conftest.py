"""Runs of seconds that all tests of `ceqr diagnose` look at, and one diagnosis of them."""

from pathlib import Path

import pytest

import tests.probe_family  # noqa: F401  makes the probes known by name
from ceqr.cli import main
from tests.sharing import shared_programs

SMALL = ["--hidden", "8", "--batch-size", "4", "--replay-size", "400", "--learning-starts", "20", "--quiet"]
RUNS = {
    "ua": ["--env", "probe/noisy-chain", "--agent", "ua-dqn", "--quantiles", "5", "--seeds", "2", "--seed-start", "3"],
    "plain": ["--env", "probe/noisy-chain", "--agent", "dqn"],
    "maze": ["--env", "maze/cliff", "--quantiles", "5", "--log-every", "50", "--discount", "0.8"],
}
FRAMES = {"ua": "60", "plain": "60", "maze": "400"}


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By name: one with both uncertainties, one with neither, and one in a maze."""
    folder = tmp_path_factory.mktemp("diagnosed")
    with shared_programs():
        for name, options in RUNS.items():
            assert main(["train", *options, *SMALL, "--frames", FRAMES[name], "--out", str(folder / name)]) == 0
    return {name: folder / name for name in RUNS}


@pytest.fixture(scope="session")
def diagnosis(runs: dict[str, Path]) -> Path:
    """The folder of a diagnosis of them all."""
    out = runs["ua"].parent / "deep" / "diagnosis"
    assert main(["diagnose", *map(str, runs.values()), "--out", str(out), "--episodes", "20"]) == 0
    return out
