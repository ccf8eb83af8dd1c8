"""Runs in environments of the host: they go on after a stop, a kill and a failure, with a new episode."""

import csv
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from ceqr.agents.base import Hyperparameters
from ceqr.cli import main
from ceqr.envs.gymnasium import from_env
from ceqr.evaluate import play_episodes
from ceqr.runs import read_config
from ceqr.training import checkpoint
from ceqr.training.train import player_of
from tests.probes import COUNTING, Counting, CountingAgent, join
from tests.sharing import shared_programs
from tests.training.conftest import SMALL, assert_equal


@pytest.fixture(autouse=True, scope="module")
def _shared_programs() -> Any:
    with shared_programs():
        yield


def _counting(out: Path, frames: int, *more: str) -> list[str]:
    run = ["train", "--env", f"gymnasium/{COUNTING}", *SMALL, "--log-every", "50", "--checkpoint-seconds", "0"]
    return [*run, "--frames", str(frames), "--out", str(out), *more]


def _resume(out: Path, *more: str) -> list[str]:
    return ["resume", str(out), "--import", "tests.probes", *more]


def _files(run: Path) -> dict[str, bytes]:
    newest = max((run / "checkpoints").glob("*.npz"))
    with np.load(newest) as file:
        arrays = {name: file[name].tobytes() for name in file.files if name != "meta"}
    return {**arrays, **{name: (run / name).read_bytes() for name in ("episodes.csv", "metrics.csv", "summary.json")}}


def _frames(run: Path) -> list[int]:
    return [seed["frames"] for seed in json.loads((run / "summary.json").read_text())["seeds"]]


SEVEN = ["--seeds", "2", "--num-envs", "3", "--env-kwargs", "length=7"]


def test_a_run_that_goes_on_is_exact_but_for_a_new_episode(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(_counting(tmp_path / "a", 150, *SEVEN)) == 0
    # What `begin` makes of the saved state: all as it was, but for episodes, memory and where replay goes on.
    config, _ = read_config(tmp_path / "a")
    player = player_of(config)
    saved = checkpoint.latest(tmp_path / "a" / "checkpoints")
    assert saved is not None
    assert saved.frame == 150
    player.load(saved)
    before = join(player.groups)
    player.run(150, 150)
    begun = join(player.groups)
    player.close()
    assert_equal(begun._replace(observation=before.observation, replay=begun.replay._replace(head=before.replay.head),
                                 episode=before.episode, memory=before.memory), before)  # fmt: skip
    np.testing.assert_array_equal(begun.observation[..., 0], 0)  # the first of an episode
    # 50 ticks into episodes of seven steps: all are under way, and are cut.
    np.testing.assert_array_equal(np.asarray(before.episode.length), 1)
    np.testing.assert_array_equal(begun.replay.head, before.replay.head + 1)
    np.testing.assert_array_equal(begun.episode.length, 0)

    assert main(_resume(tmp_path / "a", "--frames", "300")) == 0
    assert "starts a new episode at frame 150" in capsys.readouterr().err
    # And the same again gives the same bytes.
    assert main(_counting(tmp_path / "b", 150, *SEVEN)) == 0
    assert main(_resume(tmp_path / "b", "--frames", "300", "--quiet")) == 0
    assert _files(tmp_path / "a") == _files(tmp_path / "b")
    # Never interrupted, episodes of lanes go on where they were.
    assert main(_counting(tmp_path / "whole", 300, *SEVEN)) == 0
    assert _files(tmp_path / "whole")["episodes.csv"] != _files(tmp_path / "a")["episodes.csv"]
    with open(tmp_path / "a" / "episodes.csv") as file:
        rows = list(csv.DictReader(file))
    assert {row["length"] for row in rows} == {"7"}
    # 50 ticks are 7 episodes a lane, and so are 50 more from the new start on.
    assert len(rows) == 2 * 3 * (7 + 7)


@pytest.mark.slow
def test_killed_and_resumed_is_stopped_there_and_resumed(tmp_path: Path) -> None:
    """A SIGKILL leaves some checkpoint behind; a run that stopped at its frame goes on to the same bytes."""
    killed, stopped = tmp_path / "killed", tmp_path / "stopped"
    command = [sys.executable, "-m", "ceqr.cli", *_counting(killed, 50_000)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, cwd=Path(__file__).parents[2])
    checkpoints = killed / "checkpoints"

    def newest() -> int:
        return max((int(p.name.split(".")[0]) for p in checkpoints.glob("*.npz.sha256")), default=0)

    while process.poll() is None and newest() < 100:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    frame = newest()
    config = json.loads((killed / "config.json").read_text())
    config["config"]["frames"] = frame + 100
    (killed / "config.json").write_text(json.dumps(config))
    assert main(_resume(killed, "--quiet")) == 0
    # In a process of its own, too: XLA's threads change how sums are rounded.
    subprocess.run(
        [sys.executable, "-m", "ceqr.cli", *_counting(stopped, frame)], check=True, cwd=Path(__file__).parents[2]
    )
    assert main(_resume(stopped, "--frames", str(frame + 100), "--quiet")) == 0
    assert _files(killed) == _files(stopped)


def test_an_environment_that_raises(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert main(_counting(out, 300, "--seeds", "2", "--env-kwargs", "raises_at=100")) == 1
    error = capsys.readouterr().err
    assert 'raise RuntimeError("the joint is broken")' in error  # the environment's own line
    assert "RuntimeError: the joint is broken" in error
    assert error.splitlines()[-1].startswith("ceqr: The environment raised an exception (above) at frame 99")
    assert f"ceqr resume {out}" in error
    assert _frames(out) == [99, 99]
    # It goes on from there, to the next failure and to the end.
    assert main(_resume(out, "--quiet")) == 1
    assert _frames(out) == [198, 198]
    assert main(_resume(out, "--quiet")) == 1
    capsys.readouterr()
    assert main(_resume(out, "--quiet")) == 0
    assert _frames(out) == [300, 300]


def test_frames_that_do_not_divide_by_the_environments(tmp_path: Path) -> None:
    """The last step of all environments is played to its end."""
    out = tmp_path / "run"
    assert main(_counting(out, 100, "--num-envs", "7", "--learning-starts", "95", "--log-every", "33")) == 0
    assert _frames(out) == [105]
    with open(out / "metrics.csv") as file:
        assert [row["frame"] for row in csv.DictReader(file)] == ["35", "70", "105"]


def test_evaluation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    env = dataclasses.replace(from_env(Counting(6)), build=lambda: Counting(6), owned=True)
    agent = CountingAgent(Hyperparameters(hidden=(8,)), (2,), 2)
    state = jax.jit(agent.init)(jax.random.key(0))
    seen: list[int] = []
    assert play_episodes(agent, state, env, 0, 13, 100, seen.append) == ([6.0] * 13, 0)
    assert sorted(set(seen)) == [0, 10, 13]
    assert play_episodes(agent, state, env, 0, 2, 4) == ([4.0] * 2, 2)
    out = tmp_path / "run"
    options = ["--env", "gymnasium/CartPole-v1", "--frames", "100", "--seeds", "2", "--out", str(out)]
    assert main(["train", *SMALL, *options]) == 0
    assert main(["eval", str(out), "--episodes", "12", "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert main(["eval", str(out), "--episodes", "12", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == first
    assert len({tuple(s["returns"]) for s in first["seeds"]}) == 2
    assert main(["plot", str(out)]) == 0


@pytest.mark.slow
def test_atari(tmp_path: Path) -> None:
    """Pong on the screen: 84 x 84 x 4 bytes, the Nature torso, and updates that are finite."""
    pytest.importorskip("ale_py", reason="needs the extra `atari`")
    out = tmp_path / "run"
    options = [
        "--frames", "60", "--learning-starts", "30", "--replay-size", "50", "--batch-size", "4", "--hidden", "32",
        "--quantiles", "4", "--target-period", "20", "--log-every", "20", "--num-envs", "2", "--quiet",
    ]  # fmt: skip
    assert main(["train", "--env", "gymnasium/ALE/Pong-v5", *options, "--out", str(out)]) == 0
    with np.load(max((out / "checkpoints").glob("*.npz"))) as file:
        assert file["replay/observation"].shape == (1, 2, 26, 84, 84, 4)
        assert file["replay/observation"].dtype == np.uint8
        assert file["replay/observation"].max() > 100
        assert file["agent/params/torso/convolutions/0/linear/weight"].shape == (1, 8 * 8 * 4, 32)
    with open(out / "metrics.csv") as file:
        assert np.isfinite(float(list(csv.DictReader(file))[-1]["loss"]))
    assert os.path.getsize(out / "episodes.csv") > 0
