"""The eager PyTorch reference as an oracle: the same weights and batches must give the same numbers."""

# pyright: reportMissingImports=false
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ceqr.agents.base import AgentState, Batch
from ceqr.agents.ceqr_dqn import CEQRDQN, CEQRDQNHyperparameters

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'ceqr[bench]' to compare with it")
from benchmarks import eager_torch  # noqa: E402

CHANNELS, ACTIONS, HIDDEN, QUANTILES, BATCH = 4, 3, 64, 10, 32
STEPS = 20


def _to_torch(network) -> dict[str, np.ndarray]:
    """Our parameters as PyTorch lays them out: channels before rows and columns, outputs before inputs."""
    conv, (dense,) = network.torso.conv.linear, network.torso.dense
    return {
        "conv.weight": np.asarray(conv.weight).reshape(3, 3, CHANNELS, 16).transpose(3, 2, 0, 1),
        "conv.bias": np.asarray(conv.bias),
        "prelu.weight": np.asarray(network.torso.prelu.slope),
        "dense.weight": np.asarray(dense.weight).reshape(10, 10, 16, HIDDEN).transpose(3, 2, 0, 1).reshape(HIDDEN, -1),
        "dense.bias": np.asarray(dense.bias),
        "quantile_head.weight": np.asarray(network.quantile_head.weight).T,
        "quantile_head.bias": np.asarray(network.quantile_head.bias),
        "evidence_head.weight": np.asarray(network.evidence_head.weight).T,
        "evidence_head.bias": np.asarray(network.evidence_head.bias),
    }


def _batches() -> list[Batch]:
    rng = np.random.default_rng(0)
    return [
        Batch(
            observation=jnp.asarray(rng.random((BATCH, 10, 10, CHANNELS)) < 0.1),
            action=jnp.asarray(rng.integers(ACTIONS, size=BATCH), jnp.int32),
            reward=jnp.asarray(rng.normal(size=BATCH), jnp.float32),
            terminated=jnp.asarray(rng.random(BATCH) < 0.2),
            successor=jnp.asarray(rng.random((BATCH, 10, 10, CHANNELS)) < 0.1),
            number=jnp.arange(BATCH),
        )
        for _ in range(STEPS)
    ]


def _batch_to_torch(batch: Batch):
    image = lambda x: torch.from_numpy(np.asarray(x, np.float32).transpose(0, 3, 1, 2).copy())  # noqa: E731
    return (
        image(batch.observation),
        torch.from_numpy(np.asarray(batch.action, np.int64)),
        torch.from_numpy(np.array(batch.reward)),
        torch.from_numpy(np.asarray(batch.terminated, np.float32)),
        image(batch.successor),
    )


@pytest.fixture(scope="module")
def pair():
    """Our agent with its state, and the reference with the same weights; the target network's are others."""
    ours = CEQRDQN(CEQRDQNHyperparameters(hidden=(HIDDEN,), quantiles=QUANTILES), (10, 10, CHANNELS), ACTIONS)
    state = ours.init(jax.random.key(0))._replace(target=ours.init_params(jax.random.key(1)))
    theirs = eager_torch.Agent(CHANNELS, ACTIONS, eager_torch.Options(hidden=HIDDEN, quantiles=QUANTILES))
    for module, network in ((theirs.network, state.params), (theirs.target, state.target)):
        module.load_state_dict({k: torch.from_numpy(np.array(v)) for k, v in _to_torch(network).items()})
    return ours, state, theirs


def test_losses_and_gradients_agree(pair):
    ours, state, theirs = pair
    batch = _batches()[0]

    def objective(params):
        return ours._total_loss(
            params,
            ours.forward(params, state.frozen, batch.observation, None),
            ours._successors(state, batch),
            state,
            batch,
            jnp.int32(0),
        )

    grads, metrics = jax.grad(objective, has_aux=True)(state.params)
    terms = theirs.losses(*_batch_to_torch(batch))
    for name, value in terms.items():
        np.testing.assert_allclose(metrics[name], value.item(), rtol=2e-5, err_msg=name)
    np.testing.assert_allclose(metrics["loss"], sum(v.item() for v in terms.values()), rtol=2e-5)

    theirs.network.zero_grad()
    torch.stack(list(terms.values())).sum().backward()
    expected = dict(theirs.network.named_parameters())
    for name, grad in _to_torch(grads).items():
        reference = expected[name].grad.numpy()
        assert np.abs(reference).max() > 0, name
        np.testing.assert_allclose(grad, reference, rtol=1e-3, atol=1e-5 * np.abs(reference).max(), err_msg=name)


def test_parameters_after_twenty_adam_steps_agree(pair):
    ours, state, theirs = pair
    start = _to_torch(state.params)

    @jax.jit
    def learn(state: AgentState, batch: Batch) -> AgentState:
        return ours.learn(state, batch, jnp.int32(0), jax.random.key(0))[0]

    for batch in _batches():
        state = learn(state, batch)
        theirs.learn(*_batch_to_torch(batch))
    reached = dict(theirs.network.named_parameters())
    for name, value in _to_torch(state.params).items():
        reference = reached[name].detach().numpy()
        moved = np.abs(reference - start[name])
        # Adam moves every weight by about its learning rate a step, whatever the gradient's size: where that is mere
        # rounding the two may part, so the bound is on the distance relative to the way that was gone.
        assert moved.max() > STEPS * 1e-4 / 2, name
        apart = np.abs(value - reference)
        assert apart.mean() < 1e-3 * moved.mean(), (name, apart.mean(), moved.mean())
        assert apart.max() < 0.1 * moved.max(), (name, apart.max(), moved.max())
