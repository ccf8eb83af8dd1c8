"""A table that long benchmarks fill row by row, so that one which was stopped begins again where it was."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class Rows:
    """A CSV file: some columns tell which experiment a row is of, the others what came of it."""

    def __init__(self, path: Path, keys: Sequence[str], results: Sequence[str]):
        self.path, self._keys, self._fields = path, tuple(keys), (*keys, *results)
        path.parent.mkdir(parents=True, exist_ok=True)

    def read(self) -> list[dict[str, str]]:
        if not self.path.exists():
            return []
        with self.path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))

    def has(self, *keys: Any) -> bool:
        """Whether the experiment was made."""
        return any(tuple(row[k] for k in self._keys) == tuple(map(str, keys)) for row in self.read())

    def add(self, **row: Any) -> None:
        print(", ".join(f"{name} {value}" for name, value in row.items()), flush=True)
        new = not self.path.exists()
        with self.path.open("a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self._fields)
            if new:
                writer.writeheader()
            writer.writerow(row)
