"""Networks against JAX's own convolution and gradients, and the sizes that the paper gives."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ceqr.agents.ceqr_dqn import CEQRDQN, CEQRDQNHyperparameters
from ceqr.networks import Conv, Conv3x3, ImageTorso, Linear, NatureTorso, PReLU, VectorTorso, parameter_count, torso


@pytest.mark.parametrize("padding", [0, 1])
def test_convolution_is_the_convolution_of_jax(padding: int) -> None:
    conv = Conv3x3(jax.random.key(0), channels=3, filters=5, padding=padding)
    x = jax.random.normal(jax.random.key(1), (2, 6, 7, 3))
    ours = conv(x)
    kernel = conv.linear.weight.reshape(3, 3, 3, 5)  # height, width, channels, filters
    theirs = jax.lax.conv_general_dilated(
        x, kernel, (1, 1), [(padding, padding)] * 2, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_gradient_of_linear_is_that_of_a_plain_product() -> None:
    layer = Linear(jax.random.key(0), 4, 3)
    x = jax.random.normal(jax.random.key(1), (2, 5, 4))

    def ours(weight: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.sin(eqx.tree_at(lambda m: m.weight, layer, weight)(x)))

    def plain(weight: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.sin(x @ weight + layer.bias))

    for a, b in zip(jax.grad(ours, (0, 1))(layer.weight, x), jax.grad(plain, (0, 1))(layer.weight, x), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_initial_weights_are_orthogonal_with_gain_sqrt_two() -> None:
    weight = Linear(jax.random.key(0), 20, 8).weight
    np.testing.assert_allclose(weight.T @ weight, 2 * np.eye(8), atol=1e-5)


def test_prelu() -> None:
    # Slope 0.25 at the start: -2 -> -0.5, 3 -> 3.
    np.testing.assert_allclose(PReLU(2)(jnp.array([[-2.0, 3.0]])), [[-0.5, 3.0]])


def test_padding_keeps_1600_features_and_the_standard_torso_has_1024() -> None:
    assert ImageTorso(jax.random.key(0), (10, 10, 4), (), padded=True).features == 1600
    assert ImageTorso(jax.random.key(0), (10, 10, 4), (), padded=False).features == 1024


def test_paper_network_has_4_7_million_parameters_on_breakout() -> None:
    agent = CEQRDQN(CEQRDQNHyperparameters(), (10, 10, 4), 3)
    shapes = jax.eval_shape(agent.network, jax.random.key(0))
    # conv 36*16 + 16 and 16 slopes; hidden 1600^2 + 1600; heads 1600*150 + 150 and 1600*1200 + 1200
    expected = (36 * 16 + 16 + 16) + (1600 * 1600 + 1600) + (1600 * 150 + 150) + (1600 * 1200 + 1200)
    assert parameter_count(shapes) == expected == 4_723_558
    outputs = jax.eval_shape(lambda m, x: m(x), shapes, jax.ShapeDtypeStruct((7, 10, 10, 4), jnp.bool_))
    assert outputs.quantiles.shape == (7, 3, 50)
    assert outputs.evidence.shape == (7, 3, 4, 2, 50)


@pytest.mark.parametrize(("kernel", "stride", "size"), [(8, 4, 21), (4, 2, 9), (3, 1, 7), (4, 3, 8)])
def test_strided_convolution_is_the_convolution_of_jax(kernel: int, stride: int, size: int) -> None:
    conv = Conv(jax.random.key(0), 3, 5, kernel, stride, 1.0)
    x = jax.random.normal(jax.random.key(1), (2, size, size + 2, 3))
    weight = conv.linear.weight.reshape(kernel, kernel, 3, 5)
    theirs = jax.lax.conv_general_dilated(
        x, weight, (stride, stride), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    np.testing.assert_allclose(conv(x), theirs, rtol=1e-5, atol=1e-5)


def test_the_nature_network() -> None:
    """Mnih et al. (2015): 84 x 84 x 4 -> 20 x 20 x 32 -> 9 x 9 x 64 -> 7 x 7 x 64 = 3,136 -> 512."""
    made = jax.eval_shape(lambda key: torso(key, (84, 84, 4), (512,), "padded"), jax.random.key(0))
    assert isinstance(made, NatureTorso)
    expected = (8 * 8 * 4 * 32 + 32) + (4 * 4 * 32 * 64 + 64) + (3 * 3 * 64 * 64 + 64) + (3136 * 512 + 512)
    assert parameter_count(made) == expected == 1_684_128
    out = jax.eval_shape(lambda m, x: m(x), made, jax.ShapeDtypeStruct((2, 84, 84, 4), jnp.uint8))
    assert out.shape == (2, 512)


@pytest.mark.parametrize(
    ("shape", "kind"), [((36, 40, 1), NatureTorso), ((35, 40, 1), ImageTorso), ((7,), VectorTorso)]
)
def test_which_torso_fits(shape: tuple[int, ...], kind: type) -> None:
    made = torso(jax.random.key(0), shape, (8,), "standard")
    assert isinstance(made, kind)
    assert made(jnp.ones((2, *shape), jnp.uint8)).shape == (2, 8)
    assert torso(jax.random.key(0), shape, (), "standard").features == made.dense[0].weight.shape[0]


def test_bytes_are_scaled_to_one() -> None:
    for shape in ((40, 40, 2), (10, 10, 2), (6,)):
        made = torso(jax.random.key(0), shape, (8,), "standard")
        pixels = jax.random.randint(jax.random.key(1), (3, *shape), 0, 256).astype(jnp.uint8)
        np.testing.assert_allclose(made(pixels), made(pixels / 255.0), rtol=1e-4, atol=1e-5)


def test_unfit_observation_is_refused() -> None:
    with pytest.raises(ValueError, match=r"not of shape \(4, 4\)"):
        torso(jax.random.key(0), (4, 4), (8,), "padded")
