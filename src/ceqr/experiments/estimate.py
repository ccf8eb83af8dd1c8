"""How long a sweep would take, and how much disk, from a short measurement of each of its programs at work."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ceqr.errors import UserError
from ceqr.experiments.engine import Engine, measure_of
from ceqr.experiments.sweep import RunSpec
from ceqr.progress import Progress
from ceqr.training.checkpoint import KEPT

SECONDS = 3.0  # of each measurement
EPISODE_BYTES, METRIC_BYTES = 40, 180  # of a row, about
MOST_COPIES = 4  # of a program that is measured beside itself


@dataclass(frozen=True)
class Estimate:
    seconds: float
    disk: int  # bytes
    rates: dict[str, float]  # frames a second of a seed, by the run that was measured


def estimate(
    specs: Sequence[RunSpec], engine: Engine, imports: tuple[str, ...], received: list[int]
) -> Estimate | None:
    """What runs would take that still have all their frames to play; None if somebody stops it.

    Runs that differ in environment and seeds alone count as one program. Each is measured with the machine as full as
    the sweep would have it: a program that has it to itself is faster.
    """
    kinds: dict[Any, RunSpec] = {}
    for spec in specs:
        kinds.setdefault(_program(spec), spec)
    seconds, disk, rates = 0.0, 0, {}
    with Progress("measuring", len(kinds), unit="programs") as progress:
        for number, (program, spec) in enumerate(kinds.items(), 1):
            found = _measure(spec, engine, imports, received)
            if found is None:
                return None
            rate = sum(each["rate"] for each in found) / len(found)
            rates[spec.name] = rate
            alike = [each for each in specs if _program(each) == program]
            frames = sum(each.config.frames for each in alike)
            seconds += frames / rate * min(spec.cores, engine.cores) / engine.cores
            a_frame = found[0]["episodes"] * EPISODE_BYTES + METRIC_BYTES * spec.config.seeds / spec.config.log_every
            disk += round(frames * a_frame) + sum(KEPT * found[0]["bytes"] for _ in alike)
            progress.update(number, spec.name)
    longest = max((spec.config.frames / rates[kinds[_program(spec)].name] for spec in specs), default=0.0)
    return Estimate(max(seconds, longest), disk, rates)


def _measure(
    spec: RunSpec, engine: Engine, imports: tuple[str, ...], received: list[int]
) -> list[dict[str, Any]] | None:
    task, running, found = measure_of(spec, SECONDS, imports), 0, []
    while running < MOST_COPIES and engine.has_room(spec):
        engine.submit(spec, task)
        running += 1
    while running:
        for _, outcome in engine.wait(0.5):
            running -= 1
            if outcome["state"] == "failed":
                raise UserError(f"{spec.name} cannot be run: {outcome['error']}")
            if outcome["state"] == "measured":
                found.append(outcome)
        if received:
            return None
    return found


def _program(spec: RunSpec) -> Any:
    """What decides how fast a run is, nearly: not its game, and no number that a program is given."""
    hyper = dataclasses.asdict(spec.config.hyper)
    numbers = [name for name, value in hyper.items() if isinstance(value, float)]
    rest = tuple((name, value) for name, value in hyper.items() if name not in numbers)
    return (
        spec.config.agent,
        spec.config.env.partition("/")[0],
        spec.config.num_envs,
        spec.config.seeds,
        spec.cores,
        rest,
    )
