"""Sums of very many numbers in float32."""

from typing import NamedTuple, Self

import jax


class Sum(NamedTuple):
    """A sum of many numbers, compensated (Kahan): a plain one in float32 is off by a percent after a million."""

    total: jax.Array
    excess: jax.Array  # what rounding has added to the total so far

    def add(self, number: jax.Array) -> Self:
        number = number - self.excess
        total = self.total + number
        return self._replace(total=total, excess=(total - self.total) - number)
