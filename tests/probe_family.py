"""Makes probes known by name: `ceqr train --import tests.probe_family --env probe/noisy-chain`."""

from typing import Any

from ceqr.envs import Family, register
from tests.probes import Grid, NoisyChain

# `generous-chain` is the same game with other rules: whatever one does pays ten times as much.
PROBES = {"noisy-chain": NoisyChain(), "generous-chain": NoisyChain(pay=15.0, consolation=5.0), "grid": Grid()}


def make(name: str) -> Any:
    return PROBES[name]


register(Family(prefix="probe", make=make, compiled=True, about="environments of our tests", names=tuple(PROBES)))
