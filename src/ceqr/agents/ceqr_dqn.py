"""CEQR-DQN: calibrated evidential quantile regression in deep Q networks (Stutts et al., UAI 2024).

A quantile network in the manner of QR-DQN, with a second head that predicts a Normal-Inverse-Gamma distribution
over the 5th and 95th percentile of each of the N quantiles. The spread between the percentiles is the world's noise
(aleatoric), the spread of the NIG's mean is the agent's doubt (epistemic), and the doubt drives a Thompson sample.
docs/algorithms.md has the equations and every choice.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp

from ceqr import losses
from ceqr.agents.base import (
    TORSOS,
    AgentState,
    Batch,
    Beliefs,
    Metrics,
    Successors,
    pick,
)
from ceqr.agents.qr_dqn import quantile_targets
from ceqr.agents.thompson import ThompsonAgent, ThompsonHyperparameters
from ceqr.networks import Linear, Torso, torso

INTERVAL_COVERAGE = 0.9  # of the interval between the 5th and the 95th percentile
LAMBDA_EP = {  # the paper's Table 1
    "minatar/asterix": 0.001,
    "minatar/breakout": 0.01,
    "minatar/freeway": 0.0002,
    "minatar/seaquest": 0.005,
    "minatar/space_invaders": 0.0005,
}


@dataclass(frozen=True)
class CEQRDQNHyperparameters(ThompsonHyperparameters):
    """CEQR-DQN's own options, on top of those of every agent."""

    hidden: tuple[int, ...] = field(default=(1600,), metadata={"least": 1})
    """Units of each dense layer between the convolution and the heads; none for the paper's text."""
    torso: str = field(default="padded", metadata={"choices": TORSOS})
    """Convolution of image observations: padded (PReLU; the paper's) or standard (MinAtar's: no padding, ReLU)."""
    quantiles: int = field(default=50, metadata={"least": 2})
    """N, the quantiles that describe the return of an action."""
    kappa: float = field(default=1.0, metadata={"least": 0.0})
    """Threshold of the quantile Huber loss; 0 is the plain pinball loss."""
    lambda_ep: float = field(default=0.01, metadata={"least": 0.0})
    """Weight of the epistemic uncertainty as the variance of the Thompson sample; the default depends on the game."""
    lambda_reg: float = field(default=0.5, metadata={"least": 0.0})
    """Weight of the evidence regulariser."""
    lambda_cal: float = field(default=0.5, metadata={"least": 0.0, "most": 1.0})
    """Weight of sharpness against coverage in both calibration losses."""
    calibration: str = field(default="paper", metadata={"choices": ("paper", "released", "none")})
    """Calibration losses: the paper's equations, what the authors' code computes, or none."""

    def for_env(self, env: str) -> Self:
        return dataclasses.replace(self, lambda_ep=LAMBDA_EP.get(env, self.lambda_ep))


class CEQRNetwork(eqx.Module):
    """A torso and two linear heads: [A, N] quantiles and [A, 4, 2, N] raw NIG parameters an observation."""

    torso: Torso
    quantile_head: Linear
    evidence_head: Linear
    num_actions: int = eqx.field(static=True)
    quantiles: int = eqx.field(static=True)

    def __init__(self, key: jax.Array, body: Torso, num_actions: int, quantiles: int):
        quantile_key, evidence_key = jax.random.split(key)
        self.torso = body
        self.quantile_head = Linear(quantile_key, body.features, num_actions * quantiles)
        self.evidence_head = Linear(evidence_key, body.features, num_actions * 4 * 2 * quantiles)
        self.num_actions = num_actions
        self.quantiles = quantiles

    def __call__(self, observation: jax.Array) -> "CEQROutputs":
        features = self.torso(observation)
        shape = (len(observation), self.num_actions)
        return CEQROutputs(
            quantiles=self.quantile_head(features).reshape(*shape, self.quantiles),
            evidence=self.evidence_head(features).reshape(*shape, 4, 2, self.quantiles),
        )


class CEQROutputs(NamedTuple):
    quantiles: jax.Array  # [batch, A, N]
    evidence: jax.Array  # [batch, A, 4, 2, N]: raw gamma, nu, alpha, beta of the two percentiles


def _nig(evidence: jax.Array) -> losses.NIG:
    """NIG parameters [..., 2, N] from raw head outputs [..., 4, 2, N]."""
    # A split, not four slices: its gradient is one concatenation, and theirs four sums with zeros.
    return losses.nig_from_raw(*(part.squeeze(-3) for part in jnp.split(evidence, 4, axis=-3)))


@dataclass(frozen=True)
class CEQRDQN(ThompsonAgent):
    """The agent; acting is the paper's Algorithm 1."""

    hyper: CEQRDQNHyperparameters

    def init_params(self, key: jax.Array) -> CEQRNetwork:
        torso_key, heads_key = jax.random.split(key)
        body = torso(torso_key, self.observation_shape, self.hyper.hidden, self.hyper.torso)
        return CEQRNetwork(heads_key, body, self.num_actions, self.hyper.quantiles)

    def beliefs(self, outputs: CEQROutputs, state: AgentState) -> Beliefs:
        aleatoric, epistemic = losses.uncertainty(_nig(outputs.evidence))
        return Beliefs(outputs.quantiles.mean(-1), epistemic, aleatoric, outputs.quantiles)

    def deviation(self, epistemic: jax.Array) -> jax.Array:
        # The paper multiplies lambda_ep by a standard deviation and uses the product as a variance. So do we.
        return jnp.sqrt(self.hyper.lambda_ep * epistemic)

    def loss(
        self, outputs: CEQROutputs, successors: Successors, batch: Batch, state: AgentState
    ) -> tuple[jax.Array, Metrics]:
        hyper = self.hyper
        following = successors.target.quantiles
        target = quantile_targets(following, following, batch, hyper.discount)

        theta = pick(outputs.quantiles, batch.action)
        nig = _nig(pick(outputs.evidence, batch.action))
        lower, upper = nig.gamma[:, 0], nig.gamma[:, 1]

        terms = {
            "quantile_huber": losses.quantile_huber(theta, target, hyper.kappa),
            "calibration": losses.calibration(theta, target, hyper.calibration, hyper.lambda_cal),
            "evidential": losses.evidential(target, nig, hyper.lambda_reg),
            "interval": losses.interval_calibration(
                lower, upper, target, hyper.calibration, hyper.lambda_cal, INTERVAL_COVERAGE
            ),
        }
        measures = {
            "coverage": jnp.mean((lower <= target) & (target <= upper)),
            "quantile_coverage_error": losses.quantile_coverage_error(theta, target),
        }
        return sum(terms.values(), jnp.zeros(())), terms | measures
