"""Measures ceqr against others and against its own arithmetic, in turns in one run, and writes a table and a chart.

    python benchmarks/run.py                                   # everything, about ten minutes
    python benchmarks/run.py --only reference --repeats 9

Timings on shared machines are noisy, so the programs of a group run one after the other, round after round, and only
ratios within a group mean anything. Needs `pip install "ceqr[bench]"`.
"""

import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax.numpy as jnp
import tyro

from ceqr.bench import bare_runner, loop_runner
from ceqr.bench_sb3 import sb3_runner
from ceqr.config import RunConfig, default_config
from ceqr.training.trainer import build_loop

Run = Callable[[int], None]  # plays that many frames


@dataclass(frozen=True)
class Program:
    """One of the programs that are compared."""

    name: str
    run: Run
    seeds: int = 1


@dataclass(frozen=True)
class Result:
    """Frames a second (all seeds together) in each round, by program; the first program is what the others are held
    against."""

    group: str
    rates: dict[str, list[float]]

    def median(self, name: str) -> float:
        return statistics.median(self.rates[name])

    def ratio(self, name: str) -> float:
        """How many times as fast the first program is: the median over rounds of the ratio within a round."""
        first = next(iter(self.rates.values()))
        return statistics.median(a / b for a, b in zip(first, self.rates[name], strict=True))
