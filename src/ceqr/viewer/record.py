"""Episodes of a trained agent, frame by frame: what it saw, what it believed, what it chose and what came of it.

The play is on a stream of its own (`Stream.WATCHING`), keyed by a seed and the episode's number, so that two agents can
be watched on the same randomness.
"""

import os
import warnings
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ceqr.agents.base import Agent, AgentState, Beliefs
from ceqr.calibrate import Calibration, Played, judge, read_calibration, returns
from ceqr.config import RunConfig, make_env, require_trust
from ceqr.envs import is_compiled, parse_kwargs
from ceqr.errors import UserError
from ceqr.rollout import EVERYTHING, Steps, rollout
from ceqr.runs import read_agent, read_config
from ceqr.streams import Stream
from ceqr.training.players import make_loop
from ceqr.viewer.pictures import shrink

KEPT = EVERYTHING - {"successor"} | {"sampled"}


@dataclass(frozen=True)
class Subject:
    """An agent to watch: one seed of a run, as its newest checkpoint has it."""

    path: Path
    config: RunConfig[Any]
    seed: int
    frame: int  # of training
    agent: Agent
    state: AgentState
    env: Any
    pictures: bool  # whether the environment shows itself
    calibration: Calibration | None


@dataclass(frozen=True)
class Episode:
    """One episode: arrays are [steps, ...]. A frame is what the agent saw, and the step that it then took."""

    number: int
    observation: np.ndarray
    action: np.ndarray
    greedy: np.ndarray
    sampled: np.ndarray
    reward: np.ndarray
    beliefs: Beliefs  # of all actions; interval and novelty where the agent is calibrated
    end: str  # "terminated", "truncated" by the environment, or "cut" by the limit of the watching
    outcome: np.ndarray  # the discounted return that really followed; NaN where it is not known
    pictures: list[bytes] | None  # of each frame, as PNG

    def __len__(self) -> int:
        return len(self.action)

    def total(self, steps: int) -> float:
        """The plain sum of the first rewards, without what rounding leaves of 0.1s."""
        return round(float(self.reward[:steps].sum(dtype=np.float64)), 5) + 0.0

    def of_greedy(self, belief: str) -> np.ndarray | None:
        """[steps]: a belief about the greedy action; None if the agent has none."""
        told = getattr(self.beliefs, belief)
        return None if told is None else told[np.arange(len(self)), self.greedy]


def open_run(path: Path, agent_seed: int | None = None, imports: Collection[str] = ()) -> Subject:
    """Reads a run, to watch one of its seeds, the first unless told; `UserError` in one sentence if it cannot be."""
    config, _ = read_config(path)
    agent_seed = config.seed_start if agent_seed is None else agent_seed
    if agent_seed not in config.seed_numbers:
        raise UserError(f"{path} has no seed {agent_seed}; it has {', '.join(map(str, config.seed_numbers))}.")
    require_trust(config.env, imports, str(path))
    env = config.make_env()
    agent = make_loop(config.agent, config.hyper, env).agent
    state, frame = read_agent(path, agent, config.seed_numbers.index(agent_seed))
    state = agent.at_play(state)
    calibration = read_calibration(path, frame, agent_seed, state)
    shown = None if is_compiled(env) else _with_pictures(config)
    return Subject(path, config, agent_seed, frame, agent, state, shown or env, shown is not None, calibration)


def _with_pictures(config: RunConfig[Any]) -> Any:
    """The run's environment made to show itself; None if it cannot."""
    kwargs = {**parse_kwargs(config.env_kwargs), "render_mode": "rgb_array"}
    for driver in ("SDL_AUDIODRIVER", "SDL_VIDEODRIVER"):  # pygame looks for a sound card and a display, and complains
        os.environ.setdefault(driver, "dummy")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Gymnasium warns about a mode that an environment does not have
            env = make_env(config.env, config.protocol, config.max_episode_frames, kwargs)
            lanes = env.vector(1)
            try:
                lanes.reset([0])
                lanes.render()
            finally:
                lanes.close()
    except Exception:  # whatever an environment raises that has no screen, or lacks a library to draw it
        return None
    return env


def play(
    subject: Subject,
    seed: int,
    episodes: int,
    limit: int,
    explore: bool = False,
    report: Callable[[int, int], None] = lambda over, steps: None,
) -> list[Episode]:
    """Plays so many episodes; `report` hears how many are over, and the steps made."""
    keep = KEPT | {"picture"} if subject.pictures else KEPT
    told = rollout(
        subject.agent, subject.state, subject.env, seed, episodes, limit,
        keep=keep, explore=explore, frame=subject.frame, which=Stream.WATCHING, world=subject.seed,
    )  # fmt: skip
    parts: dict[int, list[Any]] = {}
    pictures: dict[int, list[bytes]] = {}
    over = steps_made = 0
    for steps in _without_warnings(told):
        for game, number in enumerate(map(int, steps.episode)):
            going = steps.going[:, game]
            if not going.any():
                continue
            rest = steps._replace(episode=(), picture=None)
            parts.setdefault(number, []).append(jax.tree.map(lambda x, g=game, going=going: x[going, g], rest))
            if subject.pictures:
                pictures.setdefault(number, []).extend(shrink(picture[game]) for picture in steps.picture)
        over += int((steps.going & (steps.terminated | steps.truncated)).sum())
        steps_made += int(steps.going.sum())
        report(over, steps_made)
    whole = {number: jax.tree.map(lambda *each: np.concatenate(each), *part) for number, part in parts.items()}
    return [_episode(subject, number, whole[number], pictures.get(number)) for number in sorted(whole)]


def _without_warnings(told: Iterator[Steps]) -> Iterator[Steps]:
    """Without that of Gymnasium about environments that name no speed for their screen: we have a speed of our own."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*No render fps")
        yield from told


def _episode(subject: Subject, number: int, steps: Steps, pictures: list[bytes] | None) -> Episode:
    if not all(np.isfinite(each).all() for each in jax.tree.leaves((steps.reward, steps.beliefs))):
        raise UserError("Rewards or beliefs are not finite: the agent's training has diverged, so train it anew.")
    terminated = bool(steps.terminated[-1])
    reward = steps.reward.astype(np.float64)
    played = Played(reward, reward, reward, None, np.array([len(reward)]), np.array([terminated]))
    outcome, known = returns(played, subject.agent.hyper.discount)
    return Episode(
        number=number,
        observation=steps.observation,
        action=steps.action,
        greedy=steps.greedy,
        sampled=steps.sampled,
        reward=steps.reward,
        beliefs=_calibrated(subject.calibration, steps),
        end="terminated" if terminated else "truncated" if steps.truncated[-1] else "cut",
        outcome=np.where(known, outcome, np.nan),
        pictures=pictures,
    )


def _calibrated(calibration: Calibration | None, steps: Steps) -> Beliefs:
    """The beliefs with interval and novelty, which are of the greedy action, where there is a calibration."""
    if calibration is None:
        return steps.beliefs
    lower, upper, doubt = judge(steps.beliefs, steps.greedy, calibration.coverage)
    rows = np.stack([np.asarray(each) for each in (lower, upper, lower if doubt is None else doubt)], axis=1)
    interval, novelty = calibration.tell(rows)
    return steps.beliefs._replace(interval=interval, novelty=novelty)
