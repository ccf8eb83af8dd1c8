"""The agents by name. Each is one file; a name is looked up here, and its file imported when it is used."""

import importlib
from typing import TYPE_CHECKING, get_type_hints

from ceqr.errors import UserError, nearest

if TYPE_CHECKING:
    from ceqr.agents.base import Agent, Hyperparameters

AGENTS: "dict[str, str | type[Agent]]" = {
    "ceqr-dqn": "ceqr.agents.ceqr_dqn:CEQRDQN",
    "dqn": "ceqr.agents.dqn:DQN",
    "qr-dqn": "ceqr.agents.qr_dqn:QRDQN",
    "bootstrapped-dqn": "ceqr.agents.bootstrapped_dqn:BootstrappedDQN",
    "duvn": "ceqr.agents.duvn:DUVN",
    "ua-dqn": "ceqr.agents.ua_dqn:UADQN",
}


def register(name: str, agent: "type[Agent]") -> None:
    """Makes an agent known by a name, to the command line too if called before `ceqr.cli.main`."""
    if name in AGENTS:
        raise ValueError(f"There is already an agent {name!r}.")
    AGENTS[name] = agent


def agent_classes(name: str) -> "tuple[type[Agent], type[Hyperparameters]]":
    """The class of an agent, and that of its hyperparameters: the type of its field `hyper`."""
    if name not in AGENTS:
        raise UserError(nearest("agent", name, AGENTS))
    agent = AGENTS[name]
    if isinstance(agent, str):
        module, _, attribute = agent.partition(":")
        agent = getattr(importlib.import_module(module), attribute)
    return agent, get_type_hints(agent)["hyper"]
