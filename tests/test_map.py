"""CONTRIBUTING.md's map of the house names every module."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_module_is_on_the_map() -> None:
    drawn = (ROOT / "CONTRIBUTING.md").read_text().split("```")[3]
    named = set(re.findall(r"[\w./]+", drawn))
    house = ROOT / "src" / "ceqr"
    modules = {path.relative_to(house) for path in house.rglob("*.py") if path.name != "__init__.py"}
    assert len(modules) > 50
    assert [str(path) for path in sorted(modules) if path.name not in named] == []
    folders = {path.parent for path in modules} - {Path()}
    assert [str(path) for path in sorted(folders) if f"{path.name}/" not in named] == []
