"""Run directories that nobody trained: written by the training's own writer, with returns that are known."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ceqr.config import RunConfig, default_config
from ceqr.runs import EpisodeRow
from ceqr.training import run as run_directory

LENGTH = 10  # frames of an episode
NAN = float("nan")


def config_of(
    agent: str = "ceqr-dqn", env: str = "minatar/breakout", frames: int = 4_000, seeds: int = 3, **options: Any
) -> RunConfig[Any]:
    """A configuration; options of the agent go to the agent."""
    config = default_config(agent, "quick", env)
    names = {field.name for field in dataclasses.fields(config.hyper)}
    hyper = dataclasses.replace(config.hyper, **{k: v for k, v in options.items() if k in names}, learning_starts=100)
    rest = {k: v for k, v in options.items() if k not in names}
    return dataclasses.replace(config, hyper=hyper, frames=frames, seeds=seeds, log_every=200, **rest)


def write(
    path: Path,
    config: RunConfig[Any],
    score: Callable[[int, int], float] = lambda seed, frame: seed + frame / 1_000,
    until: int | None = None,
) -> None:
    """A run whose episodes have LENGTH frames and return score(seed, frame), ended `until` a frame."""
    end = until or config.frames
    knows = config.agent in ("ceqr-dqn", "ua-dqn")
    columns = ("loss", "epistemic", "aleatoric", "start_value", *(("coverage",) if config.agent == "ceqr-dqn" else ()))
    run = run_directory.create(path, config, columns)
    run.begin(None)
    for frame in range(LENGTH, end + 1, LENGTH):
        share = 0.25 if frame <= end / 2 else 0.05
        rows = [
            EpisodeRow(seed, frame, score(seed, frame), LENGTH, share, 1 - share if knows else NAN)
            for seed in config.seed_numbers
        ]
        run.add_episodes(rows)
        if frame % config.log_every == 0:
            for seed in config.seed_numbers:
                values = {"loss": 1.0, "epistemic": 1 - frame / (2 * end), "aleatoric": 2.0, "start_value": 1.0}
                run.add_metrics(seed, frame, {name: values.get(name, 0.9) for name in columns})
            run.add_timing(frame, frame / 100, 100.0)
    run.flush()
    run.write_summary(end)
    run.close()
