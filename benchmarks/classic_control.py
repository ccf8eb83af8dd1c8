"""Dependable on classic control: greedy returns after a fixed number of frames, beside sb3-contrib's QR-DQN.

    python benchmarks/classic_control.py                                  # hours; begins again where it was stopped
    python benchmarks/classic_control.py --tasks CartPole-v1 --agents qr-dqn sb3 --seeds 3

Ours are the runs of the sweep results/classic-control.toml: the defaults for vectors, the same for all tasks, in
gymnax's compiled environments where there are any. sb3-contrib's QR-DQN has the settings that the RL Zoo found for each
task. All have the frames that the Zoo gives. The seeds, from 4,001 on, chose no setting. Rows go to classic_control.csv
in --out as they are found, and runs are where `ceqr sweep results/classic-control.toml` has them. Needs
`pip install -e ".[bench,box2d,gymnax]"`.
"""

# pyright: reportMissingImports=false
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import tyro
from rows import Rows

from ceqr.cli import use_compilation_cache
from ceqr.errors import UserError
from ceqr.evaluate import evaluate
from ceqr.experiments import sweep
from ceqr.runs import read_episodes, read_metrics
from ceqr.training import train

SWEEP = Path(__file__).parents[1] / "results" / "classic-control.toml"
RESULTS = SWEEP.with_suffix("")
EPISODES = 100  # greedy ones, of which the mean is taken
SB3 = "sb3"
AGENTS = ("ceqr-dqn", "qr-dqn", SB3)


class Task(NamedTuple):
    """An environment, the frames to train, a return that counts as solved, and the Zoo's settings for QR-DQN."""

    env: str
    frames: int
    goal: float
    zoo: dict[str, Any]


TASKS = {
    "CartPole-v1": Task("gymnax/CartPole-v1", 50_000, 475, {
        "learning_rate": 2.3e-3, "batch_size": 64, "buffer_size": 100_000, "learning_starts": 1_000, "gamma": 0.99,
        "target_update_interval": 10, "train_freq": 256, "gradient_steps": 128, "exploration_fraction": 0.16,
        "exploration_final_eps": 0.04, "policy_kwargs": {"net_arch": [256, 256], "n_quantiles": 10},
    }),
    "Acrobot-v1": Task("gymnax/Acrobot-v1", 100_000, -100, {
        "learning_rate": 6.3e-4, "batch_size": 128, "buffer_size": 50_000, "learning_starts": 0, "gamma": 0.99,
        "target_update_interval": 250, "train_freq": 4, "gradient_steps": -1, "exploration_fraction": 0.12,
        "exploration_final_eps": 0.1, "policy_kwargs": {"net_arch": [256, 256], "n_quantiles": 25},
    }),
    "MountainCar-v0": Task("gymnax/MountainCar-v0", 120_000, -110, {
        "learning_rate": 4e-3, "batch_size": 128, "buffer_size": 10_000, "learning_starts": 1_000, "gamma": 0.98,
        "target_update_interval": 600, "train_freq": 16, "gradient_steps": 8, "exploration_fraction": 0.2,
        "exploration_final_eps": 0.07, "policy_kwargs": {"net_arch": [256, 256], "n_quantiles": 25},
    }),
    "LunarLander-v3": Task("gymnasium/LunarLander-v3", 100_000, 200, {
        "learning_rate": lambda left: 1.5e-3 * left, "batch_size": 128, "buffer_size": 100_000,
        "learning_starts": 10_000, "gamma": 0.995, "target_update_interval": 1, "train_freq": 256,
        "gradient_steps": -1, "exploration_fraction": 0.24, "exploration_final_eps": 0.18,
        "policy_kwargs": {"net_arch": [256, 256], "n_quantiles": 170},
    }),
}  # fmt: skip


@dataclass(frozen=True)
class Options:
    """What to train."""

    agents: tuple[str, ...] = AGENTS
    """Which agents."""
    tasks: tuple[str, ...] = tuple(TASKS)
    """Which tasks."""
    seeds: int = 10
    """Seeds of each."""
    seed_start: int = 4_001
    """The first of them."""
    out: Path = RESULTS
    """Folder of the table and of the runs."""


def main(options: Options) -> None:
    use_compilation_cache()
    for name, known, what in ((options.agents, AGENTS, "agent"), (options.tasks, TASKS, "task")):
        for each in name:
            if each not in known:
                raise UserError(f"Unknown {what} {each!r}; known are {', '.join(known)}.")
    rows = Rows(
        options.out / "classic_control.csv", ("task", "agent", "seed"), ("greedy", "coverage", "nongreedy", "seconds")
    )
    for seed in range(options.seed_start, options.seed_start + options.seeds):
        for task in options.tasks:
            for agent in options.agents:
                if not rows.has(task, agent, seed):
                    began = time.monotonic()
                    found = sb3(task, seed) if agent == SB3 else ours(task, agent, seed, options.out)
                    rows.add(task=task, agent=agent, seed=seed, seconds=round(time.monotonic() - began), **found)
    print(summary(rows.read()))


def ours(task: str, agent: str, seed: int, out: Path) -> dict[str, Any]:
    """The mean return of greedy episodes; coverage of the interval and non-greedy actions in the second half."""
    run = declared(task, agent, seed)
    path, config = out / "runs" / run.name, run.config
    if (path / "curves.json").exists() and not (path / "checkpoints").exists():
        raise UserError(f"Of {path} the curves alone are kept, so it cannot be played; train it anew in another --out.")
    if path.exists():
        train.resume(path)
    else:
        train.start(config, path)
    found = evaluate(path, EPISODES, max_episode_frames=10_000).seeds[0].returns
    half = config.frames / 2
    late = [row for row in read_episodes(path, config) if row.frame > half]
    nongreedy = sum(row.nongreedy * row.length for row in late) / sum(row.length for row in late)
    covered = [row.values.get("coverage") for row in read_metrics(path, config) if row.frame > half]
    return {
        "greedy": f"{statistics.fmean(found):.1f}",
        "coverage": f"{100 * statistics.fmean(c for c in covered if c is not None):.1f}" if covered[0] else "",
        "nongreedy": f"{100 * nongreedy:.1f}",
    }


def declared(task: str, agent: str, seed: int) -> sweep.RunSpec:
    """That run of the sweep."""
    one = sweep.read(SWEEP) | {"agents": agent, "seeds": 1, "seed_start": seed}
    return next(run for run in sweep.expand(sweep.complete(one)) if run.config.env == TASKS[task].env)


def sb3(task: str, seed: int) -> dict[str, Any]:
    """The same for sb3-contrib's QR-DQN with the Zoo's settings."""
    import torch
    from sb3_contrib import QRDQN
    from stable_baselines3.common.evaluation import evaluate_policy

    torch.set_num_threads(1)  # these networks are too small for more
    model = QRDQN("MlpPolicy", task, device="cpu", seed=seed, **TASKS[task].zoo)
    model.learn(TASKS[task].frames)
    env = model.get_env()
    assert env is not None
    mean, _ = evaluate_policy(model, env, n_eval_episodes=EPISODES, deterministic=True)
    return {"greedy": f"{mean:.1f}"}


def summary(rows: list[dict[str, str]]) -> str:
    """A table of all seeds."""
    lines = [
        "| task | agent | greedy return, seed by seed | solved | coverage | seconds a seed |",
        "|---|---|---|---|---|---|",
    ]
    for task, (_, frames, goal, _) in TASKS.items():
        for agent in AGENTS:
            of = [r for r in rows if (r["task"], r["agent"]) == (task, agent)]
            if of:
                greedy = sorted((float(r["greedy"]) for r in of), reverse=True)
                covered = [float(r["coverage"]) for r in of if r["coverage"]]
                span = f"{min(covered):.1f} to {max(covered):.1f} %" if covered else ""
                solved = f"{sum(g >= goal for g in greedy)} of {len(greedy)} at {goal:,}"
                seconds = statistics.median(float(r["seconds"]) for r in of)
                shown = ", ".join(f"{g:.0f}" for g in greedy)
                lines.append(f"| {task}, {frames:,} frames | {agent} | {shown} | {solved} | {span} | {seconds:.0f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    try:
        main(tyro.cli(Options, description=__doc__))
    except UserError as error:
        sys.exit(str(error))
