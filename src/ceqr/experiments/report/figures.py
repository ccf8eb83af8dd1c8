"""What the figures of a report show; how they are drawn is told by `panels`, `svg` and `picture`."""

import re
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from ceqr.experiments import references
from ceqr.experiments.comparison import Setting
from ceqr.experiments.records import grid
from ceqr.experiments.report.panels import Estimate, EstimatePanel, Figure, Line, LinePanel
from ceqr.experiments.report.results import AGGREGATES, BAND_SEEDS, Group, Results, Suite

GOAL = 90  # percent of TD targets that CEQR-DQN's interval should contain


@dataclass(frozen=True)
class Quantity:
    """A curve that is drawn for each game."""

    key: str
    title: str
    y_label: str
    caption: str
    scale: float = 1.0
    least: float = -np.inf  # what no value can be below or above; bands end there
    most: float = np.inf
    goal: float | None = None


SEEDS = (
    "Lines are means over seeds, bands 95 % intervals of the mean (Student's t); with fewer than "
    f"{BAND_SEEDS} seeds, thin lines are single seeds."
)
QUANTITIES = (
    Quantity(
        "score",
        "Learning curves",
        "return (second-order running mean)",
        "Training scores in the form of the paper's Figure 3: the running mean over 100 episodes, and of that again. "
        + SEEDS,
    ),
    Quantity(
        "nongreedy",
        "Exploration",
        "non-greedy actions (%)",
        f"Share of actions that were not the greedy one, running mean over 100 episodes. {SEEDS}",
        scale=100,
        least=0,
        most=100,
    ),
    Quantity(
        "coverage",
        "Coverage",
        "TD targets inside the interval (%)",
        "Share of TD targets inside the agent's 90 % evidential interval, in learning batches; the goal is dotted. "
        + SEEDS,
        scale=100,
        least=0,
        most=100,
        goal=GOAL,
    ),
    Quantity(
        "epistemic",
        "Epistemic uncertainty",
        "epistemic uncertainty (returns)",
        f"The agent's own doubt about the action it chose; agents estimate it in different ways. {SEEDS}",
        least=0,
    ),
    Quantity(
        "aleatoric",
        "Aleatoric uncertainty",
        "aleatoric uncertainty (returns)",
        "The world's noise as the agent sees it, for the action it chose; agents estimate it in different ways. "
        + SEEDS,
        least=0,
    ),
)


def suite_figures(suite: Suite, results: Results) -> dict[str, Figure]:
    """The figures of one setting by what they show; those without anything to show are left out."""
    styles = {label: i for i, label in enumerate(results.labels)}
    name = slug(suite.setting)
    figures = {}
    for quantity in QUANTITIES:
        panels = [
            panel
            for env in suite.envs
            if (panel := _curve_panel(suite, env, quantity, styles, _span(results, suite, env, quantity, styles)))
        ]
        if panels:
            key = "curves" if quantity.key == "score" else quantity.key
            figures[key] = Figure(f"{name}-{key}", quantity.title, quantity.caption, panels)
    if suite.aggregates:
        figures |= _aggregate_figures(suite, name, styles)
    return figures


def slug(setting: Setting) -> str:
    """A setting as part of a file's name."""
    parts = [setting.family, setting.protocol, *setting.env_kwargs, f"{setting.frames}-frames"]
    parts += [f"limit-{setting.max_episode_frames}"] * bool(setting.max_episode_frames)
    parts.append("all-sizes" if setting.hidden is None else "x".join(map(str, setting.hidden)) or "no-hidden")
    name = "-".join(part for part in parts if part)
    plain = re.sub(r"[^\w.=-]+", "-", name)
    return plain if plain == name else f"{plain}-{zlib.crc32(name.encode()):08x}"  # no two settings share a file


def _span(
    results: Results, suite: Suite, env: str, quantity: Quantity, styles: dict[str, int]
) -> tuple[float, float] | None:
    """One vertical axis for an environment's scores in all settings of as many frames, so that the eye can compare."""
    if quantity.key != "score":
        return None
    alike = [other for other in results.suites if other.setting.frames == suite.setting.frames]
    panels = [_curve_panel(other, env, quantity, styles, None) for other in alike]
    extents = [panel.extent() for panel in panels if panel is not None]
    return (min(low for low, _ in extents), max(high for _, high in extents)) if extents else None


def _curve_panel(
    suite: Suite, env: str, quantity: Quantity, styles: dict[str, int], span: tuple[float, float] | None
) -> LinePanel | None:
    lines = [line for group in suite.of(env) for line in _curves(group, quantity, styles[group.label])]
    if not lines:
        return None
    return LinePanel(game(env), "frames", quantity.y_label, lines, quantity.goal, span)


def _curves(group: Group, quantity: Quantity, style: int) -> list[Line]:
    x = grid(group.setting.frames)
    mean, low, high = (quantity.scale * each for each in group.curve(quantity.key))
    low, high = np.maximum(low, quantity.least), np.minimum(high, quantity.most)
    singles = [quantity.scale * entry.seed.curves[quantity.key] for entry in group.entries]
    if not any(np.isfinite(single).any() for single in singles):
        return []
    seeds = f"{group.label}, {group.seeds} seed{'s' if group.seeds > 1 else ''}"
    if group.seeds >= BAND_SEEDS:
        return [Line(seeds, style, x, mean, low, high)]
    thin = [Line(seeds, style, x, single, single=True) for single in singles] if group.seeds > 1 else []
    return [*thin, Line(seeds, style, x, mean)]


def _aggregate_figures(suite: Suite, name: str, styles: dict[str, int]) -> dict[str, Figure]:
    games = ", ".join(game(env) for env in suite.games)
    scale = "random play is 0, the reference is 1"
    aggregates = [
        EstimatePanel(title, f"normalised score ({scale})", _rows(suite.aggregates[key], styles))
        for key, (title, _) in AGGREGATES.items()
    ]
    figures = {
        "aggregates": Figure(
            f"{name}-aggregates",
            "Aggregates over games",
            f"Final scores (mean of each seed's last 100 episodes), normalised: {scale}. Over {games}. Intervals are "
            "95 %, from a bootstrap over seeds that is stratified by game (Agarwal et al. 2021).",
            aggregates,
        ),
        "profiles": Figure(
            f"{name}-profiles",
            "Performance profiles",
            f"Share of seeds whose normalised final score is above a threshold, averaged over {games}; a curve that is "
            "higher everywhere is better. Bands are stratified bootstrap 95 % intervals.",
            [
                LinePanel(
                    "all games" if len(suite.games) > 1 else games,
                    "threshold of the normalised score",
                    "seeds above it (%)",
                    [
                        Line(label, styles[label], suite.thresholds, *(_maybe(100 * each) for each in interval))  # pyright: ignore
                        for label, interval in suite.profiles.items()
                    ],
                    span=(0.0, 100.0),
                )
            ],
        ),
    }
    if suite.improvement:
        rows = [Estimate(f"{x} over {y}", styles[x], interval) for (x, y), interval in suite.improvement.items()]
        figures["improvement"] = Figure(
            f"{name}-improvement",
            "Probability of improvement",
            "How probable it is that a seed of the first algorithm scores higher than one of the second, averaged over "
            f"{games}; an interval that holds 50 % (dotted) tells no difference. Stratified bootstrap 95 % intervals.",
            [EstimatePanel("first over second", "probability", rows, mark=0.5)],
        )
    return figures


def _maybe(values: Any) -> Any:
    """Bounds that are not there are no bounds."""
    return values if np.isfinite(values).any() else None


def _rows(intervals: Any, styles: dict[str, int]) -> list[Estimate]:
    return [Estimate(label, styles[label], interval) for label, interval in intervals.items()]


def published_figure(results: Results) -> Figure | None:
    """The curves of UA-DQN's authors for the games at hand, in panels of their own: their protocol was another."""
    games = sorted({env for suite in results.suites for env in suite.envs})
    panels, agents = [], list(dict.fromkeys(curve.agent for curve in references.published()))
    for env in games:
        lines = [
            Line(
                curve.agent,
                agents.index(curve.agent),
                np.array(curve.frames, float),
                np.array(curve.scores),
                marked=True,
            )
            for curve in references.published()
            if f"minatar/{curve.game}" == env
        ]
        if lines:
            panels.append(LinePanel(game(env), "frames", "return (mean of 100 episodes)", lines))
    caption = (
        f"Learning curves that {references.PUBLISHED_BY} published with UA-DQN: one seed, "
        f"{references.PUBLISHED_PROTOCOL}, mean of the last 100 episodes. The protocol is not that of the paper, so "
        "they are in panels of their own; colours here are theirs alone."
    )
    return Figure("published-curves", "Published curves", caption, panels) if panels else None


def game(env: str) -> str:
    """An environment's name without its family where that is MinAtar."""
    family, _, rest = env.partition("/")
    return rest.replace("_", " ") if family == "minatar" else env
