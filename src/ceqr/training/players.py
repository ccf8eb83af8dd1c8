"""What plays a loop: the state of all seeds, advanced for about a second at a time.

To the run loop the two players are one: `ceqr.training.compiled` has the environment in its program,
`ceqr.training.host` steps it outside. On a CPU each seed is a group of its own; on an accelerator a player may keep all
seeds in one.
"""

import abc
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from ceqr.agents import agent_classes
from ceqr.agents.base import Agent, AgentState, Hyperparameters
from ceqr.compilation import kept
from ceqr.envs import is_compiled
from ceqr.runs import EpisodeRow
from ceqr.training.loop import NEVER, Finished, Loop, LoopState

if TYPE_CHECKING:
    from ceqr.training.checkpoint import Saved

SMALL = 2**25  # products of an update's forward pass: below that, a second thread costs more than it does
CHUNK_SECONDS = 1.0  # how long a player plays before it looks up: progress and interrupts wait for it


class EnvironmentFailed(Exception):
    """An environment raised an exception, which is this one's cause. The state is that of the tick before."""

    def __init__(self, frame: int, episodes: list[EpisodeRow]):
        super().__init__(f"The environment raised an exception at frame {frame:,}")
        self.frame, self.episodes = frame, episodes


class Player(abc.ABC):
    """An agent at play in an environment, with one or more seeds."""

    def __init__(self, loop: Loop, seeds: Sequence[int], group_size: int, learning_starts: int | None):
        self.loop, self.seeds = loop, seeds
        self.frames_per_second: float | None = None  # of each seed
        self._group_size = group_size
        self._learning_starts = loop.agent.hyper.learning_starts if learning_starts is None else learning_starts

    # What the players differ in.

    @property
    @abc.abstractmethod
    def groups(self) -> Sequence[LoopState]:
        """The states of all seeds: each has a leading axis of its seeds."""

    @groups.setter
    @abc.abstractmethod
    def groups(self, groups: Sequence[LoopState]) -> None: ...

    @abc.abstractmethod
    def init_seed(self, seed: jax.Array) -> LoopState:
        """The state of one seed before its first frame."""

    @abc.abstractmethod
    def run(self, start: int, stop: int) -> tuple[int, list[EpisodeRow]]:
        """Plays whole ticks from frame `start` on, to `stop` or a little past it, for about CHUNK_SECONDS.

        Returns the frame reached and the episodes that ended. An exception other than `EnvironmentFailed` leaves
        states that are lost: programs are given the memory of what they are called with.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Closes the environments, if any are open."""

    @property
    @abc.abstractmethod
    def program_key(self) -> tuple[Hashable, ...]:
        """All that the player's programs depend on."""

    # What they share.

    @property
    def one_thread(self) -> bool:
        """Whether products have one thread. How many they have orders sums, and so decides bits."""
        return is_small(self.loop.agent)

    def start(self, agent: AgentState | None = None) -> None:
        """States before the first frame, of agents that have learned nothing or of the one given."""
        self.groups = [
            self._init_program(len(seeds))(jnp.array(seeds, jnp.int32)) for seeds in self._by_group(self.seeds)
        ]
        if agent is not None:
            # Each group in memory of its own, because programs are given it.
            counts = [len(group.key) for group in self.groups]
            agents = [jax.tree.map(lambda leaf, n=n: jnp.stack([leaf] * n), agent) for n in counts]
            self.groups = [group._replace(agent=each) for group, each in zip(self.groups, agents, strict=True)]

    def _init_program(self, seeds: int) -> Any:
        def compile_init() -> Any:
            return jax.jit(self.init_group).lower(jax.ShapeDtypeStruct((seeds,), jnp.int32)).compile()

        return kept(("init", *self.program_key, seeds), compile_init)

    def load(self, saved: "Saved") -> None:
        """States that were saved, one group after the other: never is more than one leaf held twice."""
        like = jax.eval_shape(self.init_group, jnp.zeros(len(self.seeds), jnp.int32))
        saved.check(like)
        self.groups = [
            saved.read(like, rows=slice(rows[0], rows[-1] + 1)) for rows in self._by_group(range(len(self.seeds)))
        ]

    def _by_group(self, items: Sequence[int]) -> list[Sequence[int]]:
        return [items[i : i + self._group_size] for i in range(0, len(items), self._group_size)]

    def init_group(self, seeds: jax.Array) -> LoopState:
        """The states of several seeds, with a leading axis.

        One after the other: `vmap` would hand LAPACK a batch of matrices to orthogonalise, which it spreads over the
        very threads that wait for it, and two such batches at once lock up a machine with two cores.
        """
        return jax.lax.map(self.init_seed, seeds)

    def metric_names(self) -> list[str]:
        """The columns that `take_metrics` brings."""

        def trace() -> list[str]:
            tally = jax.eval_shape(self.init_seed, jnp.int32(0)).tally
            return [*tally.learning, *tally.acting, "start_value"]

        return list(kept(("metrics", *self.program_key), trace))

    def take_metrics(self) -> dict[str, np.ndarray]:
        """What was counted since the last time, by name: means a seed. Counting begins anew."""
        tally, start_value = self._gather([(group.tally, group.episode.start_value) for group in self.groups])
        with np.errstate(invalid="ignore", divide="ignore"):
            columns = {name: _mean(total, tally.updates) for name, total in tally.learning.items()}
            columns |= {name: _mean(total, tally.frames) for name, total in tally.acting.items()}
        # Where environments are played side by side, the mean over them.
        columns["start_value"] = start_value.mean(1)
        self.groups = [group._replace(tally=jax.tree.map(jnp.zeros_like, group.tally)) for group in self.groups]
        return columns

    def find_trouble(self) -> tuple[int, int, str] | None:
        """Frame, seed and kind (a field of `Trouble`) of the first thing that was not finite."""
        trouble = self._gather([group.trouble for group in self.groups])
        # A broken observation or reward breaks the loss, so in one frame they are named before it.
        kinds = ("observation", "reward", "loss")
        found = [
            (int(frame), kinds.index(kind), seed)
            for kind in kinds
            for frame, seed in zip(getattr(trouble, kind), self.seeds, strict=True)
            if frame != NEVER
        ]
        if not found:
            return None
        frame, kind, seed = min(found)
        return frame, seed, kinds[kind]

    def broken_seeds(self) -> list[int]:
        """Seeds with parameters, or counts, that are not finite.

        The last update may have been the one that broke the network: its loss would tell only in the next frame.
        """
        finite = np.concatenate([_finite((group.agent.params, group.agent.statistics)) for group in self.groups])
        return [seed for seed, fine in zip(self.seeds, finite, strict=True) if not fine]

    def _gather(self, parts: Sequence[Any]) -> Any:
        """One tree with all seeds, on the host."""
        return jax.tree.map(lambda *leaves: np.concatenate([np.asarray(leaf) for leaf in leaves]), *parts)

    def _rows(self, finished: Sequence[Finished], start: int) -> list[EpisodeRow]:
        """The episodes that ended, by frame and then by seed; one record a group, [frames, seeds of the group]."""
        together = jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), *finished)
        return [
            EpisodeRow(
                seed=self.seeds[s],
                frame=start + f + 1,
                total=float(together.total[f, s]),
                length=int(together.length[f, s]),
                nongreedy=float(together.nongreedy[f, s]),
                least_uncertain=float(together.least_uncertain[f, s]),
            )
            for f, s in np.argwhere(together.ended)
        ]


def _mean(total: Any, count: np.ndarray) -> np.ndarray:
    return (total.total.astype(np.float64) - total.excess) / count


def _finite(params: Any) -> np.ndarray:
    """Whether all numbers of each seed are."""
    leaves = map(np.asarray, jax.tree.leaves(params))
    return np.logical_and.reduce([np.isfinite(leaf).reshape(len(leaf), -1).all(1) for leaf in leaves])


def is_small(agent: Agent) -> bool:
    """Whether an agent's updates are so small that one thread makes them sooner than several."""
    return agent.parameter_count() * agent.hyper.batch_size < SMALL


def make_loop(agent: str, hyper: Hyperparameters, env: Any, lanes: int = 1) -> Loop:
    """An agent by name, for an environment of either kind."""
    agent_class, _ = agent_classes(agent)
    return Loop(agent_class(hyper, env.observation_shape, env.num_actions), env.observation_dtype, lanes)


def make_player(loop: Loop, env: Any, seeds: Sequence[int], learning_starts: int | None = None) -> Player:
    """What plays a loop in an environment; learning starts at the agent's own frame unless another is given."""
    if is_compiled(env):
        from ceqr.training.compiled import CompiledPlayer

        return CompiledPlayer(loop, env, seeds, learning_starts)
    from ceqr.training.host import HostPlayer

    return HostPlayer(loop, env, seeds, learning_starts)
