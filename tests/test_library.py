"""Agents as objects: learn, predict, save and load, and what each says when it is misused."""

import json
import sys
import threading
import zipfile
from pathlib import Path
from typing import Any, cast

import equinox as eqx
import gymnasium
import jax
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec

import ceqr
import tests.probe_family  # noqa: F401  makes CHAIN known
from ceqr import CEQRDQN, DQN, DUVN, QRDQN, UADQN, BootstrappedDQN
from ceqr.agents import AGENTS
from ceqr.cli import main
from ceqr.library import CLASSES, TrainableAgent, _make_env, _predictor
from ceqr.training.compiled import CompiledPlayer
from ceqr.training.host import HostPlayer
from tests.probes import COUNTING, Counting, CountingAgent
from tests.sharing import shared_programs

CHAIN = "probe/noisy-chain"  # compiled
SMALL: dict[str, Any] = {
    "hidden": (8,), "batch_size": 4, "replay_size": 60, "learning_starts": 20, "target_period": 10, "update_every": 1,
}  # fmt: skip
QUANTILES = {"quantiles": 4}
OWN: dict[Any, dict[str, Any]] = {
    CEQRDQN: QUANTILES,
    QRDQN: QUANTILES,
    UADQN: QUANTILES,
    BootstrappedDQN: {"heads": 3, "mask_probability": 0.5},
}
STATES = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)


def _made(kind: Any = DQN, env: Any = CHAIN, **options: Any) -> Any:
    return kind(env, **{**SMALL, **OWN.get(kind, {}), **options})


def _host(env: Any = COUNTING, **options: Any) -> Any:
    """An agent in an environment of the host."""
    return _made(DQN, env, **options)


def _updates(agent: Any) -> int:
    return int(agent._learned.state.optimiser[0].count)


@pytest.fixture(scope="module", autouse=True)
def _shared_programs() -> Any:
    with shared_programs():
        yield


@pytest.fixture
def whole_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, the host looks up only when it has played all frames."""
    monkeypatch.setattr("ceqr.training.host.CHUNK_SECONDS", 1e6)


@pytest.fixture(scope="module")
def learned() -> DQN:
    return _made(seed=3).learn(60)


@pytest.fixture(scope="module")
def evidential() -> CEQRDQN:
    return _made(CEQRDQN, seed=3)


@pytest.fixture(scope="module")
def heads() -> BootstrappedDQN:
    return _made(BootstrappedDQN, seed=1)


class Counter(TrainableAgent):
    """An agent of one's own, which counts."""

    agent_name = "counting"


@pytest.fixture(scope="module", autouse=True)
def _counting_is_known() -> Any:
    AGENTS["counting"] = CountingAgent
    yield
    del AGENTS["counting"]


@pytest.fixture(scope="module")
def counter() -> Counter:
    agent = _made(Counter)
    state, rng = agent._learned.state, np.random.default_rng(0)
    root = rng.normal(size=(8, 8))
    counted = jax.tree.map(np.float32, (25, root @ root.T, np.linalg.inv(np.eye(8) + root @ root.T)))
    statistics = state.statistics._replace(updates=np.int32(counted[0]), moment=counted[1], inverse=counted[2])
    agent._publish(state._replace(statistics=jax.tree.map(jax.numpy.asarray, statistics)), 45)
    return agent


def _same(a: Any, b: Any) -> None:
    """They have learned the same, to the bit."""
    assert a.frames == b.frames
    one, other = (jax.tree_util.tree_flatten_with_path(agent._learned.state)[0] for agent in (a, b))
    for (path, x), (_, y) in zip(one, other, strict=True):
        np.testing.assert_array_equal(x, y, err_msg=str(path))


def _agree(a: Any, b: Any, observations: np.ndarray = STATES) -> None:
    """They believe and do the same."""
    (first, told), (second, again) = a.predict(observations), b.predict(observations)
    np.testing.assert_array_equal(first, second)
    jax.tree.map(np.testing.assert_array_equal, told, again)


def test_the_six_classes_are_public() -> None:
    assert {c.__name__ for c in CLASSES} <= set(ceqr.__all__)
    assert all(getattr(ceqr, c.__name__) is c for c in CLASSES)
    assert TrainableAgent.__name__ not in ceqr.__all__


# Learning.


@pytest.mark.parametrize(
    ("options", "updates"),
    [({}, 40), ({"env": COUNTING}, 40), ({"num_envs": 3}, 39)],  # whole ticks: from frame 21 on
    ids=["compiled", "host", "three-compiled"],
)
def test_learning_goes_on_where_it_stopped(options: dict[str, Any], updates: int) -> None:
    """Two calls are one: the same episodes and the same bits."""
    once, twice = _made(seed=1, **options).learn(60), _made(seed=1, **options).learn(33).learn(27)
    assert once.frames == twice.frames == 60
    assert once.returns == twice.returns
    assert len(once.returns) > 2
    _same(once, twice)
    assert _updates(once) == updates
    other = _made(seed=2, **options).learn(60)
    assert not np.array_equal(*(jax.tree.leaves(agent._learned.state.params)[0] for agent in (once, other)))


def test_environments_side_by_side_play_whole_steps() -> None:
    agent = _made(num_envs=3).learn(10)
    assert agent.frames == 12
    assert agent.learn(1).frames == 15


@pytest.mark.parametrize("frames", [1e2, np.int64(100), np.float64(100)])
def test_a_whole_number_may_be_written_in_any_way(frames: Any) -> None:
    agent = _made()
    assert agent.learn(frames).frames == 100
    assert type(agent.frames) is int
    assert agent.evaluate(2.0).shape == (2,)  # pyright: ignore
    assert _made(replay_size=60.0, hidden=np.array([8])).hyperparameters == agent.hyperparameters


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        (1.5, "frames must be a whole number, not 1.5."),
        ("10", "frames must be a whole number, not '10'."),
        (True, "frames must be a whole number, not True."),
        (np.True_, "frames must be a whole number, not"),
        (None, "frames must be a whole number, not None."),
        (float("nan"), "frames must be a whole number, not nan."),
        (float("inf"), "frames must be a whole number, not inf."),
        (0, "frames must be from 1 to 2,147,483,5"),
        (-5, "frames must be from 1 to 2,147,483,5"),
        (2**31, "frames must be from 1 to 2,147,483,5"),
    ],
)
def test_a_wrong_number_of_frames_changes_nothing(learned: DQN, frames: Any, words: str) -> None:
    state, player = learned._learned, learned._player
    with pytest.raises(ValueError) as raised:  # noqa: PT011
        learned.learn(frames)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)
    assert (learned._learned, learned._player) == (state, player)


class Failure(Exception):
    """Something that nobody foresaw."""


@pytest.mark.parametrize("error", [Failure, KeyboardInterrupt])
def test_an_exception_in_a_chunk_leaves_the_agent_as_at_the_last_look(
    error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The player's states are lost: programs are given their memory."""
    expected, agent = _made(seed=5).learn(20), _made(seed=5)
    run, calls = CompiledPlayer.run, []

    def fail(self: CompiledPlayer, start: int, stop: int) -> Any:
        if start == 20:
            jax.tree.map(lambda leaf: leaf.delete(), self.groups)
            raise error("no memory")
        calls.append(start)
        return run(self, start, stop)

    with monkeypatch.context() as patch:
        patch.setattr(CompiledPlayer, "run", fail)
        with pytest.raises(error, match="no memory"):
            agent.learn(60)
    assert calls == [0]
    assert agent.returns == expected.returns
    _same(agent, expected)
    _agree(agent, expected)
    agent.save(tmp_path / "agent")
    _agree(DQN.load(tmp_path / "agent"), agent)
    assert agent.evaluate(2).shape == (2,)
    agent.learn(20)  # replay is empty: nothing is learned in the first 20 frames
    assert agent.frames == 40
    assert _updates(agent) == 0
    assert _updates(agent.learn(20)) == 20


def test_a_start_that_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: CompiledPlayer, agent: Any = None) -> None:
        raise Failure("no memory")

    agent = _made()
    with monkeypatch.context() as patch:
        patch.setattr(CompiledPlayer, "start", fail)
        with pytest.raises(Failure):
            agent.learn(10)
    assert agent.learn(10).frames == 10


def test_an_environment_that_raises_leaves_the_agent_whole() -> None:
    """It comes as it is; nothing is lost, and the next call goes on."""
    env = Counting(length=7, raises_at=31)
    agent = _host(env)
    with pytest.raises(RuntimeError, match="the joint is broken") as raised:
        agent.learn(100)
    assert raised.value.__cause__ is None
    assert agent.frames == 30
    assert agent.returns == [7.0] * 4
    assert np.isfinite(agent.predict(np.zeros(2, np.float32))[1].mean).all()
    assert _updates(agent) == 10
    agent.learn(20)  # it raises but once
    assert agent.frames == 50
    assert _updates(agent) == 30  # replay is as it was


class Stubborn(Counting):
    """Objects to being closed, once it was played."""

    closed = 0

    def close(self) -> None:
        if self._played:
            Stubborn.closed += 1
            raise RuntimeError("never")


def test_a_failure_between_two_steps_of_the_host(whole_chunks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not hidden by what closing the environment brings."""
    monkeypatch.setitem(gymnasium.registry, "Stubborn-v0", EnvSpec("Stubborn-v0", entry_point=Stubborn))  # pyright: ignore[reportArgumentType]
    take_in, played = HostPlayer._take_in, []

    def fail(self: HostPlayer, *arguments: Any) -> Any:
        played.append(arguments)
        if len(played) == 30:
            raise Failure("no memory")
        return take_in(self, *arguments)

    agent = _host("Stubborn-v0", seed=6)
    with monkeypatch.context() as patch:
        patch.setattr(HostPlayer, "_take_in", fail)
        with pytest.raises(Failure, match="no memory"):
            agent.learn(60)
    assert Stubborn.closed == 1
    assert agent.frames == 0
    _same(agent, _host(seed=6))
    assert agent.learn(10).frames == 10


def test_a_loss_that_is_not_finite() -> None:
    """Values so far apart that their difference is infinite; found in the first chunk that learns."""
    agent = _made()
    params = agent._learned.state.params
    head = eqx.tree_at(lambda net: net.head.bias, params, jax.numpy.array([3e38, -3e38]))
    agent._publish(agent._learned.state._replace(params=head, target=head), 0)
    sentence = (
        r"The loss of seed 0 was not finite in frame 2\d; the agent is as it was at frame 20, about a second before"
    )
    with pytest.raises(FloatingPointError, match=sentence) as raised:
        agent.learn(500)
    assert "\n" not in str(raised.value)
    assert agent.frames == 20
    np.testing.assert_array_equal(agent._learned.state.params.head.bias, np.array([3e38, -3e38], np.float32))
    assert agent.learn(5).frames == 25


def test_an_environment_that_gives_nan(whole_chunks: None) -> None:
    class Broken(Counting):
        def step(self, action: Any) -> Any:
            observation, reward, *rest = super().step(action)
            return observation, float("nan") if self._played == 12 else reward, *rest

    agent = _host(Broken())
    with pytest.raises(FloatingPointError, match="gave a reward that is not finite"):
        agent.learn(30)
    assert agent.frames == 0
    assert agent.learn(5).frames == 5


def test_an_environment_that_is_already_made() -> None:
    """Its episodes go on from call to call; evaluation plays in it, too, and learning then begins a new one."""
    env = Counting(length=7)
    agent = _host(env)
    agent.learn(10)
    assert env._episodes == 1
    agent.learn(4)
    assert agent.returns == [7.0, 7.0]
    np.testing.assert_array_equal(agent.evaluate(2), [7.0, 7.0])
    agent.learn(7)
    assert agent.returns == [7.0, 7.0, 7.0]


def test_an_environment_gets_its_options() -> None:
    env, _ = _make_env("minatar/breakout", None, "standard", 7)
    assert (env.protocol, env.max_episode_frames) == ("standard", 7)
    agent = _host(env_kwargs={"length": 4}, max_episode_frames=3).learn(9)
    assert agent.returns == [3.0] * 3
    agent.set_env(COUNTING, env_kwargs={"length": 2})
    assert agent.learn(4).returns == [3.0] * 3 + [2.0] * 2


def test_evaluation_repeats() -> None:
    agent = _made(seed=4)
    agent._publish(_onward(agent._learned.state), 0)  # the end of the chain pays at random
    first = agent.evaluate(4)
    assert len(set(first)) == 4
    np.testing.assert_array_equal(first, agent.evaluate(4))
    np.testing.assert_array_equal(first[:3], agent.evaluate(3))
    assert not np.array_equal(first, agent.evaluate(4, seed=77))
    for arguments in ({"episodes": 0}, {"episodes": 1.5}, {"max_episode_frames": 0}, {"seed": -1}):
        with pytest.raises(ValueError, match=next(iter(arguments))):
            agent.evaluate(**arguments)


def _onward(state: Any) -> Any:
    """A network that values action 1 above all."""
    nothing = jax.tree.map(lambda leaf: leaf * 0, state.params)
    bias = cast(Any, nothing).head.bias
    network = eqx.tree_at(lambda net: net.head.bias, nothing, bias.at[1].set(1.0))
    return state._replace(params=network, target=network)


# Runs.


def test_it_is_the_run_of_the_command_line(tmp_path: Path, bytes_read: list[int]) -> None:
    """The same seed and options give the same agent; an agent of a run can be had as an object, and goes on."""
    run = tmp_path / "run"
    command = ["train", "--env", f"gymnasium/{COUNTING}", "--agent", "dqn", "--seed-start", "3", "--seeds", "2"]
    command += ["--hidden", "8", "--batch-size", "4", "--replay-size", "60", "--learning-starts", "20"]
    command += ["--target-period", "10", "--update-every", "1", "--frames", "60", "--quiet", "--out", str(run)]
    assert main(command) == 0

    with pytest.raises(ValueError, match=r"if you trust it, say so with imports=\('tests\.probes',\)\."):
        DQN.from_run(run)
    with pytest.raises(ValueError, match=r"say so with imports="):
        DQN.from_run(run, imports=("tests.probe_family",))
    bytes_read.clear()
    agent = DQN.from_run(run, seed=4, imports="tests.probes")
    assert sum(bytes_read) == sum(leaf.nbytes for leaf in jax.tree.leaves(agent._learned.state))  # one seed, no replay

    assert (agent.seed, agent.frames) == (4, 60)
    _same(agent, _host(seed=4).learn(60))
    agent.learn(20)
    assert _updates(agent) == 40  # replay fills again first
    assert _updates(agent.learn(5)) == 45
    assert type(TrainableAgent.from_run(run, imports=("tests.probes",))) is DQN
    with pytest.raises(ValueError, match=r"has no seed 9; it has 3, 4\."):
        DQN.from_run(run, seed=9)
    with pytest.raises(ValueError, match=r"seed must be a whole number, not 3\.5"):
        DQN.from_run(run, seed=cast(Any, 3.5))
    with pytest.raises(ValueError, match=r"load it with DQN\.from_run"):
        CEQRDQN.from_run(run)
    with pytest.raises(ValueError, match="is not a run"):
        DQN.from_run(tmp_path)
    broken = json.loads((run / "config.json").read_text())
    broken["config"]["hyper"]["hidden"] = [-3]
    (tmp_path / "config.json").write_text(json.dumps(broken))
    with pytest.raises(ValueError, match="cannot be right: hidden must be at least 1, not -3"):
        DQN.from_run(tmp_path)
    with pytest.raises(ValueError, match="The module 'no_such_module' cannot be imported"):
        DQN.from_run(run, imports=("no_such_module",))


def test_from_run_imports_what_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing else: a run may come from a stranger."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "strange_env.py").write_text("open('ran', 'w').close()")
    config = {"format": 2, "packages": {}, "config": _config("gymnasium/strange_env:X-v0")}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"imports=\('strange_env',\)"):
        CEQRDQN.from_run(tmp_path)
    # A part of the name is not the name.
    with pytest.raises(ValueError, match="cannot be imported"):
        CEQRDQN.from_run(tmp_path, imports="strange_env_and_more")
    assert not (tmp_path / "ran").exists()
    with pytest.raises(ValueError, match="Gymnasium has no environment 'X-v0'"):
        CEQRDQN.from_run(tmp_path, imports=("strange_env",))
    assert (tmp_path / "ran").exists()
    monkeypatch.delitem(sys.modules, "strange_env")


def _config(env: str) -> dict[str, Any]:
    from ceqr.config import default_config

    return {**default_config("ceqr-dqn", "quick", CHAIN).to_json(), "env": env}


# Predicting.


@pytest.mark.parametrize("kind", CLASSES)
def test_beliefs_of_every_agent(kind: Any, tmp_path: Path) -> None:
    agent = _made(kind, **({"lambda_ep": 100.0, "thompson": "step"} if kind in (CEQRDQN, UADQN) else {}))
    actions, beliefs = agent.predict(STATES)
    assert actions.shape == (5,)
    assert actions.dtype == np.int64
    assert beliefs.mean.shape == (5, 2)
    known = {
        CEQRDQN: (True, True, 4), UADQN: (True, True, 4), QRDQN: (False, True, 4), DQN: (False, False, 0),
        BootstrappedDQN: (True, False, 0), DUVN: (True, True, 0),
    }[kind]  # fmt: skip
    assert (beliefs.epistemic is not None, beliefs.aleatoric is not None) == known[:2]
    if known[2]:
        assert beliefs.quantiles.shape == (5, 2, known[2])
        np.testing.assert_allclose(beliefs.quantiles.mean(-1), beliefs.mean, rtol=1e-4, atol=1e-5)
    else:
        assert beliefs.quantiles is None
    np.testing.assert_array_equal(actions, beliefs.mean.argmax(-1))
    state = agent._learned.state
    expected = jax.jit(lambda s: agent._agent.beliefs_of(s, agent._agent.forward(s.params, s.frozen, STATES, None)))(
        state
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), beliefs, expected)
    one, alone = agent.predict(STATES[1])
    assert type(one) is int
    assert one == actions[1]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b[1], rtol=1e-4, atol=1e-5), alone, beliefs)
    alone.mean[0] = 3.0  # what is told is the caller's
    explored = [agent.predict(STATES, explore=True, episode_start=True) for _ in range(40)]
    assert {int(action) for actions, _ in explored for action in actions} == {0, 1}
    # The program is another one, and may round in another way.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), explored[0][1], beliefs)
    agent.save(tmp_path / "agent")
    _agree(TrainableAgent.load(tmp_path / "agent"), agent)


def test_risk_aversion_is_chosen_when_predicting(evidential: CEQRDQN) -> None:
    _, beliefs = evidential.predict(STATES)
    for weight in (0, 3.0, np.float32(1e6)):
        actions, again = evidential.predict(STATES, lambda_al=weight)
        np.testing.assert_array_equal(actions, (beliefs.mean - weight * beliefs.aleatoric).argmax(-1))
        np.testing.assert_array_equal(again.mean, beliefs.mean)  # what it believes does not change
    averse = _made(CEQRDQN, lambda_al=1e6, seed=3)
    actions, beliefs = averse.predict(STATES)  # its own
    np.testing.assert_array_equal(actions, beliefs.aleatoric.argmin(-1))
    np.testing.assert_array_equal(averse.predict(STATES, lambda_al=0.0)[0], beliefs.mean.argmax(-1))
    exploring, _ = averse.predict(STATES, explore=True)  # a million times the noise decides in exploration, too
    np.testing.assert_array_equal(exploring, beliefs.aleatoric.argmin(-1))
    for kind, explore in ((DQN, False), (BootstrappedDQN, False), (DUVN, True)):
        with pytest.raises(ValueError, match="lambda_al"):
            _made(kind).predict(STATES, explore=explore, lambda_al=1.0)


@pytest.mark.parametrize("weight", [-1.0, np.nan, np.inf, 1e300, "1", True, [1.0]])
def test_wrong_aversion_to_risk(evidential: CEQRDQN, weight: Any) -> None:
    with pytest.raises(ValueError, match="lambda_al must be a finite number and at least 0, not"):
        evidential.predict(STATES, lambda_al=weight)


def test_exploration_draws_anew() -> None:
    agent = _made(CEQRDQN, lambda_ep=1e6, thompson="step")
    draws = np.array([agent.predict(STATES[0], explore=True)[0] for _ in range(40)])
    assert 5 < draws.sum() < 35
    assert len({agent.predict(STATES[0])[0] for _ in range(5)}) == 1
    again = _made(CEQRDQN, lambda_ep=1e6, thompson="step")
    assert [again.predict(STATES[0], explore=True)[0] for _ in range(40)] == draws.tolist()


def test_a_random_action_is_kept() -> None:
    agent = _made(DQN, epsilon_end=1.0, epsilon_hold=5_000)
    acts = [int(agent.predict(STATES[0], explore=True, episode_start=i % 10 == 0)[0]) for i in range(100)]
    assert all(len(set(acts[i : i + 10])) == 1 for i in range(0, 100, 10))
    assert len(set(acts)) == 2


def test_an_episode_is_explored_by_one_draw(heads: BootstrappedDQN) -> None:
    """Bootstrapped DQN's head is drawn when an episode starts, for each row of a batch, and kept."""
    rng = np.random.default_rng(1)
    states = rng.normal(size=(300, 4)).astype(np.float32)
    values = jax.jit(heads._agent.forward, static_argnums=3)(heads._learned.state.params, (), states, None)
    acts = np.asarray(values).argmax(-1)  # [observations, heads]
    telling = np.flatnonzero(acts.min(1) != acts.max(1))[:20]
    assert len(telling) > 5

    def play(rows: int, episode_start: Any) -> np.ndarray:
        """Which heads may have acted in each row, through an episode of observations in which the heads differ."""
        could = np.ones((rows, 3), bool)
        for i, number in enumerate(telling):
            batch = states[number] if rows == 1 else np.repeat(states[number][None], rows, 0)
            actions, _ = heads.predict(batch, explore=True, episode_start=episode_start if i == 0 else False)
            could &= acts[number] == np.reshape(actions, (rows, 1))
        assert could.any(1).all(), "no head does all that was done"
        return could

    for rows in (1, 12):
        first = play(rows, False)  # the first time is a start
        np.testing.assert_array_equal(play(rows, False), first)  # kept for as long as no episode starts
        found = [play(rows, True) for _ in range(15)]
        assert len({each.tobytes() for each in found}) > 1
        assert np.any(found, axis=0).all()  # in the end every row has had every head
    before = play(12, False)
    starts = np.arange(12) < 6
    changed = np.zeros(12, bool)
    for _ in range(10):
        now = play(12, starts)
        changed |= (now != before).any(1)
        np.testing.assert_array_equal(now[6:], before[6:])
    assert changed[:6].all()
    with pytest.raises(ValueError, match="episode_start must be True, False or 12 of them, one for each row"):
        heads.predict(np.repeat(STATES[:1], 12, 0), explore=True, episode_start=[True, False])


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
        (np.full(4, np.nan, np.float32), "holds NaN or an infinite number; expected is shape (4,) of dtype float32"),
        ([0.0, 0.0, -np.inf, 0.0], "holds NaN or an infinite number"),
        ([[0.0] * 4, [0.0, 1e300, 0.0, 0.0]], "holds NaN or an infinite number"),  # infinite in float32
    ],
)
def test_wrong_observations(learned: DQN, observation: Any, words: str) -> None:
    for explore in (False, True):
        with pytest.raises(ValueError) as error:  # noqa: PT011
            learned.predict(observation, explore=explore)
        assert words in str(error.value)


def test_numbers_as_observations_and_bytes_that_are_no_floats() -> None:
    agent = _made(DQN, "FrozenLake-v1")
    assert agent.predict(15)[1].mean.shape == (4,)
    assert agent.predict([0, 3])[0].shape == (2,)
    for wrong, words in ((16, "is 16; expected is a whole number from 0 to 15"), (1.5, "has dtype float64; expected")):
        with pytest.raises(ValueError) as error:  # noqa: PT011
            agent.predict(wrong)
        assert words in str(error.value)
    game = _made(DQN, "minatar/breakout")
    assert game.predict(np.zeros((10, 10, 4), bool))[1].mean.shape == (3,)
    with pytest.raises(ValueError, match=r"dtype float64; expected is shape \(10, 10, 4\) of dtype bool"):
        game.predict(np.zeros((10, 10, 4)))


class From5(Counting):
    """Its actions are 5 and 6."""

    action_space = gymnasium.spaces.Discrete(2, start=5)

    def step(self, action: Any) -> Any:
        assert action in (5, 6)
        return super().step(action)


def test_actions_are_the_environments_own(tmp_path: Path) -> None:
    agent = _host(From5()).learn(5)
    one, beliefs = agent.predict(np.zeros(2, np.float32))
    assert one == 5 + beliefs.mean.argmax()
    assert set(agent.predict(np.zeros((9, 2), np.float32), explore=True)[0]) <= {5, 6}
    agent.save(tmp_path / "agent")
    assert DQN.load(tmp_path / "agent").predict(np.zeros(2, np.float32))[0] == one


def test_predict_compiles_once_a_shape_and_is_safe_in_threads() -> None:
    """Twenty threads meet a new shape at once."""
    agent = _made(CEQRDQN, seed=9, hidden=(7,))
    rows = np.random.default_rng(1).normal(size=(7, 4)).astype(np.float32)
    start, found, errors = threading.Barrier(20), [], []

    def ask() -> None:
        try:
            start.wait()
            found.append([agent.predict(rows)[1].mean for _ in range(5)])
            found.append([agent.predict(rows, explore=True)[1].mean for _ in range(5)])
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=ask) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    np.testing.assert_array_equal(np.array(found), np.broadcast_to(found[0][0], (40, 5, 7, 2)))
    for weight in (0.1, 0.2, 0.3):
        agent.predict(rows, lambda_al=weight)
    for program in (agent._programs[explore, None, rows.shape] for explore in (False, True)):
        assert program._cache_size() == 1
    state = jax.eval_shape(agent._agent.init, jax.random.key(0))._replace(target=(), optimiser=())
    assert _predictor(agent._agent, jax.tree.structure(state), None) is agent._programs[False, None, rows.shape]


def test_predicting_saving_and_evaluating_while_another_thread_learns(tmp_path: Path) -> None:
    agent, done = _made(seed=9), threading.Event()
    failed: list[BaseException] = []

    def learn() -> None:
        try:
            while not done.is_set():
                agent.learn(40)
        except BaseException as error:
            failed.append(error)

    learner = threading.Thread(target=learn)
    learner.start()
    frames, updates = [], []
    try:
        while len(set(frames)) < 5 and learner.is_alive():
            assert np.isfinite(agent.predict(STATES)[1].mean).all()
            assert np.isfinite(agent.predict(STATES, explore=True)[1].mean).all()
            agent.evaluate(1)
            agent.save(tmp_path / "agent")
            saved = DQN.load(tmp_path / "agent")
            frames.append(saved.frames)
            updates.append(_updates(saved))
    finally:
        done.set()
        learner.join()
    assert not failed
    assert frames == sorted(frames)
    assert updates == [max(0, frame - 20) for frame in frames]  # what is saved is of one moment
    assert agent.frames % 40 == 0


# Saving and loading.


@pytest.mark.parametrize("name", ["learned", "heads", "counter"])
def test_a_saved_agent_is_the_same_agent(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """With what is fixed (the key of the masks of Bootstrapped DQN) and what is counted."""
    agent = request.getfixturevalue(name)
    agent.save(tmp_path / "agent")
    again = type(agent).load(tmp_path / "agent")
    assert (again.seed, again.hyperparameters) == (agent.seed, agent.hyperparameters)
    _same(again, agent)
    _agree(again, agent)
    state = again._learned.state
    if name == "heads":
        assert np.asarray(state.frozen).any()
    if name == "counter":
        assert int(state.statistics.updates) == 25
        assert again.frames == 45


def test_beliefs_may_read_what_an_agent_counts(counter: Counter) -> None:
    _, beliefs = counter.predict(np.eye(4, dtype=np.float32))
    state = counter._learned.state
    forward = jax.jit(counter._agent.forward, static_argnums=3)
    features = np.asarray(forward(state.params, (), np.eye(4, dtype=np.float32), None).features)
    doubt = np.sqrt(np.einsum("bi,ij,bj->b", features, np.asarray(state.statistics.inverse), features))
    np.testing.assert_allclose(beliefs.epistemic, np.stack([doubt, doubt], 1), rtol=1e-4)
    assert (doubt < 0.9 * np.linalg.norm(features, axis=1)).all()  # what it would be if nothing had been counted


def test_a_saved_agent_goes_on_learning(learned: DQN, tmp_path: Path) -> None:
    path = tmp_path / "agent.ceqr"
    learned.save(path)
    learned.save(path)  # over itself
    assert [p.name for p in tmp_path.iterdir()] == ["agent.ceqr"]
    agent = DQN.load(path)
    assert (agent.frames, agent.seed, agent.hyperparameters) == (learned.frames, 3, learned.hyperparameters)
    for attempt in (lambda: agent.learn(10), lambda: agent.evaluate(1)):
        with pytest.raises(ValueError, match="give it one with set_env"):
            attempt()
    with pytest.raises(ValueError, match="has 3 actions and observations of shape"):
        agent.set_env("Acrobot-v1")
    agent.set_env(CHAIN)
    agent.learn(20)  # replay is empty: nothing is learned in the first 20 frames
    for name in ("params", "optimiser"):
        jax.tree.map(
            np.testing.assert_array_equal,
            getattr(agent._learned.state, name),
            getattr(learned._learned.state, name),
        )
    agent.learn(20)
    assert not np.array_equal(agent.predict(STATES)[1].mean, learned.predict(STATES)[1].mean)
    assert DQN.load(path, env=CHAIN).learn(5).frames == learned.frames + 5
    with pytest.raises(ValueError, match="has 2 actions and observations of shape"):
        DQN.load(path, env=Counting())


def test_a_loaded_agent_may_go_on_with_other_lanes(tmp_path: Path) -> None:
    """From a frame that its lanes do not divide: each frame is played and learned from once."""
    _made().learn(20).save(tmp_path / "agent")
    agent = DQN.load(tmp_path / "agent")
    agent.set_env(CHAIN, num_envs=3)
    assert agent.learn(30).frames == 50
    assert _updates(agent) == 9  # the first tick past frame 39 is that of 41


def test_files_that_cannot_be_loaded(learned: DQN, tmp_path: Path) -> None:
    whole, path = tmp_path / "whole", tmp_path / "agent"
    learned.save(whole)
    content = whole.read_bytes()
    with pytest.raises(FileNotFoundError):
        CEQRDQN.load(tmp_path / "nothing")
    with pytest.raises(ValueError, match=r"holds an agent 'dqn'; load it with DQN\.load\."):
        CEQRDQN.load(whole)
    assert type(TrainableAgent.load(whole)) is DQN
    weight = np.asarray(learned._learned.state.params.head.weight).tobytes()
    place = content.index(weight) + len(weight) // 2
    flipped = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
    for damaged in (b"", b"words", content[:1000], content[:-30], flipped):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"damaged|incompatible"):
            DQN.load(path)

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
    DQN.load(path)
    for old in (1, 99, None, "2"):
        rewrite({"format": old})
        with pytest.raises(ValueError, match=r"by an incompatible version of ceqr \(this one reads format 2\)\."):
            DQN.load(path)
    rewrite({"agent": "sarsa"})
    for kind in (DQN, TrainableAgent):
        with pytest.raises(ValueError, match=r"holds an agent 'sarsa', which this version of ceqr does not know\."):
            kind.load(path)
    some = next(name for name in zipfile.ZipFile(whole).namelist() if "weight" in name).removesuffix(".npy")
    for change in (
        {"meta": {"hyper": {"lambda": 1}}}, {"meta": {"observations": {"kind": "x"}}}, {"meta": {"observations": 3}},
        {"meta": {"num_actions": 3}}, {"meta": {"num_actions": None}}, {"meta": {"num_actions": 0}},
        {"meta": {"num_actions": float("inf")}}, {"meta": {"num_actions": 2**31 - 2}}, {"meta": {"seed": -1}},
        {"meta": {"frames": 2**40}}, {"meta": {"first_action": "0"}},
        {"drop": some}, {"add": True}, {"drop": "meta"},
    ):  # fmt: skip
        rewrite(**change)  # pyright: ignore
        with pytest.raises(ValueError, match=r"damaged|incompatible"):
            DQN.load(path)


class Bomb:
    """What a pickle would execute."""

    def __reduce__(self) -> Any:
        return (pytest.fail, ("the file was executed",))


def test_nothing_in_a_file_is_executed(learned: DQN, tmp_path: Path) -> None:
    import pickle

    whole, path = tmp_path / "whole", tmp_path / "agent"
    path.write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(ValueError, match="damaged"):
        DQN.load(path)
    learned.save(whole)
    with np.load(whole) as file:
        arrays = {name: file[name] for name in file.files}
    for name in ("meta", next(name for name in arrays if "weight" in name)):
        with open(path, "wb") as file:
            np.savez(file, **{**arrays, name: np.array([Bomb()], dtype=object)})  # pyright: ignore
        with pytest.raises(ValueError, match=r"damaged|incompatible"):
            DQN.load(path)


def test_a_folder_is_no_file(learned: DQN, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is a folder; save needs the name of a file, such as .*agent\.ceqr"):
        learned.save(tmp_path)
    assert list(tmp_path.iterdir()) == []


# Mistakes.


@pytest.mark.parametrize(
    ("kind", "env", "options", "error", "words"),
    [
        (CEQRDQN, CHAIN, {"lambda_epp": 1}, TypeError, "'lambda_epp' (did you mean 'lambda_ep'?)"),
        (DQN, CHAIN, {"gamma": 0.9}, TypeError, "has no hyperparameter 'gamma' (did you mean 'discount'?)"),
        (DQN, CHAIN, {"quantiles": 5}, TypeError, "DQN has no hyperparameter 'quantiles'; it has batch_size"),
        (DQN, CHAIN, {"batch_size": 0}, ValueError, "batch_size must be at least 1, not 0."),
        (DQN, CHAIN, {"batch_size": 1.5}, ValueError, "batch_size must be of type int, not 1.5"),
        (DQN, CHAIN, {"batch_size": "8"}, ValueError, "batch_size must be of type int, not '8'"),
        (DQN, CHAIN, {"learning_rate": float("nan")}, ValueError, "learning_rate must be a finite number, not nan"),
        (DQN, CHAIN, {"hidden": "abc"}, ValueError, "hidden must be a list, not 'abc'"),
        (DQN, CHAIN, {"hidden": [1.5]}, ValueError, "hidden must be of type int, not 1.5"),
        (DQN, CHAIN, {"hidden": [0]}, ValueError, "hidden must be at least 1, not 0"),
        (DQN, CHAIN, {"hidden": 10**9}, ValueError, "GiB of memory, and this machine has"),
        (DQN, CHAIN, {"replay_size": 2 * 10**9}, ValueError, "GiB of memory, and this machine has"),
        (DQN, CHAIN, {"preset": "fast"}, ValueError, "Unknown preset 'fast'"),
        (DQN, CHAIN, {"preset": 3}, TypeError, "preset must be a name or None, not int."),
        (DQN, CHAIN, {"seed": -1}, ValueError, "seed must be from 0 to 2,147,483,646, not -1."),
        (DQN, CHAIN, {"seed": 2**31}, ValueError, "seed must be from 0 to 2,147,483,646, not 2,147,483,648."),
        (DQN, CHAIN, {"seed": 1.5}, ValueError, "seed must be a whole number, not 1.5."),
        (DQN, CHAIN, {"num_envs": 0}, ValueError, "num_envs must be from 1 to 4,096, not 0."),
        (DQN, CHAIN, {"max_episode_frames": -1}, ValueError, "max_episode_frames must be from 0 to"),
        (DQN, CHAIN, {"env_kwargs": 5}, TypeError, "env_kwargs must be a dictionary, not int."),
        (DQN, CHAIN, {"env_kwargs": {"a": 1}}, ValueError, "probe/noisy-chain has no option 'a'"),
        (DQN, "CartPole-v1", {"protocol": "standard"}, ValueError, "protocol is MinAtar's"),
        (DQN, "CartPole-v1", {"env_kwargs": {"max_episode_frames": 3}}, ValueError, "env_kwargs gives max_episode_f"),
        (DQN, "CartPole-v9", {}, ValueError, "did you mean 'CartPole-v1'"),
        (DQN, "Pendulum-v1", {}, ValueError, "has actions of Box"),
        (DQN, "minatar/brekout", {}, ValueError, "did you mean 'minatar/breakout'"),
        (DQN, 3, {}, TypeError, "env must be a name or a gymnasium.Env, not int."),
        (DQN, Counting(), {"num_envs": 2}, ValueError, "num_envs needs the name of an environment, not a made one"),
        (DQN, Counting(), {"max_episode_frames": 9}, ValueError, "need the name of an environment, not a made one"),
        (TrainableAgent, "CartPole-v1", {}, TypeError,
         "TrainableAgent is no agent; use one of CEQRDQN, DQN, QRDQN, BootstrappedDQN, DUVN, UADQN."),
    ],
)  # fmt: skip
def test_wrong_arguments(kind: Any, env: Any, options: dict[str, Any], error: Any, words: str) -> None:
    with pytest.raises(error) as raised:
        kind(env, **options)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)
    assert "--" not in str(raised.value)


@pytest.mark.parametrize(
    ("env", "options", "words"),
    [
        (CHAIN, {"num_envs": 0}, "num_envs must be from 1"),
        (Counting(), {"num_envs": 2}, "num_envs needs the name of an environment"),
        ("CartPole-v9", {}, "did you mean 'CartPole-v1'"),
        ("minatar/breakout", {}, "The environment has 3 actions"),
    ],
)
def test_a_wrong_environment_leaves_the_one_there_is(
    learned: DQN, env: Any, options: dict[str, Any], words: str
) -> None:
    before = learned._env, learned._player
    with pytest.raises(ValueError, match=words):
        learned.set_env(env, **options)
    assert (learned._env, learned._player) == before


class Stop(Exception):
    """Enough is known."""


def test_presets_follow_what_the_agent_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    def tell(self: Any, hyper: Any, *rest: Any) -> None:
        raise Stop(hyper)

    monkeypatch.setattr(TrainableAgent, "_setup", tell)

    def hyper(kind: Any, env: str, **options: Any) -> Any:
        with pytest.raises(Stop) as told:
            kind(env, **options)
        return told.value.args[0]

    assert hyper(DQN, "CartPole-v1").hidden == (256, 256)
    assert hyper(CEQRDQN, "minatar/breakout").torso == "padded"
    assert hyper(CEQRDQN, "minatar/asterix").lambda_ep == 0.001
    assert hyper(DQN, CHAIN, preset="quick").hidden == (128,)
    assert hyper(DQN, CHAIN, hidden=[8, 8]).hidden == (8, 8)
    assert hyper(DQN, CHAIN, hidden=8).hidden == (8,)
