"""What every agent is: pure functions over PyTrees, and the one learner that all of them share.

An algorithm says what is particular to it: its network, how it decides, what it minimises. The rest (optimiser,
target network, one forward pass that serves both acting and learning) stands here. An agent knows no environment,
buffer or file.
"""

import abc
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import optax

from ceqr.errors import UserError

Network = Any  # a callable PyTree: [batch, *observation] -> outputs
Outputs = Any  # a PyTree of arrays with a leading batch axis
Memory = Any  # what an agent remembers within an episode; an empty tuple for most


class Batch(NamedTuple):
    """Transitions with a leading batch axis."""

    observation: jax.Array
    action: jax.Array
    reward: jax.Array
    terminated: jax.Array  # a truncated step is not terminated: it bootstraps from `successor`
    successor: jax.Array


class Beliefs(NamedTuple):
    """What an agent believes about each action: expected return, its own doubt, the world's noise."""

    mean: jax.Array  # [actions]
    epistemic: jax.Array  # [actions]
    aleatoric: jax.Array  # [actions]


class AgentState(NamedTuple):
    """All that learning changes."""

    params: Network
    target: Network
    optimiser: optax.OptState


@dataclass(frozen=True)
class Hyperparameters:
    """What all agents have in common; the defaults are the paper's (Table 1)."""

    batch_size: int = field(default=32, metadata={"least": 1})
    """Transitions in each learning batch."""
    replay_size: int = field(default=100_000, metadata={"least": 2})
    """Transitions that replay keeps, per seed."""
    learning_starts: int = field(default=5_000, metadata={"least": 1})
    """Frames played before the first update."""
    target_period: int = field(default=1_000, metadata={"least": 1})
    """Frames between copies of the network to the target network."""
    update_every: int = field(default=1, metadata={"least": 1})
    """Frames for each update."""
    discount: float = field(default=0.99, metadata={"least": 0.0, "most": 1.0})
    """Discount factor of future rewards."""
    learning_rate: float = field(default=1e-4, metadata={"above": 0.0})
    """Adam's learning rate."""
    adam_eps: float = field(default=1e-8, metadata={"above": 0.0})
    """Adam's epsilon."""

    def for_env(self, env: str) -> Self:
        """These hyperparameters with the defaults that depend on the environment."""
        return self

    def check(self) -> None:
        """Raises `UserError` in one sentence for the first impossible value."""
        check_bounds(self)
        if self.batch_size > self.replay_size:
            raise UserError(
                f"--batch-size {self.batch_size:,} is larger than --replay-size {self.replay_size:,}; "
                "a batch is drawn from replay, so it must be at most as large."
            )


def check_bounds(config: Any) -> None:
    """Checks each field of a dataclass against the bounds in its metadata."""
    for f in config.__dataclass_fields__.values():
        value, option = getattr(config, f.name), "--" + f.name.replace("_", "-")
        for item in value if isinstance(value, tuple) else (value,):
            least, most, above = (f.metadata.get(k) for k in ("least", "most", "above"))
            if least is not None and not item >= least:
                raise UserError(f"{option} must be at least {least:,}, not {item:,}.")
            if most is not None and not item <= most:
                raise UserError(f"{option} must be at most {most:,}, not {item:,}.")
            if above is not None and not above < item < float("inf"):
                raise UserError(f"{option} must be a finite number above {above:,}, not {item:,}.")
        if "choices" in f.metadata and value not in f.metadata["choices"]:
            raise UserError(f"{option} must be one of {', '.join(f.metadata['choices'])}, not {value!r}.")


@dataclass(frozen=True)
class Agent(abc.ABC):
    """One algorithm for one kind of observation and number of actions."""

    hyper: Hyperparameters
    observation_shape: tuple[int, ...]
    num_actions: int

    # What an algorithm defines.

    @abc.abstractmethod
    def network(self, key: jax.Array) -> Network:
        """A freshly initialised network."""

    @abc.abstractmethod
    def beliefs(self, outputs: Outputs) -> Beliefs:
        """What the network's outputs for one observation (no batch axis) say about each action."""

    @abc.abstractmethod
    def explore(self, beliefs: Beliefs, memory: Memory, key: jax.Array) -> jax.Array:
        """The action to take while learning."""

    @abc.abstractmethod
    def greedy(self, beliefs: Beliefs) -> jax.Array:
        """The action to take when nothing is to be learned."""

    @abc.abstractmethod
    def least_uncertain(self, beliefs: Beliefs) -> jax.Array:
        """The action that looks best after its own doubt is subtracted."""

    @abc.abstractmethod
    def loss(self, outputs: Outputs, target_outputs: Outputs, batch: Batch) -> tuple[jax.Array, dict[str, jax.Array]]:
        """The scalar to minimise, and what to log; `target_outputs` are the target network's for the successors."""

    def init_memory(self, key: jax.Array) -> Memory:
        """What the agent remembers from an episode's start on; nothing unless an algorithm says otherwise."""
        return ()

    # What all share.

    @property
    def _adam(self) -> optax.GradientTransformation:
        return optax.adam(self.hyper.learning_rate, eps=self.hyper.adam_eps)

    def init(self, key: jax.Array) -> AgentState:
        """A state that has learned nothing; the target network starts as a copy."""
        params = self.network(key)
        return AgentState(params, jax.tree.map(jnp.copy, params), self._adam.init(params))

    def act(
        self, state: AgentState, memory: Memory, observation: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, Memory, Beliefs]:
        """Chooses an action for one observation."""
        beliefs = self.beliefs(_first(state.params(observation[None])))
        return self.explore(beliefs, memory, key), memory, beliefs

    def act_greedily(self, network: Network, observations: jax.Array) -> jax.Array:
        """The actions for a batch of observations when nothing is to be learned."""
        return jax.vmap(lambda outputs: self.greedy(self.beliefs(outputs)))(network(observations))

    def learn(self, state: AgentState, batch: Batch) -> tuple[AgentState, dict[str, jax.Array]]:
        """One update on one batch."""

        def objective(params: Network) -> tuple[jax.Array, dict[str, jax.Array]]:
            return self._total_loss(params(batch.observation), state, batch)

        grads, metrics = jax.grad(objective, has_aux=True)(state.params)
        return self._apply(state, grads), metrics

    def act_and_learn(
        self, state: AgentState, memory: Memory, observation: jax.Array, batch: Batch, key: jax.Array
    ) -> tuple[jax.Array, Memory, Beliefs, AgentState, dict[str, jax.Array]]:
        """`act` and `learn` from the same parameters, in one forward pass.

        Reading the weights costs most of a forward pass over so few rows, so the observation to act on rides along
        with the learning batch.
        """

        def objective(params: Network) -> tuple[jax.Array, tuple[Outputs, dict[str, jax.Array]]]:
            outputs = params(jnp.concatenate([observation[None], batch.observation]))
            loss, metrics = self._total_loss(jax.tree.map(lambda x: x[1:], outputs), state, batch)
            return loss, (_first(outputs), metrics)

        grads, (outputs, metrics) = jax.grad(objective, has_aux=True)(state.params)
        beliefs = self.beliefs(outputs)
        action = self.explore(beliefs, memory, key)
        return action, memory, beliefs, self._apply(state, grads), metrics

    def _total_loss(self, outputs: Outputs, state: AgentState, batch: Batch) -> tuple[jax.Array, dict[str, jax.Array]]:
        target_outputs = jax.lax.stop_gradient(state.target(batch.successor))
        loss, metrics = self.loss(outputs, target_outputs, batch)
        return loss, {"loss": loss, **metrics}

    def _apply(self, state: AgentState, grads: Network) -> AgentState:
        updates, optimiser = self._adam.update(grads, state.optimiser, state.params)
        return AgentState(optax.apply_updates(state.params, updates), state.target, optimiser)

    def copy_target(self, state: AgentState) -> AgentState:
        """Sets the target network to the present one."""
        return state._replace(target=jax.tree.map(jnp.copy, state.params))


def _first(outputs: Outputs) -> Outputs:
    return jax.tree.map(lambda x: x[0], outputs)


def pick(values: jax.Array, action: jax.Array) -> jax.Array:
    """values[b, action[b]] for values [batch, actions, ...].

    A chain of selections: on XLA's CPU backend the gradient of a gather is a slow scatter, and a sum over a one-hot
    mask is a slow reduction.
    """
    taken = values[:, 0]
    mask = action.reshape(-1, *[1] * (taken.ndim - 1))
    for a in range(1, values.shape[1]):
        taken = jnp.where(mask == a, values[:, a], taken)
    return taken
