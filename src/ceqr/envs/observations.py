"""How an environment's observations become what a network reads: vectors, or images with channels last.

A format is plain data, so that a saved agent can check and convert observations without its environment.
"""

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ceqr.networks import LARGE_IMAGE

SMALL_IMAGE = 3  # pixels a side, of which a 3x3 convolution without padding leaves one
KINDS = ("vector", "image", "grey", "channels-first", "frames", "number")


@dataclass(frozen=True)
class ObservationFormat:
    """One kind of observation, as the environment gives it."""

    kind: str  # one of KINDS
    shape: tuple[int, ...]  # as given; () for a number
    dtype: str  # as given
    start: int = 0  # of a number: the least
    count: int = 0  # of a number: how many there are
    scale: tuple[float, ...] = ()  # of a vector: what its components are multiplied with; () for nothing

    @classmethod
    def of_array(cls, shape: tuple[int, ...], dtype: Any, low: Any = None, high: Any = None) -> "ObservationFormat":
        """The format of arrays of that shape, between bounds if there are any.

        Which axis holds channels is told by the sizes.

        An image has at least 3 x 3 pixels. The first axis holds channels if it is the shortest, otherwise the last one
        does, so that (3, 8, 5) is 8 x 5 pixels of 3 channels, and (8, 5, 3), too. All else is a vector.
        """
        dtype = np.dtype(dtype)
        kind = "vector"
        if len(shape) == 2 and dtype == np.uint8 and min(shape) >= LARGE_IMAGE:
            kind = "grey"
        elif len(shape) == 3 and shape[0] < min(shape[1:]) and min(shape[1:]) >= SMALL_IMAGE:
            kind = "channels-first"
        elif len(shape) == 3 and min(shape[:2]) >= SMALL_IMAGE:
            kind = "image"
        elif len(shape) == 4 and min(shape[1:3]) >= LARGE_IMAGE:
            kind = "frames"
        scale = ()
        if kind == "vector" and dtype.kind == "f" and low is not None and high is not None:
            scale = _stretch(np.broadcast_to(low, shape).ravel(), np.broadcast_to(high, shape).ravel())
        return cls(kind, tuple(int(n) for n in shape), dtype.name, scale=scale)

    @classmethod
    def of_network(cls, shape: tuple[int, ...], dtype: Any) -> "ObservationFormat":
        """The format of what a network reads as it is: a vector, or an image with channels last."""
        return cls("image" if len(shape) == 3 else "vector", tuple(int(n) for n in shape), np.dtype(dtype).name)

    @classmethod
    def of_number(cls, start: int, count: int) -> "ObservationFormat":
        """Whole numbers from `start` on."""
        return cls("number", (), "int64", int(start), int(count))

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "shape": list(self.shape), "scale": list(self.scale)}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "ObservationFormat":
        scale = tuple(float(x) for x in values.get("scale", ()))
        made = cls(**{**values, "shape": tuple(int(n) for n in values["shape"]), "scale": scale})
        if made.kind not in KINDS:
            raise ValueError(f"There is no kind of observation {made.kind!r}.")
        np.dtype(made.dtype)
        return made

    @cached_property
    def network_shape(self) -> tuple[int, ...]:
        """What a network reads: [features] or [height, width, channels]."""
        shape = self.shape
        if self.kind == "number":
            return (self.count,)
        if self.kind == "image":
            return shape
        if self.kind == "grey":
            return (*shape, 1)
        if self.kind == "channels-first":
            return (*shape[1:], shape[0])
        if self.kind == "frames":  # [frames, height, width, colours]
            return (*shape[1:3], shape[0] * shape[3])
        return (int(np.prod(shape)),)

    @cached_property
    def network_dtype(self) -> np.dtype:
        """Bits stay bits and bytes stay bytes, which is what replay keeps; all else is float32."""
        if self.kind == "number":
            return np.dtype(bool)
        return self._dtype if self._dtype in (np.dtype(bool), np.dtype(np.uint8)) else np.dtype(np.float32)

    @cached_property
    def _dtype(self) -> np.dtype:
        return np.dtype(self.dtype)

    def encode(self, observations: Any) -> Any:
        """What a network reads, from a batch of observations as the environment gives them: NumPy's or JAX's arrays."""
        xp = observations.__array_namespace__()
        if self.kind == "number":
            return xp.arange(self.count) == (observations - self.start)[:, None]
        if self.kind == "channels-first":
            observations = xp.moveaxis(observations, 1, -1)
        elif self.kind == "frames":
            observations = xp.moveaxis(observations, 1, 3)
        read = xp.reshape(observations, (len(observations), *self.network_shape)).astype(self.network_dtype)
        return read * xp.asarray(self.scale, dtype=read.dtype) if self.scale else read

    def read(self, observation: Any) -> tuple[np.ndarray, bool]:
        """A batch for the network from what a caller gave, and whether that was a single observation.

        Raises ValueError, naming what came and what was expected, for anything but one observation or a batch.
        """
        try:
            given = np.asarray(observation)
        except ValueError as error:
            raise ValueError(f"An observation must be an array, {self.describe()}: {error}") from error
        single = given.shape == self.shape
        if not single and given.shape[1:] != self.shape:
            raise ValueError(
                f"The observation has shape {given.shape}; expected is {self.describe()}, or a batch of shape "
                f"{('n', *self.shape)}.".replace("'n'", "n")
            )
        if given.ndim == len(self.shape) + 1 and len(given) == 0:
            raise ValueError(f"The batch holds no observation: its shape is {given.shape}.")
        if given.dtype != self._dtype and not np.can_cast(given.dtype, self._dtype, "same_kind"):
            raise ValueError(f"The observation has dtype {given.dtype}; expected is {self.describe()}.")
        batch = given[None] if single else given
        if self.kind == "number" and not ((batch >= self.start) & (batch < self.start + self.count)).all():
            raise ValueError(f"The observation is {observation}; expected is {self.describe()}.")
        if self.network_dtype != np.float32:
            return self.encode(batch), single
        if given.dtype == np.float32:
            encoded = self.encode(batch)
        else:
            with np.errstate(over="ignore"):  # what is too large for float32 becomes infinite, and is refused below
                encoded = self.encode(batch)
        if not np.isfinite(encoded).all():
            raise ValueError(f"The observation holds NaN or an infinite number; expected is {self.describe()}, finite.")
        return encoded, single

    def describe(self) -> str:
        if self.kind == "number":
            return f"a whole number from {self.start} to {self.start + self.count - 1}"
        return f"shape {self.shape} of dtype {self.dtype}"


def _stretch(low: np.ndarray, high: np.ndarray) -> tuple[float, ...]:
    """Factors that make components which stay within (-b, b), b < 1, reach from -1 to 1; () if there are none.

    A network's first layer gives all components the same weight: it would hardly see MountainCar's speed, 0.07 at most.
    """
    bound = np.maximum(np.abs(low), np.abs(high)).astype(np.float64)
    scale = np.where((bound > 0) & (bound < 1), 1 / np.where(bound > 0, bound, 1), 1.0)
    return tuple(float(x) for x in scale) if (scale != 1).any() else ()
