"""DUVN: the Double Uncertain Value Network (Moerland et al., 2017).

The return is Gaussian, its mean and deviation predicted for each action (the world's noise); dropout on the hidden
layer is the agent's doubt. Acting keeps dropout on: one mask and one draw of the return a step (Thompson).
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from ceqr.agents.base import (
    Agent,
    AgentState,
    Batch,
    Beliefs,
    Hyperparameters,
    Memory,
    Metrics,
    Successors,
    discount_of_rest,
    pick,
    td_target,
)
from ceqr.networks import Linear, Torso, torso


@dataclass(frozen=True)
class DUVNHyperparameters(Hyperparameters):
    """DUVN's own options, on top of those of every agent."""

    dropout: float = field(default=0.1, metadata={"least": 0.0, "most": 0.99})
    """Probability that a hidden unit is left out, in learning and in acting."""
    min_std: float = field(default=0.05, metadata={"above": 0.0})
    """The least standard deviation of a return, in returns: a certain one would have an infinite loss."""


class Gaussian(NamedTuple):
    """Returns of all actions."""

    mean: jax.Array  # [batch, A]
    std: jax.Array  # [batch, A]


class DUVNOutputs(NamedTuple):
    """Returns with and without dropout: with it to explore and learn, without it to say what is best."""

    drawn: Gaussian  # under one dropout mask an observation; the same as `still` where no chance plays a part
    still: Gaussian
    doubt: jax.Array  # [batch, A]: standard deviation of the mean over dropout masks


class GaussianNetwork(eqx.Module):
    """A torso and two linear heads: mean and deviation of the return of each action."""

    torso: Torso
    mean_head: Linear
    std_head: Linear

    def __call__(self, observation: jax.Array, dropout: float, min_std: float, key: jax.Array | None) -> DUVNOutputs:
        features = self.torso(observation)
        still = self._returns(features, min_std)
        # A unit is kept with probability 1 - p and scaled by 1 / (1 - p), so the mean of an output stays and its
        # variance over masks is p / (1 - p) * sum_i (w_i x_i)^2: the head is linear.
        variance = dropout / (1 - dropout) * (features**2 @ self.mean_head.weight**2)
        doubt = jnp.sqrt(jnp.maximum(jax.lax.stop_gradient(variance), 0.0))
        if key is None:
            return DUVNOutputs(still, still, doubt)
        kept = jax.random.bernoulli(key, 1 - dropout, features.shape)
        return DUVNOutputs(self._returns(jnp.where(kept, features / (1 - dropout), 0.0), min_std), still, doubt)

    def _returns(self, features: jax.Array, min_std: float) -> Gaussian:
        return Gaussian(self.mean_head(features), min_std + jax.nn.softplus(self.std_head(features)))


def gaussian_kl(target_mean: jax.Array, target_std: jax.Array, mean: jax.Array, std: jax.Array) -> jax.Array:
    """KL(Normal(target_mean, target_std^2) || Normal(mean, std^2)), elementwise.

    In this direction its minimum over many targets matches both moments: the variance learned is the mean of the
    targets' variances plus the variance of their means, which is how noise travels back through the Bellman equation.
    """
    ratio = (target_std / std) ** 2
    return 0.5 * (ratio - 1.0 - jnp.log(ratio) + ((target_mean - mean) / std) ** 2)


@dataclass(frozen=True)
class DUVN(Agent):
    """The agent."""

    hyper: DUVNHyperparameters

    def init_params(self, key: jax.Array) -> GaussianNetwork:
        torso_key, mean_key, std_key = jax.random.split(key, 3)
        body = torso(torso_key, self.observation_shape, self.hyper.hidden, self.hyper.torso, self.hyper.torso_gain)
        heads = (Linear(k, body.features, self.num_actions) for k in (mean_key, std_key))
        return GaussianNetwork(body, *heads)

    def forward(
        self, params: GaussianNetwork, frozen: Any, observations: jax.Array, key: jax.Array | None
    ) -> DUVNOutputs:
        return params(observations, self.hyper.dropout, self.hyper.min_std, key)

    def beliefs(self, outputs: DUVNOutputs, state: AgentState) -> Beliefs:
        return Beliefs(outputs.still.mean, epistemic=outputs.doubt, aleatoric=outputs.still.std)

    def draw(self, key: jax.Array) -> jax.Array:
        return jax.random.normal(key, (self.num_actions,))

    def explore(
        self, outputs: DUVNOutputs, beliefs: Beliefs, memory: Memory, frame: jax.Array, drawn: jax.Array
    ) -> jax.Array:
        mean, std = outputs.drawn
        return jnp.argmax(mean + std * drawn)

    def loss(
        self, outputs: DUVNOutputs, successors: Successors, batch: Batch, state: AgentState
    ) -> tuple[jax.Array, Metrics]:
        following: Gaussian = successors.target.still
        best = jnp.argmax(following.mean, axis=-1)
        target_mean = td_target(batch, self.hyper.discount, pick(following.mean, best))
        follows = discount_of_rest(batch, self.hyper.discount) * (1.0 - batch.terminated)
        # After termination nothing is uncertain; the floor, that of every prediction, keeps the divergence finite.
        target_std = jnp.maximum(follows * pick(following.std, best), self.hyper.min_std)
        mean, std = (pick(x, batch.action) for x in outputs.drawn)
        divergence = gaussian_kl(target_mean, target_std, mean, std)
        return jnp.mean(divergence), {"td_error": jnp.mean(jnp.abs(target_mean - mean))}
