"""Training with a run directory: `ceqr train` and `ceqr resume`."""

import dataclasses
import importlib.util
import signal
import sys
import time
import warnings
from collections.abc import Collection
from pathlib import Path
from typing import Any

from ceqr import envs
from ceqr.compilation import use_one_thread
from ceqr.config import RunConfig, require_trust
from ceqr.errors import UserError
from ceqr.progress import Progress
from ceqr.provenance import provenance
from ceqr.runs import EpisodeRow, read_config
from ceqr.training import checkpoint, signals
from ceqr.training import run as run_directory
from ceqr.training.checkpoint import Saved
from ceqr.training.log import Log
from ceqr.training.players import EnvironmentFailed, Player, is_small, make_loop, make_player
from ceqr.training.run import Run
from ceqr.training.run_loop import Diverged, check_parameters, run_loop


class EnvironmentStopped(Exception):
    """An environment raised the exception that is this one's cause; the run was saved."""


class Interrupted(Exception):
    """A signal asked the run to stop; it was saved."""

    def __init__(self, signal_number: int, message: str):
        super().__init__(message)
        self.signal_number = signal_number


def _prepare(config: RunConfig[Any]) -> Player:
    """The player of a run, in a process that does nothing else."""
    env = config.make_env()
    if not envs.is_compiled(env) and is_small(make_loop(config.agent, config.hyper, env).agent):
        use_one_thread()
    return player_of(config)


def player_of(config: RunConfig[Any], learning_starts: int | None = None) -> Player:
    """The agent of a configuration in its environment, with the run's seeds."""
    env = config.make_env()
    loop = make_loop(config.agent, config.hyper, env, config.num_envs)
    return make_player(loop, env, config.seed_numbers, learning_starts)


def start(config: RunConfig[Any], out: Path, quiet: bool = False) -> None:
    """Trains a new run in the directory `out`."""
    config.check()
    require_extras(config)
    player = _prepare(config)
    run = run_directory.create(out, config, player.metric_names())
    try:
        _train(run, player, None, quiet)
    finally:
        run.close()


def resume(path: Path, frames: int | None = None, quiet: bool = False, imports: Collection[str] = ()) -> None:
    """Goes on with a run, to more frames than it was made for if so asked.

    imports: modules that the run's environment names and that may be imported.
    """
    config, origin = read_config(path)
    if frames is not None and frames < config.frames:
        raise UserError(
            f"--frames {frames:,} is less than the run's own {config.frames:,}; a run can only be extended."
        )
    require_trust(config.env, imports, path)
    extended = dataclasses.replace(config, frames=frames or config.frames)
    extended.check()
    require_extras(extended)
    player = _prepare(extended)
    run = Run(path, extended, player.metric_names())
    try:
        # Nothing is written before everything has been read and found whole.
        saved = checkpoint.latest(run.checkpoints)
        if saved is not None:
            run.check_lengths(saved.meta.get("lengths"))
            player.load(saved)
        elif (path / "summary.json").exists():  # written only after a first checkpoint
            raise UserError(f"{path} has lost its checkpoints, so it cannot go on; train it anew.")
        _warn_of_other_versions(origin["packages"])
        if extended != config:
            run.write_config(origin)
        if saved is not None and saved.frame >= extended.frames:
            if not quiet:
                print(f"{path} is finished: all {extended.frames:,} frames are played.", file=sys.stderr)
            return
        _train(run, player, saved, quiet)
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


def require_extras(config: RunConfig[Any]) -> None:
    for option, module in (("tensorboard", "tensorboardX"), ("wandb", "wandb")):
        if getattr(config, option) and importlib.util.find_spec(module) is None:
            raise UserError(f"--{option} needs an extra; install it with: pip install 'ceqr[{option}]'")


def _train(run: Run, player: Player, saved: Saved | None, quiet: bool) -> None:
    config = run.config
    with signals.collected() as received:
        if saved is None:
            player.start()
            run.begin(None)
        else:
            run.begin(saved.meta["lengths"])
        frame = 0 if saved is None else saved.frame
        say = (lambda text: None) if quiet else (lambda text: print(text, file=sys.stderr, flush=True))
        lanes = f"{config.num_envs:,} of " if config.num_envs > 1 else ""
        say(
            f"Training {config.agent} on {lanes}{config.describe_env()}, "
            f"frames {frame:,} to {config.frames:,}: {config.seeds} seed(s) from {config.seed_start} on, "
            f"{player.loop.agent.parameter_count():,} parameters each, in {run.path}"
        )
        if frame and not envs.is_compiled(config.make_env()):
            say(
                f"The environment starts a new episode at frame {frame:,}, because it cannot be saved; "
                "agent, replay, counters and random state go on exactly."
            )
        recorder = _Recorder(run, player, frame)
        try:
            with Progress("training", config.frames, start=frame, quiet=quiet) as progress:
                frame = run_loop(player, frame, config.frames, recorder, received, progress)
        except Diverged as error:
            raise Diverged(f"{error}, so training stopped; {_last_good(run)}.") from error
        except EnvironmentFailed as error:
            raise EnvironmentStopped(
                f"The environment raised an exception (above) at frame {error.frame:,}, so training stopped; the run "
                f"is saved and goes on with 'ceqr resume {run.path}'."
            ) from error.__cause__
        finally:
            player.close()
            recorder.close()
    if frame < config.frames:
        name = signal.Signals(received[0]).name
        raise Interrupted(
            received[0], f"Stopped by {name} at frame {frame:,} and saved; go on with 'ceqr resume {run.path}'."
        )
    say(f"Done: {recorder.status()}. Results are in {run.path}.")


class _Recorder:
    """Listens to the run loop: writes rows, and now and then a checkpoint."""

    def __init__(self, run: Run, player: Player, frame: int):
        self._run, self._player, self._log = run, player, Log(run)
        self.log_every = run.config.log_every
        self._began = self._saved = self._logged = time.monotonic()
        self._logged_frame = frame

    def episodes(self, rows: list[EpisodeRow]) -> None:
        self._log.episodes(rows)

    def metrics(self, frame: int) -> None:
        self._log.metrics(frame, self._player.take_metrics())
        now = time.monotonic()
        self._run.add_timing(frame, now - self._began, (frame - self._logged_frame) / (now - self._logged))
        self._logged, self._logged_frame = now, frame

    def looked_up(self, frame: int, last: bool) -> None:
        if last or time.monotonic() - self._saved >= self._run.config.checkpoint_seconds:
            check_parameters(self._player, frame)
            lengths = self._run.flush()
            checkpoint.save(self._run.checkpoints, frame, self._player.groups, {"lengths": lengths})
            self._run.write_summary(frame)
            self._saved = time.monotonic()

    def status(self) -> str:
        return self._log.status()

    def close(self) -> None:
        self._log.close()


def _last_good(run: Run) -> str:
    kept = checkpoint.complete(run.checkpoints)
    return f"the last good checkpoint is {kept[0]}" if kept else "no checkpoint had been written yet"
