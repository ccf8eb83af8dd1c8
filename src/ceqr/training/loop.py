"""The compiled loop: act, step, store, sample, learn, copy the target; many frames in one program.

`Loop.step` is one frame of one seed and can be read, tested and called on its own. `Loop.chunk` is many frames of a
group of seeds in one program. Host and device meet only between chunks, and how the frames are cut into chunks changes
no bit: every random number comes from the seed's key and the number of the frame, and what is logged is summed in the
state.

A frame learns from the batch that was drawn at the end of the frame before, so that one forward pass serves both acting
and learning; it follows that replay is always written before it is read, which lets XLA update it in place.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from ceqr.agents.base import Agent, AgentState, Batch, Beliefs, Memory
from ceqr.envs.base import Environment, EnvState
from ceqr.replay import Replay, ReplayState

CHUNK_FRAMES = 1_000  # frames in a chunk at the most
NEVER = -1

Tree = TypeVar("Tree")


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
    acting: dict[str, jax.Array]  # a frame
    learning: dict[str, jax.Array]  # an update


class LoopState(NamedTuple):
    """A seed's whole state between two frames: saving it saves the run."""

    key: jax.Array  # never changes; each frame folds its number into it
    agent: AgentState
    memory: Memory
    env: EnvState
    observation: jax.Array
    replay: ReplayState
    batch: Batch  # what the next frame learns from
    episode: Episode
    tally: Tally
    nonfinite: jax.Array  # the first frame in which the loss was not finite, or NEVER


Groups = tuple[LoopState, ...]  # of all seeds, some to a group: each has a leading axis of its seeds


@dataclass(frozen=True)
class Loop:
    """An agent in an environment."""

    env: Environment
    agent: Agent

    @property
    def replay(self) -> Replay:
        hyper = self.agent.hyper
        return Replay(hyper.replay_size, hyper.batch_size, self.env.observation_shape, self.env.observation_dtype)

    def init(self, seed: jax.Array) -> LoopState:
        """The state of a seed (an integer) before its first frame."""
        agent_key, env_key, memory_key, loop_key = jax.random.split(jax.random.key(seed), 4)
        env, observation = self.env.reset(env_key)
        agent, memory = self.agent.init(agent_key), self.agent.init_memory(memory_key)
        replay = self.replay.init()
        batch = jax.tree.map(
            lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(self.replay.sample, replay, loop_key)
        )
        return LoopState(
            key=loop_key,
            agent=agent,
            memory=memory,
            env=env,
            observation=observation,
            replay=replay,
            batch=batch,
            episode=_new_episode(),
            tally=self._empty_tally(agent, memory, observation, batch),
            nonfinite=jnp.int32(NEVER),
        )

    def init_seeds(self, seeds: jax.Array) -> LoopState:
        """The states of several seeds, with a leading axis.

        One after the other: `vmap` would hand LAPACK a batch of matrices to orthogonalise, which it spreads over the
        very threads that wait for it, and two such batches at once lock up a machine with two cores.
        """
        return jax.lax.map(self.init, seeds)

    def _empty_tally(self, agent: AgentState, memory: Memory, observation: jax.Array, batch: Batch) -> Tally:
        frame, key = jnp.int32(0), jax.random.key(0)
        _, beliefs, _, metrics = jax.eval_shape(self.agent.act_and_learn, agent, memory, observation, batch, frame, key)
        return Tally(
            frames=jnp.int32(0),
            updates=jnp.int32(0),
            acting={name: jnp.float32(0) for name in _uncertainties(beliefs)},
            learning={name: jnp.float32(0) for name in metrics},
        )

    def frame_keys(self, key: jax.Array, frame: jax.Array) -> jax.Array:
        """The random keys of one frame of one seed."""
        return jax.random.split(jax.random.fold_in(key, frame), 4)

    def step(self, state: LoopState, frame: jax.Array, keys: jax.Array, learning: bool) -> tuple[LoopState, Finished]:
        """One frame of one seed, with its `frame_keys`.

        `learning` says (at compile time) whether it may update the agent.
        """
        act_key, env_key, sample_key, memory_key = keys
        if learning:
            action, beliefs, agent, tally, nonfinite = self._act_and_learn(state, frame, act_key)
        else:
            action, beliefs = self.agent.act(state.agent, state.memory, state.observation, frame, act_key)
            agent, tally, nonfinite = state.agent, state.tally, state.nonfinite

        env, after = self.env.step(state.env, action, env_key)
        replay = self.replay.add(
            state.replay,
            state.observation,
            action,
            after.reward,
            after.terminated,
            after.truncated,
            after.successor,
        )
        ended = after.terminated | after.truncated
        episode, finished = self._count(state.episode, beliefs, action, after.reward, ended)
        state = LoopState(
            key=state.key,
            agent=agent,
            memory=_where(ended, self.agent.init_memory(memory_key), state.memory),
            env=env,
            observation=after.observation,
            replay=replay,
            batch=self.replay.sample(replay, sample_key),
            episode=episode,
            tally=tally._replace(
                frames=tally.frames + 1,
                acting={name: tally.acting[name] + each[action] for name, each in _uncertainties(beliefs).items()},
            ),
            nonfinite=nonfinite,
        )
        return state, finished

    def _act_and_learn(
        self, state: LoopState, frame: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, Beliefs, AgentState, Tally, jax.Array]:
        def update(state: LoopState) -> tuple[jax.Array, Beliefs, AgentState, Tally, jax.Array]:
            action, beliefs, agent, metrics = self.agent.act_and_learn(
                state.agent, state.memory, state.observation, state.batch, frame, key
            )
            tally = state.tally._replace(
                updates=state.tally.updates + 1,
                learning=jax.tree.map(jnp.add, state.tally.learning, metrics),
            )
            first_bad = (state.nonfinite == NEVER) & ~jnp.isfinite(metrics["loss"])
            return action, beliefs, agent, tally, jnp.where(first_bad, frame, state.nonfinite)

        def rest(state: LoopState) -> tuple[jax.Array, Beliefs, AgentState, Tally, jax.Array]:
            acted = self.agent.act(state.agent, state.memory, state.observation, frame, key)
            return *acted, state.agent, state.tally, state.nonfinite

        every = self.agent.hyper.update_every
        if every == 1:
            return update(state)
        return jax.lax.cond(frame % every == 0, update, rest, state)

    def _count(
        self, episode: Episode, beliefs: Beliefs, action: jax.Array, reward: jax.Array, ended: jax.Array
    ) -> tuple[Episode, Finished]:
        greedy, least_uncertain = self.agent.greedy(beliefs), self.agent.least_uncertain(beliefs)
        episode = Episode(
            total=episode.total + reward,
            length=episode.length + 1,
            nongreedy=episode.nongreedy + (action != greedy),
            least_uncertain=episode.least_uncertain
            + (jnp.nan if least_uncertain is None else action == least_uncertain),
            start_value=jnp.where(episode.length == 0, jnp.max(beliefs.mean), episode.start_value),
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

    def chunk(self, states: LoopState, start: jax.Array, stop: jax.Array, learning: bool) -> tuple[LoopState, Finished]:
        """Frames `start` to `stop` - 1 (at most CHUNK_FRAMES of them) of all seeds.

        `states` has a leading axis of seeds. The second result holds, for each frame of the chunk and each seed, the
        episode that ended there: [CHUNK_FRAMES, seeds].
        """
        seeds = len(states.nonfinite)
        one_step = jax.vmap(partial(self.step, learning=learning), in_axes=(0, None, 0))
        # All keys at once: derived frame by frame, they would take a good part of a small network's frame.
        seeds_keys = jax.vmap(self.frame_keys, in_axes=(0, None))
        keys = jax.vmap(seeds_keys, in_axes=(None, 0))(states.key, start + jnp.arange(CHUNK_FRAMES))
        shapes = jax.eval_shape(one_step, states, start, keys[0])[1]
        log = jax.tree.map(lambda x: jnp.zeros((CHUNK_FRAMES, *x.shape), x.dtype), shapes)
        assert log.ended.shape == (CHUNK_FRAMES, seeds)

        def one_frame(frame: jax.Array, carry: tuple[LoopState, Finished]) -> tuple[LoopState, Finished]:
            states, log = carry
            states, finished = one_step(states, frame, keys[frame - start])
            return states, jax.tree.map(
                lambda rows, row: jax.lax.dynamic_update_index_in_dim(rows, row, frame - start, 0),
                log,
                finished,
            )

        period = self.agent.hyper.target_period

        def one_period(
            carry: tuple[jax.Array, LoopState, Finished],
        ) -> tuple[jax.Array, LoopState, Finished]:
            # The copy stands outside the loop over frames: inside, it would cost a pass over all weights each frame.
            frame, states, log = carry
            agent = jax.lax.cond(frame % period == 0, self.agent.copy_target, lambda same: same, states.agent)
            end = jnp.minimum(stop, (frame // period + 1) * period)
            states, log = jax.lax.fori_loop(frame, end, one_frame, (states._replace(agent=agent), log))
            return end, states, log

        _, states, log = jax.lax.while_loop(lambda carry: carry[0] < stop, one_period, (start, states, log))
        return states, log


def _new_episode() -> Episode:
    zero = jnp.int32(0)
    return Episode(jnp.float32(0), zero, zero, jnp.float32(0), jnp.float32(0))


def _uncertainties(beliefs: Beliefs) -> dict[str, jax.Array]:
    """Those that the agent estimates."""
    both = {"epistemic": beliefs.epistemic, "aleatoric": beliefs.aleatoric}
    return {name: each for name, each in both.items() if each is not None}


def _where(condition: jax.Array, yes: Tree, no: Tree) -> Tree:
    return jax.tree.map(partial(jnp.where, condition), yes, no)


def join(groups: Sequence[Tree]) -> Tree:
    """Trees with a leading axis each as one with all of their rows, on the host."""
    return jax.tree.map(_join_leaves, *groups)


def _join_leaves(*leaves: jax.Array) -> Any:
    if jnp.issubdtype(leaves[0].dtype, jax.dtypes.prng_key):  # of which NumPy knows nothing
        return jnp.concatenate(leaves)
    # One group's arrays are not copied.
    return np.asarray(leaves[0]) if len(leaves) == 1 else np.concatenate([np.asarray(leaf) for leaf in leaves])
