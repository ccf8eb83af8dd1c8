"""What holds for every agent: the one learner, targets, truncation, training, resuming, and learning the optimum."""

import dataclasses
import sys
import types
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import jit

from ceqr.agents import AGENTS, agent_classes, register
from ceqr.agents.base import Agent, AgentState, Batch
from ceqr.cli import main
from ceqr.networks import parameter_count
from ceqr.training.loop import Loop
from tests.agents.programs import equal, make_batch
from tests.conftest import TINY
from tests.probes import PROBE_OPTIONS, NoisyChain, Treadmill, train_probe
from tests.sharing import shared_programs

NAMES = list(AGENTS)
CHAIN = ["--import", "tests.probe_family", "--env", "probe/noisy-chain"]
FRAMES = np.array([500, 501], np.int32)
KEYS = jax.random.split(jax.random.key(7), 2)
KEY = KEYS[0]


def _agent(name: str, observation_shape: tuple[int, ...] = (3,), **changes: Any) -> Agent:
    agent_class, hyper_class = agent_classes(name)
    fields = {f.name for f in dataclasses.fields(hyper_class)}
    small = {"hidden": (8,), "quantiles": 4, "batch_size": 6, "heads": 3} | changes
    hyper = hyper_class(**{k: v for k, v in small.items() if k in fields})
    return agent_class(hyper, observation_shape, num_actions=2)


class Programs:
    """One agent and its compiled functions, each compiled at most once."""

    def __init__(self, name: str):
        self.name = name
        # Dropout draws a mask for each row of a batch, so its masks differ with the number of rows.
        self.agent = _agent(name, learning_rate=1e-2, dropout=0.0, mask_probability=0.5)
        self.state: AgentState = jit(self.agent.init)(jax.random.key(0))
        self.memory = jit(jax.vmap(self.agent.init_memory, in_axes=(None, 0)))(self.state, KEYS)
        self.draws = jit(jax.vmap(self.agent.draws))(KEYS)
        self.learn, self.act, self.act_and_learn = map(
            jit, (self.agent.learn, self.agent.act, self.agent.act_and_learn)
        )

    def loss(self, state: AgentState, batch: Batch) -> float:
        return float(self.learn(state, batch, FRAMES[0], KEY)[1]["loss"])


@pytest.fixture(scope="module", params=NAMES)
def programs(request: pytest.FixtureRequest) -> Programs:
    return Programs(request.param)


BATCH: Any = make_batch([0, 1, 1, 0, 1, 0], [False, False, True, False, True, False], size=3)
OBSERVATIONS = np.array([[0.1, -0.2, 0.3], [-0.5, 0.4, 0.6]], np.float32)


def test_termination_cuts_the_future_and_truncation_does_not(programs: Programs) -> None:
    """A truncated step is one that is not terminated: its successor counts."""

    def loss(batch: Batch) -> float:
        return programs.loss(programs.state, batch)

    elsewhere = BATCH._replace(successor=BATCH.successor + 1)
    assert loss(elsewhere) != loss(BATCH)
    over = BATCH._replace(terminated=np.ones(6, bool))
    assert loss(over._replace(successor=BATCH.successor + 1)) == loss(over)
    assert loss(over) != loss(BATCH)


def test_target_network_is_read_and_gets_no_gradient(programs: Programs) -> None:
    agent, state = programs.agent, programs.state
    disturbed = state._replace(target=jax.tree.map(lambda w: np.asarray(w) + np.float32(0.1), state.target))
    assert programs.loss(disturbed, BATCH) != programs.loss(state, BATCH)

    def objective(target: Any) -> jax.Array:
        given = state._replace(target=target)
        outputs = agent.forward(given.params, given.frozen, BATCH.observation, None)
        successors = agent._successors(given, BATCH)
        return agent._total_loss(given.params, outputs, successors, given, BATCH, FRAMES[0])[0]

    assert not any(np.asarray(g).any() for g in jax.tree.leaves(jit(jax.grad(objective))(state.target)))


def test_learning_changes_the_network_and_nothing_else(programs: Programs) -> None:
    state = programs.state
    after, _ = programs.learn(state, BATCH, FRAMES[0], KEY)
    assert not equal(after.params, state.params)
    assert equal(after._replace(params=(), optimiser=()), state._replace(params=(), optimiser=()))
    copied = jit(programs.agent.copy_target)(after)
    assert equal(copied, after._replace(target=after.params))


def test_a_target_network_may_follow_by_a_share_with_every_update() -> None:
    """By hand: a quarter of the new weights and three quarters of its own. It is what plays."""
    agent = _agent("qr-dqn", learning_rate=1e-2, target_rate=0.25)
    before: AgentState = jit(agent.init)(jax.random.key(0))
    after, _ = jit(agent.learn)(before, BATCH, FRAMES[0], KEY)
    expected = jax.tree.map(lambda new, old: 0.25 * new + 0.75 * old, after.params, before.target)
    for a, b in zip(jax.tree.leaves(after.target), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)
    assert not equal(after.target, before.target)
    assert equal(jit(agent.copy_target)(after), after)  # no copies besides
    assert equal(agent.at_play(after), after._replace(params=after.target, target=(), optimiser=()))
    assert equal(agent.at_play(agent.at_play(after)), agent.at_play(after))
    copying = _agent("qr-dqn")
    assert equal(copying.at_play(after).params, after.params)


def test_learning_on_one_batch_lowers_the_loss(programs: Programs) -> None:
    state, first = programs.state, programs.loss(programs.state, BATCH)
    for _ in range(60):
        state, _ = programs.learn(state, BATCH, FRAMES[0], KEY)
    assert programs.loss(state, BATCH) < 0.7 * first


def test_one_pass_for_acting_and_learning_is_the_same_as_two(programs: Programs) -> None:
    """Each observation has its own memory, frame and key; the update is that of the first frame."""
    inputs = (programs.state, programs.memory, OBSERVATIONS)
    chosen, *learned = programs.act_and_learn(*inputs, BATCH, FRAMES, programs.draws)
    alone = programs.act(*inputs, FRAMES, programs.draws)
    np.testing.assert_array_equal(chosen.action, alone.action)
    both, apart = [chosen, *learned], [alone, *programs.learn(programs.state, BATCH, FRAMES[0], KEY)]
    for a, b in zip(jax.tree.leaves(both), jax.tree.leaves(apart), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-6)


ESTIMATES = {  # epistemic, aleatoric, quantiles
    "ceqr-dqn": (True, True, True),
    "dqn": (False, False, False),
    "qr-dqn": (False, True, True),
    "bootstrapped-dqn": (True, False, False),
    "duvn": (True, True, False),
    "ua-dqn": (True, True, True),
}


def test_an_agent_reports_what_it_estimates_and_nothing_else(programs: Programs) -> None:
    beliefs = programs.act(programs.state, programs.memory, OBSERVATIONS, FRAMES, programs.draws).beliefs
    assert (
        tuple(each is not None for each in (beliefs.epistemic, beliefs.aleatoric, beliefs.quantiles))
        == (ESTIMATES[programs.name])
    )
    assert beliefs.mean.shape == (2, 2)
    for each in (beliefs.epistemic, beliefs.aleatoric):
        assert each is None or (each.shape == (2, 2) and (np.asarray(each) >= 0).all())
    if beliefs.quantiles is not None:
        assert beliefs.quantiles.shape == (2, 2, 4)
        np.testing.assert_allclose(np.mean(beliefs.quantiles, axis=-1), beliefs.mean, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_capacity_is_set_by_hidden_and_torso(name: str) -> None:
    def count(**changes: Any) -> int:
        agent = _agent(name, (10, 10, 4), **changes)
        return parameter_count(jax.eval_shape(agent.init_params, KEY))

    # The padded convolution has 1,600 features and 16 slopes, the standard one 1,024 features and no slopes. UA-DQN has
    # three networks, Bootstrapped DQN hidden layers for each of its three heads.
    networks, chains = {"ua-dqn": (3, 3), "bootstrapped-dqn": (1, 3)}.get(name, (1, 1))
    assert count(torso="padded") - count(torso="standard") == chains * 8 * (1_600 - 1_024) + networks * 16
    assert count(hidden=(16,)) > count(hidden=(8,))
    assert count(hidden=(8, 8)) - count(hidden=(8,)) == chains * (8 * 8 + 8)
    assert count(hidden=()) > 0


@pytest.mark.parametrize("name", [name for name in NAMES if name != "ceqr-dqn"])
def test_trains_resumes_to_the_bit_and_evaluates(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fields = {f.name for f in dataclasses.fields(agent_classes(name)[1])}
    options = TINY if "quantiles" in fields else [o for o in TINY if o not in ("--quantiles", "5")]
    command = ["train", *CHAIN, "--agent", name, *options, "--checkpoint-seconds", "0"]
    with shared_programs():
        assert main([*command, "--frames", "200", "--out", str(tmp_path / "whole")]) == 0
        assert main([*command, "--frames", "110", "--out", str(tmp_path / "parts")]) == 0
        assert main(["resume", str(tmp_path / "parts"), "--frames", "200", "--quiet"]) == 0
    for file in ("episodes.csv", "metrics.csv", "summary.json", "config.json"):
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "parts" / file).read_bytes(), file
    final = [max((tmp_path / run / "checkpoints").glob("*.npz")) for run in ("whole", "parts")]
    with np.load(final[0]) as a, np.load(final[1]) as b:
        assert a.files == b.files
        assert all(a[n].tobytes() == b[n].tobytes() for n in a.files)
    assert main(["eval", str(tmp_path / "whole"), "--episodes", "2"]) == 0
    assert main(["plot", str(tmp_path / "whole")]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name != "ceqr-dqn"])
def test_finds_the_optimum_of_the_noisy_chain(name: str) -> None:
    env = NoisyChain()
    # Ten heads, as by default: where all of three begin by giving up, nothing ever tells them otherwise.
    agent = _agent(name, env.observation_shape, **PROBE_OPTIONS, epsilon_frames=2_000, epsilon_end=0.2, heads=10)
    states = train_probe(Loop(agent, env.observation_dtype), env, 5_000)
    state = jax.tree.map(lambda x: x[0], states.agent)
    assert np.asarray(agent.act_greedily(state, jnp.eye(4)[:3])[0]).tolist() == [1, 1, 1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dqn", "ceqr-dqn"])  # it is the loop's doing and replay's, whoever learns
def test_truncation_bootstraps_and_termination_does_not(name: str) -> None:
    """Reward 1 for ever, in episodes of 5: worth 1 / (1 - 0.8) = 5. Five rewards and then nothing would be worth 3.4.

    Where the fifth step terminates instead, the value a step before the end is 1.
    """
    learning = {"hidden": (32,), "batch_size": 32, "replay_size": 1_000, "learning_starts": 100, "target_period": 50}
    options = learning | {"discount": 0.8, "learning_rate": 2e-3, "quantiles": 8, "calibration": "none", "dropout": 0.0}
    for env, expected in ((Treadmill(limit=5), 5.0), (Treadmill(limit=1, terminates=True), 1.0)):
        agent = _agent(name, env.observation_shape, **options)
        states = train_probe(Loop(agent, env.observation_dtype), env, 2_500)
        _, beliefs = agent.act_greedily(jax.tree.map(lambda x: x[0], states.agent), jnp.ones((1, 1)))
        assert float(beliefs.mean.max()) == pytest.approx(expected, abs=0.5)


def test_an_agent_from_outside_the_package(
    tmp_path: Path, tiny: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The recipe of docs/how-to-add-an-agent.md, word for word."""
    recipe = Path(__file__).parents[2] / "docs" / "how-to-add-an-agent.md"
    code = recipe.read_text().split("```python\n")[1].split("```")[0]
    assert len(code.splitlines()) < 60
    monkeypatch.setattr("ceqr.agents.AGENTS", dict(AGENTS))
    module = types.ModuleType("optimistic")
    monkeypatch.setitem(sys.modules, "optimistic", module)
    exec(compile(code, str(recipe), "exec"), module.__dict__)
    options = [*CHAIN, "--agent", "optimistic-qr-dqn", *tiny, "--optimism", "0.7", "--frames", "120"]
    assert main(["train", *options, "--out", str(tmp_path / "run")]) == 0
    assert '"optimism": 0.7' in (tmp_path / "run" / "config.json").read_text()
    # Another process would not know it, unless it is told.
    monkeypatch.setattr("ceqr.agents.AGENTS", dict(AGENTS))
    monkeypatch.delitem(sys.modules, "optimistic")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "optimistic.py").write_text(code)
    assert main(["plot", "run"]) == 2
    assert "names the agent 'optimistic-qr-dqn', which is unknown here" in capsys.readouterr().err
    assert main(["plot", "run", "--import", "optimistic"]) == 0
    monkeypatch.delitem(sys.modules, "optimistic")
    with pytest.raises(ValueError, match="already"):
        register("dqn", agent_classes("dqn")[0])


@pytest.mark.parametrize("name", NAMES)
def test_uniform_weights_below_the_heads_and_nowhere_else(name: str) -> None:
    """The first layer's offsets tell: 0 where weights are orthogonal. Heads begin alike, whatever is below them."""
    orthogonal, uniform = (
        jit(_agent(name, hidden=(8, 8), init=init).init_params)(jax.random.key(0)) for init in ("orthogonal", "uniform")
    )
    # UA-DQN has three networks, of which the posteriors are priors and stay orthogonal with their own gain.
    old, new = (each.quantiles if name == "ua-dqn" else each for each in (orthogonal, uniform))
    assert not np.any(old.torso.dense[0].bias)
    assert np.abs(new.torso.dense[0].bias).max() > 0.1
    changed = jax.tree.map(lambda a, b: not np.array_equal(a, b), orthogonal, uniform)
    below = changed.quantiles.torso if name == "ua-dqn" else changed.torso
    assert sum(jax.tree.leaves(changed)) == sum(jax.tree.leaves(below)) == len(jax.tree.leaves(below))
