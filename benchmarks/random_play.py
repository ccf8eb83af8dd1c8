"""What uniformly random actions score on MinAtar: the zero of normalised scores in `ceqr report`.

    python benchmarks/random_play.py > src/ceqr/experiments/data/random-play-minatar.csv    # two minutes

Each of 4,000 games plays one whole episode, the released protocol in as many worlds. Prints a row for each game and
protocol: the mean return, its standard error, and the best episode.
"""

import sys
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ceqr import envs
from ceqr.cli import use_compilation_cache
from ceqr.envs.minatar import GAMES, PROTOCOLS

EPISODES = 4_000
STRETCH = 100  # frames between two looks whether all games are over


@partial(jax.jit, static_argnums=0)
def play(env: Any, games: Any, key: jax.Array) -> Any:
    """A stretch of random actions in all games; what follows an episode's end does not count."""

    def frame(games: Any, key: jax.Array) -> tuple[Any, None]:
        state, total, going = games
        keys = jax.random.split(key, EPISODES + 1)
        action = jax.random.randint(keys[0], (EPISODES,), 0, env.num_actions)
        state, step = jax.vmap(env.step)(state, action, keys[1:])
        total = total + jnp.where(going, step.reward, 0)
        return (state, total, going & ~(step.terminated | step.truncated)), None

    return jax.lax.scan(frame, games, jax.random.split(key, STRETCH))[0]


def random_returns(env: Any, seed: int = 0) -> np.ndarray:
    """The returns of the episodes."""
    key = jax.random.key(seed)
    key, reset_key = jax.random.split(key)
    state, _ = jax.vmap(env.reset)(jax.random.split(reset_key, EPISODES))
    games = (state, jnp.zeros(EPISODES), jnp.ones(EPISODES, bool))
    while games[2].any():
        key, stretch_key = jax.random.split(key)
        games = play(env, games, stretch_key)
    return np.asarray(games[1], np.float64)


def main() -> None:
    use_compilation_cache()
    print("env,protocol,episodes,mean,standard_error,max")
    for game in GAMES:
        for protocol in PROTOCOLS:
            returns = random_returns(envs.make(f"minatar/{game}", protocol=protocol))
            error = returns.std(ddof=1) / np.sqrt(EPISODES)
            print(
                f"minatar/{game},{protocol},{EPISODES},{returns.mean():.4f},{error:.4f},{returns.max():g}", flush=True
            )
            print(f"{game}, {protocol}: {returns.mean():.3f} ± {error:.3f}", file=sys.stderr)


if __name__ == "__main__":
    main()
