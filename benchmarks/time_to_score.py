"""Time to score: seconds and frames until the greedy agent plays well, beside sb3-contrib's QR-DQN.

    python benchmarks/time_to_score.py                        # hours; begins again where it was stopped
    python benchmarks/time_to_score.py --tasks CartPole-v1 --seeds 2

Every so many frames training stops, and the agent plays greedily: it is there at the first look whose mean is at the
score. Seconds are those of training, with everything from the making of the agent on (compilation, too; its cache is
filled by a first agent that is thrown away), without those of the looks. Agents take turns, seed by seed.

Ours have their defaults, and compiled environments. sb3-contrib's QR-DQN has the settings that the RL Zoo found for
each task, in Gymnasium's environments; for MinAtar, for which the Zoo has none, it has the network and the settings of
our QR-DQN, in the original MinAtar. All have the frames that the Zoo gives. The seeds, from 3,000 on, chose no setting.
Rows go to time_to_score.csv in --out as they are found. Needs `pip install -e ".[bench,gymnax]"`.
"""

# pyright: reportMissingImports=false
import statistics
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tyro
from classic_control import AGENTS, SB3
from classic_control import TASKS as CLASSIC
from rows import Rows

import ceqr
from ceqr.bench_sb3 import sb3_minatar
from ceqr.cli import use_compilation_cache
from ceqr.config import default_config
from ceqr.errors import UserError

EPISODES = 30  # of a look
LONGEST = 5_000  # frames of an episode of a look


class Task(NamedTuple):
    """An environment of ours, MinAtar's protocol, the frames to train and between looks, and the score."""

    env: str
    protocol: str
    frames: int
    look: int
    score: float


TASKS = {
    "CartPole-v1": Task("gymnax/CartPole-v1", "paper", 50_000, 1_000, 475),
    "Acrobot-v1": Task("gymnax/Acrobot-v1", "paper", 100_000, 2_000, -100),
    "Breakout": Task("minatar/breakout", "standard", 300_000, 10_000, 6),
}


@dataclass(frozen=True)
class Options:
    """What to train."""

    agents: tuple[str, ...] = AGENTS
    """Which agents."""
    tasks: tuple[str, ...] = tuple(TASKS)
    """Which tasks."""
    seeds: int = 5
    """Seeds of each."""
    seed_start: int = 3_000
    """The first of them."""
    out: Path = Path("runs/time_to_score")
    """Folder of the table."""


class Reached(NamedTuple):
    """When an agent was there (or where it ended), what it scored then, and what it took."""

    there: bool
    frames: int
    seconds: float
    score: float


def ours(name: str, agent: str, seed: int) -> Reached:
    task = TASKS[name]
    cls = {"ceqr-dqn": ceqr.CEQRDQN, "qr-dqn": ceqr.QRDQN}[agent]
    began = time.monotonic()
    made = cls(task.env, seed=seed, preset=preset(task), protocol=task.protocol)
    seconds = time.monotonic() - began
    while True:
        began = time.monotonic()
        made.learn(task.look)
        seconds += time.monotonic() - began
        score = float(made.evaluate(EPISODES, max_episode_frames=LONGEST).mean())
        if score >= task.score or made.frames >= task.frames:
            return Reached(score >= task.score, made.frames, seconds, score)


def preset(task: Task) -> str | None:
    """MinAtar's default is the paper's 1,600 units; `quick` has the 128 of everybody else."""
    return "quick" if task.env.startswith("minatar/") else None


def sb3(name: str, seed: int) -> Reached:
    import torch
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.evaluation import evaluate_policy

    task = TASKS[name]
    torch.set_num_threads(1)  # these networks are too small for more
    began = time.monotonic()
    model, other = sb3_model(name, seed)

    class Looks(BaseCallback):
        """Plays every so often, and stops training when the score is reached."""

        looking = 0.0
        score = float("-inf")

        def _on_step(self) -> bool:
            if self.num_timesteps % task.look:
                return True
            start = time.monotonic()
            self.score = float(np.mean(evaluate_policy(self.model, other, EPISODES, return_episode_rewards=True)[0]))
            self.looking += time.monotonic() - start
            return self.score < task.score

    looks = Looks()
    model.learn(task.frames, callback=looks)
    seconds = time.monotonic() - began - looks.looking
    return Reached(looks.score >= task.score, model.num_timesteps, seconds, looks.score)


def sb3_model(name: str, seed: int) -> tuple[Any, Any]:
    """The model, and an environment of its own for looks."""
    from sb3_contrib import QRDQN
    from stable_baselines3.common.env_util import make_vec_env

    task = TASKS[name]
    if name in CLASSIC:
        return QRDQN("MlpPolicy", name, device="cpu", seed=seed, **CLASSIC[name].zoo), make_vec_env(name, 1, seed=seed)
    config = replace(default_config("qr-dqn", preset(task), task.env), protocol=task.protocol)
    hyper = config.hyper
    settings = {
        "seed": seed,
        "learning_starts": hyper.learning_starts,
        "exploration_fraction": min(hyper.epsilon_frames / task.frames, 1.0),
        "exploration_final_eps": hyper.epsilon_end,
    }
    return sb3_minatar(config, **settings), sb3_minatar(config, seed=seed + 1).get_env()


def main(options: Options) -> None:
    use_compilation_cache()
    for name, known, what in ((options.agents, AGENTS, "agent"), (options.tasks, TASKS, "task")):
        for each in name:
            if each not in known:
                raise UserError(f"Unknown {what} {each!r}; known are {', '.join(known)}.")
    rows = Rows(options.out / "time_to_score.csv", ("task", "agent", "seed"), Reached._fields)
    for task in options.tasks:
        for seed in range(options.seed_start, options.seed_start + options.seeds):
            for agent in options.agents:
                if not rows.has(task, agent, seed):
                    warm_up(task, agent)
                    found = sb3(task, seed) if agent == SB3 else ours(task, agent, seed)
                    rows.add(
                        task=task,
                        agent=agent,
                        seed=seed,
                        there=found.there,
                        frames=found.frames,
                        seconds=f"{found.seconds:.1f}",
                        score=f"{found.score:.1f}",
                    )
    print(summary(rows.read()))


WARM: set[tuple[str, str]] = set()


def warm_up(task: str, agent: str) -> None:
    """Fills the compilation cache, once: what a user finds from the second agent on."""
    if agent != SB3 and (task, agent) not in WARM:
        cls = {"ceqr-dqn": ceqr.CEQRDQN, "qr-dqn": ceqr.QRDQN}[agent]
        cls(TASKS[task].env, preset=preset(TASKS[task]), protocol=TASKS[task].protocol).learn(TASKS[task].look)
    WARM.add((task, agent))


def summary(rows: list[dict[str, str]]) -> str:
    """A table of all seeds: medians count who is not there as infinite."""
    lines = [
        "| task | agent | there | seconds, seed by seed | median | thousands of frames, seed by seed | median |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, task in TASKS.items():
        for agent in AGENTS:
            of = [row for row in rows if (row["task"], row["agent"]) == (name, agent)]
            if of:
                there = [row["there"] == "True" for row in of]
                cells = [f"{name}, {task.score:g}", agent, f"{sum(there)} of {len(of)}"]
                for column, unit in (("seconds", 1), ("frames", 1_000)):
                    found = sorted(
                        float(row[column]) / unit if t else float("inf") for row, t in zip(of, there, strict=True)
                    )
                    cells += [", ".join(_shown(x) for x in found), _shown(statistics.median(found))]
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _shown(x: float) -> str:
    return "not" if x == float("inf") else f"{x:,.0f}"


if __name__ == "__main__":
    try:
        main(tyro.cli(Options, description=__doc__))
    except UserError as error:
        sys.exit(str(error))
