"""gymnax's environments: against gymnax stepped by itself, against Gymnasium's own classics, and what we add."""

import subprocess
import sys
from functools import partial
from typing import Any

import gymnasium
import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ceqr import envs
from ceqr.envs import MissingExtra, make
from ceqr.envs.base import reset
from ceqr.envs.gymnax import Gymnax

PLAYED = {  # with a limit that is met, and actions that also end episodes otherwise where that is possible
    "CartPole-v1": {"max_episode_frames": 20},
    "Acrobot-v1": {"max_episode_frames": 90},
    "MountainCar-v0": {"max_episode_frames": 30},
    "Catch-bsuite": {"rows": 6, "columns": 4, "max_episode_frames": 4},
    "DeepSea-bsuite": {"size": 5, "action_mapping_key": 3, "max_episode_frames": 4},
    "UmbrellaChain-bsuite": {"n_distractor": 2},
    "DiscountingChain-bsuite": {},
    "FourRooms-misc": {"goal_fixed": [4, 3], "max_episode_frames": 40},
    "FrozenLake-misc": {"is_slippery": False, "max_episode_frames": 12},
}
STEPS = 200


def gymnax_itself(env: Gymnax, options: dict[str, Any]) -> tuple[Any, Any]:
    """The same environment, made as gymnax's documentation does."""
    given = dict(options)
    limit = given.pop("max_episode_frames", 0)
    if "action_mapping_key" in given:
        given["action_mapping_key"] = jax.random.key(given["action_mapping_key"])
    game, params = gymnax.make(env.id, **given)
    return game, params.replace(max_steps_in_episode=limit) if limit else params


@pytest.mark.parametrize("name", PLAYED)
def test_step_for_step_gymnax_s_own(name: str) -> None:
    """The same keys and actions through gymnax's public `reset` and `step`: observations, rewards and ends."""
    env = make(f"gymnax/{name}", **PLAYED[name])
    game, params = gymnax_itself(env, PLAYED[name])
    actions = jnp.asarray(np.random.default_rng(0).integers(env.num_actions, size=STEPS), jnp.int32)
    keys = jax.random.split(jax.random.key(1), STEPS)

    @jax.jit
    def ours(key: jax.Array) -> Any:
        return jax.lax.scan(lambda s, x: env.step(s, *x), env.reset(key)[0], (actions, keys))[1]

    @jax.jit
    def theirs(key: jax.Array) -> Any:
        def step(state: Any, x: Any) -> Any:
            observation, state, reward, terminated, truncated, info = game.step(x[1], state, x[0], params)
            return state, (observation, info["final_observation"], reward, terminated, truncated)

        return jax.lax.scan(step, game.reset(key, params)[1], (actions, keys))[1]

    found, expected = ours(jax.random.key(0)), theirs(jax.random.key(0))
    for seen, raw in ((found.observation, expected[0]), (found.successor, expected[1])):
        np.testing.assert_array_equal(seen, env.observations.encode(np.asarray(raw)))
    np.testing.assert_array_equal(found.reward, expected[2])
    np.testing.assert_array_equal(found.terminated, expected[3])
    np.testing.assert_array_equal(found.truncated, expected[4] & ~expected[3])
    over = np.asarray(found.terminated | found.truncated)
    assert over.sum() >= 2
    assert (np.asarray(found.observation != found.successor).reshape(STEPS, -1).any(1) <= over).all()
    if name in ("CartPole-v1", "FrozenLake-misc"):
        assert np.asarray(found.terminated).any()
        assert np.asarray(found.truncated).any()


@pytest.mark.parametrize("name", PLAYED)
def test_a_limit_truncates_and_is_no_end(name: str) -> None:
    """A step before each environment can end by itself (of MountainCar, at all), the limit cuts every episode."""
    frames = {"CartPole-v1": 7, "Catch-bsuite": 3, "DeepSea-bsuite": 3, "FrozenLake-misc": 1}.get(name, 5)
    options = {k: v for k, v in PLAYED[name].items() if k != "max_episode_frames"}
    env = make(f"gymnax/{name}", **options, max_episode_frames=frames)
    steps = play(env, jnp.zeros(3 * frames, jnp.int32))
    assert not np.asarray(steps.terminated).any()
    np.testing.assert_array_equal(steps.truncated, np.arange(1, 3 * frames + 1) % frames == 0)


def play(env: Gymnax, actions: jax.Array, seed: int = 0) -> Any:
    keys = jax.random.split(jax.random.key(2), len(actions))
    state, _ = jax.jit(partial(reset, env))(jax.random.key(1), seed)
    return jax.jit(lambda s: jax.lax.scan(lambda s, x: env.step(s, *x), s, (actions, keys))[1])(state)


def test_an_end_at_the_limit_is_an_end() -> None:
    """DeepSea's limit in gymnax is its size, at which it always ends."""
    steps = play(make("gymnax/DeepSea-bsuite", size=4), jnp.zeros(12, jnp.int32))
    np.testing.assert_array_equal(steps.terminated, np.arange(1, 13) % 4 == 0)
    assert not np.asarray(steps.truncated).any()
    assert not np.asarray(steps.successor)[3].any()  # below the sea floor nothing is seen
    assert np.asarray(steps.observation)[3].argmax() == 0  # the next dive begins


@pytest.mark.parametrize("name", ["CartPole-v1", "Acrobot-v1", "MountainCar-v0"])
def test_the_classics_are_gymnasium_s(name: str) -> None:
    """From the same state with the same actions: the same observations but for rounding, rewards, ends and limit."""
    theirs: Any = gymnasium.make(name)
    env = make(f"gymnax/{name}")
    step = jax.jit(env._facts.env.step_env)
    rng, ended = np.random.default_rng(0), 0
    state = jax.jit(env.reset)(jax.random.key(0))[0].game
    for episode in range(6):
        theirs.reset(seed=episode)
        heavy = rng.integers(env.num_actions)
        for i in range(150):
            # Rounding adds up: both go on from gymnax's state, in float64 and in float32.
            fields = [float(x) for f, x in vars(state).items() if f != "time"]
            theirs.unwrapped.state = np.array(fields)
            action = heavy if rng.random() < 0.6 else int(rng.integers(env.num_actions))
            observation, reward, terminated, truncated, _ = theirs.step(action)
            seen, state, paid, over, _ = step(jax.random.key(i), state, action, env._facts.params)
            np.testing.assert_allclose(seen, observation, rtol=1e-4, atol=1e-5)
            assert (float(paid), bool(over)) == (reward, terminated)
            assert not truncated
            if terminated:
                ended += 1
                break
        state = jax.jit(env.reset)(jax.random.key(episode + 1))[0].game
        # Chance alone gets neither out of the valley nor up.
        if name == "MountainCar-v0":
            state = state.replace(position=jnp.float32(0.4), velocity=jnp.float32(0.05))
        if name == "Acrobot-v1":
            state = state.replace(joint_angle1=jnp.float32(2), velocity_1=jnp.float32(4))
    assert ended > 1
    assert env._facts.params.max_steps_in_episode == theirs.spec.max_episode_steps
    starts = np.asarray(jax.vmap(lambda k: env.reset(k)[1])(jax.random.split(jax.random.key(9), 500)))
    starts = starts / (env.observations.scale or 1)  # as the game gives them
    others = np.array([theirs.reset(seed=i)[0] for i in range(500)])
    np.testing.assert_allclose(starts.mean(0), others.mean(0), atol=0.02)
    np.testing.assert_allclose(starts.std(0), others.std(0), atol=0.02)


def test_every_discrete_environment_can_be_played() -> None:
    """Those with other actions say so; the one that downloads data is left out."""
    refused = {"Pendulum-v1", "MountainCarContinuous-v0", "PointRobot-misc", "Reacher-misc", "Swimmer-misc"}
    for name in set(gymnax.registered_envs) - {"MNISTBandit-bsuite"}:
        if name in refused:
            with pytest.raises(ValueError, match=f"{name} has actions of Box; these agents choose"):
                make(f"gymnax/{name}")
            continue
        env = make(f"gymnax/{name}")
        assert (env, hash(env)) == (make(f"gymnax/{name}"), hash(make(f"gymnax/{name}")))
        assert envs.is_compiled(env)
        assert envs.first_action(env) == 0
        state, observation = jax.eval_shape(env.reset, jax.random.key(0))
        after, step = jax.eval_shape(env.step, state, jnp.int32(0), jax.random.key(0))
        kinds = [[(x.shape, x.dtype, x.weak_type) for x in jax.tree.leaves(s)] for s in (state, after)]
        assert kinds[0] == kinds[1], name  # so that a state may be carried through a loop
        for seen in (observation, step.observation, step.successor):
            assert (seen.shape, seen.dtype) == (env.observation_shape, env.observation_dtype)
        assert (step.reward.dtype, step.terminated.dtype, step.truncated.dtype) == (np.float32, bool, bool)
        assert envs.observation_format(env).network_shape == env.observation_shape


# DeepSea: what actions mean.


def meanings(env: Gymnax, seed: int, key: int) -> np.ndarray:
    return np.asarray(reset(env, jax.random.key(key), seed)[0].game.action_mapping)


def test_deepsea_s_actions_mean_the_same_in_all_episodes_of_a_seed_and_differ_between_seeds() -> None:
    env = make("gymnax/DeepSea-bsuite", size=6)
    first = meanings(env, seed=0, key=1)
    np.testing.assert_array_equal(first, meanings(env, seed=0, key=2))  # as in another lane, or in evaluation
    assert len({meanings(env, seed, 1).tobytes() for seed in range(5)}) == 5
    assert 0 < first.mean() < 1

    @jax.jit
    def mappings(seed: jax.Array) -> Any:
        def step(state: Any, key: jax.Array) -> Any:
            state, after = env.step(state, jnp.int32(0), key)
            return state, (state.game.action_mapping, after.terminated)

        start, _ = reset(env, jax.random.key(1), seed)
        return jax.lax.scan(step, start, jax.random.split(jax.random.key(2), 30))[1]

    seen, ends = mappings(jnp.int32(0))
    assert ends.sum() == 5
    assert (np.asarray(seen) == first).all()
    # The mapping is what the game goes by: the action that it names for every cell of the diagonal finds the treasure.
    actions = jnp.asarray(np.tile(first.diagonal(), 2), jnp.int32)
    np.testing.assert_allclose(play(env, actions).reward.reshape(2, 6).sum(1), 0.99, atol=1e-6)
    # Without a seed it is drawn with the first episode's key.
    assert (np.asarray(env.reset(jax.random.key(5))[0].game.action_mapping) != first).any()


def test_other_meanings_of_deepsea_s_actions() -> None:
    plain = make("gymnax/DeepSea-bsuite", size=6, randomize_actions=False)
    assert meanings(plain, 3, 1).all()
    fixed = make("gymnax/DeepSea-bsuite", size=6, action_mapping_key=0)
    np.testing.assert_array_equal(meanings(fixed, 3, 1), gymnax.make("DeepSea-bsuite", size=6)[0].action_mapping)
    anew = make("gymnax/DeepSea-bsuite", size=6, sample_action_map=True)
    assert (meanings(anew, 3, 1) != meanings(anew, 3, 2)).any()


# Options and mistakes.


def test_options_reach_the_environment() -> None:
    assert make("gymnax/DeepSea-bsuite", size=4).observation_shape == (16,)
    assert make("gymnax/FrozenLake-misc", map_name="8x8").observation_shape == (64,)
    heavy = play(make("gymnax/CartPole-v1", gravity=30), jnp.zeros(8, jnp.int32))
    light = play(make("gymnax/CartPole-v1"), jnp.zeros(8, jnp.int32))
    assert (heavy.successor[1:] != light.successor[1:]).any()
    short = make("gymnax/CartPole-v1", max_steps_in_episode=3)
    assert np.asarray(play(short, jnp.zeros(6, jnp.int32)).truncated).tolist() == [False, False, True] * 2
    weak = make("gymnax/Acrobot-v1", available_torque=[0, 0, 0])
    steps = [play(weak, jnp.full(4, a, jnp.int32)).successor for a in (0, 2)]
    np.testing.assert_array_equal(*steps)


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("CartPole-v2", {}, "Unknown gymnax environment 'CartPole-v2' (did you mean 'CartPole-v1'?)"),
        ("CartPole-v1", {"gravty": 1.0}, "Unknown option of gymnax/CartPole-v1 'gravty' (did you mean 'gravity'?)"),
        ("DeepSea-bsuite", {"sise": 4}, "(did you mean 'size'?)"),
        ("CartPole-v1", {"gravity": "low"}, "gravity must be of type float, not 'low'"),
        ("DeepSea-bsuite", {"size": "large"}, "DeepSea-bsuite cannot be made with size='large': TypeError"),
        ("DeepSea-bsuite", {"size": 0}, "DeepSea-bsuite cannot be played with size=0: ZeroDivisionError"),
        ("DeepSea-bsuite", {"size": {}}, "size must be a number, a word or a list of these, not {}"),
        ("DeepSea-bsuite", {"action_mapping_key": "x"}, "action_mapping_key must be of type int, not 'x'"),
        ("Acrobot-v1", {"available_torque": [1]}, "available_torque must be numbers of shape (3,), not (1,)"),
        ("Acrobot-v1", {"available_torque": "all"}, "available_torque must be numbers of shape (3,), not 'all'"),
        ("CartPole-v1", {"max_episode_frames": -1}, "max_episode_frames must be at least 0, not -1"),
        ("CartPole-v1", {"max_episode_frames": 5, "max_steps_in_episode": 5}, "are the same limit; give one of them"),
    ],
)
def test_mistakes(name: str, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011
        make(f"gymnax/{name}", **options)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_observations_that_are_no_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    class TwoParts(type(gymnax.make("MountainCar-v0")[0])):
        def get_obs(self, state: Any, params: Any = None, key: Any = None) -> Any:
            return {"position": state.position, "velocity": state.velocity}

    monkeypatch.setattr("gymnax.registration._registry", dict(gymnax.registration._registry))
    monkeypatch.setattr("gymnax.registered_envs", [*gymnax.registered_envs, "TwoParts-v0"])
    gymnax.registration._registry["TwoParts-v0"] = TwoParts
    with pytest.raises(ValueError, match="TwoParts-v0 has observations of Box; these agents read arrays and numbers"):
        make("gymnax/TwoParts-v0")


def test_missing_extra() -> None:
    hide = "import sys; sys.modules['gymnax'] = None; from ceqr.envs import MissingExtra, make"
    script = f"{hide}\ntry: make('gymnax/CartPole-v1')\nexcept MissingExtra as error: print(error)"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert 'gymnax comes with an extra that is not installed: pip install "ceqr[gymnax]".' in result.stdout
    assert issubclass(MissingExtra, ImportError)
