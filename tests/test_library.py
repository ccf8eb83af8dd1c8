"""Agents as objects: learn, predict, save and load, and what each says when it is misused."""

import json
import threading
import zipfile
from pathlib import Path
from typing import Any, cast

import gymnasium
import jax
import numpy as np
import pytest

import ceqr
from ceqr import CEQRDQN, DQN, DUVN, QRDQN, UADQN, BootstrappedDQN
from ceqr.cli import main
from ceqr.library import CLASSES, _decide
from tests.probes import Counting, HostTreadmill

SMALL: dict[str, Any] = {"hidden": (16,), "batch_size": 8, "replay_size": 200, "learning_starts": 50}
STATES = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)


def _made(kind: Any = CEQRDQN, env: Any = "CartPole-v1", **options: Any) -> Any:
    quantiles = {"quantiles": 5} if kind in (CEQRDQN, QRDQN, UADQN) else {}
    return kind(env, **{**SMALL, **quantiles, **options})


@pytest.fixture(scope="module")
def learned() -> CEQRDQN:
    return _made(seed=3).learn(120)


def _compilations() -> int:
    return cast(Any, _decide)._cache_size()


def _same(a: Any, b: Any, observations: np.ndarray = STATES) -> None:
    (first, told), (second, again) = a.predict(observations), b.predict(observations)
    np.testing.assert_array_equal(first, second)
    for name in ("mean", "epistemic", "aleatoric", "quantiles"):
        np.testing.assert_array_equal(getattr(told, name), getattr(again, name))


def test_the_six_classes_are_public() -> None:
    assert {c.__name__ for c in CLASSES} <= set(ceqr.__all__)
    assert all(getattr(ceqr, c.__name__) is c for c in CLASSES)


def test_learning_goes_on_where_it_stopped() -> None:
    """Two calls are one: the same episodes, weights and beliefs."""
    once, twice = _made(seed=1).learn(150), _made(seed=1).learn(70).learn(80)
    assert once.frames == twice.frames == 150
    assert once.returns == twice.returns
    assert len(once.returns) > 2
    _same(once, twice)
    other = _made(seed=2).learn(150)
    assert other.returns != once.returns


def test_it_is_the_run_of_the_command_line(tmp_path: Path) -> None:
    """The same seed and options give the same agent; and an agent of a run can be had as an object."""
    options = [
        "--hidden",
        "16",
        "--batch-size",
        "8",
        "--replay-size",
        "200",
        "--learning-starts",
        "50",
        "--quantiles",
        "5",
    ]
    run = tmp_path / "run"
    command = ["train", "--env", "gymnasium/CartPole-v1", *options, "--seed-start", "3", "--frames", "120", "--quiet"]
    assert main([*command, "--out", str(run)]) == 0
    agent = CEQRDQN.from_run(run)
    assert (agent.seed, agent.frames) == (3, 120)
    _same(agent, _made(seed=3).learn(120))
    agent.learn(30)
    assert agent.frames == 150
    with pytest.raises(ValueError, match=r"has no seed 9; it has 3\."):
        CEQRDQN.from_run(run, seed=9)
    with pytest.raises(ValueError, match=r"load it with CEQRDQN\.from_run"):
        DQN.from_run(run)


@pytest.mark.parametrize("kind", CLASSES)
def test_beliefs_of_every_agent(kind: Any, tmp_path: Path) -> None:
    agent = _made(kind, **({"lambda_ep": 100.0} if kind in (CEQRDQN, UADQN) else {})).learn(60)
    actions, beliefs = agent.predict(STATES)
    assert actions.shape == (5,)
    assert beliefs.mean.shape == (5, 2)
    known = {
        CEQRDQN: (True, True, 5), UADQN: (True, True, 5), QRDQN: (False, True, 5), DQN: (False, False, 0),
        BootstrappedDQN: (True, False, 0), DUVN: (True, True, 0),
    }[kind]  # fmt: skip
    assert (beliefs.epistemic is not None, beliefs.aleatoric is not None) == known[:2]
    if known[2]:
        assert beliefs.quantiles.shape == (5, 2, known[2])
        np.testing.assert_allclose(beliefs.quantiles.mean(-1), beliefs.mean, rtol=1e-4, atol=1e-5)
    else:
        assert beliefs.quantiles is None
    np.testing.assert_array_equal(actions, beliefs.mean.argmax(-1))
    one, alone = agent.predict(STATES[1])
    assert type(one) is int
    assert one == actions[1]
    np.testing.assert_allclose(alone.mean, beliefs.mean[1], rtol=1e-4, atol=1e-5)
    assert set(np.unique(agent.predict(np.repeat(STATES, 40, 0), explore=True)[0])) == {0, 1}
    agent.save(tmp_path / "agent")
    _same(kind.load(tmp_path / "agent"), agent)


def test_risk_aversion_is_chosen_when_predicting(learned: CEQRDQN) -> None:
    _, beliefs = learned.predict(STATES)
    for weight in (0.0, 3.0, 1e6):
        actions, again = learned.predict(STATES, lambda_al=weight)
        np.testing.assert_array_equal(actions, (beliefs.mean - weight * beliefs.aleatoric).argmax(-1))
        np.testing.assert_array_equal(again.mean, beliefs.mean)  # what it believes does not change
    averse = _made(lambda_al=1e6, seed=3)
    actions, beliefs = averse.predict(STATES)  # its own
    np.testing.assert_array_equal(actions, beliefs.aleatoric.argmin(-1))
    np.testing.assert_array_equal(averse.predict(STATES, lambda_al=0.0)[0], beliefs.mean.argmax(-1))
    exploring, _ = averse.predict(STATES, explore=True)  # a million times the noise decides in exploration, too
    np.testing.assert_array_equal(exploring, beliefs.aleatoric.argmin(-1))
    for agent, explore in ((_made(DQN), False), (_made(BootstrappedDQN), False), (_made(DUVN), True)):
        with pytest.raises(ValueError, match="lambda_al"):
            agent.predict(STATES, explore=explore, lambda_al=1.0)
    with pytest.raises(ValueError, match="lambda_al must be a finite number and at least 0, not -1"):
        learned.predict(STATES, lambda_al=-1.0)


def test_exploration_draws_anew() -> None:
    agent = _made(lambda_ep=1e6)
    draws = np.array([agent.predict(STATES[0], explore=True)[0] for _ in range(40)])
    assert 5 < draws.sum() < 35
    assert len({agent.predict(STATES[0])[0] for _ in range(5)}) == 1


@pytest.mark.parametrize(
    ("observation", "words"),
    [
        (np.zeros(5, np.float32), "has shape (5,); expected is shape (4,) of dtype float32"),
        (np.zeros((2, 3, 4), np.float32), "has shape (2, 3, 4); expected is shape (4,)"),
        (np.zeros((0, 4), np.float32), "holds no observation"),
        (np.zeros(4, complex), "has dtype complex128; expected is shape (4,) of dtype float32"),
        (np.array(["a"] * 4), "has dtype <U1; expected"),
        ([1.0, 2.0], "has shape (2,); expected"),
        ([[1.0], [1.0, 2.0]], "must be an array"),
        (None, "has shape (); expected"),
    ],
)
def test_wrong_observations(learned: CEQRDQN, observation: Any, words: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011
        learned.predict(observation)
    assert words in str(error.value)


def test_numbers_as_observations_and_bytes_that_are_no_floats() -> None:
    agent = _made(env="FrozenLake-v1")
    assert agent.predict(15)[1].mean.shape == (4,)
    assert agent.predict([0, 3])[0].shape == (2,)
    for wrong, words in ((16, "is 16; expected is a whole number from 0 to 15"), (1.5, "has dtype float64; expected")):
        with pytest.raises(ValueError) as error:  # noqa: PT011
            agent.predict(wrong)
        assert words in str(error.value)
    game = _made(env="minatar/breakout")
    assert game.predict(np.zeros((10, 10, 4), bool))[1].mean.shape == (3,)
    with pytest.raises(ValueError, match=r"dtype float64; expected is shape \(10, 10, 4\) of dtype bool"):
        game.predict(np.zeros((10, 10, 4)))


def test_predict_compiles_once_a_shape_and_is_safe_in_threads(learned: CEQRDQN) -> None:
    """Twenty threads meet a new shape at once, while another goes on learning."""
    agent = _made(seed=9, hidden=(13,))
    rows = np.random.default_rng(1).normal(size=(7, 4)).astype(np.float32)
    before = _compilations()
    start, found, errors = threading.Barrier(20), [], []

    def ask() -> None:
        try:
            start.wait()
            found.append([agent.predict(rows)[1].mean for _ in range(10)])
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=ask) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert _compilations() == before + 1
    np.testing.assert_array_equal(np.array(found), np.broadcast_to(found[0][0], (20, 10, 7, 2)))
    for weight in (0.1, 0.2, 0.3):
        agent.predict(rows, lambda_al=weight)
    assert _compilations() == before + 1

    learner = threading.Thread(target=lambda: agent.learn(120))
    learner.start()
    while learner.is_alive():
        assert np.isfinite(agent.predict(rows)[1].mean).all()
    learner.join()
    assert agent.frames == 120


def test_a_saved_agent_goes_on_learning(learned: CEQRDQN, tmp_path: Path) -> None:
    path = tmp_path / "agent.ceqr"
    learned.save(path)
    learned.save(path)  # over itself
    assert [p.name for p in tmp_path.iterdir()] == ["agent.ceqr"]
    agent = CEQRDQN.load(path)
    assert (agent.frames, agent.seed, agent.hyperparameters) == (120, 3, learned.hyperparameters)
    with pytest.raises(ValueError, match="give it one with set_env"):
        agent.learn(10)
    with pytest.raises(ValueError, match="has 3 actions and observations of shape"):
        agent.set_env("Acrobot-v1")
    agent.set_env("CartPole-v1")
    agent.learn(40)  # replay is empty: nothing is learned in the first 50 frames
    _same(agent, learned)
    agent.learn(40)
    assert not np.array_equal(agent.predict(STATES)[1].mean, learned.predict(STATES)[1].mean)
    assert CEQRDQN.load(path, env=gymnasium.make("CartPole-v1")).learn(5).frames == 125


def test_files_that_cannot_be_loaded(learned: CEQRDQN, tmp_path: Path) -> None:
    whole, path = tmp_path / "whole", tmp_path / "agent"
    learned.save(whole)
    content = whole.read_bytes()
    with pytest.raises(FileNotFoundError):
        CEQRDQN.load(tmp_path / "nothing")
    with pytest.raises(ValueError, match=r"holds an agent 'ceqr-dqn'; load it with CEQRDQN\.load\."):
        DQN.load(whole)
    weight = np.asarray(learned._state.params.quantile_head.weight).tobytes()
    place = content.index(weight) + len(weight) // 2
    flipped = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
    for damaged in (b"", b"words", content[:1000], content[:-30], flipped):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"damaged|incompatible"):
            CEQRDQN.load(path)

    def rewrite(meta: dict[str, Any] | None = None, drop: str = "", add: bool = False) -> None:
        with np.load(whole) as file:
            arrays = {name: file[name] for name in file.files if name != drop}
        if meta is not None:
            arrays["meta"] = np.array(json.dumps(json.loads(str(arrays["meta"])) | meta))
        if add:
            arrays["surplus"] = np.zeros(3)
        with open(path, "wb") as file:
            np.savez(file, **arrays)

    rewrite()
    CEQRDQN.load(path)
    some = next(name for name in zipfile.ZipFile(whole).namelist() if "weight" in name).removesuffix(".npy")
    for change in (
        {"meta": {"format": 99}}, {"meta": {"hyper": {"lambda": 1}}}, {"meta": {"observations": {"kind": "x"}}},
        {"meta": {"num_actions": 3}}, {"meta": {"num_actions": None}}, {"drop": some}, {"add": True}, {"drop": "meta"},
    ):  # fmt: skip
        rewrite(**change)  # pyright: ignore
        with pytest.raises(ValueError, match=r"damaged|incompatible"):
            CEQRDQN.load(path)


class Bomb:
    """What a pickle would execute."""

    def __reduce__(self) -> Any:
        return (pytest.fail, ("the file was executed",))


def test_nothing_in_a_file_is_executed(learned: CEQRDQN, tmp_path: Path) -> None:
    import pickle

    whole, path = tmp_path / "whole", tmp_path / "agent"
    path.write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(ValueError, match="damaged"):
        CEQRDQN.load(path)
    learned.save(whole)
    with np.load(whole) as file:
        arrays = {name: file[name] for name in file.files}
    for name in ("meta", next(name for name in arrays if "weight" in name)):
        with open(path, "wb") as file:
            np.savez(file, **{**arrays, name: np.array([Bomb()], dtype=object)})  # pyright: ignore
        with pytest.raises(ValueError, match=r"damaged|incompatible"):
            CEQRDQN.load(path)


@pytest.mark.parametrize(
    ("kind", "env", "options", "error", "words"),
    [
        (CEQRDQN, "CartPole-v1", {"lambda_epp": 1}, TypeError, "'lambda_epp' (did you mean 'lambda_ep'?)"),
        (DQN, "CartPole-v1", {"gamma": 0.9}, TypeError, "has no hyperparameter 'gamma' (did you mean 'discount'?)"),
        (DQN, "CartPole-v1", {"quantiles": 5}, TypeError, "DQN has no hyperparameter 'quantiles'"),
        (DQN, "CartPole-v1", {"batch_size": 0}, ValueError, "batch_size must be at least 1, not 0."),
        (DQN, "CartPole-v1", {"batch_size": 1.5}, ValueError, "batch_size must be of type int"),
        (DQN, "CartPole-v1", {"preset": "fast"}, ValueError, "Unknown preset 'fast'"),
        (DQN, "CartPole-v1", {"protocol": "standard"}, ValueError, "protocol is MinAtar's"),
        (DQN, "CartPole-v1", {"num_envs": 0}, ValueError, "num_envs must be at least 1"),
        (DQN, "CartPole-v9", {}, ValueError, "did you mean 'CartPole-v1'"),
        (DQN, "Pendulum-v1", {}, ValueError, "has actions of Box"),
        (DQN, "minatar/brekout", {}, ValueError, "did you mean 'minatar/breakout'"),
        (DQN, "minatar/breakout", {"num_envs": 2}, ValueError, "is compiled"),
        (DQN, 3, {}, TypeError, "not int"),
        (DQN, Counting(), {"num_envs": 2}, ValueError, "need a Gymnasium id"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_wrong_arguments(kind: Any, env: Any, options: dict[str, Any], error: Any, words: str) -> None:
    with pytest.raises(error) as raised:
        kind(env, **options)
    assert words in str(raised.value)


def test_presets_follow_what_the_agent_sees() -> None:
    assert CEQRDQN("CartPole-v1").hyperparameters.hidden == (256, 256)
    assert _made(env="minatar/breakout").hyperparameters.torso == "padded"
    assert CEQRDQN("CartPole-v1", preset="quick").hyperparameters.hidden == (128,)
    assert CEQRDQN("CartPole-v1", hidden=[8, 8]).hyperparameters.hidden == (8, 8)


def test_an_environment_that_is_already_made() -> None:
    """Its episodes go on from call to call; evaluation plays in it, too, and learning then begins a new one."""
    env = Counting(length=7)
    agent = _made(env=env)
    agent.learn(10)
    assert env._episodes == 1
    agent.learn(4)
    assert agent.returns == [7.0, 7.0]
    np.testing.assert_array_equal(agent.evaluate(2), [7.0, 7.0])
    agent.learn(7)
    assert agent.returns == [7.0, 7.0, 7.0]


def test_an_environment_that_raises_leaves_the_agent_whole() -> None:
    env = Counting(length=7, raises_at=71)
    agent = _made(env=env)
    with pytest.raises(RuntimeError, match="the joint is broken"):
        agent.learn(100)
    assert agent.frames == 70
    assert np.isfinite(agent.predict(np.zeros(2, np.float32))[1].mean).all()
    agent.learn(20)  # it raises but once
    assert agent.frames == 90


def test_a_compiled_game_learns_too() -> None:
    agent = _made(env="minatar/breakout", protocol="standard", seed=1)
    agent.learn(60).learn(40)
    assert agent.frames == 100
    assert agent.evaluate(3, max_episode_frames=200).shape == (3,)
    assert agent._env.protocol == "standard"


def test_evaluation_repeats() -> None:
    agent = _made(env=HostTreadmill())
    with pytest.raises(ValueError, match="episodes must be at least 1"):
        agent.evaluate(0)
    with pytest.raises(ValueError, match="frames must be at least 1"):
        agent.learn(0)
    cart = _made()
    first = cart.evaluate(4)
    np.testing.assert_array_equal(first, cart.evaluate(4))
    assert not np.array_equal(first, cart.evaluate(4, seed=77))


def test_a_loss_that_is_not_finite() -> None:
    agent = _made(learning_rate=1e30)
    with pytest.raises(FloatingPointError, match="was not finite before frame"):
        agent.learn(500)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(agent._state.params))
