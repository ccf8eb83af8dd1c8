"""With which versions a result was made."""

import importlib.metadata
import platform
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

PACKAGES = ("ceqr", "jax", "jaxlib", "equinox", "optax", "numpy", "pgx", "pgx-minatar", "gymnasium", "ale-py")


def provenance() -> dict[str, Any]:
    """With which versions a run is made."""
    packages = {}
    for name in PACKAGES:
        try:
            packages[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {"packages": packages, "python": platform.python_version(), "git_revision": _git_revision()}


@cache
def _git_revision() -> str | None:
    """The revision of the checkout that this package runs from, if it does."""
    here = Path(__file__).parent
    try:
        top, revision = (
            subprocess.run(
                ["git", "-C", here, "rev-parse", what], capture_output=True, text=True, timeout=5, check=True
            ).stdout.strip()
            for what in ("--show-toplevel", "HEAD")
        )
    except (OSError, subprocess.SubprocessError):
        return None
    # Installed into someone else's repository (a virtual environment in it), its revision says nothing of ours.
    return revision if (Path(top) / "src" / "ceqr").resolve() == here.resolve() else None
