"""The documentation: its examples run, every public name is in it, and every page is in its navigation.

The site itself is built, and its links are followed, by `make docs`.
"""

import doctest
import importlib
import inspect
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tools.docs import build, equations
from tools.docs.links import broken

import ceqr
from ceqr import CEQRDQN, envs
from ceqr.cli import main
from tests.conftest import TINY

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs" / "api"
DIRECTIVE = re.compile(r"^::: ([\w.]+)$", re.M)
SHORT = {"CEQRDQN": CEQRDQN, "np": np}  # what the examples of an agent's methods may use without importing it


def documented() -> dict[str, Any]:
    """What the pages of the reference show, by its full name; of a module, what is public in it."""
    found: dict[str, Any] = {}
    for page in sorted(REFERENCE.glob("*.md")):
        for name in DIRECTIVE.findall(page.read_text()):
            try:
                module = importlib.import_module(name)
            except ModuleNotFoundError:
                parent, _, attribute = name.rpartition(".")
                found[name] = getattr(importlib.import_module(parent), attribute)
            else:
                found |= {f"{name}.{key}": value for key, value in public(module).items()}
    return found


def ours(value: Any) -> bool:
    """Whether it is a class or function of ceqr."""
    return (inspect.isclass(value) or inspect.isfunction(value)) and value.__module__.startswith("ceqr")


def public(module: Any) -> dict[str, Any]:
    """The classes and functions that a module defines for others."""
    own = {key: value for key, value in vars(module).items() if ours(value) and value.__module__ == module.__name__}
    return {key: value for key, value in own.items() if not key.startswith("_")}


DOCUMENTED = documented()
MODULES = sorted({value.__module__ for value in DOCUMENTED.values()})


@pytest.mark.parametrize("name", DOCUMENTED)
def test_whatever_the_reference_shows_has_an_example(name: str) -> None:
    assert ">>> " in (inspect.getdoc(DOCUMENTED[name]) or "")


def test_what_is_exported_is_in_the_reference() -> None:
    """What `ceqr` and `ceqr.envs` offer by name."""
    offered = {name: getattr(module, name) for module in (ceqr, envs) for name in module.__all__}
    shown = set(map(id, DOCUMENTED.values()))
    missing = [n for n, value in offered.items() if ours(value) and id(value) not in shown]
    assert missing == []


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "ceqr.library")) for name in MODULES]
)
def test_examples(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # some write files
    module = importlib.import_module(name)
    # Those of an agent's methods begin where the example of the class ends.
    globs = dict(SHORT)
    if name == "ceqr.library":
        globs["agent"] = CEQRDQN("CartPole-v1", hidden=(16,), quantiles=5, batch_size=8, learning_starts=60).learn(200)
    finder, runner = doctest.DocTestFinder(), doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    said: list[str] = []
    for test in finder.find(module, extraglobs=globs):
        runner.run(test, out=said.append)
    assert runner.tries > 0
    assert runner.failures == 0, "".join(said)


@pytest.mark.slow
def test_the_tutorial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Its commands and its Python in their order, with a smaller agent and fewer episodes."""
    monkeypatch.chdir(tmp_path)
    fewer = {"30_000": "300", "100": "2"}
    few = ["--episodes", "2", "--max-episode-frames", "50"]
    more = {"train": TINY, "calibrate": ["--episodes", "20"], "watch": few, "diagnose": few}
    text, names = (ROOT / "docs" / "tutorial.md").read_text(), {}
    ran = []
    for language, block in re.findall(r"^```(sh|python)\n(.*?)^```", text, re.M | re.S):
        if language == "python":
            exec(compile(block, "docs/tutorial.md", "exec"), names)
            continue
        for line in block.splitlines():
            command, *argv = shlex.split(line, comments=True)
            if command == "ceqr":
                assert main([fewer.get(word, word) for word in argv] + more.get(argv[0], [])) == 0
                ran.append(argv[0])
    assert ran == ["train", "eval", "plot", "calibrate", "watch", "diagnose"]
    assert "of the returns were inside" in capsys.readouterr().out


def navigation() -> list[str]:
    return list(build.nav_pages(tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]))


def test_every_page_is_in_the_navigation_and_every_equation_can_be_set(tmp_path: Path) -> None:
    build.gather(tmp_path, navigation())
    gathered = {path.relative_to(tmp_path).as_posix(): path.read_text() for path in tmp_path.rglob("*.md")}
    assert set(navigation()) <= set(gathered)
    # Live pages: the viewer's, and the report of what is kept of a sweep.
    assert 'lang="en"' in (tmp_path / "live" / "breakout.html").read_text()
    assert "MountainCar-v0" in (tmp_path / "live" / "classic-control" / "index.html").read_text()
    tex = [
        formula
        for text in gathered.values()
        for formula in re.findall(r"^```math\n(.*?)^```", text, re.M | re.S)
        + [m[2] for prose, part in build.outside_code(text) if prose for m in re.finditer(equations.INLINE, part)]
    ]
    assert len(tex) > 100
    for formula in tex:
        assert equations.mathml(formula, block=True).startswith("<math ")


def test_a_page_that_is_not_in_the_navigation_is_told() -> None:
    with pytest.raises(build.Broken, match=r"docs/tutorial.md is not in the navigation"):
        build.gather(Path("never-written"), [page for page in navigation() if page != "tutorial.md"])


@pytest.mark.parametrize("link", ["nothing.md", "../nothing.py", "images/nothing.png"])
def test_a_link_to_nothing_is_told(link: str) -> None:
    page = ROOT / "docs" / "tutorial.md"
    with pytest.raises(build.Broken, match=rf"docs/tutorial.md links to {link}, which there is not"):
        build.with_links(page, f"text with [a link]({link}).")


def test_links_lead_to_where_things_stand_in_the_site() -> None:
    page = ROOT / "docs" / "tutorial.md"
    text = "[a](algorithms.md#losses) [b](../README.md) [c](../examples) [d](../benchmarks/run.py) `[e](code.md)`"
    moved, led = build.with_links(page, text)
    assert moved == (
        "[a](algorithms.md#losses) [b](index.md) [c](repository/examples/index.md) "
        "[d](repository/benchmarks/run.py.md) `[e](code.md)`"
    )
    assert [path.name for path in led] == ["algorithms.md", "README.md", "examples", "run.py"]


def test_a_link_to_a_sweep_leads_to_its_report() -> None:
    moved, led = build.with_links(ROOT / "results" / "README.md", "[a](classic-control) [b](classic-control.toml)")
    assert moved == "[a](../../live/classic-control/index.html) [b](classic-control.toml.md)"
    assert [build.is_sweep(path) for path in led] == [True, False]


def test_tex_that_is_none_is_told() -> None:
    with pytest.raises(ValueError, match="KaTeX does not understand"):
        equations.mathml(r"\nosuch a", block=False)


def test_letters_of_another_alphabet_are_characters() -> None:
    """Browsers ignore the attribute that KaTeX writes."""
    made = equations.mathml(r"\mathcal L + \mathbb 1 + \mathcal N", block=False)
    assert "mathvariant" not in made
    assert all(character in made for character in "ℒ𝟙𝒩")


@pytest.mark.parametrize(
    ("page", "told"),
    [
        ('<a href="other.html#here">', None),
        ('<a href="https://example.com/x">', None),
        ('<a href="none.html">', "leads to no file"),
        ('<a href="other.html#there">', "names a place that is not in that page"),
        ('<a href="#there">', "names a place that is not in that page"),
        ('<a href="../outside.html">', "leads out of the site"),
        ('<img src="https://example.com/x.png">', "is fetched from elsewhere"),
        ('<script src="//example.com/x.js"></script>', "is fetched from elsewhere"),
    ],
)
def test_what_is_wrong_with_a_built_page(page: str, told: str | None, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(page)
    (tmp_path / "other.html").write_text('<h2 id="here">')
    found = broken(tmp_path)
    assert len(found) == (told is not None)
    assert told is None or told in found[0]
