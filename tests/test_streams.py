"""Random streams: whatever one seed draws from, no two uses share a key."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ceqr import streams
from ceqr.agents.base import FROZEN
from ceqr.streams import Stream, lane_keys, stream

SEEDS = [0, 1, 2, 12345, 2**31 - 2]
# The first frames, where splits would meet them; one that a number of old met; the last ones that are counted.
FRAMES = np.concatenate([np.arange(300), 189_927 + np.arange(-2, 3), 2**31 - 1 - np.arange(3)]).astype(np.int32)
FOLDED = [stream for stream in Stream if stream is not Stream.FRAMES]


def _data(keys: jax.Array) -> set[tuple[int, ...]]:
    return set(map(tuple, np.asarray(jax.random.key_data(keys)).reshape(-1, 2).tolist()))


@jax.jit
def _fold(key: jax.Array, numbers: jax.Array) -> jax.Array:
    return jax.vmap(lambda number: jax.random.fold_in(key, number))(numbers)


@jax.jit
def _split_all(keys: jax.Array) -> jax.Array:
    return jax.vmap(lambda key: jax.random.split(key, 4))(keys)


def test_every_use_has_a_number_of_its_own() -> None:
    numbers = [each.value for each in Stream]
    assert sorted(set(numbers)) == numbers
    assert list(Stream.__members__) == [each.name for each in Stream]  # and no name is a second one of a number
    assert min(numbers) >= 0
    keys = jnp.stack([stream(seed, which) for seed in SEEDS for which in Stream])
    assert len(_data(keys)) == len(SEEDS) * len(Stream)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_other_stream_ever_meets_a_frame(seed: int) -> None:
    """As a frame uses its key (folded, then split), and as all others use theirs: plain, split, folded, and both."""
    frames = _fold(stream(seed, Stream.FRAMES), FRAMES)
    training = _data(frames) | _data(_split_all(frames))
    assert len(training) == 5 * len(FRAMES)
    seen = set(training)
    for which in FOLDED:
        key = stream(seed, which)
        folded = _fold(key, FRAMES)
        ours = _data(key) | _data(jax.random.split(key, 300)) | _data(folded) | _data(_split_all(folded))
        assert len(ours) == 1 + 5 * len(FRAMES)  # the first 300 folds are the splits
        assert not ours & seen, which.name
        seen |= ours


def test_splitting_is_folding_small_numbers() -> None:
    """So a key that numbers are folded into must not be split as well, unless they are out of reach."""
    key = stream(0, Stream.FRAMES)
    assert _data(jax.random.split(key, 300)) == _data(_fold(key, np.arange(300, dtype=np.int32)))
    assert jax.random.fold_in(key, 3) == jax.random.split(key, 5)[3]
    assert "Splitting a key is folding 0, 1, ... into it" in (streams.__doc__ or "")
    assert FROZEN >= 2**31  # an agent splits its initial key, into fewer than that


def test_lanes_have_keys_of_their_own_and_one_alone_the_key_itself() -> None:
    key = stream(7, Stream.ENVIRONMENT)
    assert _data(lane_keys(key, 1)) == _data(key)
    assert lane_keys(key, 1).shape == (1,)
    assert len(_data(lane_keys(key, 5)) | _data(key)) == 6
