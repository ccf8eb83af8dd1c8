"""Torsos and heads. A network maps a batch of observations to numbers; what they mean is the agent's business.

Everything is a PyTree of arrays and every call takes a leading batch axis. Weights are kept as one
[inputs, outputs] matrix each, which on XLA's CPU backend is several times faster than an einsum with an action axis
(only small layers of several heads have such an axis); a
3x3 convolution is patches times such a matrix, which is a little faster than `lax.conv` with its gradient
(docs/performance.md).
"""

import math
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

ORTHOGONAL_GAIN = math.sqrt(2)
NATURE_LAYERS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))  # filters, kernel, stride
LARGE_IMAGE = 36  # pixels a side, of which the Nature torso leaves one


def _orthogonal(key: jax.Array, shape: tuple[int, int], gain: float) -> jax.Array:
    return jax.nn.initializers.orthogonal(gain)(key, shape, jnp.float32)


@jax.custom_vjp
def _matmul(x: jax.Array, weight: jax.Array) -> jax.Array:
    """x @ weight, [rows, inputs] times [inputs, outputs], whose gradient comes out in the weight's own layout.

    Under `vmap` over seeds, JAX's own rule yields the weight's gradient transposed, and the optimiser then reads it
    column by column, at several times the cost of the product.
    """
    return x @ weight


def _matmul_forward(x: jax.Array, weight: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return x @ weight, (x, weight)


def _matmul_backward(saved: tuple[jax.Array, jax.Array], grad: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, weight = saved
    # Contractions rather than transposes of the weights, which would be carried out; the input's gradient is transposed
    # itself, since Eigen is faster with the large matrix on the left (docs/performance.md).
    x_grad = jax.lax.dot_general(weight, grad, (((1,), (1,)), ((), ()))).T
    return x_grad, jax.lax.dot_general(x, grad, (((0,), (0,)), ((), ())))


_matmul.defvjp(_matmul_forward, _matmul_backward)


class Linear(eqx.Module):
    """x W + b with orthogonal W of that gain and b = 0 at the start; without a gain as PyTorch begins.

    That is, W and b uniform within 1 / sqrt(inputs). From few inputs to many outputs orthogonal weights are small, and
    with b = 0 all outputs are 0 at the same x; uniform ones tell vectors apart that are close to each other.
    """

    weight: jax.Array  # [inputs, outputs]
    bias: jax.Array  # [outputs]

    def __init__(self, key: jax.Array, inputs: int, outputs: int, gain: float | None = ORTHOGONAL_GAIN):
        if gain is None:
            drawn = jax.random.uniform(key, (inputs + 1, outputs), minval=-1.0, maxval=1.0) / math.sqrt(inputs)
            self.weight, self.bias = drawn[:-1], drawn[-1]
        else:
            self.weight = _orthogonal(key, (inputs, outputs), gain)
            self.bias = jnp.zeros(outputs)

    def __call__(self, x: jax.Array) -> jax.Array:
        # As rows of one matrix: with several axes, the weight's gradient would transpose all of x first.
        rows = x.reshape(-1, x.shape[-1])
        return (_matmul(rows, self.weight) + self.bias).reshape(*x.shape[:-1], -1)


class HeadsLinear(eqx.Module):
    """K linear layers side by side, each with an input of its own: [batch, K, inputs] -> [batch, K, outputs]."""

    weight: jax.Array  # [K, inputs, outputs]
    bias: jax.Array  # [K, outputs]

    def __call__(self, x: jax.Array) -> jax.Array:
        return jnp.einsum("bki,kio->bko", x, self.weight) + self.bias


class Heads(eqx.Module):
    """K chains of dense ReLU layers, the last linear, which all read the same features: [batch, K, outputs].

    Their first layers are one matrix, [features, K * units]: the features are read once for all.
    """

    first: Linear
    rest: list[HeadsLinear]
    heads: int = eqx.field(static=True)

    def __init__(self, key: jax.Array, heads: int, features: int, hidden: Sequence[int], outputs: int):
        def one(key: jax.Array) -> list[Linear]:
            return _linear_layers(key, features, (*hidden, outputs), ORTHOGONAL_GAIN)

        # Orthogonal each for itself, so that no head depends on how many there are.
        first, *rest = jax.vmap(one)(jax.random.split(key, heads))
        columns = first.weight.swapaxes(0, 1).reshape(features, -1)
        self.first = eqx.tree_at(lambda m: (m.weight, m.bias), first, (columns, first.bias.reshape(-1)))
        self.rest = [HeadsLinear(layer.weight, layer.bias) for layer in rest]
        self.heads = heads

    def __call__(self, features: jax.Array) -> jax.Array:
        x = self.first(features).reshape(len(features), self.heads, -1)
        for layer in self.rest:
            x = layer(jax.nn.relu(x))
        return x


class Conv3x3(eqx.Module):
    """A 3x3 convolution with stride 1 over [batch, height, width, channels]."""

    linear: Linear
    padding: int = eqx.field(static=True)

    def __init__(self, key: jax.Array, channels: int, filters: int, padding: int, gain: float | None = ORTHOGONAL_GAIN):
        self.linear = Linear(key, 9 * channels, filters, gain)
        self.padding = padding

    def __call__(self, x: jax.Array) -> jax.Array:
        p = self.padding
        x = jnp.pad(x, ((0, 0), (p, p), (p, p), (0, 0)))
        height, width = x.shape[1] - 2, x.shape[2] - 2
        patches = [x[:, i : i + height, j : j + width] for i in range(3) for j in range(3)]
        return self.linear(jnp.concatenate(patches, axis=-1))


class Conv(eqx.Module):
    """A convolution without padding over [batch, height, width, channels], again as patches times a matrix."""

    linear: Linear
    kernel: int = eqx.field(static=True)
    stride: int = eqx.field(static=True)

    def __init__(self, key: jax.Array, channels: int, filters: int, kernel: int, stride: int, gain: float | None):
        self.linear = Linear(key, kernel**2 * channels, filters, gain)
        self.kernel, self.stride = kernel, stride

    def size(self, pixels: int) -> int:
        """How many patches fit along a side."""
        return (pixels - self.kernel) // self.stride + 1

    def __call__(self, x: jax.Array) -> jax.Array:
        k, s = self.kernel, self.stride
        height, width = (s * (self.size(n) - 1) + 1 for n in x.shape[1:3])
        patches = [x[:, i : i + height : s, j : j + width : s] for i in range(k) for j in range(k)]
        return self.linear(jnp.concatenate(patches, axis=-1))


class PReLU(eqx.Module):
    """max(x, 0) + slope * min(x, 0), one learned slope a channel."""

    slope: jax.Array

    def __init__(self, channels: int):
        self.slope = jnp.full(channels, 0.25)

    def __call__(self, x: jax.Array) -> jax.Array:
        return jnp.where(x > 0, x, self.slope * x)


class ImageTorso(eqx.Module):
    """One 3x3 convolution of 16 filters, then dense ReLU layers: the MinAtar networks.

    With `padded`, the convolution keeps the image's size and is followed by PReLU (CEQR-DQN); without, it is the
    MinAtar standard (no padding, ReLU).
    """

    conv: Conv3x3
    prelu: PReLU | None
    dense: list[Linear]
    features: int = eqx.field(static=True)

    def __init__(
        self,
        key: jax.Array,
        observation_shape: Sequence[int],
        hidden: Sequence[int],
        padded: bool,
        gain: float | None = ORTHOGONAL_GAIN,
    ):
        height, width, channels = observation_shape
        conv_key, dense_key = jax.random.split(key)
        self.conv = Conv3x3(conv_key, channels, 16, int(padded), gain)
        self.prelu = PReLU(16) if padded else None
        flat = 16 * height * width if padded else 16 * (height - 2) * (width - 2)
        self.dense = _linear_layers(dense_key, flat, hidden, gain)
        self.features = hidden[-1] if hidden else flat

    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.conv(as_float(x))
        x = self.prelu(x) if self.prelu is not None else jax.nn.relu(x)
        return _relu_chain(self.dense, x.reshape(len(x), -1))


class VectorTorso(eqx.Module):
    """Dense ReLU layers over a flat observation."""

    dense: list[Linear]
    features: int = eqx.field(static=True)

    def __init__(
        self,
        key: jax.Array,
        observation_shape: Sequence[int],
        hidden: Sequence[int],
        gain: float | None = ORTHOGONAL_GAIN,
    ):
        (size,) = observation_shape
        self.dense = _linear_layers(key, size, hidden, gain)
        self.features = hidden[-1] if hidden else size

    def __call__(self, x: jax.Array) -> jax.Array:
        return _relu_chain(self.dense, as_float(x))


class NatureTorso(eqx.Module):
    """Three convolutions, then dense ReLU layers: the network of Mnih et al. (2015) for 84 x 84 x 4 images."""

    convolutions: list[Conv]
    dense: list[Linear]
    features: int = eqx.field(static=True)

    def __init__(
        self,
        key: jax.Array,
        observation_shape: Sequence[int],
        hidden: Sequence[int],
        gain: float | None = ORTHOGONAL_GAIN,
    ):
        height, width, channels = observation_shape
        *conv_keys, dense_key = jax.random.split(key, 1 + len(NATURE_LAYERS))
        self.convolutions = []
        for conv_key, (filters, kernel, stride) in zip(conv_keys, NATURE_LAYERS, strict=True):
            conv = Conv(conv_key, channels, filters, kernel, stride, gain)
            self.convolutions.append(conv)
            height, width, channels = conv.size(height), conv.size(width), filters
        flat = height * width * channels
        self.dense = _linear_layers(dense_key, flat, hidden, gain)
        self.features = hidden[-1] if hidden else flat

    def __call__(self, x: jax.Array) -> jax.Array:
        x = as_float(x)
        for conv in self.convolutions:
            x = jax.nn.relu(conv(x))
        return _relu_chain(self.dense, x.reshape(len(x), -1))


Torso = ImageTorso | VectorTorso | NatureTorso


def torso(
    key: jax.Array,
    observation_shape: Sequence[int],
    hidden: Sequence[int],
    kind: str,
    gain: float | None = ORTHOGONAL_GAIN,
) -> Torso:
    """The torso that fits: a vector's, a large image's ([height, width, channels]), or, of that kind, a small one's."""
    if len(observation_shape) == 3 and min(observation_shape[:2]) >= LARGE_IMAGE:
        return NatureTorso(key, observation_shape, hidden, gain)
    if len(observation_shape) == 3:
        return ImageTorso(key, observation_shape, hidden, kind == "padded", gain)
    if len(observation_shape) == 1:
        return VectorTorso(key, observation_shape, hidden, gain)
    raise ValueError(
        f"An observation must be a vector or a [height, width, channels] image, not of shape "
        f"{tuple(observation_shape)}."
    )


def as_float(x: jax.Array) -> jax.Array:
    """Bytes, which are pixels, in [0, 1]; everything else as it is."""
    return x.astype(jnp.float32) / 255 if x.dtype == jnp.uint8 else x.astype(jnp.float32)


def _linear_layers(key: jax.Array, inputs: int, outputs: Sequence[int], gain: float | None) -> list[Linear]:
    sizes = (inputs, *outputs)
    keys = jax.random.split(key, max(len(outputs), 1))
    return [Linear(k, a, b, gain) for k, a, b in zip(keys, sizes, sizes[1:], strict=False)]


def _relu_chain(layers: Sequence[Linear], x: jax.Array) -> jax.Array:
    for layer in layers:
        x = jax.nn.relu(layer(x))
    return x


def parameter_count(params: object) -> int:
    """How many numbers a network learns."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))


# Features by which conjugate evidence counts, in control and in regression.

MOST_FEATURES = 256  # above, a random projection to as many keeps the matrices of evidence small


def phi_size(features: int) -> int:
    """How many features count, of so many units of the last hidden layer: at most MOST_FEATURES, and a constant."""
    return min(features, MOST_FEATURES) + 1


def projection(features: int, most: int = MOST_FEATURES) -> np.ndarray | None:
    """A fixed random projection [features, most], none where there are few features."""
    if features <= most:
        return None
    drawn = np.random.RandomState(0).standard_normal((features, most))
    drawn /= np.sqrt(most)  # in place: it may be large
    return drawn
