"""Any Gymnasium environment with discrete actions: `from_id("CartPole-v1")`, or an environment that is already made.

Such an environment lives on the host and cannot be compiled; `ceqr.training.host` plays it. Environments are stepped
side by side through Gymnasium's vector API in the mode that resets within the step (`AutoresetMode.SAME_STEP`), so that
every step is a transition, and the observation in which an episode ended comes with it: a truncated step bootstraps
from that one.
"""

import difflib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit

from ceqr.envs import import_module
from ceqr.envs.base import MissingExtra, TimeStep
from ceqr.envs.families import Option
from ceqr.envs.observations import ObservationFormat


@dataclass(frozen=True)
class HostEnvironment:
    """What is known of a Gymnasium environment without playing it, and how to make one.

    Examples:
        >>> from ceqr import envs
        >>> env = envs.make("gymnasium/CartPole-v1")
        >>> lanes = env.vector(3)  # three of them, side by side
        >>> lanes.reset([0, 1, 2]).shape
        (3, 4)
        >>> lanes.close()
    """

    name: str
    observations: ObservationFormat
    num_actions: int
    first_action: int
    build: Callable[[], gymnasium.Env]
    owned: bool = True  # whether what is built is ours to close

    @property
    def observation_shape(self) -> tuple[int, ...]:
        return self.observations.network_shape

    @property
    def observation_dtype(self) -> np.dtype:
        return self.observations.network_dtype

    def vector(self, count: int) -> "Lanes":
        """Makes that many environments, to be stepped together."""
        return Lanes(self, count)


class Lanes:
    """Several environments side by side, each in a lane of its own.

    Not by Gymnasium's `SyncVectorEnv`: with its buffers, masks and infos, a step of one CartPole took 42 us there and
    takes 12 us here, where the agent's own part of a frame is some hundred.
    """

    def __init__(self, env: HostEnvironment, count: int):
        self._env = env
        self._lanes = [env.build() for _ in range(count)]

    def _rows(self) -> np.ndarray:
        # New ones in every step, filled by copying: an environment may write every observation into the same array.
        return np.empty((len(self._lanes), *self._env.observations.shape), self._env.observations.dtype)

    def reset(self, seeds: Sequence[int]) -> np.ndarray:
        """Begins an episode in every lane, each with a seed of its own."""
        rows = self._rows()
        for i, (lane, seed) in enumerate(zip(self._lanes, seeds, strict=True)):
            rows[i], _ = lane.reset(seed=seed)
        return self._env.observations.encode(rows)

    def step(self, actions: np.ndarray) -> TimeStep:
        """Takes an action in every lane; a lane whose episode ends begins the next one."""
        count = len(self._lanes)
        rows, reward = self._rows(), np.empty(count, np.float32)
        terminated, truncated = np.empty(count, bool), np.empty(count, bool)
        following = rows
        for i, (lane, action) in enumerate(zip(self._lanes, actions + self._env.first_action, strict=True)):
            rows[i], reward[i], terminated[i], truncated[i], _ = lane.step(action)
            if terminated[i] or truncated[i]:
                if following is rows:
                    following = self._rows()
                following[i], _ = lane.reset()
        successor = observation = self._env.observations.encode(rows)
        if following is not rows:
            ended = terminated | truncated
            observation = successor.copy()
            observation[ended] = self._env.observations.encode(following[ended])
        return TimeStep(observation, successor, reward, terminated, truncated)

    def render(self) -> np.ndarray:
        """What every lane shows of itself, [lanes, height, width, 3], if made with render_mode="rgb_array"."""
        return np.stack([np.asarray(lane.render(), np.uint8) for lane in self._lanes])

    def close(self) -> None:
        if self._env.owned:
            for lane in self._lanes:
                lane.close()


def seed_of(*numbers: int) -> int:
    """One seed for an environment out of several numbers (seed, frame, lane, ...), unlike that of any others."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0] >> 1)


def from_id(name: str, /, max_episode_frames: int = 0, **options: Any) -> HostEnvironment:
    """The environment registered under an id, with options of its own; ValueError in one sentence if it cannot be."""
    Option(0, least=0).check("max_episode_frames", max_episode_frames)
    spec = find_spec(name)
    asked = dict(options)
    wrap = _atari(spec, options)
    if max_episode_frames:
        options["max_episode_steps"] = -1  # without a limit of the environment's own, which would count before `wrap`
        wrap = _limited(wrap, max_episode_frames)

    def build() -> gymnasium.Env:
        return wrap(gymnasium.make(spec, **options))

    try:
        env = build()
    except gymnasium.error.DependencyNotInstalled as error:
        raise ValueError(f"{name} needs a package that is not installed: {str(error).rstrip('.')}.") from error
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0].rstrip(".")
        raise ValueError(f"{name} cannot be made{_with(asked)}: {reason}.") from error
    try:
        return describe(env, name, build)
    finally:
        env.close()


def _with(options: dict[str, Any]) -> str:
    return f" with {', '.join(f'{k}={v!r}' for k, v in options.items())}" if options else ""


def _limited(wrap: Callable[[gymnasium.Env], gymnasium.Env], frames: int) -> Callable[[gymnasium.Env], gymnasium.Env]:
    return lambda env: TimeLimit(wrap(env), frames)


def from_env(env: gymnasium.Env) -> HostEnvironment:
    """The same for an environment that is already made: it is the only one there is."""
    name = env.spec.id if env.spec is not None else type(env.unwrapped).__name__
    return replace(describe(env, name, lambda: env), owned=False)


def describe(env: gymnasium.Env, name: str, build: Callable[[], gymnasium.Env]) -> HostEnvironment:
    """Reads the spaces; raises ValueError if an agent of ours cannot play there."""
    actions, observations = env.action_space, env.observation_space
    if not isinstance(actions, spaces.Discrete):
        raise ValueError(
            f"{name} has actions of {_brief(actions)}; these agents choose among a fixed number of actions (Discrete)."
        )
    if isinstance(observations, spaces.Discrete):
        form = ObservationFormat.of_number(int(observations.start), int(observations.n))
    elif isinstance(observations, spaces.Box):
        form = ObservationFormat.of_array(observations.shape, observations.dtype, observations.low, observations.high)
    else:
        raise ValueError(
            f"{name} has observations of {_brief(observations)}; these agents read arrays (Box) and numbers "
            "(Discrete): wrap it, for instance in gymnasium.wrappers.FlattenObservation."
        )
    if 0 in form.network_shape:
        raise ValueError(f"{name} has observations without content, of shape {form.shape}.")
    return HostEnvironment(name, form, int(actions.n), int(actions.start), build)


def _brief(space: gymnasium.Space) -> str:
    text = repr(space)
    return text if len(text) <= 80 else f"{type(space).__name__}(...)"


def find_spec(name: str) -> Any:
    """The registered spec of an id ("module:id" imports the module first); ValueError with near names if none."""
    import ceqr.gym

    ceqr.gym.register()
    module, colon, name = name.rpartition(":")
    if colon:
        import_module(module)
    if name not in gymnasium.registry:
        _register_atari(name)
    try:
        return gymnasium.spec(name)
    except gymnasium.error.Error as error:
        near = near_names(name)
        hint = f"did you mean {' or '.join(map(repr, near))}?" if near else "none has a similar name."
        raise ValueError(f"Gymnasium has no environment {name!r}; {hint}") from error


def modules(name: str) -> tuple[str, ...]:
    """The module that an id "module:id" names."""
    module, colon, _ = name.rpartition(":")
    return (module,) if colon else ()


def knows(name: str) -> bool:
    """Whether Gymnasium has an id; what would have to be imported first, it does not know."""
    try:
        return not modules(name) and find_spec(name) is not None
    except (ValueError, ImportError):
        return False


def near_names(name: str) -> list[str]:
    """Registered ids that look like this one, whatever their capitals."""
    known = {each.lower(): each for each in gymnasium.registry}
    return [known[each] for each in difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.6)]


def _register_atari(name: str) -> None:
    """ALE's games are registered when its package is imported; asking for one without it deserves to know that."""
    if importlib.util.find_spec("ale_py") is not None:
        import ale_py

        gymnasium.register_envs(ale_py)
    elif name.startswith("ALE/"):
        raise MissingExtra("atari", "ALE")


def _atari(spec: Any, options: dict[str, Any]) -> Callable[[gymnasium.Env], gymnasium.Env]:
    """For ALE's games on the screen: the standard preprocessing, and a stack of four 84 x 84 grey frames."""
    if spec.entry_point != "ale_py.env:AtariEnv" or {**spec.kwargs, **options}.get("obs_type", "rgb") != "rgb":
        return lambda env: env
    if importlib.util.find_spec("cv2") is None:
        raise MissingExtra("atari", "The preprocessing of ALE's images")
    from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

    skip = options.get("frameskip", 4)
    options["frameskip"] = 1  # the wrapper skips frames itself, and takes the maximum of the last two
    return lambda env: FrameStackObservation(AtariPreprocessing(env, frame_skip=skip), 4)
