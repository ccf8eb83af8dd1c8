"""From run directories to a folder: diagnostics.json, figures, and the page."""

import shutil
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ceqr.config import RunConfig, require_trust
from ceqr.diagnostics import page
from ceqr.diagnostics.exploration import read_exploration
from ceqr.diagnostics.figures import figures
from ceqr.diagnostics.results import Diagnosis, RunDiagnosis
from ceqr.diagnostics.subject import examine
from ceqr.errors import UserError
from ceqr.experiments.report import picture
from ceqr.files import write_aside, write_json
from ceqr.progress import Progress
from ceqr.runs import latest_checkpoint, read_config
from ceqr.training.loop import Loop
from ceqr.training.players import make_loop

TOLD = {"TD targets": "td_evidential", "TD targets by quantiles": "td_quantiles", "returns": "returns"}


class Patient(NamedTuple):
    """A run that can be examined."""

    path: Path
    label: str
    config: RunConfig[Any]
    loop: Loop


def admit(paths: Sequence[Path], episodes: int, limit: int, imports: Collection[str] = ()) -> list[Patient]:
    """The runs, before any work is begun; `UserError` if one of them cannot be examined."""
    for option, value in (("--episodes", episodes), ("--max-episode-frames", limit)):
        if value < 1:
            raise UserError(f"{option} must be at least 1, not {value:,}.")
    names = Counter(path.resolve() for path in paths)
    for path in paths:
        if names[path.resolve()] > 1:
            raise UserError(f"{path} is given twice; name each run once.")
    labels = Counter(path.resolve().name for path in paths)
    admitted = []
    for path in paths:
        config, _ = read_config(path)
        require_trust(config.env, imports, str(path))
        latest_checkpoint(path).close()
        loop = make_loop(config.agent, config.hyper, config.make_env(), config.num_envs)
        name = path.resolve().name
        admitted.append(Patient(path, name if labels[name] == 1 else str(path), config, loop))
    return admitted


def diagnose(patients: Sequence[Patient], episodes: int, limit: int, quiet: bool = False) -> Diagnosis:
    """Examines all seeds of all runs."""
    runs = []
    done, total = 0, episodes * sum(patient.config.seeds for patient in patients)
    with Progress("playing", total, unit="episodes", quiet=quiet) as progress:
        for path, label, config, loop in patients:
            explored = read_exploration(path, config)
            subjects = []
            for row in range(config.seeds):

                def report(over: int, before: int = done, label: str = label) -> None:
                    progress.update(before + over, label)

                subjects.append(examine(path, config, loop, row, episodes, limit, report))
                done += episodes
                progress.update(done, label)
            if len({each.frame for each in subjects}) > 1:
                raise UserError(f"{path} is still being trained; wait for its end, and diagnose it then.")
            trained = [explored[each.seed] for each in subjects]
            runs.append(RunDiagnosis(path, label, config, subjects, trained))
    return Diagnosis(runs, episodes, limit)


def write(diagnosis: Diagnosis, out: Path, quiet: bool = False) -> None:
    """Writes a diagnosis into a folder that is there and empty."""
    drawn = figures(diagnosis)
    folder = out / "figures"
    folder.mkdir()
    try:
        with Progress("drawing", len(drawn), unit="figures", quiet=quiet) as progress:
            for number, figure in enumerate(drawn.values(), 1):
                for ending, content in picture.draw(figure).items():
                    write_aside(folder / f"{figure.name}.{ending}", content)
                progress.update(number, figure.title)
        write_json(out / "diagnostics.json", diagnosis.to_json())
        write_aside(out / "index.html", page.render(diagnosis, drawn))  # last: with it, the diagnosis is whole
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)  # half a diagnosis would only be in the way of the next
        (out / "diagnostics.json").unlink(missing_ok=True)
        raise


def describe(diagnosis: Diagnosis) -> list[str]:
    """A line a run, for a terminal."""
    lines = [f"{diagnosis.episodes:,} greedy episodes a seed; 90 % intervals, AUROC of epistemic uncertainty"]
    wide = max(len(run.label) for run in diagnosis.runs)
    for run in diagnosis.runs:
        parts = [f"{name} {_percent(run, key)}" for name, key in TOLD.items()]
        doubt = run.aurocs.get("strong_noise")
        parts.append(f"AUROC of strong noise {'–' if doubt is None else f'{doubt.value:.2f}'}")
        lines.append(f"  {run.label:<{wide}}  {', '.join(parts)}")
    return lines


def _percent(run: RunDiagnosis, key: str) -> str:
    value = run.measures.get(key)
    return "–" if value is None else f"{100 * value.value:.1f} %"
