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
from ceqr.training.players import CHUNK_SECONDS, EnvironmentFailed, Player

DRAWN_AHEAD = 256  # ticks for which random numbers are drawn at once: one by one they would take longer than acting


class _Parts(NamedTuple):
    """A group's state by what changes it, or how each part is packed."""

    fixed: Any  # an AgentState; changed by copies of the target network alone, which is here unless updates move it
    learned: Any  # an AgentState; changed by updates
    played: Any  # (LoopState, Choice): changed by every tick; with what is chosen for the tick to come


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
        self._packings = _Parts(*map(Packing, self._take_apart(group, choice)))
        self._chance_packing = Packing(jax.eval_shape(self._draw_ahead, group.key, 0))
        self._finished_packing = Packing(jax.eval_shape(self._absorb_nothing, group, choice))
        # What was learned is given away only where it is handed back.
        self._tick = jit(self._packed_tick, one_thread=self.one_thread, static_argnums=6, donate_argnums=(0, 2))
        self._tick_without = jit(self._packed_tick, one_thread=self.one_thread, static_argnums=6, donate_argnums=2)
        self._draw = jit(self._packed_draw)
        self._begin = jit(jax.vmap(loop.begin), donate_argnums=0)
        self._renew = jit(self._packed_choice, static_argnums=2, donate_argnums=0)

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
        self._parts = [self._pack(*both) for both in zip(groups, choices, strict=True)]
        self._actions = [np.asarray(choice.action)[0] for choice in choices]

    def _pack(self, group: LoopState, choice: Choice) -> _Parts:
        return _Parts(*(p.pack(part) for p, part in zip(self._packings, self._take_apart(group, choice), strict=True)))

    def _put_together(self, packed: _Parts) -> tuple[LoopState, Choice]:
        fixed, learned, (rest, choice) = (p.unpack(part) for p, part in zip(self._packings, packed, strict=True))
        target = learned.target if self._follows else fixed.target
        agent = rest.agent._replace(
            params=learned.params, target=target, optimiser=learned.optimiser, frozen=fixed.frozen
        )
        return rest._replace(agent=agent), choice

    def _take_apart(self, group: LoopState, choice: Choice) -> _Parts:
        nothing: Any = ()
        agent, empty = group.agent, AgentState(nothing, nothing, nothing, nothing, nothing)
        target = empty._replace(target=agent.target)
        moved, kept = (target, empty) if self._follows else (empty, target)
        return _Parts(
            fixed=kept._replace(frozen=agent.frozen),
            learned=moved._replace(params=agent.params, optimiser=agent.optimiser),
            played=(group._replace(agent=empty._replace(statistics=agent.statistics)), choice),
        )

    @property
    def _follows(self) -> bool:
        """Whether every update moves the target network."""
        return self.loop.agent.hyper.target_rate > 0

    # The programs, each of one group.

    def _choose(self, group: LoopState, frame: Any) -> Choice:
        return jax.vmap(lambda state: self.loop.act(state, frame, self.loop.chance(state.key, frame)))(group)

    def _packed_choice(self, parts: _Parts, frame: Any, copy: bool) -> tuple[_Parts, jax.Array]:
        """What is chosen for the tick of that frame, perhaps after a copy of the target network; and the actions."""
        group, _ = self._put_together(parts)
        if copy:  # seed by seed: see `init_group`
            group = group._replace(agent=jax.lax.map(self.loop.agent.copy_target, group.agent))
        choice = self._choose(group, frame)
        return self._pack(group, choice), choice.action

    def _packed_draw(self, played: Any, start: Any) -> Any:
        group, _ = self._packings.played.unpack(played)
        return self._chance_packing.pack(self._draw_ahead(group.key, start))

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
    ) -> tuple[Any, Any, jax.Array, Any]:
        """A tick of a group between packed arrays.

        Returns what was learned (only if there were updates), what was played, the next actions, and the episodes that
        ended.
        """

        def tick(_: Any, packed: tuple[Any, Any, Any, Any]) -> tuple[Any, Any, jax.Array, Any]:
            group, choice = self._put_together(_Parts(fixed, packed[0] if updates else learned, packed[1]))
            start, chances = self._chance_packing.unpack(drawn)
            i = (frame - start) // self.loop.lanes
            now, following = (jax.tree.map(lambda x, j=j: x[i + j], chances) for j in (0, 1))

            def one(state: LoopState, choice: Choice, after: TimeStep, now: Chance, following: Chance) -> Any:
                return self.tick(state, choice, after, now, following, frame, updates)

            group, choice, finished = jax.vmap(one)(group, choice, after, now, following)
            parts = self._pack(group, choice)
            ended = self._finished_packing.pack(finished)
            return parts.learned if updates else None, parts.played, choice.action, ended

        # As a loop of one round: what is outside, XLA cuts into parts for several threads, whose handing over takes
        # longer than all the work (docs/performance.md).
        nobody = jnp.zeros((1, self.loop.lanes), jnp.int32)
        ended = [jnp.zeros(x.shape, x.dtype) for x in self._finished_packing.shapes]
        return jax.lax.fori_loop(frame, frame + 1, tick, (learned if updates else None, played, nobody, ended))

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
                ended = [self._take_in(i, each, frame, updates) for i, each in enumerate(after)]
                if any((each.terminated | each.truncated).any() for each in after):
                    finished = [self._finished_packing.unpack(list(map(np.asarray, each))) for each in ended]
                    # [lanes, seeds]: the lanes of a tick are its frames.
                    rows += self._rows([jax.tree.map(lambda x: x.T, each) for each in finished], frame)
                frame += self.loop.lanes
                if self.loop.copy_due(frame):
                    self._choose_anew(frame)
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

    def _take_in(self, i: int, after: TimeStep, frame: int, updates: int) -> Any:
        """Learns from and takes in a step of one group, and chooses the next; returns the ends of episodes, packed."""
        if not self._chances or not self._drawn <= frame < self._drawn + DRAWN_AHEAD * self.loop.lanes:
            self._drawn = frame
            self._chances = [self._draw(parts.played, frame) for parts in self._parts]
        fixed, learned, played = self._parts[i]
        program = self._tick if updates else self._tick_without
        changed, played, action, ended = program(learned, fixed, played, after, self._chances[i], frame, updates)
        self._parts[i] = _Parts(fixed, changed if updates else learned, played)
        self._actions[i] = np.asarray(action)[0]
        return ended

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
        self.groups = [
            self._begin(group, observation[None], key)
            for group, observation, key in zip(self.groups, first, keys, strict=True)
        ]
        self._choose_anew(frame)

    def _choose_anew(self, frame: int) -> None:
        """What is chosen for the tick of that frame, after the copy of the target network that comes before it.

        An agent may look at what a copy refreshes. Copying twice, before and after a resume, is the same as once.
        """
        copy = bool(self.loop.copy_due(frame))
        self._parts, actions = map(list, zip(*(self._renew(each, frame, copy) for each in self._parts), strict=True))
        self._actions = [np.asarray(each)[0] for each in actions]

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


class _Raised(Exception):
    """Carries an environment's own exception, its cause, out of the loop."""
