"""The examples run, as short as they can be, and print what they promise."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROMISES = {
    "quick_start.py": (["--frames", "1200"], ["mean return of 10 greedy episodes", "own doubt", "saved and loaded"]),
    "act_when_sure.py": (
        ["--frames", "1500", "--episodes", "2", "--calibration", "20"],
        ["the agent alone", "handed over"],
    ),
    "custom_environment.py": (["--frames", "3000"], ["lambda_al 0.0: cross", "lambda_al 0.5: wait"]),
}


def test_all_examples_are_here() -> None:
    assert {p.name for p in (ROOT / "examples").glob("*.py")} == set(PROMISES)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROMISES)
def test_example(name: str, tmp_path: Path) -> None:
    arguments, promised = PROMISES[name]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, str(ROOT / "examples" / name), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)
    assert result.returncode == 0, result.stderr
    for words in promised:
        assert words in result.stdout
    assert list(tmp_path.iterdir()) == []
