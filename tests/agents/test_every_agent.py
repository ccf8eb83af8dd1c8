"""What holds for every agent: the shared learner, targets, truncation, training, resuming, and learning the optimum."""

import dataclasses
import sys
import types
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ceqr.agents import AGENTS, agent_classes, register
from ceqr.agents.base import Agent, AgentState, Batch
from ceqr.cli import main
from ceqr.networks import parameter_count
from ceqr.training.loop import Loop
from tests.conftest import TINY
from tests.probes import PROBE_OPTIONS, NoisyChain, Treadmill, train_probe

NAMES = list(AGENTS)
KEY = jax.random.key(7)
FRAME = jnp.int32(500)


def _agent(name: str, observation_shape: tuple[int, ...] = (3,), **changes: Any) -> Agent:
    agent_class, hyper_class = agent_classes(name)
    fields = {f.name for f in dataclasses.fields(hyper_class)}
    small = {"hidden": (16,), "quantiles": 4, "batch_size": 6, "heads": 3} | changes
    hyper = hyper_class(**{k: v for k, v in small.items() if k in fields})
    return agent_class(hyper, observation_shape, num_actions=2)


@pytest.fixture(scope="module", params=NAMES)
def agent(request: pytest.FixtureRequest) -> Agent:
    return _agent(request.param)


@pytest.fixture(scope="module")
def state(agent: Agent) -> AgentState:
    return agent.init(jax.random.key(0))


@pytest.fixture(scope="module")
def learn(agent: Agent) -> Any:
    return jax.jit(agent.learn)


@pytest.fixture(scope="module")
def batch() -> Batch:
    keys = jax.random.split(jax.random.key(1), 3)
    return Batch(
        observation=jax.random.normal(keys[0], (6, 3)),
        action=jnp.array([0, 1, 1, 0, 1, 0]),
        reward=jax.random.normal(keys[1], (6,)),
        terminated=jnp.array([False, False, True, False, True, False]),
        successor=jax.random.normal(keys[2], (6, 3)),
        number=jnp.arange(6),
    )


def test_termination_cuts_the_future_and_truncation_does_not(learn: Any, state: AgentState, batch: Batch) -> None:
    """A truncated step is one that is not terminated: its successor counts."""

    def loss(batch: Batch) -> float:
        return float(learn(state, batch, FRAME, KEY)[1]["loss"])

    elsewhere = batch._replace(successor=batch.successor + 1)
    assert loss(elsewhere) != loss(batch)
    over = batch._replace(terminated=jnp.ones(6, bool))
    assert loss(over._replace(successor=batch.successor + 1)) == loss(over)
    assert loss(over) != loss(batch)


def test_target_network_is_read_and_gets_no_gradient(agent: Agent, learn: Any, state: AgentState, batch: Batch) -> None:
    disturbed = state._replace(target=jax.tree.map(lambda w: w + 0.1, state.target))
    assert float(learn(disturbed, batch, FRAME, KEY)[1]["loss"]) != float(learn(state, batch, FRAME, KEY)[1]["loss"])

    def objective(target: Any) -> jax.Array:
        outputs = agent.forward(state.params, batch.observation, None)
        return agent._total_loss(state.params, outputs, state._replace(target=target), batch, FRAME)[0]

    assert all(float(jnp.abs(g).max()) == 0 for g in jax.tree.leaves(jax.grad(objective)(state.target)))


def test_learning_changes_the_network_and_nothing_else(
    agent: Agent, learn: Any, state: AgentState, batch: Batch
) -> None:
    after, _ = learn(state, batch, FRAME, KEY)
    assert not eqx.tree_equal(after.params, state.params)
    assert eqx.tree_equal(after.target, state.target)
    assert eqx.tree_equal(after.frozen, state.frozen)
    assert eqx.tree_equal(agent.copy_target(after).target, after.params)


def test_learning_on_one_batch_lowers_the_loss(agent: Agent, state: AgentState, batch: Batch) -> None:
    quick = dataclasses.replace(agent, hyper=dataclasses.replace(agent.hyper, learning_rate=1e-2))
    learn = jax.jit(quick.learn)
    seen = []
    for _ in range(60):
        state, metrics = learn(state, batch, FRAME, KEY)
        seen.append(float(metrics["loss"]))
    assert seen[-1] < 0.7 * seen[0]


@pytest.mark.parametrize("name", NAMES)
def test_one_pass_for_acting_and_learning_is_the_same_as_two(name: str, batch: Batch) -> None:
    agent = _agent(name, dropout=0.0)  # a mask is drawn for each row of a batch, so masks differ with its size
    state, memory = agent.init(jax.random.key(0)), agent.init_memory(jax.random.key(2))
    observation = jnp.array([0.1, -0.2, 0.3])
    action, *both = jax.jit(agent.act_and_learn)(state, memory, observation, batch, FRAME, KEY)
    action_alone, beliefs = jax.jit(agent.act)(state, memory, observation, FRAME, KEY)
    assert int(action) == int(action_alone)
    apart = [beliefs, *jax.jit(agent.learn)(state, batch, FRAME, KEY)]
    for a, b in zip(jax.tree.leaves(both), jax.tree.leaves(apart), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "epistemic", "aleatoric"),
    [
        ("ceqr-dqn", True, True),
        ("dqn", False, False),
        ("qr-dqn", False, True),
        ("bootstrapped-dqn", True, False),
        ("duvn", True, True),
        ("ua-dqn", True, True),
    ],
)
def test_an_agent_reports_what_it_estimates_and_nothing_else(name: str, epistemic: bool, aleatoric: bool) -> None:
    agent = _agent(name)
    state = agent.init(jax.random.key(0))
    _, beliefs = agent.act(state, agent.init_memory(KEY), jnp.ones(3), FRAME, KEY)
    assert beliefs.mean.shape == (2,)
    assert (beliefs.epistemic is not None) == epistemic
    assert (beliefs.aleatoric is not None) == aleatoric
    for each in (beliefs.epistemic, beliefs.aleatoric):
        assert each is None or (each.shape == (2,) and bool((each >= 0).all()))


@pytest.mark.parametrize("name", NAMES)
def test_capacity_is_set_by_hidden_and_torso(name: str) -> None:
    def count(**changes: Any) -> int:
        agent = _agent(name, (10, 10, 4), **changes)
        return parameter_count(jax.eval_shape(agent.network, KEY))

    # The padded convolution has 1,600 features and 16 slopes, the standard one 1,024 features and no slopes.
    networks = 3 if name == "ua-dqn" else 1
    assert count(torso="padded") - count(torso="standard") == networks * (16 * (1_600 - 1_024) + 16)
    assert count(hidden=(32,)) > count(hidden=(16,))
    assert count(hidden=(16, 16)) - count(hidden=(16,)) == networks * (16 * 16 + 16)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "ceqr-dqn"])
def test_trains_resumes_to_the_bit_and_evaluates(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fields = {f.name for f in dataclasses.fields(agent_classes(name)[1])}
    options = TINY if "quantiles" in fields else [o for o in TINY if o not in ("--quantiles", "5")]
    command = ["train", "--agent", name, *options, "--checkpoint-seconds", "0"]
    assert main([*command, "--frames", "400", "--out", str(tmp_path / "whole")]) == 0
    assert main([*command, "--frames", "170", "--out", str(tmp_path / "parts")]) == 0
    assert main(["resume", str(tmp_path / "parts"), "--frames", "400", "--quiet"]) == 0
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
    agent = _agent(name, env.observation_shape, **PROBE_OPTIONS, epsilon_frames=2_000, epsilon_end=0.2)
    states = train_probe(Loop(env, agent), 8_000)
    network = jax.tree.map(lambda x: x[0], states.agent.params)
    assert np.asarray(agent.act_greedily(network, jnp.eye(4)[:3])).tolist() == [1, 1, 1]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_truncation_bootstraps_and_termination_does_not(name: str) -> None:
    """Reward 1 for ever, in episodes of 5: worth 1 / (1 - 0.8) = 5. Five rewards and then nothing would be worth 3.4.

    Where the fifth step terminates instead, the value a step before the end is 1.
    """
    learning = {"hidden": (32,), "batch_size": 32, "replay_size": 1_000, "learning_starts": 100, "target_period": 50}
    options = learning | {"discount": 0.8, "learning_rate": 2e-3, "quantiles": 8, "calibration": "none", "dropout": 0.0}
    for env, expected in ((Treadmill(limit=5), 5.0), (Treadmill(limit=1, terminates=True), 1.0)):
        agent = _agent(name, env.observation_shape, **options)
        states = train_probe(Loop(env, agent), 4_000)
        network = jax.tree.map(lambda x: x[0], states.agent.params)
        outputs = jax.tree.map(lambda x: x[0], agent.forward(network, jnp.ones((1, 1)), None))
        assert float(agent.beliefs(outputs).mean.max()) == pytest.approx(expected, abs=0.5)


def test_an_agent_from_outside_the_package(tmp_path: Path, tiny: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The recipe of docs/how-to-add-an-agent.md, word for word."""
    recipe = Path(__file__).parents[2] / "docs" / "how-to-add-an-agent.md"
    code = recipe.read_text().split("```python\n")[1].split("```")[0]
    assert len(code.splitlines()) < 60
    monkeypatch.setattr("ceqr.agents.AGENTS", dict(AGENTS))
    module = types.ModuleType("optimistic")
    monkeypatch.setitem(sys.modules, "optimistic", module)
    exec(compile(code, str(recipe), "exec"), module.__dict__)
    options = [
        "--agent",
        "optimistic-qr-dqn",
        *tiny,
        "--optimism",
        "0.7",
        "--frames",
        "120",
        "--out",
        str(tmp_path / "run"),
    ]
    assert main(["train", *options]) == 0
    assert '"optimism": 0.7' in (tmp_path / "run" / "config.json").read_text()
    with pytest.raises(ValueError, match="already"):
        register("dqn", agent_classes("dqn")[0])
