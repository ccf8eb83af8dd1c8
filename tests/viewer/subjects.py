"""Agents to watch that nobody trained: tiny networks, whose weights are as they were drawn."""

from pathlib import Path
from typing import Any

import jax
import numpy as np

from ceqr import envs
from ceqr.agents import agent_classes
from ceqr.agents.base import Beliefs, Interval
from ceqr.config import RunConfig
from ceqr.viewer.page import Watched
from ceqr.viewer.record import Episode, Subject
from ceqr.viewer.scenes import action_names, scene_of

SMALL = {"hidden": (16,), "batch_size": 8, "replay_size": 300}


def subject(agent: str, env: str, seed: int = 0, **options: Any) -> Subject:
    """An agent of that name in an environment, as a run would have it that never learned."""
    sizes: dict[str, Any] = SMALL | ({"quantiles": 5} if agent in ("ceqr-dqn", "qr-dqn", "ua-dqn") else {}) | options
    kind, hyper = agent_classes(agent)
    config = RunConfig(hyper(**sizes), agent=agent, env=env)
    made = envs.make(env)
    brain = kind(config.hyper, made.observation_shape, made.num_actions)
    state = brain.at_play(jax.jit(brain.init)(jax.random.key(seed)))
    return Subject(Path(f"runs/{agent}"), config, seed, 1_000, brain, state, made, False, None)


def watched(subjects: list[Subject], episodes: list[list[Episode]], **more: Any) -> Watched:
    env = subjects[0].env
    scene = scene_of(env, [episode for each in episodes for episode in each])
    options = {"seed": 0, "explore": False, "heats": [None] * len(subjects), **more}
    return Watched(subjects, episodes, scene, action_names(env), **options)


def invented(length: int, actions: int, quantiles: int, observation: np.ndarray, seed: int = 0) -> Episode:
    """An episode that nobody played, with numbers as they might be: hard to compress."""
    chance = np.random.default_rng(seed)
    value = 10 + np.cumsum(chance.normal(size=(length, actions)), 0) / 10
    spread = np.sort(chance.normal(size=(length, actions, quantiles)), -1)
    beliefs = Beliefs(
        mean=value.astype(np.float32),
        epistemic=chance.gamma(2, 0.1, (length, actions)).astype(np.float32),
        aleatoric=chance.gamma(2, 0.5, (length, actions)).astype(np.float32),
        quantiles=(value[..., None] + spread).astype(np.float32),
        interval=Interval(value[:, 0] - 2, value[:, 0] + 2),
        novelty=chance.uniform(size=length).astype(np.float32),
    )
    choice = chance.integers(actions, size=(3, length))
    return Episode(
        number=0, observation=observation, action=choice[0], greedy=choice[1], sampled=choice[2],
        reward=chance.normal(size=length).astype(np.float32), beliefs=beliefs, end="cut",
        outcome=chance.normal(size=length), pictures=None,
    )  # fmt: skip
