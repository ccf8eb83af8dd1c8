"""Agents as objects, in the words of Stable-Baselines3: `learn`, `predict`, `save`, `load`.

    agent = CEQRDQN("CartPole-v1", seed=0)
    agent.learn(50_000)
    action, beliefs = agent.predict(observation)

The same agents, loops and defaults as on the command line. What is particular here: `predict` tells what the agent
believes of every action, and a saved agent is one file that needs no environment and holds nothing that is executed.
"""

import dataclasses
import difflib
import itertools
import os
import re
import signal
import threading
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from ceqr import envs
from ceqr.agents import agent_classes
from ceqr.agents.base import Agent, AgentState, Hyperparameters
from ceqr.agents.base import Beliefs as BatchBeliefs
from ceqr.config import build, default_hyper, fitting_preset
from ceqr.envs.gymnasium import HostEnvironment, from_env
from ceqr.envs.observations import ObservationFormat
from ceqr.errors import UserError
from ceqr.evaluate import play_episodes
from ceqr.progress import Progress
from ceqr.provenance import provenance
from ceqr.runs import read_config
from ceqr.training import checkpoint
from ceqr.training.host import EnvironmentFailed, HostLoop
from ceqr.training.loop import NEVER, Groups, Loop, LoopState
from ceqr.training.trainer import Chunks, HostChunks, build_loop, load_state, loop_of, make_chunks, signals

if TYPE_CHECKING:
    import gymnasium

FORMAT = 1  # of a saved agent
PREDICTION = 0x94ED1C7  # folded into the seed's key, so that no number is shared with its training

SB3_NAMES = {  # what users of Stable-Baselines3 may look for
    "buffer_size": "replay_size",
    "exploration_final_eps": "epsilon_end",
    "exploration_fraction": "epsilon_frames",
    "exploration_initial_eps": "epsilon_start",
    "gamma": "discount",
    "lr": "learning_rate",
    "n_quantiles": "quantiles",
    "net_arch": "hidden",
    "policy_kwargs": "hidden",
    "target_update_interval": "target_period",
    "train_freq": "update_every",
}


@dataclass(frozen=True)
class Beliefs:
    """What an agent believes about each action; None for what it does not estimate.

    For one observation, arrays are [actions] and quantiles [actions, N]; for a batch, they have a leading axis more.
    """

    mean: np.ndarray
    """Expected return."""
    epistemic: Any
    """The agent's own doubt, in the unit of returns: more experience would lower it."""
    aleatoric: Any
    """The world's noise, in the unit of returns: more experience would not."""
    quantiles: Any
    """Quantiles of the return at the levels (i - 1/2) / N."""


class _Session(NamedTuple):
    """Training under way: what learning needs besides the agent."""

    loop: Loop
    chunks: Chunks | HostChunks
    groups: Groups


class Learner:
    """What the six classes share."""

    agent_name: ClassVar[str]

    def __init__(
        self,
        env: "str | gymnasium.Env",
        *,
        seed: int = 0,
        preset: str | None = None,
        num_envs: int = 1,
        env_kwargs: dict[str, Any] | None = None,
        protocol: str = "paper",
        max_episode_frames: int = 0,
        **hyperparameters: Any,
    ):
        """An agent that has learned nothing, for an environment.

        Args:
            env: A Gymnasium id, a Gymnasium environment, or "minatar/" and a game (which is compiled, and fast).
            seed: Of everything random: weights, exploration, environment.
            preset: Where other defaults come from: "vector", "pixels", "paper" or "quick"; unless given, what fits.
            num_envs: Environments to play side by side (with a Gymnasium id).
            env_kwargs: Options of the environment (with a Gymnasium id).
            protocol: MinAtar's rules: "paper", "released" or "standard".
            max_episode_frames: Frames after which an episode is truncated; 0 for no limit of our own.
            hyperparameters: Any option of the agent, as in `ceqr train --help`, with underscores.
        """
        with _as_value_errors():
            made, name = _make_env(env, num_envs, env_kwargs, protocol, max_episode_frames)
            preset = preset or (fitting_preset(made.observation_shape) if _on_host(made) else "paper")
            hyper = self._hyperparameters(default_hyper(self.agent_name, preset, name or ""), hyperparameters)
        self._setup(hyper, _observations(made), made.num_actions, _first_action(made), seed)
        self._env, self._env_name, self._num_envs = made, name, num_envs
        agent_key = jax.random.split(jax.random.key(seed), 4)[0]  # as in a run of that seed
        self._state: AgentState = jax.jit(self._agent.init)(agent_key)

    def _setup(
        self, hyper: Hyperparameters, form: ObservationFormat, num_actions: int, first_action: int, seed: int
    ) -> None:
        agent_class, _ = agent_classes(self.agent_name)
        self.hyperparameters = hyper
        self.seed = seed
        self.frames = 0
        """Frames learned from so far."""
        self.returns: list[float] = []
        """The return of each training episode of this object."""
        self._observations, self._first_action = form, first_action
        self._agent: Agent = agent_class(hyper, form.network_shape, num_actions)
        self._env: Any = None
        self._env_name: str | None = None
        self._num_envs = 1
        self._session: _Session | None = None
        self._learning, self._compiling = threading.Lock(), threading.Lock()
        self._compiled: set[Any] = set()
        self._predictions = itertools.count()

    @classmethod
    def _hyperparameters(cls, base: Any, given: dict[str, Any]) -> Any:
        known = [f.name for f in dataclasses.fields(base)]
        for name in given:
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1) or [SB3_NAMES.get(name, "")]
                hint = f" (did you mean {close[0]!r}?)" if close[0] in known else ""
                raise TypeError(f"{cls.__name__} has no hyperparameter {name!r}{hint}; it has {', '.join(known)}.")
        plain = {k: v.item() if isinstance(v, np.generic) else v for k, v in given.items()}
        if isinstance(plain.get("hidden"), int):
            plain["hidden"] = (plain["hidden"],)
        hyper = build(type(base), dataclasses.asdict(base) | plain)
        hyper.check()
        return hyper

    @property
    def num_actions(self) -> int:
        return self._agent.num_actions

    def set_env(self, env: "str | gymnasium.Env", *, num_envs: int = 1, **options: Any) -> None:
        """Gives a loaded agent an environment to learn in; replay starts empty, and learning with it."""
        with _as_value_errors():
            made, name = _make_env(
                env,
                num_envs,
                options.pop("env_kwargs", None),
                options.pop("protocol", "paper"),
                options.pop("max_episode_frames", 0),
            )
        if options:
            raise TypeError(f"set_env has no option {next(iter(options))!r}.")
        if _observations(made) != self._observations or made.num_actions != self.num_actions:
            raise ValueError(
                f"The environment has {made.num_actions} actions and observations of {_observations(made).describe()}; "
                f"the agent was made for {self.num_actions} actions and {self._observations.describe()}."
            )
        self._first_action = _first_action(made)
        self._end_session()
        self._env, self._env_name, self._num_envs = made, name, num_envs

    def _end_session(self) -> None:
        if self._session is not None:
            self._session.chunks.close()
        self._session = None

    def _require_env(self) -> Any:
        if self._env is None:
            raise ValueError("The agent has no environment: it was loaded from a file; give it one with set_env.")
        return self._env

    def learn(self, frames: int, progress_bar: bool = False) -> Self:
        """Plays and learns for so many more frames; going on is the same as not having stopped."""
        if frames < 1:
            raise ValueError(f"frames must be at least 1, not {frames}.")
        with self._learning, signals() as received:
            self._learn(self.frames + frames, progress_bar, received)
        if received:
            signal.raise_signal(received[0])  # after the agent is whole again: KeyboardInterrupt, usually
        return self

    def _learn(self, last: int, progress_bar: bool, received: list[int]) -> None:
        session = self._session or self._begin_session()
        with Progress("learning", last, start=self.frames, quiet=not progress_bar) as progress:
            while self.frames < last and not received:
                failure = None
                try:
                    groups, self.frames, rows = session.chunks.run(session.groups, self.frames, last)
                except EnvironmentFailed as failed:
                    groups, self.frames, rows, failure = failed.groups, failed.frame, failed.episodes, failed.__cause__
                self._session = session = session._replace(groups=groups)
                self.returns += [row.total for row in rows]
                self._publish(*groups)
                if failure is not None:
                    raise failure
                recent = self.returns[-100:]
                status = f"return {np.mean(recent):.2f}" if recent else ""
                progress.update(min(self.frames, last), status, session.chunks.frames_per_second)

    def _begin_session(self) -> _Session:
        loop = loop_of(self.agent_name, self.hyperparameters, self._require_env(), self._num_envs)
        states = jax.jit(loop.init_seeds)(jnp.array([self.seed], jnp.int32))
        states = states._replace(agent=jax.tree.map(lambda leaf: jnp.array(leaf)[None], self._state))
        # Replay is empty, so learning starts after as many frames as at first.
        starts = self.frames + self.hyperparameters.learning_starts
        chunks = make_chunks(loop, states, [self.seed], starts)
        self._session = _Session(loop, chunks, chunks.split(states))
        return self._session

    def _publish(self, states: LoopState) -> None:
        """Makes what was learned visible to `predict`: copies, because training gives its own arrays away."""
        state: AgentState = jax.tree.map(lambda leaf: jnp.array(leaf[0]), states.agent)
        # The last update may have been the one that broke the network: its loss would tell only in the next frame.
        whole = all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.params))
        if int(states.nonfinite[0]) != NEVER or not whole:
            self._end_session()
            raise FloatingPointError(
                f"The loss was not finite before frame {self.frames:,}; the agent is as it was about a second before."
            )
        self._state = state

    def predict(self, observation: Any, explore: bool = False, lambda_al: float | None = None) -> tuple[Any, Beliefs]:
        """The action to take, and what the agent believes about every action.

        Args:
            observation: One, or a batch with a leading axis. The first call for a shape compiles.
            explore: Whether to act as in learning (Thompson sample, random action, ...) instead of greedily.
            lambda_al: Aversion to risk: weight of the aleatoric uncertainty; the agent's own unless given.

        Returns:
            An integer for one observation, an array for a batch; and the beliefs, as NumPy arrays.
        """
        batch, single = self._observations.read(observation)
        own = getattr(self.hyperparameters, "lambda_al", 0.0)
        if lambda_al is not None:
            self._check_risk(lambda_al, explore)
        told = self._decide(batch, explore, own if lambda_al is None else float(lambda_al))
        actions, beliefs, quantiles = jax.tree.map(lambda x: np.asarray(x)[0] if single else np.asarray(x), told)
        actions = actions + self._first_action
        told = Beliefs(beliefs.mean, beliefs.epistemic, beliefs.aleatoric, quantiles)
        return (int(actions) if single else actions), told

    def _check_risk(self, lambda_al: float, explore: bool) -> None:
        name = type(self).__name__
        if not np.isfinite(lambda_al) or lambda_al < 0:
            raise ValueError(f"lambda_al must be a finite number and at least 0, not {lambda_al}.")
        if self.agent_name in ("dqn", "bootstrapped-dqn"):
            raise ValueError(f"{name} does not estimate the world's noise, so lambda_al means nothing to it.")
        if self.agent_name == "duvn" and explore:
            raise ValueError(f"{name} explores by drawing from its returns, so lambda_al is for explore=False.")

    def _decide(self, batch: np.ndarray, explore: bool, lambda_al: float) -> Any:
        key = (explore, batch.shape)
        # Several threads that come with a new shape wait for the first one to compile it.
        with nullcontext() if key in self._compiled else self._compiling:
            numbers = np.float32(lambda_al), np.int32(self.frames), np.int32(self.seed), np.int32(self._next_number())
            told = _decide(self._agent, explore, self._state.params, batch, *numbers)
            self._compiled.add(key)
        return told

    def _next_number(self) -> int:
        return next(self._predictions) % 2**31

    def evaluate(self, episodes: int = 10, max_episode_frames: int = 50_000, seed: int | None = None) -> np.ndarray:
        """The returns of greedy episodes, on randomness that training never saw; the same whenever it is asked."""
        for name, value in (("episodes", episodes), ("max_episode_frames", max_episode_frames)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}.")
        loop = loop_of(self.agent_name, self.hyperparameters, self._require_env())
        if self._session is not None and isinstance(loop, HostLoop) and not loop.env.owned:
            self._session.chunks.close()  # there is but one environment: learning will begin a new episode in it
        number = self.seed if seed is None else seed
        return np.array(play_episodes(loop, self._state.params, number, episodes, max_episode_frames)[0])

    def save(self, path: "str | os.PathLike[str]") -> None:
        """Writes the agent to one file: parameters, target network, optimiser; not replay and environment."""
        meta = {
            "format": FORMAT,
            "agent": self.agent_name,
            "hyper": dataclasses.asdict(self.hyperparameters),
            "observations": self._observations.to_json(),
            "num_actions": self.num_actions,
            "first_action": self._first_action,
            "frames": self.frames,
            "seed": self.seed,
            "env": self._env_name,
            "packages": provenance()["packages"],
        }
        checkpoint.save_file(Path(path), self._state, meta)

    @classmethod
    def load(cls, path: "str | os.PathLike[str]", env: "str | gymnasium.Env | None" = None) -> Self:
        """Reads an agent that `save` wrote. Nothing in the file is executed, and no environment is needed to predict.

        To go on learning, give the environment here or to `set_env`.
        """
        path = Path(path)
        with _as_value_errors():
            meta = checkpoint.load_meta(path)
            agent = cls._from_meta(path, meta)
            agent._state, _ = checkpoint.load_file(path, jax.eval_shape(agent._agent.init, jax.random.key(0)))
        if env is not None:
            agent.set_env(env)
        return agent

    @classmethod
    def _from_meta(cls, path: Path, meta: dict[str, Any]) -> Self:
        if meta.get("format") != FORMAT:
            raise UserError(f"{path} was saved by an incompatible version of ceqr (this one reads format {FORMAT}).")
        if meta.get("agent") != cls.agent_name:
            right = next((c.__name__ for c in CLASSES if c.agent_name == meta.get("agent")), None)
            raise UserError(
                f"{path} holds an agent {meta.get('agent')!r}"
                + (f"; load it with {right}.load." if right else ", which this version of ceqr does not know.")
            )
        agent = cls.__new__(cls)
        try:
            _, hyper_class = agent_classes(cls.agent_name)
            hyper = build(hyper_class, meta["hyper"])
            hyper.check()
            form = ObservationFormat.from_json(meta["observations"])
            numbers = [int(meta[name]) for name in ("num_actions", "first_action", "seed", "frames")]
            agent._setup(hyper, form, *numbers[:3])
            agent.frames, agent._env_name = numbers[3], meta["env"]
        except (KeyError, TypeError, ValueError, UserError) as error:
            raise UserError(f"{path} is damaged, or was saved by an incompatible version of ceqr.") from error
        return agent

    @classmethod
    def from_run(cls, path: "str | os.PathLike[str]", seed: int | None = None) -> Self:
        """The agent of a run that `ceqr train` made: of its first seed unless another is given."""
        with _as_value_errors():
            config, _ = read_config(Path(path))
            if config.agent != cls.agent_name:
                right = next((c.__name__ for c in CLASSES if c.agent_name == config.agent), "another class")
                raise UserError(f"{path} is a run of {config.agent}; load it with {right}.from_run.")
            seed = config.seed_start if seed is None else seed
            if seed not in config.seed_numbers:
                raise UserError(f"{path} has no seed {seed}; it has {', '.join(map(str, config.seed_numbers))}.")
            loop = build_loop(config)
            saved = load_state(Path(path), loop, config)
            if saved is None:
                raise UserError(f"{path} has no checkpoint yet; train it for longer.")
        agent = cls.__new__(cls)
        env: Any = loop.env
        agent._setup(config.hyper, _observations(env), env.num_actions, _first_action(env), seed)
        agent._env, agent._env_name, agent._num_envs = env, config.env, config.num_envs
        agent.frames = int(saved[1]["frame"])
        agent._state = jax.tree.map(lambda leaf: leaf[config.seed_numbers.index(seed)], saved[0].agent)
        return agent


class CEQRDQN(Learner):
    """CEQR-DQN: both uncertainties, calibrated; explores by its own doubt (Stutts et al., 2024)."""

    agent_name = "ceqr-dqn"


class DQN(Learner):
    """DQN: values alone; explores at random (Mnih et al., 2015)."""

    agent_name = "dqn"


class QRDQN(Learner):
    """QR-DQN: quantiles of the return; explores at random (Dabney et al., 2017)."""

    agent_name = "qr-dqn"


class BootstrappedDQN(Learner):
    """Bootstrapped DQN: the disagreement of its heads is its doubt (Osband et al., 2016)."""

    agent_name = "bootstrapped-dqn"


class DUVN(Learner):
    """DUVN: Gaussian returns, and dropout as doubt (Moerland et al., 2017)."""

    agent_name = "duvn"


class UADQN(Learner):
    """UA-DQN: two anchored posterior networks tell doubt from noise (Clements et al., 2020)."""

    agent_name = "ua-dqn"


CLASSES: tuple[type[Learner], ...] = (CEQRDQN, DQN, QRDQN, BootstrappedDQN, DUVN, UADQN)


@partial(jax.jit, static_argnums=(0, 1))
def _decide(
    agent: Agent,
    explore: bool,
    network: Any,
    observations: jax.Array,
    lambda_al: jax.Array,
    frame: jax.Array,
    seed: jax.Array,
    number: jax.Array,
) -> tuple[jax.Array, BatchBeliefs, jax.Array | None]:
    """Actions [batch], beliefs and quantiles. Risk is subtracted here, so the agent's own aversion is set to none."""
    if hasattr(agent.hyper, "lambda_al"):
        agent = dataclasses.replace(agent, hyper=dataclasses.replace(agent.hyper, lambda_al=0.0))
    outputs = agent.forward(network, observations, None)
    beliefs = jax.vmap(agent.beliefs)(outputs)
    averse = beliefs
    if beliefs.aleatoric is not None:
        averse = beliefs._replace(mean=beliefs.mean - lambda_al * beliefs.aleatoric)
    if explore:
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), PREDICTION), number)
        forward_key, *keys = jax.random.split(key, 3)
        act_keys, memory_keys = (jax.random.split(k, len(observations)) for k in keys)
        drawn = agent.forward(network, observations, forward_key)
        memory = jax.vmap(agent.init_memory)(memory_keys)
        actions = jax.vmap(agent.explore, in_axes=(0, 0, 0, None, 0))(drawn, averse, memory, frame, act_keys)
    else:
        actions = jax.vmap(agent.greedy)(averse)
    return actions, beliefs, jax.vmap(agent.quantiles)(outputs)


@contextmanager
def _as_value_errors() -> Any:
    """What is a `UserError` on the command line is a ValueError here, in Python's words for options."""
    try:
        yield
    except UserError as error:
        raise ValueError(re.sub(r"--([a-z-]+)", lambda m: m[1].replace("-", "_"), str(error))) from error


def _on_host(env: Any) -> bool:
    return isinstance(env, HostEnvironment)


def _make_env(
    env: Any, num_envs: int, env_kwargs: dict[str, Any] | None, protocol: str, max_episode_frames: int
) -> tuple[Any, str | None]:
    """The environment, and the name to which defaults and saved agents refer."""
    if num_envs < 1:
        raise ValueError(f"num_envs must be at least 1, not {num_envs}.")
    if isinstance(env, str):
        compiled = env.startswith("minatar/")
        if compiled and (num_envs > 1 or env_kwargs):
            raise ValueError(f"num_envs and env_kwargs are for Gymnasium environments; {env} is compiled.")
        if not compiled and protocol != "paper":
            raise ValueError("protocol is MinAtar's; a Gymnasium environment takes its options by env_kwargs.")
        name = env if compiled or envs.is_host(env) else f"gymnasium/{env}"
        rest = {"protocol": protocol} if compiled else {"kwargs": env_kwargs}
        return envs.make(name, max_episode_frames=max_episode_frames, **rest), name
    import gymnasium

    if not isinstance(env, gymnasium.Env):
        raise TypeError(f"env must be a name or a gymnasium.Env, not {type(env).__name__}.")
    if num_envs > 1 or env_kwargs or max_episode_frames:
        raise ValueError("num_envs, env_kwargs and max_episode_frames need a Gymnasium id, not a made environment.")
    made = from_env(env)
    return made, None


def _observations(env: Any) -> ObservationFormat:
    if isinstance(env, HostEnvironment):
        return env.observations
    return ObservationFormat("image", env.observation_shape, np.dtype(env.observation_dtype).name)


def _first_action(env: Any) -> int:
    return env.first_action if isinstance(env, HostEnvironment) else 0
