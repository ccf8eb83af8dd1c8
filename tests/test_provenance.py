"""What a run remembers of how it was made."""

import shutil
import subprocess
from pathlib import Path

import pytest

from ceqr.provenance import provenance


def test_a_run_from_a_checkout_remembers_its_revision() -> None:
    root = Path(__file__).resolve().parents[1]
    if not (root / ".git").exists() or shutil.which("git") is None:
        pytest.skip("not a checkout of git")
    head = subprocess.run(["git", "-C", root, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    assert provenance()["git_revision"] == head.stdout.strip()
    assert provenance()["packages"]["jax"]
