"""From a declaration to runs."""

import dataclasses
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from ceqr.cli import main
from ceqr.config import default_config
from ceqr.errors import UserError
from ceqr.experiments import sweep
from ceqr.experiments.sweep import complete, expand, from_flags, kinds, runs_of

SMALL = {"hidden": 16, "envs": "minatar/breakout"}


def _names(declared: dict[str, Any]) -> list[str]:
    return [spec.name for spec in expand(complete(declared))]


def test_runs_are_all_combinations_and_first_seeds_come_first() -> None:
    names = _names({**SMALL, "agents": "dqn,qr-dqn", "seeds": 2, "learning_rate": [1e-3, 1e-4]})
    assert names == [
        f"minatar-breakout-{agent}-learning_rate={rate}-seed{seed}"
        for seed in (0, 1)
        for agent in ("dqn", "qr-dqn")
        for rate in ("0.001", "0.0001")
    ]


def test_an_option_of_some_agents_multiplies_theirs_alone() -> None:
    declared = complete({**SMALL, "agents": ["ceqr-dqn", "ua-dqn"], "calibration": ["paper", "none"]})
    specs = expand(declared)
    assert [spec.config.agent for spec in specs] == ["ceqr-dqn", "ceqr-dqn", "ua-dqn"]
    assert [spec.config.hyper.calibration for spec in specs[:2]] == ["paper", "none"]


def test_what_is_not_declared_comes_from_the_preset() -> None:
    (spec,) = expand(complete({**SMALL, "preset": "quick", "lambda_ep": 0.5, "protocol": "standard"}))
    base = default_config("ceqr-dqn", "quick", "minatar/breakout")
    hyper = dataclasses.replace(base.hyper, hidden=(16,), lambda_ep=0.5)
    assert spec.config == dataclasses.replace(base, hyper=hyper, protocol="standard")


def test_seeds_of_a_run_and_the_rest() -> None:
    specs = expand(complete({**SMALL, "agents": "dqn", "seeds": 5, "seed_start": 3, "seeds_per_run": 2}))
    assert [list(spec.config.seed_numbers) for spec in specs] == [[3, 4], [5, 6], [7]]
    assert [spec.name.rsplit("-dqn-")[1] for spec in specs] == ["seeds3-4", "seeds5-6", "seed7"]


def test_arms_are_sweeps_over_what_stands_above_them() -> None:
    arms = [{"agents": "dqn"}, {"agents": "qr-dqn", "quantiles": [5, 10]}]
    specs = expand(complete({**SMALL, "frames": 9_000, "arms": arms}))
    assert [(s.config.agent, s.config.frames) for s in specs] == [("dqn", 9_000), ("qr-dqn", 9_000), ("qr-dqn", 9_000)]
    assert [spec.config.hyper.quantiles for spec in specs[1:]] == [5, 10]


def test_layers_are_a_list_in_the_list() -> None:
    for hidden, layers in ((16, [(16,)]), ([16, 32], [(16,), (32,)]), ([[16, 8]], [(16, 8)]), ([[]], [()])):
        found = expand(complete({**SMALL, "agents": "dqn", "hidden": hidden}))
        assert [spec.config.hyper.hidden for spec in found] == layers


def test_flags_say_what_toml_says() -> None:
    flags = {"hidden": "128,256x256", "learning_rate": "1e-4..1e-2:log", "calibration": "paper,none", "frames": "5_000"}
    assert from_flags(flags, ["ceqr-dqn"]) == {
        "hidden": [128, [256, 256]],
        "learning_rate": {"low": 1e-4, "high": 1e-2, "log": True},
        "calibration": ["paper", "none"],
        "frames": 5_000,
    }


def test_small_networks_get_one_core_and_large_ones_two() -> None:
    declared = complete({"agents": "ceqr-dqn", "hidden": [128, 1600]})
    assert [spec.cores for spec in expand(declared)] == [1, 2]
    assert [spec.cores for spec in expand(declared | {"cores": 3})] == [3, 3]


def test_long_names_are_cut_and_stay_apart() -> None:
    sizes = [[100 + i] * 60 for i in range(2)]
    names = _names({**SMALL, "agents": "dqn", "hidden": sizes})
    assert len(set(names)) == 2
    assert all(len(name) <= sweep.LONGEST_NAME for name in names)


def test_figure_3_is_the_papers() -> None:
    declared = complete(tomllib.loads((sweep.PRESETS / "figure3.toml").read_text()))
    specs = [spec for kind in kinds(declared) for spec in runs_of(kind, declared)]
    assert len(specs) == 5 * 3 * 25
    assert {spec.config.frames for spec in specs} == {2_500_000}
    assert {(s.config.agent, s.config.hyper.hidden) for s in specs} == {("ceqr-dqn", (1600,)), ("ua-dqn", (128,))}
    by_game = {s.config.env: s.config.hyper.lambda_ep for s in specs if s.config.agent == "ceqr-dqn"}
    games = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")
    assert by_game == dict(zip((f"minatar/{g}" for g in games), (0.001, 0.01, 0.0002, 0.005, 0.0005), strict=True))
    assert {s.config.hyper.lambda_ep for s in specs if s.config.agent == "ua-dqn"} == {0.2}
    assert {s.config.protocol for s in specs} == {"paper"}


def test_the_small_one_is_matched_in_capacity() -> None:
    declared = complete(tomllib.loads((sweep.PRESETS / "small.toml").read_text()))
    found = kinds(declared)
    assert len(found) == 5 * 3
    assert {(kind.config.hyper.hidden, kind.config.hyper.torso) for kind in found} == {((128,), "standard")}


@pytest.mark.parametrize(
    ("declared", "sentence"),
    [
        ({"agents": "dpn"}, "Unknown agent 'dpn' (did you mean 'dqn'?)"),
        ({"envs": "minatar/pong"}, "Unknown environment 'minatar/pong'"),
        ({"envs": "gymnax/all"}, "name those you mean"),
        ({"agents": "dqn", "calibration": "none"}, "Unknown option '--calibration'"),
        ({"hiden": 128}, "did you mean '--hidden'?"),
        ({"frames": "many"}, "frames must be of type int"),
        ({"frames": 10}, "ends before learning starts"),
        ({"seeds": 0}, "--seeds must be a whole number of at least 1, not 0"),
        ({"agent": "dqn"}, "not by agent"),
        ({"lambda_ep": {"low": 0.1, "high": 1}}, "can only be searched: give --search"),
        ({"lambda_ep": {"low": 1, "high": 0.1}}, "must rise"),
        ({"lambda_ep": {"from": 1}}, "A range is lambda_ep"),
        ({"lambda_ep": []}, "has no value"),
        ({"search": {}}, "nothing to search"),
        ({"search": {"trails": 3}, "lambda_ep": [1, 2]}, "did you mean 'trials'?"),
        ({"arms": [{"seeds": 3}]}, "is for the whole sweep"),
        ({"arms": [{"agents": "dqn"}, {"agents": "dqn"}]}, "declares minatar-breakout-dqn twice"),
    ],
)
def test_mistakes(declared: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as error:
        expand(complete(declared)) if "search" not in declared else kinds(complete(declared))
    assert sentence in str(error.value)


def test_a_strangers_sweep_imports_nothing_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "somebody.py").write_text("open('ran', 'w').close()")
    (tmp_path / "plain.toml").write_text("envs = 'gymnasium/somebody:Thing-v0'")
    (tmp_path / "arms.toml").write_text("[[arms]]\nenvs = 'gymnasium/somebody:Thing-v0'")
    # To name one environment is not to vouch for another that stands in the file.
    for words in (["plain.toml"], ["arms.toml"], ["arms.toml", "--envs", "minatar/breakout"]):
        assert main(["sweep", *words]) == 2
        assert "say so with --import somebody." in capsys.readouterr().err
        assert not (tmp_path / "ran").exists()
    assert main(["sweep", "--envs", "gymnasium/somebody:Thing-v0"]) == 2  # one's own word
    assert "Gymnasium has no environment 'Thing-v0'" in capsys.readouterr().err
    assert (tmp_path / "ran").exists()
    monkeypatch.delitem(sys.modules, "somebody")
