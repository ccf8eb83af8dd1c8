"""That it learns: probes whose optimum and return distribution are known, and Breakout against random play."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import ceqr
from ceqr.agents.ceqr_dqn import CEQRDQNHyperparameters
from ceqr.config import default_config
from ceqr.envs import make
from ceqr.envs.base import Environment
from ceqr.envs.maze import Kind
from ceqr.evaluate import play_episodes
from ceqr.losses import quantile_levels
from ceqr.training.loop import Loop, LoopState
from ceqr.training.players import make_loop, make_player
from tests.probes import PROBE_OPTIONS, NoisyChain, go_on, join, train_probe

pytestmark = pytest.mark.slow
train_fast = pytest.mark.usefixtures("thorough_compiler")

HYPER = CEQRDQNHyperparameters(**PROBE_OPTIONS, lambda_ep=0.5)  # pyright: ignore[reportArgumentType]


def _probe(env: Environment, **changes: Any) -> Loop:
    return make_loop("ceqr-dqn", dataclasses.replace(HYPER, **changes), env)


def _first(states: LoopState) -> Any:
    return jax.tree.map(lambda x: x[0], states.agent)


@train_fast
@pytest.mark.parametrize("calibration", ["paper", "none"])
def test_finds_the_optimum_of_the_noisy_chain(calibration: str) -> None:
    loop = _probe(NoisyChain(), calibration=calibration)
    state = _first(train_probe(loop, NoisyChain(), 6_000))
    assert np.asarray(loop.agent.act_greedily(state, jnp.eye(4)[:3])[0]).tolist() == [1, 1, 1]


@train_fast
def test_learns_the_distribution_of_returns_of_the_noisy_chain() -> None:
    """Plain quantile regression (kappa 0, no calibration) recovers the quantiles of Normal(1.5, 1), discounted.

    At step k the return of going on is 0.9^(2-k) Normal(1.5, 1).
    """
    loop = _probe(NoisyChain(), calibration="none", kappa=0.0, learning_rate=5e-4)
    network = _first(train_probe(loop, NoisyChain(), 20_000)).params
    found = np.asarray(network(jnp.eye(4)[:3]).quantiles)[:, 1]
    levels = np.asarray(quantile_levels(20, jnp.float32))
    for step, discount in enumerate((0.81, 0.9, 1.0)):
        expected = discount * stats.norm.ppf(levels, 1.5, 1.0)
        # Typical error of 5,000 stored rewards and constant learning rate; the spread alone is 3.2 wide.
        assert np.abs(found[step] - expected).mean() < 0.15, step
    given_up = np.asarray(network(jnp.eye(4)[:3]).quantiles)[:, 0]
    assert np.abs(given_up - 0.5).mean() < 0.15  # no noise: all quantiles in one place


@train_fast
def test_breakout_quick_plays_far_better_than_chance() -> None:
    """Random play scores about 0.5 bricks an episode; within 30,000 frames the preset `quick` several times that.

    Training ends when it looks as if it did; then other greedy episodes tell whether it does.
    """
    config = default_config("ceqr-dqn", "quick", "minatar/breakout")
    env = config.make_env()
    loop = make_loop(config.agent, config.hyper, env)
    player = make_player(loop, env, range(1))
    player.start()

    def greedily(seed: int, episodes: int) -> np.ndarray:
        state = _first(join(player.groups))
        return np.array(play_episodes(loop.agent, state, env, seed, episodes, limit=2_000)[0])

    frame, found = 0, False
    while frame < 30_000 and not found:  # it may well be earlier
        go_on(player, frame, frame + (more := 2_500 if frame else 10_000))
        frame += more
        found = bool(greedily(seed=122, episodes=50).mean() > 2.0)
    learned = greedily(seed=123, episodes=200)
    chance = np.asarray(_random_play(env, jax.random.key(123), episodes=200, frames=300))
    assert chance.mean() < 1.0
    assert learned.mean() > 1.5
    assert stats.mannwhitneyu(learned, chance, alternative="greater").pvalue < 1e-6


def _random_play(env: Environment, key: jax.Array, episodes: int, frames: int) -> jax.Array:
    """Returns of one episode in each game under uniformly random actions."""

    def game(key: jax.Array) -> jax.Array:
        reset_key, *keys = jax.random.split(key, frames + 1)
        state, _ = env.reset(reset_key)

        def step(carry: Any, key: jax.Array) -> tuple[Any, None]:
            state, total, over = carry
            action_key, step_key = jax.random.split(key)
            state, after = env.step(state, jax.random.randint(action_key, (), 0, env.num_actions), step_key)
            return (state, total + jnp.where(over, 0, after.reward), over | after.terminated), None

        (_, total, over), _ = jax.lax.scan(step, (state, jnp.float32(0), jnp.bool_(False)), jnp.stack(keys))
        return jnp.where(over, total, jnp.nan)

    returns = jax.jit(jax.vmap(game))(jax.random.split(key, episodes))
    assert jnp.isfinite(returns).all()
    return returns


@pytest.mark.parametrize("game", ["asterix", "freeway", "seaquest", "space_invaders"])
def test_every_game_trains(game: str) -> None:
    """A few updates on each of the other games: shapes fit, losses are finite, the network moves."""
    hyper = dataclasses.replace(HYPER, hidden=(16,), quantiles=5, batch_size=8, learning_starts=100)
    env = make(f"minatar/{game}")
    loop = make_loop("ceqr-dqn", hyper, env)
    states = train_probe(loop, env, 200, seeds=2)
    assert np.asarray(states.tally.updates).tolist() == [100, 100]
    before = jax.jit(make_player(loop, env, range(2)).init_group)(jnp.arange(2)).agent.params
    assert not np.array_equal(states.agent.params.quantile_head.weight, before.quantile_head.weight)


@train_fast
def test_cartpole_is_solved_with_the_defaults_for_vectors() -> None:
    """A random player keeps the pole up for some 20 steps; 500 is the most there is."""
    agent = ceqr.CEQRDQN("gymnax/CartPole-v1", seed=0)
    best = 0.0
    while agent.frames < 60_000 and best < 400:  # it may well be solved earlier
        agent.learn(5_000)
        best = agent.evaluate(20).mean()
    assert best >= 400


@train_fast
def test_acrobot_is_solved_with_the_defaults_for_vectors() -> None:
    """Every step costs 1 until the tip is up, 500 at most: random play hardly ever gets there."""
    agent = ceqr.CEQRDQN("Acrobot-v1", seed=0)
    best = -500.0
    while agent.frames < 30_000 and best < -120:
        agent.learn(3_000)
        best = agent.evaluate(20).mean()
    assert best >= -120


@train_fast
@pytest.mark.parametrize("name", ["ceqr-dqn", "ua-dqn"])
def test_falls_go_down_as_aversion_to_risk_rises(name: str) -> None:
    """On a cliff whose edge is better on average, who looks at the mean falls; who minds risk walks round, or stays.

    Falls are those of the greedy policy in the maze's own model, so that no luck is in them.
    """
    env = make("maze/cliff", width=3, wind=0.1)
    config = default_config(name, "vector", "maze/cliff")
    options: dict[str, Any] = {
        "hidden": (64,), "quantiles": 10, "batch_size": 32, "learning_starts": 200, "learning_rate": 2e-3,
    }  # fmt: skip
    if name == "ua-dqn":
        options["lambda_ep"] = 2.0  # its authors' on this cliff; with less it takes long to find the way round
    falls = {}
    for lambda_al in (0.0, 1.0):
        loop = make_loop(name, dataclasses.replace(config.hyper, **options, lambda_al=lambda_al), env)
        player = make_player(loop, env, range(3))
        player.start()
        for frame in (0, 3_000, 6_000):  # it may well be earlier that the averse have learned to be so
            go_on(player, frame, frame + 3_000)
            states = join(player.groups).agent
            policies = [
                loop.agent.act_greedily(jax.tree.map(lambda x, i=i: x[i], states), jnp.asarray(env.cell_observations()))
                for i in range(3)
            ]
            falls[lambda_al] = [env.episodes(p).visits[env.kinds == Kind.CLIFF].sum() for p, _ in policies]
            if np.allclose(falls[lambda_al], 0.1 if lambda_al == 0 else 0):
                break
        player.close()
    np.testing.assert_allclose(falls[0.0], 0.1)
    np.testing.assert_allclose(falls[1.0], 0, atol=1e-12)
