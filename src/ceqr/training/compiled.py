"""The player of compiled environments: many ticks, environment and all, in one program.

Host and device meet only between chunks. On a CPU each seed is a group of its own and as many groups run at once as
there are cores, each on one: a single seed's products are mostly too small to keep several busy. On an accelerator all
seeds are one group, in one program.
"""

import time
from collections.abc import Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ceqr.compilation import cores, jit, kept, side_by_side
from ceqr.envs.base import Environment, reset
from ceqr.runs import EpisodeRow
from ceqr.streams import Stream, lane_keys, stream
from ceqr.training.loop import Chance, Finished, Loop, LoopState
from ceqr.training.players import CHUNK_SECONDS, Player

CHUNK_FRAMES = 1_000  # frames in a chunk at the most
FIRST_CHUNK = 20  # frames


class CompiledPlayer(Player):
    """An agent in an environment that is part of the program."""

    def __init__(self, loop: Loop, env: Environment, seeds: Sequence[int], learning_starts: int | None = None):
        super().__init__(loop, seeds, 1 if jax.default_backend() == "cpu" else len(seeds), learning_starts)
        self._env = env
        self._at_once = side_by_side(-(-len(seeds) // self._group_size))
        # Two programs, with and without learning: a branch inside one would copy all weights in every frame.
        self._programs: dict[bool, Any] = {}
        self._frames = FIRST_CHUNK

    @property
    def groups(self) -> Sequence[LoopState]:
        return self._groups

    @groups.setter
    def groups(self, groups: Sequence[LoopState]) -> None:
        self._groups = groups

    @property
    def chunk_ticks(self) -> int:
        """Ticks in a chunk, at the most: the last of them may play frames past CHUNK_FRAMES."""
        return -(-CHUNK_FRAMES // self.loop.lanes)

    def init_seed(self, seed: jax.Array) -> LoopState:
        keys = lane_keys(stream(seed, Stream.ENVIRONMENT), self.loop.lanes)
        return self.loop.init(seed, *jax.vmap(lambda key: reset(self._env, key, seed))(keys))

    def compile(self) -> None:
        """Compiles both programs, so that nothing has to wait for them later."""
        if self._programs:
            return

        def compile_both() -> dict[bool, Any]:
            group = jax.eval_shape(self.init_group, jnp.zeros(self._group_size, jnp.int32))
            zero = jnp.int32(0)
            return {
                learning: jit(partial(self.chunk, learning=learning), one_thread=self.one_thread, donate_argnums=0)
                .lower(group, zero, zero)
                .compile()
                for learning in (False, True)
            }

        self._programs = kept(("chunk", *self.program_key, self._group_size, self.one_thread), compile_both)

    @property
    def one_thread(self) -> bool:
        return super().one_thread or self._at_once > 1 or cores() == 1

    @property
    def program_key(self) -> tuple[Hashable, ...]:
        return type(self), self.loop, self._env

    def tick(self, state: LoopState, frame: jax.Array, chance: Chance, learning: bool) -> tuple[LoopState, Finished]:
        """One tick of one seed.

        `learning` says (at compile time) whether it may update the agent.
        """
        if learning:
            state, choice = self.loop.act_and_learn(state, frame, chance)
        else:
            choice = self.loop.act(state, frame, chance)
        env, after = jax.vmap(self._env.step)(state.env, choice.action, chance.env)
        return self.loop.absorb(state._replace(env=env), choice, after, frame, chance)

    def chunk(self, states: LoopState, start: jax.Array, stop: jax.Array, learning: bool) -> tuple[LoopState, Finished]:
        """Ticks from frame `start` to `stop` - 1 (at most `chunk_ticks` of them) of a group of seeds.

        `states` has a leading axis of seeds. The second result holds, for each tick of the chunk, each seed and each
        lane, the episode that ended there: [chunk_ticks, seeds, lanes].
        """
        loop, lanes = self.loop, self.loop.lanes
        one_tick = jax.vmap(partial(self.tick, learning=learning), in_axes=(0, None, 0))
        # All of it at once: drawn tick by tick, it would take a good part of a small network's frame.
        frames = start + lanes * jnp.arange(self.chunk_ticks)
        chance = jax.vmap(jax.vmap(loop.chance, in_axes=(0, None)), in_axes=(None, 0))(states.key, frames)
        shapes = jax.eval_shape(one_tick, states, start, jax.tree.map(lambda x: x[0], chance))[1]
        log = jax.tree.map(lambda x: jnp.zeros((self.chunk_ticks, *x.shape), x.dtype), shapes)

        def tick(i: jax.Array, carry: tuple[LoopState, Finished]) -> tuple[LoopState, Finished]:
            states, log = carry
            states, finished = one_tick(states, start + i * lanes, jax.tree.map(lambda x: x[i], chance))
            return states, jax.tree.map(
                lambda rows, row: jax.lax.dynamic_update_index_in_dim(rows, row, i, 0), log, finished
            )

        def one_period(carry: tuple[jax.Array, LoopState, Finished]) -> tuple[jax.Array, LoopState, Finished]:
            # The copy stands outside the loop over frames: inside, it would cost a pass over all weights each frame.
            # Seed by seed: see `init_group` for what LAPACK makes of a batch.
            frame, states, log = carry
            copy = partial(jax.lax.map, loop.agent.copy_target)
            agent = jax.lax.cond(loop.copy_due(frame), copy, lambda same: same, states.agent)
            end = jnp.minimum(stop, loop.next_copy(frame))
            first, last = (frame - start) // lanes, -((start - end) // lanes)
            states, log = jax.lax.fori_loop(first, last, tick, (states._replace(agent=agent), log))
            return end, states, log

        _, states, log = jax.lax.while_loop(lambda carry: carry[0] < stop, one_period, (start, states, log))
        return states, log

    def run(self, start: int, stop: int) -> tuple[int, list[EpisodeRow]]:
        lanes = self.loop.lanes
        stop = min(stop, start + self._frames)
        if start < self._learning_starts:
            stop = min(stop, self._learning_starts)
        stop = start + -(-(stop - start) // lanes) * lanes  # whole ticks
        self.compile()
        began = time.monotonic()
        finished = self.play(start, stop)
        self.frames_per_second = rate = (stop - start) / (time.monotonic() - began)
        self._frames = max(1, min(CHUNK_FRAMES, round(rate * CHUNK_SECONDS)))
        return stop, self._rows(finished, start)

    def play(self, start: int, stop: int) -> list[Finished]:
        """Frames `start` to `stop` - 1, `chunk_ticks` ticks at the most, all with learning or all without.

        Returns for each group the episodes that ended, [frames, seeds].
        """
        self.compile()
        program, first, last = self._programs[start >= self._learning_starts], jnp.int32(start), jnp.int32(stop)

        def play_group(group: LoopState) -> tuple[LoopState, Finished]:
            group, finished = program(group, first, last)
            return group, jax.tree.map(np.asarray, finished)  # waits for the chunk

        with ThreadPoolExecutor(self._at_once) as pool:
            self.groups, finished = zip(*pool.map(play_group, self.groups), strict=True)

        def by_frame(rows: np.ndarray) -> np.ndarray:  # [ticks, seeds, lanes] -> [frames, seeds]
            return rows.swapaxes(1, 2).reshape(-1, rows.shape[1])[: stop - start]

        return [jax.tree.map(by_frame, group) for group in finished]

    def close(self) -> None:
        """There is nothing to close; environments of the host have."""
