"""What every agent is: pure functions over PyTrees, and the one learner that all of them share.

An algorithm says what is particular to it: its network, how it decides, what it minimises. The rest (optimiser,
target network, one forward pass that serves both acting and learning) stands here. An agent knows no environment,
buffer or file.
"""

import abc
import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import optax

from ceqr.errors import UserError
from ceqr.networks import ORTHOGONAL_GAIN, parameter_count

Params = Any  # a network: a callable PyTree of parameters, [batch, *observation] -> outputs
Outputs = Any  # a PyTree of arrays with a leading batch axis
Memory = Any  # what an agent draws once an episode or keeps from frame to frame; an empty tuple for most

TORSOS = ("standard", "padded")
FROZEN = 2**31  # folded into the initial key; splits of the key count from 0 on, and so never reach it
LARGEST = 2**31 - 2  # of whole numbers: frames are counted in 32 bits


class Batch(NamedTuple):
    """Transitions with a leading batch axis: of one step, or of several (`--n-step`).

    Examples:
        >>> import jax.numpy as jnp
        >>> from ceqr.agents.base import Batch
        >>> rows = jnp.zeros((32, 4))
        >>> zeros = jnp.zeros(32)
        >>> batch = Batch(rows, zeros.astype(int), zeros, zeros.astype(bool), rows, jnp.arange(32))
        >>> batch.observation.shape
        (32, 4)
    """

    observation: jax.Array
    action: jax.Array
    reward: jax.Array  # of several steps: their sum, discounted
    terminated: jax.Array  # a truncated step is not terminated: it bootstraps from `successor`
    successor: jax.Array  # where the last step led
    number: jax.Array  # int32: when it was played; tells a transition from all others
    steps: Any = None  # int32: how many; None for one each
    bounds: Any = None  # [2]: the least and the most that a return can be; None where nobody asks


class Interval(NamedTuple):
    """Bounds of a return; a number each for one observation, arrays for a batch.

    Examples:
        >>> from ceqr.agents.base import Interval
        >>> lower, upper = Interval(3.0, 9.0)
        >>> upper - lower
        6.0
    """

    lower: Any
    upper: Any


class Beliefs(NamedTuple):
    """What an agent believes about each action; None for what it does not estimate.

    Arrays are [actions] for one observation, and have a leading axis more for a batch: JAX's inside a program, NumPy's
    outside. The last two are of the greedy action alone, and come with a guarantee (docs/guarantees.md): None until the
    agent is calibrated, by `agent.calibrate()` or `ceqr calibrate`.

    Examples:
        >>> import numpy as np
        >>> from ceqr.agents.base import Beliefs
        >>> Beliefs(mean=np.array([1.0, 2.0])).epistemic is None  # as of DQN, which has no doubt
        True
    """

    mean: Any
    """Expected return."""
    epistemic: Any = None
    """The agent's own doubt, in the unit of returns: more experience would lower it."""
    aleatoric: Any = None
    """The world's noise, in the unit of returns: more experience would not."""
    quantiles: Any = None
    """Quantiles of the return at the levels (i - 1/2) / N, [actions, N]."""
    interval: Any = None
    """Calibrated `Interval` of the discounted return from here on under the greedy policy."""
    novelty: Any = None
    """Calibrated p-value of the doubt: small means unlike anything played. None too for agents without doubt."""

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in self._asdict().items())
        how = "" if self.interval is not None else "; agent.calibrate() gives interval and novelty"
        return f"Beliefs({values}{how})"


class Draws(NamedTuple):
    """All that an agent draws to act in one frame; with a leading axis, in several.

    It depends on nothing that is learned, so a loop draws it for many frames at once: one by one, a few random numbers
    take longer than a small network.

    Examples:
        >>> import jax
        >>> from ceqr.agents import agent_classes
        >>> agent_class, hyperparameters = agent_classes("dqn")
        >>> agent = agent_class(hyperparameters(hidden=(8,)), observation_shape=(4,), num_actions=2)
        >>> agent.draws(jax.random.key(0))._fields
        ('forward', 'explore')
    """

    forward: jax.Array  # the key of the forward pass, where chance plays a part in it
    explore: Any  # what `Agent.draw` made of the key to explore with


class Choices(NamedTuple):
    """What an agent chose for a batch of observations, and why.

    Examples:
        >>> from ceqr.agents.base import Choices
        >>> Choices._fields
        ('action', 'beliefs', 'seen', 'memory')
    """

    action: jax.Array
    beliefs: Beliefs
    seen: Any  # what `Agent.seen` keeps of the outputs
    memory: Memory  # with which it was chosen, and with which the episode goes on


class AgentState(NamedTuple):
    """All that learning changes, and what it must remember unchanged.

    Examples:
        >>> import jax
        >>> from ceqr.agents import agent_classes
        >>> agent_class, hyperparameters = agent_classes("dqn")
        >>> agent = agent_class(hyperparameters(hidden=(8,)), observation_shape=(4,), num_actions=2)
        >>> state = agent.init(jax.random.key(0))
        >>> state.frozen, state.statistics  # DQN keeps and counts nothing
        ((), ())
    """

    params: Params
    target: Params
    optimiser: optax.OptState
    frozen: Any  # fixed from the start, such as the weights that an agent is anchored to
    statistics: Any = ()  # what an agent counts: learned, but not by gradients


class Successors(NamedTuple):
    """What two networks say of a batch's successors, without gradient.

    Examples:
        >>> from ceqr.agents.base import Successors
        >>> Successors(target="the target network's", online=None).chooser
        "the target network's"
        >>> Successors(target="the target network's", online="the learning network's").chooser
        "the learning network's"
    """

    target: Outputs
    online: Outputs | None  # the learning network; only where the agent asks for it (`double`)

    @property
    def chooser(self) -> Outputs:
        """The outputs by which the best action is chosen; it is valued by `target`."""
        return self.target if self.online is None else self.online


Metrics = dict[str, jax.Array]


@dataclass(frozen=True)
class Hyperparameters:
    """What all agents have in common; the defaults are the paper's (Table 1).

    Examples:
        >>> from ceqr.agents.base import Hyperparameters
        >>> Hyperparameters(hidden=(64, 64)).replay_size
        100000
        >>> Hyperparameters(discount=1.5).check()
        Traceback (most recent call last):
            ...
        ceqr.errors.UserError: --discount must be at most 1.0, not 1.5.
    """

    batch_size: int = field(default=32, metadata={"least": 1})
    """Transitions in each learning batch."""
    replay_size: int = field(default=100_000, metadata={"least": 2})
    """Transitions that replay keeps, per seed."""
    learning_starts: int = field(default=5_000, metadata={"least": 1})
    """Frames played before the first update."""
    target_period: int = field(default=1_000, metadata={"least": 1})
    """Frames between copies of the network to the target network; and, whether it is copied or follows, between
    refreshes of what is counted, where doubt counts what was played."""
    target_rate: float = field(default=0.0, metadata={"least": 0.0, "most": 1.0})
    """Share of the network that the target network takes over with every update (Polyak averaging); 0 for whole copies
    every --target-period frames."""
    update_every: int = field(default=1, metadata={"least": 1})
    """Frames for each update."""
    discount: float = field(default=0.99, metadata={"least": 0.0, "most": 1.0})
    """Discount factor of future rewards."""
    n_step: int = field(default=1, metadata={"least": 1, "most": 100})
    """Steps whose rewards a target adds up before it asks the target network for the rest; fewer where an episode
    ends."""
    learning_rate: float = field(default=1e-4, metadata={"above": 0.0})
    """Adam's learning rate."""
    adam_eps: float = field(default=1e-8, metadata={"above": 0.0})
    """Adam's epsilon."""
    hidden: tuple[int, ...] = field(default=(128,), metadata={"least": 1})
    """Units of each dense layer between the convolution and the heads; none for no such layer."""
    torso: str = field(default="standard", metadata={"choices": TORSOS})
    """Convolution of image observations: standard (MinAtar's: no padding, ReLU) or padded (CEQR-DQN's: PReLU)."""
    bound_returns: bool = False
    """Keep what the target network says within what a return can be: the smallest and the largest reward that was seen,
    or 0, for ever. Without that, values that are too high may make each other higher and higher."""
    init: str = field(default="orthogonal", metadata={"choices": ("orthogonal", "uniform")})
    """How the weights below the heads begin: orthogonal, with offsets of 0 (the paper's), or uniform within
    1 / sqrt(inputs), offsets too (PyTorch's), which tells vectors apart that are close to each other."""

    @property
    def torso_gain(self) -> float | None:
        """Of a torso's initial weights; None for uniform ones."""
        return ORTHOGONAL_GAIN if self.init == "orthogonal" else None

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
        if self.n_step > self.replay_size:
            raise UserError(
                f"--n-step {self.n_step:,} is larger than --replay-size {self.replay_size:,}; "
                "the steps of a target are read from replay, so it must be at most as large."
            )


def check_bounds(config: Any) -> None:
    """Checks each field of a dataclass against its type and the bounds in its metadata.

    Examples:
        >>> from ceqr.agents.base import Hyperparameters, check_bounds
        >>> check_bounds(Hyperparameters())
    """
    for f in dataclasses.fields(config):
        value, option = getattr(config, f.name), "--" + f.name.replace("_", "-")
        if "choices" in f.metadata and value not in f.metadata["choices"]:
            raise UserError(f"{option} must be one of {', '.join(f.metadata['choices'])}, not {value!r}.")
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, bool) or not isinstance(item, int | float):
                continue
            least, most, above = (f.metadata.get(k) for k in ("least", "most", "above"))
            if isinstance(item, int) and most is None:
                most = LARGEST
            if not math.isfinite(item):
                raise UserError(f"{option} must be a finite number, not {item}.")
            if least is not None and item < least:
                raise UserError(f"{option} must be at least {least:,}, not {item:,}.")
            if most is not None and item > most:
                raise UserError(f"{option} must be at most {most:,}, not {item:,}.")
            if above is not None and item <= above:
                raise UserError(f"{option} must be above {above:,}, not {item:,}.")


@dataclass(frozen=True)
class Agent(abc.ABC):
    """One algorithm for one kind of observation and number of actions.

    Examples:
        Made of hyperparameters and of what there is to see and to do; what it learns is a state apart from it:

        >>> import jax
        >>> from ceqr.agents import agent_classes
        >>> agent_class, hyperparameters = agent_classes("dqn")
        >>> agent = agent_class(hyperparameters(hidden=(8,)), observation_shape=(4,), num_actions=2)
        >>> state = agent.init(jax.random.key(0))
        >>> actions, beliefs = agent.act_greedily(state, jax.numpy.zeros((5, 4)))
        >>> actions.shape, beliefs.mean.shape
        ((5,), (5, 2))
    """

    hyper: Hyperparameters
    observation_shape: tuple[int, ...]
    num_actions: int

    # What an algorithm defines.

    @abc.abstractmethod
    def init_params(self, key: jax.Array) -> Params:
        """A freshly initialised network."""

    @abc.abstractmethod
    def beliefs(self, outputs: Outputs, state: AgentState) -> Beliefs:
        """What the network's outputs for one observation (no batch axis) say about each action."""

    @abc.abstractmethod
    def explore(self, outputs: Outputs, beliefs: Beliefs, memory: Memory, frame: jax.Array, drawn: Any) -> jax.Array:
        """The action to take while learning, given the outputs for one observation and what `draw` drew for it."""

    @abc.abstractmethod
    def loss(
        self, outputs: Outputs, successors: Successors, batch: Batch, state: AgentState
    ) -> tuple[jax.Array, Metrics]:
        """The scalar to minimise, and what to log. Gradients flow through `outputs` alone."""

    # What an algorithm may define otherwise.

    double = False  # whether the loss reads `Successors.online`

    def greedy(self, beliefs: Beliefs) -> jax.Array:
        """The action to take when nothing is to be learned."""
        return jnp.argmax(beliefs.mean)

    def least_uncertain(self, beliefs: Beliefs) -> jax.Array | None:
        """The action that looks best after the agent's own doubt is subtracted; None if it has no such estimate."""
        return None if beliefs.epistemic is None else jnp.argmax(beliefs.mean - beliefs.epistemic)

    def td_interval(self, outputs: Outputs) -> tuple[jax.Array, jax.Array] | None:
        """Bounds that should contain 90 % of TD targets, quantile by quantile: [batch, A, N] each; None for most."""
        return None

    def draw(self, key: jax.Array) -> Any:
        """What `explore` is given of chance: numbers drawn from the key, or the key itself."""
        return key

    def init_memory(self, state: AgentState, key: jax.Array) -> Memory:
        """What the agent draws at an episode's start and keeps to its end."""
        return ()

    def remember(self, memory: Memory, drawn: Any) -> Memory:
        """The memory to explore a frame with, from the one before and what `draw` drew for it."""
        return memory

    def init_frozen(self, params: Params, key: jax.Array) -> Any:
        """What stays as it was at the start: of the initial parameters, or drawn once."""
        return ()

    def init_statistics(self, params: Params) -> Any:
        """What the agent counts, before anything was counted."""
        return ()

    def seen(self, outputs: Outputs) -> Any:
        """What `count_frames` needs of the outputs for a batch of observations."""
        return ()

    def count_frames(self, state: AgentState, seen: Any, actions: jax.Array) -> Any:
        """The statistics after the frames of a tick: what was seen in each lane, and the actions taken."""
        return state.statistics

    def update_statistics(
        self, state: AgentState, outputs: Outputs, successors: Successors, batch: Batch, frame: jax.Array
    ) -> Any:
        """The statistics after one learning batch, with the outputs from which its update was made."""
        return state.statistics

    def refresh_statistics(self, state: AgentState) -> Any:
        """The statistics after a copy of the target network: the place for work that is too dear for every update."""
        return state.statistics

    def penalty(self, params: Params, frozen: Any, frame: jax.Array) -> jax.Array | float:
        """A loss on the parameters themselves."""
        return 0.0

    def forward(self, params: Params, frozen: Any, observations: jax.Array, key: jax.Array | None) -> Outputs:
        """The network's outputs for a batch of observations; with a key where chance may play a part.

        `frozen` is what `init_frozen` made.
        """
        return params(observations)

    # What all share.

    def parameter_count(self) -> int:
        """How many numbers the network learns; nothing is computed."""
        return parameter_count(jax.eval_shape(lambda: self.init_params(jax.random.key(0))))

    def state_bytes(self) -> int:
        """Bytes that the state of a seed takes: networks, optimiser, what is frozen and what is counted."""
        state = jax.eval_shape(self.init, jax.random.key(0))
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))

    @property
    def optimiser(self) -> optax.GradientTransformation:
        return optax.adam(self.hyper.learning_rate, eps=self.hyper.adam_eps)

    def init(self, key: jax.Array) -> AgentState:
        """A state that has learned nothing; the target network starts as a copy."""
        params = self.init_params(key)
        frozen = self.init_frozen(params, jax.random.fold_in(key, FROZEN))
        target, frozen = jax.tree.map(jnp.copy, (params, frozen))
        return AgentState(params, target, self.optimiser.init(params), frozen, self.init_statistics(params))

    def at_play(self, state: AgentState) -> AgentState:
        """What an agent that has learned enough needs of its state: no target network and no optimiser.

        A target network that follows the network is an average of it over updates, and plays in its place: what the
        last batch left is one of many.
        """
        averaged = self.hyper.target_rate and state.target != ()  # without one, it is at play already
        params = state.target if averaged else state.params
        return state._replace(params=params, target=(), optimiser=())

    def beliefs_of(self, state: AgentState, outputs: Outputs) -> Beliefs:
        """`beliefs` of a batch of outputs."""
        return jax.vmap(self.beliefs, in_axes=(0, None))(outputs, state)

    def draws(self, key: jax.Array) -> Draws:
        """What acting in the frame of that key draws."""
        forward_key, explore_key = jax.random.split(key)
        return Draws(forward_key, self.draw(explore_key))

    def act(
        self, state: AgentState, memory: Memory, observations: jax.Array, frames: jax.Array, draws: Draws
    ) -> Choices:
        """Chooses actions for a batch of observations: each has its own memory, frame and draws.

        The forward pass, which is one for all of them, has the key of the first.
        """
        outputs = self.forward(state.params, state.frozen, observations, draws.forward[0])
        return self._explore(state, outputs, memory, frames, draws)

    def act_greedily(self, state: AgentState, observations: jax.Array) -> tuple[jax.Array, Beliefs]:
        """The actions for a batch of observations when nothing is to be learned."""
        beliefs = self.beliefs_of(state, self.forward(state.params, state.frozen, observations, None))
        return jax.vmap(self.greedy)(beliefs), beliefs

    def learn(self, state: AgentState, batch: Batch, frame: jax.Array, key: jax.Array) -> tuple[AgentState, Metrics]:
        """One update on one batch."""
        successors = self._successors(state, batch)

        def objective(params: Params) -> tuple[jax.Array, tuple[Outputs, Metrics]]:
            outputs = self.forward(params, state.frozen, batch.observation, key)
            loss, metrics = self._total_loss(params, outputs, successors, state, batch, frame)
            return loss, (outputs, metrics)

        grads, (outputs, metrics) = jax.grad(objective, has_aux=True)(state.params)
        return self._apply(state, grads, outputs, successors, batch, frame), metrics

    def act_and_learn(
        self,
        state: AgentState,
        memory: Memory,
        observations: jax.Array,
        batch: Batch,
        frames: jax.Array,
        draws: Draws,
    ) -> tuple[Choices, AgentState, Metrics]:
        """`act` and `learn` from the same parameters, in one forward pass; the update is that of the first frame.

        Reading the weights costs most of a forward pass over so few rows, so the observations to act on ride along
        with the learning batch.
        """
        lanes = len(observations)
        successors = self._successors(state, batch)

        def objective(params: Params) -> tuple[jax.Array, tuple[Outputs, Outputs, Metrics]]:
            rows = jnp.concatenate([observations, batch.observation])
            outputs = self.forward(params, state.frozen, rows, draws.forward[0])
            acting, learning = (jax.tree.map(lambda x, s=s: x[s], outputs) for s in (slice(lanes), slice(lanes, None)))
            loss, metrics = self._total_loss(params, learning, successors, state, batch, frames[0])
            return loss, (acting, learning, metrics)

        grads, (acting, learning, metrics) = jax.grad(objective, has_aux=True)(state.params)
        choices = self._explore(state, acting, memory, frames, draws)
        return choices, self._apply(state, grads, learning, successors, batch, frames[0]), metrics

    def _explore(self, state: AgentState, outputs: Outputs, memory: Memory, frames: jax.Array, draws: Draws) -> Choices:
        beliefs = self.beliefs_of(state, outputs)
        if jax.tree.leaves(memory):
            memory = jax.vmap(self.remember)(memory, draws.explore)
        actions = jax.vmap(self.explore)(outputs, beliefs, memory, frames, draws.explore)
        return Choices(actions, beliefs, self.seen(outputs), memory)

    def _successors(self, state: AgentState, batch: Batch) -> Successors:
        online = self.forward(state.params, state.frozen, batch.successor, None) if self.double else None
        return jax.lax.stop_gradient(
            Successors(self.forward(state.target, state.frozen, batch.successor, None), online)
        )

    def _total_loss(
        self,
        params: Params,
        outputs: Outputs,
        successors: Successors,
        state: AgentState,
        batch: Batch,
        frame: jax.Array,
    ) -> tuple[jax.Array, Metrics]:
        loss, metrics = self.loss(outputs, successors, batch, state)
        loss = loss + self.penalty(params, state.frozen, frame)
        return loss, {"loss": loss, **metrics}

    def _apply(
        self,
        state: AgentState,
        grads: Params,
        outputs: Outputs,
        successors: Successors,
        batch: Batch,
        frame: jax.Array,
    ) -> AgentState:
        statistics = self.update_statistics(state, outputs, successors, batch, frame)
        updates, optimiser = self.optimiser.update(grads, state.optimiser, state.params)
        params = optax.apply_updates(state.params, updates)
        target = state.target
        if self.hyper.target_rate:
            target = optax.incremental_update(params, target, self.hyper.target_rate)
        return state._replace(params=params, target=target, optimiser=optimiser, statistics=statistics)

    def copy_target(self, state: AgentState) -> AgentState:
        """Sets the target network to the present one, unless it follows by itself; refreshes what the agent counts."""
        if not self.hyper.target_rate:
            state = state._replace(target=jax.tree.map(jnp.copy, state.params))
        return state._replace(statistics=self.refresh_statistics(state))


def pick(values: jax.Array, action: jax.Array) -> jax.Array:
    """values[b, action[b]] for values [batch, actions, ...].

    A chain of selections: on XLA's CPU backend the gradient of a gather is a slow scatter, and a sum over a one-hot
    mask is a slow reduction.

    Examples:
        >>> import jax.numpy as jnp
        >>> from ceqr.agents.base import pick
        >>> pick(jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.array([1, 0])).tolist()
        [2.0, 3.0]
    """
    taken = values[:, 0]
    mask = action.reshape(-1, *[1] * (taken.ndim - 1))
    for a in range(1, values.shape[1]):
        taken = jnp.where(mask == a, values[:, a], taken)
    return taken


def discount_of_rest(batch: Batch, discount: float) -> Any:
    """Of what follows on a transition, unless it has ended: discount^steps."""
    return discount if batch.steps is None else discount**batch.steps


def td_target(batch: Batch, discount: float, values: jax.Array) -> jax.Array:
    """r + discount^steps * (1 - terminated) * values, for values [batch, ...] of the successors, within their bounds.

    Examples:
        >>> import jax.numpy as jnp
        >>> from ceqr.agents.base import Batch, td_target
        >>> batch = Batch(None, None, jnp.array([1.0, 1.0]), jnp.array([False, True]), None, None)
        >>> td_target(batch, 0.5, jnp.array([10.0, 10.0])).tolist()  # nothing follows an episode's end
        [6.0, 1.0]
        >>> rewards_of_one = batch._replace(bounds=jnp.array([0.0, 2.0]))  # 1 / (1 - 0.5)
        >>> td_target(rewards_of_one, 0.5, jnp.array([10.0, 10.0])).tolist()
        [2.0, 1.0]
    """
    if batch.bounds is not None:
        values = jnp.clip(values, *batch.bounds)
    follows = discount_of_rest(batch, discount) * (1.0 - batch.terminated)
    shape = (-1, *[1] * (values.ndim - 1))
    return batch.reward.reshape(shape) + follows.reshape(shape) * values
