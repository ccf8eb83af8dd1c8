"""Agents that count: matrices are factorised with every copy of the target network, in seeds that run side by side.

LAPACK, given a batch of matrices, may spread it over the very threads that wait for it, and lock up. So everything here
happens in a process of its own, which has a deadline.
"""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ceqr.agents.base import AgentState, Batch, Beliefs, Hyperparameters, Memory, Successors
from ceqr.envs.gymnasium import from_env
from ceqr.training.loop import Loop
from ceqr.training.players import Player, make_player
from tests.probes import CountingAgent, Counts, FeaturesAndValues, HostChain, NoisyChain, join, play

DEADLINE = 120  # seconds for each kind of player, most of them to compile
SIZE = 32  # features
HYPER = Hyperparameters(hidden=(SIZE,), batch_size=4, replay_size=100, learning_starts=10, target_period=2)
FRAMES = {"compiled": 401, "host": 61}  # the last copy was made before the last of them
COMPANIES = ((0,), (0, 1), (0, 1, 2, 3))


class Watchful(CountingAgent):
    """Minds that every hook sees one seed: ranks are those that the base class promises."""

    def init_memory(self, state: AgentState, key: jax.Array) -> Memory:
        assert key.shape == ()
        self._mind(state)
        return jnp.float32(0)

    def update_statistics(
        self, state: AgentState, outputs: FeaturesAndValues, successors: Successors, batch: Batch, frame: jax.Array
    ) -> Counts:
        rows = self.hyper.batch_size
        assert outputs.features.shape == (rows, SIZE)
        assert batch.observation.shape == (rows, *self.observation_shape)
        assert batch.number.shape == (rows,)
        assert frame.shape == ()
        self._mind(state)
        return super().update_statistics(state, outputs, successors, batch, frame)

    def refresh_statistics(self, state: AgentState) -> Counts:
        self._mind(state)
        return super().refresh_statistics(state)

    def beliefs(self, outputs: FeaturesAndValues, state: AgentState) -> Beliefs:
        assert outputs.features.shape == (SIZE,)
        self._mind(state)
        return super().beliefs(outputs, state)

    def explore(
        self, outputs: FeaturesAndValues, beliefs: Beliefs, memory: Memory, frame: jax.Array, drawn: jax.Array
    ) -> jax.Array:
        assert outputs.features.shape == (SIZE,)
        assert beliefs.mean.shape == (self.num_actions,)
        assert memory.shape == frame.shape == drawn.shape == ()
        return super().explore(outputs, beliefs, memory, frame, drawn)

    def _mind(self, state: AgentState) -> None:
        assert state.statistics.updates.shape == ()
        assert state.statistics.moment.shape == state.statistics.inverse.shape == (SIZE, SIZE)
        assert state.params.head.weight.ndim == state.target.head.weight.ndim == 2


def _player(kind: str, seeds: tuple[int, ...]) -> Player:
    env: Any = NoisyChain(noise=0.0, limit=2)
    if kind == "host":
        env = dataclasses.replace(from_env(HostChain()), build=HostChain, owned=True)
    return make_player(Loop(Watchful(HYPER, (4,), 2), np.float32), env, seeds)


def count(kind: str, path: str) -> None:
    """What the tests below run in a process of its own: writes what all seeds counted, in every company."""
    jax.config.update("jax_compilation_cache_dir", str(Path(os.environ["CEQR_CACHE_DIR"]) / "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    found: dict[str, Any] = {}
    for seeds in COMPANIES:
        print(f"{len(seeds)} seeds", flush=True)
        player = _player(kind, seeds)
        play(player, FRAMES[kind])
        player.close()
        for name, leaf in join(player.groups).agent.statistics._asdict().items():
            found[f"{len(seeds)}/{name}"] = np.asarray(leaf)
    np.savez(path, **found)


@pytest.fixture(scope="module", params=["compiled", "host"])
def counted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    path = tmp_path_factory.mktemp("counted") / "statistics.npz"
    script = f"from tests.training.test_counting import count; count({request.param!r}, {str(path)!r})"
    try:
        subprocess.run([sys.executable, "-c", script], timeout=DEADLINE, check=True, capture_output=True, text=True)
    except subprocess.TimeoutExpired as error:
        pytest.fail(f"It locked up: {error.stdout!r}")
    except subprocess.CalledProcessError as error:
        pytest.fail(f"{error.stdout}\n{error.stderr}")
    with np.load(path) as file:
        return {**file, "updates": np.array(FRAMES[request.param] - HYPER.learning_starts)}


@pytest.mark.parametrize("seeds", [2, 4])
def test_a_seed_counts_what_it_counts_alone(counted: dict[str, np.ndarray], seeds: int) -> None:
    alone, among = ({name: counted[f"{n}/{name}"][0] for name in Counts._fields} for n in (1, seeds))
    assert alone["updates"] == among["updates"] == counted["updates"]
    assert np.abs(alone["moment"]).max() > 1
    np.testing.assert_allclose(among["moment"], alone["moment"], rtol=1e-3, atol=1e-2)
    np.testing.assert_allclose(among["inverse"], alone["inverse"], rtol=1e-2, atol=1e-3)
    assert len({moment.tobytes() for moment in counted[f"{seeds}/moment"]}) == seeds


def test_what_is_dear_was_refreshed_with_the_last_copy(counted: dict[str, np.ndarray]) -> None:
    """That is before the last frame, so all updates but one are in the inverse."""
    for moment, inverse in zip(counted["4/moment"], counted["4/inverse"], strict=True):
        then = np.linalg.inv(inverse.astype(np.float64)) - np.eye(SIZE)
        missing = np.trace(moment) - np.trace(then)
        one = np.trace(moment) / counted["updates"]
        assert 0.3 * one < missing < 3 * one
