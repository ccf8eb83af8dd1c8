"""`ceqr regress` without a table: the paper's Figure 2, as printed and as we recommend, side by side."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np

from ceqr.files import write_aside, write_json
from ceqr.provenance import provenance
from ceqr.regression.estimator import EvidentialQuantileRegressor
from ceqr.regression.synthetic import (
    DRAWN_ROWS,
    PRINTED,
    TESTED,
    TRAINED,
    Metrics,
    fit,
    mean,
    noise,
    overall,
    test_rows,
)

LOWER, UPPER, TRUTH, DOUBT, OUTSIDE = "#1f4e9c", "#b3282d", "#222222", "#7d3c98", "#e9e9ec"


def repeat_figure(
    options: dict[str, Any], seeds: range, out: Path, say: Callable[[str], None], verbose: bool
) -> dict[str, Any]:
    """Fits both versions with every seed, draws the first, and writes figure.png and summary.json to `out`."""
    versions = {"ours": options, "printed": {**options, **PRINTED}}
    first: dict[str, EvidentialQuantileRegressor] = {}
    summary: dict[str, Any] = {"options": {**options, "hidden": list(options["hidden"])}, "printed_options": PRINTED}
    for name, chosen in versions.items():
        rows = []
        for seed in seeds:
            model = EvidentialQuantileRegressor(**chosen, verbose=verbose)
            rows.append(fit(model, seed))
            first.setdefault(name, model)
            say(_line(name, rows[-1]))
        summary[name] = {"seeds": rows, "overall": overall(rows)}
    summary = {**provenance(), **summary}
    _draw(first, {name: summary[name]["seeds"][0] for name in versions}, out / "figure.png", seeds[0])
    write_json(out / "summary.json", summary)
    return summary


def header() -> str:
    return (
        f"{'version':<8} {'seed':>4} {'in range':>9} {'overall':>8} {'width':>6} {'epistemic out/in':>17} "
        f"{'aleatoric corr.':>16} {'seconds':>8}"
    )


def _line(name: str, row: Metrics) -> str:
    return (
        f"{name:<8} {row['seed']:>4} {100 * row['coverage_in_range']:>7.1f} % {100 * row['coverage_overall']:>6.1f} % "
        f"{row['mean_width_in_range']:>6.2f} {row['epistemic_ratio']:>17.2f} {row['aleatoric_correlation']:>16.3f} "
        f"{row['fit_seconds']:>8.1f}"
    )


def _draw(models: dict[str, EvidentialQuantileRegressor], measured: dict[str, Metrics], path: Path, seed: int) -> None:
    figure, axes = plt.subplots(
        3, 2, figsize=(13, 10), sharex=True, sharey="row", layout="constrained", height_ratios=(3, 1, 1)
    )
    titles = {
        "ours": "ours: calibrated location, conjugate evidence",
        "printed": "as printed: joint location, learned evidence",
    }
    grid = np.linspace(-TESTED, TESTED, 1201)
    for column, (name, model) in enumerate(models.items()):
        top, doubt, world = axes[:, column]
        top.set_title(titles.get(name, name), fontsize=12)
        _draw_intervals(top, model, measured[name], grid, seed)
        aleatoric, epistemic = model.predict_uncertainty(grid[:, None])
        doubt.plot(grid, epistemic, color=DOUBT, linewidth=1.8)
        doubt.set_yscale("log")
        ratio = measured[name]["epistemic_ratio"]
        doubt.text(0, 0.88, f"mean outside / inside: {ratio:.2g}", transform=doubt.get_xaxis_transform(), ha="center")
        within = np.abs(grid) <= TRAINED
        width = float(model.coverage)
        world.plot(grid, aleatoric, color="#2e7d4f", linewidth=1.8, label="predicted")
        world.plot(grid, _true_width(grid, width), color=TRUTH, linewidth=1, linestyle="--", label="true noise")
        world.set_ylim(0, 1.6 * float(np.max(_true_width(grid[within], width))))
        correlation = measured[name]["aleatoric_correlation"]
        world.text(
            0, 0.08, f"correlation in range: {correlation:.3f}", transform=world.get_xaxis_transform(), ha="center"
        )
        world.set_xlabel("x")
        world.legend(loc="upper right", frameon=False, fontsize=9)
        for axis in axes[:, column]:
            for left, right in ((-TESTED, -TRAINED), (TRAINED, TESTED)):
                axis.axvspan(left, right, color=OUTSIDE, zorder=0, linewidth=0)
            axis.spines[["top", "right"]].set_visible(False)
            axis.set_xlim(-TESTED, TESTED)
    axes[1, 0].set_ylim(top=4 * axes[1, 0].get_ylim()[1])  # room for the text
    axes[0, 0].set_ylabel("y")
    axes[1, 0].set_ylabel("epistemic\nuncertainty")
    axes[2, 0].set_ylabel(f"aleatoric uncertainty\n({_percent(models['ours'].coverage)} % width)")
    for side in (-1, 1):
        axes[0, 0].text(
            side * (TRAINED + TESTED) / 2, 0.02, "no training data", transform=axes[0, 0].get_xaxis_transform(),
            ha="center", color="grey", fontsize=9,
        )  # fmt: skip
    figure.suptitle(f"The paper's synthetic example, {DRAWN_ROWS:,} unseen points (seed {seed})", fontsize=13)
    picture = io.BytesIO()
    figure.savefig(picture, dpi=120, format="png")
    plt.close(figure)
    write_aside(path, picture.getvalue())


def _draw_intervals(
    axis: Any, model: EvidentialQuantileRegressor, measured: Metrics, grid: np.ndarray, seed: int
) -> None:
    x, y = (each[:DRAWN_ROWS] for each in test_rows(seed))
    axis.scatter(x[:, 0], y, s=7, color="grey", alpha=0.55, linewidths=0, label="unseen points")
    axis.plot(grid, mean(grid), color=TRUTH, linewidth=1, linestyle="--", label="true mean")
    _, epistemic = model.predict_uncertainty(grid[:, None])
    low = (1 - model.coverage) / 2
    bounds = model.predict_interval(grid[:, None])
    for bound, colour, level in zip(bounds, (LOWER, UPPER), (low, 1 - low), strict=True):
        axis.fill_between(
            grid, bound - epistemic / 2, bound + epistemic / 2, color=colour, alpha=0.22, linewidth=0,
            label=f"epistemic band of the {_percent(level)} % curve",
        )  # fmt: skip
        axis.plot(grid, bound, color=colour, linewidth=1.8, label=f"{_percent(level)} % curve")
    in_range, everywhere = (100 * measured[f"coverage_{where}"] for where in ("in_range", "overall"))
    covered = f"coverage {in_range:.1f} % in range, {everywhere:.1f} % overall"
    axis.legend(loc="upper center", frameon=True, framealpha=0.9, edgecolor="none", fontsize=9, title=covered)
    axis.set_ylim(-6, 42)


def _percent(level: float) -> str:
    return f"{100 * level:.4g}"


def _true_width(x: np.ndarray, coverage: float) -> np.ndarray:
    from scipy.stats import norm

    return 2 * norm.ppf((1 + coverage) / 2) * noise(x)
