"""The loop: an agent in one or more environments side by side (lanes), as pure functions of a seed's whole state.

A tick plays one frame in each lane: lane e of a tick that starts at frame f plays frame f + e. It is

    act      choose an action in each lane                          (`act`, or with the next one `act_and_learn`)
    learn    an update for each frame of the tick in which one is due
    step     the environment's part
    absorb   store what was played, count it, draw what the next tick learns from

A player puts them together: `ceqr.training.compiled` in one program with the environment, `ceqr.training.host` around
an environment that lives on the host. Every random number comes from the seed's key and the number of the frame, and
what is logged is summed in the state, so how ticks are cut into programs changes no bit.

A tick learns from batches that were drawn at the end of the tick before: replay is always written before it is read,
which lets XLA update it in place, and one forward pass can serve both acting and learning.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from ceqr.agents.base import Agent, AgentState, Batch, Beliefs, Choices, Draws, Memory, Metrics
from ceqr.envs.base import EnvState, TimeStep
from ceqr.replay import LaneReplay, ReplayState
from ceqr.streams import Stream, lane_keys, stream
from ceqr.sums import Sum

NEVER = -1

Tree = TypeVar("Tree")


class Chance(NamedTuple):
    """All that is drawn for one tick, but for what an environment and a new memory draw from their keys."""

    act: Draws  # [lanes]
    env: jax.Array  # keys [lanes]
    memory: jax.Array  # keys [lanes]
    sample: jax.Array  # uint32 [updates of a tick at the most, batch]


class Choice(NamedTuple):
    """What the agent chose in each lane, and what of its beliefs is logged."""

    action: jax.Array  # int32
    nongreedy: jax.Array  # bool: whether another action was the greedy one
    least_uncertain: jax.Array  # float32: 1 if it was the least uncertain action; NaN if the agent knows none
    value: jax.Array  # float32: of the best action
    uncertainty: dict[str, jax.Array]  # of the chosen action, those that the agent estimates
    seen: Any  # what the agent counts of the observation
    memory: Memory  # with which the episode goes on


class Episode(NamedTuple):
    """The episode under way, in sums over its frames."""

    total: jax.Array  # float32: undiscounted return so far
    length: jax.Array  # int32: frames so far
    nongreedy: jax.Array  # int32: actions other than the greedy one
    least_uncertain: jax.Array  # float32: actions that were the least uncertain one; NaN if the agent knows none
    start_value: jax.Array  # float32: the value that the agent gave to its first observation


class Finished(NamedTuple):
    """An episode that ended in this frame, if `ended`."""

    ended: jax.Array
    total: jax.Array
    length: jax.Array
    nongreedy: jax.Array  # share of its frames
    least_uncertain: jax.Array  # share of its frames


class Tally(NamedTuple):
    """What is logged, in sums since the last log row."""

    frames: jax.Array
    updates: jax.Array
    acting: dict[str, Sum]  # a frame
    learning: dict[str, Sum]  # an update


class Trouble(NamedTuple):
    """The first frame in which something was not finite, or NEVER."""

    loss: jax.Array
    reward: jax.Array
    observation: jax.Array


class LoopState(NamedTuple):
    """A seed's whole state between two ticks: saving it saves the run."""

    key: jax.Array  # never changes; each frame folds its number into it
    agent: AgentState
    memory: Memory  # [lanes, ...]
    env: EnvState  # [lanes, ...]; nothing where the environment lives on the host
    observation: jax.Array  # [lanes, ...]
    replay: ReplayState  # [lanes, ...]
    batch: Batch  # [updates of a tick at the most, batch, ...]: what the next tick learns from
    episode: Episode  # [lanes]
    tally: Tally
    trouble: Trouble


Learned = tuple[AgentState, Tally, Trouble]  # what an update changes


@dataclass(frozen=True)
class Loop:
    """An agent, and how many environments it plays side by side."""

    agent: Agent
    observation_dtype: Any
    lanes: int = 1

    @property
    def replay(self) -> LaneReplay:
        hyper, agent = self.agent.hyper, self.agent
        return LaneReplay(
            hyper.replay_size,
            hyper.batch_size,
            agent.observation_shape,
            self.observation_dtype,
            self.lanes,
            hyper.n_step,
            hyper.discount,
            hyper.bound_returns and hyper.discount < 1,  # without discount a return has no bounds
        )

    @property
    def most_updates(self) -> int:
        """Updates in a tick, at the most."""
        return -(-self.lanes // self.agent.hyper.update_every)

    def updates_due(self, frame: Any) -> Any:
        """Updates in the tick that starts at that frame: one for each of its frames that --update-every divides."""
        every = self.agent.hyper.update_every
        return (frame + self.lanes - 1) // every - (frame - 1) // every

    def copy_due(self, frame: Any) -> Any:
        """Whether the target network is copied before the tick that starts at that frame."""
        period = self.agent.hyper.target_period
        return -(-frame // period) * period < frame + self.lanes

    def next_copy(self, frame: Any) -> Any:
        """The start of the first later tick before which the target network is copied."""
        after, period = frame + self.lanes, self.agent.hyper.target_period
        return frame + (-(-after // period) * period - frame) // self.lanes * self.lanes

    def init(self, seed: jax.Array, env: EnvState = (), observation: jax.Array | None = None) -> LoopState:
        """The state of a seed (an integer) before its first frame; unless given, its observations are yet to come."""
        agent = self.agent.init(stream(seed, Stream.AGENT))
        memory = self._new_memory(agent, lane_keys(stream(seed, Stream.MEMORY), self.lanes))
        if observation is None:
            observation = jnp.zeros((self.lanes, *self.agent.observation_shape), self.observation_dtype)
        key, replay = stream(seed, Stream.FRAMES), self.replay.init()
        batch = jax.tree.map(
            lambda x: jnp.zeros((self.most_updates, *x.shape), x.dtype),
            jax.eval_shape(self.replay.sample, replay, jnp.zeros(self.agent.hyper.batch_size, jnp.uint32)),
        )
        never = jnp.int32(NEVER)
        return LoopState(
            key=key,
            agent=agent,
            memory=memory,
            env=env,
            observation=observation,
            replay=replay,
            batch=batch,
            episode=jax.tree.map(lambda x: jnp.full(self.lanes, x), _new_episode()),
            tally=self._empty_tally(agent, memory, observation, batch),
            trouble=Trouble(never, never, never),
        )

    def _empty_tally(self, agent: AgentState, memory: Memory, observation: jax.Array, batch: Batch) -> Tally:
        frames, draws = jnp.zeros(self.lanes, jnp.int32), self.chance(jax.random.key(0), jnp.int32(0)).act
        one = jax.tree.map(lambda x: x[0], batch)
        inputs = (agent, memory, observation, one, frames, draws)
        choices, _, metrics = jax.eval_shape(self.agent.act_and_learn, *inputs)
        zero, nothing = jnp.int32(0), Sum(jnp.float32(0), jnp.float32(0))
        return Tally(
            zero, zero, dict.fromkeys(_uncertainties(choices.beliefs), nothing), dict.fromkeys(metrics, nothing)
        )

    def chance(self, key: jax.Array, frame: jax.Array) -> Chance:
        """What is drawn for the tick that starts at that frame."""
        frames = frame + jnp.arange(self.lanes)
        keys = jax.vmap(lambda f: jax.random.split(jax.random.fold_in(key, f), 4))(frames)
        sample = jax.vmap(lambda k: jax.random.bits(k, (self.agent.hyper.batch_size,), jnp.uint32))
        return Chance(
            act=jax.vmap(self.agent.draws)(keys[:, 0]),
            env=keys[:, 1],
            memory=keys[:, 3],
            sample=sample(keys[: self.most_updates, 2]),
        )

    def begin(self, state: LoopState, observation: jax.Array, key: jax.Array) -> LoopState:
        """The state at the first observations of new episodes; those under way are cut off."""
        under_way = state.episode.length > 0
        memory = self._new_memory(state.agent, lane_keys(key, self.lanes))
        fresh = jax.tree.map(jnp.zeros_like, state.episode)
        return state._replace(
            memory=_where(under_way, memory, state.memory),
            observation=observation,
            replay=self.replay.cut(state.replay, under_way),
            episode=fresh._replace(start_value=state.episode.start_value),
        )

    def _new_memory(self, agent: AgentState, keys: jax.Array) -> Memory:
        return jax.vmap(self.agent.init_memory, in_axes=(None, 0))(agent, keys)

    # The parts of a tick of one seed, with its `chance`.

    def act(self, state: LoopState, frame: jax.Array, chance: Chance) -> Choice:
        """Chooses an action in each lane."""
        frames = frame + jnp.arange(self.lanes)
        return self._choice(self.agent.act(state.agent, state.memory, state.observation, frames, chance.act))

    def learn(self, state: LoopState, frame: jax.Array, chance: Chance, updates: int) -> LoopState:
        """That many updates of the tick; the i-th has the number and the key of lane i."""
        learned = (state.agent, state.tally, state.trouble)
        if updates == 1:
            learned = self._update(state.batch, learned, frame, chance, 0)
        elif updates:
            learned = jax.lax.fori_loop(
                0, updates, lambda i, learned: self._update(state.batch, learned, frame, chance, i), learned
            )
        agent, tally, trouble = learned
        return state._replace(agent=agent, tally=tally, trouble=trouble)

    def act_and_learn(self, state: LoopState, frame: jax.Array, chance: Chance) -> tuple[LoopState, Choice]:
        """`act` and then all updates of the tick, the first of them in one forward pass with acting."""

        def update(state: LoopState) -> tuple[Learned, Choice]:
            frames, first = frame + jnp.arange(self.lanes), jax.tree.map(lambda x: x[0], state.batch)
            chosen, agent, metrics = self.agent.act_and_learn(
                state.agent, state.memory, state.observation, first, frames, chance.act
            )
            counted = _count_update(state.tally, state.trouble, metrics, frame)
            return (agent, *counted), self._choice(chosen)

        def rest(state: LoopState) -> tuple[Learned, Choice]:
            return (state.agent, state.tally, state.trouble), self.act(state, frame, chance)

        due = self.updates_due(frame)
        if self.lanes % self.agent.hyper.update_every == 0:  # as many in every tick
            learned, choice = update(state)
        else:
            learned, choice = jax.lax.cond(due > 0, update, rest, state)
        if self.most_updates > 1:
            learned = jax.lax.fori_loop(
                1, due, lambda i, learned: self._update(state.batch, learned, frame, chance, i), learned
            )
        agent, tally, trouble = learned
        return state._replace(agent=agent, tally=tally, trouble=trouble), choice

    def _update(self, batches: Batch, learned: Learned, frame: jax.Array, chance: Chance, i: Any) -> Learned:
        agent, tally, trouble = learned
        batch = jax.tree.map(lambda x: x[i], batches)
        agent, metrics = self.agent.learn(agent, batch, frame + i, chance.act.forward[i])
        return agent, *_count_update(tally, trouble, metrics, frame + i)

    def absorb(
        self, state: LoopState, choice: Choice, after: TimeStep, frame: jax.Array, chance: Chance
    ) -> tuple[LoopState, Finished]:
        """Stores and counts what one tick brought, and draws what the next one learns from."""
        replay = self.replay.add(
            state.replay,
            state.observation,
            choice.action,
            after.reward,
            after.terminated,
            after.truncated,
            after.successor,
        )
        ended = after.terminated | after.truncated
        episode, finished = _count_frame(state.episode, choice, after.reward, ended)
        tally = state.tally._replace(
            frames=state.tally.frames + self.lanes,
            acting={name: state.tally.acting[name].add(jnp.sum(each)) for name, each in choice.uncertainty.items()},
        )
        sample = jax.vmap(self.replay.sample, in_axes=(None, 0))
        statistics = self.agent.count_frames(state.agent, choice.seen, choice.action)
        return LoopState(
            key=state.key,
            agent=state.agent._replace(statistics=statistics),
            memory=_where(ended, self._new_memory(state.agent, chance.memory), choice.memory),
            env=state.env,
            observation=after.observation,
            replay=replay,
            batch=sample(replay, chance.sample),
            episode=episode,
            tally=tally,
            trouble=_look_at(state.trouble, state.observation, after, frame),
        ), finished

    def _choice(self, chosen: Choices) -> Choice:
        action, beliefs, seen, memory = chosen
        greedy = jax.vmap(self.agent.greedy)(beliefs)
        least = jax.vmap(self.agent.least_uncertain)(beliefs)
        return Choice(
            action=action,
            nongreedy=action != greedy,
            least_uncertain=jnp.full(self.lanes, jnp.nan) if least is None else (action == least).astype(jnp.float32),
            value=jnp.max(beliefs.mean, axis=-1),
            uncertainty={
                name: jnp.take_along_axis(each, action[:, None], axis=1)[:, 0]
                for name, each in _uncertainties(beliefs).items()
            },
            seen=seen,
            memory=memory,
        )


def _count_update(tally: Tally, trouble: Trouble, metrics: Metrics, frame: jax.Array) -> tuple[Tally, Trouble]:
    tally = tally._replace(
        updates=tally.updates + 1, learning={name: tally.learning[name].add(each) for name, each in metrics.items()}
    )
    return tally, trouble._replace(loss=_first(trouble.loss, ~jnp.isfinite(metrics["loss"]), frame))


def _look_at(trouble: Trouble, seen: jax.Array, after: TimeStep, frame: jax.Array) -> Trouble:
    """Remembers the first reward and the first observation that are not finite, in whichever lane."""
    trouble = trouble._replace(reward=_first(trouble.reward, ~jnp.isfinite(after.reward), frame))
    if not jnp.issubdtype(seen.dtype, jnp.floating):
        return trouble
    # What was acted on was looked at in the tick before, unless it came from a reset between two ticks.
    all_three = (seen, after.observation, after.successor)
    fine = [jnp.isfinite(each).reshape(len(each), -1).all(1) for each in all_three]
    return trouble._replace(observation=_first(trouble.observation, ~(fine[0] & fine[1] & fine[2]), frame))


def _first(so_far: jax.Array, bad: jax.Array, frame: jax.Array) -> jax.Array:
    """`bad` of the frames from `frame` on, or of that one alone."""
    return jnp.where((so_far == NEVER) & bad.any(), frame + jnp.argmax(bad), so_far)


def _count_frame(episode: Episode, choice: Choice, reward: jax.Array, ended: jax.Array) -> tuple[Episode, Finished]:
    episode = Episode(
        total=episode.total + reward,
        length=episode.length + 1,
        nongreedy=episode.nongreedy + choice.nongreedy,
        least_uncertain=episode.least_uncertain + choice.least_uncertain,
        start_value=jnp.where(episode.length == 0, choice.value, episode.start_value),
    )
    frames = episode.length.astype(jnp.float32)
    finished = Finished(
        ended=ended,
        total=episode.total,
        length=episode.length,
        nongreedy=episode.nongreedy / frames,
        least_uncertain=episode.least_uncertain / frames,
    )
    # The value at the start is kept until the next episode has one of its own, so that it can always be logged.
    return _where(ended, _new_episode()._replace(start_value=episode.start_value), episode), finished


def _new_episode() -> Episode:
    zero = jnp.int32(0)
    return Episode(jnp.float32(0), zero, zero, jnp.float32(0), jnp.float32(0))


def _uncertainties(beliefs: Beliefs) -> Mapping[str, jax.Array]:
    """Those that the agent estimates."""
    both = {"epistemic": beliefs.epistemic, "aleatoric": beliefs.aleatoric}
    return {name: each for name, each in both.items() if each is not None}


def _where(condition: jax.Array, yes: Tree, no: Tree) -> Tree:
    """`yes` in the lanes under the mask, `no` in the others."""

    def choose(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.where(condition.reshape(-1, *[1] * (b.ndim - 1)), a, b)

    return jax.tree.map(choose, yes, no)
