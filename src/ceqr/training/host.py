"""The player of environments that live on the host: a tick is one compiled call between two steps of the environment.

The call learns from what was played before, takes in the step that was just made, and chooses the next actions; an
update is made in the same order, with the same random numbers, as by `ceqr.training.compiled`. The state goes from call
to call as a flat list of arrays: taking a tree of modules apart takes longer than many a network.

The state between two ticks is whole: if an environment raises, nothing has changed since the tick before. Only the
environment itself is no part of it, so whoever goes on from a saved state begins a new episode.
"""

import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ceqr.compilation import jit
from ceqr.envs.base import TimeStep
from ceqr.envs.gymnasium import HostEnvironment, Lanes, seed_of
from ceqr.runs import EpisodeRow
from ceqr.streams import Stream, stream
from ceqr.training.loop import Choice, Finished, Loop, LoopState
from ceqr.training.players import CHUNK_SECONDS, EnvironmentFailed, Player

Leaves = Sequence[Any]


class HostPlayer(Player):
    """An agent in environments that JAX cannot compile."""

    def __init__(self, loop: Loop, env: HostEnvironment, seeds: Sequence[int], learning_starts: int | None = None):
        super().__init__(loop, seeds, 1, learning_starts)
        self._env = env
        self._lanes: list[Lanes] = []
        self._choices: list[Choice] = []  # of the tick under way, a group
        state = jax.eval_shape(self.init_group, jnp.zeros(1, jnp.int32))
        self._tree = jax.tree.structure(state)
        self._tick = jit(self._flat_tick, static_argnums=4, donate_argnums=(0, 1))
        self._act = jit(jax.vmap(lambda s, f: loop.act(s, f, loop.tick_keys(s.key, f)), in_axes=(0, None)))
        self._begin = jit(jax.vmap(loop.begin, in_axes=(0, 0, 0)), donate_argnums=0)
        self._copy_target = jit(lambda agent: jax.lax.map(loop.agent.copy_target, agent), donate_argnums=0)
        self._compiled: set[int] = set()

    def init_seed(self, seed: jax.Array) -> LoopState:
        return self.loop.init(seed)

    @property
    def groups(self) -> Sequence[LoopState]:
        return [jax.tree.unflatten(self._tree, leaves) for leaves in self._states]

    @groups.setter
    def groups(self, groups: Sequence[LoopState]) -> None:
        self._states: list[Leaves] = [jax.tree.leaves(group) for group in groups]

    def tick(
        self, state: LoopState, choice: Choice, after: TimeStep, frame: jax.Array, updates: int
    ) -> tuple[LoopState, Choice, Finished]:
        """All that one seed does between two steps of the environment."""
        loop = self.loop
        keys = loop.tick_keys(state.key, frame)
        state = loop.learn(state, frame, keys, updates)
        state, finished = loop.absorb(state, choice, after, frame, keys)
        following = frame + loop.lanes
        return state, loop.act(state, following, loop.tick_keys(state.key, following)), finished

    def _flat_tick(
        self, leaves: Leaves, choice: Choice, after: TimeStep, frame: jax.Array, updates: int
    ) -> tuple[Leaves, Choice, Finished]:
        def one(state: LoopState, choice: Choice, after: TimeStep) -> tuple[LoopState, Choice, Finished]:
            return self.tick(state, choice, after, frame, updates)

        state, choice, finished = jax.vmap(one)(jax.tree.unflatten(self._tree, leaves), choice, after)
        return jax.tree.leaves(state), choice, finished

    def run(self, start: int, stop: int) -> tuple[int, list[EpisodeRow]]:
        began = clock = time.monotonic()
        frame, rows, timed_from = start, [], start
        try:
            if not self._lanes:
                self._reset(start)
            while frame < stop and time.monotonic() - began < CHUNK_SECONDS:
                updates = int(self.loop.updates_due(frame)) if frame >= self._learning_starts else 0
                after = [self._step(lanes, choice) for lanes, choice in zip(self._lanes, self._choices, strict=True)]
                finished = [self._take_in(i, each, frame, updates) for i, each in enumerate(after)]
                if any((each.terminated | each.truncated).any() for each in after):
                    # [lanes, seeds]: the lanes of a tick are its frames.
                    rows += self._rows([jax.tree.map(lambda x: np.asarray(x).T, each) for each in finished], frame)
                frame += self.loop.lanes
                if self.loop.copy_due(frame):
                    self._copy_and_act(frame)
                if updates not in self._compiled:  # a program was compiled, which says nothing of the speed
                    self._compiled.add(updates)
                    jax.block_until_ready(self._choices)
                    clock, timed_from = time.monotonic(), frame
        except _Raised as raised:
            self.close()
            raise EnvironmentFailed(frame, rows) from raised.__cause__
        jax.block_until_ready(self._choices)
        if frame > timed_from:
            self.frames_per_second = (frame - timed_from) / (time.monotonic() - clock)
        return frame, rows

    def _take_in(self, i: int, after: TimeStep, frame: int, updates: int) -> Finished:
        self._states[i], self._choices[i], finished = self._tick(
            self._states[i], self._choices[i], after, frame, updates
        )
        return finished

    def _reset(self, frame: int) -> None:
        """Makes environments and begins episodes in them, with seeds that follow from the run's seeds and the frame."""
        count = self.loop.lanes
        try:
            self._lanes = [self._env.vector(count) for _ in self.seeds]
            first = [
                lanes.reset([seed_of(Stream.RESETS, seed, frame, lane) for lane in range(count)])
                for lanes, seed in zip(self._lanes, self.seeds, strict=True)
            ]
        except Exception as error:
            raise _Raised from error
        keys = [jax.random.fold_in(stream(seed, Stream.RESETS), frame)[None] for seed in self.seeds]
        self.groups = [
            self._begin(group, observation[None], key)
            for group, observation, key in zip(self.groups, first, keys, strict=True)
        ]
        if self.loop.copy_due(frame):
            self._copy_and_act(frame)
        else:
            self._choices = [self._act(group, frame) for group in self.groups]

    def _copy_and_act(self, frame: int) -> None:
        """Copies the target networks before the tick of that frame; what was chosen for it is chosen again, since an
        agent may look at what a copy refreshes. Copying twice, before and after a resume, is the same as once."""
        self.groups = [group._replace(agent=self._copy_target(group.agent)) for group in self.groups]
        self._choices = [self._act(group, frame) for group in self.groups]

    def _step(self, lanes: Lanes, choice: Choice) -> TimeStep:
        """One step of one seed's environments: [1, lanes, ...]."""
        actions = np.asarray(choice.action)[0]
        try:
            after = lanes.step(actions)
        except Exception as error:
            raise _Raised from error
        return TimeStep(*(part[None] for part in after))

    def close(self) -> None:
        """Closes the environments; the next `run` makes new ones and resets them."""
        for lanes in self._lanes:
            lanes.close()
        self._lanes, self._choices = [], []


class _Raised(Exception):
    """Carries an environment's own exception, its cause, out of the loop."""
