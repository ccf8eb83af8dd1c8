"""UA-DQN: uncertainty-aware DQN (Clements et al., 2020).

A quantile network as in QR-DQN, and beside it two posterior networks of the same shape that learn the same targets but
are anchored to their random initial weights. Where they disagree, data is missing (epistemic); what their spreads
share is the world's noise (aleatoric).
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from ceqr import losses
from ceqr.agents.base import AgentState, Batch, Beliefs, Metrics, Successors, pick
from ceqr.agents.qr_dqn import QuantileNetwork, quantile_targets
from ceqr.agents.thompson import ThompsonAgent, ThompsonHyperparameters
from ceqr.networks import ORTHOGONAL_GAIN


@dataclass(frozen=True)
class UADQNHyperparameters(ThompsonHyperparameters):
    """UA-DQN's own options, on top of those of every agent."""

    quantiles: int = field(default=50, metadata={"least": 2})
    """N, the quantiles that describe the return of an action."""
    kappa: float = field(default=1.0, metadata={"least": 0.0})
    """Threshold of the quantile Huber loss; 0 (its authors' own choice) is the plain pinball loss."""
    lambda_ep: float = field(default=0.2, metadata={"least": 0.0})
    """Epistemic factor: weight of the epistemic deviation in the Thompson sample."""
    noise_scale: float = field(default=1.0, metadata={"least": 0.0})
    """Assumed noise of the targets; weighs the anchors against the data."""
    posterior_gain: float = field(default=3.0, metadata={"above": 0.0})
    """Gain of the orthogonal initial weights of the posterior networks."""


class UAOutputs(NamedTuple):
    quantiles: jax.Array  # [batch, A, N]
    first: jax.Array  # [batch, A, N]: the posterior networks' quantiles
    second: jax.Array


class UANetwork(eqx.Module):
    """A quantile network and two posterior networks, which share nothing."""

    quantiles: QuantileNetwork
    posteriors: tuple[QuantileNetwork, QuantileNetwork]

    def __call__(self, observation: jax.Array) -> UAOutputs:
        return UAOutputs(self.quantiles(observation), *(posterior(observation) for posterior in self.posteriors))


class Anchors(NamedTuple):
    weights: tuple[QuantileNetwork, QuantileNetwork]
    prior_scale: jax.Array  # one number for both: see `prior_scale`


def prior_scale(posterior: Any) -> jax.Array:
    """The mean of the standard deviations of all initial parameter arrays: zero biases count, as for its authors."""
    return jnp.stack([leaf.std() for leaf in jax.tree.leaves(posterior)]).mean()


def epistemic_variance(first: jax.Array, second: jax.Array) -> jax.Array:
    """Half the mean square difference of the posteriors' quantiles, [...] from [..., N]."""
    return jnp.mean((first - second) ** 2, axis=-1) / 2


def aleatoric_deviation(first: jax.Array, second: jax.Array) -> jax.Array:
    """The square root of what the posteriors' quantiles vary together, [...] from [..., N]."""
    covariance = jnp.mean((first - first.mean(-1, keepdims=True)) * (second - second.mean(-1, keepdims=True)), axis=-1)
    return jnp.sqrt(jnp.maximum(covariance, 0.0))


@dataclass(frozen=True)
class UADQN(ThompsonAgent):
    """The agent."""

    hyper: UADQNHyperparameters

    def init_params(self, key: jax.Array) -> UANetwork:
        hyper = self.hyper
        posterior = (hyper.posterior_gain, hyper.posterior_gain)  # of torso and head: they are priors, whatever --init
        one, first, second = (
            QuantileNetwork.build(
                k, self.observation_shape, self.num_actions, hyper.hidden, hyper.torso, hyper.quantiles, *gains
            )
            for k, gains in zip(
                jax.random.split(key, 3), ((hyper.torso_gain, ORTHOGONAL_GAIN), posterior, posterior), strict=True
            )
        )
        return UANetwork(one, (first, second))

    def init_frozen(self, params: UANetwork, key: jax.Array) -> Anchors:
        return Anchors(params.posteriors, prior_scale(params.posteriors[0]))

    def penalty(self, params: UANetwork, frozen: Anchors, frame: jax.Array) -> jax.Array:
        """noise_scale^2 |w - w_anchor|^2 / (prior_scale^2 n) of both posteriors, n the frames seen, up to replay's."""
        seen = jnp.minimum(frame, self.hyper.replay_size).astype(jnp.float32)
        distance = _squared_distance(params.posteriors, frozen.weights)
        return self.hyper.noise_scale**2 * distance / (frozen.prior_scale**2 * seen)

    def beliefs(self, outputs: UAOutputs, state: AgentState) -> Beliefs:
        return Beliefs(
            outputs.quantiles.mean(-1),
            epistemic=jnp.sqrt(epistemic_variance(outputs.first, outputs.second)),
            aleatoric=aleatoric_deviation(outputs.first, outputs.second),
            quantiles=outputs.quantiles,
        )

    def deviation(self, epistemic: jax.Array) -> jax.Array:
        return self.hyper.lambda_ep * epistemic

    def loss(
        self, outputs: UAOutputs, successors: Successors, batch: Batch, state: AgentState
    ) -> tuple[jax.Array, Metrics]:
        following = successors.target.quantiles
        target = quantile_targets(following, following, batch, self.hyper.discount)
        terms = [losses.quantile_huber(pick(z, batch.action), target, self.hyper.kappa) for z in outputs]
        error = losses.quantile_coverage_error(pick(outputs.quantiles, batch.action), target)
        metrics = {"quantile_huber": terms[0], "posteriors": terms[1] + terms[2], "quantile_coverage_error": error}
        return sum(terms, jnp.zeros(())), metrics


def _squared_distance(a: Any, b: Any) -> jax.Array:
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return jnp.sum(jnp.stack([jnp.sum((x - y) ** 2) for x, y in pairs]))
