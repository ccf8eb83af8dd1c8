"""How fast the whole training loop is, against the arithmetic that nothing can avoid, measured in one run.

The bare arithmetic is what a frame costs with everything else left out: the same matrix products forward and backward
over the same number of rows, the target network's forward pass, and Adam on the same shapes. No environment, replay,
random numbers or losses. The two are measured in turns, since timings are noisy, and their medians compared.
"""

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from ceqr.agents.base import AgentState
from ceqr.compilation import jit, side_by_side
from ceqr.config import RunConfig
from ceqr.networks import parameter_count
from ceqr.training.loop import CHUNK_FRAMES, Loop, LoopState
from ceqr.training.trainer import Chunks, build_loop

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
    whole, bare = in_turns([loop_runner(loop, seeds), bare_runner(loop, seeds)], seconds, repeats)
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
    rounds = rounds_in_turns(runners, seconds, repeats)
    return [statistics.median(rates) for rates in zip(*rounds, strict=True)]


def rounds_in_turns(runners: Sequence[Callable[[int], None]], seconds: float, repeats: int) -> list[list[float]]:
    """The frames a second of each runner in each of `repeats` rounds."""
    frames = []
    for run in runners:
        run(WARM_UP)
        frames.append(max(1, min(CHUNK_FRAMES, round(seconds * _rate(run, WARM_UP)))))
    return [[_rate(run, n) for run, n in zip(runners, frames, strict=True)] for _ in range(repeats)]


def _rate(run: Callable[[int], None], frames: int) -> float:
    began = time.perf_counter()
    run(frames)
    return frames / (time.perf_counter() - began)


def loop_runner(
    loop: Loop, seeds: jax.Array, prepare: Callable[[LoopState], LoopState] = lambda states: states, frame: int = 0
) -> Callable[[int], None]:
    """Plays that many frames of the whole loop, learning in each, as `ceqr train` does.

    What is measured begins after a chunk of frames without learning, so that batches are drawn from many episodes;
    `prepare` may change the initial states of all seeds, and `frame` is theirs.
    """
    states = prepare(jax.jit(loop.init_seeds)(seeds))
    chunks = Chunks(loop, states, list(range(len(seeds))), learning_starts=frame + CHUNK_FRAMES)
    groups, _ = chunks.play(chunks.split(states), frame, frame + CHUNK_FRAMES)
    frame += CHUNK_FRAMES

    def run(frames: int) -> None:
        nonlocal groups, frame
        groups, _ = chunks.play(groups, frame, frame + frames)
        jax.block_until_ready([group.observation for group in groups])
        frame += frames

    return run


def bare_runner(loop: Loop, seeds: jax.Array) -> Callable[[int], None]:
    """Does the arithmetic of that many frames, on the cores as `loop_runner` does."""
    agent, env = loop.agent, loop.env
    at_once = side_by_side(len(seeds))
    # Several batches, so that nothing can be moved out of the loop.
    shape = (16, agent.hyper.batch_size + 1, *env.observation_shape)
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

    chunk = jit(
        lambda state, frames: jax.lax.fori_loop(0, frames, frame, state), one_thread=at_once > 1, donate_argnums=0
    )
    states = [jax.jit(agent.init)(jax.random.key(seed)) for seed in seeds]

    def run(frames: int) -> None:
        nonlocal states
        with ThreadPoolExecutor(at_once) as pool:
            states = list(pool.map(lambda state: jax.block_until_ready(chunk(state, jnp.int32(frames))), states))

    return run
