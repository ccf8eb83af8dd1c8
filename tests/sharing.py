"""Players that would trace the same programs share them: tracing one anew takes seconds, though nothing is compiled.

What a player compiles depends on its loop, and on its environment if that is compiled, too; not on its seeds.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import pytest

from ceqr.training.compiled import CompiledPlayer
from ceqr.training.host import HostPlayer


@contextmanager
def shared_programs() -> Iterator[None]:
    """For as long as it lasts, players of one kind and loop use the programs of the first of them."""
    kept: dict[Any, Any] = {}
    begin_compiled, begin_host, compile_both = CompiledPlayer.__init__, HostPlayer.__init__, CompiledPlayer.compile

    def first(of: Any, make: Callable[[], Any]) -> Any:
        if of not in kept:
            kept[of] = make()
        return kept[of]

    def init_compiled(self: CompiledPlayer, *arguments: Any) -> None:
        begin_compiled(self, *arguments)
        self.init_group = first((self.loop, self._env), lambda: jax.jit(self.init_group))  # pyright: ignore

    def init_host(self: HostPlayer, *arguments: Any) -> None:
        begin_host(self, *arguments)
        self.init_group = first((self.loop, "start"), lambda: jax.jit(self.init_group))  # pyright: ignore
        programs = {name: each for name, each in vars(self).items() if isinstance(each, jax.stages.Wrapped)}
        assert "_tick" in programs
        vars(self).update(first((self.loop, "host"), lambda: programs))

    def compile_once(self: CompiledPlayer) -> None:
        def make() -> Any:
            compile_both(self)
            return self._programs

        self._programs = first((self.loop, self._env, self.one_thread), make)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CompiledPlayer, "__init__", init_compiled)
        patch.setattr(CompiledPlayer, "compile", compile_once)
        patch.setattr(HostPlayer, "__init__", init_host)
        yield
