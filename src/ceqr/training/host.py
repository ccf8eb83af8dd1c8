"""The player of environments that live on the host: a tick is one compiled call between two steps of the environment.

The call learns from what was played before, takes in the step that was just made, and chooses the next actions; an
update is made in the same order, with the same random numbers, as by `ceqr.training.compiled`. Between calls the state
is packed into a few arrays, and those that a call does not change are not handed back.

The state between two ticks is whole: if an environment raises, nothing has changed since the tick before. Only the
environment itself is no part of it, so whoever goes on from a saved state begins a new episode.
"""

import time
from collections.abc import Hashable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ceqr.agents.base import AgentState
from ceqr.compilation import jit
from ceqr.envs.base import TimeStep
from ceqr.envs.gymnasium import HostEnvironment, Lanes, seed_of
from ceqr.runs import EpisodeRow
from ceqr.streams import Stream, stream
from ceqr.training.loop import Chance, Choice, Finished, Loop, LoopState
from ceqr.training.packing import Packing
from ceqr.training.players import CHUNK_SECONDS, EnvironmentFailed, Player, is_small

DRAWN_AHEAD = 256  # ticks for which random numbers are drawn at once: one by one they would take longer than acting


class _Parts(NamedTuple):
    """A group's state by what changes it, or how each part is packed."""

    fixed: Any  # an AgentState; changed by copies of the target network alone
    learned: Any  # an AgentState; changed by updates
    played: Any  # (LoopState, Choice): changed by every tick; with what is chosen for the tick to come


class _Told(NamedTuple):
    """What a tick tells the host."""

    action: Any  # [1, lanes]: for the next step
    finished: Finished  # [1, lanes]


class HostPlayer(Player):
    """An agent in environments that JAX cannot compile."""

    def __init__(self, loop: Loop, env: HostEnvironment, seeds: Sequence[int], learning_starts: int | None = None):
        super().__init__(loop, seeds, 1, learning_starts)
        self._env = env
        self._lanes: list[Lanes] = []
        self._parts: list[_Parts] = []  # packed, a group
        self._actions: list[np.ndarray] = []  # of the step to come, a group
        self._chances: list[Any] = []  # packed, of the next ticks, a group
        self._drawn = 0  # the frame from which on they are
        self._compiled: set[int] = set()  # programs whose compilation is behind us, by their updates

        group = jax.eval_shape(self.init_group, jnp.zeros(1, jnp.int32))
        choice = jax.eval_shape(self._choose, group, 0)
        self._packings = _Parts(*map(Packing, _take_apart(group, choice)))
        self._chance_packing = Packing(jax.eval_shape(self._draw_ahead, group.key, 0))
        self._told_packing: Packing[_Told] = Packing(
            _Told(choice.action, jax.eval_shape(self._absorb_nothing, group, choice))
        )
        # What was learned is given away only where it is handed back.
        one_thread = is_small(loop.agent)
        self._tick = jit(self._packed_tick, one_thread=one_thread, static_argnums=6, donate_argnums=(0, 2))
        self._tick_without = jit(self._packed_tick, one_thread=one_thread, static_argnums=6, donate_argnums=2)
        self._act = jit(self._choose)
        self._draw = jit(lambda key, start: self._chance_packing.pack(self._draw_ahead(key, start)))
        self._begin = jit(jax.vmap(loop.begin), donate_argnums=0)
        self._copy_target = jit(partial(jax.lax.map, loop.agent.copy_target), donate_argnums=0)

    @property
    def program_key(self) -> tuple[Hashable, ...]:
        return type(self), self.loop  # the environment is outside

    def init_seed(self, seed: jax.Array) -> LoopState:
        return self.loop.init(seed)

    @property
    def groups(self) -> Sequence[LoopState]:
        return [self._put_together(parts)[0] for parts in self._parts]

    @groups.setter
    def groups(self, groups: Sequence[LoopState]) -> None:
        # The choices under way do not depend on what is changed from outside.
        choices = [self._put_together(parts)[1] for parts in self._parts] or [
            jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(self._choose, group, 0))
            for group in groups
        ]
        self._set(groups, choices)

    def _set(self, groups: Sequence[LoopState], choices: Sequence[Choice]) -> None:
        self._parts = [
            _Parts(*(p.pack(part) for p, part in zip(self._packings, _take_apart(*both), strict=True)))
            for both in zip(groups, choices, strict=True)
        ]
        self._actions = [np.asarray(choice.action)[0] for choice in choices]

    def _put_together(self, packed: _Parts) -> tuple[LoopState, Choice]:
        fixed, learned, (rest, choice) = (p.unpack(part) for p, part in zip(self._packings, packed, strict=True))
        agent = rest.agent._replace(
            params=learned.params, target=fixed.target, optimiser=learned.optimiser, frozen=fixed.frozen
        )
        return rest._replace(agent=agent), choice

    # The programs, each of one group.

    def _choose(self, group: LoopState, frame: Any) -> Choice:
        return jax.vmap(lambda state: self.loop.act(state, frame, self.loop.chance(state.key, frame)))(group)

    def _draw_ahead(self, key: jax.Array, start: Any) -> tuple[jax.Array, Chance]:
        """What is drawn for some ticks from `start` on, [ticks, 1, ...]."""
        starts = start + self.loop.lanes * jnp.arange(DRAWN_AHEAD + 1)
        chance = jax.vmap(jax.vmap(self.loop.chance, in_axes=(0, None)), in_axes=(None, 0))(key, starts)
        return jnp.int32(start), chance

    def _absorb_nothing(self, group: LoopState, choice: Choice) -> Finished:
        """As in a tick in which nothing happens: what an episode's end looks like."""

        def absorb(state: LoopState, choice: Choice) -> Finished:
            no, seen = jnp.zeros(self.loop.lanes, bool), state.observation
            nothing = TimeStep(seen, seen, jnp.zeros(self.loop.lanes), no, no)
            return self.loop.absorb(state, choice, nothing, jnp.int32(0), self.loop.chance(state.key, jnp.int32(0)))[1]

        return jax.vmap(absorb)(group, choice)

    def tick(
        self,
        state: LoopState,
        choice: Choice,
        after: TimeStep,
        now: Chance,
        following: Chance,
        frame: Any,
        updates: int,
    ) -> tuple[LoopState, Choice, Finished]:
        """All that one seed does between two steps of the environment."""
        loop = self.loop
        state = loop.learn(state, frame, now, updates)
        state, finished = loop.absorb(state, choice, after, frame, now)
        return state, loop.act(state, frame + loop.lanes, following), finished

    def _packed_tick(
        self, learned: Any, fixed: Any, played: Any, after: TimeStep, drawn: Any, frame: Any, updates: int
    ) -> tuple[Any, Any, Any]:
        """A tick of a group between packed arrays; what was learned is handed back only if there were updates."""

        def tick(_: Any, packed: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
            group, choice = self._put_together(_Parts(fixed, packed[0] if updates else learned, packed[1]))
            start, chances = self._chance_packing.unpack(drawn)
            i = (frame - start) // self.loop.lanes
            now, following = (jax.tree.map(lambda x, j=j: x[i + j], chances) for j in (0, 1))

            def one(state: LoopState, choice: Choice, after: TimeStep, now: Chance, following: Chance) -> Any:
                return self.tick(state, choice, after, now, following, frame, updates)

            group, choice, finished = jax.vmap(one)(group, choice, after, now, following)
            parts = [p.pack(part) for p, part in zip(self._packings, _take_apart(group, choice), strict=True)]
            return parts[1] if updates else None, parts[2], self._told_packing.pack(_Told(choice.action, finished))

        # As a loop of one round: XLA runs the body of a loop on one thread, and what is outside in parts on several,
        # whose handing over takes longer than all the work (docs/performance.md).
        told = [jnp.zeros(x.shape, x.dtype) for x in self._told_packing.shapes]
        return jax.lax.fori_loop(frame, frame + 1, tick, (learned if updates else None, played, told))

    # Playing.

    def run(self, start: int, stop: int) -> tuple[int, list[EpisodeRow]]:
        began = clock = time.monotonic()
        frame, rows, timed_from = start, [], start
        try:
            if not self._lanes:
                self._reset(start)
            while frame < stop and time.monotonic() - began < CHUNK_SECONDS:
                updates = int(self.loop.updates_due(frame)) if frame >= self._learning_starts else 0
                after = [self._step(lanes, each) for lanes, each in zip(self._lanes, self._actions, strict=True)]
                told = [self._take_in(i, each, frame, updates) for i, each in enumerate(after)]
                if any((each.terminated | each.truncated).any() for each in after):
                    # [lanes, seeds]: the lanes of a tick are its frames.
                    rows += self._rows([jax.tree.map(lambda x: x.T, each.finished) for each in told], frame)
                frame += self.loop.lanes
                if self.loop.copy_due(frame):
                    self._choose_anew(self.groups, frame)
                if updates not in self._compiled:  # a program was compiled, which says nothing of the speed
                    self._compiled.add(updates)
                    clock, timed_from = time.monotonic(), frame
        except _Raised as raised:
            with suppress(Exception):  # what is broken may not close either; the state is to be saved all the same
                self.close()
            raise EnvironmentFailed(frame, rows) from raised.__cause__
        if frame > timed_from:
            self.frames_per_second = (frame - timed_from) / (time.monotonic() - clock)
        return frame, rows

    def _take_in(self, i: int, after: TimeStep, frame: int, updates: int) -> _Told:
        if not self._chances or not self._drawn <= frame < self._drawn + DRAWN_AHEAD * self.loop.lanes:
            self._drawn = frame
            self._chances = [self._draw(group.key, frame) for group in self.groups]
        fixed, learned, played = self._parts[i]
        program = self._tick if updates else self._tick_without
        changed, played, told = program(learned, fixed, played, after, self._chances[i], frame, updates)
        self._parts[i] = _Parts(fixed, changed if updates else learned, played)
        heard = self._told_packing.unpack([np.asarray(array) for array in told])
        self._actions[i] = heard.action[0]
        return heard

    def _reset(self, frame: int) -> None:
        """Makes environments and begins episodes in them, with seeds that follow from the run's seeds and the frame."""
        count = self.loop.lanes
        try:
            for _ in self.seeds:
                self._lanes.append(self._env.vector(count))
            first = [
                lanes.reset([seed_of(Stream.RESETS, seed, frame, lane) for lane in range(count)])
                for lanes, seed in zip(self._lanes, self.seeds, strict=True)
            ]
        except Exception as error:
            raise _Raised from error
        keys = [jax.random.fold_in(stream(seed, Stream.RESETS), frame)[None] for seed in self.seeds]
        groups = [
            self._begin(group, observation[None], key)
            for group, observation, key in zip(self.groups, first, keys, strict=True)
        ]
        self._choose_anew(groups, frame)

    def _choose_anew(self, groups: Sequence[LoopState], frame: int) -> None:
        """What is chosen for the tick of that frame, after the copy of the target network that comes before it.

        An agent may look at what a copy refreshes. Copying twice, before and after a resume, is the same as once.
        """
        if self.loop.copy_due(frame):
            groups = [group._replace(agent=self._copy_target(group.agent)) for group in groups]
        self._set(groups, [self._act(group, frame) for group in groups])

    def _step(self, lanes: Lanes, actions: np.ndarray) -> TimeStep:
        """One step of one seed's environments: [1, lanes, ...]."""
        try:
            after = lanes.step(actions)
        except Exception as error:
            raise _Raised from error
        return TimeStep(*(part[None] for part in after))

    def close(self) -> None:
        """Closes the environments; the next `run` makes new ones and resets them."""
        with ExitStack() as closing:
            while self._lanes:
                closing.callback(self._lanes.pop().close)


def _take_apart(group: LoopState, choice: Choice) -> _Parts:
    nothing: Any = ()
    agent, empty = group.agent, AgentState(nothing, nothing, nothing, nothing, nothing)
    return _Parts(
        fixed=empty._replace(target=agent.target, frozen=agent.frozen),
        learned=empty._replace(params=agent.params, optimiser=agent.optimiser),
        played=(group._replace(agent=empty._replace(statistics=agent.statistics)), choice),
    )


class _Raised(Exception):
    """Carries an environment's own exception, its cause, out of the loop."""
