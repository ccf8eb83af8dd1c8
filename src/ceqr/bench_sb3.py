"""Our QR-DQN against sb3-contrib's: same game, network, batch, replay and updates, measured in turns in one run."""

# pyright: reportMissingImports=false
import dataclasses
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ceqr.bench import in_turns, loop_runner
from ceqr.config import RunConfig
from ceqr.errors import UserError
from ceqr.training.compiled import CHUNK_FRAMES


@dataclass(frozen=True)
class Versus:
    """Frames a second."""

    ours: float
    theirs: float

    @property
    def ratio(self) -> float:
        return self.ours / self.theirs

    def to_json(self) -> dict[str, float]:
        return {**dataclasses.asdict(self), "ratio": self.ratio}


def require_sb3() -> None:
    """Raises `UserError` if the extra is not installed."""
    missing = [m for m in ("sb3_contrib", "torch", "gymnasium", "minatar") if importlib.util.find_spec(m) is None]
    if missing:
        raise UserError(f"--sb3 needs {', '.join(missing)}; install them with: pip install 'ceqr[bench]'")


def measure_sb3(config: RunConfig[Any], seconds: float, repeats: int) -> Versus:
    """Measures both about `seconds` long, `repeats` times, in turns; medians."""
    runners = [loop_runner(config), sb3_runner(config)]
    return Versus(*in_turns(runners, seconds, repeats))


def sb3_vector_runner(config: RunConfig[Any]) -> Callable[[int], None]:
    """sb3-contrib's QR-DQN in a Gymnasium environment with vectors, with our settings."""
    from sb3_contrib import QRDQN

    hyper = config.hyper
    model = QRDQN(
        "MlpPolicy",
        config.env.partition("/")[2],
        learning_rate=hyper.learning_rate,
        buffer_size=hyper.replay_size,
        learning_starts=CHUNK_FRAMES,
        batch_size=hyper.batch_size,
        gamma=hyper.discount,
        train_freq=hyper.update_every,
        gradient_steps=1,
        target_update_interval=hyper.target_period,
        policy_kwargs={"net_arch": list(hyper.hidden), "n_quantiles": hyper.quantiles},
        device="cpu",
        seed=0,
    )
    return _learner(model)


def sb3_runner(config: RunConfig[Any]) -> Callable[[int], None]:
    """sb3-contrib's QR-DQN in a game of MinAtar, with our settings."""
    return _learner(sb3_minatar(config, learning_starts=CHUNK_FRAMES))


def sb3_minatar(config: RunConfig[Any], **settings: Any) -> Any:
    """The model behind it, with our network, and with our settings where no others are given."""
    import gymnasium
    import torch
    from minatar import Environment
    from sb3_contrib import QRDQN
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

    hyper = config.hyper

    class Game(gymnasium.Env):
        """The original MinAtar, channels first as PyTorch has them."""

        def __init__(self) -> None:
            sticky = 0.1 if config.protocol == "standard" else 0.0
            self.game = Environment(config.env.rpartition("/")[2], sticky_action_prob=sticky)
            self.actions = self.game.minimal_action_set()
            height, width, channels = self.game.state_shape()
            self.observation_space = gymnasium.spaces.Box(0, 1, (channels, height, width), np.uint8)
            self.action_space = gymnasium.spaces.Discrete(len(self.actions))

        def _observe(self) -> np.ndarray:
            return self.game.state().astype(np.uint8).transpose(2, 0, 1)

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
            self.game.seed(seed)
            self.game.reset()
            return self._observe(), {}

        def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
            reward, over = self.game.act(self.actions[int(action)])
            return self._observe(), float(reward), bool(over), False, {}

    class Torso(BaseFeaturesExtractor):
        """The MinAtar standard: 16 filters of 3x3 without padding, then one dense layer."""

        def __init__(self, observation_space: Any) -> None:
            super().__init__(observation_space, features_dim=hyper.hidden[0])
            channels, height, width = observation_space.shape
            self.layers = torch.nn.Sequential(
                torch.nn.Conv2d(channels, 16, 3),
                torch.nn.ReLU(),
                torch.nn.Flatten(),
                torch.nn.Linear(16 * (height - 2) * (width - 2), hyper.hidden[0]),
                torch.nn.ReLU(),
            )

        def forward(self, observation: Any) -> Any:
            return self.layers(observation.float())

    ours = {
        "learning_rate": hyper.learning_rate,
        "buffer_size": hyper.replay_size,
        "batch_size": hyper.batch_size,
        "gamma": hyper.discount,
        "train_freq": 1,
        "gradient_steps": 1,
        "target_update_interval": hyper.target_period,
        "seed": 0,
    }
    policy = {
        "features_extractor_class": Torso,
        "net_arch": [],
        "n_quantiles": hyper.quantiles,
        "normalize_images": False,
    }
    return QRDQN("CnnPolicy", Game(), policy_kwargs=policy, device="cpu", **(ours | settings))


def _learner(model: Any) -> Callable[[int], None]:
    model.learn(CHUNK_FRAMES)  # fills replay, as for ours

    def run(frames: int) -> None:
        model.learn(frames, reset_num_timesteps=False)

    return run
