"""Families of environments: the registry, its options, one from outside, and whose code a name runs."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ceqr import envs
from ceqr.cli import _parse_train
from ceqr.config import RunConfig, default_config
from ceqr.envs import FAMILIES, Family, Option, make, register
from ceqr.envs.observations import ObservationFormat
from ceqr.errors import UserError
from tests.probes import COUNTING, Counting, NoisyChain

RECIPE = Path(__file__).parents[2] / "docs" / "how-to-add-an-environment.md"


@pytest.fixture
def families(monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry that may be changed, without the family that other tests import."""
    known = {prefix: family for prefix, family in FAMILIES.items() if prefix != "probe"}
    monkeypatch.setattr("ceqr.envs.FAMILIES", known)


def probe(**changes: Any) -> Family:
    options = {
        "length": Option(3, "steps", least=1),
        "pay": Option(1.5),
        "kind": Option("plain", choices=("plain", "odd")),
    }
    facts = {"prefix": "probe", "make": lambda name, **o: (name, o), "compiled": True, "about": "probes"}
    return Family(**facts | {"names": ("chain", "mill"), "options": options} | changes)


@pytest.mark.usefixtures("families")
def test_a_family_checks_names_and_options() -> None:
    register(probe())
    assert make("probe/chain", length=4, pay=2) == ("chain", {"length": 4, "pay": 2})
    for name, options, sentence in (
        ("probe/chains", {}, "Unknown environment 'probe/chains' (did you mean 'probe/chain'?); known are probe/chain"),
        ("prob/chain", {}, "did you mean 'probe/chain'"),
        ("probe/chain", {"size": 3}, "probe/chain has no option 'size'; it has length (steps), pay, kind."),
        ("probe/chain", {"length": 0}, "length must be at least 1, not 0."),
        ("probe/chain", {"length": 2.5}, "length must be of type int, not 2.5."),
        ("probe/chain", {"length": True}, "length must be of type int, not True."),
        ("probe/chain", {"pay": "much"}, "pay must be of type float, not 'much'."),
        ("probe/chain", {"kind": "ode"}, "Unknown kind 'ode' (did you mean 'odd'?); known are plain, odd."),
    ):
        with pytest.raises(ValueError) as error:  # noqa: PT011
            make(name, **options)
        assert sentence in str(error.value)
    register(probe(prefix="mistaken", compiled=False))
    with pytest.raises(TypeError, match="The family mistaken says compiled=False, but what it makes lacks 'vector'"):
        make("mistaken/chain")
    with pytest.raises(ValueError, match="There is already a family 'probe'"):
        register(probe())
    with pytest.raises(ValueError, match="must be a word, not 'a/b'"):
        probe(prefix="a/b")


def test_what_was_probably_meant() -> None:
    for name, sentence in (
        ("CartPole-v1", "there is 'gymnasium/CartPole-v1' and 'gymnax/CartPole-v1'"),
        ("ceqr/Breakout-v0", "there is 'gymnasium/ceqr/Breakout-v0'"),
        ("minatar/brekout", "did you mean 'minatar/breakout'"),
        ("breakout", "did you mean 'minatar/breakout'"),
        ("chess", "known are minatar/asterix"),
        ("gymnasium", "gymnasium/<id> (any id of Gymnasium with discrete actions), gymnax/<id> ("),
        ("", "Unknown environment ''"),
    ):
        with pytest.raises(ValueError) as error:  # noqa: PT011
            make(name)
        assert sentence in str(error.value)
        assert "\n" not in str(error.value)


def test_what_every_environment_has() -> None:
    """A compiled one that says no more than it must is read as it is."""
    chain = NoisyChain()
    assert envs.is_compiled(chain)
    assert envs.observation_format(chain) == ObservationFormat("vector", (4,), "float32")
    assert envs.first_action(chain) == 0
    game = make("minatar/breakout")
    assert envs.observation_format(game) == ObservationFormat("image", (10, 10, 4), "bool")
    host = make("gymnasium/FrozenLake-v1")
    assert not envs.is_compiled(host)
    assert envs.observation_format(host).kind == "number"


def test_registering_needs_neither_jax_nor_gymnasium() -> None:
    code = "import sys, ceqr.envs as e; e.family('gymnax/x'); sys.exit(bool({'jax', 'gymnasium'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], check=True)


# From outside.


@pytest.mark.usefixtures("families")
def test_a_family_from_outside_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recipe of docs/how-to-add-an-environment.md, word for word, as the command line imports it."""
    code = RECIPE.read_text().split("```python\n")[1].split("```")[0]
    assert len(code.splitlines()) < 70
    (tmp_path / "corridor.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "corridor", raising=False)
    words = ["--import", "corridor", "--env", "corridor/dark", "--env-kwargs", "length=4", "--num-envs", "2"]
    config = _parse_train([*words, "--seeds", "1"]).run
    monkeypatch.delitem(sys.modules, "corridor")
    assert str(tmp_path) not in sys.path
    config.check()
    assert (config.preset, config.num_envs) == ("vector", 2)
    env = config.make_env()
    assert (env.name, env.num_actions, env.observation_shape) == ("corridor/dark", 2, (4,))
    state, first = env.reset(jax.random.key(0))
    assert first.tolist() == [1, 0, 0, 0]
    for place in (1, 2):
        state, after = env.step(state, jnp.int32(1), jax.random.key(place))
        assert (int(after.observation.argmax()), float(after.reward), bool(after.terminated)) == (place, 0, False)
    state, after = env.step(state, jnp.int32(1), jax.random.key(3))
    assert (float(after.reward), bool(after.terminated), int(after.successor.argmax())) == (1, True, 3)
    np.testing.assert_array_equal(after.observation, first)
    with pytest.raises(UserError, match="length must be at least 2, not 1"):
        RunConfig(config.hyper, env="corridor/dark", env_kwargs=("length=1",)).make_env()
    with pytest.raises(UserError, match="did you mean 'corridor/dark'"):
        RunConfig(config.hyper, env="corridor/drak").make_env()


# Options of a run.


@pytest.mark.parametrize(
    ("env", "options", "sentence"),
    [
        ("gymnax/CartPole-v1", {"protocol": "standard"}, "--protocol is MinAtar's; gymnax/CartPole-v1 takes"),
        ("gymnasium/CartPole-v1", {"protocol": "standard"}, "--protocol is MinAtar's; gymnasium/CartPole-v1 takes"),
        ("minatar/breakout", {"env_kwargs": ("size=3",)}, "minatar/breakout has no option 'size'; it has protocol"),
        ("minatar/breakout", {"env_kwargs": ("protocol=paper",)}, "gives protocol, for which there is --protocol"),
        ("gymnax/CartPole-v1", {"env_kwargs": ("max_episode_frames=3",)}, "there is --max-episode-frames"),
        ("gymnax/DeepSea-bsuite", {"env_kwargs": ("sise=3",)}, "did you mean 'size'"),
        ("gymnax/CartPole-v1", {"env_kwargs": ("gravity",)}, "--env-kwargs takes key=value pairs"),
    ],
)
def test_options_that_cannot_be(env: str, options: dict[str, Any], sentence: str) -> None:
    config = RunConfig(default_config("dqn", "quick", env).hyper, env=env, **options)
    with pytest.raises(UserError) as error:
        config.make_env()
    assert sentence in str(error.value)


def test_options_of_a_run_reach_its_environment() -> None:
    def made(env: str, **options: Any) -> Any:
        return RunConfig(default_config("dqn", "quick", env).hyper, env=env, **options).make_env()

    game = made("minatar/breakout", protocol="standard", max_episode_frames=9)
    assert (game.protocol, game.max_episode_frames) == ("standard", 9)
    sea = made("gymnax/DeepSea-bsuite", env_kwargs=("size=5", "deterministic=false"), max_episode_frames=3)
    assert sea == make("gymnax/DeepSea-bsuite", size=5, deterministic=False, max_episode_frames=3)
    assert made("gymnasium/FrozenLake-v1", env_kwargs=("map_name=8x8",)).observation_shape == (64,)


def test_an_environment_for_people() -> None:
    config = default_config("dqn", "quick", "minatar/breakout")
    assert config.describe_env() == "minatar/breakout (paper protocol)"
    assert replace(config, env="gymnax/DeepSea-bsuite").describe_env() == "gymnax/DeepSea-bsuite"
    sea = replace(config, env="gymnax/DeepSea-bsuite", env_kwargs=("size=5", "deterministic=false"))
    assert sea.describe_env() == "gymnax/DeepSea-bsuite (size=5, deterministic=false)"


@pytest.mark.parametrize(
    ("env", "preset"),
    [
        ("minatar/breakout", "paper"),
        ("gymnasium/CartPole-v1", "vector"),
        ("gymnax/CartPole-v1", "vector"),
        ("gymnax/DeepSea-bsuite", "vector"),
        ("gymnax/Breakout-MinAtar", "paper"),
        ("gymnasium/ALE/Pong-v5", "pixels"),
    ],
)
def test_the_preset_fits_what_is_seen(env: str, preset: str) -> None:
    assert default_config("dqn", None, env).preset == preset


def test_one_command_looks_at_its_environment_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the options to the loop; those that play are made besides."""
    made = []
    construct = Counting.__init__
    monkeypatch.setattr(Counting, "__init__", lambda self, *a, **k: (made.append(1), construct(self, *a, **k))[1])
    config = _parse_train(["--env", f"gymnasium/{COUNTING}", "--agent", "dqn"]).run
    config.check()
    config.check()
    assert len(made) == 1
    config.make_env().vector(1)
    assert len(made) == 2
    # Other options are another environment.
    config = _parse_train(["--env", f"gymnasium/{COUNTING}", "--agent", "dqn", "--max-episode-frames", "2"]).run
    lanes = config.make_env().vector(1)
    lanes.reset([0])
    assert [bool(lanes.step(np.array([0])).truncated[0]) for _ in range(4)] == [False, True] * 2
