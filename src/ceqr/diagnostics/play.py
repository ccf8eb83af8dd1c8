"""Greedy episodes that training never saw: of each, the rewards of all steps, and some steps whole.

Steps of an episode are much alike, so some of them, drawn evenly, say as much as all, and memory stays bounded however
long episodes are. What the agent believes of these is asked afterwards, in batches of one size.
"""

import zlib
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ceqr.agents.base import Agent, AgentState, Batch, pick
from ceqr.agents.qr_dqn import quantile_targets
from ceqr.calibrate import COVERAGE, judge, returns_of
from ceqr.errors import UserError
from ceqr.rollout import Steps, rollout
from ceqr.streams import Stream

STEPS = 50  # of an episode that are kept whole
ROWS = 256  # observations that are asked about at once


class Played(NamedTuple):
    """What was kept: [kept steps, ...], and [episodes] below."""

    observation: np.ndarray  # as the network reads it
    successor: np.ndarray  # where the last step of the transition led (`--n-step`; the next one where it is 1)
    reward: np.ndarray  # of all its steps, discounted
    terminated: np.ndarray
    steps: np.ndarray  # int32: how many they are
    episode: np.ndarray  # int: which one it is from
    progress: np.ndarray  # float: how much of the episode was over, 0 to 1
    outcome: np.ndarray  # discounted return from this step on
    known: np.ndarray  # bool: whether that is known (`ceqr.calibrate.returns`)
    lengths: np.ndarray
    totals: np.ndarray  # undiscounted return
    ended: np.ndarray  # bool: whether it came to its own end
    distinct: int  # how many of the episodes differ in what was seen or paid


def play(
    agent: Any,
    state: AgentState,
    env: Any,
    seed: int,
    episodes: int,
    limit: int,
    discount: float,
    *,
    world: int | None = None,
    explore: bool = False,
    steps: int = STEPS,
    n_step: int = 1,
    report: Callable[[int], None] = lambda over: None,
) -> Played:
    """Plays that many episodes, and keeps some steps of each, as transitions of `n_step` steps."""
    rng = np.random.default_rng(seed)
    kept: dict[str, np.ndarray] = {}  # [episodes, steps, ...]
    at = np.full((episodes, steps), -1)  # which step of its episode is kept in which place
    lengths, sums = np.zeros(episodes, int), np.zeros(episodes, np.uint32)
    ended, over = np.zeros(episodes, bool), np.zeros(episodes, bool)
    rewards: list[np.ndarray] = []
    owners: list[np.ndarray] = []
    keep = ("observation", "successor")
    options = {"keep": keep, "which": Stream.DIAGNOSIS, "world": world, "explore": explore}
    for told in rollout(agent, state, env, seed, episodes, limit, **options):
        going, episode = told.going, told.episode
        number = lengths[episode] + np.cumsum(going, 0) - 1  # of the step in its episode
        # Reservoir sampling: step n takes a place with probability steps / (n + 1), and a random one.
        place = np.where(number < steps, number, (rng.random(going.shape) * (number + 1)).astype(int))
        when, game = np.nonzero(going & (place < steps))
        where = (episode[game], place[when, game])  # in the order of time, and the last one to take a place stays
        at[where] = number[when, game]
        for name in ("observation", "successor", "reward", "terminated"):
            values = np.asarray(getattr(told, name))
            if name not in kept:
                kept[name] = np.zeros((episodes, steps, *values.shape[2:]), values.dtype)
            kept[name][where] = values[when, game]
        kept.setdefault("steps", np.zeros((episodes, steps), np.int32))[where] = 1
        if n_step > 1:
            _lengthen(kept, at, told, number, n_step, discount)
        for i, each in enumerate(episode):
            for what in (told.observation, told.reward):
                sums[each] = zlib.crc32(what[going[:, i], i].tobytes(), int(sums[each]))
        rewards.append(told.reward[going])
        owners.append(np.broadcast_to(episode, going.shape)[going])
        lengths[episode] += going.sum(0)
        ended[episode] |= (going & told.terminated).any(0)
        over[episode] |= (going & (told.terminated | told.truncated)).any(0)
        report(int(over.sum()))
    owner = np.concatenate(owners)
    order = np.argsort(owner, kind="stable")  # by episode, and within one as it was played
    reward = np.concatenate(rewards)[order].astype(np.float64)
    if not np.isfinite(reward).all():
        raise UserError("Rewards are not finite; mend the environment.")
    outcome, known = returns_of(reward, lengths, ended, discount)
    episode, place = np.nonzero(at >= 0)
    step = at[episode, place]
    index = (np.cumsum(lengths) - lengths)[episode] + step
    return Played(
        **{name: each[episode, place] for name, each in kept.items()},
        episode=episode,
        progress=(step + 0.5) / lengths[episode],
        outcome=outcome[index],
        known=known[index],
        lengths=lengths,
        totals=np.bincount(owner[order], reward, episodes),
        ended=ended,
        distinct=len(set(zip(lengths.tolist(), sums.tolist(), strict=True))),
    )


def _lengthen(
    kept: dict[str, np.ndarray], at: np.ndarray, told: Steps, number: np.ndarray, n_step: int, discount: float
) -> None:
    """Adds the steps of a stretch to the transitions that were kept, as far as they go."""
    for t, going in enumerate(told.going):
        later = number[t][:, None] - at[told.episode]
        game, place = np.nonzero(going[:, None] & (at[told.episode] >= 0) & (later > 0) & (later < n_step))
        where = (told.episode[game], place)
        kept["reward"][where] += discount ** later[game, place] * told.reward[t, game]
        kept["terminated"][where] |= told.terminated[t, game]
        kept["successor"][where] = told.successor[t, game]
        kept["steps"][where] += 1


class Told(NamedTuple):
    """What an agent believes of the greedy action in some states, [rows, ...]; None for what it does not estimate."""

    mean: Any
    epistemic: Any
    aleatoric: Any
    quantiles: Any  # [rows, N]
    lower: Any  # its 90 % interval of the return, between quantiles
    upper: Any
    td_lower: Any  # [rows, N]: its 90 % interval of each quantile of a TD target
    td_upper: Any


@partial(jax.jit, static_argnums=0)
def _tell(agent: Agent, state: AgentState, observations: jax.Array) -> Told:
    outputs = agent.forward(state.params, state.frozen, observations, None)
    beliefs = agent.beliefs_of(state, outputs)
    action = jax.vmap(agent.greedy)(beliefs)
    interval = agent.td_interval(outputs) or (None, None)
    lower, upper, doubt = judge(beliefs, action, COVERAGE)
    if beliefs.quantiles is None:
        lower = upper = None

    def taken(values: jax.Array | None) -> jax.Array | None:
        return None if values is None else pick(values, action)

    return Told(
        mean=taken(beliefs.mean),
        epistemic=doubt,
        aleatoric=taken(beliefs.aleatoric),
        quantiles=taken(beliefs.quantiles),
        lower=lower,
        upper=upper,
        td_lower=taken(interval[0]),
        td_upper=taken(interval[1]),
    )


def tell(agent: Agent, state: AgentState, observations: np.ndarray) -> Told:
    """What the agent believes of those states; `UserError` if it is no number."""
    told = in_batches(partial(_tell, agent, state), observations)
    if not all(np.isfinite(each).all() for each in jax.tree.leaves(told)):
        raise UserError("Beliefs are not finite: the agent's training has diverged, so train it anew.")
    return told


@partial(jax.jit, static_argnums=0)
def _targets(agent: Agent, state: AgentState, batch: Batch) -> jax.Array:
    following = agent.beliefs_of(state, agent.forward(state.target, state.frozen, batch.successor, None)).quantiles
    chooser = following
    if agent.double:
        chooser = agent.beliefs_of(state, agent.forward(state.params, state.frozen, batch.successor, None)).quantiles
    return quantile_targets(following, chooser, batch, agent.hyper.discount)


def td_targets(agent: Agent, state: AgentState, played: Played) -> np.ndarray:
    """TD targets of the steps that were kept, [steps, N], as in learning: by the target network of the state."""

    def of(observation: Any, reward: Any, terminated: Any, successor: Any, steps: Any) -> jax.Array:
        none = jnp.zeros(len(reward), jnp.int32)
        return _targets(agent, state, Batch(observation, none, reward, terminated, successor, none, steps))

    return in_batches(of, played.observation, played.reward, played.terminated, played.successor, played.steps)


def in_batches(function: Callable[..., Any], *arrays: np.ndarray) -> Any:
    """A function of batches of ROWS rows, asked for all; the last batch is filled up with its first row."""
    parts = []
    for start in range(0, len(arrays[0]), ROWS):
        rows = [each[start : start + ROWS] for each in arrays]
        count = len(rows[0])
        full = [np.concatenate([each, np.repeat(each[:1], ROWS - count, 0)]) for each in rows]
        parts.append(jax.tree.map(lambda leaf, count=count: np.asarray(leaf)[:count], function(*full)))
    return jax.tree.map(lambda *each: np.concatenate(each), *parts)
