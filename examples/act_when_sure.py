"""Act only when sure: hand over to a fallback whenever an observation is unlike anything the agent has played.

A bootstrapped agent learns CartPole and is calibrated. From then on every prediction has a novelty, a p-value: where it
is at most 5 %, a simple rule takes over. In the world of its training that happens, at a random step of a new episode,
with probability at most 5 %: that rate is chosen, not tuned. Then the cart is knocked about, which training never saw,
and the share of decisions that are handed over rises.

python examples/act_when_sure.py --frames 2000
"""

import argparse
from collections.abc import Callable

import gymnasium as gym
import numpy as np

from ceqr import BootstrappedDQN

parser = argparse.ArgumentParser(description="Defer to a fallback where an observation is novel.")
parser.add_argument("--frames", type=int, default=20_000, help="frames to learn from")
parser.add_argument("--episodes", type=int, default=100, help="episodes to play in each of the four trials")
parser.add_argument("--calibration", type=int, default=200, help="episodes to calibrate on")
parser.add_argument("--rate", type=float, default=0.05, help="share of decisions to hand over where nothing is new")
options = parser.parse_args()


def fallback(observation: np.ndarray) -> int:
    """Push to the side to which the pole is falling."""
    return int(observation[2] + observation[3] > 0)


def play(decide: Callable[[np.ndarray], tuple[int, bool]], knock: float) -> tuple[float, float]:
    """The mean return of some episodes, and the mean share of their decisions that were strange.

    A knock turns the pole at random, ten steps apart.
    """
    env, rng, returns, shares = gym.make("CartPole-v1"), np.random.default_rng(0), [], []
    for episode in range(options.episodes):
        observation, _ = env.reset(seed=episode)
        strange, over = [], False
        while not over:
            if len(strange) % 10 == 9:
                turned = np.array(env.unwrapped.state) + np.array([0, 0, 0, knock * rng.normal()])  # pyright: ignore
                env.unwrapped.state, observation = tuple(turned), turned.astype(np.float32)  # pyright: ignore
            action, novel = decide(observation)
            strange.append(novel)
            observation, _, terminated, truncated, _ = env.step(action)
            over = terminated or truncated
        returns.append(len(strange))  # every step pays 1
        shares.append(np.mean(strange))
    return float(np.mean(returns)), float(np.mean(shares))


agent = BootstrappedDQN("CartPole-v1", seed=0)
agent.learn(options.frames, progress_bar=True)
agent.calibrate(options.calibration, progress_bar=True)


def alone(observation: np.ndarray) -> tuple[int, bool]:
    action, beliefs = agent.predict(observation)
    return action, bool(beliefs.novelty <= options.rate)


def when_sure(observation: np.ndarray) -> tuple[int, bool]:
    action, novel = alone(observation)
    return (fallback(observation) if novel else action), novel


for name, decide, knock in (
    ("the agent alone", alone, 0.0),
    ("with a fallback", when_sure, 0.0),
    ("the agent alone, knocked about", alone, 1.0),
    ("with a fallback, knocked about", when_sure, 1.0),
):
    score, share = play(decide, knock)
    what = "handed over" if decide is when_sure else "strange"
    print(f"{name:<31} mean return {score:6.1f}, {share:6.1%} of the decisions {what}")
