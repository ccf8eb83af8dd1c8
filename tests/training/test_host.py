"""The host player: whole transitions from every lane, and environments that fail."""

import dataclasses
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ceqr.agents.base import Hyperparameters
from ceqr.agents.dqn import DQN, DQNHyperparameters
from ceqr.envs.gymnasium import HostEnvironment, from_env
from ceqr.runs import EpisodeRow
from ceqr.training import host as host_module
from ceqr.training.host import HostPlayer
from ceqr.training.loop import Loop, LoopState
from ceqr.training.players import EnvironmentFailed, Player
from tests.probes import Counting, CountingAgent, HostTreadmill, go_on, join, play
from tests.training.conftest import assert_equal

LANES = 3
HYPER = Hyperparameters(
    hidden=(8,), batch_size=4, replay_size=300, learning_starts=30, target_period=20, update_every=2
)


def _host(env: Any) -> HostEnvironment:
    return dataclasses.replace(from_env(env()), build=env, owned=True)


def _make(seeds: tuple[int, ...]) -> HostPlayer:
    """A player of `Counting`, or of others with such observations."""
    return HostPlayer(Loop(CountingAgent(HYPER, (2,), 2), np.float32, LANES), _host(Counting), seeds)


@cache
def _shared(seeds: tuple[int, ...]) -> tuple[HostPlayer, list[LoopState]]:
    """One player for most tests, with which others share their programs; and its states before the first frame."""
    player = _make(seeds)
    if seeds != (0, 1):
        for name in ("_tick", "_tick_without", "_draw", "_begin", "_renew"):
            setattr(player, name, getattr(_shared((0, 1))[0], name))
    player.start()
    return player, [jax.tree.map(jnp.copy, group) for group in player.groups]


def _player(*environments: Any, then: Any, seeds: tuple[int, ...] = (0, 1)) -> HostPlayer:
    """A player before its first frame, of these environments in the order in which they are made, and then of others.

    It is one player that starts anew, because it need not compile again.
    """
    player, initial = _shared(seeds)
    player.close()
    player.groups = [jax.tree.map(jnp.copy, group) for group in initial]
    following = iter(environments)
    player._env = dataclasses.replace(player._env, build=lambda: next(following, then)())
    return player


# Lanes.


def test_lanes_store_what_was_played_and_never_a_reset() -> None:
    """In `Counting`, a transition leads from (n, e) to (n + 1, e): a reset stored as a step would not."""
    player = _player(then=partial(Counting, 4))
    rows = go_on(player, 0, 60)
    states = join(player.groups)
    one = jax.tree.map(lambda x: x[0], states.replay)
    held = int((one.newest - one.oldest).sum())
    batch = jax.jit(player.loop.replay.sample)(one, jnp.arange(held, dtype=jnp.uint32))
    assert held == 60
    np.testing.assert_array_equal(batch.successor, batch.observation + np.array([1, 0]))
    assert set(np.asarray(batch.observation[:, 0])) == {0, 1, 2, 3}
    assert not batch.terminated.any()
    # Every lane's fourth tick ends its episode, in the frames 10, 11 and 12 of each twelve.
    assert [row[:4] for row in rows] == [
        (seed, 12 * k + f, 4, 4) for k in range(5) for f in (10, 11, 12) for seed in (0, 1)
    ]


def test_learning_and_copies_come_with_the_tick_that_reaches_their_frame() -> None:
    """Frame 40 is played in the tick that starts at 39; the host copies before it chooses for that."""
    player = _player(then=Counting)
    go_on(player, 0, 30)
    start = join(player.groups)
    assert np.asarray(start.tally.updates).tolist() == [0, 0]
    go_on(player, 30, 36)  # frames 30, 32 and 34 learn
    at_36 = join(player.groups)
    assert np.asarray(at_36.tally.updates).tolist() == [3, 3]
    jax.tree.map(np.testing.assert_array_equal, at_36.agent.target, start.agent.target)
    go_on(player, 36, 39)
    at_39 = join(player.groups)
    assert np.asarray(at_39.tally.updates).tolist() == [5, 5]
    assert np.asarray(at_39.tally.frames).tolist() == [39, 39]
    jax.tree.map(np.testing.assert_array_equal, at_39.agent.target, at_39.agent.params)
    assert not np.array_equal(at_39.agent.target.head.weight, start.agent.target.head.weight)
    go_on(player, 39, 42)
    jax.tree.map(np.testing.assert_array_equal, join(player.groups).agent.target, at_39.agent.target)


@pytest.mark.parametrize(("terminates", "value"), [(False, 2.0), (True, 4 / 3)])
def test_truncation_bootstraps_and_termination_does_not(terminates: bool, value: float) -> None:
    """Discount 1/2, one state. Truncated: V = 1 + V/2 = 2. Terminated: the mean of 1 and 1 + V/2, so V = 4/3."""
    made = _host(partial(HostTreadmill, terminates))
    hyper = DQNHyperparameters(
        hidden=(16,), batch_size=32, replay_size=200, learning_starts=50, target_period=20, discount=0.5,
        learning_rate=3e-3, epsilon_frames=1,
    )  # fmt: skip
    player = HostPlayer(Loop(DQN(hyper, (1,), 2), np.float32, lanes=2), made, [0])
    play(player, 1_000)
    player.close()
    network = jax.tree.map(lambda x: x[0], player.groups[0].agent.params)
    found = float(player.loop.agent.forward(network, (), jnp.ones((1, 1)), None).max())
    assert found == pytest.approx(value, abs=0.15)


class Dice(Counting):
    """What it shows follows from the seed of its first reset."""

    def _observe(self) -> np.ndarray:
        return self.np_random.normal(size=2).astype(np.float32)


def test_a_seed_has_the_same_games_alone_and_among_others() -> None:
    among, alone = _player(then=Dice), _player(then=Dice, seeds=(1,))
    for player in (among, alone):
        go_on(player, 0, 90)
        player.close()
    alone, among = join(alone.groups), join(among.groups)
    np.testing.assert_array_equal(alone.replay.observation[0], among.replay.observation[1])
    lanes = [lane.tobytes() for seed in np.asarray(among.replay.observation) for lane in seed]
    assert len(set(lanes)) == 2 * LANES


def test_random_numbers_drawn_ahead_are_those_of_their_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many are drawn at once, and wherever a player is asked to go on."""
    player = _player(then=Dice)
    rows = go_on(player, 0, 99)
    monkeypatch.setattr(host_module, "DRAWN_AHEAD", 4)
    other = _make((0, 1))
    other._env = player._env
    other.groups = [jax.tree.map(jnp.copy, group) for group in _shared((0, 1))[1]]
    assert go_on(other, 0, 7, 30, 31, 60, 99) == rows
    assert_equal(join(other.groups), join(player.groups))
    other.close()


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


def _fragile(*environments: Any) -> HostPlayer:
    """A player of these environments, in the order in which they are made; after them come healthy ones."""
    player = _player(*environments, then=Fragile)
    Fragile.opened = 0
    return player


@cache
def _healthy() -> tuple[LoopState, list[EpisodeRow]]:
    """At frame 99."""
    player = _fragile()
    rows = go_on(player, 0, 99)
    player.close()
    return join(player.groups), rows


def _fail(player: Player) -> tuple[int, list[EpisodeRow], BaseException | None]:
    frame, rows = 0, []
    with pytest.raises(EnvironmentFailed) as failure:  # noqa: PT012
        while frame < 120:
            frame, more = player.run(frame, 120)
            rows += more
    return failure.value.frame, rows + failure.value.episodes, failure.value.__cause__


@pytest.mark.parametrize("which", range(2 * LANES))
@pytest.mark.parametrize("stuck", [False, True])
def test_what_a_failing_step_leaves_is_the_state_before_it(which: int, stuck: bool) -> None:
    """Of all seeds, whichever of them failed and in whichever lane; it may raise once more when it is closed."""
    whole, expected = _healthy()
    player = _fragile(*[Fragile] * which, partial(Fragile, "step", 34, stuck))
    frame, rows, cause = _fail(player)
    assert frame == 99
    assert str(cause) == "the joint is broken"
    assert rows == expected
    assert len(rows) == 2 * LANES * 8
    assert_equal(join(player.groups), whole)
    assert Fragile.opened <= (LANES - 1 if stuck else 0)  # those of the same vector at the most
    # It goes on from there, with new environments and new episodes.
    more = go_on(player, 99, 123)
    assert [row[:4] for row in more] == [
        (seed, 99 + 12 * k + f, 4, 4) for k in range(2) for f in (10, 11, 12) for seed in (0, 1)
    ]
    assert np.asarray(join(player.groups).tally.updates).tolist() == [47, 47]
    player.close()


@pytest.mark.parametrize(("call", "frame"), [(1, 0), (2, 9)])
def test_an_environment_that_raises_in_reset(call: int, frame: int) -> None:
    """In the very first one, or in the one that follows an episode's end, which is part of the fourth step."""
    player = _fragile(*[Fragile] * 4, partial(Fragile, "reset", call))
    before = join(player.groups)
    reached, rows, cause = _fail(player)
    assert (reached, rows) == (frame, [])
    assert str(cause) == "the joint is broken"
    assert Fragile.opened == 0
    after = join(player.groups)
    assert np.asarray(after.tally.frames).tolist() == [frame] * 2
    if frame == 0:
        assert_equal(after, before)
    assert [row.frame for row in go_on(player, frame, frame + 12)] == [frame + f for f in (10, 10, 11, 11, 12, 12)]
    player.close()


@pytest.mark.parametrize("made", [0, 2, 5])
def test_an_environment_that_cannot_be_made(made: int) -> None:
    """Of the seeds before it, all are closed."""

    def unmade() -> Any:
        raise RuntimeError("out of joints")

    player = _fragile(*[Fragile] * made, unmade)
    frame, _, cause = _fail(player)
    assert (frame, str(cause)) == (0, "out of joints")
    assert Fragile.opened == made % LANES  # what Gymnasium had made of a seed's lanes is beyond us
    assert len(go_on(player, 0, 12)) == 2 * LANES
    player.close()


def test_closing_twice_and_going_on_after_it() -> None:
    player = _fragile()
    player.close()  # before anything was opened
    go_on(player, 0, 6)
    assert Fragile.opened == 2 * LANES
    player.close()
    player.close()
    assert Fragile.opened == 0
    before = join(player.groups)
    assert np.asarray(before.episode.length).tolist() == [[2] * LANES] * 2
    assert player.run(6, 6) == (6, [])  # begins episodes and plays nothing
    begun = join(player.groups)
    assert np.asarray(begun.episode.length).tolist() == [[0] * LANES] * 2
    np.testing.assert_array_equal(begun.observation, 0)
    np.testing.assert_array_equal(begun.replay.head, before.replay.head + 1)  # the episodes under way were cut
    assert [(row.frame, row.length) for row in go_on(player, 6, 18)] == [(f, 4) for f in (16, 16, 17, 17, 18, 18)]
    player.close()


def test_an_environment_that_does_not_close_is_not_left_in_the_way() -> None:
    player = _fragile(partial(Fragile, stuck=True))
    go_on(player, 0, 6)
    with pytest.raises(RuntimeError, match="the lid is stuck"):
        player.close()
    assert Fragile.opened <= LANES - 1  # the others of its vector at the most
    assert len(go_on(player, 6, 18)) == 2 * LANES
    player.close()
