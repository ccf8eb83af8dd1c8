"""Makes a probe known by name: `ceqr train --import tests.probe_family --env probe/noisy-chain`."""

from typing import Any

from ceqr.envs import Family, register
from tests.probes import NoisyChain


def make(name: str) -> Any:
    return NoisyChain()


register(Family(prefix="probe", make=make, compiled=True, about="environments of our tests", names=("noisy-chain",)))
