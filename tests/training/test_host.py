"""The host player: the compiled one frame by frame, whole transitions from every lane, and runs that can go on."""

import csv
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from functools import cache, partial
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ceqr.agents.base import Hyperparameters
from ceqr.agents.ceqr_dqn import CEQRDQN, CEQRDQNHyperparameters
from ceqr.agents.dqn import DQN, DQNHyperparameters
from ceqr.cli import main
from ceqr.envs.gymnasium import HostEnvironment, from_env
from ceqr.evaluate import play_episodes
from ceqr.runs import EpisodeRow, read_config
from ceqr.training import checkpoint
from ceqr.training import host as host_module
from ceqr.training.compiled import CompiledPlayer
from ceqr.training.host import HostPlayer
from ceqr.training.loop import Loop, LoopState
from ceqr.training.players import EnvironmentFailed, Player
from ceqr.training.train import player_of
from tests.probes import (
    COUNTING,
    Counting,
    CountingAgent,
    HostChain,
    HostTreadmill,
    NoisyChain,
    go_on,
    join,
    play,
)

TINY = {"hidden": (8,), "quantiles": 4, "batch_size": 4, "replay_size": 100}
COUNTING_RUN = ["train", "--env", f"gymnasium/{COUNTING}", "--learning-rate", "1e-4"]


def _host(env: Any) -> HostEnvironment:
    return dataclasses.replace(from_env(env()), build=env, owned=True)


def _player(env: Any, seeds: tuple[int, ...] = (0,), lanes: int = 1, **options: Any) -> HostPlayer:
    made = _host(env)
    agent = CEQRDQN(CEQRDQNHyperparameters(**{**TINY, **options}), made.observation_shape, made.num_actions)
    return HostPlayer(Loop(agent, made.observation_dtype, lanes), made, seeds)


def _played(player: Player, *cuts: int) -> tuple[LoopState, list[EpisodeRow]]:
    rows = play(player, *cuts)
    player.close()
    return join(player.groups), rows


def _assert_equal(a: LoopState, b: LoopState) -> None:
    plain = lambda state: state._replace(key=jax.random.key_data(state.key))  # noqa: E731
    jax.tree.map(np.testing.assert_array_equal, plain(a), plain(b))


# The compiled player, frame by frame.

SEEDS = (3, 4)


def _both(agent: Any, lanes: int) -> tuple[CompiledPlayer, HostPlayer]:
    loop = Loop(agent, np.float32, lanes)
    return CompiledPlayer(loop, NoisyChain(noise=0.0, limit=2), SEEDS), HostPlayer(loop, _host(HostChain), SEEDS)


@pytest.mark.parametrize(("lanes", "every"), [(1, 1), (1, 2), (3, 1), (3, 2), (3, 4)])
def test_it_is_the_compiled_player_frame_by_frame(lanes: int, every: int) -> None:
    """The same chain compiled and on the host: equal to the bit before learning, and but for rounding after."""
    options: Any = {**TINY, "learning_starts": 30, "target_period": 25, "update_every": every, "lambda_ep": 1.0}
    agent = CEQRDQN(CEQRDQNHyperparameters(**options), (4,), 2)
    compiled, host = _both(agent, lanes)
    assert play(host, 30) == play(compiled, 30)
    a, b = join(host.groups), join(compiled.groups)
    for name in ("agent", "memory", "observation", "replay", "batch"):
        jax.tree.map(partial(np.testing.assert_array_equal, err_msg=name), getattr(a, name), getattr(b, name))
    assert len(np.unique(b.replay.action)) == 2

    our_rows, their_rows = go_on(host, 30, 61, 80), go_on(compiled, 30, 61, 80)
    host.close()
    a, b = join(host.groups), join(compiled.groups)
    reached = -(-61 // lanes) * lanes
    reached += -(-(80 - reached) // lanes) * lanes
    updates = sum(frame % every == 0 for frame in range(30, reached))
    assert np.asarray(a.tally.updates).tolist() == np.asarray(b.tally.updates).tolist() == [updates] * 2
    assert np.asarray(a.tally.frames).tolist() == np.asarray(b.tally.frames).tolist() == [reached] * 2
    np.testing.assert_array_equal(a.replay.action, b.replay.action)
    np.testing.assert_array_equal(a.replay.observation, b.replay.observation)
    np.testing.assert_array_equal(a.batch.number, b.batch.number)
    close = partial(np.testing.assert_allclose, rtol=2e-3, atol=2e-4)
    jax.tree.map(close, a.agent, b.agent)
    jax.tree.map(close, a.episode, b.episode)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=2e-3, atol=1e-3), a.tally.learning, b.tally.learning)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=2e-3, atol=1e-3), a.tally.acting, b.tally.acting)
    assert [row[:4] for row in our_rows] == [row[:4] for row in their_rows]
    np.testing.assert_allclose([row[4:] for row in our_rows], [row[4:] for row in their_rows])
    assert len(our_rows) > 20


def test_it_is_the_compiled_player_for_an_agent_that_counts() -> None:
    """What an agent counts is refreshed with each copy of the target network, and acting looks at it."""
    hyper = Hyperparameters(hidden=(8,), batch_size=4, replay_size=100, learning_starts=10, target_period=4)
    compiled, host = _both(CountingAgent(hyper, (4,), 2), lanes=3)
    our_rows, their_rows = play(host, 61), play(compiled, 61)  # to frame 63, before whose tick nothing is copied
    host.close()
    assert [row[:4] for row in our_rows] == [row[:4] for row in their_rows]
    ours, theirs = join(host.groups), join(compiled.groups)
    np.testing.assert_array_equal(ours.replay.action, theirs.replay.action)
    assert np.asarray(ours.agent.statistics.updates).tolist() == [63 - 12] * 2
    jax.tree.map(partial(np.testing.assert_allclose, rtol=2e-3, atol=2e-4), ours.agent, theirs.agent)


# Lanes.


def test_lanes_store_what_was_played_and_never_a_reset() -> None:
    """In `Counting`, a transition leads from (n, e) to (n + 1, e): a reset stored as a step would not."""
    player = _player(lambda: Counting(4), lanes=3, learning_starts=1_000)
    states, rows = _played(player, 60)
    one = jax.tree.map(lambda x: x[0], states.replay)
    held = int((one.newest - one.oldest).sum())
    batch = player.loop.replay.sample(one, jnp.arange(held, dtype=jnp.uint32))
    assert held == 60
    np.testing.assert_array_equal(batch.successor, batch.observation + np.array([1, 0]))
    assert set(np.asarray(batch.observation[:, 0])) == {0, 1, 2, 3}
    assert not batch.terminated.any()
    # Every lane's fourth tick ends its episode, in the frames 10, 11 and 12 of each twelve.
    assert [(r.frame, r.total, r.length) for r in rows] == [(12 * k + f, 4, 4) for k in range(5) for f in (10, 11, 12)]


def test_learning_and_copies_come_with_the_tick_that_reaches_their_frame() -> None:
    """Four lanes. Frame 30 is played in the tick from 28 on, which copies the target network and does not yet learn."""
    player = _player(HostTreadmill, lanes=4, learning_starts=29, target_period=10, update_every=3)
    play(player, 32)
    start = join(player.groups)
    assert int(start.tally.updates[0]) == 0
    go_on(player, 32, 36)
    assert int(join(player.groups).tally.updates[0]) == 1  # frame 33
    at_36 = join(player.groups)
    jax.tree.map(np.testing.assert_array_equal, at_36.agent.target, start.agent.target)
    go_on(player, 36, 40)  # frames 36 and 39 learn; the copy before frame 40 is made at once
    at_40 = join(player.groups)
    player.close()
    assert int(at_40.tally.updates[0]) == 3
    assert int(at_40.tally.frames[0]) == 40
    jax.tree.map(np.testing.assert_array_equal, at_40.agent.target, at_40.agent.params)
    assert not np.array_equal(at_40.agent.target.quantile_head.weight, start.agent.target.quantile_head.weight)


@pytest.mark.parametrize(("terminates", "value"), [(False, 2.0), (True, 4 / 3)])
def test_truncation_bootstraps_and_termination_does_not(terminates: bool, value: float) -> None:
    """Discount 1/2, one state. Truncated: V = 1 + V/2 = 2. Terminated: the mean of 1 and 1 + V/2, so V = 4/3."""
    made = _host(partial(HostTreadmill, terminates))
    hyper = DQNHyperparameters(
        hidden=(16,), batch_size=32, replay_size=200, learning_starts=50, target_period=20, discount=0.5,
        learning_rate=3e-3, epsilon_frames=1,
    )  # fmt: skip
    player = HostPlayer(Loop(DQN(hyper, (1,), 2), np.float32, lanes=2), made, [0])
    states, _ = _played(player, 1_000)
    network = jax.tree.map(lambda x: x[0], states.agent.params)
    found = float(player.loop.agent.forward(network, jnp.ones((1, 1)), None).max())
    assert found == pytest.approx(value, abs=0.15)


def test_a_seed_has_the_same_games_alone_and_among_others() -> None:
    cartpole = partial(gymnasium.make, "CartPole-v1")
    alone, _ = _played(_player(cartpole, (5,), 2, learning_starts=1_000), 100)
    among, _ = _played(_player(cartpole, (4, 5), 2, learning_starts=1_000), 100)
    np.testing.assert_array_equal(alone.replay.observation[0], among.replay.observation[1])
    assert not np.array_equal(among.replay.observation[0], among.replay.observation[1])
    lanes = np.asarray(alone.replay.observation[0])
    assert not np.array_equal(lanes[0], lanes[1])


def test_random_numbers_drawn_ahead_are_those_of_their_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many are drawn at once, and wherever a player is asked to go on."""
    whole, rows = _played(_player(HostChain, SEEDS, 3, learning_starts=30, target_period=25), 100)
    monkeypatch.setattr(host_module, "DRAWN_AHEAD", 4)
    parts, parts_rows = _played(_player(HostChain, SEEDS, 3, learning_starts=30, target_period=25), 7, 30, 31, 60, 100)
    assert rows == parts_rows
    _assert_equal(whole, parts)


# Environments that fail.


class Fragile(Counting):
    """`Counting` that raises in a chosen call, and may not even close."""

    opened = 0  # of all that were made, those that are not closed

    def __init__(self, call: str = "", at: int = 0, stuck: bool = False):
        super().__init__(4)
        self._call, self._at, self._stuck, self._calls = call, at, stuck, {"reset": 0, "step": 0}
        Fragile.opened += 1

    def _count(self, call: str) -> None:
        self._calls[call] += 1
        if call == self._call and self._calls[call] == self._at:
            raise RuntimeError("the joint is broken")

    def reset(self, **options: Any) -> Any:
        self._count("reset")
        return super().reset(**options)

    def step(self, action: Any) -> Any:
        self._count("step")
        return super().step(action)

    def close(self) -> None:
        Fragile.opened -= 1
        if self._stuck:
            raise RuntimeError("the lid is stuck")


def _fragile(*environments: Any, seeds: tuple[int, ...] = (0, 1), **options: Any) -> HostPlayer:
    """A player of these environments, in the order in which they are made; after them come healthy ones."""
    Fragile.opened = 0
    made = _host(Counting)
    following = iter(environments)
    made = dataclasses.replace(made, build=lambda: next(following, Fragile)())
    agent = CEQRDQN(CEQRDQNHyperparameters(**{**TINY, "learning_starts": 10, **options}), (2,), 2)
    return HostPlayer(Loop(agent, made.observation_dtype), made, seeds)


@cache
def _healthy() -> tuple[LoopState, list[EpisodeRow]]:
    """At frame 33."""
    return _played(_fragile(), 33)


def _fail(player: Player, last: int = 60) -> tuple[int, list[EpisodeRow], BaseException | None]:
    player.start()
    return _go_on_to_failure(player, 0, last)


def _go_on_to_failure(player: Player, frame: int, last: int) -> tuple[int, list[EpisodeRow], BaseException | None]:
    rows: list[EpisodeRow] = []
    with pytest.raises(EnvironmentFailed) as failure:  # noqa: PT012
        while frame < last:
            frame, more = player.run(frame, last)
            rows += more
    return failure.value.frame, rows + failure.value.episodes, failure.value.__cause__


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("stuck", [False, True])
def test_what_a_failing_step_leaves_is_the_state_before_it(seed: int, stuck: bool) -> None:
    """Of all seeds, whichever of them failed; it may raise once more when it is closed."""
    broken = partial(Fragile, "step", 34, stuck)
    player = _fragile(*([Fragile] * seed), broken)
    frame, rows, cause = _fail(player)
    whole, expected = _healthy()
    assert frame == 33
    assert str(cause) == "the joint is broken"
    assert rows == expected
    assert len(rows) == 2 * 8
    _assert_equal(join(player.groups), whole)
    assert Fragile.opened == 0
    # It goes on from there, with new environments and new episodes.
    more = go_on(player, 33, 60)
    assert [(row.frame, row.length) for row in more if row.seed == 0] == [(33 + 4 * k, 4) for k in range(1, 7)]
    assert int(join(player.groups).tally.updates[0]) == 50
    player.close()
    assert Fragile.opened == 0


@pytest.mark.parametrize(("call", "frame"), [(1, 0), (2, 3)])
def test_an_environment_that_raises_in_reset(call: int, frame: int) -> None:
    """In the very first one, or in the one that follows an episode's end, which is part of the fourth step."""
    player = _fragile(Fragile, partial(Fragile, "reset", call))
    player.start()
    before = join(player.groups)
    reached, rows, cause = _go_on_to_failure(player, 0, 60)
    assert (reached, rows) == (frame, [])
    assert str(cause) == "the joint is broken"
    assert Fragile.opened == 0
    after = join(player.groups)
    assert int(after.tally.frames[0]) == frame
    if frame == 0:
        _assert_equal(after, before)
    more = go_on(player, frame, frame + 8)
    assert [(row.seed, row.frame) for row in more] == [(s, frame + f) for f in (4, 8) for s in (0, 1)]
    player.close()


def test_an_environment_that_cannot_be_made() -> None:
    """Those that were made before it are closed."""

    def unmade() -> Any:
        raise RuntimeError("out of joints")

    player = _fragile(Fragile, unmade)
    frame, _, cause = _fail(player)
    assert (frame, str(cause)) == (0, "out of joints")
    assert Fragile.opened == 0
    assert len(go_on(player, 0, 8)) == 4
    player.close()


def test_closing_twice_and_going_on_after_it() -> None:
    player = _fragile(seeds=(0,))
    player.close()  # before anything was opened
    play(player, 6)
    assert Fragile.opened == 1
    player.close()
    player.close()
    assert Fragile.opened == 0
    before = join(player.groups)
    assert int(before.episode.length[0, 0]) == 2
    assert player.run(6, 6) == (6, [])  # begins episodes and plays nothing
    begun = join(player.groups)
    assert int(begun.episode.length[0, 0]) == 0
    np.testing.assert_array_equal(begun.observation[0, 0], [0, 0])
    np.testing.assert_array_equal(begun.replay.head, before.replay.head + 1)  # the episode under way was cut
    assert [(row.frame, row.length) for row in go_on(player, 6, 10)] == [(10, 4)]
    player.close()


def test_an_environment_that_does_not_close_is_not_left_in_the_way() -> None:
    player = _fragile(partial(Fragile, stuck=True), partial(Fragile, stuck=True))
    play(player, 6)
    with pytest.raises(RuntimeError, match="the lid is stuck"):
        player.close()
    assert Fragile.opened == 0
    assert len(go_on(player, 6, 10)) == 2
    player.close()


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
    env = _host(lambda: Counting(6))
    agent = _player(lambda: Counting(6)).loop.agent
    state = jax.jit(agent.init)(jax.random.key(0))
    seen: list[int] = []
    assert play_episodes(agent, state, env, 0, 13, 100, seen.append) == ([6.0] * 13, 0)
    assert sorted(set(seen)) == [0, 10, 13]
    assert play_episodes(agent, state, env, 0, 2, 4) == ([4.0] * 2, 2)
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
