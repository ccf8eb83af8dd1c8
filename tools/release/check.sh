#!/usr/bin/env bash
# Builds the sdist and the wheel, looks at what they hold, and uses the wheel in clean environments: without extras, and
# with each extra that is named. `make release-check EXTRAS="minatar gymnax"` is the same.
#
#   tools/release/check.sh [extra ...]        PYTHON=python3.13 for another interpreter, WORK=folder to keep what is made
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
python=${PYTHON:-python3}
work=${WORK:-$(mktemp -d)}
mkdir -p "$work"
[ -n "${WORK:-}" ] || trap 'rm -rf "$work"' EXIT

echo "$("$python" --version), in $work"
"$python" -m venv "$work/build"
"$work/build/bin/python" -m pip install --quiet --disable-pip-version-check build twine
rm -rf "$work/dist"
"$work/build/bin/python" -m build --outdir "$work/dist" "$root" > "$work/build.log" 2>&1 || { cat "$work/build.log" && exit 1; }
"$work/build/bin/twine" check --strict "$work"/dist/*
"$python" "$here/contents.py" "$work"/dist/*
wheel=$(ls "$work"/dist/*.whl)

try() {
  local extra=${1:-} environment="$work/venv-${1:-plain}"
  echo "${extra:-without extras}:"
  "$python" -m venv "$environment"
  "$environment/bin/python" -m pip install --quiet --disable-pip-version-check "$wheel${extra:+[$extra]}"
  "$here/smoke.sh" "$environment/bin" ${extra:+"$extra"}
  rm -rf "$environment"
}

try
for extra in "$@"; do try "$extra"; done
echo "All well."
