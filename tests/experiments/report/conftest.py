"""One report that all tests of reports look at: two agents in two games, and runs that must not meet them."""

from pathlib import Path

import pytest

from ceqr.cli import main
from tests.experiments.generated import config_of, write


@pytest.fixture(scope="session")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run directories: eight of a kind, and five of other kinds."""
    folder = tmp_path_factory.mktemp("sweep")
    runs = folder / "runs"
    for game in ("breakout", "asterix"):
        for agent, gift in (("ceqr-dqn", 1.0), ("ua-dqn", 0.0)):
            for start in (0, 2):
                config = config_of(agent, f"minatar/{game}", seeds=2, seed_start=start)
                name = f"{game}-{agent}-{start}"
                write(runs / name, config, lambda seed, frame, gift=gift: gift + seed / 4 + frame / 1_000)
    write(runs / "sticky", config_of(protocol="standard", seeds=1))
    write(runs / "cartpole", config_of("dqn", "gymnasium/CartPole-v1", seeds=2))
    write(runs / "half", config_of(seeds=1, seed_start=9), until=2_000)
    write(runs / "torn", config_of(seeds=1, seed_start=8))
    (runs / "torn" / "episodes.csv").write_text("seed,frame\n0,1\n")
    write(runs / "<script>alert(1)", config_of("dqn", "gymnasium/<b>Bold</b>-v0", seeds=1))
    return folder


@pytest.fixture(scope="session")
def report(sweep: Path) -> Path:
    """The report of them."""
    out = sweep / "report"
    assert main(["report", str(sweep / "runs"), "--out", str(out), "--resamples", "500", "--quiet"]) == 0
    return out
