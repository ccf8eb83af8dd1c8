"""An environment of one's own: cross a road now, at some risk, or wait; then ask the agent to be careful.

Crossing early pays 1.2 but, once in four times, costs 2: on average 0.4. Waiting pays 0.2 for sure. An agent that looks
at the mean crosses; one that is averse to risk (`lambda_al`) waits. Nothing is trained again: aversion is chosen when
acting.

python examples/custom_environment.py --frames 3000
"""

import argparse
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from ceqr import QRDQN

WAIT, CROSS = 0, 1


class Road(gym.Env[np.ndarray, np.int64]):
    """One decision an episode."""

    observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        return np.ones(1, np.float32), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict]:
        crossed = 1.2 if self.np_random.random() < 0.75 else -2.0
        return np.ones(1, np.float32), crossed if action == CROSS else 0.2, True, False, {}


parser = argparse.ArgumentParser(description="A custom environment, and risk aversion at prediction time.")
parser.add_argument("--frames", type=int, default=6_000)
options = parser.parse_args()

agent = QRDQN(Road(), seed=0, hidden=(32,), learning_rate=1e-3, epsilon_end=1.0)  # it tries both for ever
agent.learn(options.frames, progress_bar=True)

observation = np.ones(1, np.float32)
_, beliefs = agent.predict(observation)
print(f"wait:  mean {beliefs.mean[WAIT]:5.2f}, noise {beliefs.aleatoric[WAIT]:.2f}")
print(f"cross: mean {beliefs.mean[CROSS]:5.2f}, noise {beliefs.aleatoric[CROSS]:.2f}")
for lambda_al in (0.0, 0.5):
    action, _ = agent.predict(observation, lambda_al=lambda_al)
    print(f"lambda_al {lambda_al}: {'cross' if action == CROSS else 'wait'}")
