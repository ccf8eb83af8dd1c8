"""Players: what is played depends neither on how frames are cut into chunks nor on the other seeds; saving and loading.

Compiling is what takes time here, so there are few programs: one lane and three, compiled and on the host.
"""

import dataclasses
import gc
import logging
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ceqr.agents.base import Hyperparameters
from ceqr.agents.ceqr_dqn import CEQRDQNHyperparameters
from ceqr.envs.gymnasium import from_env
from ceqr.errors import UserError
from ceqr.runs import EpisodeRow
from ceqr.training import checkpoint, compiled, players
from ceqr.training.checkpoint import Saved
from ceqr.training.compiled import CompiledPlayer
from ceqr.training.host import HostPlayer
from ceqr.training.loop import Loop, LoopState
from ceqr.training.players import Player, make_loop, make_player
from tests.probes import CountingAgent, HostChain, NoisyChain, Treadmill, go_on, join

HYPER = Hyperparameters(hidden=(8,), batch_size=4, replay_size=200, learning_starts=20, target_period=30)
CHUNK = 50  # frames: more than a period, and nothing that three lanes divide


@pytest.fixture(autouse=True, scope="module")
def _full_chunks() -> Iterator[None]:
    """Chunks that are full however slow the machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "CHUNK_FRAMES", CHUNK)
        patch.setattr(compiled, "FIRST_CHUNK", CHUNK)
        patch.setattr(compiled, "CHUNK_SECONDS", 1e9)
        yield


def _loop(lanes: int, **changes: Any) -> Loop:
    hyper = dataclasses.replace(HYPER, update_every=1 if lanes == 1 else 2, **changes)
    return Loop(CountingAgent(hyper, (4,), 2), np.float32, lanes)


def _make(kind: str, seeds: tuple[int, ...], lanes: int = 1, **changes: Any) -> Any:
    """A player of the chain, which ends after two steps where there are several lanes and on the host."""
    if kind == "host":
        return HostPlayer(_loop(lanes, **changes), dataclasses.replace(_HOST, build=HostChain, owned=True), seeds)
    return CompiledPlayer(_loop(lanes, **changes), NoisyChain(limit=0 if lanes == 1 else 2), seeds)


_HOST = from_env(HostChain())


@cache
def _shared(kind: str, lanes: int) -> Any:
    """The one whose programs all of its kind use."""
    player = _make(kind, (0, 1), lanes)
    if kind == "compiled":
        player.compile()
    return player


def _another(seeds: tuple[int, ...], lanes: int = 1, kind: str = "compiled") -> Any:
    """A new player that compiles nothing."""
    player, shared = _make(kind, seeds, lanes), _shared(kind, lanes)
    for name in ("_programs", "_tick", "_tick_without", "_draw", "_begin", "_renew"):
        if hasattr(shared, name):
            setattr(player, name, getattr(shared, name))
    return player


@cache
def _player(seeds: tuple[int, ...] = (0, 1), lanes: int = 1, kind: str = "compiled") -> Any:
    return _another(seeds, lanes, kind)


@cache
def _initial(player: Player) -> list[LoopState]:
    player.start()
    return [jax.tree.map(jnp.copy, group) for group in player.groups]


def _start(player: Player) -> LoopState:
    """As `player.start` does, but it compiles nothing; the states."""
    player.close()
    player.groups = [jax.tree.map(jnp.copy, group) for group in _initial(player)]
    return join(player.groups)


def _played(player: Player, *cuts: int, start: int = 0) -> tuple[LoopState, list[EpisodeRow]]:
    _start(player)
    rows = go_on(player, start, *cuts)
    return join(player.groups), rows


def _bits(tree: Any) -> list[bytes]:
    def leaf(x: Any) -> bytes:
        return np.asarray(jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x).tobytes()

    return [leaf(x) for x in jax.tree.leaves(tree)]


def _seed(states: Any, i: int) -> Any:
    return jax.tree.map(lambda x: x[i], states)


# How frames are cut.


@pytest.mark.parametrize("lanes", [1, 3])
def test_how_frames_are_cut_into_chunks_changes_no_bit(lanes: int) -> None:
    """The whole is full chunks; with three lanes that is 17 ticks, the last of which goes past 50 frames."""
    player = _player(lanes=lanes)
    _start(player)
    assert player.run(20, 200)[0] == 20 + -(-CHUNK // lanes) * lanes
    whole, rows = _played(player, 120)
    parts, parts_rows = _played(player, 7, 20, 21, 60, 61, 95, 120)
    assert _bits(whole) == _bits(parts)
    assert rows == parts_rows
    assert len(rows) > 100


def test_it_goes_on_with_lanes_that_do_not_start_at_a_multiple_of_them() -> None:
    """As an agent that was loaded at frame 100: ticks start at 100, 103, ..., 118 (with frame 120), ..., 148."""
    player = _player(lanes=3)
    at_118, _ = _played(player, 118, start=100)
    later, rows = _played(player, 148, start=100)
    assert _bits(later.agent.target) == _bits(at_118.agent.params)
    assert np.asarray(later.tally.frames).tolist() == [48, 48]
    assert np.asarray(later.replay.newest).tolist() == [[16] * 3] * 2
    parts, parts_rows = _played(player, *range(103, 149, 3), start=100)
    assert _bits(parts) == _bits(later)
    assert parts_rows == rows


# Seeds.


def test_a_seed_is_the_same_to_the_bit_whoever_runs_beside_it() -> None:
    one, one_rows = _played(_player((0, 1, 2)), 90)
    other, other_rows = _played(_player((1, 7)), 90)
    alone, alone_rows = _played(_player((1,)), 90)
    assert _bits(_seed(one, 1)) == _bits(_seed(other, 0)) == _bits(_seed(alone, 0))
    assert [row for row in one_rows if row.seed == 1] == [row for row in other_rows if row.seed == 1] == alone_rows


def test_a_small_agent_alone_has_the_programs_of_one_among_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it would have other bits: sums of several threads are ordered differently."""
    monkeypatch.setattr(compiled, "cores", lambda: 2)
    alone, others = _make("compiled", (1,)), _make("compiled", (0, 1))
    assert alone._at_once == 1
    others.compile()
    alone.compile()
    assert alone._programs is others._programs
    monkeypatch.setattr(players, "SMALL", 0)
    assert not alone.one_thread  # a large one makes use of several
    monkeypatch.setattr(compiled, "cores", lambda: 1)
    assert alone.one_thread


def test_all_seeds_in_one_group_as_on_an_accelerator(tmp_path: Path) -> None:
    """The same but for rounding, and to the bit as long as nothing is learned; a checkpoint is good for both."""
    player = _make("compiled", (0, 1), 3)
    player._group_size, player._at_once = 2, 1
    for frames in (21, 60):
        apart, rows = _played(_player(lanes=3), frames)
        together, together_rows = _played(player, frames)
        assert len(player.groups) == 1
        assert [row[:4] for row in together_rows] == [row[:4] for row in rows]
        np.testing.assert_array_equal(together.replay.action, apart.replay.action)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), together.agent, apart.agent)
        if frames == 21:
            assert _bits(together.replay) == _bits(apart.replay)
    with _save(tmp_path, 60, player) as saved:
        other = _another((0, 1), lanes=3)
        other.load(saved)
    assert len(other.groups) == 2
    assert _bits(join(other.groups)) == _bits(together)


def test_seeds_differ_in_weights_and_in_games() -> None:
    states, _ = _played(_player((0, 1, 2)), 90)
    assert len({w.tobytes() for w in np.asarray(states.agent.params.head.weight)}) == 3
    assert len({r.tobytes() for r in np.asarray(states.replay.reward)}) == 3


def test_episodes_come_by_frame_then_by_seed() -> None:
    _, rows = _played(_player((5, 4, 3)), 90)
    order = [(row.frame, [5, 4, 3].index(row.seed)) for row in rows]
    assert len({seed for _, seed in order}) == 3
    assert order == sorted(order)


# What a frame does.


@pytest.mark.parametrize(("lanes", "starts"), [(1, 20), (3, 21)])
def test_nothing_is_learned_before_learning_starts_and_something_after(lanes: int, starts: int) -> None:
    """With three lanes, the first tick that starts at frame 20 or later starts at 21."""
    player = _player(lanes=lanes)
    before = _start(player)
    after, _ = _played(player, starts)
    assert _bits(after.agent.params) == _bits(before.agent.params)
    assert np.asarray(after.tally.updates).tolist() == [0, 0]
    later, _ = _played(player, starts + 6)
    assert _bits(later.agent.params) != _bits(before.agent.params)
    assert np.asarray(later.tally.updates).tolist() == [6 if lanes == 1 else 3] * 2
    assert np.asarray(later.tally.frames).tolist() == [starts + 6] * 2


def test_learning_may_start_later_than_the_agent_says() -> None:
    shared = _shared("compiled", 1)
    player = CompiledPlayer(shared.loop, NoisyChain(), (0, 1), learning_starts=25)
    player._programs = shared._programs
    states, _ = _played(player, 30)
    assert np.asarray(states.tally.updates).tolist() == [5, 5]


@pytest.mark.parametrize("lanes", [1, 3])
def test_target_is_copied_every_period_and_only_then(lanes: int) -> None:
    player = _player(lanes=lanes)
    initial = _start(player).agent.params
    at_30, _ = _played(player, 30)
    assert _bits(at_30.agent.target) == _bits(initial)  # frame 30 has not been played: no copy yet
    later, _ = _played(player, 60)  # in one chunk
    assert _bits(later.agent.target) == _bits(at_30.agent.params)
    assert _bits(later.agent.params) != _bits(at_30.agent.params)


@pytest.mark.parametrize(("lanes", "updates"), [(1, 40), (3, 19)])
def test_one_update_for_every_so_many_frames(lanes: int, updates: int) -> None:
    """Of the frames 20 to 59 all learn with one lane; with three the even ones from 22 on, their ticks start at 21."""
    states, _ = _played(_player(lanes=lanes), 60)
    for counts in (states.tally.updates, states.agent.statistics.updates, optax.tree.get(states.agent, "count")):
        assert np.asarray(counts).tolist() == [updates] * 2
    assert np.asarray(states.tally.frames).tolist() == [60] * 2


def _transitions(player: Player, states: LoopState, seed: int) -> Any:
    """All transitions of a seed, lane after lane."""
    replay = _seed(states.replay, seed)
    held = int((replay.newest - replay.oldest).sum())
    return jax.tree.map(np.asarray, jax.jit(player.loop.replay.sample)(replay, jnp.arange(held, dtype=jnp.uint32)))


@pytest.mark.parametrize("lanes", [1, 3])
def test_transitions_are_whole_and_episodes_are_counted_as_they_were_played(lanes: int) -> None:
    """The chain goes from position p to p + 1, in every lane; a reset stored as a step would not.

    Lane e of the tick that starts at frame f plays frame f + e, and a row has the number of frames up to its end.
    """
    player = _player(lanes=lanes)
    states, rows = _played(player, 90)
    expected = []
    for s, seed in enumerate((0, 1)):
        batch = _transitions(player, states, s)
        assert sorted(batch.number) == list(range(90))
        position, after = np.argmax(batch.observation, 1), np.argmax(batch.successor, 1)
        on = ~batch.terminated
        np.testing.assert_array_equal(after[on], position[on] + 1)
        last = 3 if lanes == 1 else 2
        np.testing.assert_array_equal(on, (batch.action == 1) & (position < 2))
        ended = ~on | (position + 1 == last)
        assert (ended & on).any() == (lanes == 3)  # where the limit truncates
        for lane in range(lanes):
            ours = batch.number % lanes == lane
            begin, total, length = 0, 0.0, 0
            for number, reward, over, p in zip(
                batch.number[ours], batch.reward[ours], ended[ours], position[ours], strict=True
            ):
                assert p == length
                total, length = total + reward, length + 1
                if over:
                    expected.append((number + 1, seed, total, length))
                    begin, total, length = number + 1, 0.0, 0
            assert begin > 0
    found = [(row.frame, row.seed, row.total, row.length) for row in rows]
    np.testing.assert_allclose(found, sorted(expected), rtol=1e-6)
    assert all(0 <= row.nongreedy <= 1 and 0 <= row.least_uncertain <= 1 for row in rows)
    assert len({lane.tobytes() for lane in np.asarray(states.replay.action)[0]}) == lanes


def test_a_loss_that_is_not_finite_is_noted_with_its_first_frame_and_seed() -> None:
    player = _player()
    _played(player, 25)
    assert player.find_trouble() is None
    first, second = player.groups
    second = second._replace(batch=second.batch._replace(reward=jnp.full_like(second.batch.reward, jnp.nan)))
    player.groups = [first, second]
    go_on(player, 25, 30)
    assert player.find_trouble() == (25, 1, "loss")
    assert player.broken_seeds() == [1]


def test_counts_that_are_not_finite_are_found() -> None:
    """No loss tells of them."""
    player = _player()
    player.start()
    first, second = player.groups
    broken = jax.tree.map(lambda x: x * jnp.full_like(x, jnp.nan, jnp.float32), second.agent.statistics)
    player.groups = [first, second._replace(agent=second.agent._replace(statistics=broken))]
    assert player.broken_seeds() == [1]


def test_nothing_is_compiled_again_after_the_first_chunk(caplog: pytest.LogCaptureFixture) -> None:
    player = _player()
    _played(player, 25)
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        go_on(player, 25, 60, 61, 100)
    assert not [record for record in caplog.records if "Compiling" in record.getMessage()]
    assert player.frames_per_second is not None


def test_the_state_is_given_away_and_not_copied() -> None:
    player = _player()
    _played(player, 25)
    groups = player.groups
    player.run(25, 30)
    for group in groups:
        assert group.replay.observation.is_deleted()
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(group.agent))


def test_metrics_are_means_a_seed_and_counting_begins_anew() -> None:
    player = _player()
    states, _ = _played(player, 50)
    columns = player.take_metrics()
    assert list(columns) == player.metric_names() == ["loss", "updates", "epistemic", "start_value"]
    np.testing.assert_allclose(columns["loss"], np.asarray(states.tally.learning["loss"].total) / 30, rtol=1e-6)
    np.testing.assert_allclose(columns["updates"], np.arange(30).mean())
    np.testing.assert_allclose(columns["epistemic"], np.asarray(states.tally.acting["epistemic"].total) / 50, rtol=1e-6)
    assert columns["loss"][0] != columns["loss"][1]
    again = player.take_metrics()
    assert np.isnan(again["loss"]).all()
    assert np.isnan(again["epistemic"]).all()
    np.testing.assert_array_equal(again["start_value"], columns["start_value"])
    go_on(player, 50, 53)
    np.testing.assert_allclose(player.take_metrics()["updates"], 31)


def test_the_value_at_the_start_is_the_mean_over_lanes() -> None:
    player = _player(lanes=3)
    states, _ = _played(player, 30)
    values = np.asarray(states.episode.start_value)
    assert values.shape == (2, 3)
    np.testing.assert_allclose(player.take_metrics()["start_value"], values.mean(1), rtol=1e-6)


def test_players_by_the_kind_of_environment() -> None:
    hyper = CEQRDQNHyperparameters(hidden=(8,), quantiles=4)
    for env, kind in ((Treadmill(), CompiledPlayer), (_HOST, HostPlayer)):
        loop = make_loop("ceqr-dqn", hyper, env, lanes=2)
        assert loop.lanes == 2
        player = make_player(loop, env, [3])
        assert type(player) is kind
        assert player.loop.agent.parameter_count() > 0


def test_all_seeds_can_start_from_one_agent() -> None:
    player = _player()
    learned, _ = _played(player, 60)
    agent = _seed(learned.agent, 0)
    player.start(agent)
    states = join(player.groups)
    assert _bits(_seed(states.agent, 0)) == _bits(_seed(states.agent, 1)) == _bits(agent)
    go_on(player, 0, 40)  # groups have memory of their own
    assert _bits(agent) == _bits(_seed(learned.agent, 0))
    assert np.asarray(join(player.groups).tally.updates).tolist() == [20, 20]


# Saving and loading.


def _save(folder: Path, frame: int, player: Player) -> Saved:
    checkpoint.save(folder / "checkpoints", frame, player.groups, {"lengths": {}})
    saved = checkpoint.latest(folder / "checkpoints")
    assert saved is not None
    assert saved.frame == frame
    return saved


@pytest.mark.parametrize("kind", ["compiled", "host"])
def test_what_is_loaded_is_what_was_saved(kind: str, tmp_path: Path) -> None:
    """All seeds, each in its group and in its place, with all that the agent counted; and it goes on to the same bits.

    An environment of the host cannot be saved, so there both begin new episodes.
    """
    player, other = (_another((3, 4, 5), kind=kind) for _ in range(2))
    before, _ = _played(player, 50)
    player.close()
    with _save(tmp_path, 50, player) as saved:
        other.load(saved)
    assert len(other.groups) == 3
    assert _bits(join(other.groups)) == _bits(before)
    assert np.asarray(before.agent.statistics.updates).tolist() == [30] * 3
    assert go_on(other, 50, 90) == go_on(player, 50, 90)
    assert _bits(join(other.groups)) == _bits(join(player.groups))
    for each in (player, other):
        each.close()


@pytest.mark.parametrize("damage", ["surplus", "missing", "seeds", "lanes"])
def test_a_checkpoint_with_other_leaves_is_refused_in_one_sentence(damage: str, tmp_path: Path) -> None:
    player = _player()
    _start(player)
    path = _save(tmp_path, 10, player).path
    if damage in ("surplus", "missing"):
        with zipfile.ZipFile(path) as archive:
            members = {info.filename: archive.read(info) for info in archive.infolist()}
        if damage == "surplus":
            members["agent/more.npy"] = members["key.npy"]
        else:
            del members["agent/statistics/updates.npy"]
        with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
            for name, content in members.items():
                archive.writestr(name, content)
    other = {"seeds": _player((0, 1, 2)), "lanes": _player(lanes=3)}.get(damage, player)
    before = _bits(_start(other))
    with Saved(path) as saved, pytest.raises(UserError, match="made by an incompatible version of ceqr") as refused:
        other.load(saved)
    assert "\n" not in str(refused.value)
    assert _bits(join(other.groups)) == before


@pytest.mark.parametrize("kind", ["compiled", "host"])
def test_loading_holds_the_state_once(kind: str, tmp_path: Path) -> None:
    """Replay is nearly all of it, and there may be no room for another."""
    player = _make(kind, (0, 1), replay_size=50_000)
    player.start()
    size = sum(leaf.nbytes for group in player.groups for leaf in jax.tree.leaves(group._replace(key=())))
    assert size > 2e6
    saved = _save(tmp_path, 10, player)
    del player
    gc.collect()
    before = sum(array.nbytes for array in jax.live_arrays())
    other = _make(kind, (0, 1), replay_size=50_000)
    other.load(saved)
    saved.close()
    gc.collect()
    held = sum(array.nbytes for array in jax.live_arrays()) - before
    assert 0.9 * size < held < 1.1 * size
