"""The command line as a newcomer meets it: help, mistakes, and what each command prints."""

import json
import subprocess
import sys
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest

from ceqr.cli import COMMANDS, _parse_train, main, use_compilation_cache
from ceqr.compilation import cache_folder
from tests.conftest import TINY
from tests.sharing import shared_programs

FEW = ["data.csv", "--target", "y"]
CHAIN = ["--import", "tests.probe_family", "--env", "probe/noisy-chain"]


@pytest.fixture(scope="module", autouse=True)
def _shared_programs() -> Any:
    with shared_programs():
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small finished run."""
    out = tmp_path_factory.mktemp("cli") / "run"
    seeds = ["--seeds", "2", "--seed-start", "7"]
    assert main(["train", *CHAIN, *TINY, *seeds, "--frames", "300", "--out", str(out)]) == 0
    return out


def test_help_needs_no_jax() -> None:
    script = "import sys; from ceqr.cli import main; main(['--help']); sys.exit('jax' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert all(name in result.stdout for name in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    assert f"ceqr {command}" in capsys.readouterr().out


def test_train_has_an_option_for_every_hyperparameter(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    text = capsys.readouterr().out
    for option in (
        "batch-size", "quantiles", "replay-size", "learning-starts", "target-period", "discount", "frames",
        "learning-rate", "adam-eps", "update-every", "kappa", "lambda-al", "lambda-ep", "lambda-reg", "lambda-cal",
        "calibration", "hidden", "env", "agent", "preset", "protocol", "seeds", "seed-start", "out",
    ):  # fmt: skip
        assert f"--{option} " in text, option


@pytest.mark.parametrize("agent", ["ceqr-dqn", "dqn"])
def test_help_says_whose_options_they_are(agent: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--agent", agent, "--help"])
    text = capsys.readouterr().out
    assert f" {agent} options " in text
    assert "run.hyper" not in text


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--env", "minatar/breakot"], "did you mean 'minatar/breakout'"),
        (["--env", "chess"], "known are minatar/asterix"),
        (["--env", "CartPole-v1"], "there is 'gymnasium/CartPole-v1' and 'gymnax/CartPole-v1'"),
        (["--env", "gymnasium/.x:Foo"], "The module '.x' cannot be imported: TypeError"),
        (["--env", "gymnasium/CartPole-v7"], "did you mean 'CartPole-v1'"),
        (["--env", "gymnasium/Pendulum-v1"], "Pendulum-v1 has actions of Box"),
        (["--env", "gymnasium/Blackjack-v1"], "Blackjack-v1 has observations of Tuple"),
        (["--env", "gymnasium/CartPole-v1", "--env-kwargs", "gravity"], "--env-kwargs takes key=value pairs"),
        (["--env", "gymnasium/CartPole-v1", "--env-kwargs", "gravity=1"], "cannot be made with gravity=1: TypeError"),
        (["--env", "gymnasium/CartPole-v1", "--protocol", "standard"], "--protocol is MinAtar's"),
        (["--env", "gymnasium/CartPole-v1", "--num-envs", "0"], "--num-envs must be at least 1, not 0"),
        (["--env-kwargs", "a=1"], "minatar/breakout has no option 'a'; it has protocol (MinAtar's rules), max_"),
        (["--env-kwargs", "protocol=paper"], "--env-kwargs gives protocol, for which there is --protocol"),
        (["--env", "gymnax/CartPole-v7"], "did you mean 'CartPole-v1'"),
        (["--env", "gymnax/Pendulum-v1"], "Pendulum-v1 has actions of Box"),
        (["--env", "gymnax/DeepSea-bsuite", "--env-kwargs", "sise=4"], "did you mean 'size'"),
        (["--import", "no_such_module"], "The module 'no_such_module' cannot be imported: No module named"),
        (["--replay-size", "2_000_000_000"], "GiB of memory, and this machine has"),
        (["--hidden", "1_000_000_000"], "GiB of memory, and this machine has"),
        (["--seeds", "100_000_000"], "GiB of memory, and this machine has"),
        (["--agent", "ceqr"], "did you mean 'ceqr-dqn'"),
        (["--preset", "slow"], "Unknown preset 'slow'"),
        (["--protocol", "original"], "Unknown protocol 'original'"),
        (
            ["--batch-size", "200", "--replay-size", "100"],
            "--batch-size 200 is larger than --replay-size 100",
        ),
        (["--batch-size", "0"], "--batch-size must be at least 1, not 0"),
        (["--frames", "4_999"], "--frames 4,999 ends before learning starts at frame 5,000"),
        (["--lambda-ep", "-0.1"], "--lambda-ep must be at least 0.0, not -0.1"),
        (["--lambda-al", "nan"], "--lambda-al must be a finite number, not nan"),
        (["--quantiles", "1"], "--quantiles must be at least 2, not 1"),
        (["--discount", "1.5"], "--discount must be at most 1.0, not 1.5"),
        (["--learning-rate", "0"], "--learning-rate must be above 0.0, not 0.0"),
        (["--learning-rate", "inf"], "--learning-rate must be a finite number, not inf"),
        (["--checkpoint-seconds", "inf"], "--checkpoint-seconds must be a finite number"),
        (["--target-period", "3_000_000_000"], "--target-period must be at most 2,147,483,646"),
        (["--seed-start", "2_147_483_646", "--seeds", "2"], "goes past 2,147,483,646"),
        (["--torso", "deep"], "--torso must be one of standard, padded"),
        (["--agent", "dqn", "--epsilon-end", "2"], "--epsilon-end must be at most 1.0, not 2.0"),
        (["--calibration", "yes"], "--calibration must be one of paper, released, none"),
        (["--hidden", "16", "0"], "--hidden must be at least 1, not 0"),
        (["--seeds", "0"], "--seeds must be at least 1, not 0"),
        (["--config", "no/such/config.json"], "there is no no/such/config.json"),
        (["--config", "x.json", "--preset", "quick"], "--preset cannot be given with --config"),
        (["--out", "/proc/nowhere"], "Cannot write to /proc/nowhere"),
    ],
)
def test_a_mistake_gets_one_sentence_and_nothing_is_written(
    arguments: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", *arguments]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert sentence in output.err
    assert output.err.startswith("ceqr: ")
    assert output.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["resume", "eval", "calibrate", "monitor"])
def test_a_run_from_a_stranger_imports_nothing_unasked(
    command: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil_run.py").write_text("open('ran', 'w').close()")
    strange = json.loads((run / "config.json").read_text())
    strange["config"]["env"] = "gymnasium/evil_run:X-v0"
    copytree(run, tmp_path / "run")
    (tmp_path / "run" / "config.json").write_text(json.dumps(strange))
    assert main([command, "run"]) == 2
    assert "say so with --import evil_run." in capsys.readouterr().err
    assert main(["plot", "run"]) == 0  # needs none of it
    assert main(["report", "run", "--quiet"]) == 0
    assert main(["train", "--config", "run/config.json", "--out", "new"]) == 2
    assert "say so with --import evil_run." in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()
    assert main([command, "run", "--import", "evil_run"]) == 2  # there is no X-v0 in it
    assert "Gymnasium has no environment 'X-v0'" in capsys.readouterr().err
    assert (tmp_path / "ran").exists()
    del sys.modules["evil_run"]  # for good: the next run is another stranger


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--hidden", "100_000_000"], "Hidden layers of 100,000,000 units need about"),
        (["--hidden", "2147483646", "2147483646"], "GiB are free; take fewer units."),
        (
            ["data.csv", "--target", "y", "--conformal", "--coverage", "0.999"],
            "The conformal correction for a coverage of 0.999 holds out",
        ),
        (
            ["data.csv", "--target", "y", "--conformal", "--coverage", "0.999"],
            "give more rows or do without it.",
        ),
        ([*FEW, "--learning-rate", "1e30"], "a learning rate of 1e+30 is too large"),
        (["--learning-rate", "1e30", "--epochs", "2"], "a learning rate of 1e+30 is too large"),
    ],
)
def test_regress_speaks_of_options(
    arguments: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.csv").write_text("a,y\n" + "".join(f"{i},{i % 7}\n" for i in range(40)))
    assert main(["regress", *arguments, "--quiet"]) == 2
    message = capsys.readouterr().err
    assert sentence in message
    assert "=" not in message
    assert message.count("\n") == 1


def test_without_a_home_there_is_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for variable in ("CEQR_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    assert cache_folder() is None
    use_compilation_cache()
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_folder() == Path("/x/ceqr")
    monkeypatch.setenv("CEQR_CACHE_DIR", "/y")
    assert cache_folder() == Path("/y")


@pytest.mark.parametrize("arguments", [["--frames", "many"], ["--no-such-option", "1"]])
def test_an_option_that_cannot_be_read(arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(["train", *arguments])
    assert stop.value.code == 2
    assert list(tmp_path.iterdir()) == []


def _snapshot(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_directory_that_holds_a_run_is_never_overwritten(
    run: Path, tiny: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = _snapshot(run)
    assert main(["train", *tiny, "--frames", "300", "--out", str(run)]) == 2
    assert f"ceqr resume {run}" in capsys.readouterr().err
    assert _snapshot(run) == before
    (tmp_path / "notes.txt").write_text("mine")
    assert main(["train", *tiny, "--frames", "300", "--out", str(tmp_path)]) == 2
    assert "is not empty" in capsys.readouterr().err
    file = tmp_path / "notes.txt"
    assert main(["train", *tiny, "--frames", "300", "--out", str(file)]) == 2
    assert file.read_text() == "mine"


@pytest.mark.parametrize("command", ["resume", "eval", "plot"])
def test_a_directory_that_is_no_run(
    command: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, str(tmp_path)]) == 2
    assert "is not a run" in capsys.readouterr().err
    assert main([command, str(tmp_path / "nothing")]) == 2
    assert "is not a run" in capsys.readouterr().err
    (tmp_path / "config.json").write_text("{}")
    assert main([command, str(tmp_path)]) == 2
    assert "incompatible version" in capsys.readouterr().err
    (tmp_path / "config.json").write_text('{"format": 1, "config": {"agent": "ceqr-dqn", "hyper": {"lambda": 1}}}')
    assert main([command, str(tmp_path)]) == 2
    assert "incompatible version" in capsys.readouterr().err
    wrong_type = json.loads((run / "config.json").read_text())
    wrong_type["config"]["frames"] = "many"
    (tmp_path / "config.json").write_text(json.dumps(wrong_type))
    assert main([command, str(tmp_path)]) == 2
    assert "incompatible version" in capsys.readouterr().err
    (tmp_path / "config.json").write_text("not json")
    assert main([command, str(tmp_path)]) == 2
    assert "cannot be read" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["config.json"]


def test_resume_cannot_shorten_a_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = _snapshot(run)
    assert main(["resume", str(run), "--frames", "200"]) == 2
    assert "can only be extended" in capsys.readouterr().err
    assert _snapshot(run) == before


def test_unknown_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trian"]) == 2
    assert "Unknown command 'trian'" in capsys.readouterr().err
    assert main([]) == 2
    assert "usage: ceqr" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("ceqr 0.")


def test_defaults_follow_agent_and_environment() -> None:
    def hyper(*argv: str) -> Any:
        return _parse_train(argv).run.hyper

    assert hyper().lambda_ep == 0.01  # Breakout's
    assert hyper("--env", "minatar/asterix").lambda_ep == 0.001
    assert hyper(*CHAIN).lambda_ep == hyper("--preset", "quick").lambda_ep == 1  # with conjugate evidence, everywhere
    assert hyper(*CHAIN).evidence == "conjugate"
    assert hyper().evidence == "learned"  # as printed
    assert hyper(*CHAIN, "--lambda-ep", "3").lambda_ep == 3
    assert hyper("--agent", "dqn").hidden == (128,)


def test_config_and_summary(run: Path) -> None:
    config = json.loads((run / "config.json").read_text())
    assert config["config"]["env"] == "probe/noisy-chain"
    assert config["config"]["hyper"]["hidden"] == [16]
    assert config["config"]["seed_start"] == 7
    assert {"ceqr", "jax", "numpy"} <= set(config["packages"])
    summary = json.loads((run / "summary.json").read_text())
    assert [s["seed"] for s in summary["seeds"]] == [7, 8]
    rows = np.genfromtxt(run / "episodes.csv", delimiter=",", names=True, excludelist=[])
    for s in summary["seeds"]:
        returns = rows["return_"][rows["seed"] == s["seed"]]
        assert s["frames"] == 300
        assert s["episodes"] == len(returns)
        assert s["max"] == returns.max()
        assert s["mean_of_last_100"] == pytest.approx(returns[-100:].mean())


def test_progress_in_plain_lines(tiny: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loud = [option for option in tiny if option != "--quiet"]
    assert main(["train", *CHAIN, *loud, "--frames", "120", "--out", str(tmp_path / "run")]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert "parameters each" in lines[0]
    for word in ("120 of 120 frames", "frames/s", "left", "return", "non-greedy", "coverage", "loss"):
        assert word in lines[-2], word
    assert str(tmp_path / "run") in lines[-1]


def test_eval(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(run), "--episodes", "3", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["frame"] == 300
    assert [s["seed"] for s in result["seeds"]] == [7, 8]
    returns = [r for s in result["seeds"] for r in s["returns"]]
    assert len(returns) == 6
    assert result["overall"]["mean"] == pytest.approx(np.mean(returns))
    assert main(["eval", str(run), "--episodes", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == result
    assert main(["eval", str(run), "--episodes", "2"]) == 0
    text = capsys.readouterr().out
    assert "seed 7" in text
    assert "overall" in text
    assert main(["eval", str(run), "--episodes", "0"]) == 2


def test_plot(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plot", str(run)]) == 0
    assert capsys.readouterr().out.strip() == str(run / "learning_curve.png")
    assert (run / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    assert main(["plot", str(run), "--out", str(tmp_path / "x" / "y.png")]) == 2
    assert "Cannot write" in capsys.readouterr().err
    assert main(["plot", str(run), "--out", str(tmp_path / "y.pdf")]) == 2
    assert "must name a .png file" in capsys.readouterr().err


def test_games_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--agent", "dqn", "--hidden", "8", "--batch-size", "4", "--replay-size", "60", "--learning-starts", "20"]
    command = ["train", "--env", "minatar/breakout", "--num-envs", "2", *options, "--frames", "61"]
    assert main([*command, "--log-every", "20", "--out", str(tmp_path / "run")]) == 0
    assert "on 2 of minatar/breakout" in capsys.readouterr().err
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["seeds"][0]["frames"] == 62  # whole steps of both
    assert main(["eval", str(tmp_path / "run"), "--episodes", "2", "--json", "--max-episode-frames", "50"]) == 0
    assert len(json.loads(capsys.readouterr().out)["seeds"][0]["returns"]) == 2


def test_bench(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chain = ["--env", "probe/noisy-chain", "--agents", "dqn"]
    assert main(["bench", *chain, "--hidden", "8", "--seconds", "0.01", "--repeats", "1", "--json"]) == 0
    (result,) = json.loads(capsys.readouterr().out)["loops"]
    assert result["hidden"] == [8]
    assert result["ratio"] == pytest.approx(result["loop"] / result["bare"])
    assert main(["bench", "--repeats", "0"]) == 2
    assert main(["bench", "--env", "gymnasium/CartPole-v1"]) == 2
    assert "ceqr bench measures compiled environments" in capsys.readouterr().err
    assert main(["bench", "--env", "chess"]) == 2
    assert main(["bench", "--agents", "dqn", "qrdqn"]) == 2
    assert "did you mean 'qr-dqn'" in capsys.readouterr().err


@pytest.mark.slow
def test_bench_against_sb3(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sb3_contrib", reason="needs the extra `bench`")
    options = ["--agents", "dqn", "--hidden", "8", "--seconds", "0.1", "--repeats", "1"]
    assert main(["bench", *options, "--sb3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["sb3"]
    assert found["ratio"] == pytest.approx(found["ours"] / found["theirs"])


def test_tensorboard(tiny: list[str], tmp_path: Path) -> None:
    assert main(["train", *CHAIN, *tiny, "--frames", "120", "--tensorboard", "--out", str(tmp_path / "run")]) == 0
    (events,) = (tmp_path / "run" / "tensorboard" / "seed0").glob("events.out.tfevents.*")
    content = events.read_bytes()
    assert b"episode/return" in content
    assert b"metrics/loss" in content


@pytest.mark.parametrize(("module", "arguments", "extra"), [
    ("tensorboardX", ["train", "--tensorboard"], "ceqr[tensorboard]"),
    ("wandb", ["sweep", "--agents", "dqn", "--wandb"], "ceqr[wandb]"),
    ("ray", ["sweep", "--agents", "dqn", "--engine", "ray"], "ceqr[ray]"),
    ("optuna", ["sweep", "--agents", "dqn", "--search", "--discount", "0.9,0.99"], "ceqr[search]"),
    ("pgx_minatar.breakout", ["train"], "ceqr[minatar]"),
    ("gymnax", ["train", "--env", "gymnax/CartPole-v1"], "ceqr[gymnax]"),
    ("sb3_contrib", ["bench", "--sb3"], "ceqr[bench]"),
])  # fmt: skip
def test_a_missing_extra_is_named_with_its_command(
    module: str, arguments: list[str], extra: str, tmp_path: Path
) -> None:
    hide = f"import sys; sys.modules[{module!r}] = None"
    script = f"{hide}; from ceqr.cli import main; sys.exit(main({arguments!r}))"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert result.returncode == 2, result.stderr
    assert "pip install" in result.stderr
    assert extra in result.stderr
    assert result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_loss_that_is_not_finite_stops_the_run(
    tiny: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    tiny = [option for option in tiny if option not in ("--quantiles", "5")]
    wild = ["--agent", "dqn", "--learning-rate", "1e30", "--checkpoint-seconds", "0"]
    assert main(["train", *CHAIN, *tiny, *wild, "--seed-start", "3", "--frames", "300", "--out", str(out)]) == 1
    message = capsys.readouterr().err
    kept = max((out / "checkpoints").glob("*.npz"))
    assert "of seed 3 w" in message
    assert str(kept) in message
    assert message.count("\n") == 1
    with np.load(kept) as file:
        assert np.isfinite(file["agent/params/head/weight"]).all()
