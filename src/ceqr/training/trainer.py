"""The host's side of training: runs a loop chunk by chunk, and keeps the run directory.

Compiled environments (`Chunks`) and those of the host (`HostChunks`) differ in how a chunk is played, in no more.
"""

import dataclasses
import importlib.util
import signal
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ceqr.agents import agent_classes
from ceqr.agents.base import Hyperparameters
from ceqr.compilation import jit, side_by_side
from ceqr.config import RunConfig
from ceqr.envs.gymnasium import HostEnvironment
from ceqr.errors import UserError
from ceqr.networks import parameter_count
from ceqr.progress import Progress
from ceqr.provenance import provenance
from ceqr.runs import EpisodeRow, read_config
from ceqr.training import checkpoint
from ceqr.training import run as run_directory
from ceqr.training.host import CHUNK_SECONDS, EnvironmentFailed, HostChunks, HostLoop
from ceqr.training.loop import CHUNK_FRAMES, NEVER, Finished, Groups, Loop, LoopState, join
from ceqr.training.run import Run, episode_rows

FIRST_CHUNK = 20  # frames


class Diverged(Exception):
    """A loss was not finite."""


class EnvironmentStopped(Exception):
    """An environment raised the exception that is this one's cause; the run was saved."""


class Interrupted(Exception):
    """A signal asked the run to stop; it was saved."""

    def __init__(self, signal_number: int, message: str):
        super().__init__(message)
        self.signal_number = signal_number


def build_loop(config: RunConfig[Any]) -> Loop:
    """The agent of a configuration in its environment."""
    return loop_of(config.agent, config.hyper, config.make_env(), config.num_envs)


def loop_of(agent: str, hyper: Hyperparameters, env: Any, num_envs: int = 1) -> Loop:
    """The loop for an environment of either kind."""
    agent_class, _ = agent_classes(agent)
    made = agent_class(hyper, env.observation_shape, env.num_actions)
    return HostLoop(env, made, num_envs) if isinstance(env, HostEnvironment) else Loop(env, made)


def start(config: RunConfig[Any], out: Path, quiet: bool = False) -> None:
    """Trains a new run in the directory `out`."""
    config.check()
    _require_extras(config)
    loop = build_loop(config)
    run = run_directory.create(out, config, _metric_columns(loop))
    try:
        _train(run, loop, None, quiet)
    finally:
        run.close()


def resume(path: Path, frames: int | None = None, quiet: bool = False) -> None:
    """Goes on with a run, to more frames than it was made for if so asked."""
    config, origin = read_config(path)
    if frames is not None and frames < config.frames:
        raise UserError(
            f"--frames {frames:,} is less than the run's own {config.frames:,}; a run can only be extended."
        )
    extended = dataclasses.replace(config, frames=frames or config.frames)
    extended.check()
    _require_extras(extended)
    loop = build_loop(extended)
    run = Run(path, extended, _metric_columns(loop))
    try:
        # Nothing is written before everything has been read and found whole.
        saved = load_state(path, loop, extended)
        if saved is not None:
            run.check_lengths(saved[1]["lengths"])
        elif (path / "summary.json").exists():  # written only after a first checkpoint
            raise UserError(f"{path} has lost its checkpoints, so it cannot go on; train it anew.")
        _warn_of_other_versions(origin.get("packages", {}))
        if extended != config:
            run.write_config(origin)
        if saved is not None and saved[1]["frame"] >= extended.frames:
            if not quiet:
                print(f"{path} is finished: all {extended.frames:,} frames are played.", file=sys.stderr)
            return
        _train(run, loop, saved, quiet)
    finally:
        run.close()


def _warn_of_other_versions(packages: dict[str, str]) -> None:
    now = provenance()["packages"]
    changed = [f"{name} {packages[name]} -> {now.get(name)}" for name in packages if packages[name] != now.get(name)]
    if changed:
        warnings.warn(
            f"the run was begun with other versions ({', '.join(changed)}), "
            "so it may not end with the same bits as one that was never interrupted.",
            stacklevel=2,
        )


def load_state(path: Path, loop: Loop, config: RunConfig[Any]) -> tuple[LoopState, dict[str, Any]] | None:
    """The newest checkpointed state of all seeds."""
    like = jax.eval_shape(loop.init_seeds, _seeds(config))
    return checkpoint.load_latest(path / "checkpoints", like)


def _seeds(config: RunConfig[Any]) -> jax.Array:
    return jnp.array(config.seed_numbers, jnp.int32)


def _metric_columns(loop: Loop) -> list[str]:
    tally = jax.eval_shape(loop.init, jnp.int32(0)).tally
    return [*tally.learning, *tally.acting, "start_value"]


def _train(run: Run, loop: Loop, saved: tuple[LoopState, dict[str, Any]] | None, quiet: bool) -> None:
    config = run.config
    with signals() as received:
        if saved is None:
            states, frame = jax.jit(loop.init_seeds)(_seeds(config)), 0
            run.begin(None)
        else:
            states, frame = saved[0], saved[1]["frame"]
            run.begin(saved[1]["lengths"])
        host = isinstance(loop, HostLoop)
        say = (lambda text: None) if quiet else (lambda text: print(text, file=sys.stderr, flush=True))
        parameters = parameter_count(states.agent.params) // config.seeds
        say(
            f"Training {config.agent} on {config.env}{'' if host else f' ({config.protocol} protocol)'}, "
            f"frames {frame:,} to {config.frames:,}: {config.seeds} seed(s) from {config.seed_start} on, "
            f"{parameters:,} parameters each, in {run.path}"
        )
        if host and frame:
            say(
                f"The environment starts a new episode at frame {frame:,}, because it cannot be saved; "
                "agent, replay, counters and random state go on exactly."
            )
        logger, chunks = Logger(run), make_chunks(loop, states, config.seed_numbers)
        groups = chunks.split(states)
        del states  # so that only one copy is kept
        try:
            frame = _train_chunks(run, chunks, groups, frame, logger, received, quiet)
        finally:
            chunks.close()
            logger.close()
    if frame < config.frames:
        name = signal.Signals(received[0]).name
        raise Interrupted(
            received[0], f"Stopped by {name} at frame {frame:,} and saved; go on with 'ceqr resume {run.path}'."
        )
    say(f"Done: {logger.status()}. Results are in {run.path}.")


def _train_chunks(
    run: Run,
    chunks: "Chunks | HostChunks",
    groups: Groups,
    frame: int,
    logger: "Logger",
    received: list[int],
    quiet: bool,
) -> int:
    """Plays chunk after chunk to the last frame or to a signal, and returns the frame reached."""
    config = run.config

    def save() -> None:
        _check_parameters(run, groups, frame)
        lengths = run.flush()
        checkpoint.save(run.checkpoints, frame, join(groups), {"frame": frame, "lengths": lengths})
        run.write_summary(frame)

    began = last_save = last_log = time.monotonic()
    logged = frame
    with Progress("training", config.frames, start=frame, quiet=quiet) as progress:
        while frame < config.frames and not received:
            row_due = (frame // config.log_every + 1) * config.log_every
            failed = None
            try:
                groups, frame, rows = chunks.run(groups, frame, min(row_due, config.frames))
            except EnvironmentFailed as error:
                groups, frame, rows, failed = error.groups, error.frame, error.episodes, error
            _check_losses(run, groups)
            logger.episodes(rows)
            if frame >= row_due:
                groups = logger.metrics(frame, groups)
                now = time.monotonic()
                run.add_timing(frame, now - began, (frame - logged) / (now - last_log))
                logged, last_log = frame, now
            if failed is not None:
                save()
                raise EnvironmentStopped(
                    f"The environment raised an exception (above) at frame {frame:,}, so training stopped; the run is "
                    f"saved and goes on with 'ceqr resume {run.path}'."
                ) from failed.__cause__
            progress.update(min(frame, config.frames), logger.status(), chunks.frames_per_second)
            if time.monotonic() - last_save >= config.checkpoint_seconds and frame < config.frames:
                save()
                last_save = time.monotonic()
        save()
    return frame


def make_chunks(
    loop: Loop, states: LoopState, seeds: Sequence[int], learning_starts: int | None = None
) -> "Chunks | HostChunks":
    """What plays a loop; learning starts at the agent's own frame unless another is given."""
    if isinstance(loop, HostLoop):
        return HostChunks(loop, seeds, learning_starts)
    return Chunks(loop, states, seeds, learning_starts)


class Chunks:
    """The compiled chunks, how long to make them, and on which cores they run.

    On a CPU each seed is a group of its own and as many groups run at once as there are cores, each on one: a single
    seed's products are too small to keep several busy. On an accelerator all seeds are one group, in one program.
    """

    def __init__(self, loop: Loop, states: LoopState, seeds: Sequence[int], learning_starts: int | None = None):
        self._group_size = 1 if jax.default_backend() == "cpu" else len(seeds)
        self._at_once = side_by_side(len(seeds) // self._group_size)
        # Two programs, with and without learning: a branch inside one would copy all weights in every frame.
        # Both are compiled before the first frame.
        zero = jnp.int32(0)
        group = jax.tree.map(lambda x: jax.ShapeDtypeStruct((self._group_size, *x.shape[1:]), x.dtype), states)
        self._programs = {
            learning: jit(partial(loop.chunk, learning=learning), one_thread=self._at_once > 1, donate_argnums=0)
            .lower(group, zero, zero)
            .compile()
            for learning in (False, True)
        }
        self._seeds = seeds
        self._learning_starts = loop.agent.hyper.learning_starts if learning_starts is None else learning_starts
        self._frames = FIRST_CHUNK
        self.frames_per_second: float | None = None  # of each seed

    def split(self, states: LoopState) -> Groups:
        """The states of all seeds as `run` takes them."""
        size = self._group_size
        return tuple(
            jax.tree.map(lambda x, i=i: jnp.array(x[i : i + size]), states) for i in range(0, len(self._seeds), size)
        )

    def run(self, groups: Groups, start: int, stop: int) -> tuple[Groups, int, list[EpisodeRow]]:
        """Frames from `start` on, for about CHUNK_SECONDS, but never past `stop` or the start of learning.

        Returns the states, the frame reached, and the episodes that ended.
        """
        stop = min(stop, start + self._frames)
        if start < self._learning_starts:
            stop = min(stop, self._learning_starts)
        began = time.monotonic()
        groups, finished = self.play(groups, start, stop)
        self.frames_per_second = rate = (stop - start) / (time.monotonic() - began)
        self._frames = max(1, min(CHUNK_FRAMES, round(rate * CHUNK_SECONDS)))
        played = jax.tree.map(lambda x: x[: stop - start], finished)
        return groups, stop, episode_rows(played, self._seeds, start)

    def play(self, groups: Groups, start: int, stop: int) -> tuple[Groups, Finished]:
        """Frames `start` to `stop` - 1, at most CHUNK_FRAMES of them, all with learning or all without."""
        program, first, last = self._programs[start >= self._learning_starts], jnp.int32(start), jnp.int32(stop)

        def play_group(group: LoopState) -> tuple[LoopState, Finished]:
            group, finished = program(group, first, last)
            return group, jax.tree.map(np.asarray, finished)  # waits for the chunk

        with ThreadPoolExecutor(self._at_once) as pool:
            groups, finished = zip(*pool.map(play_group, groups), strict=True)
        return groups, jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), *finished)

    def close(self) -> None:
        """There is nothing to close; environments of the host have."""


class Logger:
    """Turns what the device returns into rows, and into the line that a person sees."""

    def __init__(self, run: Run):
        self._run = run
        self._seeds = run.config.seed_numbers
        self._last: dict[str, float] = {}
        self._board = _Board(run.path) if run.config.tensorboard else None

    def episodes(self, rows: list[EpisodeRow]) -> None:
        self._run.add_episodes(rows)
        if self._board:
            for row in rows:
                self._board.add(row.seed, row.frame, {"episode/return": row.total, "episode/nongreedy": row.nongreedy})

    def metrics(self, frame: int, groups: Groups) -> Groups:
        """Writes a row for each seed and returns the states with an empty tally."""
        tally = join([group.tally for group in groups])
        # Where environments are played side by side, the mean over them.
        start_value = join([group.episode.start_value for group in groups]).reshape(len(self._seeds), -1).mean(1)
        with np.errstate(invalid="ignore", divide="ignore"):
            columns = {name: total / tally.updates for name, total in tally.learning.items()}
            columns |= {name: total / tally.frames for name, total in tally.acting.items()}
        columns["start_value"] = start_value
        for i, seed in enumerate(self._seeds):
            values = {name: float(column[i]) for name, column in columns.items()}
            self._run.add_metrics(seed, frame, values)
            if self._board:
                self._board.add(seed, frame, {f"metrics/{k}": v for k, v in values.items() if not np.isnan(v)})
        self._last = {name: float(np.mean(column)) for name, column in columns.items()}
        return tuple(group._replace(tally=jax.tree.map(jnp.zeros_like, group.tally)) for group in groups)

    def status(self) -> str:
        recent = [row for stats in self._run.episodes.values() for row in stats.recent]
        parts = []
        if recent:
            parts.append(f"return {np.mean([r.total for r in recent]):.2f}")
            parts.append(f"non-greedy {np.mean([r.nongreedy for r in recent]):.1%}")
        for name, text in (("coverage", "coverage {:.1%}"), ("loss", "loss {:.3f}")):
            if not np.isnan(self._last.get(name, np.nan)):
                parts.append(text.format(self._last[name]))
        return ", ".join(parts)

    def close(self) -> None:
        if self._board:
            self._board.close()


class _Board:
    """TensorBoard event files, one folder a seed."""

    def __init__(self, path: Path):
        self._path = path / "tensorboard"
        self._writers: dict[int, Any] = {}

    def add(self, seed: int, frame: int, values: dict[str, float]) -> None:
        if seed not in self._writers:
            from tensorboardX import SummaryWriter

            self._writers[seed] = SummaryWriter(str(self._path / f"seed{seed}"), purge_step=frame)
        for name, value in values.items():
            self._writers[seed].add_scalar(name, value, frame)

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()


def _require_extras(config: RunConfig[Any]) -> None:
    if config.tensorboard and importlib.util.find_spec("tensorboardX") is None:
        raise UserError("--tensorboard needs an extra; install it with: pip install 'ceqr[tensorboard]'")


def _check_losses(run: Run, groups: Groups) -> None:
    nonfinite = join([group.nonfinite for group in groups])
    bad = [(int(f), seed) for f, seed in zip(nonfinite, run.config.seed_numbers, strict=True) if f != NEVER]
    if bad:
        frame, seed = min(bad)
        raise Diverged(
            f"The loss of seed {seed} was not finite in frame {frame:,}, so training stopped; {_last_good(run)}."
        )


def _check_parameters(run: Run, groups: Groups, frame: int) -> None:
    """The last update may have been the one that broke the network: its loss would tell only in the next frame."""
    finite = np.concatenate([_finite(group.agent.params) for group in groups])
    for seed, fine in zip(run.config.seed_numbers, finite, strict=True):
        if not fine:
            raise Diverged(
                f"Parameters of seed {seed} were not finite after frame {frame - 1:,}, so training stopped; "
                f"{_last_good(run)}."
            )


def _finite(params: Any) -> np.ndarray:
    """Whether all numbers of each seed are."""
    leaves = map(np.asarray, jax.tree.leaves(params))
    return np.logical_and.reduce([np.isfinite(leaf).reshape(len(leaf), -1).all(1) for leaf in leaves])


def _last_good(run: Run) -> str:
    kept = checkpoint.complete(run.checkpoints)
    return f"the last good checkpoint is {kept[0]}" if kept else "no checkpoint had been written yet"


@contextmanager
def signals() -> Iterator[list[int]]:
    """Collects SIGINT and SIGTERM instead of dying of them; a second one kills as usual."""
    received: list[int] = []
    before = {}

    def note(number: int, _frame: Any) -> None:
        received.append(number)
        for n, handler in before.items():
            signal.signal(n, handler)

    try:
        before = {n: signal.signal(n, note) for n in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: signals are somebody else's business
        before = {}
    try:
        yield received
    finally:
        for n, handler in before.items():
            signal.signal(n, handler)
