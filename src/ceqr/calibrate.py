"""What an agent's beliefs are worth, measured on episodes that it never learned from, and kept with the agent.

The frozen greedy policy is played on a stream of its own. The returns say how far the agent's interval must be moved,
and the doubts say which doubt is rare (`ceqr.conformal`); docs/guarantees.md has what is guaranteed, and for whom. A
calibration belongs to one set of weights, whose checksum it knows.

    runs/x/calibration-<frame>.npz    one for all seeds of a run; its members have checksums, and are never overwritten
"""

import dataclasses
import itertools
import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.signal import lfilter

from ceqr import arrays
from ceqr.agents.base import Agent, AgentState, Beliefs, Interval, pick
from ceqr.config import build, require_trust
from ceqr.conformal import FLOAT32, Rarity, discrepancy, least_needed, quantile, rarity, shares
from ceqr.errors import UserError
from ceqr.progress import Progress
from ceqr.rollout import Steps, rollout
from ceqr.runs import latest_checkpoint, read_agent, read_config
from ceqr.streams import Stream
from ceqr.training.players import make_loop

EPISODES, COVERAGE, LIMIT = 200, 0.9, 10_000  # defaults: episodes, share, frames of an episode
MISSING = 0.01  # a return that was cut off is known if what is missing would count for at most this much (discount^k)
FORMAT = 1  # of the file


class Judgement(NamedTuple):
    """What a calibration is about: of the greedy action, [batch]."""

    lower: Any  # the agent's own interval
    upper: Any
    doubt: Any  # None for agents that have none


def judge(beliefs: Beliefs, action: jax.Array, coverage: float) -> Judgement:
    """Beliefs about the greedy actions, from those about all, with a batch axis.

    The interval is between the quantiles at (1 -+ coverage) / 2, in straight lines between those that the agent has.
    For agents without quantiles it is the mean alone, and the correction is of residuals around it.
    """
    doubt = None if beliefs.epistemic is None else pick(beliefs.epistemic, action)
    if beliefs.quantiles is None:
        mean = pick(beliefs.mean, action)
        return Judgement(mean, mean, doubt)
    quantiles = pick(beliefs.quantiles, action)
    ends = [_at_level(quantiles, (1 + sign * coverage) / 2) for sign in (-1, 1)]
    return Judgement(jnp.minimum(*ends), jnp.maximum(*ends), doubt)  # learned quantiles may cross


def _at_level(quantiles: jax.Array, level: float) -> jax.Array:
    """[batch] at a level, from [batch, N] at the levels (i - 1/2) / N; the outermost stand for all beyond them."""
    count = quantiles.shape[-1]
    place = min(max(level * count - 0.5, 0.0), count - 1.0)
    below = int(place)
    above = min(below + 1, count - 1)
    return quantiles[:, below] + (place - below) * (quantiles[:, above] - quantiles[:, below])


@dataclass(frozen=True)
class Judged:
    """An agent at play of whose beliefs only the judgement is told: they would fill the memory."""

    agent: Agent
    coverage: float

    def at_play(self, state: AgentState) -> AgentState:
        return self.agent.at_play(state)

    def act_greedily(self, state: AgentState, observations: jax.Array) -> tuple[jax.Array, Judgement]:
        action, beliefs = self.agent.act_greedily(state, observations)
        return action, judge(beliefs, action, self.coverage)

    def init_memory(self, state: AgentState, key: jax.Array) -> Any:
        return self.agent.init_memory(state, key)


class Played(NamedTuple):
    """Whole episodes, one after the other: [steps] but for the last two, which are [episodes]."""

    reward: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    doubt: np.ndarray | None
    lengths: np.ndarray  # int: steps of each episode
    terminated: np.ndarray  # bool: whether it came to its own end, and was not cut off

    @property
    def starts(self) -> np.ndarray:
        return np.cumsum(self.lengths) - self.lengths

    def per_episode(self) -> dict[str, np.ndarray]:
        """One number of a kind an episode, what `DriftMonitor` watches: its return, and the mean doubt of its steps."""
        numbers = {} if self.doubt is None else {"doubt": np.add.reduceat(self.doubt, self.starts) / self.lengths}
        numbers["total"] = np.add.reduceat(self.reward, self.starts)
        return {kind: each.astype(np.float32) for kind, each in numbers.items()}


def play_in_parts(
    agent: Agent,
    state: AgentState,
    env: Any,
    seed: int,
    episodes: int,
    coverage: float,
    limit: int = LIMIT,
    *,
    world: int | None = None,
    which: Stream = Stream.CALIBRATION,
    report: Callable[[int], None] = lambda over: None,
) -> Iterator[Played]:
    """Plays greedy episodes, with the judgement of every step; those that are played side by side come together."""
    judged: Any = Judged(agent, coverage)
    told = rollout(judged, state, env, seed, episodes, limit, keep=("beliefs",), which=which, world=world)
    for first, stretches in itertools.groupby(told, key=lambda steps: int(steps.episode[0])):
        yield _gather(first, stretches, report)


def play(*arguments: Any, **options: Any) -> Played:
    """The same, all at once."""
    parts = list(play_in_parts(*arguments, **options))
    return jax.tree.map(lambda *each: np.concatenate(each), *parts)


def _gather(first: int, stretches: Iterable[Steps], report: Callable[[int], None]) -> Played:
    """Episodes that were played side by side, from the stretches in which they were told."""
    parts, numbers = [], []
    terminated = over = np.zeros(1, bool)
    for steps in stretches:
        going, game = steps.going, np.arange(len(steps.episode))
        numbers.append(np.broadcast_to(game, going.shape)[going])
        parts.append(jax.tree.map(lambda x, going=going: x[going], (steps.reward, steps.beliefs)))
        terminated = terminated | (going & steps.terminated).any(0)
        over = over | (going & (steps.terminated | steps.truncated)).any(0)
        report(first + int(over.sum()))
    number = np.concatenate(numbers)
    order = np.argsort(number, kind="stable")  # by episode, and within one as it was played
    reward, told = jax.tree.map(lambda *each: np.concatenate(each)[order].astype(np.float64), *parts)
    lower, upper, doubt = told
    if not all(np.isfinite(each).all() for each in jax.tree.leaves((reward, told))):
        raise UserError("Rewards or beliefs are not finite: the agent's training has diverged, so train it anew.")
    return Played(reward, lower, upper, doubt, np.bincount(number, minlength=len(terminated)), terminated)


def returns(played: Played, discount: float) -> tuple[np.ndarray, np.ndarray]:
    """The discounted return from every step on, and whether it is known.

    An episode that was cut off, by a time limit or by ours, has no end, and of its returns a part is missing: after k
    more steps, discount^k of the value of where it was cut off. They are known where that is at most `MISSING`.
    """
    return returns_of(played.reward, played.lengths, played.terminated, discount)


def returns_of(
    reward: np.ndarray, lengths: np.ndarray, terminated: np.ndarray, discount: float
) -> tuple[np.ndarray, np.ndarray]:
    """The same from rewards alone, [steps], of episodes one after the other."""
    parts = np.split(reward, np.cumsum(lengths)[:-1])
    total = np.concatenate([lfilter([1.0], [1.0, -discount], part[::-1])[::-1] for part in parts])
    left = np.concatenate([np.arange(n, 0, -1) for n in lengths])
    return total, np.repeat(terminated, lengths) | (float(discount) ** left <= MISSING)


@dataclass(frozen=True)
class Calibration:
    """What was learned about an agent's beliefs, for one set of weights.

    Examples:
        >>> from ceqr import DQN
        >>> agent = DQN("CartPole-v1", hidden=(16,)).calibrate(episodes=20)  # of an agent that has learned nothing
        >>> agent.calibration.episodes, agent.calibration.coverage
        (20, 0.9)
        >>> agent.calibration.width > 0
        True
    """

    coverage: float
    """The share of returns that intervals contain."""
    episodes: int
    """Episodes that were played."""
    known: int
    """Those of them with a step whose return is known; intervals stand on these."""
    widening: float
    """How far both bounds are moved outwards, in units of returns; inwards where negative."""
    own_coverage: float
    """The share of the known returns within the agent's own, uncorrected interval."""
    own_width: float
    """Its mean width; 0 for agents without quantiles, whose own interval is a point."""
    limit: int
    """Frames after which an episode was cut off."""
    seed: int
    """Of the play."""
    env: str
    """Where it was played."""
    weights: str
    """The checksum of what the agent has learned."""
    rarity: Rarity | None
    """How rare a doubt is; None for agents that have none."""
    reference: dict[str, np.ndarray]
    """Numbers of each episode, by kind: what `DriftMonitor` compares with."""

    @property
    def width(self) -> float:
        """The mean width of the corrected interval."""
        return max(self.own_width + 2 * self.widening, 0.0)

    def tell(self, rows: np.ndarray) -> tuple[Interval, Any]:
        """Interval and novelty, of one row or several that end in a judgement: lower, upper and doubt."""
        columns = rows.T
        lower, upper = columns[-3] - self.widening, columns[-2] + self.widening
        if self.widening < 0:  # an interval tightened to nothing is its middle
            middle = (lower + upper) / 2
            lower, upper = np.minimum(lower, middle), np.maximum(upper, middle)
        return Interval(lower, upper), None if self.rarity is None else self.rarity.of(columns[-1])

    def check(self, state: AgentState, where: object) -> None:
        """Raises `UserError` if it was made for other weights than those of that state, which is at play."""
        if self.weights != checksum(state):
            raise UserError(f"The calibration in {where} was made for other weights; calibrate this agent anew.")

    # Files: plain values as JSON, arrays as arrays.

    def to_tree(self) -> dict[str, Any]:
        return {"reference": self.reference, "rarity": self.rarity}

    def to_json(self) -> dict[str, Any]:
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        del plain["reference"], plain["rarity"]
        steps = 0 if self.rarity is None else len(self.rarity.scores)
        return {**plain, "kinds": list(self.reference), "steps": steps}

    @staticmethod
    def tree_like(values: Any, path: Path) -> dict[str, Any]:
        """The form of what `to_tree` gave, from what `to_json` gave; `UserError` if a file has it otherwise."""
        with _damaged_otherwise(path):
            steps, episodes = values["steps"], values["episodes"]
            rare: Any = Rarity(_float32(steps), _float32(steps + 1)) if steps else None
            return {"reference": {str(kind): _float32(episodes) for kind in values["kinds"]}, "rarity": rare}

    @classmethod
    def of(cls, tree: dict[str, Any], values: Any, path: Path) -> "Calibration":
        """From what `to_tree` and `to_json` gave; `UserError` if a file has it otherwise."""
        with _damaged_otherwise(path):
            plain = {name: value for name, value in values.items() if name not in ("kinds", "steps")}
            made = build(cls, plain | jax.tree.map(np.asarray, tree))
            possible = 0 < made.coverage < 1 and math.isfinite(made.widening)
            if not possible or made.episodes < least_needed(made.coverage):
                raise ValueError("No calibration has such numbers.")
        return made


def _float32(size: int) -> Any:
    return jax.ShapeDtypeStruct((size,), jnp.float32)


@contextmanager
def _damaged_otherwise(path: Path) -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise UserError(f"The calibration in {path} is damaged; calibrate the agent anew.") from error


def checksum(state: AgentState) -> str:
    """Of all that acting reads, from a state at play (`Agent.at_play`)."""
    return arrays.digest((state.params, state.frozen, state.statistics))


def calibration_of(played: Played, discount: float, coverage: float, **facts: Any) -> Calibration:
    """From episodes that were played; `UserError` if too few of them have a return that is known."""
    total, known = returns(played, discount)
    counts = np.add.reduceat(known, played.starts, dtype=int)
    groups = int(np.count_nonzero(counts))
    if groups < least_needed(coverage):
        raise UserError(
            f"Only {groups:,} of {len(counts):,} episodes have a return that is known, and a coverage of {coverage:g} "
            f"needs {least_needed(coverage):,}: the others were cut off before {horizon(discount)}; "
            "play more episodes, or longer ones."
        )
    weight = shares(counts[counts > 0])
    lower, upper, total = played.lower[known], played.upper[known], total[known]
    outside = discrepancy(lower, upper, total)
    # A new return that equals one of these is inside even if its bounds are rounded otherwise.
    rounding = FLOAT32 * max(np.max(np.abs(each)) for each in (lower, upper, total))
    found = None
    if played.doubt is not None:
        found = rarity(played.doubt.astype(np.float32), shares(played.lengths), FLOAT32)
        found = Rarity(found.scores, np.nextafter(found.p_values.astype(np.float32), np.float32(1)))
    return Calibration(
        coverage=coverage,
        episodes=len(counts),
        known=groups,
        widening=float(quantile(outside, weight, coverage) + rounding),
        own_coverage=float(np.average(outside <= 0, weights=weight)),
        own_width=float(np.average(upper - lower, weights=weight)),
        rarity=found,
        reference=played.per_episode(),
        **facts,
    )


def horizon(discount: float) -> str:
    """Where an episode that is cut off later has a return that is known, in words."""
    if discount >= 1:
        return "their end, and without discount what is missing always matters"
    steps = math.ceil(math.log(MISSING) / math.log(discount)) if discount else 1
    return f"{steps:,} steps, after which a discount of {discount:g} leaves {100 * MISSING:g} %"


def check_options(episodes: int, coverage: float, limit: int) -> None:
    """Raises `UserError` for what cannot be, before anything is played."""
    if not 0 < coverage < 1:
        raise UserError(f"--coverage must be above 0 and below 1, not {coverage:g}.")
    for option, value in (("--episodes", episodes), ("--max-episode-frames", limit)):
        if value < 1:
            raise UserError(f"{option} must be at least 1, not {value:,}.")
    if episodes < least_needed(coverage):
        raise UserError(
            f"A coverage of {coverage:g} needs at least {least_needed(coverage):,} episodes, not {episodes:,}: "
            "ask for more --episodes or less --coverage."
        )


def calibrate(
    agent: Agent,
    state: AgentState,
    env: Any,
    seed: int,
    episodes: int,
    coverage: float,
    limit: int,
    *,
    world: int | None = None,
    report: Callable[[int], None] = lambda over: None,
) -> Calibration:
    """Plays, and says what the agent's beliefs are worth; options are checked already."""
    state = agent.at_play(state)
    played = play(agent, state, env, seed, episodes, coverage, limit, world=world, report=report)
    facts = {"limit": limit, "seed": seed, "env": env.name, "weights": checksum(state)}
    return calibration_of(played, agent.hyper.discount, coverage, **facts)


# Runs.


def file_of(run: Path, frame: int) -> Path:
    """Where a run keeps the calibration of that frame."""
    return run / f"calibration-{frame:012d}.npz"


def calibrate_run(
    path: Path,
    episodes: int = EPISODES,
    coverage: float = COVERAGE,
    limit: int = LIMIT,
    seed: int | None = None,
    quiet: bool = False,
    imports: Collection[str] = (),
) -> tuple[Path, dict[int, Calibration]]:
    """Calibrates every seed of a run's newest checkpoint; the file that was written, and what it holds by seed."""
    check_options(episodes, coverage, limit)
    config, _ = read_config(path)
    require_trust(config.env, imports, path)
    with latest_checkpoint(path) as saved:
        frame = saved.frame
    target = file_of(path, frame)
    if target.exists():
        raise UserError(f"{target} is there already; move or delete it to calibrate this run anew.")
    if not os.access(path, os.W_OK):
        raise UserError(f"Cannot write to {path}: Permission denied; copy the run to where you may write.")
    env = config.make_env()
    agent = make_loop(config.agent, config.hyper, env).agent
    found: dict[int, Calibration] = {}
    with Progress("calibrating", episodes * config.seeds, unit="episodes", quiet=quiet) as progress:
        for i, own in enumerate(config.seed_numbers):
            state, at = read_agent(path, agent, i)
            if at != frame:
                raise UserError(f"{path} is still being trained; wait for its end, and calibrate it then.")

            def report(over: int, i: int = i) -> None:
                progress.update(i * episodes + over, "")

            seed_of_play = own if seed is None else seed
            options = (agent, state, env, seed_of_play, episodes, coverage, limit)
            found[own] = calibrate(*options, world=own, report=report)
    tree = {str(own): each.to_tree() for own, each in found.items()}
    meta = {"format": FORMAT, "seeds": {str(own): each.to_json() for own, each in found.items()}}
    arrays.save_file(target, tree, meta)
    return target, found


def read_calibration(run: Path, frame: int, seed: int, state: AgentState) -> Calibration | None:
    """The calibration of one seed of a run at that frame, if there is one; `UserError` if it is of other weights."""
    path = file_of(run, frame)
    if not path.exists():
        return None
    with arrays.ArrayFile(path) as file:
        if file.meta.get("format") != FORMAT:
            raise UserError(f"{path} was made by an incompatible version of ceqr (this one reads format {FORMAT}).")
        with _damaged_otherwise(path):
            values = file.meta["seeds"][str(seed)]
        tree = file.read(Calibration.tree_like(values, path), prefix=str(seed))
        found = Calibration.of(tree, values, path)
    found.check(state, path)
    return found
