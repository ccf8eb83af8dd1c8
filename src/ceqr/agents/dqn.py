"""DQN: Q-learning with a deep network, replay and a target network (Mnih et al., 2015)."""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from ceqr.agents.base import AgentState, Batch, Beliefs, Metrics, Successors, pick, td_target
from ceqr.agents.epsilon import EpsilonGreedyAgent, EpsilonGreedyHyperparameters
from ceqr.networks import Linear, Torso, torso


@dataclass(frozen=True)
class DQNHyperparameters(EpsilonGreedyHyperparameters):
    """DQN's options: those of every epsilon-greedy agent."""


class QNetwork(eqx.Module):
    """A torso and one linear head: a value for each action."""

    torso: Torso
    head: Linear

    def __call__(self, observation: jax.Array) -> jax.Array:
        return self.head(self.torso(observation))


@dataclass(frozen=True)
class DQN(EpsilonGreedyAgent):
    """The agent; it estimates no uncertainty."""

    hyper: DQNHyperparameters

    def init_params(self, key: jax.Array) -> QNetwork:
        torso_key, head_key = jax.random.split(key)
        body = torso(torso_key, self.observation_shape, self.hyper.hidden, self.hyper.torso, self.hyper.torso_gain)
        return QNetwork(body, Linear(head_key, body.features, self.num_actions))

    def beliefs(self, outputs: jax.Array, state: AgentState) -> Beliefs:
        return Beliefs(outputs)

    def td_error(self, outputs: jax.Array, successors: Successors, batch: Batch) -> jax.Array:
        """r + discount * max_a Q_target(x', a) - Q(x, a), [batch]."""
        following = pick(successors.target, jnp.argmax(successors.chooser, axis=-1))
        return td_target(batch, self.hyper.discount, following) - pick(outputs, batch.action)

    def loss(
        self, outputs: jax.Array, successors: Successors, batch: Batch, state: AgentState
    ) -> tuple[jax.Array, Metrics]:
        error = self.td_error(outputs, successors, batch)
        return jnp.mean(optax.losses.huber_loss(error)), {"td_error": jnp.mean(jnp.abs(error))}
