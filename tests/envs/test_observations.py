"""What a network reads of arrays of any shape: it is always something that a torso can be built for."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ceqr import networks
from ceqr.envs.observations import ObservationFormat

SIZES = st.one_of(st.integers(1, 12), st.sampled_from([35, 36, 40, 84]))
DTYPES = st.sampled_from([np.bool_, np.uint8, np.int32, np.float32, np.float64])


@settings(max_examples=60, deadline=None)
@example((1, 2, 2), np.float32)
@example((3, 8, 5), np.uint8)
@example((2, 2, 1), np.float32)
@example((), np.float64)
@given(st.lists(SIZES, max_size=3).map(tuple), DTYPES)
def test_every_shape_fits_a_torso(shape: tuple[int, ...], dtype: Any) -> None:
    form = ObservationFormat.of_array(shape, dtype)
    batch = np.random.default_rng(0).integers(2, size=(2, *shape)).astype(dtype)
    seen = form.encode(batch)
    assert seen.shape == (2, *form.network_shape)
    assert seen.dtype == form.network_dtype
    assert np.sort(seen, axis=None).tolist() == np.sort(batch, axis=None).tolist()  # nothing lost, nothing added
    np.testing.assert_array_equal(np.asarray(form.encode(jnp.asarray(batch))), seen)
    for kind in ("standard", "padded"):
        torso = jax.eval_shape(lambda key, kind=kind: networks.torso(key, form.network_shape, (4,), kind), KEY)
        assert jax.eval_shape(lambda net, x: net(x), torso, seen).shape == (2, 4)
    # What is read as it is, is read again as it is.
    assert ObservationFormat.of_network(form.network_shape, form.network_dtype).network_shape == form.network_shape


KEY = jax.random.key(0)


@pytest.mark.parametrize(
    ("shape", "kind", "network_shape"),
    [
        ((1, 2, 2), "vector", (4,)),  # too small for an image
        ((3, 8, 5), "channels-first", (8, 5, 3)),
        ((8, 5, 3), "image", (8, 5, 3)),
        ((5, 5, 5), "image", (5, 5, 5)),
        ((2, 3, 3), "channels-first", (3, 3, 2)),
        ((3, 3, 2), "image", (3, 3, 2)),
        ((40, 2, 40), "vector", (3_200,)),
    ],
)
def test_which_axis_holds_channels(shape: tuple[int, ...], kind: str, network_shape: tuple[int, ...]) -> None:
    form = ObservationFormat.of_array(shape, np.float32)
    assert (form.kind, form.network_shape) == (kind, network_shape)


def test_components_that_stay_small_are_stretched() -> None:
    """MountainCar: a position between -1.2 and 0.6, and a speed of at most 0.07, which no layer would see."""
    form = ObservationFormat.of_array((2,), np.float32, np.array([-1.2, -0.07]), np.array([0.6, 0.07]))
    np.testing.assert_allclose(form.encode(np.array([[-0.5, 0.035]], np.float32)), [[-0.5, 0.5]], rtol=1e-6)
    assert ObservationFormat.from_json(form.to_json()) == form
    rest = ObservationFormat.of_array((4,), np.float32, np.array([-np.inf, 0, -8, 0]), np.array([np.inf, 1, 8, 0]))
    assert rest == ObservationFormat.of_array((4,), np.float32)
    assert ObservationFormat.of_array((2,), np.uint8, 0, 0.5).scale == ()  # pixels and bits are left alone
    old = {k: v for k, v in form.to_json().items() if k != "scale"}
    assert ObservationFormat.from_json(old).scale == ()  # saved before there was any
