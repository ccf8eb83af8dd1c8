"""Seeds side by side: what a seed does depends neither on its neighbours nor on how states are kept."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ceqr.training.trainer import Chunks

from ceqr.agents.ceqr_dqn import CEQRDQN, CEQRDQNHyperparameters
from ceqr.runs import EpisodeRow
from ceqr.training.loop import Loop, LoopState, join
from tests.probes import PROBE_OPTIONS, NoisyChain


def _loop() -> Loop:
    env = NoisyChain()
    options: Any = {**PROBE_OPTIONS, "learning_starts": 40, "target_period": 25}
    return Loop(env, CEQRDQN(CEQRDQNHyperparameters(**options), env.observation_shape, env.num_actions))


def _play(seeds: list[int], frames: int) -> tuple[LoopState, list[EpisodeRow]]:
    loop = _loop()
    states = jax.jit(loop.init_seeds)(jnp.array(seeds))
    chunks = Chunks(loop, states, seeds)
    groups, frame, rows = chunks.split(states), 0, []
    while frame < frames:
        groups, frame, ended = chunks.run(groups, frame, frames)
        rows += ended
    return join(groups), rows


def _plain(tree: Any) -> list[np.ndarray]:
    def leaf(x: Any) -> np.ndarray:
        return np.asarray(jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x)

    return [leaf(x) for x in jax.tree.leaves(tree)]


def test_splitting_and_joining_changes_nothing() -> None:
    loop = _loop()
    states = jax.jit(loop.init_seeds)(jnp.array([3, 4, 5]))
    groups = Chunks(loop, states, [3, 4, 5]).split(states)
    for before, after in zip(_plain(states), _plain(join(groups)), strict=True):
        np.testing.assert_array_equal(before, after)


def test_a_seed_is_the_same_to_the_bit_whoever_runs_beside_it() -> None:
    one, one_rows = _play([0, 1, 2], 90)
    other, other_rows = _play([1, 7], 90)
    for a, b in zip(_plain(one), _plain(other), strict=True):
        np.testing.assert_array_equal(a[1], b[0])
    assert [r for r in one_rows if r.seed == 1] == [r for r in other_rows if r.seed == 1]
    moved = [not np.array_equal(a[0], a[1]) for a in _plain(one.agent.params)]
    assert all(moved)  # seeds do differ


def test_episodes_come_by_frame_then_by_seed() -> None:
    _, rows = _play([5, 4, 3], 90)
    order = [(row.frame, [5, 4, 3].index(row.seed)) for row in rows]
    assert len({seed for _, seed in order}) == 3
    assert order == sorted(order)
