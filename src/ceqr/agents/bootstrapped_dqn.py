"""Bootstrapped DQN: several heads on one convolution, one of which acts through an episode (Osband et al., 2016)."""

from dataclasses import dataclass, field

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from ceqr.agents.base import Agent, AgentState, Batch, Beliefs, Hyperparameters, Metrics, Successors, pick, td_target
from ceqr.networks import Heads, Torso, torso


@dataclass(frozen=True)
class BootstrappedDQNHyperparameters(Hyperparameters):
    """Bootstrapped DQN's own options, on top of those of every agent."""

    heads: int = field(default=10, metadata={"least": 2, "most": 1_000})
    """K, the number of heads."""
    mask_probability: float = field(default=1.0, metadata={"above": 0.0, "most": 1.0})
    """Probability that a head learns from a transition; each head draws its own."""
    hidden: tuple[int, ...] = field(default=(128,), metadata={"least": 1})
    """Units of each dense layer: of each head's own, but where observations are vectors all but the last are shared."""


class HeadsNetwork(eqx.Module):
    """A torso that all heads share and K heads with hidden layers of their own: [K, A] values an observation."""

    torso: Torso
    heads: Heads

    def __call__(self, observation: jax.Array) -> jax.Array:
        features, share = self.torso(observation), 1 / self.heads.heads
        # All heads train the torso, each by 1/K: the paper's normalisation of the gradient.
        return self.heads(share * features + jax.lax.stop_gradient((1 - share) * features))


@dataclass(frozen=True)
class BootstrappedDQN(Agent):
    """The agent. Its memory is the head that acts in this episode; disagreement of the heads is its doubt."""

    hyper: BootstrappedDQNHyperparameters

    def init_params(self, key: jax.Array) -> HeadsNetwork:
        torso_key, heads_key = jax.random.split(key)
        hidden = self.hyper.hidden
        # Of an image the heads share the convolution and nothing else. A vector has none: there they share all hidden
        # layers but the last.
        shared, own = ((), hidden) if len(self.observation_shape) == 3 else (hidden[:-1], hidden[-1:])
        body = torso(torso_key, self.observation_shape, shared, self.hyper.torso, self.hyper.torso_gain)
        return HeadsNetwork(body, Heads(heads_key, self.hyper.heads, body.features, own, self.num_actions))

    def init_frozen(self, params: HeadsNetwork, key: jax.Array) -> jax.Array:
        """The key of the masks, as numbers that can be saved like all others."""
        return jax.random.key_data(key)

    def init_memory(self, state: AgentState, key: jax.Array) -> jax.Array:
        return jax.random.randint(key, (), 0, self.hyper.heads)

    def beliefs(self, outputs: jax.Array, state: AgentState) -> Beliefs:
        return Beliefs(outputs.mean(0), epistemic=outputs.std(0))

    def draw(self, key: jax.Array) -> tuple[()]:
        return ()

    def explore(
        self, outputs: jax.Array, beliefs: Beliefs, memory: jax.Array, frame: jax.Array, drawn: tuple[()]
    ) -> jax.Array:
        return jnp.argmax(outputs[memory])

    def masks(self, batch: Batch, frozen: jax.Array) -> jax.Array:
        """Which heads learn from which transitions, [batch, K]: the same answer whenever a transition is drawn."""
        key = jax.random.wrap_key_data(frozen)
        draw = jax.vmap(lambda number: jax.random.uniform(jax.random.fold_in(key, number), (self.hyper.heads,)))
        return draw(batch.number) < self.hyper.mask_probability

    def loss(
        self, outputs: jax.Array, successors: Successors, batch: Batch, state: AgentState
    ) -> tuple[jax.Array, Metrics]:
        # Each head has a target of its own: the value that the same head of the target network gives its best action.
        target = td_target(batch, self.hyper.discount, successors.target.max(-1))
        error = target - pick(outputs.swapaxes(1, 2), batch.action)
        huber = optax.losses.huber_loss(error)
        if self.hyper.mask_probability < 1:
            huber = huber * self.masks(batch, state.frozen)
        # The sum over heads of each head's mean over the batch.
        return jnp.sum(huber) / len(error), {"td_error": jnp.mean(jnp.abs(error))}
