#!/usr/bin/env bash
# Uses ceqr with the oldest versions of its dependencies that pyproject.toml allows, on the oldest Python: whether its
# lower bounds tell the truth. uv resolves them.
#
#   tools/release/lowest.sh [extra ...]       PYTHON=python3.11, WORK=folder to keep what is made
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
python=${PYTHON:-python3.11}
work=${WORK:-$(mktemp -d)}
mkdir -p "$work"
[ -n "${WORK:-}" ] || trap 'rm -rf "$work"' EXIT

"$python" -m venv "$work/uv"
"$work/uv/bin/python" -m pip install --quiet --disable-pip-version-check uv
"$python" -m venv "$work/lowest"
extras=$(IFS=,; echo "$*")
"$work/uv/bin/uv" pip install --quiet --python "$work/lowest/bin/python" --resolution lowest-direct \
  --index-strategy unsafe-best-match "$root${extras:+[$extras]}"
"$work/lowest/bin/python" -m pip list --format freeze | tr '\n' ' '
echo
"$here/smoke.sh" "$work/lowest/bin"
for extra in "$@"; do "$here/smoke.sh" "$work/lowest/bin" "$extra"; done
echo "All well."
