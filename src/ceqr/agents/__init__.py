"""The agents by name. Each is one file; a name is looked up here, and its file imported when it is used."""

import importlib
from typing import TYPE_CHECKING

from ceqr.envs import nearest
from ceqr.errors import UserError

if TYPE_CHECKING:
    from ceqr.agents.base import Agent, Hyperparameters

# name: (module, agent class, class of its hyperparameters)
AGENTS: dict[str, tuple[str, str, str]] = {
    "ceqr-dqn": ("ceqr.agents.ceqr_dqn", "CEQRDQN", "CEQRDQNHyperparameters"),
}


def agent_classes(name: str) -> "tuple[type[Agent], type[Hyperparameters]]":
    """The classes of an agent and of its hyperparameters."""
    if name not in AGENTS:
        raise UserError(nearest("agent", name, AGENTS))
    module, agent, hyper = AGENTS[name]
    loaded = importlib.import_module(module)
    return getattr(loaded, agent), getattr(loaded, hyper)
