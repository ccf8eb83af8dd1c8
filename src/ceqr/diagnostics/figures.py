"""What the figures of a diagnosis show: a line or a row for each run, a panel for each environment or measure."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from ceqr.calibrate import COVERAGE
from ceqr.diagnostics import ood
from ceqr.diagnostics.exploration import PAPER_NONGREEDY
from ceqr.diagnostics.measures import LEVELS, TENTHS
from ceqr.diagnostics.results import COVERAGES, MEASURES, PAIR_TITLES, Diagnosis, RunDiagnosis
from ceqr.experiments.report.panels import Estimate, EstimatePanel, Figure, Line, LinePanel, Panel
from ceqr.experiments.report.style import COLOURS
from ceqr.experiments.stats import Interval

GRID = 200  # points of a curve over training
INK = len(COLOURS) - 1  # the style of lines that are no run's

Numbered = Sequence[tuple[int, RunDiagnosis]]  # runs with their styles
Draw = Callable[[Numbered], list[Line]]


def figures(diagnosis: Diagnosis) -> dict[str, Figure]:
    """By name; those without anything to show are left out."""
    made = {
        "coverage": (
            "What the 90 % intervals hold",
            "Shares inside; the goal, 0.9, is dotted. TD targets are what the network is trained on, returns what came "
            "of it; below, which interval is which.",
            _estimates(diagnosis, {k: MEASURES[k].title for k in COVERAGES}, "share inside", COVERAGE),
        ),
        "reliability": (
            "Reliability of the quantiles",
            "Share of the returns of greedy play below the quantile of each level; on the diagonal it is calibrated. "
            "Returns that are known, each episode alike; bands are 95 % intervals over episodes.",
            _reliability(diagnosis, "miscalibration", "returns below it (%)"),
        ),
        "exact-reliability": (
            "Reliability against exact returns",
            "The same with the exact distribution of returns under the agent's own greedy policy, by dynamic "
            "programming, in the cells that it plays through.",
            _reliability(diagnosis, "exact_miscalibration", "exact returns below it (%)"),
        ),
        "time": (
            "Coverage of returns through an episode",
            "Share of returns inside the quantiles' 90 % interval by how much of the episode is over, at the newest "
            "checkpoint.",
            _by_env(diagnosis, _tenths, "part of the episode that is over (%)", "returns inside (%)", goal=True),
        ),
        "training": (
            "Coverage of TD targets over training",
            "Share of TD targets inside the evidential interval in learning batches (metrics.csv). Thin lines are "
            "single seeds. Returns over training cannot be judged: a run keeps its newest checkpoint alone.",
            _by_env(diagnosis, _curves("coverage"), "frames", "TD targets inside (%)", goal=True),
        ),
        "exploration": (
            "Non-greedy actions over training",
            "Running mean over 100 episodes (episodes.csv). Thin lines are single seeds, and the bounds of what the "
            "paper states of its agents, 5 to 30 %.",
            _by_env(diagnosis, _nongreedy, "frames", "non-greedy actions (%)"),
        ),
        "strange": (
            "Does doubt know what is strange?",
            "AUROC of epistemic uncertainty: how probable it is that of a strange state and a played one, the strange "
            "one has the larger doubt. 1 is perfect, 0.5 (dotted) chance; below it, the agent is surer of the strange.",
            _estimates(diagnosis, dict(ood.KINDS), "AUROC", 0.5),
        ),
        "disentangled": (
            "Are the two uncertainties two?",
            "Rank correlations (Spearman) over the state-actions of a maze that were visited. The first two should be "
            "high, the cross terms after them near zero (dotted); the last is of the two truths with each other.",
            _correlations(diagnosis),
        ),
    }
    return {name: Figure(name, title, text, panels) for name, (title, text, panels) in made.items() if panels}


def name_of(run: RunDiagnosis, diagnosis: Diagnosis) -> str:
    """A run's label, with its environment where there are several."""
    return run.label if len(diagnosis.envs) == 1 else f"{run.label} · {run.env}"


def _panel(
    diagnosis: Diagnosis, title: str, x_label: str, values: Iterable[Interval | None], mark: float
) -> list[Panel]:
    rows = [
        Estimate(name_of(run, diagnosis), i, value)
        for i, (run, value) in enumerate(zip(diagnosis.runs, values, strict=True))
        if value is not None and np.isfinite(value.value)
    ]
    return [EstimatePanel(title, x_label, rows, mark)] if rows else []


def _estimates(diagnosis: Diagnosis, titles: dict[str, str], x_label: str, mark: float) -> list[Panel]:
    panels = []
    for name, title in titles.items():
        found = [(run.aurocs if name in ood.KINDS else run.measures).get(name) for run in diagnosis.runs]
        panels += _panel(diagnosis, title, x_label, found, mark)
    return panels


def _correlations(diagnosis: Diagnosis) -> list[Panel]:
    panels = []
    for name, title in PAIR_TITLES.items():
        found = [run.related.spearman[name] if run.related else None for run in diagnosis.runs]
        panels += _panel(diagnosis, title, "rank correlation", found, 0.0)
    return panels


def _by_env(diagnosis: Diagnosis, lines_of: Draw, x_label: str, y_label: str, goal: bool = False) -> list[Panel]:
    panels: list[Panel] = []
    for env in diagnosis.envs:
        here = [(i, run) for i, run in enumerate(diagnosis.runs) if run.env == env]
        lines = lines_of(here)
        if lines:
            panels.append(LinePanel(env, x_label, y_label, lines, 100 * COVERAGE if goal else None, (0.0, 100.0)))
    return panels


def _reliability(diagnosis: Diagnosis, name: str, y_label: str) -> list[Panel]:
    inner = slice(1, -1)  # nothing lies below the first level, and everything below the last

    def lines(here: Numbered) -> list[Line]:
        x = 100 * LEVELS[inner]
        curves = [(i, run.label, run.reliability(name)) for i, run in here]
        drawn = [
            Line(label, i, x, 100 * curve.value[inner], *_bounds(curve, inner))
            for i, label, curve in curves
            if curve is not None
        ]
        return [Line("calibrated", INK, x, x), *drawn] if drawn else []

    return _by_env(diagnosis, lines, "level of the quantile (%)", y_label)


def _bounds(curve: Interval, part: slice) -> tuple[np.ndarray | None, np.ndarray | None]:
    if not np.isfinite(curve.low).all():
        return None, None
    return 100 * curve.low[part], 100 * curve.high[part]


def _tenths(here: Numbered) -> list[Line]:
    x = 100 * (np.arange(TENTHS) + 0.5) / TENTHS
    return [Line(run.label, i, x, 100 * run.tenths, marked=True) for i, run in here if run.tenths is not None]


def _curves(name: str) -> Draw:
    def lines(here: Numbered) -> list[Line]:
        frames = max((run.frame for _, run in here), default=0)
        grid = np.linspace(frames / GRID, frames, GRID)
        drawn = []
        for i, run in here:
            seeds = [each.curves[name] for each in run.exploration if name in each.curves]
            curves = [100 * np.interp(grid, x, y, left=np.nan, right=np.nan) for x, y in seeds]
            if curves and len(curves) == len(run.exploration):
                drawn += [Line(run.label, i, grid, curve, single=True) for curve in curves if len(curves) > 1]
                drawn.append(Line(run.label, i, grid, np.mean(curves, axis=0)))
        return drawn

    return lines


def _nongreedy(here: Numbered) -> list[Line]:
    drawn = _curves("nongreedy")(here)
    if not drawn:
        return []
    grid = drawn[0].x
    paper = [
        Line("the paper's 5 to 30 %", INK, grid, np.full(GRID, 100 * each), single=True) for each in PAPER_NONGREEDY
    ]
    return [*drawn, *paper]
