"""The tables of a report: one description, written as CSV for programs and shown on the page for people."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ceqr.experiments import references
from ceqr.experiments.records import grid
from ceqr.experiments.report.figures import QUANTITIES, game
from ceqr.experiments.report.panels import LinePanel
from ceqr.experiments.report.results import AGGREGATES, Results, Suite
from ceqr.experiments.report.svg import compact, interval_text, short, table_points
from ceqr.experiments.stats import Interval

Cell = str | int | float | Interval | None


@dataclass(frozen=True)
class Table:
    """Rows under named columns; an `Interval` is one cell on the page and three in the CSV file."""

    name: str
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    def shown(self) -> list[list[tuple[str, bool]]]:
        """The cells for people, each with whether it is a number."""
        return [[(show(cell), not isinstance(cell, str)) for cell in row] for row in self.rows]

    def csv(self) -> bytes:
        wide = [any(isinstance(row[i], Interval) for row in self.rows) for i in range(len(self.columns))]
        header: list[str] = []
        for name, is_wide in zip(self.columns, wide, strict=True):
            header += [name, f"{name}: 95 % low", f"{name}: 95 % high"] if is_wide else [name]
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(header)
        for row in self.rows:
            cells: list[Any] = []
            for cell, is_wide in zip(row, wide, strict=True):
                if isinstance(cell, Interval):
                    cells += map(_plain, cell)
                else:
                    cells += [_plain(cell), "", ""] if is_wide else [_plain(cell)]
            writer.writerow(cells)
        return text.getvalue().encode()


def show(cell: Cell) -> str:
    if cell is None:
        return "–"
    if isinstance(cell, str):
        return cell
    if isinstance(cell, Interval):
        return interval_text(*map(float, cell))
    return f"{cell:,}" if isinstance(cell, int) else short(cell)


def _plain(cell: Any) -> Any:
    """A cell for programs: no number is an empty cell."""
    if cell is None or (isinstance(cell, float | np.floating | np.ndarray) and not np.isfinite(cell)):
        return ""
    return cell if isinstance(cell, str | int) else f"{float(cell):.8g}"


def scores(results: Results) -> Table:
    """Final and best scores, ours and the published ones, each with its protocol and its network."""
    rows: list[Sequence[Cell]] = []
    for env in sorted({env for suite in results.suites for env in suite.envs}):
        longest = 0
        for suite in results.suites:
            for group in suite.of(env):
                longest = max(longest, suite.setting.frames)
                parameters = f", {group.parameters:,} parameters" if group.parameters else ""
                rows.append((
                    game(env), group.label, suite.setting.describe_rules(), suite.setting.frames,
                    f"{group.hidden}{parameters}", group.seeds, group.final, group.best_mean, group.best, "these runs",
                ))  # fmt: skip
        rows += _published_rows(env, longest)
    columns = (
        "game", "algorithm", "protocol", "frames", "network", "seeds", "final score", "best mean of 100 episodes",
        "best episode", "source",
    )  # fmt: skip
    caption = (
        "Final score: mean return of the last 100 training episodes. Best mean: the highest mean of 100 episodes in a "
        "row. Both are means over seeds with 95 % intervals (Student's t). Best episode: the highest return of all "
        "seeds. Published rows have other protocols or networks, and the paper's are best episodes: beside ours, not "
        "comparable one to one."
    )
    return Table("scores", caption, columns, rows)


def _published_rows(env: str, frames: int) -> list[Sequence[Cell]]:
    """What was published of a game, at the last published frame that the longest run of ours has reached."""
    rows: list[Sequence[Cell]] = []
    for score in references.paper_scores():
        if env == f"minatar/{score.game}":
            rows.append((
                game(env), score.agent, "authors' code: no sticky actions, one environment seed replayed",
                references.PAPER_FRAMES, references.PAPER_HIDDEN[score.agent], references.PAPER_SEEDS, None, None,
                score.best, f"{references.PAPER}, Figure 3",
            ))  # fmt: skip
    for curve in references.published():
        point = curve.at(frames)
        if env == f"minatar/{curve.game}" and point:
            rows.append((
                game(env), curve.agent, references.PUBLISHED_PROTOCOL, point[0], references.PUBLISHED_HIDDEN, 1,
                point[1], None, None, references.PUBLISHED_BY,
            ))  # fmt: skip
    return rows


def targets(suite: Suite) -> Table:
    """Frames and seconds to a score."""
    rows = [
        (
            game(group.env), group.label, target.what, float(target.score), f"{target.reached} of {target.seeds}",
            float(target.frames), float(target.seconds),
        )
        for group in suite.groups
        for target in group.targets
    ]  # fmt: skip
    columns = ("game", "algorithm", "score to reach", "return", "seeds that reached it", "frames", "seconds")
    caption = (
        "The first time that the mean of 100 episodes reached a score: median over seeds, a dash if half of them or "
        "more did not. Shares of the best final score count from random play where it is known. Seconds are of the "
        "whole run with all its seeds, starts and compilation included, on the machine that trained it."
    )
    return Table("time-to-score", caption, columns, rows)


def aggregates(suite: Suite) -> Table:
    rows = [
        (title, label, interval)
        for key, (title, _) in AGGREGATES.items()
        for label, interval in suite.aggregates[key].items()
    ]
    return Table("aggregates", "Normalised final scores.", ("statistic", "algorithm", "normalised score"), rows)


def improvement(suite: Suite) -> Table:
    rows = [(first, second, interval) for (first, second), interval in suite.improvement.items()]
    return Table("improvement", "Probability of improvement.", ("algorithm", "over", "probability"), rows)


def points(panel: LinePanel) -> Table:
    """Some points of a panel, for those who would rather read."""
    lines = [line for line in panel.lines if not line.single]
    rows: list[Sequence[Cell]] = []
    for i in table_points(panel):
        row: list[Cell] = [compact(float(f"{lines[0].x[i]:.4g}"))]
        for line in lines:
            bounded = line.low is not None and line.high is not None
            row.append(
                Interval(line.y[i], line.low[i], line.high[i])  # pyright: ignore[reportOptionalSubscript]
                if bounded
                else float(line.y[i])
            )
        rows.append(row)
    return Table("points", f"{panel.title}: {panel.y_label}", (panel.x_label, *(line.label for line in lines)), rows)


def curves(results: Results) -> Table:
    """All curves, point by point."""
    rows: list[Sequence[Cell]] = []
    for suite in results.suites:
        for group in suite.groups:
            for quantity in QUANTITIES:
                mean, low, high = group.curve(quantity.key)
                for i, frame in enumerate(grid(suite.setting.frames)):
                    if np.isfinite(mean[i]):
                        rows.append((
                            group.env, suite.setting.describe(), group.label, group.seeds, quantity.key, float(frame),
                            Interval(mean[i], low[i], high[i]),
                        ))  # fmt: skip
    return Table("curves", "", ("env", "setting", "algorithm", "seeds", "quantity", "frame", "mean"), rows)


def profiles(results: Results) -> Table:
    rows = [
        (suite.setting.describe(), label, float(threshold), Interval(*(each[i] for each in interval)))
        for suite in results.suites
        for label, interval in suite.profiles.items()
        for i, threshold in enumerate(suite.thresholds)
    ]
    return Table("profiles", "", ("setting", "algorithm", "normalised score", "share of seeds above"), rows)


def seeds(results: Results) -> Table:
    """Every seed by itself, for statistics of one's own."""
    rows = [
        (
            str(entry.run.path), group.env, suite.setting.describe(), group.label, entry.seed.seed, entry.seed.episodes,
            entry.seed.final, None if group.scale is None else float(normalised), entry.seed.best_mean, entry.seed.best,
        )
        for suite in results.suites
        for group in suite.groups
        for entry, normalised in zip(
            group.entries, group.finals if group.scale is None else group.normalised, strict=True
        )
    ]  # fmt: skip
    columns = (
        "run", "env", "setting", "algorithm", "seed", "episodes", "final score", "normalised final score",
        "best mean of 100 episodes", "best episode",
    )  # fmt: skip
    return Table("seeds", "", columns, rows)


def runs(results: Results, only_problems: bool = False) -> Table:
    """Every run that was found, those in no figure first; or those alone."""
    rows = []
    records = [record for record in results.records if record.problem or not only_problems]
    for record in sorted(records, key=lambda r: (not r.damaged, not r.problem, str(r.path))):
        config = record.config
        what = (config.agent, config.env, config.seeds, config.frames) if config else ("–", "–", None, None)
        rows.append((str(record.path), record.state, *what, record.reached, record.problem))
    columns = ("run", "state", "agent", "env", "seeds", "frames asked for", "frames trained", "why it is in no figure")
    caption = "Runs that are in no figure." if only_problems else "Every run that was found."
    return Table("runs", caption, columns, rows)


def combined(name: str, results: Results, make: Any) -> Table | None:
    """One CSV table of a kind for all settings, each row with its setting."""
    made = [(suite.setting.describe(), make(suite)) for suite in results.suites if make is targets or suite.aggregates]
    if not made:
        return None
    rows = [(setting, *row) for setting, table in made for row in table.rows]
    return Table(name, "", ("setting", *made[0][1].columns), rows)
