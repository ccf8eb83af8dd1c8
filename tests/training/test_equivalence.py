"""The host player is the compiled one, frame by frame: with one lane and with several, however often it learns."""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ceqr.agents.base import AgentState, Beliefs, Hyperparameters
from ceqr.envs.gymnasium import from_env
from ceqr.training.compiled import CompiledPlayer
from ceqr.training.host import HostPlayer
from ceqr.training.loop import Loop
from tests.probes import CountingAgent, Counts, FeaturesAndValues, HostChain, NoisyChain, go_on, join, play

SEEDS = (3, 4)


class Hazy(CountingAgent):
    """Its network has noise of its own wherever it is given a key, so it matters which one.

    It counts every frame that it plays, with the action taken.
    """

    def forward(self, params: Any, frozen: Any, observations: jax.Array, key: jax.Array | None) -> FeaturesAndValues:
        outputs = super().forward(params, frozen, observations, key)
        haze = 0.0 if key is None else 0.1 * jax.random.normal(key, (self.num_actions,))
        return outputs._replace(values=outputs.values + haze)

    def seen(self, outputs: FeaturesAndValues) -> jax.Array:
        return outputs.features

    def count_frames(self, state: AgentState, seen: jax.Array, actions: jax.Array) -> Counts:
        counts: Counts = state.statistics
        return counts._replace(moment=counts.moment + (seen * (1 + actions)[:, None]).T @ seen)

    def init_memory(self, state: AgentState, key: jax.Array) -> jax.Array:
        return jax.random.normal(key)

    def explore(self, outputs: Any, beliefs: Beliefs, memory: Any, frame: jax.Array, drawn: Any) -> jax.Array:
        wish = jnp.where(jnp.arange(self.num_actions) == 1, memory + 0.01 * frame % 1, 0.0)
        return super().explore(outputs, beliefs._replace(mean=beliefs.mean + wish), memory, frame, drawn)


@pytest.mark.parametrize(
    ("lanes", "every", "rate"),
    [
        (1, 2, 0.0),
        (3, 2, 0.2),
        pytest.param(3, 1, 0.0, marks=pytest.mark.slow),
        pytest.param(3, 4, 0.0, marks=pytest.mark.slow),
    ],
)
def test_it_is_the_compiled_player_frame_by_frame(lanes: int, every: int, rate: float) -> None:
    """The same chain compiled and on the host: equal to the bit before learning, and but for rounding after."""
    hyper = Hyperparameters(
        hidden=(8,), batch_size=4, replay_size=100, learning_starts=30, target_period=25, update_every=every,
        target_rate=rate,
    )  # fmt: skip
    loop = Loop(Hazy(hyper, (4,), 2), np.float32, lanes)
    env = dataclasses.replace(from_env(HostChain()), build=HostChain, owned=True)
    compiled = CompiledPlayer(loop, NoisyChain(noise=0.0, limit=2), SEEDS)
    host = HostPlayer(loop, env, SEEDS)
    our_rows, their_rows = play(host, 30), play(compiled, 30)
    assert our_rows == their_rows
    assert {row.length for row in our_rows} == {1, 2}
    a, b = join(host.groups), join(compiled.groups)
    assert np.asarray(a.agent.statistics.moment).any()
    for name in ("agent", "memory", "observation", "replay", "batch"):
        jax.tree.map(partial(np.testing.assert_array_equal, err_msg=name), getattr(a, name), getattr(b, name))

    our_rows, their_rows = go_on(host, 30, 61, 80), go_on(compiled, 30, 61, 80)
    host.close()
    a, b = join(host.groups), join(compiled.groups)
    reached = 80 if lanes == 1 else 81  # before neither of them a copy is due, which the host would have made already
    updates = sum(frame % every == 0 for frame in range(30, reached))
    for tally in (a.tally, b.tally):
        assert np.asarray(tally.updates).tolist() == [updates] * 2
        assert np.asarray(tally.frames).tolist() == [reached] * 2
    assert np.asarray(a.agent.statistics.updates).tolist() == [updates] * 2
    for name in ("action", "observation", "newest", "head"):
        np.testing.assert_array_equal(getattr(a.replay, name), getattr(b.replay, name), err_msg=name)
    np.testing.assert_array_equal(a.batch.number, b.batch.number)
    for name in ("agent", "memory", "episode"):
        close = partial(np.testing.assert_allclose, rtol=2e-3, atol=2e-4, err_msg=name)
        jax.tree.map(close, getattr(a, name), getattr(b, name))
    for name in ("learning", "acting"):
        sums = [jax.tree.map(np.asarray, getattr(state.tally, name)) for state in (a, b)]
        for metric in sums[0]:
            totals = [each[metric].total - each[metric].excess for each in sums]
            np.testing.assert_allclose(*totals, rtol=2e-3, atol=1e-3, err_msg=metric)
    assert [row[:4] for row in our_rows] == [row[:4] for row in their_rows]
    np.testing.assert_allclose([row[4:] for row in our_rows], [row[4:] for row in their_rows])
    assert len(our_rows) > 40
