"""QR-DQN: the distribution of the return by quantile regression (Dabney et al., 2017)."""

from dataclasses import dataclass, field

import equinox as eqx
import jax
import jax.numpy as jnp

from ceqr import losses
from ceqr.agents.base import AgentState, Batch, Beliefs, Metrics, Successors, pick, td_target
from ceqr.agents.epsilon import EpsilonGreedyAgent, EpsilonGreedyHyperparameters
from ceqr.networks import ORTHOGONAL_GAIN, Linear, Torso, torso


@dataclass(frozen=True)
class QRDQNHyperparameters(EpsilonGreedyHyperparameters):
    """QR-DQN's own options, on top of those of every agent."""

    quantiles: int = field(default=50, metadata={"least": 2})
    """N, the quantiles that describe the return of an action."""
    kappa: float = field(default=1.0, metadata={"least": 0.0})
    """Threshold of the quantile Huber loss; 0 is the plain pinball loss."""


class QuantileNetwork(eqx.Module):
    """A torso and one linear head: [A, N] quantiles an observation."""

    torso: Torso
    head: Linear
    num_actions: int = eqx.field(static=True)

    @classmethod
    def build(
        cls,
        key: jax.Array,
        observation_shape: tuple[int, ...],
        num_actions: int,
        hidden: tuple[int, ...],
        kind: str,
        quantiles: int,
        gain: float | None = ORTHOGONAL_GAIN,
        head_gain: float = ORTHOGONAL_GAIN,
    ) -> "QuantileNetwork":
        torso_key, head_key = jax.random.split(key)
        body = torso(torso_key, observation_shape, hidden, kind, gain)
        return cls(body, Linear(head_key, body.features, num_actions * quantiles, head_gain), num_actions)

    def __call__(self, observation: jax.Array) -> jax.Array:
        return self.head(self.torso(observation)).reshape(len(observation), self.num_actions, -1)


def quantile_targets(following: jax.Array, chooser: jax.Array, batch: Batch, discount: float) -> jax.Array:
    """r + discount * Z_target(x', a*) with a* the best action by the mean of `chooser`'s quantiles, [batch, N]."""
    best = jnp.argmax(chooser.mean(-1), axis=-1)
    return td_target(batch, discount, pick(following, best))


@dataclass(frozen=True)
class QRDQN(EpsilonGreedyAgent):
    """The agent; the spread of its quantiles is the world's noise, and of its own doubt it knows nothing."""

    hyper: QRDQNHyperparameters

    def init_params(self, key: jax.Array) -> QuantileNetwork:
        hyper = self.hyper
        shape, gain = self.observation_shape, hyper.torso_gain
        return QuantileNetwork.build(key, shape, self.num_actions, hyper.hidden, hyper.torso, hyper.quantiles, gain)

    def beliefs(self, outputs: jax.Array, state: AgentState) -> Beliefs:
        return Beliefs(outputs.mean(-1), aleatoric=outputs.std(-1), quantiles=outputs)

    def loss(
        self, outputs: jax.Array, successors: Successors, batch: Batch, state: AgentState
    ) -> tuple[jax.Array, Metrics]:
        target = quantile_targets(successors.target, successors.chooser, batch, self.hyper.discount)
        theta = pick(outputs, batch.action)
        error = losses.quantile_coverage_error(theta, target)
        return losses.quantile_huber(theta, target, self.hyper.kappa), {"quantile_coverage_error": error}
