"""Bootstrapped DQN: several heads on one torso, one of which acts through an episode (Osband et al., 2016)."""

from dataclasses import dataclass, field

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from ceqr.agents.base import Agent, AgentState, Batch, Beliefs, Hyperparameters, Metrics, Successors, pick, td_target
from ceqr.networks import Linear, Torso, torso

MASKS = 0xB007  # seed of the masks, which belong to transitions and not to runs


@dataclass(frozen=True)
class BootstrappedDQNHyperparameters(Hyperparameters):
    """Bootstrapped DQN's own options, on top of those of every agent."""

    heads: int = field(default=10, metadata={"least": 2})
    """K, the number of heads."""
    mask_probability: float = field(default=1.0, metadata={"above": 0.0, "most": 1.0})
    """Probability that a head learns from a transition; each head draws its own."""


class HeadsNetwork(eqx.Module):
    """A torso and K linear heads in one matrix: [K, A] values an observation."""

    torso: Torso
    head: Linear
    heads: int = eqx.field(static=True)

    def __call__(self, observation: jax.Array) -> jax.Array:
        features = self.torso(observation)
        # All heads train the torso, each by 1/K: the paper's normalisation of the gradient.
        features = features / self.heads + jax.lax.stop_gradient(features * (1 - 1 / self.heads))
        return self.head(features).reshape(len(observation), self.heads, -1)


@dataclass(frozen=True)
class BootstrappedDQN(Agent):
    """The agent. Its memory is the head that acts in this episode; disagreement of the heads is its doubt."""

    hyper: BootstrappedDQNHyperparameters

    def init_params(self, key: jax.Array) -> HeadsNetwork:
        torso_key, head_key = jax.random.split(key)
        body = torso(torso_key, self.observation_shape, self.hyper.hidden, self.hyper.torso)
        # Heads are orthogonal each for itself, so that none depends on how many there are.
        each = [Linear(k, body.features, self.num_actions) for k in jax.random.split(head_key, self.hyper.heads)]
        weight, bias = (
            jnp.concatenate(parts, axis=-1) for parts in zip(*((h.weight, h.bias) for h in each), strict=True)
        )
        head = eqx.tree_at(lambda h: (h.weight, h.bias), each[0], (weight, bias))
        return HeadsNetwork(body, head, self.hyper.heads)

    def init_memory(self, state: AgentState, key: jax.Array) -> jax.Array:
        return jax.random.randint(key, (), 0, self.hyper.heads)

    def beliefs(self, outputs: jax.Array, state: AgentState) -> Beliefs:
        return Beliefs(outputs.mean(0), epistemic=outputs.std(0))

    def explore(
        self, outputs: jax.Array, beliefs: Beliefs, memory: jax.Array, frame: jax.Array, key: jax.Array
    ) -> jax.Array:
        return jnp.argmax(outputs[memory])

    def masks(self, batch: Batch) -> jax.Array:
        """Which heads learn from which transitions, [batch, K]: the same answer whenever a transition is drawn."""
        draw = jax.vmap(
            lambda number: jax.random.uniform(jax.random.fold_in(jax.random.key(MASKS), number), (self.hyper.heads,))
        )
        return draw(batch.number) < self.hyper.mask_probability

    def loss(
        self, outputs: jax.Array, successors: Successors, batch: Batch, state: AgentState
    ) -> tuple[jax.Array, Metrics]:
        # Each head has a target of its own: the value that the same head of the target network gives its best action.
        target = td_target(batch, self.hyper.discount, successors.target.max(-1))
        error = target - pick(outputs.swapaxes(1, 2), batch.action)
        huber = optax.losses.huber_loss(error)
        if self.hyper.mask_probability < 1:
            huber = huber * self.masks(batch)
        # The sum over heads of each head's mean over the batch.
        return jnp.sum(huber) / len(error), {"td_error": jnp.mean(jnp.abs(error))}
