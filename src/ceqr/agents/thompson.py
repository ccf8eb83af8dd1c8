"""Exploration by one's own doubt: a Thompson sample around the mean, shifted away from risk where that is asked for."""

import abc
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from ceqr.agents.base import Agent, AgentState, Beliefs, Hyperparameters, Memory, Outputs


@dataclass(frozen=True)
class ThompsonHyperparameters(Hyperparameters):
    """Options of agents that estimate both uncertainties."""

    lambda_ep: float = field(default=0.01, metadata={"least": 0.0})
    """Weight of the epistemic uncertainty in exploration."""
    lambda_al: float = field(default=0.0, metadata={"least": 0.0})
    """Aversion to risk: weight of the aleatoric uncertainty subtracted from an action's value."""
    thompson: str = field(default="step", metadata={"choices": ("step", "episode", "optimistic")})
    """What exploration draws: noise for each action anew every step (the paper's), the same through an episode, or one
    non-negative number an episode for all actions, which prefers what the agent knows least."""


@dataclass(frozen=True)
class ThompsonAgent(Agent):
    """An agent that acts on mean - lambda_al * aleatoric + deviation * noise, with standard normal noise.

    Its memory is the noise of an episode, unless it is drawn anew every step.
    """

    hyper: ThompsonHyperparameters

    @abc.abstractmethod
    def deviation(self, epistemic: jax.Array) -> jax.Array:
        """The standard deviation of the sample."""

    def _risk_averse(self, beliefs: Beliefs) -> jax.Array:
        assert beliefs.aleatoric is not None
        return beliefs.mean - self.hyper.lambda_al * beliefs.aleatoric

    def init_memory(self, state: AgentState, key: jax.Array) -> Memory:
        match self.hyper.thompson:
            case "episode":
                return jax.random.normal(key, (self.num_actions,))
            case "optimistic":
                return jnp.abs(jax.random.normal(key))
            case _:
                return ()

    def draw(self, key: jax.Array) -> Any:
        return jax.random.normal(key, (self.num_actions,)) if self.hyper.thompson == "step" else ()

    def explore(self, outputs: Outputs, beliefs: Beliefs, memory: Memory, frame: jax.Array, drawn: Any) -> jax.Array:
        assert beliefs.epistemic is not None
        noise = drawn if self.hyper.thompson == "step" else memory
        return jnp.argmax(self._risk_averse(beliefs) + self.deviation(beliefs.epistemic) * noise)

    def greedy(self, beliefs: Beliefs) -> jax.Array:
        return jnp.argmax(self._risk_averse(beliefs))

    def least_uncertain(self, beliefs: Beliefs) -> jax.Array:
        assert beliefs.epistemic is not None
        return jnp.argmax(beliefs.mean - self.hyper.lambda_ep * beliefs.epistemic)
