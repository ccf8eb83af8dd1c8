"""`ceqr regress data.csv --target y`: a user's table in, predictions with intervals and uncertainties out."""

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.model_selection import KFold

from ceqr.errors import UserError
from ceqr.files import write_aside, write_json
from ceqr.provenance import provenance
from ceqr.regression.estimator import EvidentialQuantileRegressor

FOLDS = 5
FEWEST_ROWS = 20
COLUMNS = ("prediction", "lower", "upper", "aleatoric", "epistemic")
NOVELTY = "novelty"  # and this one where rows were held out for it


class Table(NamedTuple):
    """A file's columns by name, in its order: as numbers (but for ignored ones), and as they are written."""

    path: Path
    columns: dict[str, np.ndarray]
    cells: dict[str, Sequence[str]]

    def matrix(self, names: Sequence[str]) -> np.ndarray:
        missing = [name for name in names if name not in self.columns]
        if missing:
            raise UserError(f"{self.path} has no column {missing[0]!r}; it has {_listed(self.columns)}.")
        return np.column_stack([self.columns[name] for name in names])


def read(path: Path, ignored: Sequence[str] = (), only: Sequence[str] | None = None) -> Table:
    """Reads a CSV file with a header line, every cell of which (but for ignored columns) must be a number."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            lines = [row for row in csv.reader(file, strict=True) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"Cannot read {path} as a CSV file: {reason}.") from error
    if not lines:
        raise UserError(f"{path} is empty; it should be a CSV file with a header line.")
    names = [name.strip() for name in lines[0]]
    repeated = [name for name in names if names.count(name) > 1]
    if repeated:
        raise UserError(f"{path} has more than one column {repeated[0]!r}.")
    for name in ignored:
        if name not in names:
            raise UserError(f"{path} has no column {name!r} to ignore; it has {_listed(names)}.")
    for number, row in enumerate(lines[1:], 2):
        if len(row) != len(names):
            raise UserError(f"{path} has {len(names)} columns, but row {number} has {len(row)} cells.")
    wanted = [name for name in names if name not in ignored and (only is None or name in only)]
    cells: dict[str, Sequence[str]]
    cells = dict(zip(names, zip(*lines[1:], strict=True), strict=True)) if lines[1:] else dict.fromkeys(names, ())
    return Table(path, {name: _numbers(path, name, cells[name]) for name in wanted}, cells)


def _numbers(path: Path, name: str, cells: Sequence[str]) -> np.ndarray:
    values = np.empty(len(cells))
    for i, cell in enumerate(cells):
        where = f"column {name!r} of {path}, row {i + 2},"
        try:
            values[i] = float(cell)
        except ValueError as error:
            what = f"{cell!r} is not a number" if cell.strip() else "a number is missing"
            raise UserError(f"In {where} {what}; fill or remove it, or leave the column out with --ignore.") from error
        if not math.isfinite(values[i]):
            raise UserError(f"In {where} {cell.strip()} is not a finite number; fill or remove it.")
    return values


def predict_table(
    data: Table, target: str, new: Table | None, options: dict[str, Any], seed: int, out: Path, verbose: bool
) -> dict[str, Any]:
    """Fits the table and writes predictions.csv and summary.json to `out`.

    Predictions are of the rows of `new`, or else of the table's own rows: each by a model that has not seen it, so
    that they can be judged.
    """
    names = check_table(data, target)
    x, y = data.matrix(names), data.columns[target]
    columns = (*COLUMNS, NOVELTY) if options["conformal"] else COLUMNS
    make = {**options, "random_state": seed, "verbose": verbose}
    if new is None:
        predictions = np.empty((len(y), len(columns)))
        for fold, rest in _folds(len(y), seed):
            predictions[rest] = _predict(EvidentialQuantileRegressor(**make).fit(x[fold], y[fold]), x[rest])
        rows, truth = data.cells, y
    else:
        x_new = new.matrix(names)
        predictions = _predict(EvidentialQuantileRegressor(**make).fit(x, y), x_new)
        rows, truth = new.cells, new.columns.get(target)
    summary: dict[str, Any] = {
        **provenance(),
        "table": str(data.path),
        "predicted": str(new.path) if new else f"the same rows, {FOLDS}-fold out of sample",
        "target": target,
        "features": list(names),
        "rows": len(y),
        "predictions": len(predictions),
        "options": {**options, "hidden": list(options["hidden"]), "seed": seed},
        "mean_width": float(np.mean(predictions[:, 2] - predictions[:, 1])),
        "mean_aleatoric": float(np.mean(predictions[:, 3])),
        "mean_epistemic": float(np.mean(predictions[:, 4])),
        "coverage": None,
        "rmse": None,
    }
    if truth is not None:
        summary["coverage"] = float(np.mean((predictions[:, 1] <= truth) & (truth <= predictions[:, 2])))
        summary["rmse"] = float(np.sqrt(np.mean((predictions[:, 0] - truth) ** 2)))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*rows, *(f"ceqr_{name}" if name in rows else name for name in columns)])
    numbers = ([f"{value:.10g}" for value in column] for column in predictions.T)
    writer.writerows(zip(*rows.values(), *numbers, strict=True))
    write_aside(out / "predictions.csv", text.getvalue().encode())
    write_json(out / "summary.json", summary)
    return summary


def check_table(data: Table, target: str) -> list[str]:
    """The names of the features, if the table can be learned from."""
    if target not in data.columns:
        raise UserError(f"{data.path} has no column {target!r} for --target; it has {_listed(data.columns)}.")
    names = [name for name in data.columns if name != target]
    if not names:
        raise UserError(f"{data.path} has no column but the target {target!r} to predict from.")
    rows = len(data.columns[target])
    if rows < FEWEST_ROWS:
        raise UserError(f"{data.path} has only {rows} rows; at least {FEWEST_ROWS} are needed.")
    return names


def _predict(model: EvidentialQuantileRegressor, x: np.ndarray) -> np.ndarray:
    columns = [model.predict(x), *model.predict_interval(x), *model.predict_uncertainty(x)]
    return np.column_stack([*columns, model.predict_novelty(x)] if model.conformal else columns)


def _folds(rows: int, seed: int) -> Any:
    return KFold(FOLDS, shuffle=True, random_state=seed).split(np.empty(rows))


def _listed(names: Any) -> str:
    return ", ".join(map(repr, names)) or "none"
