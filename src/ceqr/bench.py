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
import optax

from ceqr.agents.base import AgentState
from ceqr.compilation import jit, side_by_side
from ceqr.config import RunConfig
from ceqr.training.compiled import CHUNK_FRAMES
from ceqr.training.players import Player
from ceqr.training.train import player_of

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
    whole, bare = in_turns([loop_runner(config), bare_runner(config)], seconds, repeats)
    return Measurement(
        env=config.env,
        agent=config.agent,
        hidden=config.hyper.hidden,
        seeds=config.seeds,
        parameters=player_of(config).loop.agent.parameter_count(),
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
    config: RunConfig[Any], prepare: Callable[[Player], None] = Player.start, frame: int = 0
) -> Callable[[int], None]:
    """Plays that many frames of the whole loop, learning, as `ceqr train` does, in either kind of environment.

    What is measured begins after some frames without learning, so that batches are drawn from many episodes;
    `prepare` makes the states of all seeds, and `frame` is theirs.
    """
    player = player_of(config, learning_starts=frame + CHUNK_FRAMES)
    prepare(player)

    def run(frames: int) -> None:
        nonlocal frame
        last = frame + frames
        while frame < last:
            frame, _ = player.run(frame, last)

    run(CHUNK_FRAMES)
    return run


def bare_runner(config: RunConfig[Any]) -> Callable[[int], None]:
    """Does the arithmetic of that many frames, on cores and threads as `loop_runner` does."""
    player = player_of(config)
    agent, at_once = player.loop.agent, side_by_side(config.seeds)
    every = agent.hyper.update_every
    # Several batches, so that nothing can be moved out of the loop.
    shape = (16, agent.hyper.batch_size + 1, *agent.observation_shape)
    batches = jax.random.bernoulli(jax.random.key(0), 0.1, shape).astype(jnp.float32)

    def update(i: jax.Array, state: AgentState) -> AgentState:
        """One update, and the forward passes to act on in the frames that go without."""
        x = batches[i % len(batches)]

        def objective(params: Any) -> jax.Array:
            outputs = agent.forward(params, state.frozen, x, None)
            return sum((jnp.sum(out**2) for out in jax.tree.leaves(outputs)), jnp.zeros(()))

        # Of the target network only what values the successors is needed, as in the real loss.
        target = jnp.mean(agent.beliefs_of(state, agent.forward(state.target, state.frozen, x[1:], None)).mean)
        for frame in range(every - 1):
            target += jnp.mean(
                agent.beliefs_of(state, agent.forward(state.params, state.frozen, x[frame : frame + 1], None)).mean
            )
        updates, optimiser = agent.optimiser.update(
            jax.grad(lambda params: objective(params) * target)(state.params), state.optimiser, state.params
        )
        return state._replace(params=optax.apply_updates(state.params, updates), optimiser=optimiser)

    def update_often(state: AgentState, updates: jax.Array) -> AgentState:
        return jax.lax.fori_loop(0, updates, update, state)

    chunk = jit(update_often, one_thread=player.one_thread, donate_argnums=0)
    states = [jax.jit(agent.init)(jax.random.key(seed)) for seed in config.seed_numbers]

    def run(frames: int) -> None:
        nonlocal states
        updates = jnp.int32(max(1, frames // every))
        with ThreadPoolExecutor(at_once) as pool:
            states = list(pool.map(lambda state: jax.block_until_ready(chunk(state, updates)), states))

    return run
