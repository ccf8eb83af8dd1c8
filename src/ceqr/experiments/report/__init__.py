"""`ceqr report`: many runs in; figures, tables and one page out.

results    numbers: scores, aggregates, notes          (from ceqr.experiments.tables, comparison and stats)
figures    what is drawn, as panels                    svg: for the page, picture: for papers (PNG, SVG)
rows       what is tabulated                           CSV and page
page       the page itself, with page.html, page.css and page.js; parts.html is what `ceqr diagnose` uses, too
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ceqr.errors import UserError
from ceqr.experiments import kept
from ceqr.experiments.comparison import compare
from ceqr.experiments.records import RunRecord, common_reach
from ceqr.experiments.references import Scale
from ceqr.experiments.stats import RESAMPLES
from ceqr.experiments.tables import find_runs, read_run
from ceqr.files import write_aside
from ceqr.progress import Progress

LEAST_RESAMPLES = 100  # below, a 95 % interval is two or three draws


@dataclass(frozen=True)
class Report:
    """What was written, and what its reader should know."""

    page: Path
    runs: int
    used: int
    notes: Sequence[str]


def read(paths: Sequence[Path], frames: int | None = None, quiet: bool = False) -> list[RunRecord]:
    """All runs below the paths; `UserError` if none of them can be reported."""
    if frames is not None and frames < 1:
        raise UserError(f"--frames must be at least 1, not {frames:,}.")
    found = find_runs(paths)
    records = []
    with Progress("reading", len(found), unit="runs", quiet=quiet) as progress:
        for path in found:
            records.append(read_run(path, frames))
            progress.update(len(records), str(path))
    if all(record.problem for record in records):
        raise UserError(_nothing(records))
    return records


def keep(records: Sequence[RunRecord]) -> None:
    """Writes into each finished run's directory what a report needs of it."""
    for record in records:
        if not record.problem and (record.path / "episodes.csv").exists():  # else nothing more is left of it than that
            try:
                kept.keep(record)
            except OSError as error:
                raise UserError(f"Cannot write to {record.path}: {error.strerror}.") from error


def _nothing(records: Sequence[RunRecord]) -> str:
    reach = common_reach(records)
    if reach:
        return (
            f"None of the {len(records):,} runs has got as far as is asked for; --frames {reach} would report what "
            "those with results have reached."
        )
    first = records[0]
    return f"None of the {len(records):,} runs can be reported. {first.path}: {first.problem}"


def write(
    records: Sequence[RunRecord],
    out: Path,
    scales: Mapping[str, Scale] | None = None,
    across_capacity: bool = False,
    resamples: int = RESAMPLES,
    quiet: bool = False,
) -> Report:
    """Writes a report of runs into a folder that is there and empty."""
    from ceqr.experiments.report import page, picture, rows
    from ceqr.experiments.report.figures import published_figure, slug, suite_figures
    from ceqr.experiments.report.panels import Figure
    from ceqr.experiments.report.results import compute

    results = compute(records, compare(records, across_capacity), scales or {}, resamples)
    figures = {slug(suite.setting): suite_figures(suite, results) for suite in results.suites}
    published = published_figure(results)
    drawn: list[Figure] = [figure for by_kind in figures.values() for figure in by_kind.values()]
    drawn += [published] if published else []
    made = [out / "figures", out / "tables"]
    for folder in made:
        folder.mkdir()
    try:
        with Progress("drawing", len(drawn), unit="figures", quiet=quiet) as progress:
            for number, figure in enumerate(drawn, 1):
                for ending, content in picture.draw(figure).items():
                    write_aside(out / "figures" / f"{figure.name}.{ending}", content)
                progress.update(number, figure.title)
        makers: list[Callable[..., rows.Table]] = [rows.scores, rows.seeds, rows.curves, rows.runs]
        tables: list[rows.Table | None] = [make(results) for make in makers]
        tables += [rows.combined("time-to-score", results, rows.targets)]
        if any(suite.aggregates for suite in results.suites):
            tables += [rows.profiles(results)]
            tables += [rows.combined(make.__name__, results, make) for make in (rows.aggregates, rows.improvement)]
        for table in tables:
            if table is not None and table.rows:
                write_aside(out / "tables" / f"{table.name}.csv", table.csv())
        write_aside(out / "index.html", page.render(results, figures, published))  # last: with it, the report is whole
    except BaseException:
        for folder in made:
            shutil.rmtree(folder, ignore_errors=True)  # half a report would only be in the way of the next
        raise
    used = sum(not record.problem for record in records)
    return Report(out / "index.html", len(records), used, results.notes)
