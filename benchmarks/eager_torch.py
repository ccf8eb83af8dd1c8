"""CEQR-DQN in eager PyTorch, written plainly: what a competent user would write who knows neither JAX nor this library.

It is measured against (benchmarks/run.py), and it is an oracle: tests/benchmarks/test_eager_torch.py asks it for the
same losses, gradients and parameters. Nothing here comes from `ceqr`; the equations are those of docs/algorithms.md.
The game is the original `minatar`, the optimiser `torch.optim.Adam` as it comes.
"""

# pyright: reportMissingImports=false
import copy
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from minatar import Environment
from torch import Tensor, nn

FLOOR = 1e-6  # keeps nu, alpha - 1 and beta off zero
PERCENTILES = (0.05, 0.95)
COVERAGE = 0.9


@dataclass(frozen=True)
class Options:
    """The paper's hyperparameters."""

    hidden: int = 1600
    quantiles: int = 50
    batch_size: int = 32
    replay_size: int = 100_000
    learning_starts: int = 5_000
    target_period: int = 1_000
    discount: float = 0.99
    learning_rate: float = 1e-4
    adam_eps: float = 1e-8
    kappa: float = 1.0
    lambda_ep: float = 0.01
    lambda_reg: float = 0.5
    lambda_cal: float = 0.5


class Network(nn.Module):
    """A padded 3x3 convolution with PReLU, one hidden layer, and the two heads."""

    def __init__(self, channels: int, actions: int, hidden: int, quantiles: int):
        super().__init__()
        self.actions, self.quantiles = actions, quantiles
        self.conv = nn.Conv2d(channels, 16, 3, padding=1)
        self.prelu = nn.PReLU(16)
        self.dense = nn.Linear(1600, hidden)
        self.quantile_head = nn.Linear(hidden, actions * quantiles)
        self.evidence_head = nn.Linear(hidden, actions * 4 * 2 * quantiles)
        for layer in (self.conv, self.dense, self.quantile_head, self.evidence_head):
            nn.init.orthogonal_(layer.weight, math.sqrt(2))
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)

    def features(self, observation: Tensor) -> Tensor:
        return F.relu(self.dense(self.prelu(self.conv(observation)).flatten(1)))

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Quantiles [B, A, N] and raw evidence [B, A, 4, 2, N] of observations [B, C, 10, 10]."""
        features = self.features(observation)
        return self.heads_quantiles(features), self.evidence_head(features).view(-1, self.actions, 4, 2, self.quantiles)

    def heads_quantiles(self, features: Tensor) -> Tensor:
        return self.quantile_head(features).view(-1, self.actions, self.quantiles)


def nig(raw: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """gamma, nu, alpha, beta, each [..., 2, N], of raw outputs [..., 4, 2, N]."""
    gamma, nu, alpha, beta = raw.unbind(-3)
    return gamma, F.softplus(nu) + FLOOR, F.softplus(alpha) + 1 + FLOOR, F.softplus(beta) + FLOOR


def quantile_huber(theta: Tensor, target: Tensor, kappa: float) -> Tensor:
    n = theta.shape[1]
    tau = (torch.arange(n, dtype=theta.dtype) + 0.5) / n
    error = target[:, None, :] - theta[:, :, None]  # [B, i, j]
    huber = torch.where(error.abs() <= kappa, 0.5 * error**2, kappa * (error.abs() - 0.5 * kappa))
    weight = (tau[None, :, None] - (error.detach() < 0).to(theta.dtype)).abs()
    return (weight * huber / kappa).mean(2).sum(1).mean()


def evidential(target: Tensor, gamma: Tensor, nu: Tensor, alpha: Tensor, beta: Tensor, lambda_reg: float) -> Tensor:
    error = target[:, None, :] - gamma  # [B, 2, N]
    omega = 2 * beta * (1 + nu)
    nll = (
        0.5 * torch.log(math.pi / nu)
        - alpha * torch.log(omega)
        + (alpha + 0.5) * torch.log(nu * error**2 + omega)
        + torch.lgamma(alpha)
        - torch.lgamma(alpha + 0.5)
    )
    q = torch.tensor(PERCENTILES, dtype=gamma.dtype)[None, :, None]
    pinball = torch.maximum(q * error, (q - 1) * error)
    return (nll + lambda_reg * pinball * (2 * nu + alpha + 1 / beta)).mean((0, 2)).sum()


def calibration(theta: Tensor, target: Tensor, lambda_cal: float) -> Tensor:
    n = theta.shape[1]
    tau = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    covered = (target <= theta).sum(0)
    goal = (tau * len(theta)).float()
    under, over = covered < goal, covered > goal
    cov = (under * F.relu(target - theta) + over * F.relu(theta - target)).mean()
    opposite = theta.flip(1)
    sharp = torch.where(tau <= 0.5, F.relu(opposite - theta), F.relu(theta - opposite)).mean()
    return (1 - lambda_cal) * cov + lambda_cal * sharp


def interval(lower: Tensor, upper: Tensor, target: Tensor, lambda_cal: float) -> Tensor:
    inside = ((lower <= target) & (target <= upper)).sum(0)
    goal = COVERAGE * len(target)
    under, over = inside < goal, inside > goal
    outside = F.relu(target - upper) + F.relu(lower - target)
    within = F.relu(upper - target) + F.relu(target - lower)
    width = upper - lower
    cov = under * outside + over * within
    score = width + 2 / (1 - COVERAGE) * outside
    return ((1 - lambda_cal) * cov + lambda_cal * over * width + score).mean()


class Replay:
    """A ring of preallocated tensors."""

    def __init__(self, size: int, shape: tuple[int, ...]):
        self.observation = torch.zeros((size, *shape), dtype=torch.bool)
        self.successor = torch.zeros((size, *shape), dtype=torch.bool)
        self.action = torch.zeros(size, dtype=torch.int64)
        self.reward = torch.zeros(size)
        self.terminated = torch.zeros(size)
        self.size, self.added = size, 0

    def add(self, observation: Tensor, action: int, reward: float, terminated: bool, successor: Tensor) -> None:
        i = self.added % self.size
        self.observation[i], self.successor[i] = observation, successor
        self.action[i], self.reward[i], self.terminated[i] = action, reward, float(terminated)
        self.added += 1

    def sample(self, n: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        i = torch.randint(min(self.added, self.size), (n,))
        observation, successor = self.observation[i].float(), self.successor[i].float()
        return observation, self.action[i], self.reward[i], self.terminated[i], successor


class Agent:
    """Acting and learning."""

    def __init__(self, channels: int, actions: int, options: Options):
        self.options = options
        self.network = Network(channels, actions, options.hidden, options.quantiles)
        self.target = copy.deepcopy(self.network)
        self.adam = torch.optim.Adam(self.network.parameters(), lr=options.learning_rate, eps=options.adam_eps)

    @torch.no_grad()
    def act(self, observation: Tensor) -> int:
        """A Thompson sample, as in the paper's Algorithm 1."""
        quantiles, evidence = self.network(observation[None].float())
        _, nu, alpha, beta = nig(evidence[0])
        epistemic = torch.sqrt(beta / (nu * (alpha - 1))).sum(1).mean(1)
        mean = quantiles[0].mean(1)
        return int(torch.argmax(mean + torch.sqrt(self.options.lambda_ep * epistemic) * torch.randn_like(mean)))

    def losses(
        self, observation: Tensor, action: Tensor, reward: Tensor, terminated: Tensor, successor: Tensor
    ) -> dict[str, Tensor]:
        """The terms of the loss; their sum is minimised."""
        options, rows = self.options, torch.arange(len(action))
        with torch.no_grad():
            following = self.target.heads_quantiles(self.target.features(successor))
            best = following[rows, following.mean(2).argmax(1)]
            target = reward[:, None] + options.discount * (1 - terminated[:, None]) * best
        quantiles, evidence = self.network(observation)
        theta = quantiles[rows, action]
        gamma, nu, alpha, beta = nig(evidence[rows, action])
        return {
            "quantile_huber": quantile_huber(theta, target, options.kappa),
            "calibration": calibration(theta, target, options.lambda_cal),
            "evidential": evidential(target, gamma, nu, alpha, beta, options.lambda_reg),
            "interval": interval(gamma[:, 0], gamma[:, 1], target, options.lambda_cal),
        }

    def learn(self, *batch: Tensor) -> dict[str, Tensor]:
        """One update."""
        terms = self.losses(*batch)
        self.adam.zero_grad()
        torch.stack(list(terms.values())).sum().backward()
        self.adam.step()
        return terms


class Training:
    """The loop: act, step, store, learn."""

    def __init__(self, game: str, options: Options, seed: int = 0):
        torch.manual_seed(seed)
        self.game = Environment(game, sticky_action_prob=0.0)
        self.game.seed(seed)
        self.actions = self.game.minimal_action_set()
        channels = self.game.state_shape()[2]
        self.agent = Agent(channels, len(self.actions), options)
        self.replay = Replay(options.replay_size, (channels, 10, 10))
        self.options, self.frame = options, 0
        self.game.reset()
        self.observation = self._observe()

    def _observe(self) -> Tensor:
        state: Any = self.game.state()
        return torch.from_numpy(np.ascontiguousarray(state.transpose(2, 0, 1)))

    def run(self, frames: int) -> None:
        """Plays that many frames, with one update each once learning has started."""
        for _ in range(frames):
            action = self.agent.act(self.observation)
            reward, terminated = self.game.act(self.actions[action])
            successor = self._observe()
            self.replay.add(self.observation, action, reward, terminated, successor)
            if terminated:
                self.game.reset()
                successor = self._observe()
            self.observation = successor
            if self.frame >= self.options.learning_starts:
                self.agent.learn(*self.replay.sample(self.options.batch_size))
            self.frame += 1
            if self.frame % self.options.target_period == 0:
                self.agent.target.load_state_dict(self.agent.network.state_dict())
