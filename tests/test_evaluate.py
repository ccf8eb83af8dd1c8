"""Greedy evaluation: one whole episode a game, counted as it was played, with no more of a run than acting needs."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tests.probe_family  # noqa: F401  makes the chain known by name
from ceqr.agents import AGENTS
from ceqr.agents.base import AgentState, Beliefs, Hyperparameters
from ceqr.agents.dqn import DQN, DQNHyperparameters
from ceqr.cli import main
from ceqr.envs.gymnasium import from_env
from ceqr.evaluate import evaluate, play_episodes
from tests.probes import Counting, CountingAgent, FeaturesAndValues, NoisyChain, Treadmill


def _agent(env: Any) -> tuple[DQN, AgentState]:
    hyper = DQNHyperparameters(hidden=(8,), batch_size=4, replay_size=20)
    agent = DQN(hyper, env.observation_shape, env.num_actions)
    return agent, jax.jit(agent.init)(jax.random.key(0))


def test_each_game_plays_one_episode_to_its_end() -> None:
    env = Treadmill(limit=250)  # longer than a stretch, every step pays 1
    seen: list[int] = []
    returns, cut = play_episodes(*_agent(env), env, seed=1, episodes=3, limit=1_000, report=seen.append)
    assert returns == [250.0] * 3
    assert cut == 0
    assert seen == [0, 0, 3]


def test_a_game_that_does_not_end_is_cut_and_counts_as_it_stands() -> None:
    env = Treadmill(limit=250)
    assert play_episodes(*_agent(env), env, seed=1, episodes=2, limit=130) == ([130.0] * 2, 2)
    host = from_env(Counting(length=5))
    assert play_episodes(*_agent(host), host, seed=1, episodes=2, limit=4) == ([4.0] * 2, 2)
    assert play_episodes(*_agent(host), host, seed=1, episodes=2, limit=5) == ([5.0] * 2, 0)


def test_games_have_randomness_of_their_own() -> None:
    env = NoisyChain(consolation=0.0)
    agent, state = _agent(env)

    def play(network: Any, seed: int, episodes: int) -> list[float]:
        return play_episodes(agent, state._replace(params=network), env, seed, episodes, limit=10)[0]

    giving_up = jax.tree.map(lambda x: x * 0, state.params)  # equal values: action 0 everywhere
    assert play(giving_up, 0, 50) == [0.0] * 50
    onward = eqx.tree_at(lambda n: n.head.bias, giving_up, giving_up.head.bias.at[1].set(1.0))
    first, again, other = (play(onward, seed, 50) for seed in (0, 0, 1))
    assert first == again
    assert len({*first, *other}) == 100
    assert np.mean(first) == pytest.approx(1.5, abs=0.6)


# A run.


@dataclass(frozen=True)
class Leaning(CountingAgent):
    """Before its first update it gives up; after it, it goes on: by what it counts, and by a leaning fixed at first."""

    def init_frozen(self, params: Any, key: jax.Array) -> jax.Array:
        return jnp.array([-1.0, 1.0])

    def beliefs(self, outputs: FeaturesAndValues, state: AgentState) -> Beliefs:
        mean = state.statistics.updates * state.frozen + 0 * outputs.values
        return Beliefs(mean, epistemic=jnp.ones_like(mean))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    AGENTS["leaning"] = Leaning
    out = tmp_path_factory.mktemp("evaluate") / "run"
    command = ["train", "--env", "probe/noisy-chain", "--agent", "leaning", "--seeds", "2", "--seed-start", "3"]
    command += ["--hidden", "8", "--batch-size", "4", "--replay-size", "2000", "--learning-starts", "20"]
    assert main([*command, "--frames", "60", "--quiet", "--out", str(out)]) == 0
    yield out
    del AGENTS["leaning"]


def test_beliefs_may_read_all_that_an_agent_has_learned(run: Path) -> None:
    """Its leaning and its count come from the run: without them it would give up, which pays 0.5."""
    result = evaluate(run, 20, 100, quiet=True)
    assert result.frame == 60
    assert [(each.seed, each.cut) for each in result.seeds] == [(3, 0), (4, 0)]
    returns = [number for each in result.seeds for number in each.returns]
    assert len(set(returns)) == 40
    assert np.mean(returns) == pytest.approx(1.5, abs=0.6)
    told = result.to_json()
    assert told["overall"]["mean"] == pytest.approx(np.mean(returns))
    assert told["overall"]["std"] == pytest.approx(np.std(returns, ddof=1))
    assert (told["overall"]["min"], told["overall"]["max"]) == (min(returns), max(returns))
    assert evaluate(run, 20, 100, quiet=True) == result
    assert evaluate(run, 1, 100, quiet=True).to_json()["seeds"][0]["std"] == 0.0


def test_no_more_is_read_than_acting_needs(run: Path, bytes_read: list[int]) -> None:
    """One network a seed: no replay, target network or optimiser."""
    evaluate(run, 1, 100, quiet=True)
    agent = Leaning(Hyperparameters(hidden=(8,)), (4,), 2)
    state = jax.eval_shape(agent.init, jax.random.key(0))
    needed = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves((state[0], state[3], state[4])))
    assert sum(bytes_read) == 2 * needed
    assert needed < 0.02 * max((run / "checkpoints").glob("*.npz")).stat().st_size


def test_a_run_of_a_larger_machine_can_be_evaluated(run: Path, tmp_path: Path) -> None:
    """What replay would need is no matter here."""
    config = json.loads((run / "config.json").read_text())
    config["config"]["hyper"]["replay_size"] = 2_000_000_000
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "checkpoints").symlink_to(run / "checkpoints")
    assert evaluate(tmp_path, 3, 100, quiet=True).seeds == evaluate(run, 3, 100, quiet=True).seeds
