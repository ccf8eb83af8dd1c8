"""Networks against JAX's own convolution and gradients, and the sizes that the paper gives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import jit
from scipy import stats

from ceqr.agents.ceqr_dqn import CEQRDQN, CEQRDQNHyperparameters
from ceqr.networks import (
    Conv,
    Conv3x3,
    Heads,
    ImageTorso,
    Linear,
    NatureTorso,
    PReLU,
    VectorTorso,
    parameter_count,
    torso,
)
from tests.agents.programs import normal

KEY = jax.random.key(0)


@pytest.mark.parametrize("padding", [0, 1])
def test_convolution_is_the_convolution_of_jax(padding: int) -> None:
    @jit
    def both(key: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        conv = Conv3x3(key, channels=3, filters=5, padding=padding)
        kernel = conv.linear.weight.reshape(3, 3, 3, 5)  # height, width, channels, filters
        theirs = jax.lax.conv_general_dilated(
            x, kernel, (1, 1), [(padding, padding)] * 2, dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return conv(x), theirs

    np.testing.assert_allclose(*both(KEY, normal(1, 2, 6, 7, 3)), rtol=1e-5, atol=1e-5)


def test_gradient_of_linear_is_that_of_a_plain_product() -> None:
    def ours(layer: Linear, x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.sin(layer(x)))

    def plain(layer: Linear, x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.sin(x @ layer.weight + layer.bias))

    layer, x = jit(lambda key: Linear(key, 4, 3))(KEY), normal(1, 2, 5, 4)
    both = jit(lambda layer, x: [jax.grad(f, (0, 1))(layer, x) for f in (ours, plain)])(layer, x)
    for a, b in zip(*map(jax.tree.leaves, both), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_initial_weights_are_orthogonal_with_gain_sqrt_two() -> None:
    weight = np.asarray(jit(lambda key: Linear(key, 20, 8).weight)(KEY))
    np.testing.assert_allclose(weight.T @ weight, 2 * np.eye(8), atol=1e-5)


def test_without_a_gain_weights_and_offsets_are_those_of_pytorch() -> None:
    """Uniform within 1 / sqrt(inputs): half of it within 0.25 for 4 inputs, and none beyond 0.5."""
    layer = jit(lambda key: Linear(key, 4, 2_000, None))(KEY)
    for drawn in map(np.asarray, (layer.weight, layer.bias)):
        assert stats.kstest(drawn.ravel(), stats.uniform(-0.5, 1.0).cdf).pvalue > 1e-3
    assert not np.array_equal(layer.weight[0], layer.bias)


@pytest.mark.parametrize("hidden", [(), (6,), (6, 4)])
def test_heads_are_chains_of_layers_that_share_nothing_but_their_input(hidden: tuple[int, ...]) -> None:
    features = normal(0, 7, 8)
    heads, outputs = jit(lambda key: (made := Heads(key, 3, 8, hidden, 2), made(features)))(KEY)
    assert outputs.shape == (7, 3, 2)
    units = (*hidden, 2)[0]
    for k in range(3):
        columns = slice(k * units, (k + 1) * units)  # of the first layers, which are one matrix
        weights = [np.asarray(heads.first.weight)[:, columns], *(np.asarray(layer.weight)[k] for layer in heads.rest)]
        biases = [np.asarray(heads.first.bias)[columns], *(np.asarray(layer.bias)[k] for layer in heads.rest)]
        x = features
        for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            np.testing.assert_allclose(
                weight.T @ weight, 2 * np.eye(weight.shape[1]), atol=1e-5
            )  # orthogonal by itself
            x = (np.maximum(x, 0) if i else x) @ weight + bias
        np.testing.assert_allclose(outputs[:, k], x, rtol=1e-4, atol=1e-5)
    first = np.asarray(heads.first.weight).reshape(8, 3, units)
    assert not np.array_equal(first[:, 0], first[:, 1])


def test_prelu() -> None:
    # Slope 0.25 at the start: -2 -> -0.5, 3 -> 3.
    np.testing.assert_allclose(PReLU(2)(jnp.array([[-2.0, 3.0]])), [[-0.5, 3.0]])


def test_padding_keeps_1600_features_and_the_standard_torso_has_1024() -> None:
    for padded, features in ((True, 1600), (False, 1024)):
        made = jax.eval_shape(lambda key, padded=padded: ImageTorso(key, (10, 10, 4), (), padded), KEY)
        assert made.features == features


def test_paper_network_has_4_7_million_parameters_on_breakout() -> None:
    agent = CEQRDQN(CEQRDQNHyperparameters(), (10, 10, 4), 3)
    shapes = jax.eval_shape(agent.init_params, KEY)
    # conv 36*16 + 16 and 16 slopes; hidden 1600^2 + 1600; heads 1600*150 + 150 and 1600*1200 + 1200
    expected = (36 * 16 + 16 + 16) + (1600 * 1600 + 1600) + (1600 * 150 + 150) + (1600 * 1200 + 1200)
    assert parameter_count(shapes) == expected == 4_723_558
    outputs = jax.eval_shape(lambda m, x: m(x), shapes, jax.ShapeDtypeStruct((7, 10, 10, 4), jnp.bool_))
    assert outputs.quantiles.shape == (7, 3, 50)
    assert outputs.evidence.shape == (7, 3, 4, 2, 50)


@pytest.mark.parametrize(("kernel", "stride", "size"), [(8, 4, 21), (4, 2, 9), (3, 1, 7), (4, 3, 8)])
def test_strided_convolution_is_the_convolution_of_jax(kernel: int, stride: int, size: int) -> None:
    shapes = jax.eval_shape(lambda key: Conv(key, 3, 5, kernel, stride, 1.0), KEY)
    conv = jax.tree.map(lambda leaf: 0.1 * normal(0, *leaf.shape), shapes)
    x = normal(1, 2, size, size + 2, 3)

    @jit
    def both(conv: Conv, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        weight = conv.linear.weight.reshape(kernel, kernel, 3, 5)
        theirs = jax.lax.conv_general_dilated(
            x, weight, (stride, stride), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return conv(x), theirs + conv.linear.bias

    np.testing.assert_allclose(*both(conv, x), rtol=1e-4, atol=1e-5)


def test_the_nature_network() -> None:
    """Mnih et al. (2015): 84 x 84 x 4 -> 20 x 20 x 32 -> 9 x 9 x 64 -> 7 x 7 x 64 = 3,136 -> 512."""
    made = jax.eval_shape(lambda key: torso(key, (84, 84, 4), (512,), "padded"), KEY)
    assert isinstance(made, NatureTorso)
    expected = (8 * 8 * 4 * 32 + 32) + (4 * 4 * 32 * 64 + 64) + (3 * 3 * 64 * 64 + 64) + (3136 * 512 + 512)
    assert parameter_count(made) == expected == 1_684_128
    out = jax.eval_shape(lambda m, x: m(x), made, jax.ShapeDtypeStruct((2, 84, 84, 4), jnp.uint8))
    assert out.shape == (2, 512)


@pytest.mark.parametrize(
    ("shape", "kind"), [((36, 40, 1), NatureTorso), ((35, 40, 1), ImageTorso), ((7,), VectorTorso)]
)
def test_which_torso_fits(shape: tuple[int, ...], kind: type) -> None:
    made, bare = (jax.eval_shape(lambda key, h=h: torso(key, shape, h, "standard"), KEY) for h in ((8,), ()))
    assert isinstance(made, kind)
    assert jax.eval_shape(lambda m, x: m(x), made, jnp.ones((2, *shape), jnp.uint8)).shape == (2, 8)
    assert bare.features == made.dense[0].weight.shape[0]


def test_bytes_are_scaled_to_one() -> None:
    for shape in ((36, 36, 1), (10, 10, 2), (6,)):
        pixels = np.random.default_rng(1).integers(0, 256, (3, *shape), np.uint8)
        # Some parameters of the right shapes; orthogonal ones would take a while to compile.
        shapes = jax.eval_shape(lambda key, shape=shape: torso(key, shape, (8,), "standard"), KEY)
        made = jax.tree.map(lambda leaf: 0.1 * normal(0, *leaf.shape), shapes)
        both = jit(lambda m, x, y: (m(x), m(y)))(made, pixels, (pixels / 255).astype(np.float32))
        np.testing.assert_allclose(*both, rtol=1e-4, atol=1e-5)
        assert np.asarray(both[0]).any()


def test_unfit_observation_is_refused() -> None:
    with pytest.raises(ValueError, match=r"not of shape \(4, 4\)"):
        torso(KEY, (4, 4), (8,), "padded")
