"""An agent at play, with its beliefs: what evaluation, calibration, diagnostics and the viewer stand on.

`rollout` plays a number of episodes, some at a time in games side by side, and yields what happened a stretch of steps
at a time, as NumPy arrays. Each game plays exactly one episode: counting the first so many to finish would favour short
ones. The randomness is a stream of its own, which training never saw.
"""

from collections.abc import Collection, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ceqr.agents.base import Agent, AgentState
from ceqr.envs import is_compiled
from ceqr.envs.base import Environment, reset
from ceqr.streams import Stream, stream

STRETCH = 100  # steps between two looks of the host, where the environment is compiled
HOST_GAMES = 10  # environments of the host that are played side by side
COMPILED_GAMES = 1_000  # compiled ones


class Steps(NamedTuple):
    """A stretch of steps of games side by side: [steps, games, ...]. What was not asked for is None.

    A game whose episode has ended goes on with steps that mean nothing, and `going` is False for them.

    Examples:
        >>> from ceqr.rollout import Steps
        >>> Steps._fields[:4]
        ('episode', 'going', 'observation', 'action')
    """

    episode: np.ndarray  # int [games]: which episode each game plays
    going: np.ndarray  # bool: whether the episode was still under way when the step was made
    observation: Any  # what the agent saw, as its network reads it
    action: Any  # int: what it did, from 0 on
    greedy: Any  # int: the greedy action; the same unless it explores
    sampled: Any  # int: what it would do to learn; the same if it explores
    reward: Any  # float32
    terminated: Any  # bool
    truncated: Any  # bool
    successor: Any  # where the action led
    beliefs: Any  # Beliefs before the action, of all actions; with quantiles where the agent has them
    picture: Any  # what an environment of the host shows of itself before the action: uint8 [..., height, width, 3]


ALWAYS = ("episode", "going", "reward", "terminated", "truncated")
DEAR = ("sampled", "picture")  # a second look of the network, and drawing: only for whoever asks by name
EVERYTHING = frozenset(Steps._fields) - frozenset(DEAR)


class _Games(NamedTuple):
    """Games side by side."""

    env: Any
    observation: Any
    memory: Any
    going: Any


def rollout(
    agent: Agent,
    state: AgentState,
    env: Any,
    seed: int,
    episodes: int,
    limit: int,
    *,
    keep: Collection[str] = EVERYTHING,
    explore: bool = False,
    frame: int = 0,
    which: Stream = Stream.EVALUATION,
    world: int | None = None,
) -> Iterator[Steps]:
    """Plays that many episodes, each to its end or to the limit in steps; episode i is the same however many follow.

    Args:
        agent: The algorithm.
        state: What it has learned, whole or only what acting needs (`Agent.at_play`).
        env: An environment of either kind.
        seed: Of the play's randomness.
        episodes: How many.
        limit: Steps after which an episode is left as it stands.
        keep: Fields of `Steps` to bring; what is left out costs nothing. `sampled` and `picture` come only if they are
            named, and pictures only from an environment that was made with render_mode="rgb_array".
        explore: Whether to act as in learning instead of greedily.
        frame: With `explore`: the frame of training at which the agent acts.
        which: The stream of the seed that is used.
        world: The seed in whose world (`ceqr.envs.base.reset`) it is played: that of the agent's training, if another.

    Examples:
        An agent that has learned nothing, for three steps of two episodes:

        >>> import jax
        >>> from ceqr import envs
        >>> from ceqr.agents import agent_classes
        >>> from ceqr.rollout import rollout
        >>> agent_class, hyperparameters = agent_classes("dqn")
        >>> agent = agent_class(hyperparameters(hidden=(8,)), observation_shape=(4,), num_actions=2)
        >>> state = agent.init(jax.random.key(0))
        >>> env = envs.make("gymnasium/CartPole-v1")
        >>> for steps in rollout(agent, state, env, seed=0, episodes=2, limit=3, keep=["beliefs"]):
        ...     print(steps.reward.tolist(), steps.beliefs.mean.shape)
        [[1.0, 1.0]] (1, 2, 2)
        [[1.0, 1.0]] (1, 2, 2)
        [[1.0, 1.0]] (1, 2, 2)
    """
    state = agent.at_play(state)
    wanted = frozenset(keep) | frozenset(ALWAYS)
    unknown = wanted.difference(Steps._fields)
    if unknown:
        raise ValueError(f"Steps have no {', '.join(sorted(unknown))}; they have {', '.join(Steps._fields)}.")
    if is_compiled(env):
        world = seed if world is None else world
        yield from _play_compiled(agent, state, env, seed, episodes, limit, wanted, explore, frame, which, world)
    else:
        yield from _play_on_host(agent, state, env, seed, episodes, limit, wanted, explore, frame, which)


class _Choice(NamedTuple):
    """What there was to choose, for a batch of observations."""

    action: Any
    greedy: Any
    sampled: Any  # None unless it is asked for, or acted on
    beliefs: Any


def _choose(
    agent: Agent,
    state: AgentState,
    memory: Any,
    observation: jax.Array,
    wanted: frozenset[str],
    explore: bool,
    frame: Any,
    keys: jax.Array,
) -> tuple[_Choice, Any]:
    """The choice, and the memory to go on with."""
    greedy, beliefs = agent.act_greedily(state, observation)
    if not explore and "sampled" not in wanted:
        return _Choice(greedy, greedy, None, beliefs), memory
    draws = jax.vmap(agent.draws)(keys)
    drawn = agent.act(state, memory, observation, jnp.full(len(observation), frame), draws)
    return _Choice(drawn.action if explore else greedy, greedy, drawn.action, beliefs), drawn.memory


def _keep(wanted: frozenset[str], **fields: Any) -> Steps:
    kept: dict[str, Any] = {name: value if name in wanted else None for name, value in fields.items()}
    return Steps(**kept)


def _play_compiled(
    agent: Agent,
    state: AgentState,
    env: Environment,
    seed: int,
    episodes: int,
    limit: int,
    wanted: frozenset[str],
    explore: bool,
    frame: int,
    which: Stream,
    world: int,
) -> Iterator[Steps]:
    games = min(episodes, COMPILED_GAMES)
    for first in range(0, episodes, games):
        # Games that a last batch leaves idle play an episode that nobody counts.
        numbers = np.arange(first, first + games)
        keys = _episode_keys(stream(seed, which), numbers)
        now = _begin(agent, env, state, keys, np.int32(world))
        now = now._replace(going=jnp.asarray(numbers < episodes))
        for start in range(0, limit, STRETCH):
            now, steps = _stretch(agent, env, wanted, explore, state, now, keys, np.int32(start), np.int32(frame))
            steps = jax.tree.map(lambda x, most=limit - start: np.asarray(x)[:most], steps)
            yield _of_episodes(steps._replace(episode=numbers), first, episodes)
            if not np.asarray(now.going).any():
                break


@partial(jax.jit, static_argnums=(0, 1))
def _begin(agent: Agent, env: Environment, state: AgentState, keys: jax.Array, world: jax.Array) -> _Games:
    env_keys, memory_keys, _ = _game_keys(keys)
    inner, observation = jax.vmap(lambda key: reset(env, key, world))(env_keys)
    memory = jax.vmap(agent.init_memory, in_axes=(None, 0))(state, memory_keys)
    return _Games(inner, observation, memory, jnp.ones(len(keys), bool))


@jax.jit
def _episode_keys(key: jax.Array, numbers: jax.Array) -> jax.Array:
    return jax.vmap(partial(jax.random.fold_in, key))(numbers)


def _game_keys(keys: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """A game's keys: for its start, for its memory, and for its steps."""
    three = jax.vmap(lambda key: jax.random.split(key, 3))(keys)
    return three[:, 0], three[:, 1], three[:, 2]


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _stretch(
    agent: Agent,
    env: Environment,
    wanted: frozenset[str],
    explore: bool,
    state: AgentState,
    games: _Games,
    keys: jax.Array,
    start: jax.Array,
    frame: jax.Array,
) -> tuple[_Games, Steps]:
    step_keys = _game_keys(keys)[2]

    def step(games: _Games, i: jax.Array) -> tuple[_Games, Steps]:
        both = jax.vmap(lambda key: jax.random.split(jax.random.fold_in(key, i)))(step_keys)
        chosen, memory = _choose(agent, state, games.memory, games.observation, wanted, explore, frame, both[:, 0])
        inner, after = jax.vmap(env.step)(games.env, chosen.action, both[:, 1])
        steps = _keep(
            wanted,
            episode=(),
            going=games.going,
            observation=games.observation,
            **chosen._asdict(),
            reward=after.reward,
            terminated=after.terminated,
            truncated=after.truncated,
            successor=after.successor,
            picture=None,
        )
        going = games.going & ~(after.terminated | after.truncated)
        return _Games(inner, after.observation, memory, going), steps

    return jax.lax.scan(step, games, start + jnp.arange(STRETCH))


def _of_episodes(steps: Steps, first: int, episodes: int) -> Steps:
    """Without the games that nobody counts."""
    count = min(len(steps.episode), episodes - first)
    if count == len(steps.episode):
        return steps
    rest = jax.tree.map(lambda x: x[:, :count], steps._replace(episode=()))
    return rest._replace(episode=steps.episode[:count])


def _play_on_host(
    agent: Agent,
    state: AgentState,
    env: Any,
    seed: int,
    episodes: int,
    limit: int,
    wanted: frozenset[str],
    explore: bool,
    frame: int,
    which: Stream,
) -> Iterator[Steps]:
    from ceqr.envs.gymnasium import seed_of

    games = min(episodes, HOST_GAMES) if env.owned else 1
    lanes = env.vector(games)
    key = stream(seed, which)
    told = wanted.intersection(("beliefs", "sampled"))  # one program, whatever else is kept
    try:
        for first in range(0, episodes, games):
            numbers = np.arange(first, first + games)
            observation = lanes.reset([seed_of(which, seed, int(number)) for number in numbers])
            keys = _episode_keys(key, numbers)
            memory = _memories(agent, state, keys)
            going = numbers < episodes
            for i in range(limit):
                chosen, memory = _decide(agent, told, explore, state, memory, observation, keys, i, np.int32(frame))
                chosen = jax.tree.map(np.asarray, chosen)
                picture = lanes.render() if "picture" in wanted else None
                after = lanes.step(chosen.action)
                steps = _keep(
                    wanted,
                    episode=(),
                    going=going,
                    observation=observation,
                    **chosen._asdict(),
                    reward=after.reward,
                    terminated=after.terminated,
                    truncated=after.truncated,
                    successor=after.successor,
                    picture=picture,
                )
                steps = jax.tree.map(lambda x: np.asarray(x)[None], steps)
                yield _of_episodes(steps._replace(episode=numbers), first, episodes)
                going = going & ~(after.terminated | after.truncated)
                observation = after.observation
                if not going.any():
                    break
    finally:
        lanes.close()


@partial(jax.jit, static_argnums=0)
def _memories(agent: Agent, state: AgentState, keys: jax.Array) -> Any:
    return jax.vmap(agent.init_memory, in_axes=(None, 0))(state, _game_keys(keys)[1])


@partial(jax.jit, static_argnums=(0, 1, 2))
def _decide(
    agent: Agent,
    wanted: frozenset[str],
    explore: bool,
    state: AgentState,
    memory: Any,
    observation: jax.Array,
    keys: jax.Array,
    i: jax.Array,
    frame: jax.Array,
) -> tuple[_Choice, Any]:
    step_keys = jax.vmap(lambda key: jax.random.fold_in(key, i))(_game_keys(keys)[2])
    chosen, memory = _choose(agent, state, memory, observation, wanted, explore, frame, step_keys)
    return (chosen if "beliefs" in wanted else chosen._replace(beliefs=None)), memory
