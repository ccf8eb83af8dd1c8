"""The tables of a diagnosis: a row a run; a dash where an agent has no such number, with the reason below."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ceqr.diagnostics import ood
from ceqr.diagnostics.exploration import PAPER_DIFFERENCE
from ceqr.diagnostics.results import MEASURES, PAIR_TITLES, Diagnosis, RunDiagnosis
from ceqr.experiments.report.rows import Cell, Table
from ceqr.experiments.stats import Interval

MAIN = ("td_evidential", "td_quantiles", "returns", "miscalibration", "bias")
MAIN_KINDS = ("other_game", "shuffled", "weak_noise", "strong_noise", "never_visited")
MAIN_MAZE = ("aleatoric_spread", "epistemic_rarity", "aleatoric_rarity", "epistemic_spread")


@dataclass(frozen=True)
class Footed:
    """A table, and why some of its cells are dashes."""

    table: Table
    reasons: Sequence[str]


def _measure(run: RunDiagnosis, name: str) -> Cell:
    value = run.measures.get(name)
    if value is None:
        return None
    return Interval(*(100 * each for each in value)) if MEASURES[name].share else value


def _percent(run: RunDiagnosis, name: str) -> float:
    return 100 * run.mean_of(name)


def _who(run: RunDiagnosis, diagnosis: Diagnosis) -> list[Cell]:
    """The first cells of a row: the environment, too, where there are several."""
    return [run.label] if len(diagnosis.envs) == 1 else [run.label, run.env]


def _who_columns(diagnosis: Diagnosis) -> list[str]:
    return ["run"] if len(diagnosis.envs) == 1 else ["run", "environment"]


def _reasons(diagnosis: Diagnosis, names: Sequence[str]) -> list[str]:
    """One line for each reason that one of the measures is missing: for whom, and why."""
    missing: dict[str, list[str]] = {}
    for run in diagnosis.runs:
        for reason in filter(None, dict.fromkeys(map(run.reason, names))):
            missing.setdefault(reason, []).append(run.label)
    return [f"{', '.join(labels)}: {reason}." for reason, labels in missing.items()]


def main_table(diagnosis: Diagnosis) -> Footed:
    """All agents in one table, without intervals: those are in the tables below it."""
    names = [*MAIN, *(["exact"] if any("exact" in run.measures for run in diagnosis.runs) else [])]
    kinds = [kind for kind in MAIN_KINDS if any(kind in run.aurocs for run in diagnosis.runs)]
    pairs = [*MAIN_MAZE] if any(run.related for run in diagnosis.runs) else []
    rows: list[Sequence[Cell]] = []
    for run in diagnosis.runs:
        cells = [*_who(run, diagnosis), run.config.agent, run.frame, len(run.subjects), _value(run.total)]
        cells += [_value(_measure(run, name)) for name in names]
        cells += [_percent(run, "nongreedy"), *(_value(run.aurocs.get(kind)) for kind in kinds)]
        cells += [_value(run.related.spearman[pair] if run.related else None) for pair in pairs]
        rows.append(cells)
    columns = [*_who_columns(diagnosis), "agent", "frames", "seeds", "greedy return"]
    columns += [MEASURES[name].column for name in names]
    columns += ["non-greedy actions (%)", *(f"AUROC: {ood.KINDS[kind]}" for kind in kinds)]
    columns += [f"ρ: {PAIR_TITLES[pair]}" for pair in pairs]
    caption = (
        "Of TD targets and of returns, what 90 % intervals hold. A miscalibration area of 0 is best, 0.5 the worst; an "
        "AUROC of 0.5 is chance, 1 perfect. Intervals of confidence are in the tables below."
    )
    if pairs:
        caption += " ρ, Spearman's, should be high for the first two and near zero for the last two."
    reasons = _reasons(diagnosis, [*names, *kinds, *(["disentangled"] if pairs else [])])
    return Footed(Table("runs", caption, columns, rows), reasons)


def _value(cell: Cell) -> Cell:
    return float(cell.value) if isinstance(cell, Interval) else cell


def coverage_table(diagnosis: Diagnosis) -> Footed:
    names = [name for name in MEASURES if any(name in run.measures for run in diagnosis.runs)]
    rows: list[Sequence[Cell]] = []
    for run in diagnosis.runs:
        known, distinct = (sum(getattr(each, n) for each in run.subjects) for n in ("known", "distinct"))
        rows.append((*_who(run, diagnosis), *(_measure(run, name) for name in names), known, distinct))
    columns = [*_who_columns(diagnosis), *(MEASURES[name].column for name in names)]
    columns += ["episodes with a known return", "different episodes"]
    caption = (
        "Intervals of 90 % and quantiles against TD targets of fresh transitions and against discounted returns of "
        "greedy play; which interval is which is said at the end. The evidential interval is of TD targets; as one "
        "of returns it is read widely. Sharpness, width and differences are in returns; an agent that is sharp and "
        "not calibrated is merely sure of itself."
    )
    return Footed(Table("coverage", caption, columns, rows), _reasons(diagnosis, names))


def exploration_table(diagnosis: Diagnosis) -> Footed:
    rows: list[Sequence[Cell]] = []
    for run in diagnosis.runs:
        low, high = (_percent(run, f"nongreedy_{end}") for end in ("least", "most"))
        span = f"{low:.1f} to {high:.1f}" if low == low else "–"
        cells = [_percent(run, n) for n in ("in_paper_range", "difference", "within_paper")]
        both = (_percent(run, "nongreedy"), _percent(run, "nongreedy_last"))
        rows.append((*_who(run, diagnosis), *both, span, *cells))
    columns = (
        *_who_columns(diagnosis), "non-greedy actions (%)", "last 100 episodes (%)", "running mean, least to most (%)",
        "frames within the paper's 5 to 30 % (%)", "least uncertain against greedy actions, mean difference (%)",
        f"episodes within the paper's {100 * PAPER_DIFFERENCE:g} % (%)",
    )  # fmt: skip
    caption = (
        "What agents did while they learned (episodes.csv), means over seeds; running means are over 100 episodes. The "
        "paper: its agents take 5 to 30 % uncertain actions throughout training, and the least uncertain actions of an "
        "episode are as many as the greedy ones within 0.1 %. Differences are in percentage points of an episode's "
        "actions."
    )
    without = [run.label for run in diagnosis.runs if run.mean_of("difference") != run.mean_of("difference")]
    reasons = [f"{', '.join(without)}: no epistemic uncertainty, and so no least uncertain action."] if without else []
    return Footed(Table("exploration", caption, columns, rows), reasons)


def strange_table(diagnosis: Diagnosis) -> Footed:
    rows = [(*_who(run, diagnosis), *(run.aurocs.get(kind) for kind in ood.KINDS)) for run in diagnosis.runs]
    percent = ", ".join(f"{100 * each:g}" for each in ood.FLIPPED.values())
    deviations = ", ".join(f"{each:g}" for each in ood.DEVIATIONS.values())
    games = sorted({each.game for run in diagnosis.runs for each in run.subjects if each.game})
    other = f"Another game: {', '.join(games)}, played at random. " if games else ""
    caption = (
        f"AUROC of epistemic uncertainty (of the greedy action), strange states against played ones. {other}Shuffled: "
        f"the pixels of each state, or its components, in an order of its own. Noise: {percent} % of components "
        f"flipped where they are true or false, else normal noise of {deviations} times the deviation that each has. "
        "Never visited: in a maze, cells that replay does not hold; elsewhere played states that it does not hold, "
        "against played states that it does."
    )
    columns = (*_who_columns(diagnosis), *ood.KINDS.values())
    return Footed(Table("strange", caption, columns, rows), _reasons(diagnosis, [*ood.KINDS]))


def maze_table(diagnosis: Diagnosis) -> Footed | None:
    here = [run for run in diagnosis.runs if run.related]
    if not here:
        return None
    rows: list[Sequence[Cell]] = []
    for run in here:
        found = run.related
        assert found is not None
        points = sum(len(each.points.group) for each in run.subjects if each.points)
        of = {"Spearman": found.spearman, "Pearson": found.pearson, "Spearman, other truth out": found.given}
        for name, kind in of.items():
            rows.append((*_who(run, diagnosis), name, points, *(kind.get(pair) for pair in PAIR_TITLES)))
    caption = (
        "Correlations over state-actions that replay holds, with 95 % intervals from a bootstrap over cells. Spread: "
        "the exact standard deviation of the return under the agent's greedy policy. The first two should be high, the "
        "next two near zero. The truths may go together, too, as the last column says; 'other truth out' is what is "
        "left of a cross term once that is accounted for (partial rank correlation)."
    )
    columns = (*_who_columns(diagnosis), "of", "state-actions", *PAIR_TITLES.values())
    reasons = []
    for what, pair in (("aleatoric", "aleatoric_spread"), ("epistemic", "epistemic_rarity")):
        without = [run.label for run in here if run.related and np.isnan(run.related.pearson[pair].value)]
        if without:
            reasons.append(f"{', '.join(without)}: no {what} uncertainty, or one that does not vary.")
    return Footed(Table("disentangled", caption, columns, rows), reasons)
