"""gymnax's environments with discrete actions as an `Environment`: `from_id("CartPole-v1", gravity=1.6)`.

The games are gymnax's own, step for step, on the keys that `reset` and `step` get. gymnax resets within its step, tells
termination from its time limit, and reports the observation in which an episode ended; what we add is one form for
observations, and `max_episode_frames` in the place of gymnax's `max_steps_in_episode`.

Options are arguments of the environment's class (`size` of DeepSea) or fields of its parameters (`gravity` of
CartPole). DeepSea's actions mean left or right by the cell. What they mean is drawn once for a run (`world`): all
episodes of a seed share it, and seeds differ. Not so if `randomize_actions` is false (1 is always right), if
`sample_action_map` is true (drawn anew for every episode), or if `action_mapping_key`, here a number, fixes one meaning
for all seeds (0 is gymnax's own).
"""

import dataclasses
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ceqr.envs.base import MissingExtra, TimeStep
from ceqr.envs.families import Option
from ceqr.envs.observations import ObservationFormat
from ceqr.errors import nearest

LIMIT = "max_steps_in_episode"
MAPPING = "action_mapping_key"


class State(NamedTuple):
    """What `Gymnax` carries from step to step."""

    game: Any  # gymnax's own state
    world: Any  # what was drawn once for all episodes; an empty tuple for most


@dataclasses.dataclass(frozen=True)
class Gymnax:
    """One of gymnax's environments with its options; `from_id` checks both."""

    id: str
    options: tuple[tuple[str, Any], ...] = ()  # sorted
    max_episode_frames: int = 0  # 0: gymnax's own limit

    @property
    def name(self) -> str:
        return f"gymnax/{self.id}"

    @property
    def num_actions(self) -> int:
        return self._facts.num_actions

    @property
    def observations(self) -> ObservationFormat:
        return self._facts.observations

    @property
    def observation_shape(self) -> tuple[int, ...]:
        return self.observations.network_shape

    @property
    def observation_dtype(self) -> np.dtype:
        return self.observations.network_dtype

    def world(self, key: jax.Array) -> Any:
        """What is drawn once for all episodes of a run: for DeepSea, as gymnax draws it, which action goes right."""
        if not self._facts.has_world:
            return ()
        size = self._facts.env.size
        return jax.random.bernoulli(key, 0.5, (size, size)).astype(jnp.int32)

    def reset(self, key: jax.Array, world: Any = None) -> tuple[State, jax.Array]:
        """Begins a first episode, in a world of its own unless one is given."""
        if world is None:
            key, world_key = jax.random.split(key) if self._facts.has_world else (key, key)
            world = self.world(world_key)
        observation, game = self._facts.env.reset(key, self._facts.params)
        return self._state(game, world), self._encode(observation)

    def step(self, state: State, action: jax.Array, key: jax.Array) -> tuple[State, TimeStep]:
        env, params = self._facts.env, self._facts.params
        observation, game, reward, terminated, truncated, info = env.step(key, state.game, action, params)
        return self._state(game, state.world), TimeStep(
            observation=self._encode(observation),
            successor=self._encode(info["final_observation"]),
            reward=jnp.asarray(reward, jnp.float32),
            terminated=terminated,
            truncated=truncated & ~terminated,  # an end at the limit is an end
        )

    def _state(self, game: Any, world: Any) -> State:
        if self._facts.has_world:
            game = game.replace(action_mapping=world)
        # gymnax writes some numbers as Python's, whose type JAX takes for weak: then a step would change types.
        return State(jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(x)), game), world)

    def _encode(self, observation: jax.Array) -> jax.Array:
        return self.observations.encode(jnp.asarray(observation)[None])[0]

    @property
    def _facts(self) -> "Facts":
        return _facts(self.id, self.options, self.max_episode_frames)


class Facts(NamedTuple):
    """What is known of an environment without playing it."""

    env: Any
    params: Any
    num_actions: int
    observations: ObservationFormat
    has_world: bool


def from_id(name: str, /, max_episode_frames: int = 0, **options: Any) -> Gymnax:
    """The environment registered under an id; ValueError in one sentence if it cannot be played."""
    Option(0, least=0).check("max_episode_frames", max_episode_frames)
    if max_episode_frames and LIMIT in options:
        raise ValueError(f"{LIMIT} and max_episode_frames are the same limit; give one of them.")
    made = Gymnax(name, tuple(sorted((k, _hashable(k, v)) for k, v in options.items())), max_episode_frames)
    _facts(made.id, made.options, made.max_episode_frames)  # raises what is wrong with it
    return made


def _hashable(key: str, value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_hashable(key, each) for each in value)
    if not isinstance(value, bool | int | float | str | None):
        raise ValueError(f"{key} must be a number, a word or a list of these, not {value!r}.")
    return value


def knows(name: str) -> bool:
    """Whether gymnax has an environment of that name."""
    try:
        return name in _gymnax().registered_envs
    except MissingExtra:
        return False


def _gymnax() -> Any:
    try:
        import gymnax
    except ImportError as error:
        raise MissingExtra("gymnax", "gymnax") from error
    return gymnax


@cache
def _facts(name: str, options: tuple[tuple[str, Any], ...], max_episode_frames: int) -> Facts:
    gymnax = _gymnax()
    if name not in gymnax.registered_envs:
        raise ValueError(nearest("gymnax environment", name, gymnax.registered_envs))
    with jax.ensure_compile_time_eval():  # it may be asked for within a program first
        return _build(gymnax, name, dict(options), max_episode_frames)


def _build(gymnax: Any, name: str, options: dict[str, Any], max_episode_frames: int) -> Facts:
    given = f" with {', '.join(f'{k}={v!r}' for k, v in options.items())}" if options else ""
    fixed = options.get(MAPPING)
    if fixed is not None:
        Option(0, least=0).check(MAPPING, fixed)
        options[MAPPING] = jax.random.key(fixed)
    with _in_one_sentence(f"{name} cannot be made{given}"):
        env, params = gymnax.make(name)
        arguments = _arguments(type(env))
        to_class = {k: v for k, v in options.items() if k in arguments}
        if to_class:
            env, params = gymnax.make(name, **to_class)
    to_params = {k: v for k, v in options.items() if k not in arguments}
    if max_episode_frames:
        to_params[LIMIT] = max_episode_frames
    params = _with_options(name, params, to_params, arguments)
    actions = _count_actions(name, env.action_space(params))
    with _in_one_sentence(f"{name} cannot be played{given}"):
        key = jax.random.key(0)
        observation, state = jax.eval_shape(env.reset, key, params)
        jax.eval_shape(env.step, key, state, jnp.int32(0), params)
    form = _format(name, env.observation_space(params), observation)
    mapped = MAPPING in arguments and fixed is None
    return Facts(env, params, actions, form, mapped and bool(params.randomize_actions and not params.sample_action_map))


@contextmanager
def _in_one_sentence(what: str) -> Iterator[None]:
    """Whatever gymnax raises for options that it does not check."""
    try:
        yield
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0].rstrip(".")
        raise ValueError(f"{what}: {reason}.") from error


def _arguments(kind: type) -> set[str]:
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {p.name for p in inspect.signature(kind).parameters.values() if p.kind in named}


def _with_options(name: str, params: Any, options: dict[str, Any], arguments: set[str]) -> Any:
    """The parameters with those options; every value has the type or the shape of its default."""
    known = {f.name: getattr(params, f.name) for f in dataclasses.fields(params)}
    values = {}
    for key, value in options.items():
        if key not in known:
            raise ValueError(nearest(f"option of gymnax/{name}", key, sorted({*known, *arguments})))
        default = known[key]
        if isinstance(default, bool | int | float):
            Option(default).check(key, value)
            values[key] = value
        else:
            values[key] = _array(key, value, default)
    return params.replace(**values)


def _array(key: str, value: Any, default: Any) -> jax.Array:
    try:
        array = jnp.asarray(value, default.dtype)
    except (TypeError, ValueError):
        array = None
    if array is None or array.shape != default.shape:
        raise ValueError(f"{key} must be numbers of shape {default.shape}, not {value!r}.")
    return array


def _count_actions(name: str, space: Any) -> int:
    from gymnax.environments import spaces

    if not isinstance(space, spaces.Discrete):
        raise ValueError(
            f"{name} has actions of {type(space).__name__}; these agents choose among a fixed number of actions "
            "(Discrete)."
        )
    return int(space.n)


def _format(name: str, space: Any, observation: Any) -> ObservationFormat:
    from gymnax.environments import spaces

    if not isinstance(observation, jax.ShapeDtypeStruct):
        raise ValueError(f"{name} has observations of {type(space).__name__}; these agents read arrays and numbers.")
    if isinstance(space, spaces.Discrete):
        return ObservationFormat.of_number(0, int(space.n))
    low, high = (getattr(space, name, None) for name in ("low", "high"))
    return ObservationFormat.of_array(observation.shape, observation.dtype, low, high)
