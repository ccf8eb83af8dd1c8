"""The compiled loop: what a chunk does must not depend on how frames are cut into chunks, nor on the other seeds."""

import itertools
import logging
from functools import cache, partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ceqr.agents.ceqr_dqn import CEQRDQN, CEQRDQNHyperparameters
from ceqr.envs import make
from ceqr.training.loop import CHUNK_FRAMES, NEVER, Finished, Loop, LoopState
from tests.probes import NoisyChain

HYPER = CEQRDQNHyperparameters(
    hidden=(16,), quantiles=4, batch_size=4, replay_size=100, learning_starts=20, target_period=30
)


def _loop(env: Any, **changes: Any) -> Loop:
    hyper = CEQRDQNHyperparameters(**(vars(HYPER) | changes))
    return Loop(env, CEQRDQN(hyper, env.observation_shape, env.num_actions))


CHAIN = _loop(NoisyChain())


@cache
def _programs(loop: Loop) -> tuple[Any, dict[bool, Any]]:
    chunks = {learning: jax.jit(partial(loop.chunk, learning=learning)) for learning in (False, True)}
    return jax.jit(loop.init_seeds), chunks


def _init(loop: Loop, *seeds: int) -> LoopState:
    return _programs(loop)[0](jnp.array(seeds, jnp.int32))


def _run(loop: Loop, states: LoopState, *cuts: int) -> tuple[LoopState, list[Finished]]:
    """Plays from cut to cut."""
    chunks = _programs(loop)[1]
    logs = []
    for start, stop in itertools.pairwise(cuts):
        states, log = chunks[start >= loop.agent.hyper.learning_starts](states, jnp.int32(start), jnp.int32(stop))
        logs.append(jax.tree.map(lambda x, n=stop - start: np.asarray(x[:n]), log))
    return states, logs


def _bits(tree: Any) -> list[bytes]:
    leaves = jax.tree.leaves(tree)
    keys = [jnp.issubdtype(x.dtype, jax.dtypes.prng_key) for x in leaves]
    return [
        np.asarray(jax.random.key_data(x) if is_key else x).tobytes() for x, is_key in zip(leaves, keys, strict=True)
    ]


def test_how_frames_are_cut_into_chunks_changes_no_bit() -> None:
    whole, whole_log = _run(CHAIN, _init(CHAIN, 0, 1), 0, 20, 120)
    parts, parts_log = _run(CHAIN, _init(CHAIN, 0, 1), 0, 7, 20, 21, 60, 61, 95, 120)
    assert _bits(whole) == _bits(parts)
    joined = [np.concatenate(x) for x in zip(*(jax.tree.leaves(log) for log in parts_log), strict=True)]
    expected = [np.concatenate(x) for x in zip(*(jax.tree.leaves(log) for log in whole_log), strict=True)]
    for a, b in zip(joined, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_seed_alone_and_among_others() -> None:
    """Weights, games and random numbers of a seed are the same to the bit in any company.

    Updates are the same but for rounding: XLA multiplies matrices in another order when there are more of them.
    """
    alone, among = _init(CHAIN, 5), _init(CHAIN, 4, 5, 6)
    alone, _ = _run(CHAIN, alone, 0, 20)
    among, _ = _run(CHAIN, among, 0, 20)
    assert _bits(_seed(alone, 0)) == _bits(_seed(among, 1))
    alone, _ = _run(CHAIN, alone, 20, 23)
    among, _ = _run(CHAIN, among, 20, 23)
    for a, b in zip(jax.tree.leaves(_seed(alone.agent, 0)), jax.tree.leaves(_seed(among.agent, 1)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def _seed(states: Any, i: int) -> Any:
    return jax.tree.map(lambda x: x[i], states)


def test_seeds_differ_in_weights_and_in_games() -> None:
    loop = _loop(make("minatar/breakout"))
    states = _init(loop, 0, 1, 2)
    weights = np.asarray(states.agent.params.quantile_head.weight)
    assert len({w.tobytes() for w in weights}) == 3
    states, _ = _run(loop, states, 0, 20)
    assert len({o.tobytes() for o in np.asarray(states.replay.observation)}) == 3


def test_nothing_is_learned_before_learning_starts_and_something_after() -> None:
    before = _init(CHAIN, 0)
    after, _ = _run(CHAIN, before, 0, 20)
    assert eqx.tree_equal(after.agent, before.agent)
    assert int(after.tally.updates[0]) == 0
    later, _ = _run(CHAIN, after, 20, 25)
    assert not eqx.tree_equal(later.agent.params, before.agent.params)
    assert int(later.tally.updates[0]) == 5
    assert int(later.tally.frames[0]) == 25


def test_target_is_copied_every_period_and_only_then() -> None:
    states, _ = _run(CHAIN, _init(CHAIN, 0), 0, 20, 30)
    initial = _init(CHAIN, 0).agent.params
    assert eqx.tree_equal(states.agent.target, initial)  # frame 30 has not been played: no copy yet
    at_30 = states.agent.params
    states, _ = _run(CHAIN, states, 30, 59, 60)
    assert eqx.tree_equal(states.agent.target, at_30)
    assert not eqx.tree_equal(states.agent.params, at_30)
    crossing, _ = _run(CHAIN, _init(CHAIN, 0), 0, 20, 60)  # one chunk over the copy
    assert eqx.tree_equal(crossing.agent.target, at_30)


def test_update_every_third_frame() -> None:
    loop = _loop(NoisyChain(), update_every=3)
    states, _ = _run(loop, _init(loop, 0), 0, 20, 32)
    assert int(states.tally.updates[0]) == 4  # frames 21, 24, 27, 30
    assert int(optax.tree.get(states.agent.optimiser, "count")[0]) == 4


def test_episodes_are_counted_as_they_were_played() -> None:
    states, (log,) = _run(CHAIN, _init(CHAIN, 3), 0, 20)
    ended = log.ended[:, 0]
    played = states.replay
    rewards, over = np.asarray(played.reward)[0, :20], np.asarray(played.terminated)[0, :20]
    np.testing.assert_array_equal(ended, over)
    ends = np.flatnonzero(ended)
    assert len(ends) > 2
    starts = np.concatenate([[0], ends[:-1] + 1])
    for start, end in zip(starts, ends, strict=True):
        assert log.length[end, 0] == end - start + 1
        assert log.total[end, 0] == pytest.approx(rewards[start : end + 1].sum())
        assert 0 <= log.nongreedy[end, 0] <= 1


def test_truncated_episodes_end_without_termination() -> None:
    loop = _loop(NoisyChain(limit=2))
    states, (log,) = _run(loop, _init(loop, 0), 0, 20)
    assert log.length[log.ended].max() == 2
    terminated = int(np.asarray(states.replay.terminated)[0].sum())
    assert terminated < int(log.ended.sum())


def test_a_loss_that_is_not_finite_is_noted_with_its_first_frame() -> None:
    states, _ = _run(CHAIN, _init(CHAIN, 0, 1), 0, 20, 25)
    assert np.asarray(states.nonfinite).tolist() == [NEVER, NEVER]
    poisoned = states.batch._replace(reward=states.batch.reward.at[1].set(jnp.nan))
    states, _ = _run(CHAIN, states._replace(batch=poisoned), 25, 30)
    assert np.asarray(states.nonfinite).tolist() == [NEVER, 25]


def test_nothing_is_compiled_again_after_the_first_chunk(caplog: pytest.LogCaptureFixture) -> None:
    chunk = jax.jit(partial(CHAIN.chunk, learning=True), donate_argnums=0)
    states = _init(CHAIN, 0, 1)

    def compilations(start: int, stop: int) -> int:
        nonlocal states
        caplog.clear()
        with jax.log_compiles(), caplog.at_level(logging.WARNING):
            states, _ = chunk(states, jnp.int32(start), jnp.int32(stop))
            jax.block_until_ready(states.observation)
        return sum("Compiling jit(chunk)" in record.getMessage() for record in caplog.records)

    assert compilations(20, 22) == 1
    assert [compilations(*cut) for cut in ((22, 30), (30, 31), (31, 31 + CHUNK_FRAMES))] == [0, 0, 0]


def test_the_state_is_given_away_and_not_copied() -> None:
    chunk = jax.jit(partial(CHAIN.chunk, learning=True), donate_argnums=0)
    states = _init(CHAIN, 0, 1)
    chunk(states, jnp.int32(20), jnp.int32(22))
    assert states.replay.observation.is_deleted()
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(states.agent))
