"""Weights & Biases, offline: what its own files hold, read as its own records, is what the run's tables hold."""

import csv
import json
import struct
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ceqr.cli import main
from tests.training.conftest import SMALL

BLOCK, HEADER = 32_768, 7  # of the log format that W&B took over from LevelDB


def _records(path: Path) -> Iterator[Any]:
    pb = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    data, at, parts = path.read_bytes(), HEADER, b""  # the file begins with a mark of the same length
    while at + HEADER <= len(data):
        if BLOCK - at % BLOCK < HEADER:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        if at + HEADER + length > len(data):  # not yet written to its end
            return
        parts += data[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if kind in (1, 4):  # whole, or the last part
            yield pb.Record.FromString(parts)
            parts = b""


def _whole(path: Path, seconds: float = 60) -> list[Any]:
    """All records of a sitting. W&B's service says that a run has ended before it has written the last of them."""
    until = time.monotonic() + seconds
    while True:
        records = list(_records(path))
        if any(record.WhichOneof("record_type") == "exit" for record in records) or time.monotonic() > until:
            return records
        time.sleep(0.1)


@pytest.mark.filterwarnings("default")  # W&B's own
def test_a_run_goes_on_under_one_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    run, imports = tmp_path / "run", ["--import", "tests.probe_family"]
    options = [*SMALL, "--env", "probe/noisy-chain", "--frames", "60", "--log-every", "20", "--seeds", "2", "--wandb"]
    assert main(["train", *imports, *options, "--out", str(run)]) == 0
    assert main(["resume", str(run), *imports, "--frames", "100", "--quiet"]) == 0

    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    groups = set()
    for path in sorted(run.glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.parent.name):
        for record in _whole(path):
            if record.WhichOneof("record_type") == "run":
                groups.add((record.run.project, record.run.run_group))
            elif record.WhichOneof("record_type") == "history":
                items = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
                rows[path.stem].append({key: json.loads(value) for key, value in items.items()})
    assert groups == {("ceqr", "run")}
    assert len(rows) == 2  # two seeds, each in two sittings

    with open(run / "episodes.csv") as file:
        episodes = list(csv.DictReader(file))
    for seed in ("0", "1"):
        name = f"run-{(run / 'wandb' / f'seed{seed}.id').read_text()}"
        told = [(row["frame"], row["episode/return"]) for row in rows[name] if "episode/return" in row]
        assert told == [(int(e["frame"]), pytest.approx(float(e["return"]))) for e in episodes if e["seed"] == seed]
        assert [row["frame"] for row in rows[name] if "metrics/loss" in row] == [40, 60, 80, 100]
