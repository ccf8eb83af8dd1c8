"""The run loop: what a listener hears and when, and training that must stop because something is not finite."""

import csv
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ceqr.cli import main
from ceqr.envs import FAMILIES, Family, register
from ceqr.envs.base import TimeStep
from ceqr.envs.gymnasium import seed_of
from ceqr.progress import Progress
from ceqr.runs import EpisodeRow
from ceqr.streams import Stream, stream
from ceqr.training import host as host_module
from ceqr.training.players import EnvironmentFailed
from ceqr.training.run_loop import Diverged, run_loop
from tests.probes import Counting, NoisyChain
from tests.training.conftest import SMALL


@dataclass
class Script:
    """A player that only pretends: chunks of seven frames, each with an episode, and trouble where it is told to."""

    fails_at: int = -1
    trouble_at: int = -1
    broken_at: int = -1
    frame: int = 0
    frames_per_second: float | None = 100.0
    asked: list[tuple[int, int]] = field(default_factory=list)

    def run(self, start: int, stop: int) -> tuple[int, list[EpisodeRow]]:
        assert start == self.frame
        self.asked.append((start, stop))
        self.frame = min(start + 7, stop)
        rows = [EpisodeRow(0, self.frame, 1.0, 1, 0.0, 0.0)]
        if start <= self.fails_at < self.frame:
            self.frame = self.fails_at
            raise EnvironmentFailed(self.frame, rows) from RuntimeError("the joint is broken")
        return self.frame, rows

    def find_trouble(self) -> tuple[int, int, str] | None:
        return (self.trouble_at, 3, "reward") if 0 <= self.trouble_at < self.frame else None

    def broken_seeds(self) -> list[int]:
        return [5] if 0 <= self.broken_at < self.frame else []


@dataclass
class Ear:
    """A listener that writes everything down."""

    log_every: int | None = None
    received: list[int] = field(default_factory=list)
    stops_at: int = -1
    heard: list[Any] = field(default_factory=list)

    def episodes(self, rows: list[EpisodeRow]) -> None:
        self.heard.append(("episodes", [row.frame for row in rows]))

    def metrics(self, frame: int) -> None:
        self.heard.append(("metrics", frame))

    def looked_up(self, frame: int, last: bool) -> None:
        self.heard.append(("last" if last else "looked up", frame))
        if frame >= self.stops_at >= 0:
            self.received.append(15)

    def status(self) -> str:
        return ""


def _run(player: Script, ear: Ear, last: int = 20) -> int:
    player_or_other: Any = player
    with Progress("testing", last, quiet=True) as progress:
        return run_loop(player_or_other, player.frame, last, ear, ear.received, progress)


def test_a_run_to_its_end() -> None:
    player, ear = Script(), Ear()
    assert _run(player, ear) == 20
    assert player.asked == [(0, 20), (7, 20), (14, 20)]
    assert ear.heard == [
        ("episodes", [7]), ("looked up", 7), ("episodes", [14]), ("looked up", 14), ("episodes", [20]), ("last", 20),
    ]  # fmt: skip


def test_metrics_are_taken_when_their_frame_is_reached() -> None:
    """The player is never asked to go past it; from wherever the run goes on."""
    player, ear = Script(frame=3), Ear(log_every=10)
    assert _run(player, ear) == 20
    assert player.asked == [(3, 10), (10, 20), (17, 20)]
    assert [each for each in ear.heard if each[0] == "metrics"] == [("metrics", 10), ("metrics", 20)]
    assert ear.heard.index(("metrics", 10)) < ear.heard.index(("looked up", 10))  # a checkpoint has the row
    assert ear.heard[-2:] == [("metrics", 20), ("last", 20)]


def test_a_signal_stops_it_after_the_chunk_under_way() -> None:
    player, ear = Script(), Ear(stops_at=14)
    assert _run(player, ear) == 14
    assert ear.heard[-2:] == [("looked up", 14), ("last", 14)]
    # One that came before anything was played: what there is, is told.
    player, ear = Script(frame=5), Ear(received=[15])
    assert _run(player, ear) == 5
    assert ear.heard == [("last", 5)]
    assert player.asked == []


def test_a_failing_environment_is_raised_after_all_was_told() -> None:
    player, ear = Script(fails_at=10), Ear(log_every=5)
    with pytest.raises(EnvironmentFailed) as failure:
        _run(player, ear)
    assert failure.value.frame == 10
    assert str(failure.value.__cause__) == "the joint is broken"
    assert ear.heard[-3:] == [("episodes", [15]), ("looked up", 10), ("last", 10)]


def test_nothing_is_told_of_a_chunk_that_was_not_finite() -> None:
    player, ear = Script(trouble_at=9), Ear()
    sentence = r"^The environment of seed 3 gave a reward that is not finite \(NaN or infinite\) in frame 9$"
    with pytest.raises(Diverged, match=sentence):
        _run(player, ear)
    assert ear.heard == [("episodes", [7]), ("looked up", 7)]
    # Even where the environment failed in that chunk.
    player, ear = Script(trouble_at=9, fails_at=10), Ear()
    with pytest.raises(Diverged):
        _run(player, ear)
    assert ear.heard == [("episodes", [7]), ("looked up", 7)]


def test_parameters_are_looked_at_before_the_last_word() -> None:
    player, ear = Script(broken_at=18), Ear()
    with pytest.raises(Diverged, match=r"^Parameters or counts of seed 5 were not finite after frame 19$"):
        _run(player, ear)
    assert ear.heard[-1] == ("episodes", [20])


# Environments that break, from the command line.

WHAT = {"reward": "a reward", "observation": "an observation"}


class BreakingState(NamedTuple):
    chain: Any
    left: jax.Array  # frames to go


@dataclass(frozen=True)
class Breaking:
    """A chain that gives something that is not finite, once, in a frame that follows from the key of its reset."""

    breaks: str = "reward"
    by: float = np.nan
    at_once: bool = False

    name = "breaking/chain"
    num_actions = 2
    observation_shape = (4,)
    observation_dtype = np.float32

    @staticmethod
    def fate(key: jax.Array) -> jax.Array:
        return jax.random.randint(key, (), 45, 75)

    def reset(self, key: jax.Array) -> tuple[BreakingState, jax.Array]:
        chain, observation = NoisyChain().reset(key)
        if self.at_once:
            observation = observation.at[0].set(self.by)
        return BreakingState(chain, self.fate(key)), observation

    def step(self, state: BreakingState, action: jax.Array, key: jax.Array) -> tuple[BreakingState, TimeStep]:
        chain, after = NoisyChain().step(state.chain, action, key)
        broken = jax.tree.map(lambda x: jnp.full_like(x, self.by), after)
        chosen = jax.tree.map(lambda a, b: jnp.where(state.left == 0, a, b), broken, after)
        if not self.at_once:
            after = after._replace(**{self.breaks: getattr(chosen, self.breaks)})
        return BreakingState(chain, state.left - 1), after


class HostBreaking(Counting):
    """The same on the host."""

    def __init__(self, breaks: str = "reward", by: float = np.nan, at_once: bool = False):
        super().__init__(3)
        self._breaks, self._by, self._at_once, self._left = breaks, by, at_once, -1

    @staticmethod
    def fate(seed: int) -> int:
        return int(np.random.default_rng(seed).integers(45, 75))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        if seed is not None:
            self._left = self.fate(seed)
        observation, info = super().reset(seed=seed)
        return (np.full_like(observation, self._by) if self._at_once else observation), info

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        observation, reward, terminated, truncated, info = super().step(action)
        self._left -= 1
        if self._left == -1 and not self._at_once:
            if self._breaks == "reward":
                reward = self._by
            else:
                observation = np.full_like(observation, self._by)
        return observation, reward, terminated, truncated, info


gymnasium.register(
    "probe/Breaking-v0", entry_point="tests.training.test_run_loop:HostBreaking", disable_env_checker=True
)
KINDS = {
    "reward-nan": Breaking("reward", np.nan),
    "reward-inf": Breaking("reward", np.inf),
    "observation-nan": Breaking("observation", np.nan),
    "observation-inf": Breaking("observation", -np.inf),
    "first-nan": Breaking("observation", np.nan, at_once=True),
}


@pytest.fixture(autouse=True, scope="module")
def _family() -> Any:
    register(Family(prefix="breaking", make=KINDS.__getitem__, compiled=True, about="probes", names=tuple(KINDS)))
    yield
    del FAMILIES["breaking"]


def _options(kind: str, host: bool) -> list[str]:
    if not host:
        return ["--env", f"breaking/{kind}"]
    env, module = KINDS[kind], "tests.training.test_run_loop"
    kwargs = [f"breaks={env.breaks}", f"by={'-1e999' if env.by < 0 else '1e999' if env.by > 0 else 'nan'}"]
    return [
        "--import",
        module,
        "--env",
        "gymnasium/probe/Breaking-v0",
        "--env-kwargs",
        *kwargs,
        f"at_once={env.at_once}",
    ]


def _fate(seed: int, host: bool) -> int:
    if host:
        return HostBreaking.fate(seed_of(Stream.RESETS, seed, 0, 0))
    return int(Breaking.fate(stream(seed, Stream.ENVIRONMENT)))


SEEDS = (1, 2, 3)


@pytest.mark.parametrize(
    ("kind", "host"),
    [(kind, host) for host in (False, True) for kind in KINDS if host or kind in ("reward-nan", "observation-inf")],
)
def test_an_environment_that_gives_what_is_not_finite(
    kind: str,
    host: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Training stops, says whose fault it was, and keeps nothing of that chunk."""
    monkeypatch.setattr(host_module, "CHUNK_SECONDS", 1e9)  # a chunk ends where a log entry is due, and nowhere else
    fates = {seed: _fate(seed, host) for seed in SEEDS}
    frame, seed = min((fate, seed) for seed, fate in fates.items())
    assert len(set(fates.values())) == len(SEEDS)
    assert list(fates).index(seed) > 0 or host  # not merely the first one
    if KINDS[kind].at_once:
        frame, seed = 0, SEEDS[0]
    out = tmp_path / "run"
    options = ["--seeds", "3", "--seed-start", "1", "--frames", "200", "--log-every", "10", "--checkpoint-seconds", "0"]
    assert main(["train", *SMALL, *options, *_options(kind, host), "--out", str(out)]) == 1
    (sentence,) = capsys.readouterr().err.splitlines()
    what = WHAT[KINDS[kind].breaks]
    assert sentence.startswith(
        f"ceqr: The environment of seed {seed} gave {what} that is not finite (NaN or infinite) in frame {frame:,}, "
        "so training stopped; "
    )
    assert "loss" not in sentence
    with open(out / "episodes.csv") as file:
        frames = [int(row["frame"]) for row in csv.DictReader(file)]
    whole = frame // 10 * 10
    if whole:
        assert whole - 5 < max(frames) <= whole
        assert f"the last good checkpoint is {out / 'checkpoints' / f'{whole:012d}.npz'}" in sentence
    else:
        assert frames == []
        assert "no checkpoint had been written yet" in sentence


def test_a_loss_that_diverges_is_the_losss_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--learning-rate", "1e38", "--frames", "200", "--out", str(tmp_path / "run")]
    env = ["--import", "tests.probe_family", "--env", "probe/noisy-chain"]
    assert main(["train", *SMALL, *options, *env]) == 1
    (sentence,) = capsys.readouterr().err.splitlines()
    assert sentence.startswith("ceqr: The loss of seed 0 was not finite in frame ")
    assert "environment" not in sentence
