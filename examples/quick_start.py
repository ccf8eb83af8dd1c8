"""Train CEQR-DQN on CartPole, look at what it believes, save it and load it again.

python examples/quick_start.py             # a few minutes
python examples/quick_start.py --frames 2000
"""

import argparse
import tempfile
from pathlib import Path

import gymnasium as gym

from ceqr import CEQRDQN

parser = argparse.ArgumentParser(description="Train, predict, save, load.")
parser.add_argument("--frames", type=int, default=60_000)
options = parser.parse_args()

agent = CEQRDQN("CartPole-v1", seed=0)
agent.learn(options.frames, progress_bar=True)
print(f"mean return of 10 greedy episodes: {agent.evaluate(10).mean():.1f}")

env = gym.make("CartPole-v1")
observation, _ = env.reset(seed=1)
action, beliefs = agent.predict(observation)
for name, number in (("left", 0), ("right", 1)):
    print(
        f"{name:>5}: expected return {beliefs.mean[number]:.2f}, own doubt {beliefs.epistemic[number]:.2f}, "
        f"the world's noise {beliefs.aleatoric[number]:.2f}"
    )
print(f"it would go {'right' if action else 'left'}")

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder, "agent.ceqr")
    agent.save(path)
    again = CEQRDQN.load(path)  # needs no environment
    assert again.predict(observation)[0] == action
    print(f"saved and loaded: {path.stat().st_size / 1e6:.1f} MB")
