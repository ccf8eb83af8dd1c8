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
import math
import os
import re
import signal
import threading
from collections.abc import Collection
from contextlib import contextmanager, nullcontext, suppress
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, get_type_hints

import jax
import jax.numpy as jnp
import numpy as np

from ceqr import arrays, envs
from ceqr.agents import agent_classes
from ceqr.agents.base import LARGEST, Agent, AgentState, Beliefs, Hyperparameters
from ceqr.calibrate import (
    COVERAGE,
    EPISODES,
    LIMIT,
    Calibration,
    calibrate,
    check_options,
    judge,
    read_calibration,
)
from ceqr.compilation import jit
from ceqr.config import build, build_hyper, check_memory, default_hyper, fitting_preset, make_env, require_trust
from ceqr.envs.observations import ObservationFormat
from ceqr.errors import UserError
from ceqr.evaluate import play_episodes
from ceqr.monitor import DriftMonitor
from ceqr.progress import Progress
from ceqr.provenance import provenance
from ceqr.runs import EpisodeRow, read_agent, read_config
from ceqr.streams import Stream, stream
from ceqr.training import signals
from ceqr.training.players import EnvironmentFailed, Player, make_loop, make_player
from ceqr.training.run_loop import Diverged, check_parameters, run_loop

if TYPE_CHECKING:
    import gymnasium

FORMAT = 2  # of a saved agent

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


class _Learned(NamedTuple):
    """What `predict`, `save` and `evaluate` see: whole at any moment, whatever another thread is learning."""

    state: AgentState
    frames: int
    # Without what learning alone needs. Taken apart once, not in every prediction: that would take longer than the
    # network.
    leaves: tuple[Any, ...]
    calibration: Calibration | None  # of just these weights


class _Saved(NamedTuple):
    """A saved agent: its state, and the arrays of its calibration, of which there are none if there is none."""

    params: Any
    target: Any
    optimiser: Any
    frozen: Any
    statistics: Any
    calibration: Any = ()


class TrainableAgent:
    """What the six classes share.

    Examples:
        An agent for CartPole with a small network, and all that can be done with it:

        >>> import numpy as np
        >>> from ceqr import CEQRDQN
        >>> agent = CEQRDQN("CartPole-v1", seed=0, hidden=(16,), quantiles=5, batch_size=8, learning_starts=60)
        >>> agent.learn(200).frames
        200
        >>> action, beliefs = agent.predict(np.zeros(4, np.float32))
        >>> action in (0, 1)
        True
        >>> beliefs.mean.shape, beliefs.quantiles.shape
        ((2,), (2, 5))
        >>> _ = agent.calibrate(episodes=20)
        >>> action, beliefs = agent.predict(np.zeros(4, np.float32))
        >>> bool(beliefs.interval.lower < beliefs.interval.upper), bool(0 < beliefs.novelty <= 1)
        (True, True)
        >>> agent.save("agent.ceqr")
        >>> again = CEQRDQN.load("agent.ceqr")
        >>> again.predict(np.zeros(4, np.float32))[0] == action
        True
    """

    agent_name: ClassVar[str] = ""

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
        if not self.agent_name:
            raise TypeError(f"{type(self).__name__} is no agent; use one of {', '.join(c.__name__ for c in CLASSES)}.")
        seed = _whole("seed", seed, 0, LARGEST)
        num_envs = _whole("num_envs", num_envs, 1, 4_096)
        if preset is not None and not isinstance(preset, str):
            raise TypeError(f"preset must be a name or None, not {type(preset).__name__}.")
        with _as_value_errors():
            made, name = _make_env(env, env_kwargs, protocol, max_episode_frames)
            self._check_lanes(made, num_envs)
            preset = preset or fitting_preset(made)
            hyper = self._hyperparameters(default_hyper(self.agent_name, preset, name or ""), hyperparameters)
            self._setup(hyper, envs.observation_format(made), made.num_actions, envs.first_action(made), seed)
            check_memory(self._agent, self._observations.network_dtype)
        self._env, self._env_name, self._num_envs = made, name, num_envs
        self._publish(_initialiser(self._agent)(stream(seed, Stream.AGENT)), 0)  # as in a run of that seed

    def _setup(
        self, hyper: Hyperparameters, form: ObservationFormat, num_actions: int, first_action: int, seed: int
    ) -> None:
        agent_class, _ = agent_classes(self.agent_name)
        self.hyperparameters = hyper
        self.seed = seed
        self.returns: list[float] = []
        """The return of each training episode of this object."""
        self._observations, self._first_action = form, first_action
        self._agent: Agent = agent_class(hyper, form.network_shape, num_actions)
        self._own_risk = np.float32(getattr(hyper, "lambda_al", 0.0))
        self._env: Any = None
        self._env_name: str | None = None
        self._num_envs = 1
        self._player: Player | None = None  # of training under way
        self._learning, self._compiling, self._exploring = (threading.Lock() for _ in range(3))
        self._programs: dict[Any, Any] = {}  # of `predict`, by what they are for
        self._layout: tuple[_Place | None, ...] = ()  # of what they tell, once there is one
        self._memories: dict[int, Any] = {}  # what was drawn for the episodes that `predict` explores, by their number
        self._predictions = itertools.count()

    @classmethod
    def _hyperparameters(cls, base: Any, given: dict[str, Any]) -> Any:
        known = [f.name for f in dataclasses.fields(base)]
        for name in given:
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1) or [SB3_NAMES.get(name, "")]
                hint = f" (did you mean {close[0]!r}?)" if close[0] in known else ""
                raise TypeError(f"{cls.__name__} has no hyperparameter {name!r}{hint}; it has {', '.join(known)}.")
        plain = {k: v.tolist() if isinstance(v, np.generic | np.ndarray) else v for k, v in given.items()}
        if isinstance(plain.get("hidden"), int):
            plain["hidden"] = (plain["hidden"],)
        whole = [name for name, kind in get_type_hints(type(base)).items() if kind is int]
        plain |= {k: int(v) for k, v in plain.items() if k in whole and isinstance(v, float) and v.is_integer()}
        try:
            hyper = build(type(base), dataclasses.asdict(base) | plain)
        except ValueError as error:
            raise ValueError(f"{cls.__name__}: {error}") from error
        hyper.check()
        return hyper

    @property
    def num_actions(self) -> int:
        return self._agent.num_actions

    @property
    def frames(self) -> int:
        """Frames learned from so far."""
        return self._learned.frames

    def set_env(
        self,
        env: "str | gymnasium.Env",
        *,
        num_envs: int = 1,
        env_kwargs: dict[str, Any] | None = None,
        protocol: str = "paper",
        max_episode_frames: int = 0,
    ) -> None:
        """Gives a loaded agent an environment to learn in; replay starts empty, and learning with it.

        Examples:
            >>> agent.save("agent.ceqr")
            >>> loaded = CEQRDQN.load("agent.ceqr")  # it can predict, but there is nothing to learn in
            >>> loaded.set_env("CartPole-v1")
            >>> loaded.learn(50).frames - agent.frames
            50
        """
        num_envs = _whole("num_envs", num_envs, 1, 4_096)
        with _as_value_errors():
            made, name = _make_env(env, env_kwargs, protocol, max_episode_frames)
            self._check_lanes(made, num_envs)
        form = envs.observation_format(made)
        if form != self._observations or made.num_actions != self.num_actions:
            raise ValueError(
                f"The environment has {made.num_actions} actions and observations of {form.describe()}; "
                f"the agent was made for {self.num_actions} actions and {self._observations.describe()}."
            )
        with self._learning:
            self._first_action = envs.first_action(made)
            self._end_session()
            self._env, self._env_name, self._num_envs = made, name, num_envs

    @staticmethod
    def _check_lanes(env: Any, num_envs: int) -> None:
        if num_envs > 1 and not getattr(env, "owned", True):
            raise ValueError("num_envs needs the name of an environment, not a made one: there is but one of it.")

    def _end_session(self) -> None:
        player, self._player = self._player, None
        if player is not None:
            player.close()

    def _require_env(self) -> Any:
        if self._env is None:
            raise ValueError("The agent has no environment: it was loaded from a file; give it one with set_env.")
        return self._env

    def learn(self, frames: int, progress_bar: bool = False) -> Self:
        """Plays and learns for so many more frames; going on is the same as not having stopped.

        Environments side by side play whole steps: up to `num_envs` - 1 frames more. Whatever is raised, the agent
        stays what it was when last looked at, about a second before, and can predict, be saved and learn on. What the
        environment raises comes as it is, and then nothing is lost. FloatingPointError: something was not finite.

        Examples:
            >>> before = agent.frames
            >>> agent.learn(50).frames - before
            50
        """
        frames = _whole("frames", frames, 1, LARGEST - self.frames)
        with self._learning, signals.collected() as received:
            self._learn(self.frames + frames, progress_bar, received)
        if received:
            signal.raise_signal(received[0])  # after the agent is whole again: KeyboardInterrupt, usually
        return self

    def _learn(self, last: int, progress_bar: bool, received: list[int]) -> None:
        player = self._player or self._begin_session()
        listener = _Pupil(self, player)
        try:
            with Progress("learning", last, start=self.frames, quiet=not progress_bar) as progress:
                run_loop(player, self.frames, last, listener, received, progress)
        except EnvironmentFailed as failed:
            raise failed.__cause__ or failed from None
        except BaseException as error:
            # What the player held is lost or not to be used; the agent is as it was when the player last looked up.
            with suppress(Exception):  # an environment that cannot be closed should not hide why
                self._end_session()
            if isinstance(error, Diverged):
                raise FloatingPointError(
                    f"{error}; the agent is as it was at frame {self.frames:,}, about a second before."
                ) from error
            raise

    def _begin_session(self) -> Player:
        env = self._require_env()
        with _as_value_errors():
            check_memory(self._agent, self._observations.network_dtype)
        loop = make_loop(self.agent_name, self.hyperparameters, env, self._num_envs)
        # Replay is empty, so learning starts after as many frames as at first.
        starts = self.frames + self.hyperparameters.learning_starts
        player = make_player(loop, env, [self.seed], starts)
        player.start(self._learned.state)
        self._player = player
        return player

    def _publish(self, state: AgentState, frames: int, calibration: Calibration | None = None) -> None:
        """Makes what was learned visible to `predict`."""
        leaves = tuple(jax.tree.leaves(self._agent.at_play(state)))
        self._learned = _Learned(state, frames, leaves, calibration)

    def predict(
        self,
        observation: Any,
        explore: bool = False,
        lambda_al: "float | np.floating | None" = None,
        episode_start: Any = False,
    ) -> tuple[Any, Beliefs]:
        """The action to take, and what the agent believes about every action.

        Args:
            observation: One, or a batch with a leading axis. The first call for a shape compiles.
            explore: Whether to act as in learning (Thompson sample, random action, ...) instead of greedily.
            lambda_al: Aversion to risk: weight of the aleatoric uncertainty; the agent's own unless given.
            episode_start: With `explore`: whether the observation begins an episode (for a batch: which do). What an
                agent draws once an episode, such as Bootstrapped DQN's head, is then drawn anew; else it is kept.

        Returns:
            An integer for one observation, an array for a batch; and the beliefs, as NumPy arrays.

        Examples:
            >>> action, beliefs = agent.predict(np.zeros(4, np.float32))  # one observation
            >>> actions, beliefs = agent.predict(np.zeros((3, 4), np.float32))  # three
            >>> actions.shape, beliefs.mean.shape, beliefs.epistemic.shape, beliefs.quantiles.shape
            ((3,), (3, 2), (3, 2), (3, 2, 5))
            >>> agent.predict(np.zeros(3, np.float32))
            Traceback (most recent call last):
                ...
            ValueError: ...
        """
        batch, single = self._observations.read(observation)
        risk = self._own_risk if lambda_al is None else self._risk(lambda_al, explore)
        learned = self._learned
        if explore:
            told = self._explore(learned, batch, risk, episode_start)
        else:
            told = self._program(False, learned, batch)(learned.leaves, batch, risk)
        rows = np.array(told)  # a copy, which is the caller's
        rows = rows[0] if single else rows
        known: list[Any] = [None if place is None else place.of(rows) for place in self._layout]
        if learned.calibration is not None:
            known[-2:] = learned.calibration.tell(rows)
        beliefs = Beliefs(*known)
        if single:
            return int(rows[0]) + self._first_action, beliefs
        return rows[:, 0].astype(np.int64) + self._first_action, beliefs

    def _explore(self, learned: _Learned, batch: np.ndarray, risk: np.float32, episode_start: Any) -> Any:
        rows = len(batch)
        try:
            starts = np.broadcast_to(np.asarray(episode_start, bool), (rows,))
        except ValueError as error:
            raise ValueError(f"episode_start must be True, False or {rows} of them, one for each row.") from error
        program = self._program(True, learned, batch)
        with self._exploring:
            if rows not in self._memories:
                self._memories[rows], starts = _no_memory(self._agent, rows), np.ones(rows, bool)
            numbers = np.array([learned.frames, self.seed, next(self._predictions) % 2**31], np.int32)
            told, self._memories[rows] = program(learned.leaves, batch, risk, self._memories[rows], starts, numbers)
        return told

    def _program(self, explore: bool, learned: _Learned, batch: np.ndarray) -> Any:
        """What predicts for a batch of that shape."""
        key = (explore, learned.calibration and learned.calibration.coverage, batch.shape)
        program = self._programs.get(key)
        return self._make_program(key, learned, batch) if program is None else program

    def _make_program(self, key: Any, learned: _Learned, batch: np.ndarray) -> Any:
        explore, coverage, _ = key
        # Several threads that come with a new shape wait for the first one to compile it.
        with self._compiling:
            if key not in self._programs:
                state = jax.eval_shape(lambda: self._agent.at_play(self._agent.init(jax.random.key(0))))
                program = (_explorer if explore else _predictor)(self._agent, jax.tree.structure(state), coverage)
                if not explore:
                    program(learned.leaves, batch, np.float32(0))
                self._layout = _layout(self._agent)
                self._programs[key] = program
            return self._programs[key]

    def _risk(self, lambda_al: Any, explore: bool) -> np.float32:
        """An aversion to risk that a caller gave, checked."""
        name = type(self).__name__
        number = isinstance(lambda_al, int | float | np.integer | np.floating) and not isinstance(lambda_al, bool)
        if not number or not 0 <= float(lambda_al) <= float(np.finfo(np.float32).max):
            raise ValueError(f"lambda_al must be a finite number and at least 0, not {lambda_al!r}.")
        if self.agent_name in ("dqn", "bootstrapped-dqn"):
            raise ValueError(f"{name} does not estimate the world's noise, so lambda_al means nothing to it.")
        if self.agent_name == "duvn" and explore:
            raise ValueError(f"{name} explores by drawing from its returns, so lambda_al is for explore=False.")
        return np.float32(lambda_al)

    def evaluate(self, episodes: int = 10, max_episode_frames: int = 50_000, seed: int | None = None) -> np.ndarray:
        """The returns of greedy episodes, on randomness that training never saw; the same whenever it is asked.

        Examples:
            >>> agent.evaluate(episodes=2).shape
            (2,)
        """
        episodes = _whole("episodes", episodes, 1, LARGEST)
        max_episode_frames = _whole("max_episode_frames", max_episode_frames, 1, LARGEST)
        seed = self.seed if seed is None else _whole("seed", seed, 0, LARGEST)
        env = self._require_env()
        with nullcontext() if getattr(env, "owned", True) else self._alone():
            returns, _ = play_episodes(
                self._agent, self._learned.state, env, seed, episodes, max_episode_frames, world=self.seed
            )
        return np.array(returns)

    @property
    def calibration(self) -> Calibration | None:
        """What `calibrate` found out about the agent as it is; None if it was not asked, or has learned since."""
        return self._learned.calibration

    def calibrate(
        self,
        episodes: int = EPISODES,
        coverage: float = COVERAGE,
        max_episode_frames: int = LIMIT,
        seed: int | None = None,
        progress_bar: bool = False,
    ) -> Self:
        """Plays greedy episodes, on randomness that training never saw, to give beliefs a guarantee.

        From then on `predict` tells `beliefs.interval`, which contains the discounted return from here on under the
        agent's own greedy policy with probability `coverage` at least, and `beliefs.novelty`, a p-value of the
        observation. Both are about a random step of a new episode (docs/guarantees.md). Learning on ends it.

        Args:
            episodes: How many to play; more make the interval tighter and the least p-value smaller.
            coverage: The share of returns that the interval should contain.
            max_episode_frames: Frames after which an episode is cut off.
            seed: Of the play; the agent's own unless given.
            progress_bar: Whether to show one.

        Examples:
            >>> agent.calibrate(episodes=20, coverage=0.8).calibration.coverage
            0.8
            >>> agent.calibrate(episodes=3, coverage=0.9)
            Traceback (most recent call last):
                ...
            ValueError: ...
        """
        episodes = _whole("episodes", episodes, 0, LARGEST)
        limit = _whole("max_episode_frames", max_episode_frames, 0, LARGEST)
        seed = self.seed if seed is None else _whole("seed", seed, 0, LARGEST)
        if isinstance(coverage, bool) or not isinstance(coverage, int | float | np.floating):
            raise ValueError(f"coverage must be a number above 0 and below 1, not {coverage!r}.")
        with _as_value_errors():
            check_options(episodes, float(coverage), limit)
        env = self._require_env()
        # Learning waits, so that what is calibrated is what the agent is.
        with self._learning if getattr(env, "owned", True) else self._alone(), _as_value_errors():
            learned = self._learned
            with Progress("calibrating", episodes, unit="episodes", quiet=not progress_bar) as progress:
                options = (self._agent, learned.state, env, seed, episodes, float(coverage), limit)
                found = calibrate(*options, world=self.seed, report=lambda over: progress.update(over, ""))
            self._publish(learned.state, learned.frames, found)
        return self

    def monitor(self, delta: float = 0.01, seed: int = 0) -> DriftMonitor:
        """An alarm for this agent's use from now on, on what `calibrate` has seen.

        Args:
            delta: The probability of ever alarming although nothing has changed.
            seed: Of the chance that breaks ties.

        Examples:
            >>> monitor = agent.calibrate(episodes=20).monitor(delta=0.01)
            >>> monitor.update(doubt=1.0, total=9.0)  # after each episode: its mean doubt, and its return
            False
        """
        calibration = self._learned.calibration
        if calibration is None:
            raise ValueError(
                "The agent is not calibrated, so there is nothing to compare with: call calibrate() first."
            )
        return DriftMonitor(calibration.reference, delta, seed)

    @contextmanager
    def _alone(self) -> Any:
        """Where there is but one environment: learning waits, and will begin a new episode in it."""
        with self._learning:
            if self._player is not None:
                self._player.close()
            yield

    def save(self, path: "str | os.PathLike[str]") -> None:
        """Writes the agent to one file: all that it has learned; not replay and environment.

        Examples:
            >>> agent.save("agent.ceqr")
        """
        if Path(path).is_dir():
            raise ValueError(f"{path} is a folder; save needs the name of a file, such as {Path(path, 'agent.ceqr')}.")
        learned = self._learned
        meta = {
            "format": FORMAT,
            "agent": self.agent_name,
            "hyper": dataclasses.asdict(self.hyperparameters),
            "observations": self._observations.to_json(),
            "num_actions": self.num_actions,
            "first_action": self._first_action,
            "frames": learned.frames,
            "seed": self.seed,
            "env": self._env_name,
            "packages": provenance()["packages"],
            "calibration": learned.calibration and learned.calibration.to_json(),
        }
        saved = _Saved(*learned.state, calibration=learned.calibration.to_tree() if learned.calibration else ())
        arrays.save_file(Path(path), saved, meta)

    @classmethod
    def load(cls, path: "str | os.PathLike[str]", env: "str | gymnasium.Env | None" = None) -> Self:
        """Reads an agent that `save` wrote. Nothing in the file is executed, and no environment is needed to predict.

        To go on learning, give the environment here or to `set_env`.

        Examples:
            >>> agent.save("agent.ceqr")
            >>> CEQRDQN.load("agent.ceqr").frames == agent.frames
            True
        """
        path = Path(path)
        with _as_value_errors():
            meta = arrays.load_meta(path)
            agent, frames, like = _class_for(cls, meta.get("agent"))._from_meta(path, meta)
            values = meta.get("calibration")
            kept = Calibration.tree_like(values, path) if values else ()
            saved, _ = arrays.load_file(path, _Saved(*like, calibration=kept))
            state = AgentState(*saved[:-1])
            calibration = Calibration.of(saved.calibration, values, path) if values else None
            if calibration is not None:
                calibration.check(agent._agent.at_play(state), path)
            agent._publish(state, frames, calibration)
        if env is not None:
            agent.set_env(env)
        return agent

    @classmethod
    def _from_meta(cls, path: Path, meta: dict[str, Any]) -> tuple[Self, int, AgentState]:
        """The agent of a file's JSON without what it learned, the frames that it took, and what that looks like."""
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
            hyper = build_hyper(hyper_class, meta["hyper"])
            hyper.check()
            form = ObservationFormat.from_json(meta["observations"])
            num_actions, seed, frames = (_whole(n, meta[n], 0, LARGEST) for n in ("num_actions", "seed", "frames"))
            agent._setup(hyper, form, num_actions, _whole("first_action", meta["first_action"], -(2**63), 2**63), seed)
            agent._env_name = meta["env"]
            return agent, frames, jax.eval_shape(agent._agent.init, jax.random.key(0))
        except Exception as error:  # its numbers may be any, and no network can be made of most
            raise UserError(f"{path} is damaged, or was saved by an incompatible version of ceqr.") from error

    @classmethod
    def from_run(
        cls, path: "str | os.PathLike[str]", seed: int | None = None, imports: "str | Collection[str]" = ()
    ) -> Self:
        """The agent of a run that `ceqr train` made: of its first seed unless another is given.

        imports: modules to import first: what an environment of your own needs, or what the run names and you trust.

        Examples:
            What `ceqr train --env gymnasium/CartPole-v1 --out runs/x` makes on the command line:

            >>> from ceqr.cli import main
            >>> small = "--hidden 16 --quantiles 5 --batch-size 8 --learning-starts 60 --frames 100 --quiet"
            >>> main(f"train --env gymnasium/CartPole-v1 --out runs/x {small}".split())
            0
            >>> CEQRDQN.from_run("runs/x").frames
            100
        """
        path = Path(path)
        imports = (imports,) if isinstance(imports, str) else tuple(imports)
        with _as_value_errors():
            for module in imports:
                envs.import_module(module)
            config, _ = read_config(path)
            cls = _class_for(cls, config.agent)
            if config.agent != cls.agent_name:
                right = next((c.__name__ for c in CLASSES if c.agent_name == config.agent), "another class")
                raise UserError(f"{path} is a run of {config.agent}; load it with {right}.from_run.")
            seed = config.seed_start if seed is None else _whole("seed", seed, 0, LARGEST)
            if seed not in config.seed_numbers:
                raise UserError(f"{path} has no seed {seed}; it has {', '.join(map(str, config.seed_numbers))}.")
            require_trust(config.env, imports, path, word="imports=('{}',)")
            env = config.make_env()
            agent = cls.__new__(cls)
            agent._setup(config.hyper, envs.observation_format(env), env.num_actions, envs.first_action(env), seed)
            row = config.seed_numbers.index(seed)
            state, frames = read_agent(path, agent._agent, row, whole=True)
            agent._publish(state, frames, read_calibration(path, frames, seed, agent._agent.at_play(state)))
        agent._env, agent._env_name, agent._num_envs = env, config.env, config.num_envs
        return agent


class CEQRDQN(TrainableAgent):
    """CEQR-DQN: both uncertainties, calibrated; explores by its own doubt (Stutts et al., 2024).

    Examples:
        >>> from ceqr import CEQRDQN
        >>> CEQRDQN("CartPole-v1", hidden=(16,), lambda_ep=0.5).hyperparameters.lambda_ep
        0.5
    """

    agent_name = "ceqr-dqn"


class DQN(TrainableAgent):
    """DQN: values alone; explores at random (Mnih et al., 2015).

    Examples:
        >>> import numpy as np
        >>> from ceqr import DQN
        >>> action, beliefs = DQN("CartPole-v1", hidden=(16,)).predict(np.zeros(4, np.float32))
        >>> beliefs.mean.shape, beliefs.epistemic, beliefs.quantiles
        ((2,), None, None)
    """

    agent_name = "dqn"


class QRDQN(TrainableAgent):
    """QR-DQN: quantiles of the return; explores at random (Dabney et al., 2017).

    Examples:
        >>> from ceqr import QRDQN
        >>> QRDQN("CartPole-v1", hidden=(16,), quantiles=5).hyperparameters.quantiles
        5
    """

    agent_name = "qr-dqn"


class BootstrappedDQN(TrainableAgent):
    """Bootstrapped DQN: the disagreement of its heads is its doubt (Osband et al., 2016).

    Examples:
        >>> from ceqr import BootstrappedDQN
        >>> BootstrappedDQN("CartPole-v1", hidden=(16,), heads=3).hyperparameters.heads
        3
    """

    agent_name = "bootstrapped-dqn"


class DUVN(TrainableAgent):
    """DUVN: Gaussian returns, and dropout as doubt (Moerland et al., 2017).

    Examples:
        >>> from ceqr import DUVN
        >>> DUVN("CartPole-v1", hidden=(16,)).num_actions
        2
    """

    agent_name = "duvn"


class UADQN(TrainableAgent):
    """UA-DQN: two anchored posterior networks tell doubt from noise (Clements et al., 2020).

    Examples:
        >>> from ceqr import UADQN
        >>> UADQN("CartPole-v1", hidden=(16,), quantiles=5).frames
        0
    """

    agent_name = "ua-dqn"


CLASSES: tuple[type[TrainableAgent], ...] = (CEQRDQN, DQN, QRDQN, BootstrappedDQN, DUVN, UADQN)


def _class_for(cls: Any, name: Any) -> Any:
    """The class of an agent's name where the caller named none."""
    return next((c for c in CLASSES if c.agent_name == name), cls) if cls is TrainableAgent else cls


class _Pupil:
    """Listens to the run loop for an agent: collects returns, and publishes what was learned."""

    log_every = None

    def __init__(self, agent: TrainableAgent, player: Player):
        self._agent, self._player = agent, player

    def episodes(self, rows: list[EpisodeRow]) -> None:
        self._agent.returns += [row.total for row in rows]

    def metrics(self, frame: int) -> None:
        """They are not asked for."""

    def looked_up(self, frame: int, last: bool) -> None:
        check_parameters(self._player, frame)
        # Copies, because the player gives its own arrays away.
        (group,) = self._player.groups
        self._agent._publish(jax.tree.map(lambda leaf: jnp.array(leaf[0]), group.agent), frame)

    def status(self) -> str:
        recent = self._agent.returns[-100:]
        return f"return {np.mean(recent):.2f}" if recent else ""


@cache
def _initialiser(agent: Agent) -> Any:
    """Agents of the same options, such as those of several seeds, are made by one program."""
    return jax.jit(agent.init)


# Predictions: one program an agent and shape, which takes the state's leaves and returns one vector a row (action,
# then beliefs end to end). Handing over one array each way takes less time than a small network's arithmetic.


def _averse(beliefs: Beliefs, lambda_al: jax.Array) -> Beliefs:
    if beliefs.aleatoric is None:
        return beliefs
    return beliefs._replace(mean=beliefs.mean - lambda_al * beliefs.aleatoric)


def _neutral(agent: Agent) -> Agent:
    """The agent without its own aversion to risk, which `predict` subtracts itself."""
    if not hasattr(agent.hyper, "lambda_al"):
        return agent
    return dataclasses.replace(agent, hyper=dataclasses.replace(agent.hyper, lambda_al=0.0))


def _pack(agent: Agent, actions: jax.Array, beliefs: Beliefs, coverage: float | None) -> jax.Array:
    """Last, for a calibrated agent, come its own bounds of the action of its greedy policy, and the doubt about it."""
    parts = [actions.astype(jnp.float32), *jax.tree.leaves(beliefs)]
    if coverage is not None:
        lower, upper, doubt = judge(beliefs, jax.vmap(agent.greedy)(beliefs), coverage)
        parts += [lower, upper, lower if doubt is None else doubt]
    return jnp.concatenate([part.reshape(len(actions), -1) for part in parts], axis=1)


class _Place(NamedTuple):
    """Where in a row a belief lies."""

    start: int
    stop: int
    shape: tuple[int, ...]

    def of(self, rows: np.ndarray) -> np.ndarray:
        """The belief, out of one row or several."""
        part = rows[..., self.start : self.stop]
        return part if len(self.shape) == 1 else part.reshape(*part.shape[:-1], *self.shape)


@cache
def _layout(agent: Agent) -> tuple[_Place | None, ...]:
    """Where what an agent believes lies in a row; None for what it does not estimate."""

    def believe(key: jax.Array) -> Beliefs:
        state = agent.init(key)
        outputs = agent.forward(state.params, state.frozen, jnp.zeros((1, *agent.observation_shape)), None)
        return agent.beliefs_of(state, outputs)

    places, start = [], 1  # after the action
    for belief in jax.eval_shape(believe, jax.random.key(0)):
        size = 0 if belief is None else math.prod(belief.shape[1:])
        places.append(None if belief is None else _Place(start, start + size, belief.shape[1:]))
        start += size
    return tuple(places)


def _no_memory(agent: Agent, rows: int) -> Any:
    """What stands for the memory of episodes that have not begun."""

    def remember(key: jax.Array) -> Any:
        return jax.vmap(agent.init_memory, in_axes=(None, 0))(agent.init(key), jax.random.split(key, rows))

    def blank(like: Any) -> Any:
        if jnp.issubdtype(like.dtype, jax.dtypes.prng_key):
            return jax.random.split(jax.random.key(0), like.shape)
        return jnp.zeros(like.shape, like.dtype)

    return jax.tree.map(blank, jax.eval_shape(remember, jax.random.key(0)))


@cache
def _predictor(agent: Agent, tree: Any, coverage: float | None) -> Any:
    """Greedy actions and beliefs; with what a calibration of that coverage asks for."""
    own, agent = agent, _neutral(agent)

    def predict(leaves: Any, observations: jax.Array, lambda_al: jax.Array) -> jax.Array:
        state = jax.tree.unflatten(tree, leaves)
        beliefs = agent.beliefs_of(state, agent.forward(state.params, state.frozen, observations, None))
        return _pack(own, jax.vmap(agent.greedy)(_averse(beliefs, lambda_al)), beliefs, coverage)

    return jit(predict)


@cache
def _explorer(agent: Agent, tree: Any, coverage: float | None) -> Any:
    """Exploring actions and beliefs, and what was drawn for the episodes; else as `_predictor`."""
    own, agent = agent, _neutral(agent)

    def predict(
        leaves: Any, observations: jax.Array, lambda_al: jax.Array, memory: Any, starts: jax.Array, numbers: jax.Array
    ) -> tuple[jax.Array, Any]:
        frame, seed, number = numbers
        rows = len(observations)
        state = jax.tree.unflatten(tree, leaves)
        key = jax.random.fold_in(stream(seed, Stream.PREDICTION), number)
        forward_key, act_key, memory_key = jax.random.split(key, 3)
        drawn = jax.vmap(agent.init_memory, in_axes=(None, 0))(state, jax.random.split(memory_key, rows))
        memory = jax.vmap(lambda start, *both: jax.tree.map(partial(jnp.where, start), *both))(starts, drawn, memory)
        beliefs = agent.beliefs_of(state, agent.forward(state.params, state.frozen, observations, None))
        outputs = agent.forward(state.params, state.frozen, observations, forward_key)
        drawn = jax.vmap(agent.draw)(jax.random.split(act_key, rows))
        if jax.tree.leaves(memory):
            memory = jax.vmap(agent.remember)(memory, drawn)
        actions = jax.vmap(agent.explore, in_axes=(0, 0, 0, None, 0))(
            outputs, _averse(beliefs, lambda_al), memory, frame, drawn
        )
        return _pack(own, actions, beliefs, coverage), memory

    return jit(predict)


@contextmanager
def _as_value_errors() -> Any:
    """What is a `UserError` on the command line is a ValueError here, in Python's words for options."""
    try:
        yield
    except UserError as error:
        raise ValueError(re.sub(r"--([a-z-]+)", lambda m: m[1].replace("-", "_"), str(error))) from error


def _whole(name: str, value: Any, least: int, most: int) -> int:
    """A whole number from a caller, also where it is written as 1e5."""
    try:
        number = int(value)
        whole = bool(number == value) and not isinstance(value, bool | np.bool_)
    except (TypeError, ValueError, OverflowError):
        whole, number = False, least
    if not whole:
        raise ValueError(f"{name} must be a whole number, not {value!r}.")
    if not least <= number <= most:
        raise ValueError(f"{name} must be from {least:,} to {most:,}, not {number:,}.")
    return number


def _make_env(
    env: Any, env_kwargs: dict[str, Any] | None, protocol: str, max_episode_frames: int
) -> tuple[Any, str | None]:
    """The environment, and the name to which defaults and saved agents refer."""
    frames = _whole("max_episode_frames", max_episode_frames, 0, LARGEST)
    if env_kwargs is not None and not isinstance(env_kwargs, dict):
        raise TypeError(f"env_kwargs must be a dictionary, not {type(env_kwargs).__name__}.")
    if isinstance(env, str):
        # Where no family is named, Gymnasium's is meant.
        name = env if env.partition("/")[0] in envs.FAMILIES else f"gymnasium/{env}"
        return make_env(name, protocol, frames, env_kwargs or {}), name
    import gymnasium

    from ceqr.envs.gymnasium import from_env

    if not isinstance(env, gymnasium.Env):
        raise TypeError(f"env must be a name or a gymnasium.Env, not {type(env).__name__}.")
    if env_kwargs or frames or protocol != "paper":
        raise ValueError("env_kwargs, max_episode_frames and protocol need the name of an environment, not a made one.")
    return from_env(env), None
