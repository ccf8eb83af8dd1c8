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


class UnknownAgent(UserError):
    """There is no agent of a name; it may be one from outside that was not imported."""


def register(name: str, agent: "type[Agent]") -> None:
    """Makes an agent known by a name, to the command line too if `--import` names its module.

    Examples:
        >>> from ceqr import agents
        >>> from ceqr.agents.dqn import DQN
        >>> agents.register("my-dqn", DQN)
        >>> agents.agent_classes("my-dqn")[0].__name__
        'DQN'
        >>> _ = agents.AGENTS.pop("my-dqn")
    """
    if name in AGENTS:
        raise ValueError(f"There is already an agent {name!r}.")
    AGENTS[name] = agent


def agent_classes(name: str) -> "tuple[type[Agent], type[Hyperparameters]]":
    """The class of an agent, and that of its hyperparameters: the type of its field `hyper`.

    Examples:
        >>> from ceqr import agents
        >>> agent, hyperparameters = agents.agent_classes("qr-dqn")
        >>> agent.__name__, hyperparameters().discount
        ('QRDQN', 0.99)
    """
    if name not in AGENTS:
        raise UnknownAgent(nearest("agent", name, AGENTS))
    agent = AGENTS[name]
    if isinstance(agent, str):
        module, _, attribute = agent.partition(":")
        agent = getattr(importlib.import_module(module), attribute)
    return agent, get_type_hints(agent)["hyper"]
