"""Sweeps on a real Ray of several nodes end with the same bytes as on this machine, whatever is lost on the way."""

import signal
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from ceqr.cli import main
from tests.experiments.conftest import ROOT, TINY, assert_same_sweeps, finish, start, wait_for, wait_for_checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]  # Ray warns of many things
GOING_ON = ["--import", "tests.probe_family", "--engine", "ray"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head that runs nothing, and two nodes with a core each."""
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        made = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
        for _ in range(2):
            made.add_node(num_cpus=1)
        made.wait_for_nodes()
        yield made
        made.shutdown()


def _trainers() -> list[psutil.Process]:
    """Ray's processes that train at the moment; Ray names them after the run."""
    return [each for each in psutil.process_iter() if _line(each).startswith("ray::probe-noisy-chain")]


def _kill_one() -> bool:
    """Kills one of them, if there is one at this moment: between two runs there may be none."""
    for each in _trainers():
        with suppress(psutil.NoSuchProcess):
            each.kill()
            return True
    return False


def _line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def test_interrupted_every_run_saves_itself(cluster: Any, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    process = start(*TINY, "--engine", "ray", "--address", cluster.address, "--out", str(out))
    wait_for_checkpoint(out)
    process.send_signal(signal.SIGINT)
    assert (
        f"go on with 'ceqr sweep {out} --import tests.probe_family --engine ray --address {cluster.address}"
        in finish(process, 130)
    )
    assert any("Stopped by SIGINT" in log.read_text() for log in (out / "logs").iterdir())
    finish(start(str(out), *GOING_ON, "--address", cluster.address))
    assert_same_sweeps(whole, out)


def test_what_no_node_has_is_said_before_anything_starts(cluster: Any, tmp_path: Path) -> None:
    for options, asked in ((["--cores", "64"], "64 core(s)"), (["--gpus", "1"], "1 core(s) and 1 accelerator(s)")):
        out = tmp_path / "sweep"
        process = start(*TINY, *options, "--engine", "ray", "--address", cluster.address, "--out", str(out))
        assert f"No node of this Ray has {asked}" in finish(process, 2)
        assert not out.exists()


def test_storage_that_is_not_shared_is_refused(cluster: Any, tmp_path: Path) -> None:
    """The driver sees another folder under the same name than the nodes do."""
    import ray

    from ceqr.errors import UserError
    from ceqr.experiments import ray as engine

    class Elsewhere(type(tmp_path)):  # the nodes get this name, and the driver looks somewhere else
        def absolute(self) -> Path:
            return tmp_path / "not-mounted-there"

    made = engine.RayEngine(cluster.address)
    try:
        with pytest.raises(UserError, match="storage that all nodes share"):
            made.check_storage(Elsewhere(tmp_path))
    finally:
        made.close()
    assert not ray.is_initialized()


def test_no_ray_at_an_address(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    out = tmp_path / "sweep"
    assert (
        main(["sweep", "--agents", "dqn", "--hidden", "8", "--engine", "ray", "--address", address, "--out", str(out)])
        == 2
    )
    assert f"There is no Ray at {address}" in capsys.readouterr().err
    assert not out.exists()


def test_a_process_a_node_and_the_driver_are_lost(cluster: Any, whole: Path, tmp_path: Path) -> None:
    """The last test: Ray takes a minute to see that the node is gone, and whoever starts meanwhile waits for it."""
    out = tmp_path / "sweep"
    process = start(*TINY, "--engine", "ray", "--address", cluster.address, "--out", str(out))
    # A process is killed in the middle of a run.
    wait_for_checkpoint(out)
    wait_for(_kill_one)
    # The driver is killed, and started again at once.
    before = _newest(out)
    wait_for(lambda: _newest(out) > before)
    process.kill()
    process.communicate()
    process = start(str(out), *GOING_ON, "--address", cluster.address)
    # A whole node goes, with the run on it; unless all were done before the new driver came, as on a busy machine.
    before = _newest(out)
    wait_for(lambda: _newest(out) > before or process.poll() is not None)
    cluster.remove_node(cluster.list_all_nodes()[-1], allow_graceful=False)
    assert "3 of 3 runs are done" in finish(process)
    assert_same_sweeps(whole, out)


def _newest(sweep: Path) -> int:
    return max((p.stat().st_mtime_ns for p in sweep.glob("runs/*/summary.json")), default=0)
