"""One seed of a run under examination: played, asked, confronted with strange states, and set against the truth."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ceqr.agents.base import Agent, AgentState
from ceqr.calibrate import COVERAGE, horizon
from ceqr.config import RunConfig
from ceqr.diagnostics import disentangle, ood, visits
from ceqr.diagnostics.measures import Contrast, Points, by_episode, by_tenth, place, reached, within
from ceqr.diagnostics.play import Played, Told, play, td_targets, tell
from ceqr.runs import read_agent, read_replay
from ceqr.training.loop import Loop

LEAST_EPISODES = 2  # with states that were never visited, or with others: below that, nothing is said of them


@dataclass
class Subject:
    """What was found, episode by episode; a measure that is not there has its reason in `absent`."""

    seed: int
    totals: np.ndarray  # undiscounted returns
    cut: int  # episodes that were cut off
    known: int  # episodes with a return that is known
    distinct: int  # episodes that differ
    frame: int = 0  # of training
    per_episode: dict[str, np.ndarray] = field(default_factory=dict)  # [episodes, ...] by measure
    tenths: np.ndarray | None = None  # coverage of returns by tenths of an episode
    contrasts: dict[str, Contrast] = field(default_factory=dict)  # by kind of strange state
    game: str = ""  # the other one, whose states it saw
    points: Points | None = None
    absent: dict[str, str] = field(default_factory=dict)


def examine(
    path: Path,
    config: RunConfig[Any],
    loop: Loop,
    row: int,
    episodes: int,
    limit: int,
    report: Callable[[int], None] = lambda over: None,
) -> Subject:
    """Examines the row-th seed of a run's newest checkpoint."""
    env = config.make_env()
    whole, frame = read_agent(path, loop.agent, row, whole=True)
    # Of pixels and of vectors no two are quite the same, so their replay, which may be large, is not read.
    countable = disentangle.has_truth(env) or np.dtype(env.observation_dtype) == np.bool_
    stored = visits.visited(read_replay(path, loop, row)) if countable else None
    seed = config.seed_numbers[row]
    found = examine_agent(loop.agent, whole, env, config.env, seed, episodes, limit, stored, report)
    found.frame = frame
    return found


def examine_agent(
    agent: Agent,
    whole: AgentState,
    env: Any,
    env_name: str,
    seed: int,
    episodes: int,
    limit: int,
    stored: visits.Visited | None = None,
    report: Callable[[int], None] = lambda over: None,
) -> Subject:
    """Examines an agent with a state that still has its target network, in the world of its seed.

    stored: what its replay holds, where states can be told apart.
    """
    state = agent.at_play(whole)
    hyper = agent.hyper
    played = play(
        agent, state, env, seed, episodes, limit, hyper.discount, world=seed, n_step=hyper.n_step, report=report
    )
    told = tell(agent, state, played.observation)
    found = Subject(
        seed=seed,
        totals=played.totals,
        cut=int((~played.ended).sum()),
        known=len(np.unique(played.episode[played.known])),
        distinct=played.distinct,
    )
    _judge_targets(found, agent, state._replace(target=whole.target), played, told)
    _judge_returns(found, agent.hyper.discount, played, told)
    cells = None
    if disentangle.has_truth(env) and stored is not None:
        cells = _judge_maze(found, agent, state, env, visits.count_cells(env, stored), played, told)
    else:
        found.absent["exact"] = found.absent["disentangled"] = "the truth about returns is known in mazes alone"
    _confront(found, agent, state, env, env_name, played, told, stored, cells)
    return found


def _judge_targets(found: Subject, agent: Agent, state: AgentState, played: Played, told: Told) -> None:
    if told.quantiles is None:
        found.absent["td_quantiles"] = found.absent["td_evidential"] = "the agent has no quantiles"
        return
    targets = td_targets(agent, state, played)
    inside = within(told.lower[:, None], told.upper[:, None], targets).mean(1)
    found.per_episode["td_quantiles"] = by_episode(inside, played.episode)
    if told.td_lower is None:
        found.absent["td_evidential"] = "the agent has no evidential interval"
    else:
        inside = within(told.td_lower, told.td_upper, targets).mean(1)
        found.per_episode["td_evidential"] = by_episode(inside, played.episode)


def _judge_returns(found: Subject, discount: float, played: Played, told: Told) -> None:
    of_quantiles = ("returns", "miscalibration", "returns_evidential")
    if told.quantiles is None:
        found.absent |= dict.fromkeys((*of_quantiles, "sharpness", "width"), "the agent has no quantiles")
    else:
        found.per_episode["sharpness"] = by_episode(told.quantiles.var(-1, dtype=np.float64), played.episode)
        found.per_episode["width"] = by_episode(told.upper - told.lower, played.episode)
    if not played.known.any():
        reason = f"all episodes were cut off before {horizon(discount)}"
        found.absent |= dict.fromkeys((*of_quantiles, "bias"), reason)
        return

    def add(name: str, values: Any) -> None:
        found.per_episode[name] = by_episode(np.asarray(values, float), played.episode, played.known)

    add("bias", told.mean - played.outcome)
    if told.quantiles is None:
        return
    inside = within(told.lower, told.upper, played.outcome)
    add("returns", inside)
    add("miscalibration", reached(place(told.quantiles, played.outcome)))
    found.tenths = by_tenth(inside, played.episode, played.progress, played.known)
    if told.td_lower is None:
        found.absent["returns_evidential"] = "the agent has no evidential interval"
    else:
        # The widest reading: from the low percentile of the low quantile to the high one of the high quantile.
        tail, count = (1 - COVERAGE) / 2, told.td_lower.shape[-1]
        low, high = int(tail * count), count - 1 - int(tail * count)
        add("returns_evidential", within(told.td_lower[:, low], told.td_upper[:, high], played.outcome))


def _judge_maze(
    found: Subject, agent: Agent, state: AgentState, env: Any, counts: np.ndarray, played: Played, told: Told
) -> disentangle.Cells | None:
    try:
        cells = disentangle.look(agent, state, env, counts)
    except ValueError as error:
        found.absent["exact"] = found.absent["disentangled"] = str(error).rstrip(".")
        return None
    here = np.asarray(env.cell_of(played.observation))
    found.per_episode["exact_bias"] = by_episode(told.mean - cells.value[here], played.episode)
    if told.quantiles is None:
        found.absent["exact"] = "the agent has no quantiles"
    else:
        exact = cells.returns[here]
        inside = disentangle.exact_coverage(told.lower, told.upper, exact, cells.blur)
        found.per_episode["exact"] = by_episode(inside, played.episode)
        shares = disentangle.exact_reached(told.quantiles, exact)
        found.per_episode["exact_miscalibration"] = by_episode(shares, played.episode)
    if cells.beliefs.epistemic is None and cells.beliefs.aleatoric is None:
        found.absent["disentangled"] = "the agent has neither uncertainty"
    else:
        found.points = disentangle.points(cells)
    return cells


def _confront(
    found: Subject,
    agent: Agent,
    state: AgentState,
    env: Any,
    env_name: str,
    played: Played,
    told: Told,
    stored: visits.Visited | None,
    cells: disentangle.Cells | None,
) -> None:
    if told.epistemic is None:
        found.absent |= dict.fromkeys(ood.KINDS, "the agent has no epistemic uncertainty")
        return
    rng, ordinary = np.random.default_rng(found.seed), _split(told.epistemic, played.episode)
    for kind in ood.KINDS:
        if kind == "never_visited":
            _confront_unvisited(found, env, played, told, stored, cells)
            continue
        if kind == "other_game":
            games = ood.other_games(env_name, env)
            if not games:
                found.absent[kind] = "no other game of its family has such images"
                continue
            found.game = games[0]
            strange = ood.wander(games[0], found.seed, len(played.lengths))
        elif disentangle.has_truth(env):
            found.absent[kind] = "of a cell's number, noise makes no state, and shuffling another cell"
            continue
        elif kind == "shuffled" and np.prod(env.observation_shape) < 2:
            found.absent[kind] = "there is but one component"
            continue
        else:
            strange = ood.made_of(played, kind, rng)
        doubt = tell(agent, state, strange.observation).epistemic
        found.contrasts[kind] = Contrast(ordinary, _split(doubt, strange.episode), strange.paired)


def _confront_unvisited(
    found: Subject,
    env: Any,
    played: Played,
    told: Told,
    stored: visits.Visited | None,
    cells: disentangle.Cells | None,
) -> None:
    """In a maze, cells that replay has not seen; elsewhere, played states that it has not, against those it has."""
    kind = "never_visited"
    if disentangle.has_truth(env):
        if cells is None:
            found.absent[kind] = found.absent["exact"]
            return
        empty = np.flatnonzero((cells.visits.sum(1) == 0) & ~env.terminal)
        if not len(empty):
            found.absent[kind] = "the agent has visited every cell"
            return
        doubt = np.asarray(cells.beliefs.epistemic)[empty, cells.greedy[empty]]
        # Each cell is drawn by itself: they have no episode.
        found.contrasts[kind] = Contrast(_split(told.epistemic, played.episode), np.split(doubt, len(doubt)), False)
        return
    if stored is None:
        found.absent[kind] = "no two states are quite the same, so visits cannot be told"
        return
    new = ood.unseen(visits.as_stored(played.observation), stored.observation)
    groups = [_split(told.epistemic[which], played.episode[which], len(played.lengths)) for which in (~new, new)]
    for group, what in zip(groups, ("were in replay", "were not in replay"), strict=True):
        if sum(len(each) > 0 for each in group) < LEAST_EPISODES:
            found.absent[kind] = f"fewer than {LEAST_EPISODES} episodes met states that {what}"
            return
    found.contrasts[kind] = Contrast(groups[0], groups[1], True)


def _split(values: np.ndarray, episode: np.ndarray, episodes: int | None = None) -> list[np.ndarray]:
    """By episode."""
    count = int(episode.max(initial=-1)) + 1 if episodes is None else episodes
    order = np.argsort(episode, kind="stable")
    ends = np.cumsum(np.bincount(episode, minlength=count))[:-1]
    return np.split(values[order], ends)
