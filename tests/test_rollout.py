"""An agent at play: what is told of an episode is what the environment does by itself when the actions are repeated."""

import functools
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from ceqr import rollout as module
from ceqr.agents.base import AgentState
from ceqr.agents.bootstrapped_dqn import BootstrappedDQN, BootstrappedDQNHyperparameters
from ceqr.agents.dqn import DQN, DQNHyperparameters
from ceqr.envs.base import TimeStep, reset
from ceqr.envs.gymnasium import describe, from_env, seed_of
from ceqr.rollout import EVERYTHING, Steps, rollout
from ceqr.streams import Stream, stream

LIMIT = 6  # steps after which the environments truncate
EPISODES, GAMES, STRETCH = 8, 3, 4  # the last games side by side are but two; an episode is told in several stretches


class WindState(NamedTuple):
    observation: jax.Array
    steps: jax.Array
    world: jax.Array


@dataclass(frozen=True)
class Wind:
    """All is drawn: observations, rewards, and in each step perhaps the end; and once a world's reward."""

    name = "probe/wind"
    num_actions = 2
    observation_shape = (3,)
    observation_dtype = np.float32

    def world(self, key: jax.Array) -> jax.Array:
        return 10_000 * jax.random.normal(key)

    def reset(self, key: jax.Array, world: jax.Array) -> tuple[WindState, jax.Array]:
        observation = jax.random.normal(key, (3,))
        return WindState(observation, jnp.int32(0), world), observation

    def step(self, state: WindState, action: jax.Array, key: jax.Array) -> tuple[WindState, TimeStep]:
        end_key, first_key, key = jax.random.split(key, 3)
        terminated = jax.random.bernoulli(end_key, 0.15)
        truncated = ~terminated & (state.steps + 1 >= LIMIT)
        over = terminated | truncated
        successor = 0.5 * state.observation + jax.random.normal(key, (3,))
        after = jnp.where(over, jax.random.normal(first_key, (3,)), successor)
        reward = state.world + successor[0] * (1 + action)
        return WindState(after, jnp.where(over, 0, state.steps + 1), state.world), TimeStep(
            after, successor, reward, terminated, truncated
        )


class HostWind(gymnasium.Env[np.ndarray, Any]):
    """The like of it on the host, which counts how many of it are open."""

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = spaces.Discrete(2, start=3)
    open = 0

    def __init__(self) -> None:
        HostWind.open += 1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._steps = 0
        self._observation = self.np_random.normal(size=3).astype(np.float32)
        return self._observation, {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._steps += 1
        self._observation = 0.5 * self._observation + self.np_random.normal(size=3).astype(np.float32)
        terminated = bool(self.np_random.random() < 0.15)
        reward = float(self._observation[0] * (action - 2))
        return self._observation, reward, terminated, not terminated and self._steps >= LIMIT, {}

    def close(self) -> None:
        HostWind.open -= 1


COMPILED = Wind()
HOST = describe(HostWind(), "HostWind", HostWind)
HYPER = BootstrappedDQNHyperparameters(hidden=(8,), heads=3, batch_size=4, replay_size=20)
AGENT = BootstrappedDQN(HYPER, (3,), 2)
KINDS = pytest.mark.parametrize("env", [COMPILED, HOST], ids=["compiled", "host"])


@pytest.fixture(scope="module", autouse=True)
def _few_at_a_time() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "COMPILED_GAMES", GAMES)
        patch.setattr(module, "HOST_GAMES", GAMES)
        patch.setattr(module, "STRETCH", STRETCH)
        yield


@functools.cache
def _state() -> AgentState:
    """Heads that differ."""
    state = jax.jit(AGENT.init)(jax.random.key(1))
    return state._replace(params=jax.tree.map(lambda leaf: 3 * leaf, state.params))


@functools.cache
def _played(env: Any, seed: int = 5, limit: int = 20, explore: bool = False, **options: Any) -> list[Steps]:
    return list(rollout(AGENT, _state(), env, seed, EPISODES, limit, explore=explore, **options))


def _episodes(told: Collection[Steps]) -> list[Steps]:
    """The steps of each episode, [steps, ...], without those that mean nothing."""
    found: dict[int, list[Any]] = {}
    for steps in told:
        for game, number in enumerate(steps.episode):
            rest = steps._replace(episode=())
            part = jax.tree.map(lambda x, game=game, going=steps.going[:, game]: x[going, game], rest)
            found.setdefault(int(number), []).append(part)
    assert sorted(found) == list(range(len(found)))
    return [jax.tree.map(lambda *parts: np.concatenate(parts), *found[number]) for number in sorted(found)]


@functools.partial(jax.jit, static_argnums=(0, 4))
def _repeat_compiled(env: Wind, seed: int, world: int, actions: jax.Array, which: Stream) -> Any:
    """The environment by itself: [episodes, steps, ...]."""

    def episode(number: jax.Array, actions: jax.Array) -> Any:
        start, _, steps = jax.random.split(jax.random.fold_in(stream(seed, which), number), 3)
        state, observation = reset(env, start, world)

        def step(carry: Any, now: Any) -> Any:
            state, observation = carry
            i, action = now
            state, after = env.step(state, action, jax.random.split(jax.random.fold_in(steps, i))[1])
            return (state, after.observation), (observation, after)

        return jax.lax.scan(step, (state, observation), (jnp.arange(len(actions)), actions))[1]

    return jax.vmap(episode)(jnp.arange(len(actions)), actions)


def _repeat_on_host(seed: int, number: int, actions: np.ndarray) -> tuple[np.ndarray, list[Any]]:
    env = HostWind()
    observations, steps = [env.reset(seed=seed_of(Stream.EVALUATION, seed, number))[0]], []
    for action in actions:
        observation, *rest = env.step(action + 3)
        observations.append(observation)
        steps.append(rest[:3])
    env.close()
    return np.array(observations), steps


def _check_compiled(told: Collection[Steps], seed: int, world: int, which: Stream = Stream.EVALUATION) -> None:
    episodes = _episodes(told)
    actions = np.zeros((len(episodes), 20), int)
    for number, episode in enumerate(episodes):
        actions[number, : len(episode.action)] = episode.action
    observation, after = jax.tree.map(np.asarray, _repeat_compiled(COMPILED, seed, world, actions, which))
    for number, episode in enumerate(episodes):
        length = len(episode.action)
        np.testing.assert_allclose(episode.observation, observation[number, :length], rtol=1e-5, atol=1e-6)
        for name in ("successor", "reward", "terminated", "truncated"):
            expected = getattr(after, name)[number, :length]
            np.testing.assert_allclose(getattr(episode, name), expected, rtol=1e-5, atol=1e-5, err_msg=name)


def test_a_compiled_environment_is_told_as_it_is() -> None:
    told = _played(COMPILED)
    _check_compiled(told, seed=5, world=5)
    assert max(len(episode.action) for episode in _episodes(told)) > STRETCH  # some go on in a second stretch


def test_an_environment_of_the_host_is_told_as_it_is() -> None:
    for number, episode in enumerate(_episodes(_played(HOST))):
        observations, steps = _repeat_on_host(5, number, episode.action)
        np.testing.assert_array_equal(episode.observation, observations[:-1])
        np.testing.assert_array_equal(episode.successor, observations[1:])
        rewards, terminated, truncated = map(np.array, zip(*steps, strict=True))
        np.testing.assert_allclose(episode.reward, rewards, rtol=1e-6)
        np.testing.assert_array_equal(episode.terminated, terminated)
        np.testing.assert_array_equal(episode.truncated, truncated)


@KINDS
def test_each_game_plays_one_episode_to_its_end(env: Any) -> None:
    told = _played(env)
    episodes = _episodes(told)
    assert len(episodes) == EPISODES
    for episode in episodes:
        over = episode.terminated | episode.truncated
        assert over[-1]
        assert not over[:-1].any()
        assert not (episode.terminated & episode.truncated).any()
    assert len({len(episode.action) for episode in episodes}) > 2
    assert any(episode.truncated[-1] for episode in episodes)
    assert any(episode.terminated[-1] for episode in episodes)
    # Three games, three games, and two; no stretch is told of games that are all over.
    assert {tuple(steps.episode) for steps in told} == {(0, 1, 2), (3, 4, 5), (6, 7)}
    assert all(steps.going.any() for steps in told)
    for steps in told:
        assert {x.shape[:2] for x in jax.tree.leaves(steps._replace(episode=()))} == {steps.going.shape}
    # Once an episode is over, it stays so.
    for number in range(EPISODES):
        going = np.concatenate([s.going[:, list(s.episode).index(number)] for s in told if number in s.episode])
        assert (going[:-1] >= going[1:]).all()


@KINDS
def test_the_limit_cuts(env: Any) -> None:
    """Not at a multiple of a stretch; what came before is the same."""
    for whole, cut in zip(_episodes(_played(env)), _episodes(_played(env, limit=5)), strict=True):
        assert len(cut.action) == min(5, len(whole.action))
        jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b[: len(a)]), cut, whole)
    cut = _episodes(_played(env, limit=5))
    assert any(not (episode.terminated | episode.truncated).any() for episode in cut)


@KINDS
def test_greedy_actions_and_beliefs_are_the_agents(env: Any) -> None:
    agent = jax.jit(AGENT.act_greedily)
    for steps in _played(env):
        shape = steps.going.shape
        actions, beliefs = agent(_state(), steps.observation.reshape(-1, 3))
        np.testing.assert_array_equal(steps.action, np.reshape(actions, shape))
        np.testing.assert_array_equal(steps.greedy, steps.action)
        jax.tree.map(
            lambda ours, theirs, shape=shape: np.testing.assert_allclose(
                ours, np.reshape(theirs, (*shape, *theirs.shape[1:])), rtol=1e-4, atol=1e-5
            ),
            steps.beliefs,
            beliefs,
        )
        assert steps.beliefs.epistemic is not None
        assert steps.beliefs.aleatoric is None
    assert len({int(action) for episode in _episodes(_played(env)) for action in episode.action}) == 2


@KINDS
def test_exploring_keeps_what_was_drawn_for_an_episode(env: Any) -> None:
    """Bootstrapped DQN acts with one head through an episode, and with another in another."""
    told = _played(env, explore=True)
    forward, used = jax.jit(lambda x: AGENT.forward(_state().params, (), x, None)), set()
    for episode in _episodes(told):
        acts = np.asarray(forward(np.resize(episode.observation, (LIMIT, 3)))).argmax(-1)[: len(episode.action)]
        (could,) = np.nonzero((acts == episode.action[:, None]).all(0))
        assert len(could), "no head does all that was done"
        used |= {int(could[0])} if len(could) == 1 else set()
        np.testing.assert_array_equal(episode.greedy, episode.beliefs.mean.argmax(-1))
    assert len(used) > 1
    assert any((episode.action != episode.greedy).any() for episode in _episodes(told))
    if env is COMPILED:
        _check_compiled(told, seed=5, world=5)


@KINDS
def test_exploring_goes_on_with_what_is_kept_from_step_to_step(env: Any) -> None:
    """Random actions, each kept for up to 5,000 steps: an episode has one of them, and another another."""
    hyper = DQNHyperparameters(hidden=(8,), batch_size=4, replay_size=20, epsilon_end=1.0, epsilon_hold=5_000)
    agent = DQN(hyper, (3,), 2)
    state = jax.jit(agent.init)(jax.random.key(1))
    told = list(rollout(agent, state, env, 5, EPISODES, LIMIT, keep=("action",), explore=True))
    done = [set(episode.action.tolist()) for episode in _episodes(told)]
    assert all(len(actions) == 1 for actions in done)
    assert len(set.union(*done)) == 2


@KINDS
def test_a_seed_repeats_itself(env: Any) -> None:
    first = _played(env)
    again = list(rollout(AGENT, _state(), env, 5, EPISODES, 20))
    jax.tree.map(np.testing.assert_array_equal, again, first)
    fewer = _episodes(list(rollout(AGENT, _state(), env, 5, EPISODES - 1, 20)))
    jax.tree.map(np.testing.assert_array_equal, fewer, _episodes(first)[: EPISODES - 1])
    for options in ({"seed": 6}, {"which": Stream.PREDICTION}):
        other = _played(env, **options)
        assert not np.array_equal(other[0].observation[0], first[0].observation[0])
    starts = np.array([episode.observation[0] for episode in _episodes(first)])
    assert len(np.unique(starts, axis=0)) == EPISODES


@KINDS
def test_what_is_not_asked_for_is_not_brought(env: Any) -> None:
    for steps, whole in zip(_played(env, keep=()), _played(env), strict=True):
        brought = {name for name, value in steps._asdict().items() if value is not None}
        assert brought == {"episode", "going", "reward", "terminated", "truncated"}
        for name in brought:
            np.testing.assert_allclose(getattr(steps, name), getattr(whole, name), rtol=1e-5, atol=1e-6)
    (steps, *_) = rollout(AGENT, _state(), env, 5, 2, 1, keep={"beliefs", "action"})
    assert steps.beliefs.mean.shape == (1, 2, 2)
    assert steps.action.shape == (1, 2)
    assert steps.greedy is None
    with pytest.raises(ValueError, match="Steps have no belief; they have episode, going,"):
        next(rollout(AGENT, _state(), env, 5, 2, 1, keep=("belief",)))


def test_the_world_may_be_that_of_another_seed() -> None:
    """An agent that is played on other randomness stays in the world that it was trained in."""
    _check_compiled(_played(COMPILED, seed=6, world=5), seed=6, world=5)
    rewards = [_played(COMPILED, **options)[0].reward.mean() for options in ({}, {"seed": 6}, {"seed": 6, "world": 5})]
    assert abs(rewards[0] - rewards[2]) < 10 < abs(rewards[0] - rewards[1])


def test_environments_of_the_host_are_closed() -> None:
    before = HostWind.open
    steps: Any = rollout(AGENT, _state(), HOST, 5, EPISODES, 20)
    next(steps)
    assert HostWind.open == before + GAMES
    steps.close()  # whoever has seen enough
    assert HostWind.open == before
    list(rollout(AGENT, _state(), HOST, 5, EPISODES, 20))
    assert HostWind.open == before


def test_an_environment_that_is_already_made_is_played_alone_and_stays_open() -> None:
    env = HostWind()
    before = HostWind.open
    told = list(rollout(AGENT, _state(), from_env(env), 5, EPISODES, 20))
    assert {tuple(steps.episode) for steps in told} == {(number,) for number in range(EPISODES)}
    assert HostWind.open == before
    for one, side_by_side in zip(_episodes(told), _episodes(_played(HOST)), strict=True):
        np.testing.assert_allclose(one.observation, side_by_side.observation, rtol=1e-5)
        np.testing.assert_array_equal(one.action, side_by_side.action)


def test_everything_is_every_field_but_the_dear_ones() -> None:
    assert frozenset(Steps._fields) == EVERYTHING | {"sampled", "picture"}
    told = _played(COMPILED)[0]
    assert {name for name in Steps._fields if getattr(told, name) is None} == {"sampled", "picture"}


@KINDS
def test_what_it_would_do_to_learn_can_be_told_while_it_acts_greedily(env: Any) -> None:
    (exploring, *_), keep = _played(env, explore=True), {"action", "greedy", "sampled"}
    assert exploring.sampled is None
    played: Any = rollout(AGENT, _state(), env, 5, EPISODES, 20, keep=keep)
    told = next(iter(played))
    played.close()
    np.testing.assert_array_equal(told.action, told.greedy)
    np.testing.assert_array_equal(told.sampled[0], exploring.action[0])  # the first frame, which both of them see
    assert (told.sampled != told.greedy).any()


class Shown(HostWind):
    """A screen of four rows and two columns, as bright as there were steps."""

    def render(self) -> np.ndarray:
        return np.full((4, 2, 3), self._steps, np.uint8)


def test_pictures_are_of_what_the_agent_sees_before_it_acts() -> None:
    env = describe(Shown(), "Shown", Shown)
    told = list(rollout(AGENT, _state(), env, 5, EPISODES, 20, keep={"picture"}))
    steps = [0] * EPISODES
    for each in told:
        assert each.picture.shape == (1, len(each.episode), 4, 2, 3)
        for game, number in enumerate(each.episode):
            if each.going[0, game]:
                assert (each.picture[0, game] == steps[number]).all()
                steps[number] += 1
    assert max(steps) > 1
