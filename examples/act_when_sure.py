"""Act only when sure: hand over to a fallback whenever the agent's own doubt is high.

A bootstrapped agent learns CartPole. What doubt is usual, it has seen in its own episodes; where the doubt about the
action it would take is above the 95th percentile of that, a simple rule takes over. Then the cart is knocked about,
which training never saw, and the share of decisions that are handed over rises.

python examples/act_when_sure.py --frames 2000
"""

import argparse
from collections.abc import Callable

import gymnasium as gym
import numpy as np

from ceqr import BootstrappedDQN

parser = argparse.ArgumentParser(description="Defer to a fallback when epistemic uncertainty is high.")
parser.add_argument("--frames", type=int, default=20_000)
parser.add_argument("--episodes", type=int, default=5)
options = parser.parse_args()


def fallback(observation: np.ndarray) -> int:
    """Push to the side to which the pole is falling."""
    return int(observation[2] + observation[3] > 0)


def play(decide: Callable[[np.ndarray], int], knock: float) -> float:
    """The mean return of some episodes; a knock turns the pole at random, ten steps apart."""
    env, rng, returns = gym.make("CartPole-v1"), np.random.default_rng(0), []
    for episode in range(options.episodes):
        observation, _ = env.reset(seed=episode)
        total, over, step = 0.0, False, 0
        while not over:
            if step % 10 == 9:
                turned = np.array(env.unwrapped.state) + np.array([0, 0, 0, knock * rng.normal()])  # pyright: ignore
                env.unwrapped.state, observation = tuple(turned), turned.astype(np.float32)  # pyright: ignore
            observation, reward, terminated, truncated, _ = env.step(decide(observation))
            total, over, step = total + float(reward), terminated or truncated, step + 1
        returns.append(total)
    return float(np.mean(returns))


agent = BootstrappedDQN("CartPole-v1", seed=0)
agent.learn(options.frames, progress_bar=True)

doubts: list[float] = []


def remember(observation: np.ndarray) -> int:
    action, beliefs = agent.predict(observation)
    doubts.append(beliefs.epistemic[action])
    return action


print(f"the agent alone:                mean return {play(remember, knock=0.0):6.1f}")
limit = np.quantile(doubts, 0.95)

for knock in (0.0, 1.0):
    handed_over: list[bool] = []

    def act_when_sure(observation: np.ndarray, seen: list[bool] = handed_over) -> int:
        action, beliefs = agent.predict(observation)
        unsure = beliefs.epistemic[action] > limit
        seen.append(bool(unsure))
        return fallback(observation) if unsure else action

    score = play(act_when_sure, knock)
    print(f"with a fallback, knocks of {knock:.0f}: mean return {score:6.1f}, {np.mean(handed_over):5.1%} handed over")
