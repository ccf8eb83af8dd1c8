"""CEQR-DQN: calibrated evidential quantile regression in deep Q networks (Stutts et al., UAI 2024).

A quantile network in the manner of QR-DQN, with a second head that predicts a Normal-Inverse-Gamma distribution
over the 5th and 95th percentile of each of the N quantiles. The spread between the percentiles is the world's noise
(aleatoric), the spread of the NIG's mean is the agent's doubt (epistemic), and the doubt drives a Thompson sample.
docs/algorithms.md has the equations and every choice.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

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
    discount_of_rest,
    pick,
)
from ceqr.agents.evidence import (
    Evidence,
    Fourier,
    count,
    following,
    following_twice,
    hear,
    nothing_seen,
    refresh,
    to_phi,
)
from ceqr.agents.evidence import inverse_nu as evidence_of
from ceqr.agents.qr_dqn import quantile_targets
from ceqr.agents.thompson import ThompsonAgent, ThompsonHyperparameters
from ceqr.errors import UserError
from ceqr.networks import MOST_FEATURES, Linear, Torso, torso

INTERVAL_COVERAGE = 0.9  # of the interval between the 5th and the 95th percentile
NORMAL_WIDTH = 3.29  # standard deviations between the 5th and the 95th percentile of a normal distribution
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
    """Weight of the epistemic uncertainty in exploration. With learned evidence the product is the variance of the
    Thompson sample, as in the paper, and the default depends on the game; with conjugate evidence it is the standard
    deviation, and 1 serves everywhere."""
    lambda_reg: float = field(default=0.5, metadata={"least": 0.0})
    """Weight of the evidence regulariser."""
    lambda_cal: float = field(default=0.5, metadata={"least": 0.0, "most": 1.0})
    """Weight of sharpness against coverage in both calibration losses."""
    calibration: str = field(default="paper", metadata={"choices": ("paper", "released", "none")})
    """Calibration losses: the paper's equations, what the authors' code computes, or none."""
    calibrate_quantiles: bool = True
    """Whether the quantiles of the return are calibrated."""
    calibrate_interval: bool = True
    """Whether the interval between the percentiles is calibrated."""
    coverage_window: int = field(default=1, metadata={"least": 1})
    """Updates over which the interval's coverage is averaged before it is judged; 1 for the batch alone (the paper)."""
    location: str = field(default="joint", metadata={"choices": ("joint", "calibrated")})
    """What moves the percentiles: the likelihood and their calibration (joint, the paper's), or the latter alone."""
    evidence: str = field(default="learned", metadata={"choices": ("learned", "conjugate")})
    """Where doubt comes from: the network (learned, the paper's), or counts of what was played (conjugate)."""
    evidence_features: int = field(default=0, metadata={"least": 0, "most": 4_096})
    """With conjugate evidence: by how many features it tells states apart, which bounds how many it can; for images at
    most as many as the last hidden layer has units. 0 for as many as that, and at most 256."""
    prior_scale: float = field(default=10.0, metadata={"least": 1e-6, "most": 1e6})
    """With conjugate evidence: the standard deviation of a return of which nothing is known, in units of reward."""
    double: bool = False
    """Let the learning network choose the successor's action and the target network value it (van Hasselt 2016)."""

    def check(self) -> None:
        super().check()
        if self.evidence == "conjugate" and self.location == "joint":
            raise UserError(
                "--evidence conjugate has no likelihood to move the percentiles, so it needs --location calibrated."
            )

    def for_env(self, env: str) -> Self:
        if self.evidence == "conjugate":
            return self  # one lambda_ep serves everywhere
        return dataclasses.replace(self, lambda_ep=LAMBDA_EP.get(env, self.lambda_ep))


class CEQRNetwork(eqx.Module):
    """A torso and two linear heads: [A, N] quantiles and [A, 4, 2, N] raw NIG parameters an observation.

    With conjugate evidence gamma is all that the second one tells, [A, 1, 2, N].
    """

    torso: Torso
    quantile_head: Linear
    evidence_head: Linear
    num_actions: int = eqx.field(static=True)
    quantiles: int = eqx.field(static=True)
    counted: int | None = eqx.field(static=True)  # features by which conjugate evidence counts; None if learned

    def __init__(self, key: jax.Array, body: Torso, num_actions: int, quantiles: int, counted: int | None):
        quantile_key, evidence_key = jax.random.split(key)
        parts = 4 if counted is None else 1
        self.torso = body
        self.quantile_head = Linear(quantile_key, body.features, num_actions * quantiles)
        self.evidence_head = Linear(evidence_key, body.features, num_actions * parts * 2 * quantiles)
        self.num_actions = num_actions
        self.quantiles = quantiles
        self.counted = counted

    def __call__(self, observation: jax.Array, frozen: Torso | Fourier | None = None) -> "CEQROutputs":
        features = self.torso(observation)
        shape = (len(observation), self.num_actions)
        phi = None if frozen is None or self.counted is None else to_phi(frozen(observation), self.counted)
        return CEQROutputs(
            quantiles=self.quantile_head(features).reshape(*shape, self.quantiles),
            evidence=self.evidence_head(features).reshape(*shape, -1, 2, self.quantiles),
            phi=phi,
        )


class CEQROutputs(NamedTuple):
    quantiles: jax.Array  # [batch, A, N]
    evidence: jax.Array  # [batch, A, 4, 2, N]: raw gamma, nu, alpha, beta of the two percentiles; or gamma alone
    phi: Any = None  # [batch, P]: features by which conjugate evidence counts; None if it is learned


class Statistics(NamedTuple):
    """What is counted; an empty tuple for what is not asked for."""

    share: Any  # [N]: the share of targets in the interval, averaged over the coverage window
    evidence: Any  # Evidence


def _percentiles(evidence: jax.Array) -> tuple[jax.Array, jax.Array]:
    """gamma_5 and gamma_95, [..., N] each, from raw head outputs [..., 4, 2, N]."""
    return evidence[..., 0, 0, :], evidence[..., 0, 1, :]


def _width(evidence: jax.Array) -> jax.Array:
    """The mean width of the intervals, [...], from raw head outputs [..., 4, 2, N]."""
    lower, upper = _percentiles(evidence)
    return jnp.mean(jnp.abs(upper - lower), axis=-1)


def _inside(lower: jax.Array, upper: jax.Array, target: jax.Array) -> jax.Array:
    return (lower <= target) & (target <= upper)


def _nig(evidence: jax.Array) -> losses.NIG:
    """NIG parameters [..., 2, N] from raw head outputs [..., 4, 2, N]."""
    # A split, not four slices: its gradient is one concatenation, and theirs four sums with zeros.
    return losses.nig_from_raw(*(part.squeeze(-3) for part in jnp.split(evidence, 4, axis=-3)))


@dataclass(frozen=True)
class CEQRDQN(ThompsonAgent):
    """The agent; acting is the paper's Algorithm 1."""

    hyper: CEQRDQNHyperparameters

    @property
    def double(self) -> bool:
        return self.hyper.double

    @property
    def _conjugate(self) -> bool:
        return self.hyper.evidence == "conjugate"

    def init_params(self, key: jax.Array) -> CEQRNetwork:
        torso_key, heads_key = jax.random.split(key)
        body = torso(torso_key, self.observation_shape, self.hyper.hidden, self.hyper.torso, self.hyper.torso_gain)
        counted = self._counted(body.features) if self._conjugate else None
        return CEQRNetwork(heads_key, body, self.num_actions, self.hyper.quantiles, counted)

    def _counted(self, units: int) -> int:
        """The features by which conjugate evidence counts, of so many units of the last hidden layer."""
        if not self.hyper.evidence_features:
            return min(units, MOST_FEATURES)
        return self.hyper.evidence_features if self._vectors else min(units, self.hyper.evidence_features)

    @property
    def _vectors(self) -> bool:
        return len(self.observation_shape) == 1

    def init_frozen(self, params: CEQRNetwork, key: jax.Array) -> Torso | Fourier | None:
        """That by which conjugate evidence tells states apart: for images, the torso as it is at the start."""
        if not self._conjugate:
            return None
        if self._vectors:
            return Fourier(key, self.observation_shape[0], self._counted(params.torso.features))
        return params.torso

    def forward(
        self, params: CEQRNetwork, frozen: Torso | Fourier | None, observations: jax.Array, key: jax.Array | None
    ) -> CEQROutputs:
        return params(observations, frozen)

    # What it believes.

    def beliefs(self, outputs: CEQROutputs, state: AgentState) -> Beliefs:
        if self._conjugate:
            aleatoric = _width(outputs.evidence)
            evidence: Evidence = state.statistics.evidence
            epistemic = jnp.sqrt(self._variance(outputs, evidence, following(evidence, outputs.phi)))
        else:
            aleatoric, epistemic = losses.uncertainty(_nig(outputs.evidence))
        return Beliefs(outputs.quantiles.mean(-1), epistemic, aleatoric, outputs.quantiles)

    def _variance(self, outputs: CEQROutputs, evidence: Evidence, follows: jax.Array) -> jax.Array:
        """Of the mean return, [..., A]: what conjugacy says of a state and action, and what follows from there."""
        prior = self.hyper.prior_scale**2
        inverse_nu = evidence_of(evidence, outputs.phi)
        # The noise of nu observations, of which the prior is the first; the others are the interval's.
        noise = inverse_nu * prior + (1 - inverse_nu) * (_width(outputs.evidence) / NORMAL_WIDTH) ** 2
        # Where nothing is known the prior speaks for all that may come; what follows counts as far as it is known.
        return inverse_nu * noise + (1 - inverse_nu) * prior * follows**2

    def td_interval(self, outputs: CEQROutputs) -> tuple[jax.Array, jax.Array]:
        return _percentiles(outputs.evidence)

    def deviation(self, epistemic: jax.Array) -> jax.Array:
        if self._conjugate:
            return self.hyper.lambda_ep * epistemic
        # The paper multiplies lambda_ep by a standard deviation and uses the product as a variance. So do we.
        return jnp.sqrt(self.hyper.lambda_ep * epistemic)

    # What it counts.

    def init_statistics(self, params: CEQRNetwork) -> Statistics:
        return Statistics(
            share=jnp.full(self.hyper.quantiles, INTERVAL_COVERAGE) if self.hyper.coverage_window > 1 else (),
            evidence=() if params.counted is None else nothing_seen(params.counted + 1, self.num_actions),
        )

    def seen(self, outputs: CEQROutputs) -> Any:
        return outputs.phi if self._conjugate else ()

    def count_frames(self, state: AgentState, seen: Any, actions: jax.Array) -> Statistics:
        if not self._conjugate:
            return state.statistics
        return state.statistics._replace(evidence=count(state.statistics.evidence, seen, actions))

    def update_statistics(
        self, state: AgentState, outputs: CEQROutputs, successors: Successors, batch: Batch, frame: jax.Array
    ) -> Statistics:
        counted: Statistics = state.statistics
        if self.hyper.coverage_window > 1:
            lower, upper = _percentiles(pick(outputs.evidence, batch.action))
            inside = _inside(lower, upper, self._target(successors, batch)).mean(0, dtype=jnp.float32)
            counted = counted._replace(share=counted.share + (inside - counted.share) / self.hyper.coverage_window)
        if self._conjugate:
            listener = (batch.number + jnp.arange(len(batch.number))) % 2  # whoever it was before, mostly halves
            heard = self._doubt_that_follows(successors.target, batch, listener, counted.evidence)
            counted = counted._replace(evidence=hear(counted.evidence, outputs.phi, batch.action, heard, listener))
        return counted

    def _doubt_that_follows(
        self, successors: CEQROutputs, batch: Batch, listener: jax.Array, evidence: Evidence
    ) -> jax.Array:
        """That of the successor's most promising action, discounted, in units of the prior's: [batch].

        Who listens chooses the action, and hears what the other one tells of it: the largest of several noisy doubts is
        too large, and would be heard again and again (van Hasselt 2010).
        """
        told = following_twice(evidence, successors.phi)
        chosen, heard = (
            self._variance(successors, evidence, jnp.where(listener[:, None] == 0, *order))
            for order in (told, told[::-1])
        )
        beliefs = Beliefs(successors.quantiles.mean(-1), jnp.sqrt(chosen), _width(successors.evidence))
        best = jnp.argmax(self._risk_averse(beliefs) + self.deviation(beliefs.epistemic), axis=-1)
        doubt = jnp.sqrt(pick(heard, best)) / self.hyper.prior_scale
        return jnp.where(batch.terminated, 0.0, discount_of_rest(batch, self.hyper.discount) * doubt)

    def refresh_statistics(self, state: AgentState) -> Statistics:
        counted: Statistics = state.statistics
        if self._conjugate:
            counted = counted._replace(evidence=refresh(counted.evidence, self.hyper.replay_size))
        return counted

    # What it learns.

    def _target(self, successors: Successors, batch: Batch) -> jax.Array:
        return quantile_targets(successors.target.quantiles, successors.chooser.quantiles, batch, self.hyper.discount)

    def loss(
        self, outputs: CEQROutputs, successors: Successors, batch: Batch, state: AgentState
    ) -> tuple[jax.Array, Metrics]:
        hyper = self.hyper
        target = self._target(successors, batch)
        theta = pick(outputs.quantiles, batch.action)
        taken = pick(outputs.evidence, batch.action)
        lower, upper = _percentiles(taken)
        of_quantiles = hyper.calibration if hyper.calibrate_quantiles else "none"
        of_interval = hyper.calibration if hyper.calibrate_interval else "none"
        share = state.statistics.share if hyper.coverage_window > 1 else None

        terms = {
            "quantile_huber": losses.quantile_huber(theta, target, hyper.kappa),
            "calibration": losses.calibration(theta, target, of_quantiles, hyper.lambda_cal),
        }
        if not self._conjugate:
            nig = _nig(taken)
            if hyper.location == "calibrated":
                nig = nig._replace(gamma=jax.lax.stop_gradient(nig.gamma))
            terms["evidential"] = losses.evidential(target, nig, hyper.lambda_reg)
        terms["interval"] = losses.interval_calibration(
            lower, upper, target, of_interval, hyper.lambda_cal, INTERVAL_COVERAGE, share
        )
        measures = {
            "coverage": jnp.mean(_inside(lower, upper, target)),
            "quantile_coverage_error": losses.quantile_coverage_error(theta, target),
        }
        return sum(terms.values(), jnp.zeros(())), terms | measures
