"""Whether a wheel and an sdist hold what they should, and nothing else: `python contents.py dist/*`.

The sdist is the repository without what git does not know; the wheel is the package alone. Runs, caches, compiled
Python and virtual environments belong in neither.
"""

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("__pycache__", ".pytest_cache", ".ruff_cache", ".hypothesis", ".venv", "runs", "sweeps", "build", "dist")
NEVER = re.compile(rf"(^|/)({'|'.join(map(re.escape, FOLDERS))})/|\.py[co]$")
NEEDED = ("LICENSE", "README.md", "CHANGELOG.md", "CITATION.cff", "SECURITY.md", "pyproject.toml", "Makefile")


def tracked() -> set[str]:
    """The files that git knows, or would take."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    return {name for name in names if name and (ROOT / name).is_file()}


def check_sdist(names: set[str]) -> list[str]:
    inner = {name.partition("/")[2] for name in names} - {"PKG-INFO"}
    wrong = [f"it lacks {name}" for name in sorted(tracked() - inner)]
    return wrong + [f"it holds {name}, which git does not know" for name in sorted(inner - tracked())]


def check_wheel(names: set[str]) -> list[str]:
    package = {name.removeprefix("src/") for name in tracked() if name.startswith("src/ceqr/")}
    inner = {name for name in names if ".dist-info/" not in name}
    wrong = [f"it lacks {name}" for name in sorted(package - inner)]
    wrong += [f"it holds {name}, which is not of the package" for name in sorted(inner - package)]
    return wrong + ["it lacks the licence"] * (not any(name.endswith("licenses/LICENSE") for name in names))


def main(paths: list[str]) -> int:
    failed = False
    for path in map(Path, paths):
        if path.suffix == ".whl":
            with zipfile.ZipFile(path) as archive:
                names = set(archive.namelist())
            wrong = check_wheel(names)
        else:
            with tarfile.open(path) as archive:
                names = {member.name for member in archive if member.isfile()}
            wrong = check_sdist(names)
            wrong += [f"it lacks {name}" for name in NEEDED if not any(n.endswith(f"/{name}") for n in names)]
        wrong += [f"it holds {name}" for name in sorted(names) if NEVER.search(name)]
        print(f"{path.name}: {len(names)} files, {path.stat().st_size / 1e6:.2f} MB", *dict.fromkeys(wrong), sep="\n  ")
        failed |= bool(wrong)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
