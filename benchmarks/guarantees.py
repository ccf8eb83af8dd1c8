"""What calibration gives trained agents: coverage before and after, and what is noticed when the world changes.

    python benchmarks/guarantees.py                        # trains what is missing, 40 minutes; begins where it stopped
    python benchmarks/guarantees.py --only cartpole
    python benchmarks/guarantees.py --cost                 # predictions of calibrated and uncalibrated agents, in turns

CartPole (compiled, 30,000 frames) and Breakout (preset quick, 60,000 frames), one seed each, by four agents that have
doubt. Each is calibrated on 200 episodes and judged on 1,000 others, then on 200 in each changed world. The monitor is
repeated on episodes drawn from these without replacement. Rows go to guarantees.csv in --runs as they are found.
"""

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import tyro
from rows import Rows
from sklearn.metrics import roc_auc_score

from ceqr import envs
from ceqr.calibrate import COVERAGE, EPISODES, LIMIT, Calibration, Played, calibration_of, checksum, play, returns
from ceqr.cli import main as ceqr
from ceqr.cli import use_compilation_cache
from ceqr.conformal import shares
from ceqr.envs.base import TimeStep
from ceqr.errors import UserError
from ceqr.library import DQN, TrainableAgent
from ceqr.monitor import DriftMonitor
from ceqr.progress import Progress
from ceqr.streams import Stream

JUDGED, CHANGED = 1_000, 200  # episodes
REPEATS, WATCHED = 200, 200  # of the monitor; episodes each time
DELTA = 0.01
STRANGE = 0.05  # novelty at or below it
VARIANTS: dict[str, list[str]] = {
    "conjugate": [],
    "learned": ["--evidence", "learned"],
    "ua-dqn": ["--agent", "ua-dqn"],
    "bootstrapped-dqn": ["--agent", "bootstrapped-dqn"],
}
RUNS: dict[str, list[str]] = {
    "cartpole": ["--env", "gymnax/CartPole-v1", "--frames", "30000"],
    "breakout": ["--env", "minatar/breakout", "--preset", "quick"],
}
# Without sticky actions a greedy agent plays but two different episodes of Breakout, by the side from which the ball
# comes. So the same agents are also calibrated in the world with them, as if that were their home.
GAMES: dict[str, str] = {"cartpole": "cartpole", "breakout": "breakout", "sticky breakout": "breakout"}
FIELDS: tuple[str, ...] = (
    "game", "variant", "change", "mean_return", "coverage_before", "width_before", "coverage", "width", "strange",
    "auroc", "alarms", "episodes_to_alarm",
)  # fmt: skip


@dataclass(frozen=True)
class Noisy:
    """A compiled environment seen through noise: normal, or cells that are flipped where they are true or false."""

    env: Any
    scale: float

    def __getattr__(self, name: str) -> Any:
        if name in ("name", "num_actions", "observation_shape", "observation_dtype", "observations"):
            return getattr(self.env, name)
        raise AttributeError(name)

    def _see(self, observation: jax.Array, key: jax.Array) -> jax.Array:
        if observation.dtype == bool:
            return observation ^ jax.random.bernoulli(key, self.scale, observation.shape)
        return observation + self.scale * jax.random.normal(key, observation.shape, observation.dtype)

    def reset(self, key: jax.Array) -> tuple[Any, jax.Array]:
        state, observation = self.env.reset(key)
        return state, self._see(observation, jax.random.fold_in(key, 1))

    def step(self, state: Any, action: jax.Array, key: jax.Array) -> tuple[Any, TimeStep]:
        state, after = self.env.step(state, action, key)
        key = jax.random.fold_in(key, 1)
        seen = self._see(after.observation, key)
        return state, after._replace(observation=seen, successor=self._see(after.successor, key))


def changes(game: str) -> dict[str, Any]:
    """The changed worlds of a game, by name."""
    if game == "cartpole":
        make = envs.make
        return {
            "gravity 9.8 to 20": make("gymnax/CartPole-v1", gravity=20.0),
            "pole twice as long": make("gymnax/CartPole-v1", length=1.0, polemass_length=0.1),
            "noise 0.05 on what is seen": Noisy(make("gymnax/CartPole-v1"), 0.05),
        }
    paper, sticky = (envs.make("minatar/breakout", protocol=protocol) for protocol in ("paper", "standard"))
    if game == "breakout":
        return {"sticky actions": sticky, "1 % of the cells flipped": Noisy(paper, 0.01)}
    return {"no sticky actions": paper, "1 % of the cells flipped": Noisy(sticky, 0.01)}


def home(game: str, own: Any) -> Any:
    """The world in which an agent is calibrated."""
    return envs.make("minatar/breakout", protocol="standard") if game == "sticky breakout" else own


@dataclass(frozen=True)
class Options:
    runs: Path = Path("runs")
    """Where runs are, or are trained; and the table."""
    only: tuple[str, ...] = ()
    """Games; all unless given."""
    cost: bool = False
    """Measure what a calibrated prediction costs instead."""


class Subject(NamedTuple):
    """An agent, calibrated and judged."""

    agent: Any
    calibration: Calibration
    before: Played  # the episodes of its calibration
    judged: Played


def main(options: Options) -> None:
    use_compilation_cache()
    if options.cost:
        measure_cost(options.runs)
        return
    table = Rows(options.runs / "guarantees.csv", FIELDS[:3], FIELDS[3:])
    for game in options.only or tuple(GAMES):
        if game not in GAMES:
            raise UserError(f"--only knows {', '.join(GAMES)}, not {game!r}.")
        for variant in VARIANTS:
            path = options.runs / f"{GAMES[game]}-{variant}"
            wanted = ["none", *changes(game)]
            wanted = [change for change in wanted if not table.has(game, variant, change)]
            if not wanted:
                continue
            train = ["train", *RUNS[GAMES[game]], *VARIANTS[variant], "--out", str(path)]
            if not (path / "config.json").exists() and ceqr(train):
                raise UserError(f"{path} could not be trained.")
            for row in results(game, path, wanted):
                table.add(game=game, variant=variant, **row)
    report(table.read())


def results(game: str, path: Path, wanted: list[str]) -> Iterator[dict[str, Any]]:
    """What one agent is worth, in each world."""
    agent: Any = TrainableAgent.from_run(path)
    options, env = (agent._agent, agent._learned.state), home(game, agent._env)
    print(f"{path}: playing {EPISODES + JUDGED:,} episodes", flush=True)
    before = play(*options, env, 0, EPISODES, COVERAGE, world=agent.seed)
    judged = play(*options, env, 0, JUDGED, COVERAGE, world=agent.seed, which=Stream.EVALUATION)
    facts = {
        "limit": LIMIT,
        "seed": 0,
        "env": env.name,
        "weights": checksum(agent._agent.at_play(agent._learned.state)),
    }
    calibration = calibration_of(before, agent.hyperparameters.discount, COVERAGE, **facts)
    subject = Subject(agent, calibration, before, judged)
    for change in wanted:
        if change == "none":
            played = judged
        else:
            played = play(
                *options, changes(game)[change], 0, CHANGED, COVERAGE, world=agent.seed, which=Stream.MONITORING
            )
        alarms = watch(subject, None if change == "none" else played, f"{path}, {game}, {change}")
        found = [each for each in alarms if each is not None]
        yield {
            "change": change,
            "mean_return": played.per_episode()["total"].mean(),
            **coverage(subject, played),
            **novelty(subject, played),
            "alarms": len(found) / REPEATS,
            "episodes_to_alarm": np.median([WATCHED + 1 if each is None else each for each in alarms]),
        }


def coverage(subject: Subject, played: Played) -> dict[str, float]:
    """Of the agent's own interval and of the calibrated one, for a random step of an episode whose return is known."""
    total, known = returns(played, subject.agent.hyperparameters.discount)
    counts = np.add.reduceat(known, played.starts, dtype=int)
    weight = shares(counts[counts > 0])
    lower, upper, total, by = played.lower[known], played.upper[known], total[known], subject.calibration.widening

    def mean(values: np.ndarray) -> float:
        return float(np.average(values, weights=weight))

    return {
        "coverage_before": mean((lower <= total) & (total <= upper)),
        "width_before": mean(upper - lower),
        "coverage": mean((lower - by <= total) & (total <= upper + by)),
        "width": mean(np.maximum(upper - lower + 2 * by, 0)),
    }


def novelty(subject: Subject, played: Played) -> dict[str, float]:
    """How often a random step is strange, and how well novelty tells it from one of the unchanged world."""
    rarity = subject.calibration.rarity
    assert rarity is not None
    p, weight = [], []
    for each in (subject.judged, played):
        assert each.doubt is not None
        p.append(rarity.of(each.doubt.astype(np.float32)))
        weight.append(shares(each.lengths))
    label = np.repeat([0, 1], [len(p[0]), len(p[1])])
    same = played is subject.judged
    auroc = 0.5 if same else roc_auc_score(label, -np.concatenate(p), sample_weight=np.concatenate(weight))
    return {"strange": float(np.average(p[1] <= STRANGE, weights=weight[1])), "auroc": float(auroc)}


def watch(subject: Subject, changed: Played | None, title: str) -> list[int | None]:
    """When the monitor alarms, again and again: each time other episodes are the calibration's and those that follow.

    Drawn without replacement, episodes of one world are as exchangeable as fresh ones.
    """
    parts = [each.per_episode() for each in (subject.before, subject.judged)]
    same = {kind: np.concatenate([part[kind] for part in parts]) for kind in parts[0]}
    found: list[int | None] = []
    with Progress(title, REPEATS, unit="monitors") as progress:
        for repeat in range(REPEATS):
            rng = np.random.default_rng(repeat)
            order = rng.permutation(len(same["total"]))
            reference, order = order[:EPISODES], order[EPISODES:]
            numbers = same if changed is None else changed.per_episode()
            order = order if changed is None else rng.permutation(len(numbers["total"]))
            monitor = DriftMonitor({kind: each[reference] for kind, each in same.items()}, DELTA, repeat)
            for i in order[:WATCHED]:
                if monitor.update(**{kind: float(each[i]) for kind, each in numbers.items()}):
                    break
            found.append(monitor.alarmed_at)
            progress.update(repeat + 1, "")
    return found


def report(found: list[dict[str, str]]) -> None:
    """The tables of docs/guarantees.md."""
    games = {game: [r for r in found if r["game"] == game] for game in GAMES}
    print("\n| agent | mean return | own interval: coverage | mean width | calibrated: coverage | mean width |")
    print("|---|---|---|---|---|---|")
    for game, each in games.items():
        for r in each:
            if r["change"] == "none":
                own = f"{percent(r['coverage_before'])} | {float(r['width_before']):.3g}"
                own = own if float(r["width_before"]) else "none (no quantiles) | "
                print(
                    f"| {game}, {r['variant']} | {float(r['mean_return']):.4g} | {own} | {percent(r['coverage'])} | "
                    f"{float(r['width']):.3g} |"
                )
    print("\n| world | agent | mean return | AUROC | steps of novelty at most 0.05 | alarms | episodes to alarm |")
    print("|---|---|---|---|---|---|---|")
    for game, each in games.items():
        for change in ["none", *changes(game)]:
            for r in (r for r in each if r["change"] == change):
                until = float(r["episodes_to_alarm"])
                print(
                    f"| {game}, {change} | {r['variant']} | {float(r['mean_return']):.4g} | {float(r['auroc']):.2f} | "
                    f"{percent(r['strange'])} | {percent(r['alarms'])} | {f'{until:.0f}' if until <= WATCHED else ''} |"
                )


def percent(share: str) -> str:
    return f"{100 * float(share):.1f} %"


def measure_cost(runs: Path) -> None:
    """The time of a prediction with a calibration and without, the median of many turns."""
    paths = [runs / f"cartpole-{variant}" for variant in VARIANTS]
    agents = {path.name: TrainableAgent.from_run(path) for path in paths if (path / "config.json").exists()}
    agents["dqn of 64 units, untrained"] = DQN("gymnax/CartPole-v1", hidden=(64,))
    print("| agent | rows | uncalibrated | calibrated | ratio |\n|---|---|---|---|---|")
    for name, agent in agents.items():
        agent.calibrate(50, max_episode_frames=1_000)
        with_ = agent._learned
        agent._publish(with_.state, with_.frames)
        without = agent._learned
        for count in (1, 32):
            seen = np.zeros(4, np.float32) if count == 1 else np.zeros((count, 4), np.float32)
            turns: list[list[float]] = []
            for _ in range(21):
                turn = []
                for learned in (without, with_):
                    agent._learned = learned
                    began = time.perf_counter()
                    for _ in range(200):
                        agent.predict(seen)
                    turn.append((time.perf_counter() - began) / 200)
                turns.append(turn)
            plain, calibrated = 1e6 * np.median(turns[1:], axis=0)
            print(f"| {name} | {count} | {plain:.0f} us | {calibrated:.0f} us | {calibrated / plain:.2f} |", flush=True)


if __name__ == "__main__":
    try:
        main(tyro.cli(Options, description=__doc__))
    except UserError as error:
        sys.exit(str(error))
