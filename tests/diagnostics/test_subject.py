"""An agent that knows the truth is found to be calibrated, and one that does not is not."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from ceqr.agents.base import Agent, AgentState, Batch, Beliefs, Hyperparameters
from ceqr.agents.ceqr_dqn import CEQRDQN, CEQRDQNHyperparameters
from ceqr.agents.qr_dqn import QRDQN, QRDQNHyperparameters
from ceqr.diagnostics import ood
from ceqr.diagnostics.measures import auroc, estimate, miscalibration_area, within
from ceqr.diagnostics.play import Played, play, td_targets, tell
from ceqr.diagnostics.subject import Subject, examine_agent
from ceqr.envs.gymnasium import from_env
from tests.probes import Counting, NoisyChain, Treadmill

LEVELS = (np.arange(40) + 0.5) / 40
CHAIN = NoisyChain()  # going on pays Normal(1.5, 1) after three steps
EPISODES = 1_000


@dataclass(frozen=True)
class Oracle(Agent):
    """Knows the return of going on in the noisy chain, or believes it to be otherwise; doubts what is no position."""

    shift: float = 0.0
    scale: float = 1.0

    def init_params(self, key: jax.Array) -> Any:
        return jnp.zeros(())

    def forward(self, params: Any, frozen: Any, observations: jax.Array, key: jax.Array | None) -> jax.Array:
        return observations

    def beliefs(self, outputs: jax.Array, state: AgentState) -> Beliefs:
        follows = 0.9 ** (2.0 - jnp.argmax(outputs))
        onward = follows * (1.5 + self.shift + self.scale * jnp.asarray(stats.norm.ppf(LEVELS), jnp.float32))
        quantiles = jnp.stack([jnp.full(len(LEVELS), 0.5), onward])
        doubt = jnp.abs(outputs.sum() - 1) + jnp.abs(outputs.max() - 1)
        return Beliefs(quantiles.mean(-1), jnp.full(2, doubt), quantiles.std(-1), quantiles)

    def explore(self, outputs: Any, beliefs: Beliefs, memory: Any, frame: Any, drawn: Any) -> jax.Array:
        raise NotImplementedError

    def loss(self, outputs: Any, successors: Any, batch: Any, state: AgentState) -> Any:
        raise NotImplementedError

    def td_interval(self, outputs: jax.Array) -> tuple[jax.Array, jax.Array]:
        """From half a standard deviation below each quantile to half of one above."""
        all_quantiles = jax.vmap(lambda each: self.beliefs(each, AgentState(*[()] * 5)).quantiles)(outputs)
        return all_quantiles - 0.5, all_quantiles + 0.5


def _examine(**options: float) -> Subject:
    agent = Oracle(Hyperparameters(discount=0.9), (4,), 2, **options)
    return examine_agent(agent, agent.init(jax.random.key(0)), CHAIN, "probe/noisy-chain", 0, EPISODES, 50)


@pytest.fixture(scope="module")
def knowing() -> Subject:
    return _examine()


def test_who_knows_is_calibrated(knowing: Subject) -> None:
    slack = 3.3 * np.sqrt(0.9 * 0.1 / EPISODES)
    # Quantiles at 5 and 95 % by straight lines between 40 of them are a little off the normal's.
    for name in ("returns", "td_quantiles"):
        assert estimate([knowing.per_episode[name]]).value == pytest.approx(0.9, abs=slack)
    area = estimate([knowing.per_episode["miscalibration"]], miscalibration_area)
    assert area.value < 0.03
    bias = estimate([knowing.per_episode["bias"]])
    assert bias.low - 0.02 < 0 < bias.high + 0.02
    mean_square = np.mean(0.9 ** (2 * np.arange(3))) * stats.norm.ppf(LEVELS).var()
    assert estimate([knowing.per_episode["sharpness"]], np.sqrt).value == pytest.approx(np.sqrt(mean_square), rel=1e-3)
    assert knowing.tenths is not None
    np.testing.assert_allclose(knowing.tenths[[1, 5, 8]], 0.9, atol=slack)  # its three steps
    assert (knowing.known, knowing.cut) == (EPISODES, 0)
    assert knowing.distinct > EPISODES - 5  # rewards are drawn, and two may be the same


def test_evidential_intervals_are_of_each_quantile(knowing: Subject) -> None:
    """Before the last step a target quantile is the quantile itself; in it the reward, which is within half a deviation
    of a quantile as often as two normals are."""
    rewards = 1.5 + stats.norm.ppf((np.arange(2_000) + 0.5) / 2_000)
    last = np.mean(np.abs(rewards[:, None] - 1.5 - stats.norm.ppf(LEVELS)) <= 0.5)
    found = estimate([knowing.per_episode["td_evidential"]])
    assert found.value == pytest.approx((2 + last) / 3, abs=0.02)
    # Read widely: from half a deviation below the quantile at 5 % to half of one above that at 95 %.
    assert estimate([knowing.per_episode["returns_evidential"]]).value > 0.95


@pytest.mark.parametrize(("shift", "scale"), [(0.0, 0.5), (0.0, 3.0), (1.0, 1.0)])
def test_who_errs_is_found_out(shift: float, scale: float) -> None:
    found = _examine(shift=shift, scale=scale)
    share = np.diff(stats.norm.cdf(shift + scale * stats.norm.ppf([0.05, 0.95])))
    assert estimate([found.per_episode["returns"]]).value == pytest.approx(share, abs=0.05)
    # The integrals of |Phi(scale z) - Phi(z)| and of |Phi(z + shift) - Phi(z)| over Phi(z).
    area = abs(1 / 4 - np.arctan(scale) / np.pi) if scale != 1 else stats.norm.cdf(shift / np.sqrt(2)) - 1 / 2
    assert area > 0.1
    assert estimate([found.per_episode["miscalibration"]], miscalibration_area).value == pytest.approx(area, abs=0.02)
    bias = shift * np.mean([0.81, 0.9, 1])
    assert estimate([found.per_episode["bias"]]).value == pytest.approx(bias, abs=0.1)


def test_doubt_of_what_is_strange(knowing: Subject) -> None:
    for kind in ("weak_noise", "strong_noise"):
        assert auroc([knowing.contrasts[kind]]).value == 1  # no noisy state is a position
    assert auroc([knowing.contrasts["shuffled"]]).value == 0.5  # a shuffled position is another one
    assert "other_game" in knowing.absent
    assert "visits cannot be told" in knowing.absent["never_visited"]
    assert set(knowing.contrasts) | set(knowing.absent) >= set(ood.KINDS)


# Targets are those of learning.


@pytest.mark.parametrize("name", ["ceqr-dqn", "double"])
def test_td_targets_are_those_that_the_agent_learns_from(name: str) -> None:
    hyper: Any = {"hidden": (8,), "quantiles": 5, "discount": 0.9}
    agent: Any = (
        CEQRDQN(CEQRDQNHyperparameters(**hyper), (3,), 2)
        if name == "ceqr-dqn"
        else QRDQN(QRDQNHyperparameters(**hyper, double=True), (3,), 2)
    )
    state = agent.init(jax.random.key(0))
    state = state._replace(target=agent.init_params(jax.random.key(1)))
    rng = np.random.default_rng(0)
    observation, successor = rng.normal(size=(2, 300, 3)).astype(np.float32)
    reward, terminated = rng.normal(size=300).astype(np.float32), rng.random(300) < 0.3
    nothing, steps = np.zeros(300), rng.integers(1, 4, 300)
    played = Played(observation, successor, reward, terminated, steps, *[nothing] * 4, *[nothing] * 3, distinct=0)
    targets = td_targets(agent, state, played)
    told = tell(agent, state, observation)
    action = np.asarray(jax.vmap(agent.greedy)(agent.act_greedily(state, observation)[1]))
    batch = Batch(*map(jnp.asarray, (observation, action, reward, terminated, successor, np.arange(300), steps)))
    outputs = agent.forward(state.params, state.frozen, observation, None)
    _, metrics = agent.loss(outputs, agent._successors(state, batch), batch, state)
    below = (targets <= told.quantiles).mean(0)
    error = np.abs(below - (np.arange(5) + 0.5) / 5).mean()
    assert error == pytest.approx(float(metrics["quantile_coverage_error"]), abs=1e-5)
    if name == "ceqr-dqn":
        inside = within(told.td_lower, told.td_upper, targets).mean()
        assert inside == pytest.approx(float(metrics["coverage"]), abs=1e-5)


# Which steps are kept.


def test_some_steps_of_each_episode_are_kept_evenly() -> None:
    """On the host, where an observation is the step's number and the episode's."""
    env: Any = from_env(Counting(length=60, ending="terminated"))
    agent = QRDQN(QRDQNHyperparameters(hidden=(8,), quantiles=5), (2,), 2)
    state = agent.init(jax.random.key(0))
    played = play(agent, state, env, 0, 40, 100, 0.5, steps=12)
    assert len(played.episode) == 40 * 12
    step = played.observation[:, 0]
    np.testing.assert_allclose(played.progress, (step + 0.5) / 60)
    np.testing.assert_array_equal(played.successor[:, 0], step + 1)
    np.testing.assert_allclose(played.outcome, 2 * (1 - 0.5 ** (60 - step)))
    for episode in range(40):
        assert len(set(step[played.episode == episode])) == 12
    assert stats.kstest(played.progress, "uniform").pvalue > 1e-3
    assert played.known.all()
    np.testing.assert_array_equal(played.totals, np.full(40, 60))


@pytest.mark.parametrize("ending", ["terminated", "truncated"])
def test_transitions_have_as_many_steps_as_in_learning(ending: str) -> None:
    """Every step pays 1."""
    env: Any = from_env(Counting(length=20, ending=ending))
    agent = QRDQN(QRDQNHyperparameters(hidden=(8,), quantiles=5), (2,), 2)
    played = play(agent, agent.init(jax.random.key(0)), env, 0, 10, 100, 0.5, steps=12, n_step=3)
    step = played.observation[:, 0]
    steps = np.minimum(3, 20 - step)
    assert len(set(steps)) == 3
    np.testing.assert_array_equal(played.steps, steps)
    np.testing.assert_array_equal(played.successor[:, 0], step + steps)
    np.testing.assert_allclose(played.reward, 2 * (1 - 0.5**steps))
    np.testing.assert_array_equal(played.terminated, (step + steps == 20) & (ending == "terminated"))


def test_episodes_that_are_cut_off_have_no_return_and_are_alike() -> None:
    agent = Oracle(Hyperparameters(discount=1.0), (1,), 2)
    found = examine_agent(agent, agent.init(jax.random.key(0)), Treadmill(limit=5), "probe/treadmill", 0, 4, 50)
    assert (found.cut, found.known, found.distinct) == (4, 0, 1)
    assert "returns" not in found.per_episode
    assert "without discount what is missing always matters" in found.absent["returns"]
    assert "td_quantiles" in found.per_episode
    assert found.absent["shuffled"] == "there is but one component"
