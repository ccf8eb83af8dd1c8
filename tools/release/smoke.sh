#!/usr/bin/env bash
# Uses an installed ceqr in an empty folder, on tiny settings: train, resume, evaluate, calibrate, regress; and what each
# extra that is named brings.
#
#   tools/release/smoke.sh path/to/venv/bin [extra ...]
set -euo pipefail
bin=$(cd "$1" && pwd)
shift
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
unset PYTHONPATH # what is installed is tested, not a checkout
export CEQR_CACHE_DIR="$folder/cache" WANDB_MODE=offline WANDB_SILENT=true
tiny=(--hidden 16 --batch-size 8 --replay-size 300 --learning-starts 60 --target-period 50 --log-every 50 --quiet)

# Runs a command quietly, and shows what it said if it fails.
ask() {
  "$@" > said.txt 2> why.txt || { echo "  failed: ${*/#$bin\//}" && cat said.txt why.txt && exit 1; }
}

# A whole round with an environment.
round() {
  local env=$1 runs="run-${1//\//-}"
  shift
  ask "$bin/ceqr" train --env "$env" --frames 300 --quantiles 5 "${tiny[@]}" --out "$runs" "$@"
  ask "$bin/ceqr" resume "$runs" --frames 500 --quiet
  ask "$bin/ceqr" eval "$runs" --episodes 2 --max-episode-frames 200 --json
  "$bin/python" -c "import json, sys; assert len(json.load(open('said.txt'))) > 0"
  echo "  $env: train, resume, eval"
}

"$bin/python" -c "import ceqr; from importlib.metadata import version; print('ceqr', version('ceqr'), 'from', ceqr.__file__)"

if [ $# = 0 ]; then
  round gymnasium/CartPole-v1
  ask "$bin/ceqr" calibrate run-gymnasium-CartPole-v1 --episodes 20
  ask "$bin/ceqr" monitor run-gymnasium-CartPole-v1 --episodes 2
  ask "$bin/ceqr" plot run-gymnasium-CartPole-v1
  ask "$bin/ceqr" report run-gymnasium-CartPole-v1 --out report
  echo "  calibrate, monitor, plot, report"
  "$bin/python" - > table.csv << 'PYTHON'
import numpy as np
x = np.linspace(-2, 2, 200)
print("x,y", *(f"{a},{b}" for a, b in zip(x, x**2 + np.random.default_rng(0).normal(0, 0.1, 200))), sep="\n")
PYTHON
  ask "$bin/ceqr" regress table.csv --target y --hidden 16 --epochs 5 --conformal --out predictions --quiet
  test -s predictions/predictions.csv
  echo "  regress"
  ask "$bin/python" -c "
from ceqr import CEQRDQN
agent = CEQRDQN.from_run('run-gymnasium-CartPole-v1')
agent.save('agent.ceqr')
action, beliefs = CEQRDQN.load('agent.ceqr').predict([0.0, 0.0, 0.0, 0.0])
assert beliefs.interval.lower < beliefs.interval.upper and 0 < beliefs.novelty <= 1"
  echo "  from_run, save, load, predict"
  # What an extra brings is asked for in one sentence, if it is not there.
  if ! "$bin/python" -c "import pgx_minatar.breakout" 2> /dev/null; then
    if "$bin/ceqr" train --env minatar/breakout --frames 300 "${tiny[@]}" --out none > said.txt 2>&1; then
      echo "  minatar/breakout was played without the extra minatar" && exit 1
    fi
    grep -q 'ceqr\[minatar\]' said.txt || { cat said.txt && exit 1; }
    echo "  minatar/breakout: $(tr -s ' \n' ' ' < said.txt)"
  fi
fi

sweep=(--envs gymnasium/CartPole-v1 --agents dqn --frames 300 "${tiny[@]}")
for extra in "$@"; do
  case $extra in
    minatar) round minatar/breakout ;;
    gymnax) round gymnax/CartPole-v1 ;;
    atari) round gymnasium/ALE/Pong-v5 ;;
    box2d) round gymnasium/LunarLander-v3 ;;
    tensorboard)
      round gymnasium/CartPole-v1 --tensorboard
      ls run-gymnasium-CartPole-v1/tensorboard/* > /dev/null
      ;;
    wandb)
      round gymnasium/CartPole-v1 --wandb
      ls run-gymnasium-CartPole-v1/wandb/* > /dev/null
      ;;
    search)
      ask "$bin/ceqr" sweep --search "${sweep[@]}" --learning-rate 0.0001..0.01:log --trials 2 --out search
      test -s search/best.toml
      echo "  sweep --search"
      ;;
    ray)
      ask "$bin/ceqr" sweep "${sweep[@]}" --engine ray --out ray
      test -s ray/runs/*/summary.json
      echo "  sweep --engine ray"
      ;;
    *) echo "  no test for the extra $extra" && exit 1 ;;
  esac
done
