"""How fast the whole training loop is, against the arithmetic that nothing can avoid, measured in one run.

The bare arithmetic is what a frame costs with everything else left out: the same matrix products forward and backward
over the same number of rows, the target network's forward pass, and Adam on the same shapes. No environment, replay,
random numbers or losses. The two are measured in turns, since timings are noisy, and their medians compared.
"""

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from ceqr.agents.base import AgentState
from ceqr.config import RunConfig
from ceqr.networks import parameter_count
from ceqr.training.loop import CHUNK_FRAMES, Loop
from ceqr.training.trainer import build_loop

WARM_UP = 20  # frames; the first ones after compilation are slower


@dataclass(frozen=True)
class Measurement:
    """Frames a second, all seeds together."""

    env: str
    agent: str
    hidden: tuple[int, ...]
    seeds: int
    parameters: int
    loop: float
    bare: float

    @property
    def ratio(self) -> float:
        return self.loop / self.bare

    def to_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "ratio": self.ratio}


def measure(config: RunConfig[Any], seconds: float, repeats: int) -> Measurement:
    """Measures loop and bare arithmetic `repeats` times each, about `seconds` long."""
    loop = build_loop(config)
    seeds = jnp.arange(config.seeds)
    whole, bare = in_turns([loop_runner(loop, seeds), _bare_runner(loop, seeds)], seconds, repeats)
    params = jax.eval_shape(loop.init, jnp.int32(0)).agent.params
    return Measurement(
        env=config.env,
        agent=config.agent,
        hidden=config.hyper.hidden,
        seeds=config.seeds,
        parameters=parameter_count(params),
        loop=whole * config.seeds,
        bare=bare * config.seeds,
    )


def in_turns(runners: Sequence[Callable[[int], None]], seconds: float, repeats: int) -> list[float]:
    """The median frames a second of each runner, measured in turns for about `seconds` each time."""
    frames = []
    for run in runners:
        run(WARM_UP)
        frames.append(max(1, min(CHUNK_FRAMES, round(seconds * _rate(run, WARM_UP)))))
    rounds = [[_rate(run, n) for run, n in zip(runners, frames, strict=True)] for _ in range(repeats)]
    return [statistics.median(rates) for rates in zip(*rounds, strict=True)]


def _rate(run: Callable[[int], None], frames: int) -> float:
    began = time.perf_counter()
    run(frames)
    return frames / (time.perf_counter() - began)


def loop_runner(loop: Loop, seeds: jax.Array) -> Callable[[int], None]:
    """Plays that many frames of the whole loop, learning in each."""
    states = jax.jit(loop.init_seeds)(seeds)
    zero = jnp.int32(0)
    play, learn = (
        jax.jit(partial(loop.chunk, learning=learning), donate_argnums=0).lower(states, zero, zero).compile()
        for learning in (False, True)
    )
    # Replay holds a chunk of frames, so that batches are drawn from many episodes.
    states, _ = play(states, zero, jnp.int32(CHUNK_FRAMES))
    frame = CHUNK_FRAMES

    def run(frames: int) -> None:
        nonlocal states, frame
        states, _ = learn(states, jnp.int32(frame), jnp.int32(frame + frames))
        jax.block_until_ready(states.observation)
        frame += frames

    return run


def _bare_runner(loop: Loop, seeds: jax.Array) -> Callable[[int], None]:
    agent, env = loop.agent, loop.env
    rows = agent.hyper.batch_size
    shape = (
        16,
        rows + 1,
        *env.observation_shape,
    )  # several batches, so that nothing can be moved out of the loop
    batches = jax.random.bernoulli(jax.random.key(0), 0.1, shape).astype(jnp.float32)

    def frame(i: jax.Array, state: AgentState) -> AgentState:
        x = batches[i % len(batches)]

        def objective(params: Any) -> jax.Array:
            outputs = agent.forward(params, x, None)
            return sum((jnp.sum(out**2) for out in jax.tree.leaves(outputs)), jnp.zeros(()))

        # Of the target network only what values the successors is needed, as in the real loss.
        target = jax.vmap(agent.beliefs)(agent.forward(state.target, x[1:], None)).mean
        grads = jax.grad(lambda params: objective(params) * jnp.mean(target))(state.params)
        return agent._apply(state, grads)

    @partial(jax.jit, donate_argnums=0)
    def chunk(states: AgentState, frames: jax.Array) -> AgentState:
        return jax.lax.fori_loop(0, frames, lambda i, s: jax.vmap(partial(frame, i))(s), states)

    states = jax.jit(loop.init_seeds)(seeds).agent

    def run(frames: int) -> None:
        nonlocal states
        states = chunk(states, jnp.int32(frames))
        jax.block_until_ready(states.params)

    return run
