"""Our games as Gymnasium environments: `ceqr/Breakout-v0` and MinAtar's others, `ceqr/MazeTraps-v0`, `MazeCliff-v0`.

They are registered when `ceqr` and `gymnasium` have both been imported, in whichever order. Importing Gymnasium
ourselves would double the time that `import ceqr` takes.
"""

import importlib.abc
import sys
from collections.abc import Sequence
from typing import Any

from ceqr.envs import FAMILIES, MINATAR_GAMES

MAZES = {f"ceqr/Maze{name.title()}-v0": name for name in FAMILIES["maze"].names}
IDS = {f"ceqr/{game.title().replace('_', '')}-v0": game for game in MINATAR_GAMES}


def register() -> None:
    """Makes the ids known to Gymnasium; again is no harm."""
    from gymnasium.envs.registration import register, registry

    for name, game in IDS.items():
        if name not in registry:
            register(name, entry_point="ceqr.envs.minatar_gymnasium:MinAtarEnv", kwargs={"game": game})
    for name, maze in MAZES.items():
        if name not in registry:
            register(name, entry_point="ceqr.envs.maze_gymnasium:MazeEnv", kwargs={"maze": maze})


def register_when_imported() -> None:
    """Registers now if Gymnasium has been imported, else as soon as it is."""
    if "gymnasium" in sys.modules:
        register()
    else:
        sys.meta_path.insert(0, _WhenGymnasiumComes())


class _WhenGymnasiumComes(importlib.abc.MetaPathFinder):
    """Finds Gymnasium as the others would, and registers our environments once it has been executed.

    It stays until then: whoever asks for the spec alone (`importlib.util.find_spec`) imports nothing.
    """

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> Any:
        if fullname != "gymnasium":
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, (finder.find_spec(fullname, path, target) for finder in others)), None)
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def load_and_register(module: Any) -> None:
            load(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            register()

        spec.loader.exec_module = load_and_register
        return spec
