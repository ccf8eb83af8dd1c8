"""The host loop: the compiled loop frame by frame, whole transitions from every lane, and runs that can go on."""

import csv
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ceqr.agents.ceqr_dqn import CEQRDQN, CEQRDQNHyperparameters
from ceqr.agents.dqn import DQN, DQNHyperparameters
from ceqr.cli import main
from ceqr.envs.gymnasium import HostEnvironment, from_env
from ceqr.evaluate import play_on_host
from ceqr.training.host import EnvironmentFailed, HostChunks, HostLoop
from ceqr.training.loop import Loop, LoopState
from ceqr.training.trainer import build_loop, load_state
from tests.probes import COUNTING, Counting, HostChain, HostTreadmill, NoisyChain

TINY = {"hidden": (16,), "quantiles": 4, "batch_size": 4, "replay_size": 100}
COUNTING_RUN = ["train", "--env", f"gymnasium/{COUNTING}", "--learning-rate", "1e-4"]


def _host(env: Any) -> HostEnvironment:
    return dataclasses.replace(from_env(env()), build=env, owned=True)


def _loop(env: Any, num_envs: int = 1, **options: Any) -> HostLoop:
    made = _host(env)
    hyper = CEQRDQNHyperparameters(**{**TINY, **options})
    return HostLoop(made, CEQRDQN(hyper, made.observation_shape, made.num_actions), num_envs)


def _play(loop: HostLoop, frames: int, seeds: list[int] | None = None) -> tuple[LoopState, list[Any]]:
    seeds = seeds or [0]
    states = jax.jit(loop.init_seeds)(jnp.array(seeds))
    chunks, frame, rows = HostChunks(loop, seeds), 0, []
    while frame < frames:
        (states,), frame, ended = chunks.run((states,), frame, frames)
        rows += ended
    return states, rows


def test_it_is_the_compiled_loop_frame_by_frame() -> None:
    """The same chain compiled and on the host: equal to the bit before learning, and but for rounding after."""
    options: Any = {
        **TINY, "learning_starts": 40, "target_period": 25, "update_every": 2, "lambda_ep": 1.0,
    }  # fmt: skip
    agent = CEQRDQN(CEQRDQNHyperparameters(**options), (4,), 2)
    compiled = Loop(NoisyChain(noise=0.0, limit=2), agent)
    host = HostLoop(_host(HostChain), agent)
    seeds = [3, 4]
    programs = {k: jax.jit(partial(compiled.chunk, learning=k)) for k in (False, True)}
    theirs, log = programs[False](jax.jit(compiled.init_seeds)(jnp.array(seeds)), jnp.int32(0), jnp.int32(40))
    ours, _ = _play(host, 40, seeds)
    for name in ("action", "reward", "terminated", "observation"):
        # A lane more; and the compiled one has written the slot after the last transition, as has ours.
        np.testing.assert_array_equal(getattr(ours.replay, name)[:, 0], getattr(theirs.replay, name), err_msg=name)
    assert len(np.unique(theirs.replay.action)) == 2
    theirs, log = programs[True](theirs, jnp.int32(40), jnp.int32(100))
    ours, rows = _play(host, 100, seeds)
    assert int(ours.tally.updates[0]) == int(theirs.tally.updates[0]) > 15
    jax.tree.map(partial(np.testing.assert_allclose, rtol=2e-3, atol=2e-4), ours.agent.params, theirs.agent.params)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=2e-3, atol=2e-4), ours.agent.target, theirs.agent.target)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=2e-3), ours.tally.acting, theirs.tally.acting)
    np.testing.assert_array_equal(ours.replay.action[:, 0], theirs.replay.action)
    late = [(row.seed, row.frame, row.total, row.length) for row in rows if row.frame > 40]
    f, s = np.nonzero(np.asarray(log.ended)[:60])
    expected = zip(np.array(seeds)[s], 41 + f, log.total[f, s], log.length[f, s], strict=True)
    assert late == [(int(a), int(b), float(c), int(d)) for a, b, c, d in expected]


def test_lanes_store_what_was_played_and_never_a_reset() -> None:
    """In `Counting`, a transition leads from (n, e) to (n + 1, e): a reset stored as a step would not."""
    loop = _loop(lambda: Counting(4), num_envs=3, learning_starts=1_000, batch_size=500)
    states, rows = _play(loop, 60)
    one = jax.tree.map(lambda x: x[0], states.replay)
    batch = loop.replay.sample(one, jax.random.key(0))
    np.testing.assert_array_equal(batch.successor, batch.observation + np.array([1, 0]))
    assert set(np.asarray(batch.observation[:, 0])) == {0, 1, 2, 3}
    assert not batch.terminated.any()
    # Every lane's fourth tick ends its episode, in the frames 10, 11 and 12 of each twelve.
    assert [(r.frame, r.total, r.length) for r in rows] == [(12 * k + f, 4, 4) for k in range(5) for f in (10, 11, 12)]


@pytest.mark.parametrize(
    ("num_envs", "update_every", "updates"),
    # Frames 30 to 59 learn. One environment: each third of them. Four: ticks start at 32, so 32 to 59 and each third
    # of those (33, ..., 57); and with an update a frame, 28.
    [(1, 3, 10), (4, 3, 9), (4, 1, 28)],
)
def test_one_update_for_every_so_many_frames(num_envs: int, update_every: int, updates: int) -> None:
    loop = _loop(HostTreadmill, num_envs, learning_starts=30, update_every=update_every)
    states, _ = _play(loop, 60)
    assert int(states.tally.updates[0]) == updates
    assert int(states.tally.frames[0]) == 60


def test_the_target_network_is_copied_in_the_tick_that_reaches_its_frame() -> None:
    loop = _loop(HostTreadmill, 4, learning_starts=8, target_period=30)
    early, _ = _play(loop, 28)  # copied at frame 0 alone
    late, _ = _play(loop, 32)  # the tick from 28 on plays frame 30
    start = jax.jit(loop.init_seeds)(jnp.array([0]))
    jax.tree.map(np.testing.assert_array_equal, early.agent.target, start.agent.params)
    jax.tree.map(np.testing.assert_array_equal, late.agent.target, early.agent.params)
    changed = jax.tree.map(lambda a, b: bool((a != b).any()), late.agent.target, early.agent.target)
    assert any(jax.tree.leaves(changed))


@pytest.mark.parametrize(("terminates", "value"), [(False, 2.0), (True, 4 / 3)])
def test_truncation_bootstraps_and_termination_does_not(terminates: bool, value: float) -> None:
    """Discount 1/2, one state. Truncated: V = 1 + V/2 = 2. Terminated: the mean of 1 and 1 + V/2, so V = 4/3."""
    env = partial(HostTreadmill, terminates)
    made = _host(env)
    hyper = DQNHyperparameters(
        hidden=(16,), batch_size=32, replay_size=200, learning_starts=50, target_period=20, discount=0.5,
        learning_rate=3e-3, epsilon_frames=1,
    )  # fmt: skip
    loop = HostLoop(made, DQN(hyper, (1,), 2), num_envs=2)
    states, _ = _play(loop, 1_000)
    network = jax.tree.map(lambda x: x[0], states.agent.params)
    found = float(loop.agent.forward(network, jnp.ones((1, 1)), None).max())
    assert found == pytest.approx(value, abs=0.15)


def test_a_seed_has_the_same_games_alone_and_among_others() -> None:
    loop = _loop(partial(gymnasium.make, "CartPole-v1"), 2, learning_starts=1_000)
    alone, among = _play(loop, 100, [5])[0], _play(loop, 100, [4, 5])[0]
    np.testing.assert_array_equal(alone.replay.observation[0], among.replay.observation[1])
    assert not np.array_equal(among.replay.observation[0], among.replay.observation[1])
    lanes = np.asarray(alone.replay.observation[0])
    assert not np.array_equal(lanes[0], lanes[1])


def test_what_a_failing_environment_leaves_is_the_state_before_its_step() -> None:
    whole, rows = _play(_loop(lambda: Counting(4), learning_starts=10), 33)
    broken = _loop(lambda: Counting(4, raises_at=34), learning_starts=10)
    states, chunks, frame, ended = jax.jit(broken.init_seeds)(jnp.array([0])), HostChunks(broken, [0]), 0, []
    with pytest.raises(EnvironmentFailed) as failure:  # noqa: PT012
        while frame < 60:
            (states,), frame, more = chunks.run((states,), frame, 60)
            ended += more
    assert failure.value.frame == 33
    assert str(failure.value.__cause__) == "the joint is broken"
    assert ended + failure.value.episodes == rows
    _assert_equal(failure.value.groups[0], whole)


def _assert_equal(a: LoopState, b: LoopState) -> None:
    plain = lambda state: state._replace(key=jax.random.key_data(state.key))  # noqa: E731
    jax.tree.map(np.testing.assert_array_equal, plain(a), plain(b))


# Runs.


def _counting(tiny: list[str], out: Path, frames: int, *more: str) -> list[str]:
    return [*COUNTING_RUN, *tiny, "--frames", str(frames), "--checkpoint-seconds", "0", "--out", str(out), *more]


def _files(run: Path) -> dict[str, bytes]:
    newest = max((run / "checkpoints").glob("*.npz"))
    with np.load(newest) as file:
        arrays = {name: file[name].tobytes() for name in file.files if name != "meta"}
    return {**arrays, **{name: (run / name).read_bytes() for name in ("episodes.csv", "metrics.csv", "summary.json")}}


LANES = ["--seeds", "2", "--num-envs", "3", "--env-kwargs", "length=7"]


def test_a_run_that_goes_on_is_exact_but_for_a_new_episode(
    tiny: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loud = [option for option in tiny if option != "--quiet"]
    assert main(_counting(tiny, tmp_path / "a", 150, *LANES)) == 0
    # What `begin` makes of the saved state: all as it was, but for episodes, memory and where replay goes on.
    from ceqr.runs import read_config

    config, _ = read_config(tmp_path / "a")
    loop: Any = build_loop(config)
    saved = load_state(tmp_path / "a", loop, config)
    assert saved is not None
    states, meta = saved
    assert meta["frame"] == 150
    before = jax.tree.map(lambda x: x.copy(), states)
    chunks = HostChunks(loop, config.seed_numbers)
    (begun,), _, _ = chunks.run((states,), 150, 150)
    _assert_equal(begun._replace(observation=before.observation, replay=begun.replay._replace(head=before.replay.head),
                                 episode=before.episode), before)  # fmt: skip
    np.testing.assert_array_equal(begun.observation[..., 0], 0)  # the first of an episode
    # 50 ticks into episodes of seven steps: all are under way, and are cut.
    np.testing.assert_array_equal(np.asarray(before.episode.length), 1)
    np.testing.assert_array_equal(begun.replay.head, before.replay.head + 1)
    np.testing.assert_array_equal(begun.episode.length, 0)

    assert main(["resume", str(tmp_path / "a"), "--frames", "300"]) == 0
    assert "starts a new episode at frame 150" in capsys.readouterr().err
    # And the same again gives the same bytes.
    assert main(_counting(loud, tmp_path / "b", 150, *LANES)) == 0
    assert main(["resume", str(tmp_path / "b"), "--frames", "300", "--quiet"]) == 0
    assert _files(tmp_path / "a") == _files(tmp_path / "b")
    # Never interrupted, episodes of lanes go on where they were.
    assert main(_counting(tiny, tmp_path / "whole", 300, *LANES)) == 0
    assert _files(tmp_path / "whole")["episodes.csv"] != _files(tmp_path / "a")["episodes.csv"]
    with open(tmp_path / "a" / "episodes.csv") as file:
        rows = list(csv.DictReader(file))
    assert {row["length"] for row in rows} == {"7"}
    # 50 ticks are 7 episodes a lane, and so are 50 more from the new start on.
    assert len(rows) == 2 * 3 * (7 + 7)


def test_killed_and_resumed_is_stopped_there_and_resumed(tiny: list[str], tmp_path: Path) -> None:
    """A SIGKILL leaves some checkpoint behind; a run that stopped at its frame goes on to the same bytes."""
    killed, stopped = tmp_path / "killed", tmp_path / "stopped"
    command = [sys.executable, "-m", "ceqr.cli", *_counting(tiny, killed, 50_000)]
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
    assert main(["resume", str(killed), "--quiet"]) == 0
    assert main(_counting(tiny, stopped, frame)) == 0
    assert main(["resume", str(stopped), "--frames", str(frame + 100), "--quiet"]) == 0
    assert _files(killed) == _files(stopped)


def test_an_environment_that_raises(tiny: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert main(_counting(tiny, out, 300, "--env-kwargs", "raises_at=100")) == 1
    error = capsys.readouterr().err
    assert 'raise RuntimeError("the joint is broken")' in error  # the environment's own line
    assert "RuntimeError: the joint is broken" in error
    assert error.splitlines()[-1].startswith("ceqr: The environment raised an exception (above) at frame 99")
    assert f"ceqr resume {out}" in error
    assert json.loads((out / "summary.json").read_text())["seeds"][0]["frames"] == 99
    # It goes on from there, to the next failure and to the end.
    assert main(["resume", str(out), "--quiet"]) == 1
    assert json.loads((out / "summary.json").read_text())["seeds"][0]["frames"] == 198
    assert main(["resume", str(out), "--quiet"]) == 1
    capsys.readouterr()
    assert main(["resume", str(out), "--quiet"]) == 0
    assert json.loads((out / "summary.json").read_text())["seeds"][0]["frames"] == 300


def test_frames_that_do_not_divide_by_the_environments(tiny: list[str], tmp_path: Path) -> None:
    """The last step of all environments is played to its end."""
    out = tmp_path / "run"
    assert main(_counting(tiny, out, 100, "--num-envs", "7", "--learning-starts", "95", "--log-every", "33")) == 0
    assert json.loads((out / "summary.json").read_text())["seeds"][0]["frames"] == 105
    with open(out / "metrics.csv") as file:
        assert [row["frame"] for row in csv.DictReader(file)] == ["35", "70", "105"]


def test_evaluation(tiny: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loop = _loop(lambda: Counting(6))
    network = loop.agent.network(jax.random.key(0))
    seen: list[int] = []
    assert play_on_host(loop, network, 0, 13, 100, seen.append) == ([6.0] * 13, 0)
    assert seen == [10, 13]
    assert play_on_host(loop, network, 0, 2, 4) == ([4.0] * 2, 2)
    out = tmp_path / "run"
    options = ["--env", "gymnasium/CartPole-v1", "--frames", "100", "--seeds", "2", "--out", str(out)]
    assert main(["train", *tiny, *options]) == 0
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
