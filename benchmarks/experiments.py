"""The experiments behind docs/performance.md: parts of a frame by themselves, each way in turns with the others.

    python benchmarks/experiments.py                     # all; a few minutes
    python benchmarks/experiments.py products adam

Each prints the median time of one execution over rounds.
"""

import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ceqr.cli import use_compilation_cache
from ceqr.compilation import jit
from ceqr.config import default_config
from ceqr.networks import Conv3x3
from ceqr.training.compiled import CompiledPlayer
from ceqr.training.train import player_of

ROWS, UNITS, OUTPUTS, ACTIONS = 33, 1600, 1200, 3
Way = Callable[[], Any]


def in_turns(ways: dict[str, Way], executions: int = 20, rounds: int = 9) -> None:
    """Prints the median milliseconds of one execution of each."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        jax.block_until_ready(way())
    for _ in range(rounds):
        for name, way in ways.items():
            began = time.perf_counter()
            for _ in range(executions - 1):
                way()
            jax.block_until_ready(way())
            times[name].append((time.perf_counter() - began) / executions * 1e3)
    for name, each in times.items():
        print(f"  {name:<58} {statistics.median(each):8.3f} ms")


def normal(*shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(len(shape)), shape)


def products() -> None:
    """Products of a frame's rows with the 1600-unit layer's weights: by XLA's default library and by Eigen."""
    x, w, g = normal(ROWS, UNITS), normal(UNITS, UNITS), normal(ROWS, UNITS)
    dot = lambda a, b, i, j: lax.dot_general(a, b, (((i,), (j,)), ((), ())))  # noqa: E731
    forms: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
        "forward, x w": (lambda x, w: dot(x, w, 1, 0), (x, w)),
        "gradient of the input as g w^T": (lambda g, w: dot(g, w, 1, 1), (g, w)),
        "gradient of the input as (w g^T)^T": (lambda g, w: dot(w, g, 1, 1).T, (g, w)),
        "gradient of the weights, x^T g": (lambda x, g: dot(x, g, 0, 0), (x, g)),
    }
    ways = {}
    for name, (form, arguments) in forms.items():
        for library, compile_with in (("default", jax.jit), ("ours", jit)):
            ways[f"{name} ({library})"] = partial(compile_with(form).lower(*arguments).compile(), *arguments)
    in_turns(ways)


def adam() -> None:
    """Adam on the 1600-unit network's two large matrices: whole arrays, and blocks that would fit into the cache."""
    shapes = ((UNITS, UNITS), (UNITS, OUTPUTS))

    def update(p: Any, m: Any, v: Any, g: Any) -> tuple[Any, Any, Any]:
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        return p - 1e-4 * m / (jnp.sqrt(v) + 1e-8), m, v

    def blocked(rows: int, p: Any, m: Any, v: Any, g: Any) -> tuple[Any, Any, Any]:
        def block(i: Any, carry: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
            part = [lax.dynamic_slice_in_dim(a, i * rows, rows) for a in (*carry, g)]
            new = update(*part)
            changed = [lax.dynamic_update_slice_in_dim(a, b, i * rows, 0) for a, b in zip(carry, new, strict=True)]
            return changed[0], changed[1], changed[2]

        return lax.fori_loop(0, len(p) // rows, block, (p, m, v))

    def steps(one: Callable[..., Any], states: list[Any], grads: list[Any]) -> list[Any]:
        def body(_: Any, states: list[Any]) -> list[Any]:
            return [one(*state, g) for state, g in zip(states, grads, strict=True)]

        return lax.fori_loop(0, 10, body, states)

    grads = [normal(*shape) for shape in shapes]
    ways: dict[str, Way] = {}
    for name, one in {
        "whole arrays": update,
        "blocks of 160 rows": partial(blocked, 160),
        "blocks of 40 rows": partial(blocked, 40),
    }.items():
        program = jit(partial(steps, one), donate_argnums=0)
        kept = [[(normal(*s), jnp.zeros(s), jnp.zeros(s)) for s in shapes]]

        def way(program: Any = program, kept: list[Any] = kept) -> Any:
            kept[0] = program(kept[0], grads)
            return kept[0]

        ways[f"ten steps, {name}"] = way
    in_turns(ways, executions=2, rounds=5)


def head() -> None:
    """The evidential head for all actions, against a head that gathers the taken action's weights for each row."""
    x, w, action = normal(ROWS, UNITS), normal(UNITS, OUTPUTS), jnp.arange(ROWS) % ACTIONS
    by_action = w.reshape(UNITS, ACTIONS, -1).transpose(1, 0, 2)
    every = jit(lambda x, w: x @ w)
    taken = jit(lambda x, w, action: jnp.einsum("bi,bio->bo", x, w[action]))
    in_turns({"all actions": lambda: every(x, w), "taken action only": lambda: taken(x, by_action, action)}, 5)


def convolution() -> None:
    """The convolution with its gradient: patches times a matrix (ours) and `lax.conv`."""
    conv, x = Conv3x3(jax.random.key(0), 4, 16, padding=1), normal(ROWS, 10, 10, 4)

    def patches(conv: Conv3x3, x: Any) -> Any:
        return jnp.sum(conv(x) ** 2)

    def plain(kernel: Any, x: Any) -> Any:
        out = lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return jnp.sum(out**2)

    kernel = conv.linear.weight.reshape(3, 3, 4, 16)
    ours, theirs = jit(jax.grad(patches)), jit(jax.grad(plain))
    in_turns({"patches": lambda: ours(conv, x), "lax.conv": lambda: theirs(kernel, x)})


def first_chunks() -> None:
    """Frames a second of the first chunks after compilation."""
    player = player_of(default_config("ceqr-dqn", "quick", "minatar/breakout"), learning_starts=1_000)
    assert isinstance(player, CompiledPlayer)
    player.start()
    player.play(0, 1_000)
    frame = 1_000
    for frames in (20, 100, 100, 100, 100, 300, 300):
        began = time.perf_counter()
        player.play(frame, frame + frames)
        print(f"  frames {frame:,} to {frame + frames - 1:,}: {frames / (time.perf_counter() - began):.0f} frames/s")
        frame += frames


EXPERIMENTS = {each.__name__: each for each in (products, adam, head, convolution, first_chunks)}


if __name__ == "__main__":
    chosen = sys.argv[1:] or list(EXPERIMENTS)
    if unknown := set(chosen) - set(EXPERIMENTS):
        sys.exit(f"error: unknown experiment {', '.join(unknown)}; known are {', '.join(EXPERIMENTS)}.")
    use_compilation_cache()
    for name in chosen:
        print(f"{name}: {EXPERIMENTS[name].__doc__}")
        EXPERIMENTS[name]()
