"""The loop around an environment that lives on the host: the same agent, replay, counts and random keys.

A tick plays one frame in each of `num_envs` environments (lanes): lane e of a tick that starts at frame f plays frame
f + e. Three compiled programs share the work, each over all seeds at once: `act` chooses actions, the host steps the
environments, `learn` makes an update for each frame of the tick in which one is due, and `absorb` stores and counts
what was played. With one environment this is `Loop.step` frame by frame, with the same random numbers.

The state between two ticks is whole: if an environment raises, nothing has changed since the tick before. Only the
environment itself is no part of it, so whoever goes on from a saved state begins a new episode.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from ceqr.agents.base import AgentState, Beliefs
from ceqr.compilation import jit
from ceqr.envs.gymnasium import HostEnvironment, HostStep, Lanes, seed_of
from ceqr.replay import LaneReplay, ReplayState
from ceqr.runs import EpisodeRow
from ceqr.training.loop import NEVER, Finished, Groups, Loop, LoopState, Tally, _new_episode, _uncertainties, _where
from ceqr.training.run import episode_rows

_NOTHING: Any = ()  # in the place of what a program does not look at
RESET = 0x2E5E7  # folded into a seed's key for what a reset between two frames draws
CHUNK_SECONDS = 1.0  # how long the host plays before it looks up: progress and interrupts wait for it


class EnvironmentFailed(Exception):
    """An environment raised an exception, which is this one's cause. The state is that of the tick before."""

    def __init__(self, groups: Groups, frame: int, episodes: list[EpisodeRow]):
        super().__init__(f"The environment raised an exception at frame {frame:,}")
        self.groups, self.frame, self.episodes = groups, frame, episodes


@dataclass(frozen=True)
class HostLoop(Loop):
    """An agent in an environment that JAX cannot compile."""

    env: Any  # a HostEnvironment
    num_envs: int = 1

    @property
    def replay(self) -> Any:  # a LaneReplay
        hyper, env = self.agent.hyper, cast(HostEnvironment, self.env)
        return LaneReplay(
            hyper.replay_size, hyper.batch_size, env.observation_shape, env.observation_dtype, self.num_envs
        )

    def init(self, seed: jax.Array) -> LoopState:
        """The state of a seed before its first frame; its observations are yet to come."""
        agent_key, _, memory_key, loop_key = jax.random.split(jax.random.key(seed), 4)
        agent = self.agent.init(agent_key)
        memory = jax.vmap(self.agent.init_memory)(jax.random.split(memory_key, self.num_envs))
        replay = self.replay.init()
        observation = jnp.zeros((self.num_envs, *self.env.observation_shape), self.env.observation_dtype)
        batch = jax.eval_shape(self.replay.sample, replay, loop_key)
        one_memory = jax.tree.map(lambda x: x[0], memory)
        return LoopState(
            key=loop_key,
            agent=agent,
            memory=memory,
            env=(),
            observation=observation,
            replay=replay,
            batch=_NOTHING,  # `learn` draws its own
            episode=jax.tree.map(lambda x: jnp.stack([x] * self.num_envs), _new_episode()),
            tally=self._empty_tally(agent, one_memory, observation[0], batch),
            nonfinite=jnp.int32(NEVER),
        )

    def _lane_keys(self, key: jax.Array, frame: jax.Array) -> tuple[jax.Array, jax.Array]:
        frames = frame + jnp.arange(self.num_envs)
        return frames, jax.vmap(self.frame_keys, in_axes=(None, 0))(key, frames)

    def begin(self, state: LoopState, observation: jax.Array, frame: jax.Array) -> LoopState:
        """The state of one seed at the first observations of new episodes; those under way are cut off."""
        under_way = state.episode.length > 0
        fresh = jax.tree.map(jnp.zeros_like, state.episode)
        _, keys = self._lane_keys(jax.random.fold_in(state.key, RESET), frame)
        memory = jax.vmap(self.agent.init_memory)(keys[:, 3])
        return state._replace(
            memory=jax.vmap(_where)(under_way, memory, state.memory),
            observation=observation,
            replay=self.replay.cut(state.replay, under_way),
            episode=fresh._replace(start_value=state.episode.start_value),
        )

    def act(self, state: LoopState, frame: jax.Array) -> tuple[jax.Array, Beliefs]:
        """Actions for all lanes of one seed."""
        frames, keys = self._lane_keys(state.key, frame)
        choose = jax.vmap(self.agent.act, in_axes=(None, 0, 0, 0, 0))
        return choose(state.agent, state.memory, state.observation, frames, keys[:, 0])

    def learn(
        self,
        agent: AgentState,
        tally: Tally,
        nonfinite: jax.Array,
        replay: ReplayState,
        key: jax.Array,
        frame: jax.Array,
    ) -> tuple[AgentState, Tally, jax.Array]:
        """The update of one frame of one seed, with the keys that `Loop.step` would use."""
        _, _, sample_key, _ = self.frame_keys(key, frame - 1)
        forward_key, _ = jax.random.split(self.frame_keys(key, frame)[0])
        agent, metrics = self.agent.learn(agent, self.replay.sample(replay, sample_key), frame, forward_key)
        tally = tally._replace(updates=tally.updates + 1, learning=jax.tree.map(jnp.add, tally.learning, metrics))
        first_bad = (nonfinite == NEVER) & ~jnp.isfinite(metrics["loss"])
        return agent, tally, jnp.where(first_bad, frame, nonfinite)

    def absorb(
        self, state: LoopState, actions: jax.Array, beliefs: Beliefs, after: HostStep, frame: jax.Array
    ) -> tuple[LoopState, Finished]:
        """Stores and counts what one tick of one seed brought. The agent's state is not looked at."""
        _, keys = self._lane_keys(state.key, frame)
        replay = self.replay.add(
            state.replay,
            state.observation,
            actions,
            after.reward,
            after.terminated,
            after.truncated,
            after.successor,
        )
        ended = after.terminated | after.truncated
        episode, finished = jax.vmap(self._count)(state.episode, beliefs, actions, after.reward, ended)
        acting = {
            name: state.tally.acting[name] + jnp.take_along_axis(each, actions[:, None], axis=1).sum()
            for name, each in _uncertainties(beliefs).items()
        }
        state = state._replace(
            memory=jax.vmap(_where)(ended, jax.vmap(self.agent.init_memory)(keys[:, 3]), state.memory),
            observation=after.observation,
            replay=replay,
            episode=episode,
            tally=state.tally._replace(frames=state.tally.frames + self.num_envs, acting=acting),
        )
        return state, finished


class HostChunks:
    """Plays a `HostLoop` tick by tick; like `Chunks`, about a second at a time."""

    def __init__(self, loop: HostLoop, seeds: Sequence[int], learning_starts: int | None = None):
        self._loop, self._seeds = loop, seeds
        hyper = loop.agent.hyper
        self._learning_starts = hyper.learning_starts if learning_starts is None else learning_starts
        self._lanes: list[Lanes] = []
        self.frames_per_second: float | None = None  # of each seed
        self._played: set[str] = set()  # programs that have been called
        self._timed: set[str] = set()  # of these, the ones whose compilation is behind us
        self._begin = jit(jax.vmap(loop.begin, in_axes=(0, 0, None)), donate_argnums=0)
        self._act = jit(jax.vmap(loop.act, in_axes=(0, None)))
        self._learn = jit(jax.vmap(loop.learn, in_axes=(0, 0, 0, 0, 0, None)), donate_argnums=(0, 1, 2))
        self._absorb = jit(jax.vmap(loop.absorb, in_axes=(0, 0, 0, 0, None)), donate_argnums=0)
        self._copy_target = jit(jax.vmap(loop.agent.copy_target), donate_argnums=0)

    def split(self, states: LoopState) -> Groups:
        """The states of all seeds as `run` takes them: one group."""
        return (states,)

    def run(self, groups: Groups, start: int, stop: int) -> tuple[Groups, int, list[EpisodeRow]]:
        """Whole ticks from frame `start` on, to `stop` or a little past it, for about CHUNK_SECONDS.

        Returns the states, the frame reached, and the episodes that ended. The first call makes the environments and
        resets them, with seeds that follow from the run's seeds and the frame.
        """
        began = clock = time.monotonic()
        (states,), frame, rows, timed_from = groups, start, [], start
        try:
            if not self._lanes:
                observation = self._reset(start)
                states = self._begin(states, observation, start)
            while frame < stop and time.monotonic() - began < CHUNK_SECONDS:
                seen = states._replace(replay=_NOTHING, episode=_NOTHING, tally=_NOTHING)
                actions, beliefs = self._act(seen, frame)
                self._played.add("act")
                after = self._step(np.asarray(actions))
                states, finished = self._take_in(states, actions, beliefs, after, frame)
                if finished is not None:
                    rows += episode_rows(finished, self._seeds, frame)
                frame += self._loop.num_envs
                if self._played != self._timed:  # a program was compiled, which says nothing of the speed
                    self._timed = set(self._played)
                    jax.block_until_ready(states.agent)
                    clock, timed_from = time.monotonic(), frame
        except _Raised as raised:
            self.close()
            raise EnvironmentFailed((states,), frame, rows) from raised.__cause__
        jax.block_until_ready(states.observation)
        if frame > timed_from:
            self.frames_per_second = (frame - timed_from) / (time.monotonic() - clock)
        return (states,), frame, rows

    def _reset(self, frame: int) -> np.ndarray:
        try:
            self._lanes = [self._loop.env.vector(self._loop.num_envs) for _ in self._seeds]
            seeds = [[seed_of(seed, frame, lane) for lane in range(self._loop.num_envs)] for seed in self._seeds]
            return np.stack([lanes.reset(each) for lanes, each in zip(self._lanes, seeds, strict=True)])
        except Exception as error:
            raise _Raised from error

    def _step(self, actions: np.ndarray) -> HostStep:
        """One step of every environment: [seeds, lanes, ...]."""
        try:
            steps = [lanes.step(each) for lanes, each in zip(self._lanes, actions, strict=True)]
        except Exception as error:
            raise _Raised from error
        return HostStep(*(np.stack(parts) for parts in zip(*steps, strict=True)))

    def _take_in(
        self, states: LoopState, actions: jax.Array, beliefs: Beliefs, after: HostStep, frame: int
    ) -> tuple[LoopState, Finished | None]:
        """Learns from what was played before this tick, then stores the tick, as `Loop.step` does."""
        hyper, frames = self._loop.agent.hyper, range(frame, frame + self._loop.num_envs)
        agent, tally, nonfinite = states.agent, states.tally, states.nonfinite
        if any(f % hyper.target_period == 0 for f in frames):
            agent = self._copy_target(agent)
        if frame >= self._learning_starts:
            for f in frames:
                if f % hyper.update_every == 0:
                    self._played.add("learn")
                    agent, tally, nonfinite = self._learn(agent, tally, nonfinite, states.replay, states.key, f)
        rest = states._replace(agent=_NOTHING, tally=tally, nonfinite=nonfinite)
        rest, finished = self._absorb(rest, actions, beliefs, after, frame)
        ended = (after.terminated | after.truncated).any()
        # [lanes, seeds]: the lanes of a tick are its frames.
        return rest._replace(agent=agent), jax.tree.map(lambda x: np.asarray(x).T, finished) if ended else None

    def close(self) -> None:
        """Closes the environments; the next `run` makes new ones and resets them."""
        for lanes in self._lanes:
            lanes.close()
        self._lanes = []


class _Raised(Exception):
    """Carries an environment's own exception, its cause, out of the loop."""
