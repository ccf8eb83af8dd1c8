"""What a configuration refuses: more memory than there is, values of other types, modules that nobody vouches for."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ceqr import config as configuration
from ceqr.agents import AGENTS
from ceqr.config import RunConfig, build, check_memory, default_config, from_json, require_trust
from ceqr.errors import UserError
from ceqr.memory import GIB, free_memory, machine_memory


def changed(hyper: dict[str, Any] | None = None, **options: Any) -> RunConfig[Any]:
    base = default_config("dqn", "quick", "minatar/breakout")
    return dataclasses.replace(base, hyper=dataclasses.replace(base.hyper, **hyper or {}), **options)


# Memory.


@pytest.mark.parametrize(
    ("hyper", "options"),
    [
        ({"replay_size": 2_000_000_000}, {}),
        ({"hidden": (1_000_000_000,)}, {}),
        ({"hidden": (2_147_483_646,) * 3}, {}),
        ({}, {"seeds": 100_000_000}),
    ],
)
def test_more_memory_than_there_is(hyper: dict[str, Any], options: dict[str, Any]) -> None:
    config = changed(hyper, **options)
    with pytest.raises(UserError, match=r"would take about [\d,.]+ GiB of memory, and this machine has [\d,.]+:") as e:
        config.check()
    assert "\n" not in str(e.value)


def test_what_a_run_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breakout's observations are 400 bits; 1,000 transitions of 50 + 13 bytes, four copies of the parameters, and a
    count of updates."""
    agent_class, hyper_class = configuration.agent_classes("dqn")
    agent = agent_class(hyper_class(replay_size=1_000, hidden=(8,)), (10, 10, 4), 3)
    parameters = (9 * 4 * 16 + 16) + (8 * 8 * 16 * 8 + 8) + (8 * 3 + 3)
    needed = 2 * (1_000 * 63 + 16 * parameters + 4)
    monkeypatch.setattr("ceqr.config.machine_memory", lambda: needed)
    check_memory(agent, np.bool_, seeds=2)
    monkeypatch.setattr("ceqr.config.machine_memory", lambda: needed - 1)
    with pytest.raises(UserError, match=r"2 seed\(s\) with"):
        check_memory(agent, np.bool_, seeds=2)
    monkeypatch.setattr("ceqr.config.machine_memory", lambda: None)
    check_memory(agent, np.float32, seeds=10**9)


def test_what_is_counted_takes_memory_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three matrices an action, of 4,097 rows: 67 MB each."""
    monkeypatch.setattr("ceqr.config.machine_memory", lambda: GIB // 4)
    config = default_config("ceqr-dqn", None, "gymnax/CartPole-v1")
    config.check()
    config = dataclasses.replace(config, hyper=dataclasses.replace(config.hyper, evidence_features=4_096))
    with pytest.raises(UserError, match=r"0\.4 GiB of networks and counts each.* or --evidence-features lower"):
        config.check()


def test_the_machine_tells_its_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there_is, free = machine_memory(), free_memory()
    assert there_is is None or GIB / 4 < there_is < 2**14 * GIB
    assert free is None or there_is is None or 2**20 < free <= there_is
    for told, expected in (("MemTotal: 9 kB\nMemAvailable: 3 kB\n", 3_072), ("MemTotal: 9 kB\n", there_is)):
        (tmp_path / "meminfo").write_text(told)
        monkeypatch.setattr("ceqr.memory.MEMINFO", tmp_path / "meminfo")
        assert free_memory() == expected
    monkeypatch.setattr("ceqr.memory.MEMINFO", tmp_path / "none")
    assert free_memory() == there_is
    monkeypatch.delattr("os.sysconf")
    assert machine_memory() is free_memory() is None


# Values from a file.


@pytest.mark.parametrize("agent", AGENTS)
def test_from_json_and_back(agent: str) -> None:
    config = default_config(agent, "vector", "minatar/breakout", env_kwargs=("a=1",))
    assert from_json(json.loads(json.dumps(config.to_json()))) == config


@pytest.mark.parametrize("agent", AGENTS)
def test_what_older_runs_do_not_say(agent: str) -> None:
    config = default_config(agent, "paper", "minatar/breakout")
    values = json.loads(json.dumps(config.to_json()))
    later = {"init", "n_step", "double", "epsilon_hold", "bound_returns", "evidence_features"}
    for name in later & set(values["hyper"]):
        values["hyper"].pop(name)
    assert from_json(values) == config


def test_what_older_runs_counted_is_not_what_is_counted_now() -> None:
    values = json.loads(json.dumps(default_config("ceqr-dqn", "quick", "minatar/breakout").to_json()))
    values["hyper"].pop("evidence_features")
    with pytest.raises(UserError, match="made by an incompatible version"):
        from_json(values)


@pytest.mark.parametrize(
    "change",
    [
        {"hyper": {"hidden": "abc"}},
        {"hyper": {"hidden": [1.5]}},
        {"hyper": {"hidden": [[1]]}},
        {"hyper": {"hidden": [True]}},
        {"hyper": {"hidden": None}},
        {"hyper": {"hidden": 3}},
        {"hyper": {"hidden": {"a": 1}}},
        {"hyper": None},
        {"hyper": [1]},
        {"env_kwargs": [1, 2]},
        {"env_kwargs": "a=1"},
        {"env_kwargs": None},
        {"frames": "many"},
        {"frames": True},
        {"env": None},
        {"agent": "nobody"},
        {"agent": None},
        {"agent": ["dqn"]},
        {"more": 1},
    ],
)
def test_values_that_are_not_of_their_type(change: dict[str, Any]) -> None:
    values = json.loads(json.dumps(changed().to_json()))
    for name, value in change.items():
        if name == "hyper" and isinstance(value, dict):
            values["hyper"] |= value
        else:
            values[name] = value
    with pytest.raises(UserError) as error:
        from_json(values)
    assert "\n" not in str(error.value)


def test_build_names_what_is_wrong() -> None:
    _, hyper_class = configuration.agent_classes("dqn")
    values = dataclasses.asdict(hyper_class())
    assert build(hyper_class, values | {"hidden": [4, 5], "discount": 1}).hidden == (4, 5)
    with pytest.raises(ValueError, match=r"hidden must be of type int, not 1\.5"):
        build(hyper_class, values | {"hidden": [1.5]})
    with pytest.raises(ValueError, match="hidden must be a list, not 'abc'"):
        build(hyper_class, values | {"hidden": "abc"})


# A stranger's run.


def test_a_module_that_a_run_names_needs_the_user_s_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil_probe.py").write_text("raise SystemExit('ran')")
    evil = "gymnasium/evil_probe:X-v0"
    with pytest.raises(UserError, match=r"runs/x plays .* 'evil_probe' .* say so with --import evil_probe\.") as error:
        require_trust(evil, (), "runs/x")
    assert "\n" not in str(error.value)
    with pytest.raises(UserError):
        require_trust(evil, ("evil",), "runs/x")
    require_trust(evil, ("other", "evil_probe"), "runs/x")
    for harmless in ("gymnasium/CartPole-v1", "minatar/breakout", "gymnax/CartPole-v1", "evil_probe:X-v0", "x"):
        require_trust(harmless, (), "runs/x")
    # A name without a family is not looked for by importing.
    with pytest.raises(UserError, match="Unknown environment 'evil_probe:X-v0'"):
        changed(env="evil_probe:X-v0").make_env()
    assert "evil_probe" not in sys.modules
