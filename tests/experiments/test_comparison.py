"""What is compared with what: settings that never meet, algorithms through all games, seeds that count once."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ceqr.experiments import comparison
from ceqr.experiments.comparison import compare
from ceqr.experiments.records import RunRecord, SeedRecord
from tests.experiments.generated import config_of


def _record(path: str = "run", **options: Any) -> RunRecord:
    """A run without tables."""
    config = config_of(**options)
    nothing = np.zeros(0)
    seeds = tuple(SeedRecord(s, 1, 1.0, 1.0, 1.0, {}, nothing, nothing) for s in config.seed_numbers)
    return RunRecord(Path(path), config, config.frames, config.frames, seeds)


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"protocol": "standard"}, "protocols (sticky actions)"),
        ({"protocol": "released"}, "protocols (sticky actions)"),
        ({"frames": 5_000}, "frames"),
        ({"hidden": (64,)}, "network sizes"),
        ({"max_episode_frames": 100}, "limits of an episode"),
    ],
)
def test_what_makes_runs_incomparable(other: dict[str, Any], reason: str) -> None:
    compared = compare([_record("a"), _record("b", seed_start=3, **other)])
    assert len(compared.settings) == 2
    assert all(len(group) == 3 for by_env in compared.entries.values() for e in by_env.values() for group in e.values())
    (note,) = compared.notes
    assert f"differ in {reason}, which" in note
    assert "never averaged together" in note


def test_protocols_are_minatars() -> None:
    compared = compare([_record(env="gymnasium/CartPole-v1"), _record(agent="dqn", env="gymnasium/CartPole-v1")])
    (setting,) = compared.settings
    assert setting.protocol == ""
    assert setting.describe() == "gymnasium: the environment's own rules, 4,000 frames, 128 hidden units"


def test_sizes_meet_in_a_panel_only_on_request() -> None:
    records = [_record("a"), _record("b", agent="ua-dqn", hidden=(64,)), _record("c", hidden=(64,), seed_start=3)]
    assert len(compare(records).settings) == 2
    compared = compare(records, across_capacity=True)
    (setting,) = compared.settings
    groups = compared.entries[setting]["minatar/breakout"]
    assert sorted(len(group) for group in groups.values()) == [3, 3, 3]  # and are still not averaged
    assert sorted(compared.labels.values()) == ["ceqr-dqn (hidden 128)", "ceqr-dqn (hidden 64)", "ua-dqn"]
    (note,) = compared.notes
    assert "ua-dqn 64 hidden units" in note


def test_seeds_of_several_runs_are_one_group_and_count_once() -> None:
    compared = compare([_record("a"), _record("b", seed_start=3), _record("c", seed_start=5)])
    (group,) = compared.entries[compared.settings[0]]["minatar/breakout"].values()
    assert [entry.seed.seed for entry in group] == list(range(8))
    assert compared.notes == ["A seed that was run twice counts once: seed 5 of c is also in b."]


def test_an_algorithm_is_followed_through_games_though_its_default_depends_on_them() -> None:
    learned = {"evidence": "learned", "location": "joint", "thompson": "step", "calibrate_quantiles": True}
    games = {"minatar/breakout": 0.01, "minatar/asterix": 0.001}  # the paper's lambda_ep
    records = [_record(env=env, lambda_ep=value, **learned) for env, value in games.items()]
    assert len(compare(records).labels) == 1
    tuned = _record(env="minatar/asterix", lambda_ep=0.5, **learned)
    assert len(compare([*records, tuned]).labels) == 2


def test_labels_name_what_differs() -> None:
    def labels(*records: RunRecord) -> list[str]:
        return list(compare(records).labels.values())

    assert labels(_record(), _record(agent="qr-dqn")) == ["ceqr-dqn", "qr-dqn"]
    assert labels(_record(agent="dqn"), _record(agent="dqn", num_envs=4)) == ["dqn (num envs 1)", "dqn (num envs 4)"]
    names = labels(_record(), _record(calibrate_interval=False))
    assert names == ["ceqr-dqn (calibrate interval on)", "ceqr-dqn (calibrate interval off)"]
    many = {"discount": 0.9, "batch_size": 64, "learning_rate": 1e-3}
    names = labels(_record(agent="dqn"), _record(agent="dqn", **many), _record(agent="dqn", discount=0.5))
    assert names == ["dqn", "dqn (discount 0.5)", "dqn (variant 3)"]
    algorithm = comparison.algorithm_of(config_of(agent="dqn", **many))
    assert comparison.describe_options(algorithm) == (
        "batch size 64, discount 0.9, learning rate 0.001, learning starts 100"
    )


def test_what_cannot_be_reported_is_left_out() -> None:
    damaged = RunRecord(Path("x"), problem="It is damaged.", damaged=True)
    assert len(compare([_record(), damaged]).entries) == 1
