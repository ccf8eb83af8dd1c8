"""The random streams of a seed, apart by construction: every use has a number of its own in the seed's key.

Splitting a key is folding 0, 1, ... into it, so a key that others are folded from must never be split as well; and two
uses that fold numbers of their own choice into one key meet sooner or later. Here all numbers stand in one list.
"""

from enum import IntEnum

import jax


class Stream(IntEnum):
    """What a seed's randomness is used for."""

    AGENT = 0  # initial weights, and what else an agent draws once
    ENVIRONMENT = 1  # the first reset
    MEMORY = 2  # what an agent draws for its first episode
    FRAMES = 3  # everything in a frame of training; the frame's number is folded in
    RESETS = 4  # resets between two frames, where an environment could not be saved
    EVALUATION = 5
    PREDICTION = 6
    WORLD = 7  # what an environment draws once for all episodes of a seed
    CALIBRATION = 8
    MONITORING = 9
    DIAGNOSIS = 10
    WATCHING = 11


def stream(seed: int | jax.Array, which: Stream) -> jax.Array:
    """The key of one use of a seed."""
    return jax.random.fold_in(jax.random.key(seed), int(which))


def lane_keys(key: jax.Array, lanes: int) -> jax.Array:
    """Keys for environments side by side; one alone has the key itself."""
    return key[None] if lanes == 1 else jax.random.split(key, lanes)
