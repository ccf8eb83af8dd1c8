"""How long a report of many runs takes, and which library reads their tables fastest.

    python benchmarks/report.py                       # 375 runs of 2.5M frames, as the paper's Figure 3; some minutes
    python benchmarks/report.py --runs 30 --keep DIR  # fewer, and kept to look at

Runs are generated: five games, three algorithms, a seed each, with returns that rise; about a gigabyte in a temporary
folder. The tables of some of them are read by each library in turns, from memory but for DuckDB, which reads files;
then `ceqr report` reads all of them in a process of its own, whose time and memory are printed.
"""

# pyright: reportMissingImports=false
import argparse
import dataclasses
import io
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from ceqr import runs
from ceqr.config import RunConfig, default_config
from ceqr.experiments import tables
from ceqr.files import write_json
from ceqr.progress import Progress
from ceqr.provenance import provenance

GAMES = {"asterix": 25, "breakout": 18, "freeway": 60, "seaquest": 30, "space_invaders": 45}  # frames of an episode
ALGORITHMS = (("ceqr-dqn", {}), ("ceqr-dqn", {"calibration": "none"}), ("ua-dqn", {}))
LEVELS = {"asterix": 33.0, "breakout": 18.0, "freeway": 60.0, "seaquest": 25.0, "space_invaders": 137.0}


def generate(out: Path, number: int, frames: int = 2_500_000) -> int:
    """Writes so many run directories, as `ceqr train` would; returns how many episodes they hold."""
    episodes = 0
    with Progress("generating", number, unit="runs") as progress:
        for i in range(number):
            game = list(GAMES)[i % len(GAMES)]
            agent, options = ALGORITHMS[i // len(GAMES) % len(ALGORITHMS)]
            seed = i // (len(GAMES) * len(ALGORITHMS))
            config = default_config(agent, "paper", f"minatar/{game}")
            hyper = dataclasses.replace(config.hyper, hidden=(128,), **options)
            config = dataclasses.replace(config, hyper=hyper, frames=frames, seed_start=seed)
            name = f"{game}-{agent}-{'-'.join(options.values()) or 'paper'}-{seed}"
            episodes += write_run(out / name, config, np.random.default_rng(i))
            progress.update(i + 1, name)
    return episodes


def write_run(path: Path, config: RunConfig[Any], random: np.random.Generator) -> int:
    """One run directory of one seed; returns its number of episodes."""
    path.mkdir(parents=True)
    game = config.env.partition("/")[2]
    typical = GAMES[game]
    lengths = random.integers(typical // 2, typical * 2, size=int(config.frames / typical * 1.2))
    ends = np.cumsum(lengths)
    ends, lengths = ends[ends <= config.frames], lengths[: np.sum(ends <= config.frames)]
    progress = ends / config.frames
    talent = random.normal(1.0 if config.agent == "ua-dqn" else 1.15, 0.1)
    returns = random.poisson(LEVELS[game] * talent * (1 - np.exp(-4 * progress)) + 0.4)
    odd = random.binomial(lengths, 0.3 * (1 - progress) + 0.03)
    seed = config.seed_start
    pl.DataFrame(
        {
            "seed": np.full(len(ends), seed),
            "frame": ends,
            "return": returns,
            "length": lengths,
            "nongreedy": (odd / lengths).astype(np.float32),
            "least_uncertain": (1 - odd / lengths).astype(np.float32),
        }
    ).write_csv(path / "episodes.csv")
    at = np.arange(config.log_every, config.frames + 1, config.log_every)
    near = at / config.frames
    noise = random.normal(1, 0.05, (7, len(at)))
    columns = {"loss": 1.0 + 0 * near, "quantile_huber": 0.2 + 0 * near, "epistemic": 0.05 + np.exp(-3 * near)}
    columns |= {"aleatoric": 0.5 + near, "quantile_coverage_error": 0.1 + 0 * near, "start_value": 5 * near}
    if config.agent == "ceqr-dqn":
        columns["coverage"] = 0.9 - 0.4 * np.exp(-5 * near)
    metrics = {name: column * noise[i] for i, (name, column) in enumerate(columns.items())}
    pl.DataFrame({"seed": np.full(len(at), seed), "frame": at, **metrics}).write_csv(path / "metrics.csv")
    clock = pl.DataFrame({"started": ["2024-07-15T09:00:00"] * len(at), "frame": at, "seconds": at / 500.0})
    clock.with_columns(frames_per_second=pl.lit(500.0)).write_csv(path / "timing.csv")
    write_json(path / "config.json", {"format": runs.FORMAT, **provenance(), "config": config.to_json()})
    row = {"seed": seed, "frames": config.frames, "episodes": len(ends)}
    row |= {"mean_of_last_100": float(returns[-100:].mean()), "max": float(returns.max())}
    write_json(path / "summary.json", {"seeds": [row]})
    return len(ends)


def libraries() -> dict[str, Callable[[Path], Any]]:
    """Ways to get the columns of an episodes.csv as NumPy arrays."""
    import duckdb
    import pandas as pd
    import pyarrow as pa
    from pyarrow import csv

    whole, names = ("seed", "frame", "length"), runs.EPISODE_COLUMNS
    arrow = csv.ConvertOptions(column_types={n: pa.int64() if n in whole else pa.float64() for n in names})
    polars = {n: pl.Int64 if n in whole else pl.Float64 for n in names}
    duck = duckdb.connect()
    kinds = {n: "BIGINT" if n in whole else "DOUBLE" for n in names}
    return {
        "polars": lambda p: pl.read_csv((p / "episodes.csv").read_bytes(), schema_overrides=polars).to_dict(),
        "polars, with our checks": lambda p: tables._read_episodes(p, runs.read_config(p)[0]),
        "pyarrow": lambda p: [c.to_numpy() for c in csv.read_csv(_open(p), convert_options=arrow).columns],
        "duckdb": lambda p: duck.read_csv(str(p / "episodes.csv"), header=True, columns=kinds).fetchnumpy(),
        "pandas": lambda p: pd.read_csv(_open(p)).to_dict("series"),
        "plain Python (ceqr.runs)": lambda p: list(runs.read_episodes(p, runs.read_config(p)[0])),
    }


def _open(path: Path) -> io.BytesIO:
    return io.BytesIO((path / "episodes.csv").read_bytes())


def compare(paths: list[Path]) -> None:
    """Prints the median time for a run's episodes by each library, in turns."""
    ways = libraries()
    times: dict[str, list[float]] = {name: [] for name in ways}
    for path in paths:
        for name, way in ways.items():
            began = time.perf_counter()
            way(path)
            times[name].append(time.perf_counter() - began)
    for name, each in times.items():
        print(f"  {name:<28} {1e3 * statistics.median(each):8.1f} ms a run")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=375, help="how many runs (375)")
    parser.add_argument("--keep", type=Path, help="a folder for the runs and the report, kept afterwards")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)
        episodes = generate(folder / "runs", args.runs)
        size = sum(file.stat().st_size for file in folder.rglob("*.csv"))
        print(f"{args.runs:,} runs, {episodes:,} episodes, {size / 1e6:,.0f} MB of tables", flush=True)
        compare(sorted((folder / "runs").iterdir())[:10])
        command = [sys.executable, "-m", "ceqr.cli", "report", str(folder / "runs"), "--out", str(folder / "report")]
        began = time.perf_counter()
        subprocess.run([*command, "--quiet"], check=True)
        seconds = time.perf_counter() - began
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        print(json.dumps({"report seconds": round(seconds, 1), "peak memory in MB": round(peak / 1e6)}))


if __name__ == "__main__":
    main()
