"""Packed trees: the same tree again, out of few arrays, inside a program and outside."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ceqr.training.packing import SMALL, Packing


def _tree() -> dict[str, Any]:
    """All types that a loop's state has, empty parts, one array at the limit and one above."""
    return {
        "key": jax.random.split(jax.random.key(3), 2),
        "one key": jax.random.key(4),
        "nothing": (),
        "no rows": jnp.zeros((0, 3)),
        "number": jnp.float32(1.5),
        "matrix": jnp.arange(6.0).reshape(2, 3),
        "counter": jnp.int32(7),
        "bits": jnp.array([1, 2**32 - 1], jnp.uint32),
        "flags": jnp.array([[True, False], [False, True]]),
        "flag": jnp.bool_(True),
        "bytes": jnp.arange(5, dtype=jnp.uint8),
        "nan": jnp.array([jnp.nan, jnp.inf, -0.0]),
        "at the limit": jnp.arange(SMALL, dtype=jnp.float32).reshape(2, -1),
        "large": jnp.arange(SMALL + 1, dtype=jnp.float32)[None],
        "large bytes": jnp.ones((3, SMALL), jnp.uint8),
    }


def _bits(tree: Any) -> Any:
    def leaf(x: Any) -> tuple[Any, ...]:
        x = jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
        return x.shape, x.dtype, np.asarray(x).tobytes()

    return jax.tree.map(leaf, tree)


@pytest.fixture(scope="module")
def packing() -> Packing[Any]:
    return Packing(jax.eval_shape(_tree))


def test_a_tree_comes_back(packing: Packing[Any]) -> None:
    tree = _tree()
    packed = packing.pack(tree)
    assert _bits(packing.unpack(packed)) == _bits(tree)


def test_it_is_few_arrays_and_large_ones_are_not_copied(packing: Packing[Any]) -> None:
    tree = _tree()
    packed = packing.pack(tree)
    # Float32, int32, uint32 (with the keys), booleans and bytes; and two that are large.
    assert len(packed) == 5 + 2
    assert sum(array is tree["large"] or array is tree["large bytes"] for array in packed) == 2
    back = packing.unpack(packed)
    assert back["large"] is tree["large"]


def test_inside_a_program(packing: Packing[Any]) -> None:
    tree = _tree()

    @jax.jit
    def program(packed: Any) -> Any:
        tree = packing.unpack(packed)
        return packing.pack({**tree, "counter": tree["counter"] + 1, "key": jax.vmap(jax.random.split)(tree["key"])[0]})

    back = packing.unpack(program(packing.pack(tree)))
    assert int(back["counter"]) == 8
    assert (back["key"] == jax.random.split(tree["key"][0])).all()
    assert _bits({**back, "counter": 0, "key": 0} | {k: tree[k] for k in ("counter", "key")}) == _bits(tree)


def test_numpys_arrays_stay_numpys(packing: Packing[Any]) -> None:
    """What a tick tells the host is unpacked there: by JAX, each number would take longer than the tick."""
    tree = {"action": jnp.array([[1, 2]], jnp.int32), "ended": jnp.array([[True, False]]), "length": jnp.int32(4)}
    small = Packing(tree)
    back = small.unpack([np.asarray(array) for array in small.pack(tree)])
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(back))
    jax.tree.map(np.testing.assert_array_equal, back, tree)


def test_a_tree_of_another_structure_is_not_packed(packing: Packing[Any]) -> None:
    tree = _tree()
    del tree["number"]
    with pytest.raises(ValueError, match="zip"):
        packing.pack(tree)


def test_a_type_with_one_small_array_alone() -> None:
    tree = {"matrix": jnp.ones((2, 3)), "flag": jnp.bool_(False)}
    packing = Packing(tree)
    assert _bits(packing.unpack(packing.pack(tree))) == _bits(tree)


def test_nothing_at_all() -> None:
    packing: Packing[Any] = Packing(((), {}))
    assert packing.pack(((), {})) == []
    assert packing.unpack([]) == ((), {})
