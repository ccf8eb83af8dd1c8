"""Calibrated agents: what is promised holds over hundreds of calibrations, and what is kept is of the right weights."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import binom

import tests.probe_family  # noqa: F401  makes the probes known by name
from ceqr import DQN, UADQN, BootstrappedDQN, rollout
from ceqr.agents.base import AgentState, Beliefs
from ceqr.agents.ua_dqn import UADQN as Agent
from ceqr.agents.ua_dqn import UADQNHyperparameters
from ceqr.calibrate import (
    Played,
    calibration_of,
    file_of,
    judge,
    play,
    read_calibration,
    returns,
)
from ceqr.cli import main
from ceqr.conformal import FLOAT32
from ceqr.envs.base import TimeStep
from ceqr.envs.gymnasium import from_env
from ceqr.errors import UserError
from ceqr.library import TrainableAgent
from ceqr.monitor import DriftMonitor
from ceqr.streams import Stream
from tests.probes import Counting, Treadmill

FACTS: dict[str, Any] = {"limit": 10, "seed": 0, "env": "probe", "weights": ""}
SMALL: dict[str, Any] = {"hidden": (8,), "batch_size": 4, "replay_size": 60, "learning_starts": 20, "target_period": 10}


# The promise, on a cheap compiled environment.


class GustState(NamedTuple):
    place: jax.Array
    wind: jax.Array  # of this episode: what makes its steps alike


@dataclass(frozen=True)
class Gusts:
    """A walk in a wind that is drawn for each episode; it pays what it observes, and calm episodes are long."""

    shift: float = 0.0

    name = "probe/gusts"
    num_actions = 2
    observation_shape = (2,)
    observation_dtype = np.float32

    def reset(self, key: jax.Array) -> tuple[GustState, jax.Array]:
        wind = jax.random.normal(key) + self.shift
        return GustState(wind, wind), jnp.stack([wind, wind])

    def step(self, state: GustState, action: jax.Array, key: jax.Array) -> tuple[GustState, TimeStep]:
        end_key, key = jax.random.split(key)
        place = 0.5 * state.place + state.wind + jax.random.normal(key)
        over = jax.random.bernoulli(end_key, jnp.where(state.wind > self.shift, 0.6, 0.1))
        seen, no = jnp.stack([place, state.wind]), jnp.zeros((), bool)
        return GustState(place, state.wind), TimeStep(seen, seen, place, over, no)


AGENT = Agent(UADQNHyperparameters(hidden=(8,), quantiles=7, discount=0.9), (2,), 2)
CALIBRATIONS, MOST, AFTER = 500, 200, 60  # episodes of the largest calibration, and those that follow it


def _state() -> AgentState:
    return jax.jit(AGENT.init)(jax.random.key(0))


def _episodes(played: Played, chosen: range) -> Played:
    """Some of the episodes that were played."""
    start, stop = played.starts[chosen[0]], played.starts[chosen[-1]] + played.lengths[chosen[-1]]
    steps = [None if each is None else each[start:stop] for each in played[:4]]
    return Played(*steps, *(each[chosen[0] : chosen[-1] + 1] for each in played[4:]))  # pyright: ignore


@pytest.fixture(scope="module")
def pool() -> Played:
    """Enough episodes for all calibrations, and for what follows each, that none is used twice."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rollout, "COMPILED_GAMES", 20_000)
        patch.setattr(rollout, "STRETCH", 50)
        return play(AGENT, _state(), Gusts(), 0, CALIBRATIONS * (MOST + AFTER), 0.9, limit=100)


@pytest.mark.parametrize("episodes", [20, 200])
def test_promises_hold_over_500_calibrations(pool: Played, episodes: int) -> None:
    """For a random step of one new episode after each; binomial bounds of one in a thousand."""
    rng = np.random.default_rng(episodes)
    covered = own = alarms = 0
    p_values = []
    for i in range(CALIBRATIONS):
        first = i * (MOST + AFTER)
        found = calibration_of(_episodes(pool, range(first, first + episodes)), 0.9, 0.9, **FACTS)
        new = _episodes(pool, range(first + MOST, first + MOST + AFTER))
        (total, _), step = returns(new, 0.9), rng.integers(new.lengths[0])
        lower, upper = new.lower[step], new.upper[step]
        own += lower <= total[step] <= upper
        covered += lower - found.widening <= total[step] <= upper + found.widening
        assert found.rarity is not None
        assert new.doubt is not None
        p_values.append(found.rarity.of(np.float32(new.doubt[step])))
        monitor, numbers = DriftMonitor(found.reference, delta=0.1, seed=i), new.per_episode()
        for j in range(AFTER):
            if monitor.update(**{kind: float(each[j]) for kind, each in numbers.items()}):
                alarms += 1
                break
    slack = 2 / (episodes + 1)
    assert binom.ppf(1e-3, CALIBRATIONS, 0.9) <= covered <= binom.ppf(1 - 1e-3, CALIBRATIONS, 0.9 + slack)
    assert own < 0.5 * CALIBRATIONS
    for level in (0.05, 0.1, 0.3):
        small = np.sum(np.array(p_values) <= level)
        assert binom.ppf(1e-3, CALIBRATIONS, max(level - slack, 0)) <= small <= binom.ppf(1 - 1e-3, CALIBRATIONS, level)
    assert alarms <= binom.ppf(1 - 1e-3, CALIBRATIONS, 0.1)


def test_another_world_is_noticed(pool: Played) -> None:
    found = calibration_of(_episodes(pool, range(MOST)), 0.9, 0.9, **FACTS)
    numbers = play(AGENT, _state(), Gusts(shift=4.0), 0, 20, 0.9, limit=100).per_episode()
    monitor = DriftMonitor(found.reference, delta=0.01)
    assert any(monitor.update(**{k: float(each[i]) for k, each in numbers.items()}) for i in range(20))


# Its parts.


def _by_hand(lengths: list[int], terminated: list[bool], reward: float = 1.0) -> Played:
    steps = sum(lengths)
    return Played(
        np.full(steps, reward), np.zeros(steps), np.zeros(steps), None, np.array(lengths), np.array(terminated)
    )


def test_returns_are_known_where_what_is_missing_cannot_matter() -> None:
    total, known = returns(_by_hand([3, 2], [True, False]), 0.5)
    np.testing.assert_allclose(total, [1.75, 1.5, 1, 1.5, 1])
    np.testing.assert_array_equal(known, [True, True, True, False, False])
    # CartPole's 500 steps at a discount of 0.99: 0.99^459 is the first below 1 %, so 459 rewards or more must follow.
    total, known = returns(_by_hand([500, 500], [False, True]), 0.99)
    assert known.sum() == 42 + 500
    assert known[:42].all()
    assert abs(total[known][0] - 100) <= 0.01 * 100  # what always going on would pay, to within 1 %
    _, known = returns(_by_hand([500], [False]), 1.0)
    assert not known.any()
    _, known = returns(_by_hand([2], [False]), 0.0)
    assert known.all()


def test_too_few_returns_that_are_known() -> None:
    played = _by_hand([100] * 20 + [5] * 8, [False] * 20 + [True] * 8)
    with pytest.raises(UserError, match=r"Only 8 of 28 episodes have a return that is known.*needs 9.*459 steps"):
        calibration_of(played, 0.99, 0.9, **FACTS)
    assert calibration_of(played, 0.99, 0.8, **FACTS).known == 8
    with pytest.raises(UserError, match="without discount what is missing always matters"):
        calibration_of(_by_hand([5] * 20, [False] * 20), 1.0, 0.9, **FACTS)


def test_a_time_limit_of_the_game_and_one_of_ours_cut_alike() -> None:
    agent = Agent(UADQNHyperparameters(hidden=(8,), quantiles=7), (1,), 2)
    state = jax.jit(agent.init)(jax.random.key(0))
    for env, limit in ((Treadmill(limit=5), 50), (Treadmill(limit=50), 5)):
        played = play(agent, state, env, 0, 3, 0.9, limit)
        np.testing.assert_array_equal(played.lengths, [5, 5, 5])
        assert not played.terminated.any()
        np.testing.assert_array_equal(played.per_episode()["total"], [5, 5, 5])
    assert play(agent, state, Treadmill(limit=5, terminates=True), 0, 3, 0.9, 50).terminated.all()


def test_the_own_interval_is_between_quantiles_of_the_greedy_action() -> None:
    """Levels (i - 1/2) / N with straight lines between them are Hazen's."""
    rng = np.random.default_rng(0)
    quantiles = np.sort(rng.normal(size=(4, 3, 9)).astype(np.float32), axis=-1)
    beliefs = Beliefs(quantiles.mean(-1), epistemic=rng.random((4, 3), np.float32), quantiles=jnp.asarray(quantiles))
    action = np.array([2, 0, 1, 1])
    for coverage in (0.5, 0.8, 0.95):
        lower, upper, doubt = judge(beliefs, jnp.asarray(action), coverage)
        taken = quantiles[np.arange(4), action]
        for got, level in ((lower, (1 - coverage) / 2), (upper, (1 + coverage) / 2)):
            np.testing.assert_allclose(got, np.quantile(taken, level, axis=-1, method="hazen"), rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(doubt, beliefs.epistemic[np.arange(4), action])
    crossed = beliefs._replace(quantiles=jnp.asarray(quantiles[..., ::-1]))
    lower, upper, _ = judge(crossed, jnp.asarray(action), 0.8)
    assert (lower <= upper).all()
    lower, upper, doubt = judge(beliefs._replace(quantiles=None, epistemic=None), jnp.asarray(action), 0.8)
    np.testing.assert_array_equal(lower, beliefs.mean[np.arange(4), action])
    assert upper is lower
    assert doubt is None


# Agents as objects.


@pytest.fixture(scope="module")
def agent() -> UADQN:
    return UADQN("probe/noisy-chain", seed=3, quantiles=5, **SMALL).calibrate(30, coverage=0.8)


STATES = np.eye(4, dtype=np.float32)


def test_beliefs_before_and_after(agent: Any) -> None:
    plain = UADQN("probe/noisy-chain", seed=3, quantiles=5, **SMALL)
    _, before = plain.predict(STATES)
    assert before.interval is None
    assert before.novelty is None
    assert "agent.calibrate() gives interval and novelty" in repr(before)
    with pytest.raises(ValueError, match=r"not calibrated.*call calibrate\(\) first"):
        plain.monitor()
    actions, beliefs = agent.predict(STATES)
    jax.tree.map(np.testing.assert_array_equal, beliefs[:4], before[:4])
    assert "calibrate()" not in repr(beliefs)
    calibration = agent.calibration
    judged = judge(jax.tree.map(jnp.asarray, before), jnp.asarray(actions), 0.8)
    np.testing.assert_allclose(beliefs.interval.lower, judged.lower - calibration.widening, rtol=1e-5)
    np.testing.assert_allclose(beliefs.interval.upper, judged.upper + calibration.widening, rtol=1e-5)
    steps = play(agent._agent, agent._learned.state, agent._env, 3, 30, 0.8)
    assert steps.doubt is not None
    for doubt, novelty in zip(judged.doubt, beliefs.novelty, strict=True):
        share = np.mean([np.mean(each >= doubt * (1 - FLOAT32)) for each in np.split(steps.doubt, steps.starts[1:])])
        assert novelty == pytest.approx((30 * share + 1) / 31, rel=1e-5)
    lower, upper = agent.predict(STATES[1])[1].interval
    assert (lower, upper) == (beliefs.interval.lower[1], beliefs.interval.upper[1])
    # They are of the greedy policy that was played, whatever is done now.
    for options in ({"explore": True}, {"lambda_al": 100.0}):
        other = agent.predict(STATES, **options)[1]
        np.testing.assert_allclose(other.interval, beliefs.interval, rtol=1e-5)
        np.testing.assert_array_equal(other.novelty, beliefs.novelty)


def test_the_play_is_not_that_of_training_or_evaluation(agent: Any) -> None:
    evaluated = agent.evaluate(30)
    played = play(agent._agent, agent._learned.state, agent._env, 3, 30, 0.8)
    np.testing.assert_array_equal(played.per_episode()["total"], agent.calibration.reference["total"])
    if np.ptp(evaluated):
        assert not np.isin(played.per_episode()["total"], evaluated.astype(np.float32)).any()
    assert len({int(s) for s in Stream}) == len(Stream)


def test_a_saved_agent_keeps_its_calibration_and_learning_ends_it(agent: Any, tmp_path: Path) -> None:
    agent.save(tmp_path / "agent.ceqr")
    loaded = UADQN.load(tmp_path / "agent.ceqr", env="probe/noisy-chain")
    for mine, its in zip(agent.predict(STATES)[1], loaded.predict(STATES)[1], strict=True):
        jax.tree.map(np.testing.assert_array_equal, mine, its)
    assert loaded.calibration is not None
    assert loaded.calibration.to_json() == agent.calibration.to_json()
    assert not loaded.monitor().update(**{k: float(each[0]) for k, each in agent.calibration.reference.items()})
    loaded.learn(30)
    assert loaded.calibration is None
    assert loaded.predict(STATES)[1].interval is None
    # The calibration of one agent with the weights of another.
    loaded._learned = loaded._learned._replace(calibration=agent.calibration)
    loaded.save(tmp_path / "mixed.ceqr")
    with pytest.raises(ValueError, match=r"mixed.ceqr was made for other weights; calibrate this agent anew"):
        UADQN.load(tmp_path / "mixed.ceqr")


def test_agents_without_quantiles_or_doubt_have_what_they_can() -> None:
    dqn: Any = DQN("probe/noisy-chain", **SMALL).calibrate(20)
    beliefs = dqn.predict(STATES)[1]
    np.testing.assert_allclose(beliefs.interval.upper - beliefs.interval.lower, 2 * dqn.calibration.widening, rtol=1e-4)
    assert beliefs.novelty is None
    assert list(dqn.calibration.reference) == ["total"]
    heads: Any = BootstrappedDQN(Counting(length=3, ending="terminated"), heads=3, **SMALL).calibrate(20)
    beliefs = heads.predict(np.array([1.0, 2.0], np.float32))[1]
    assert beliefs.interval.lower < beliefs.interval.upper
    assert 0 < beliefs.novelty <= 1
    assert heads.calibration.env == from_env(Counting()).name


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"episodes": 0}, "episodes must be at least 1, not 0"),
        ({"episodes": 8}, "A coverage of 0.9 needs at least 9 episodes, not 8"),
        ({"coverage": 0.0}, "coverage must be above 0 and below 1, not 0"),
        ({"coverage": 1}, "coverage must be above 0 and below 1, not 1"),
        ({"coverage": math.nan}, "coverage must be above 0 and below 1, not nan"),
        ({"coverage": "much"}, "coverage must be a number above 0 and below 1, not 'much'"),
        ({"max_episode_frames": 0}, "max_episode_frames must be at least 1, not 0"),
        ({"seed": -1}, "seed must be from 0 to"),
    ],
)
def test_mistakes(agent: Any, options: dict[str, Any], sentence: str) -> None:
    before = agent.calibration
    with pytest.raises(ValueError, match=sentence):
        agent.calibrate(**options)
    assert agent.calibration is before


# Runs.


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("calibrate") / "run"
    command = ["train", "--env", "probe/noisy-chain", "--agent", "ua-dqn", "--seeds", "2", "--seed-start", "3"]
    command += ["--hidden", "8", "--quantiles", "5", "--batch-size", "4", "--replay-size", "100"]
    command += ["--learning-starts", "20", "--frames", "60", "--quiet", "--out", str(out)]
    assert main(command) == 0
    return out


@pytest.fixture(scope="module")
def calibrated(run: Path) -> Path:
    before = {path.name for path in run.iterdir()}
    assert main(["monitor", str(run)]) == 2  # not yet
    assert main(["calibrate", str(run), "--episodes", "50", "--coverage", "0.8"]) == 0
    assert {path.name for path in run.iterdir()} - before == {"calibration-000000000060.npz"}
    return run


def test_a_run_is_calibrated_once(calibrated: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = file_of(calibrated, 60)
    content = path.read_bytes()
    assert main(["calibrate", str(calibrated)]) == 2
    assert "is there already; move or delete it to calibrate this run anew" in capsys.readouterr().err
    assert path.read_bytes() == content
    for seed in (3, 4):
        agent: Any = TrainableAgent.from_run(calibrated, seed=seed)
        kept = agent.calibration
        again = agent.calibrate(50, coverage=0.8).calibration  # the play is the same
        assert kept.to_json() == again.to_json()
        jax.tree.map(np.testing.assert_array_equal, (kept.rarity, kept.reference), (again.rarity, again.reference))


def test_a_calibration_belongs_to_its_weights(calibrated: Path, tmp_path: Path) -> None:
    agents = {seed: TrainableAgent.from_run(calibrated, seed=seed) for seed in (3, 4)}
    states = {seed: agent._agent.at_play(agent._learned.state) for seed, agent in agents.items()}
    assert read_calibration(calibrated, 60, 3, states[3]) is not None
    assert read_calibration(calibrated, 61, 3, states[3]) is None
    with pytest.raises(UserError, match="was made for other weights"):
        read_calibration(calibrated, 60, 3, states[4])
    damaged, content = file_of(tmp_path, 60), bytearray(file_of(calibrated, 60).read_bytes())
    kept = TrainableAgent.from_run(calibrated, seed=3).calibration
    assert kept is not None
    content[content.index(kept.reference["total"].tobytes()) + 1] ^= 1
    damaged.write_bytes(content)
    with pytest.raises(UserError, match="damaged"):
        read_calibration(tmp_path, 60, 3, states[3])


def test_the_monitor_is_silent_at_home_and_alarms_abroad(calibrated: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["monitor", str(calibrated), "--episodes", "30"]) == 0
    assert "No alarm" in capsys.readouterr().out
    command = ["monitor", str(calibrated), "--env", "probe/generous-chain", "--agent-seed", "4"]
    assert main(command) == 3
    assert "ALARM after" in capsys.readouterr().out
    assert main([*command, "--json", "--delta", "0.001"]) == 3
    told = json.loads(capsys.readouterr().out)
    assert told["alarm"]
    assert told["reference"] == 50
    assert told["capital"] == told["history"][-1] >= 1000 > told["history"][-2]
    assert len(told["history"]) == told["episodes"] <= 30


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (["monitor", "RUN", "--env", "probe/grid"], "probe/grid has 4 actions and observations of shape (36,)"),
        (["monitor", "RUN", "--env", "probe/chain"], "Unknown environment 'probe/chain'"),
        (["monitor", "RUN", "--env", "gymnasium/ceqr:X-v0"], "Gymnasium has no environment 'X-v0'"),
        (["monitor", "RUN", "--episodes", "0"], "--episodes must be at least 1, not 0."),
        (["monitor", "RUN", "--delta", "1"], "--delta must be above 0 and below 1, not 1."),
        (["monitor", "RUN", "--agent-seed", "7"], "has no seed 7; it has 3, 4."),
        (["monitor", "RUN", "--seed", "-1"], "--seed must be from 0 to"),
        (["calibrate", "RUN", "--coverage", "1.2"], "--coverage must be above 0 and below 1, not 1.2."),
        (["calibrate", "RUN", "--episodes", "3"], "needs at least 9 episodes, not 3"),
        (["calibrate", "nowhere"], "nowhere is not a run"),
    ],
)
def test_mistakes_on_the_command_line(
    calibrated: Path, command: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(calibrated) if word == "RUN" else word for word in command]) == 2
    told = capsys.readouterr()
    assert sentence in told.err
    assert told.out == ""
    assert len(told.err.splitlines()) == 1
