"""Greedy evaluation of a trained run, on randomness that training never saw."""

import statistics
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ceqr.agents.base import Agent, AgentState
from ceqr.config import require_trust
from ceqr.errors import UserError
from ceqr.progress import Progress
from ceqr.rollout import rollout
from ceqr.runs import read_agent, read_config
from ceqr.training.players import make_loop


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


def evaluate(
    path: Path, episodes: int, max_episode_frames: int, quiet: bool = False, imports: Collection[str] = ()
) -> Evaluation:
    """Plays `episodes` greedy episodes with each seed of the run's newest checkpoint.

    imports: modules that the run's environment names and that may be imported.
    """
    for option, value in (("--episodes", episodes), ("--max-episode-frames", max_episode_frames)):
        if value < 1:
            raise UserError(f"{option} must be at least 1, not {value:,}.")
    config, _ = read_config(path)
    require_trust(config.env, imports, path)
    env = config.make_env()  # without `config.check`: memory for one network is enough
    agent = make_loop(config.agent, config.hyper, env).agent
    results, frame = [], 0
    with Progress("evaluating", episodes * config.seeds, unit="episodes", quiet=quiet) as progress:
        for i, seed in enumerate(config.seed_numbers):
            state, frame = read_agent(path, agent, i)

            def report(over: int, i: int = i) -> None:
                progress.update(i * episodes + over, "")

            returns, cut = play_episodes(agent, state, env, seed, episodes, max_episode_frames, report)
            results.append(SeedResult(seed, returns, cut))
    return Evaluation(str(path), frame, results)


def play_episodes(
    agent: Agent,
    state: AgentState,
    env: Any,
    seed: int,
    episodes: int,
    limit: int,
    report: Callable[[int], None] = lambda over: None,
    world: int | None = None,
) -> tuple[list[float], int]:
    """The returns of greedy episodes in either kind of environment, and how many were cut off by the limit."""
    totals, over = np.zeros(episodes), np.zeros(episodes, bool)
    for steps in rollout(agent, state, env, seed, episodes, limit, keep=(), world=world):
        totals[steps.episode] += np.where(steps.going, steps.reward, 0).sum(0)
        over[steps.episode] |= (steps.going & (steps.terminated | steps.truncated)).any(0)
        report(int(over.sum()))
    return totals.tolist(), int((~over).sum())
