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
    """What one step brings: arrays of JAX, or for environments of the host, NumPy's with a leading axis of lanes.

    Examples:
        A step that ended an episode shows where it led, and where the next one begins:

        >>> import numpy as np
        >>> from ceqr.envs import TimeStep
        >>> step = TimeStep(np.zeros(2), np.ones(2), np.float32(1), np.bool_(True), np.bool_(False))
        >>> step.successor.tolist(), step.observation.tolist()
        ([1.0, 1.0], [0.0, 0.0])
    """

    observation: Any  # to act on next; the first of a new episode if this step ended one
    successor: Any  # where the action led; differs from `observation` only at an episode's end
    reward: Any  # float32
    terminated: Any  # bool: the episode is over and nothing follows
    truncated: Any  # bool: it was cut off while something would still have followed


class Environment(Protocol):
    """The protocol; `ceqr.envs.make` builds one from a name.

    Examples:
        A coin whose side is to be guessed; an episode is one guess:

        >>> import jax
        >>> import jax.numpy as jnp
        >>> from ceqr.envs import TimeStep
        >>> class Coin:
        ...     name, num_actions, observation_shape, observation_dtype = "my/coin", 2, (1,), jnp.float32
        ...
        ...     def reset(self, key):
        ...         return (), jnp.ones(1)
        ...
        ...     def step(self, state, action, key):
        ...         right = action == jax.random.bernoulli(key)
        ...         one = jnp.ones(1)
        ...         return (), TimeStep(one, one, right.astype(jnp.float32), jnp.bool_(True), jnp.bool_(False))
        >>> state, observation = Coin().reset(jax.random.key(0))
        >>> _, after = Coin().step(state, jnp.int32(1), jax.random.key(1))
        >>> float(after.reward) in (0.0, 1.0), bool(after.terminated)
        (True, True)
    """

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

    Examples:
        >>> import jax
        >>> from ceqr.envs import base
        >>> class Fixed:
        ...     def reset(self, key):
        ...         return "state", "observation"
        >>> base.reset(Fixed(), jax.random.key(0), seed=0)
        ('state', 'observation')
    """
    if not hasattr(env, "world"):
        return env.reset(key)
    return env.reset(key, env.world(stream(seed, Stream.WORLD)))


class MissingExtra(ImportError):
    """An environment needs an optional dependency that is not installed.

    Examples:
        >>> from ceqr.envs import MissingExtra
        >>> print(MissingExtra("gymnax", "gymnax/CartPole-v1"))
        gymnax/CartPole-v1 comes with an extra that is not installed: pip install "ceqr[gymnax]".
    """

    def __init__(self, extra: str, what: str) -> None:
        super().__init__(f'{what} comes with an extra that is not installed: pip install "ceqr[{extra}]".')
