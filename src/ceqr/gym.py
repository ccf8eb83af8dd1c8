"""MinAtar under our protocols as Gymnasium environments: `ceqr/Breakout-v0` and the other four.

They are registered when `ceqr` and `gymnasium` have both been imported, in whichever order.
"""

from ceqr.envs import MINATAR_GAMES

IDS = {f"ceqr/{game.title().replace('_', '')}-v0": game for game in MINATAR_GAMES}


def register() -> None:
    """Makes the ids known to Gymnasium; again is no harm."""
    from gymnasium.envs.registration import register, registry

    for name, game in IDS.items():
        if name not in registry:
            register(name, entry_point="ceqr.envs.minatar_gymnasium:MinAtarEnv", kwargs={"game": game})
