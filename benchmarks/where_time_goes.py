"""Where a frame's time goes: the operations of the compiled chunk, by the time that a trace gives them.

    python benchmarks/where_time_goes.py --hidden 1600

Prints the longest operations (microseconds a frame, summed over threads) and which arrays of more than a megabyte the
optimised program copies. `--hlo FILE` also writes that program.
"""

import dataclasses
import gzip
import json
import re
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import tyro

from ceqr.compilation import jit
from ceqr.config import default_config
from ceqr.training.compiled import CHUNK_FRAMES, CompiledPlayer
from ceqr.training.train import player_of


@dataclass(frozen=True)
class Options:
    """What to profile."""

    env: str = "minatar/breakout"
    agent: str = "ceqr-dqn"
    hidden: int = 1600
    seeds: int = 1
    frames: int = 200
    """Frames under the profiler."""
    top: int = 30
    """Operations to print."""
    hlo: Path | None = None
    """Where to write the optimised program."""


def main(options: Options) -> None:
    config = default_config(options.agent, "paper", options.env)
    config = dataclasses.replace(config, hyper=dataclasses.replace(config.hyper, hidden=(options.hidden,)))
    player = player_of(dataclasses.replace(config, seeds=options.seeds))
    assert isinstance(player, CompiledPlayer)
    states = jax.jit(player.init_group)(jnp.arange(options.seeds))
    zero = jnp.int32(0)
    play, learn = (
        jit(partial(player.chunk, learning=learning), donate_argnums=0).lower(states, zero, zero).compile()
        for learning in (False, True)
    )
    hlo = learn.as_text()
    assert hlo is not None
    if options.hlo is not None:
        options.hlo.write_text(hlo)
    states, _ = play(states, zero, jnp.int32(CHUNK_FRAMES))
    states, _ = learn(states, jnp.int32(1000), jnp.int32(1020))
    jax.block_until_ready(states)
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            states, _ = learn(states, jnp.int32(1020), jnp.int32(1020 + options.frames))
            jax.block_until_ready(states)
        (trace,) = Path(folder).rglob("*.trace.json.gz")
        events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]

    definitions = {m[1]: m[2] for m in re.finditer(r"^\s*(?:ROOT )?%?([\w.\-]+) = (.*)$", hlo, re.M)}
    totals: dict[str, float] = defaultdict(float)
    for event in events:
        name = event.get("name", "")
        if event.get("ph") == "X" and name in definitions:
            totals[name] += event["dur"] / options.frames
    loops = {name for name in totals if " while(" in definitions[name] or " call(" in definitions[name]}
    plain = {name: time for name, time in totals.items() if name not in loops}
    print(f"{sum(plain.values()):,.0f} us a frame in {len(plain)} operations")
    for name in sorted(plain, key=plain.__getitem__, reverse=True)[: options.top]:
        text = definitions[name]
        where = re.search(r'op_name="([^"]*)"', text)
        source = re.search(r'source_file="([^"]*)" source_line=(\d+)', text)
        print(
            f"{plain[name]:9.1f}  {name:<44} {text.split('{')[0][:36]:<36}  "
            f"{(where[1] if where else '')[-70:]}  {Path(source[1]).name + ':' + source[2] if source else ''}"
        )
    print("\ncopies of more than a megabyte:")
    for name, text in definitions.items():
        if " copy(" in text and _bytes(text) > 1e6:
            print(f"  {_bytes(text) / 1e6:6.1f} MB  {plain.get(name, 0.0):8.1f} us a frame  {name}: {text[:60]}")


def _bytes(text: str) -> int:
    match = re.match(r"(pred|[suf]\d+)\[([\d,]*)\]", text)
    if match is None:
        return 0
    width = 1 if match[1] == "pred" else int(match[1][1:]) // 8
    for size in filter(None, match[2].split(",")):
        width *= int(size)
    return width


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
