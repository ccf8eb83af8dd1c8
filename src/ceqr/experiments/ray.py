"""The engine of a cluster: one Ray task for each run, with the cores or accelerators it asks for.

Ray places the tasks, and starts one again elsewhere when its process or its node is lost; the run goes on from its
newest checkpoint, because all nodes share the sweep's directory. That they do is tried before anything starts.
"""

import logging
import os
import secrets
import socket
import time
from pathlib import Path
from typing import Any

from ceqr.errors import UserError
from ceqr.experiments.sweep import RunSpec
from ceqr.experiments.worker import Outcome, Task, execute

QUEUED = 2  # tasks that wait at Ray for each that runs: enough to keep it busy, few enough to take back
LOST = 10  # times that Ray starts a run again whose process or node was lost
SEEN_SECONDS = 30.0  # for what a node wrote to be seen here: network file systems keep folders in caches
FORWARDED = ("CEQR_CACHE_DIR", "XDG_CACHE_HOME", "WANDB_MODE", "WANDB_PROJECT", "PYTHONPATH")


class RayEngine:
    """Ray's nodes."""

    def __init__(self, address: str | None, gpus: float = 0.0):
        try:
            import ray
        except ImportError as error:
            raise UserError("--engine ray needs an extra; install it with: pip install 'ceqr[ray]'") from error
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # tasks without accelerators see them as ever
        _knock(address)
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise UserError(f"There is no Ray at {address or 'this machine'}: {error}") from error
        self._ray, self._gpus = ray, gpus
        self._execute = ray.remote(execute)
        self._tasks: dict[Any, RunSpec] = {}
        self.cores = int(ray.cluster_resources().get("CPU", 0))

    def check_storage(self, directory: Path) -> None:
        """Raises `UserError` unless what each node writes to the sweep's directory is seen here."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        ray, token = self._ray, secrets.token_hex(8)
        nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) > 0]
        written = {}
        for node in nodes:
            here = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            mark = directory.absolute() / f".seen-{node['NodeID'][:12]}-{token}"
            written[mark] = ray.remote(_mark).options(num_cpus=0, scheduling_strategy=here).remote(str(mark), token)
        for node, (mark, reference) in zip(nodes, written.items(), strict=True):
            name = node["NodeManagerHostname"]
            try:
                ray.get(reference, timeout=120)
            except Exception as error:
                raise UserError(
                    f"The node {name} cannot write to {directory}, which must be on storage that all nodes share, "
                    f"with ceqr installed on each: {_first_line(error)}"
                ) from error
            until = time.monotonic() + SEEN_SECONDS
            while not mark.is_file() or mark.read_text() != token:
                if time.monotonic() > until:
                    raise UserError(
                        f"What the node {name} writes to {directory} is not seen here: the sweep's directory must be "
                        "on storage that all nodes share; choose another --out."
                    )
                time.sleep(0.1)
            mark.unlink()

    def check(self, spec: RunSpec) -> None:
        """Raises `UserError` if no node has what a run asks for."""
        wanted = {"CPU": spec.cores, "GPU": self._gpus}
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        if not any(all(node.get(kind, 0) >= count for kind, count in wanted.items()) for node in nodes):
            asked = f"{spec.cores} core(s)" + f" and {self._gpus:g} accelerator(s)" * bool(self._gpus)
            raise UserError(f"No node of this Ray has {asked}, which {spec.name} asks for; see --cores and --gpus.")

    def has_room(self, spec: RunSpec) -> bool:
        return len(self._tasks) < QUEUED * max(1, self.cores // spec.cores)

    def submit(self, spec: RunSpec, task: Task) -> None:
        # XLA has as many threads as NPROC says, so a process serves runs of one width; Ray keeps them apart by this.
        variables = {name: os.environ[name] for name in FORWARDED if name in os.environ}
        options: dict[str, Any] = {
            "num_cpus": spec.cores,
            "num_gpus": self._gpus,
            "max_retries": LOST,
            "name": spec.name,
            "runtime_env": {"env_vars": {**variables, "NPROC": str(spec.cores)}},
        }
        reference = self._execute.options(**options).remote(task)
        self._tasks[reference] = spec

    def wait(self, seconds: float) -> list[tuple[RunSpec, Outcome]]:
        if not self._tasks:
            time.sleep(seconds)
            return []
        ended, _ = self._ray.wait(list(self._tasks), timeout=seconds, num_returns=1)
        return [(self._tasks.pop(reference), self._outcome(reference)) for reference in ended]

    def _outcome(self, reference: Any) -> Outcome:
        from ray.exceptions import RayError, TaskCancelledError

        try:
            return self._ray.get(reference)
        except TaskCancelledError:
            return {"state": "interrupted"}
        except RayError as error:
            return {"state": "failed", "error": _first_line(error)}

    def stop(self) -> None:
        for reference in self._tasks:  # as SIGINT in its process: a run saves itself
            self._ray.cancel(reference, force=False)

    def close(self) -> None:
        self._ray.shutdown()


def _knock(address: str | None) -> None:
    """Raises `UserError` if nobody listens at an address of the form host:port: Ray itself would wait for minutes."""
    host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
    if not colon or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise UserError(f"There is no Ray at {address}: {error}.") from error


def _mark(path: str, token: str) -> None:
    import ceqr.experiments.worker  # noqa: F401  # a node without ceqr should say so now

    Path(path).write_text(token)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
