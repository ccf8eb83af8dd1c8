"""The regressor's network and its loss.

A network is a plain dictionary of arrays. Its forward pass serves JAX in training (float32, compiled) and NumPy in
prediction (float64, nothing to compile, and the same digits however the rows are batched).
"""

from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from ceqr import losses
from ceqr.losses import NIG
from ceqr.regression import evidence

Parameters = dict[str, Any]
AnyArray = TypeVar("AnyArray", jax.Array, np.ndarray)

PARAMETER_BYTES = 48  # each, at the peak of a fit: drawn, trained, averaged, Adam's two moments, the best, gradients
UNIT_BYTES = 12  # of each hidden unit and row of a batch: its value, its gradient, and what is between them
SHARE_RATE = 0.01  # of the running average of the interval's coverage: about the last 100 batches


class Objective(NamedTuple):
    """Which loss is minimised: what a compiled program depends on."""

    coverage: float
    calibration: str  # a variant of `losses.interval_calibration`
    location: str  # "calibrated" or "joint"
    evidence: str  # "conjugate" or "learned"
    activation: str

    @property
    def levels(self) -> tuple[float, float]:
        return (1 - self.coverage) / 2, (1 + self.coverage) / 2

    @property
    def outputs(self) -> int:
        """A point, and for both percentiles gamma, alpha, beta, and nu where it is learned."""
        return 1 + 2 * (4 if self.evidence == "learned" else 3)


class Strengths(NamedTuple):
    """Numbers in the loss that need no program of their own."""

    lambda_reg: Any
    lambda_cal: Any
    nu: Any  # of a training row, where it is not learned


def _relu(x: AnyArray) -> AnyArray:
    return x * (x > 0)


def _silu(x: AnyArray) -> AnyArray:
    # x times the logistic function, written with tanh, which does not overflow.
    return 0.5 * x * (1 + _tanh(0.5 * x))


def _tanh(x: AnyArray) -> AnyArray:
    return jnp.tanh(x) if isinstance(x, jax.Array) else np.tanh(x)


ACTIVATIONS = {"relu": _relu, "silu": _silu, "tanh": _tanh}


def initial(rng: np.random.RandomState, inputs: int, hidden: tuple[int, ...], outputs: int) -> Parameters:
    """He's initial weights, and a head that starts near zero.

    Inputs are standardised: biases of the first layer spread its kinks over them. With biases of zero, all the kinks
    of a function of one input would sit at its mean.
    """
    layers = []
    for fan_in, fan_out in zip((inputs, *hidden), hidden, strict=False):
        spread = 1 / np.sqrt(fan_in) if layers else 1.0
        weight = rng.standard_normal((fan_in, fan_out)) * np.sqrt(2 / fan_in)
        layers.append({"weight": weight, "bias": spread * rng.uniform(-1, 1, fan_out)})
    features = hidden[-1] if hidden else inputs
    head = {"weight": 0.1 * rng.standard_normal((features, outputs)) / np.sqrt(features), "bias": np.zeros(outputs)}
    return jax.tree.map(lambda x: x.astype(np.float32), {"layers": layers, "head": head})


def training_bytes(inputs: int, hidden: tuple[int, ...], outputs: int, batch: int) -> int:
    """About how much memory training such a network takes, the data aside."""
    sizes = (inputs, *hidden, outputs)
    parameters = sum((fan_in + 1) * fan_out for fan_in, fan_out in pairwise(sizes))
    return PARAMETER_BYTES * parameters + UNIT_BYTES * batch * sum(hidden) + evidence.projection_bytes(sizes[-2])


def features(parameters: Parameters, x: AnyArray, activation: str) -> AnyArray:
    """The last hidden layer [B, F] of inputs [B, D]; the inputs themselves without a hidden layer."""
    for layer in parameters["layers"]:
        x = ACTIVATIONS[activation](x @ layer["weight"] + layer["bias"])
    return x


def heads(parameters: Parameters, phi: AnyArray) -> AnyArray:
    """Raw outputs [B, outputs] of features [B, F]."""
    return phi @ parameters["head"]["weight"] + parameters["head"]["bias"]


def split(raw: AnyArray) -> tuple[AnyArray, AnyArray]:
    """Point [B], and raw gamma, alpha, beta (and nu) as [3 or 4, B, 2], of raw outputs [B, outputs]."""
    return raw[:, 0], raw[:, 1:].reshape(len(raw), -1, 2).transpose(1, 0, 2)


def nig(raw: jax.Array, nu: float | jax.Array) -> NIG:
    """NIG parameters [B, 2, 1] of raw ones; where they have no nu, it is `nu`."""
    gamma, alpha, beta, *learned = raw[..., None]
    if learned:
        return losses.nig_from_raw(gamma, learned[0], alpha, beta)
    return losses.nig_from_raw(gamma, gamma, alpha, beta)._replace(nu=jnp.full_like(gamma, nu))


def loss(
    parameters: Parameters,
    share: jax.Array,
    x: jax.Array,
    y: jax.Array,
    objective: Objective,
    strengths: Strengths,
) -> tuple[jax.Array, jax.Array]:
    """Squared error of the point + evidential + interval calibration, and the new running share.

    x: [B, D]. y: [B]. share: the running average of the share of targets inside the interval. With location
    "calibrated", no gradient flows into gamma from the evidential term.
    """
    point, raw = split(heads(parameters, features(parameters, x, objective.activation)))
    belief = nig(raw, strengths.nu)
    lower, upper, target = belief.gamma[:, 0], belief.gamma[:, 1], y[:, None]
    inside = jnp.mean((lower <= target) & (target <= upper), dtype=jnp.float32)
    share = (1 - SHARE_RATE) * share + SHARE_RATE * inside
    interval = losses.interval_calibration(
        lower, upper, target, objective.calibration, strengths.lambda_cal, objective.coverage, share[None]
    )
    if objective.location == "calibrated":
        belief = belief._replace(gamma=jax.lax.stop_gradient(belief.gamma))
    evidential = losses.evidential(target, belief, strengths.lambda_reg, levels=objective.levels)
    return jnp.mean((point - y) ** 2) + evidential + interval, share


def score(parameters: Parameters, x: jax.Array, y: jax.Array, weight: jax.Array, objective: Objective) -> jax.Array:
    """What early stopping watches: the weighted mean of squared error and interval score, both proper."""
    point, raw = split(heads(parameters, features(parameters, x, objective.activation)))
    lower, upper = raw[0].T
    outside = jax.nn.relu(lower - y) + jax.nn.relu(y - upper)
    each = (point - y) ** 2 + (upper - lower) + 2 / (1 - objective.coverage) * outside
    return jnp.sum(weight * each) / jnp.sum(weight)
