"""Strange states: what is changed and what is left, where other games are, and what replay has seen."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ceqr import envs
from ceqr.diagnostics.ood import DEVIATIONS, FLIPPED, noisy, other_games, shuffled, unseen, wander
from ceqr.diagnostics.visits import as_stored, visited
from ceqr.replay import LaneReplay

RNG = np.random.default_rng(3)


def test_shuffled_pixels_keep_their_channels() -> None:
    images = np.zeros((40, 5, 5, 3), np.uint8)
    images[..., 0] = RNG.permuted(np.tile(np.arange(25), (40, 1)), axis=1).reshape(40, 5, 5)
    images[..., 1:] = images[..., :1]
    mixed = shuffled(images, RNG)
    np.testing.assert_array_equal(mixed[..., 1], mixed[..., 0])
    np.testing.assert_array_equal(np.sort(mixed.reshape(40, -1)), np.sort(images.reshape(40, -1)))
    kept = (mixed[..., 0] == images[..., 0]).mean()
    assert kept < 0.2  # one in 25 stays by chance
    vectors = RNG.normal(size=(40, 6)).astype(np.float32)
    np.testing.assert_array_equal(np.sort(shuffled(vectors, RNG)), np.sort(vectors))
    assert (shuffled(vectors, RNG) != vectors).any(1).mean() > 0.9


@pytest.mark.parametrize("kind", FLIPPED)
def test_noise(kind: str) -> None:
    bits = RNG.random((100, 10, 10, 4)) < 0.1
    assert (noisy(bits, kind, RNG) ^ bits).mean() == pytest.approx(FLIPPED[kind], rel=0.1)
    vectors = (np.array([1.0, 10.0, 100.0]) * RNG.normal(size=(4_000, 3)) + 5).astype(np.float32)
    vectors[:, 0] = 1.0  # never varies
    moved = noisy(vectors, kind, RNG)
    assert moved.dtype == np.float32
    deviation = (moved - vectors).std(0)
    np.testing.assert_allclose(deviation, DEVIATIONS[kind] * np.array([55, 10, 100]), rtol=0.1)
    grey = np.tile(np.array([0, 255], np.uint8), (50, 1)) // np.array([[1], [2]] * 25, np.uint8)
    assert noisy(grey, kind, RNG).dtype == np.uint8


def test_other_games_have_the_same_channels() -> None:
    for name, others in {
        "minatar/breakout": ["minatar/asterix"],
        "minatar/seaquest": [],
    }.items():
        assert other_games(name, envs.make(name)) == others
    strange = wander("minatar/asterix", 0, 3)
    assert strange.observation.shape[1:] == (10, 10, 4)
    assert set(strange.episode) == {0, 1, 2}
    flat = strange.observation.reshape(len(strange.observation), -1)
    assert len(np.unique(flat, axis=0)) > 10
    np.testing.assert_array_equal(wander("minatar/asterix", 0, 3).observation, strange.observation)


def test_what_replay_holds() -> None:
    """A ring of 6 in each of two lanes, after ten transitions, the fourth of them truncated in lane 0."""
    replay = LaneReplay(12, 1, (9,), jnp.bool_, lanes=2)
    state, add = replay.init(), jax.jit(replay.add)
    bits = np.array([[int(b) for b in f"{n:09b}"] for n in range(40)], bool)
    for n in range(10):
        number = np.array([n, 20 + n])
        cut = np.array([n == 3, False])
        state = add(state, bits[number], number % 3, np.zeros(2), np.zeros(2, bool), cut, bits[number + 1])
    found = visited(state)
    held = [int("".join(str(int(b)) for b in np.unpackbits(row)[:9]), 2) for row in found.observation]
    assert sorted(held) == [*range(4, 10), *range(24, 30)]
    np.testing.assert_array_equal(found.action, np.array(held) % 3)
    states = bits[[0, 4, 9, 10, 25]]
    np.testing.assert_array_equal(unseen(as_stored(states), found.observation), [True, False, False, True, False])
