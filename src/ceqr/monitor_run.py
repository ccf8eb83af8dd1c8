"""`ceqr monitor`: a calibrated run at play, in its own world or in another, with a `DriftMonitor` that watches."""

import dataclasses
import itertools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ceqr import envs
from ceqr.calibrate import Played, play_in_parts, read_calibration
from ceqr.config import RunConfig, require_trust
from ceqr.errors import UserError
from ceqr.monitor import DriftMonitor
from ceqr.progress import Progress
from ceqr.runs import read_agent, read_config
from ceqr.streams import Stream
from ceqr.training.players import make_loop


@dataclass(frozen=True)
class Watched:
    """What the monitor made of it."""

    env: str
    delta: float
    reference: int  # episodes of the calibration
    episodes: int  # up to the alarm, or to the end
    alarm: bool
    capital: float
    capitals: dict[str, float]  # of each kind of number
    history: list[float]  # the capital after each episode

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def monitor_run(
    path: Path,
    changed: Mapping[str, Any],
    episodes: int = 200,
    delta: float = 0.01,
    agent_seed: int | None = None,
    seed: int = 0,
    quiet: bool = False,
    imports: Collection[str] = (),
) -> Watched:
    """Plays up to so many episodes, and stops at an alarm.

    changed: what is different from the run's environment: env, env_kwargs, protocol; None for what is not.
    """
    if episodes < 1:
        raise UserError(f"--episodes must be at least 1, not {episodes:,}.")
    if not 0 < delta < 1:
        raise UserError(f"--delta must be above 0 and below 1, not {delta:g}.")
    config, _ = read_config(path)
    agent_seed = config.seed_start if agent_seed is None else agent_seed
    if agent_seed not in config.seed_numbers:
        raise UserError(f"{path} has no seed {agent_seed}; it has {', '.join(map(str, config.seed_numbers))}.")
    require_trust(config.env, imports, path)
    own, there = config.make_env(), _elsewhere(config, changed)
    env = there.make_env()
    _check_spaces(own, env)
    agent = make_loop(config.agent, config.hyper, own).agent
    state, frame = read_agent(path, agent, config.seed_numbers.index(agent_seed))
    calibration = read_calibration(path, frame, agent_seed, state)
    if calibration is None:
        raise UserError(f"{path} has no calibration at frame {frame:,}; make one with 'ceqr calibrate {path}'.")
    monitor = DriftMonitor(calibration.reference, delta, seed)
    history: list[float] = []
    options = (agent, state, env, seed, episodes, calibration.coverage, calibration.limit)
    with Progress("watching", episodes, unit="episodes", quiet=quiet) as progress:
        parts = play_in_parts(
            *options, world=agent_seed, which=Stream.MONITORING, report=lambda over: progress.update(over, "")
        )
        for numbers in itertools.chain.from_iterable(map(_one_by_one, parts)):
            monitor.update(**numbers)
            history.append(monitor.capital)
            if monitor.alarm:
                break
    return Watched(
        env=there.describe_env(),
        delta=delta,
        reference=calibration.episodes,
        episodes=monitor.episodes,
        alarm=monitor.alarm,
        capital=monitor.capital,
        capitals=monitor.capitals,
        history=history,
    )


def _one_by_one(played: Played) -> Iterator[dict[str, float]]:
    numbers = played.per_episode()
    for each in zip(*numbers.values(), strict=True):
        yield dict(zip(numbers, map(float, each), strict=True))


def _elsewhere(config: RunConfig[Any], changed: Mapping[str, Any]) -> RunConfig[Any]:
    """The run's configuration in another environment; options of one environment are not those of another."""
    given = {name: value for name, value in changed.items() if value is not None}
    if given.get("env", config.env) != config.env:
        given = {"env_kwargs": (), "protocol": RunConfig.protocol, **given}
    return dataclasses.replace(config, **given)


def _check_spaces(own: Any, env: Any) -> None:
    forms = [envs.observation_format(each) for each in (own, env)]
    if forms[0] != forms[1] or own.num_actions != env.num_actions:
        raise UserError(
            f"{env.name} has {env.num_actions} actions and observations of {forms[1].describe()}; "
            f"the agent was made for {own.num_actions} actions and {forms[0].describe()}."
        )
