"""What the training loop asks of an environment: pure functions that JAX can compile.

An environment is a frozen record of static facts and two pure functions. `step` resets by itself when an
episode ends, and still reports the observation in which the episode ended: a truncated step bootstraps
from that one, never from the first observation of the next episode.
"""

from typing import Any, NamedTuple, Protocol

import jax
from jax.typing import DTypeLike

from ceqr.streams import Stream, stream

EnvState = Any  # a PyTree that only its environment looks into


class TimeStep(NamedTuple):
    """What one step brings: arrays of JAX, or for environments of the host, NumPy's with a leading axis of lanes."""

    observation: Any  # to act on next; the first of a new episode if this step ended one
    successor: Any  # where the action led; differs from `observation` only at an episode's end
    reward: Any  # float32
    terminated: Any  # bool: the episode is over and nothing follows
    truncated: Any  # bool: it was cut off while something would still have followed


class Environment(Protocol):
    """The protocol; `ceqr.envs.make` builds one from a name."""

    @property
    def name(self) -> str: ...

    @property
    def num_actions(self) -> int: ...

    @property
    def observation_shape(self) -> tuple[int, ...]: ...

    @property
    def observation_dtype(self) -> DTypeLike: ...

    def reset(self, key: jax.Array) -> tuple[EnvState, jax.Array]:
        """Begins a first episode: state and observation."""
        ...

    def step(self, state: EnvState, action: jax.Array, key: jax.Array) -> tuple[EnvState, TimeStep]:
        """Takes one action; begins the next episode if this one ends."""
        ...


def reset(env: Any, key: jax.Array, seed: jax.Array | int) -> tuple[EnvState, jax.Array]:
    """`env.reset` in a run of that seed.

    Some environments draw something once for all episodes, such as what each action means. Those have `world(key)`,
    and their `reset` takes what it drew. It follows from the seed alone: all episodes of a seed share it, those of its
    evaluation too.
    """
    if not hasattr(env, "world"):
        return env.reset(key)
    return env.reset(key, env.world(stream(seed, Stream.WORLD)))


class MissingExtra(ImportError):
    """An environment needs an optional dependency that is not installed."""

    def __init__(self, extra: str, what: str) -> None:
        super().__init__(f'{what} comes with an extra that is not installed: pip install "ceqr[{extra}]".')
