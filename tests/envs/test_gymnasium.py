"""The Gymnasium adapter on environments whose every observation is known; MinAtar before Gymnasium's own checker."""

import subprocess
import sys
from dataclasses import replace
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils import seeding
from gymnasium.utils.env_checker import check_env

from ceqr.envs import make, parse_kwargs
from ceqr.envs.gymnasium import from_env, from_id, seed_of
from ceqr.envs.minatar import MinAtar
from ceqr.envs.observations import ObservationFormat
from ceqr.gym import IDS
from tests.probes import Counting


class Shaped(gymnasium.Env[Any, Any]):
    """An environment of any spaces, which is never played."""

    def __init__(self, observations: spaces.Space, actions: spaces.Space | None = None):
        self.observation_space = observations
        self.action_space = actions or spaces.Discrete(2)


def test_every_step_is_a_transition_and_ends_come_with_their_last_observation() -> None:
    """Two lanes whose episodes end after 3 and 5 steps, the first by truncation, the second by termination.

    An observation is (steps in this episode, episodes before it).
    """
    endings = iter([(3, "truncated"), (5, "terminated")])
    env = replace(from_env(Counting(1)), build=lambda: Counting(*next(endings)))
    lanes = env.vector(2)
    np.testing.assert_array_equal(lanes.reset([0, 1]), [[0, 0], [0, 0]])
    seen = [lanes.step(np.array([0, 1])) for _ in range(6)]
    np.testing.assert_array_equal(
        np.array([s.observation for s in seen]),
        [[[1, 0], [1, 0]], [[2, 0], [2, 0]], [[0, 1], [3, 0]], [[1, 1], [4, 0]], [[2, 1], [0, 1]], [[0, 2], [1, 1]]],
    )
    np.testing.assert_array_equal(
        np.array([s.successor for s in seen]),
        [[[1, 0], [1, 0]], [[2, 0], [2, 0]], [[3, 0], [3, 0]], [[1, 1], [4, 0]], [[2, 1], [5, 0]], [[3, 1], [1, 1]]],
    )
    np.testing.assert_array_equal([s.truncated[0] for s in seen], [False, False, True, False, False, True])
    np.testing.assert_array_equal([s.terminated[1] for s in seen], [False, False, False, False, True, False])
    assert not any(s.terminated[0] or s.truncated[1] for s in seen)
    assert all(s.reward.dtype == np.float32 for s in seen)


class OneBuffer(Counting):
    """Writes every observation into the same array."""

    _buffer = None

    def _observe(self) -> np.ndarray:
        if self._buffer is None:
            self._buffer = np.zeros(2, np.float32)
        self._buffer[:] = self._steps, self._episodes
        return self._buffer


def test_an_environment_may_reuse_its_observation() -> None:
    """Also: what a step returned stays as it was when the next one is made."""
    lanes = replace(from_env(OneBuffer()), build=lambda: OneBuffer(2)).vector(2)
    seen = [lanes.reset([0, 1])]
    steps = [lanes.step(np.zeros(2, int)) for _ in range(4)]
    seen += [s.observation for s in steps]
    np.testing.assert_array_equal(np.array(seen)[:, 1], [[0, 0], [1, 0], [0, 1], [1, 1], [0, 2]])
    np.testing.assert_array_equal([s.successor[1] for s in steps], [[1, 0], [2, 0], [1, 1], [2, 1]])


def test_a_limit_counts_the_agent_s_frames_where_frames_are_skipped() -> None:
    lanes = make("gymnasium/ALE/Pong-v5", max_episode_frames=6).vector(1)
    lanes.reset([0])
    assert [bool(lanes.step(np.array([0])).truncated[0]) for _ in range(12)] == ([False] * 5 + [True]) * 2
    lanes.close()


def test_actions_that_do_not_start_at_zero() -> None:
    class Offset(Counting):
        action_space = spaces.Discrete(3, start=5)

        def step(self, action: Any) -> Any:
            assert self.action_space.contains(action)
            observation, _, terminated, truncated, info = super().step(action)
            return observation, float(action), terminated, truncated, info

    lanes = from_env(Offset(9)).vector(1)
    lanes.reset([0])
    assert [lanes.step(np.array([a])).reward[0] for a in (0, 1, 2)] == [5.0, 6.0, 7.0]


@pytest.mark.parametrize(
    ("space", "shape", "dtype"),
    [
        (spaces.Box(-1, 1, (4,), np.float64), (4,), np.float32),
        (spaces.Box(-1, 1, (), np.float32), (1,), np.float32),
        (spaces.Box(-1, 1, (3, 2), np.float32), (6,), np.float32),
        (spaces.Box(0, 255, (128,), np.uint8), (128,), np.uint8),
        (spaces.Box(0, 255, (84, 84), np.uint8), (84, 84, 1), np.uint8),
        (spaces.Box(0, 255, (84, 84, 4), np.uint8), (84, 84, 4), np.uint8),
        (spaces.Box(0, 255, (4, 84, 84), np.uint8), (84, 84, 4), np.uint8),
        (spaces.Box(0, 255, (4, 84, 84, 3), np.uint8), (84, 84, 12), np.uint8),
        (spaces.Box(0, 1, (10, 10, 4), bool), (10, 10, 4), np.bool_),  # pyright: ignore
        (spaces.Discrete(5, start=2), (5,), np.bool_),
    ],
)
def test_what_a_network_reads(space: spaces.Space, shape: tuple[int, ...], dtype: Any) -> None:
    env = from_env(Shaped(space))
    assert env.observation_shape == shape
    assert env.observation_dtype == dtype
    space.seed(0)
    drawn = [space.sample() for _ in range(3)]
    batch = env.observations.encode(np.stack(drawn))
    assert batch.shape == (3, *shape)
    assert batch.dtype == dtype
    one, single = env.observations.read(drawn[1])
    assert single
    np.testing.assert_array_equal(one[0], batch[1])
    assert ObservationFormat.from_json(env.observations.to_json()) == env.observations


def test_where_pixels_and_numbers_go() -> None:
    stack = np.arange(4 * 84 * 84).reshape(1, 4, 84, 84).astype(np.uint8)
    image = ObservationFormat.of_array((4, 84, 84), np.uint8).encode(stack)
    assert image[0, 7, 11, 2] == stack[0, 2, 7, 11]
    frames = np.random.default_rng(0).integers(256, size=(1, 4, 84, 84, 3)).astype(np.uint8)
    image = ObservationFormat.of_array((4, 84, 84, 3), np.uint8).encode(frames)
    assert image[0, 7, 11, 2 * 3 + 1] == frames[0, 2, 7, 11, 1]
    numbers = ObservationFormat.of_number(2, 4).encode(np.array([2, 5]))
    np.testing.assert_array_equal(numbers, [[1, 0, 0, 0], [0, 0, 0, 1]])


@pytest.mark.parametrize(
    ("space", "actions", "words"),
    [
        (spaces.Box(0, 1, (2,)), spaces.Box(0, 1, (1,)), "has actions of Box(0.0, 1.0, (1,), float32)"),
        (spaces.Box(0, 1, (2,)), spaces.MultiDiscrete([2, 2]), "has actions of MultiDiscrete"),
        (spaces.Dict(a=spaces.Discrete(2)), None, "has observations of Dict('a': Discrete(2))"),
        (spaces.Tuple([spaces.Discrete(2)]), None, "has observations of Tuple(Discrete(2))"),
        (spaces.MultiBinary(3), None, "has observations of MultiBinary(3)"),
        (spaces.Box(0, 1, (0,)), None, "observations without content"),
    ],
)
def test_spaces_that_cannot_be(space: spaces.Space, actions: spaces.Space | None, words: str) -> None:
    with pytest.raises(ValueError, match=r"^Shaped has ") as error:
        from_env(Shaped(space, actions))
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("name", "kwargs", "words"),
    [
        ("CartPole-v7", {}, "did you mean 'CartPole-v1'"),
        ("cartpole-v1", {}, "did you mean 'CartPole-v1'"),
        ("Breakout", {}, "Breakout"),
        ("ceqr/Brekout-v0", {}, "did you mean 'ceqr/Breakout-v0'"),
        ("Zzzzzzzzzz-v0", {}, "none has a similar name"),
        ("no_such_module:Thing-v0", {}, "The module 'no_such_module' cannot be imported"),
        (".relative:Thing-v0", {}, "The module '.relative' cannot be imported"),
        (":Thing-v0", {}, "The module '' cannot be imported"),
        ("CartPole-v1", {"colour": "red"}, "cannot be made with colour='red': TypeError"),
        ("ceqr/Breakout-v0", {"protocol": "own"}, "Unknown protocol 'own'"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_ids_that_cannot_be(name: str, kwargs: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011
        from_id(name, **kwargs)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_options_reach_the_environment() -> None:
    assert make("gymnasium/FrozenLake-v1", map_name="8x8").observation_shape == (64,)
    with pytest.raises(ValueError, match="max_episode_frames must be at least 0, not -1"):
        make("gymnasium/CartPole-v1", max_episode_frames=-1)
    lanes = make("gymnasium/CartPole-v1", max_episode_frames=7).vector(1)
    lanes.reset([0])
    ends = [lanes.step(np.array([i % 2])) for i in range(7)]
    assert [bool(e.truncated[0]) for e in ends] == [False] * 6 + [True]


def test_key_value_pairs() -> None:
    given = ["a=1", "b=2.5", "c=true", "d=None", "e=word", "f=[1, 2]", "g=a=b", "h='1'"]
    expected = {"a": 1, "b": 2.5, "c": True, "d": None, "e": "word", "f": [1, 2], "g": "a=b", "h": "1"}
    assert parse_kwargs(given) == expected
    for wrong in (["a"], ["1a=2"], ["a=1", "a=2"]):
        with pytest.raises(ValueError, match="--env-kwargs"):
            parse_kwargs(wrong)


def test_seeds_differ_by_every_number() -> None:
    seeds = {seed_of(seed, frame, lane) for seed in range(20) for frame in range(20) for lane in range(20)}
    assert len(seeds) > 7_990  # of 8,000 numbers below 2^31 hardly two are equal
    assert all(0 <= s < 2**31 for s in seeds)


# MinAtar as Gymnasium environments.


@pytest.mark.parametrize(("name", "protocol"), [*((name, "paper") for name in IDS), ("ceqr/Breakout-v0", "released")])
def test_minatar_passes_gymnasium_s_checker(name: str, protocol: str) -> None:
    env = gymnasium.make(name, protocol=protocol, render_mode="rgb_array")
    check_env(env.unwrapped)
    env.reset(seed=1)
    picture: Any = env.render()
    assert picture.shape == (80, 80, 3)
    assert picture.any()


@pytest.mark.parametrize("protocol", ["paper", "released", "standard"])
@pytest.mark.parametrize("game", ["breakout"])
def test_minatar_is_our_own_game_on_the_same_keys(game: str, protocol: str) -> None:
    """Several episodes, step by step: the compiled game with the documented keys gives the same."""
    name = next(name for name, each in IDS.items() if each == game)
    env = gymnasium.make(name, protocol=protocol)
    ours = MinAtar(game, protocol)
    key = jax.random.key(int(seeding.np_random(7)[0].integers(2**31)))
    reset_key, step_key = jax.random.split(key)
    state, expected = ours.reset(reset_key)
    step = jax.jit(ours.step)
    observation, _ = env.reset(seed=7)
    rng, ends = np.random.default_rng(0), 0
    for i in range(400):
        np.testing.assert_array_equal(observation, expected)
        action = rng.integers(ours.num_actions)
        state, after = step(state, jnp.int32(action), jax.random.fold_in(step_key, i))
        observation, reward, terminated, truncated, _ = env.step(action)
        np.testing.assert_array_equal(observation, after.successor)
        assert (reward, terminated, truncated) == (float(after.reward), bool(after.terminated), False)
        expected = after.observation
        if terminated:
            ends += 1
            observation, _ = env.reset()
    assert ends > 1


def test_minatar_seeds_and_resets_in_the_middle() -> None:
    def play(env: gymnasium.Env, seed: int | None) -> list[bytes]:
        start, _ = env.reset(seed=seed)
        return [start.tobytes(), *(env.step(i % 3)[0].tobytes() for i in range(3))]

    env = gymnasium.make("ceqr/Breakout-v0")
    first = play(env, 1)
    assert play(env, 1) == first
    assert len({play(env, s)[0] for s in range(8)}) == 2  # the ball starts left or right
    assert len({play(env, None)[0] for _ in range(12)}) == 2
    released = gymnasium.make("ceqr/Freeway-v0", protocol="released")
    runs = [play(released, 3), play(released, None), play(released, None)]
    assert runs[0] == runs[1] == runs[2]
    env.reset(seed=0)
    with pytest.raises(gymnasium.error.InvalidAction):
        env.unwrapped.step(3)


@pytest.mark.parametrize(
    "imports",
    [
        "import ceqr, gymnasium",
        "import gymnasium, ceqr",
        "import ceqr, importlib.util as u; u.find_spec('gymnasium'); u.find_spec('gymnasium'); import gymnasium",
    ],
)
def test_minatar_is_registered_in_whichever_order(imports: str) -> None:
    script = f"{imports}; gymnasium.make('ceqr/Breakout-v0', protocol='standard').reset(seed=0)"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_importing_ceqr_is_cheap() -> None:
    script = "import sys, ceqr; sys.exit(bool({'jax', 'numpy', 'gymnasium'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
