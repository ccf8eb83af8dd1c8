"""Greedy evaluation of a trained run, on randomness that training never saw."""

import statistics
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ceqr.agents.base import Agent
from ceqr.envs.gymnasium import seed_of
from ceqr.errors import UserError
from ceqr.progress import Progress
from ceqr.runs import read_config
from ceqr.training.host import HostLoop
from ceqr.training.loop import Loop
from ceqr.training.trainer import build_loop, load_state

EVALUATION = 0x0E7A1  # folded into a seed's key, so that no number is shared with its training
CHUNK_STEPS = 100
HOST_LANES = 10  # Gymnasium environments played side by side


class Games(NamedTuple):
    """Many games side by side, each playing one episode."""

    env: Any
    observation: jax.Array
    total: jax.Array  # float32 [games]
    terminated: jax.Array  # bool [games]
    truncated: jax.Array  # bool [games]


@dataclass(frozen=True)
class SeedResult:
    """The episodes of one seed."""

    seed: int
    returns: list[float]
    cut: int  # episodes that had not ended when the evaluation's limit was reached


@dataclass(frozen=True)
class Evaluation:
    """The outcome for a whole run."""

    run: str
    frame: int
    seeds: list[SeedResult]

    def to_json(self) -> dict[str, Any]:
        everything = [r for seed in self.seeds for r in seed.returns]
        return {
            "run": self.run,
            "frame": self.frame,
            "seeds": [{"seed": s.seed, "cut": s.cut, **_describe(s.returns), "returns": s.returns} for s in self.seeds],
            "overall": _describe(everything),
        }


def _describe(returns: list[float]) -> dict[str, float]:
    return {
        "episodes": len(returns),
        "mean": statistics.fmean(returns),
        "std": statistics.stdev(returns) if len(returns) > 1 else 0.0,
        "min": min(returns),
        "max": max(returns),
    }


def evaluate(path: Path, episodes: int, max_episode_frames: int, quiet: bool = False) -> Evaluation:
    """Plays `episodes` greedy episodes with each seed of the run's newest checkpoint."""
    for option, value in (("--episodes", episodes), ("--max-episode-frames", max_episode_frames)):
        if value < 1:
            raise UserError(f"{option} must be at least 1, not {value:,}.")
    config, _ = read_config(path)
    config.check()
    loop = build_loop(config)
    saved = load_state(path, loop, config)
    if saved is None:
        raise UserError(f"{path} has no checkpoint yet; train it for longer.")
    states, meta = saved
    results = []
    with Progress("evaluating", episodes * config.seeds, unit="episodes", quiet=quiet) as progress:
        for i, seed in enumerate(config.seed_numbers):
            network = jax.tree.map(lambda leaf, i=i: leaf[i], states.agent.params)

            def report(over: int, i: int = i) -> None:
                progress.update(i * episodes + over, "")

            returns, cut = play_episodes(loop, network, seed, episodes, max_episode_frames, report)
            results.append(SeedResult(seed, returns, cut))
    return Evaluation(str(path), meta["frame"], results)


def play_episodes(
    loop: Loop, network: Any, seed: int, episodes: int, limit: int, report: Any = lambda over: None
) -> tuple[list[float], int]:
    """The returns of greedy episodes in either kind of environment, and how many were cut off by the limit."""
    if isinstance(loop, HostLoop):
        return play_on_host(loop, network, seed, episodes, limit, report)
    key = jax.random.fold_in(jax.random.key(seed), EVALUATION)
    games = play(loop, network, key, episodes, limit, report)
    ended = games.terminated | games.truncated
    return [float(x) for x in np.asarray(games.total)], int((~ended).sum())


def play_on_host(
    loop: HostLoop, network: Any, seed: int, episodes: int, limit: int, report: Any = lambda over: None
) -> tuple[list[float], int]:
    """The same for Gymnasium environments, some at a time; every episode has a seed of its own."""
    totals, cut = np.zeros(episodes), 0
    lanes = loop.env.vector(count := min(episodes, HOST_LANES) if loop.env.owned else 1)
    try:
        for first in range(0, episodes, count):
            batch = np.arange(first, min(first + count, episodes))
            # Lanes that a last batch leaves idle play an episode that nobody counts.
            observation = lanes.reset([seed_of(seed, EVALUATION, first + lane) for lane in range(count)])
            going = np.ones(len(batch), bool)
            for _ in range(limit):
                after = lanes.step(np.asarray(_greedy(loop.agent, network, observation)))
                totals[batch] += np.where(going, after.reward[: len(batch)], 0)
                going &= ~(after.terminated | after.truncated)[: len(batch)]
                observation = after.observation
                if not going.any():
                    break
            cut += int(going.sum())
            report(first + len(batch))
    finally:
        lanes.close()
    return totals.tolist(), cut


@partial(jax.jit, static_argnums=0)
def _greedy(agent: Agent, network: Any, observations: jax.Array) -> jax.Array:
    return agent.act_greedily(network, observations)


def play(loop: Loop, network: Any, key: jax.Array, episodes: int, limit: int, report: Any = lambda over: None) -> Games:
    """Plays one greedy episode in each of `episodes` games, to its end or to the limit in frames.

    Each game plays exactly one episode: counting the first so many to finish would favour short ones.
    """
    reset_key, step_key = jax.random.split(key)
    env, observation = jax.vmap(loop.env.reset)(jax.random.split(reset_key, episodes))
    no = jnp.zeros(episodes, bool)
    games = Games(env, observation, jnp.zeros(episodes), no, no)
    for start in range(0, limit, CHUNK_STEPS):
        games = _advance(loop, network, games, step_key, start, min(start + CHUNK_STEPS, limit))
        over = int((games.terminated | games.truncated).sum())
        report(over)
        if over == episodes:
            break
    return games


@partial(jax.jit, static_argnums=0)
def _advance(loop: Loop, network: Any, games: Games, key: jax.Array, start: jax.Array, stop: jax.Array) -> Games:
    def step(i: jax.Array, games: Games) -> Games:
        keys = jax.random.split(jax.random.fold_in(key, i), len(games.total))
        actions = loop.agent.act_greedily(network, games.observation)
        env, after = jax.vmap(loop.env.step)(games.env, actions, keys)
        going = ~(games.terminated | games.truncated)
        return Games(
            env=env,
            observation=after.observation,
            total=games.total + jnp.where(going, after.reward, 0),
            terminated=games.terminated | (going & after.terminated),
            truncated=games.truncated | (going & after.truncated),
        )

    return jax.lax.fori_loop(start, stop, step, games)
