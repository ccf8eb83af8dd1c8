"""What a run remembers of how it was made."""

import subprocess
from pathlib import Path

import pytest

from ceqr.provenance import provenance


def test_a_run_from_a_checkout_remembers_its_revision() -> None:
    here = Path(__file__).parent
    found = subprocess.run(["git", "-C", here, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    if found.returncode:
        pytest.skip("not a checkout of git")
    assert provenance()["git_revision"] == found.stdout.strip()
    assert provenance()["packages"]["jax"]
