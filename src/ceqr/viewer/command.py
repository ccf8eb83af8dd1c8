"""`ceqr watch`: plays a run, or two on the same randomness, and writes the page and the animations."""

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from ceqr.errors import UserError
from ceqr.files import write_aside
from ceqr.progress import Progress
from ceqr.viewer import animation, page
from ceqr.viewer.heat import heat_of
from ceqr.viewer.record import Subject, open_run, play
from ceqr.viewer.scenes import action_names, scene_of


@dataclass(frozen=True)
class Written:
    """What was written, and what its reader should know."""

    files: Sequence[Path]
    notes: Sequence[str]


def watch(
    path: Path,
    compare: Path | None = None,
    out: Path | None = None,
    episodes: int = 3,
    agent_seed: int | None = None,
    seed: int = 0,
    limit: int = 5_000,
    explore: bool = False,
    gif: Path | None = None,
    mp4: Path | None = None,
    quiet: bool = False,
    imports: Collection[str] = (),
) -> Written:
    """Plays so many episodes, and writes what was asked for; files that are there are replaced."""
    out = out or path / "doubt.html"
    for option, value in (("--episodes", episodes), ("--max-episode-frames", limit)):
        if value < 1:
            raise UserError(f"{option} must be at least 1, not {value:,}.")
    subjects = [open_run(each, agent_seed, imports) for each in (path, compare) if each is not None]
    if len(subjects) > 1:
        _check_alike(*subjects)
    for option, file, ending in (("--out", out, ".html"), ("--gif", gif, ".gif"), ("--mp4", mp4, ".mp4")):
        if file is not None:
            check_target(option, file, ending)
    if mp4 is not None:
        animation.require_ffmpeg()
    played = []
    with Progress("playing", episodes * len(subjects), unit="episodes", quiet=quiet) as progress:
        for i, subject in enumerate(subjects):

            def report(over: int, steps: int, i: int = i) -> None:
                progress.update(i * episodes + over, f"{steps:,} frames")

            played.append(play(subject, seed, episodes, limit, explore, report))
    env = subjects[0].env
    watched = page.Watched(
        subjects=subjects,
        episodes=played,
        scene=scene_of(env, [episode for each in played for episode in each]),
        actions=action_names(env),
        seed=seed,
        explore=explore,
        heats=[heat_of(subject) for subject in subjects],
    )
    write_aside(out, page.render(watched))
    written, notes = [out], _notes(subjects)
    for target, write in ((gif, animation.write_gif), (mp4, animation.write_mp4)):
        if target is not None:
            notes += write(target, watched, quiet)
            written.append(target)
    return Written(written, notes)


def check_target(option: str, file: Path, ending: str) -> None:
    """Raises `UserError` if a file cannot be written, before anything is played."""
    if file.suffix != ending:
        raise UserError(f"{option} must name a {ending} file, not {file}.")
    folder = file.parent
    if not folder.is_dir():
        raise UserError(f"Cannot write {file}: there is no folder {folder}; make it, or choose another {option}.")
    if file.is_dir():
        raise UserError(f"Cannot write {file}: it is a folder; choose another {option}.")
    if not os.access(folder, os.W_OK):
        raise UserError(f"Cannot write {file}: Permission denied; choose another {option}.")


def _check_alike(one: Subject, other: Subject) -> None:
    names = [each.config.describe_env() for each in (one, other)]
    if names[0] != names[1]:
        raise UserError(
            f"{one.path} plays {names[0]} and {other.path} plays {names[1]}; --compare takes a run of the same "
            "environment and options."
        )


def _notes(subjects: Sequence[Subject]) -> list[str]:
    notes = []
    for subject in subjects:
        if subject.calibration is None:
            notes.append(
                f"{subject.path} is not calibrated at frame {subject.frame:,}, so no interval is guaranteed: "
                f"ceqr calibrate {subject.path}"
            )
    if len({subject.seed for subject in subjects}) > 1 and hasattr(subjects[0].env, "world"):
        notes.append("The agents have different seeds, and so worlds of their own; only the episodes' chance is one.")
    return notes
