"""The command line: `ceqr train | resume | eval | calibrate | monitor | diagnose | watch | plot | sweep | report |
regress | bench`.

Each command is a typed record that tyro turns into options, and a function that takes it. JAX is imported by the
command that needs it, so that help and most mistakes are answered at once.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from tyro.conf import Positional

from ceqr.errors import UserError

EXIT_FAILED, EXIT_USAGE, EXIT_ALARM = 1, 2, 3

RunPath = Annotated[Positional[Path], tyro.conf.arg(metavar="RUN")]
OptionalPath = Annotated[Path | None, tyro.conf.arg(metavar="PATH")]
Imports = Annotated[tuple[str, ...], tyro.conf.arg(name="import", metavar="[MODULE ...]")]


@dataclass(frozen=True)
class ResumeArgs:
    """Go on with a run from its newest checkpoint, to the same bits as if it had never stopped.

    A Gymnasium environment cannot be saved, so it starts a new episode; all else goes on exactly.
    """

    run: RunPath
    """Run directory."""
    frames: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Train to this many frames instead: extends a run, finished or not."""
    imports: Imports = ()
    """Modules to import first: what an environment or agent of your own needs, or what the run names and you trust."""
    quiet: bool = False
    """Print nothing but errors."""


@dataclass(frozen=True)
class EvalArgs:
    """Play greedy episodes with a trained run, on randomness that training never saw."""

    run: RunPath
    """Run directory."""
    episodes: int = 100
    """Episodes to play with each seed."""
    max_episode_frames: int = 50_000
    """Frames after which an episode counts as it stands: a good player may never lose."""
    imports: Imports = ()
    """Modules to import first: what an environment or agent of your own needs, or what the run names and you trust."""
    json: bool = False
    """Print JSON, with the return of every episode."""


@dataclass(frozen=True)
class CalibrateArgs:
    """Give the beliefs of a trained run a guarantee: play greedy episodes, on randomness that training never saw.

    From then on predictions of the run's agent have an interval that contains the return, and a p-value of novelty
    (docs/guarantees.md). It is kept in the run directory, for the newest checkpoint.
    """

    run: RunPath
    """Run directory."""
    episodes: int = 200
    """Episodes to play with each seed; more make intervals tighter and the least p-value smaller."""
    coverage: float = 0.9
    """Share of returns that intervals should contain."""
    max_episode_frames: int = 10_000
    """Frames after which an episode is cut off: a good player may never lose."""
    seed: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Seed of the play; each agent's own unless given."""
    imports: Imports = ()
    """Modules to import first: what an environment or agent of your own needs, or what the run names and you trust."""
    json: bool = False
    """Print JSON."""


@dataclass(frozen=True)
class MonitorArgs:
    """Play a calibrated run, and alarm if the world is no longer the one that it was calibrated in.

    It bets against "nothing has changed", and alarms when its capital passes 1 / delta: while nothing changes that ever
    happens with probability delta at most. The exit code is 3 on alarm, and 0 otherwise.
    """

    run: RunPath
    """Run directory, of a run that `ceqr calibrate` has seen."""
    env: Annotated[str | None, tyro.conf.arg(metavar="ENV")] = None
    """Environment to play; the run's own unless given."""
    env_kwargs: Annotated[tuple[str, ...] | None, tyro.conf.arg(metavar="[KEY=VALUE ...]")] = None
    """Its options; those of the run unless given, or unless the environment is another."""
    protocol: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """MinAtar's rules; the run's unless given."""
    episodes: int = 200
    """Episodes to play, at most; it stops at an alarm."""
    delta: float = 0.01
    """Probability of ever alarming although nothing has changed."""
    agent_seed: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Which of the run's seeds to watch; the first unless given."""
    seed: int = 0
    """Seed of the play, and of the chance that breaks ties."""
    imports: Imports = ()
    """Modules to import first: what an environment or agent of your own needs, or what the run names and you trust."""
    json: bool = False
    """Print JSON, with the capital after every episode."""


@dataclass(frozen=True)
class DiagnoseArgs:
    """Measure what the beliefs of trained runs are worth: coverage and reliability of intervals and quantiles, whether
    doubt knows strange states, in mazes whether the two uncertainties are two; all runs in one table, on one page.

    Plays greedy episodes on randomness that training never saw (docs/how-to-diagnose.md).
    """

    runs: Annotated[Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RUN...")] = ()
    """Run directories."""
    out: Annotated[Path, tyro.conf.arg(metavar="PATH")] = Path("diagnosis")
    """Directory to create: index.html, diagnostics.json and figures/."""
    episodes: int = 100
    """Episodes to play with each seed."""
    max_episode_frames: int = 10_000
    """Frames after which an episode is cut off: a good player may never lose."""
    imports: Imports = ()
    """Modules to import first: what an environment or agent of your own needs, or what a run names and you trust."""
    json: bool = False
    """Print what diagnostics.json holds."""


@dataclass(frozen=True)
class WatchArgs:
    """Write a page that plays episodes of a trained run, with all that the agent believes in every frame.

    The page is one file that needs no network (docs/how-to-watch.md). It plays greedily unless told otherwise, on
    randomness that training never saw. Intervals and novelty are on it if the run is calibrated.
    """

    run: RunPath
    """Run directory."""
    compare: Annotated[Path | None, tyro.conf.arg(metavar="RUN")] = None
    """Another run of the same environment, to play beside it on the same randomness."""
    out: OptionalPath = None
    """Page to write; doubt.html in the run directory unless given. A page that is there is replaced."""
    episodes: int = 3
    """Episodes to play."""
    agent_seed: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Which of the run's seeds to watch; the first unless given."""
    seed: int = 0
    """Seed of the play."""
    max_episode_frames: int = 5_000
    """Frames after which an episode is left as it stands: a good player may never lose."""
    explore: bool = False
    """Act as while learning (Thompson sample, random action, ...) instead of greedily."""
    gif: OptionalPath = None
    """Also write the first episode as an animation, its first 300 frames."""
    mp4: OptionalPath = None
    """Also write the first episode as a film; needs ffmpeg."""
    open: bool = False
    """Open the page in a browser."""
    imports: Imports = ()
    """Modules to import first: what an environment or agent of your own needs, or what the run names and you trust."""
    quiet: bool = False
    """Print nothing but errors."""


@dataclass(frozen=True)
class PlotArgs:
    """Draw a run's learning curves as a PNG."""

    run: RunPath
    """Run directory."""
    out: OptionalPath = None
    """Picture to write; learning_curve.png in the run directory unless given."""
    imports: Imports = ()
    """Modules to import first: what an agent of your own needs."""


@dataclass(frozen=True)
class ReportArgs:
    """Compare many runs: curves, scores, aggregates and uncertainties on one page, with pictures and tables."""

    paths: Annotated[Positional[tuple[Path, ...]], tyro.conf.arg(metavar="PATH...")] = ()
    """Run directories, or directories that hold some at any depth, such as a sweep's."""
    out: Annotated[Path, tyro.conf.arg(metavar="PATH")] = Path("report")
    """Directory to create: index.html, figures/ and tables/."""
    frames: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Report the first so many frames of each run: compares runs of different lengths, and those still under way."""
    across_capacity: bool = False
    """Show networks of different sizes in one panel, as the paper's Figure 3 does, and not in settings of their own."""
    scales: Annotated[Path | None, tyro.conf.arg(metavar="FILE.csv")] = None
    """What is 0 and 1 in normalised scores, by columns env, random and reference; MinAtar's games need none."""
    resamples: int = 2_000
    """Bootstrap resamples of each interval."""
    keep: bool = False
    """Also write curves.json into each finished run's directory: with config.json and summary.json beside it, it is all
    that a report needs of the run, in some kilobytes."""
    imports: Imports = ()
    """Modules to import first: what an agent of your own needs."""
    quiet: bool = False
    """Print nothing but errors."""


@dataclass(frozen=True)
class RegressArgs:
    """Fit the evidential quantile regressor: to a table, or, without one, to the paper's synthetic example."""

    table: Annotated[Positional[Path | None], tyro.conf.arg(metavar="TABLE.csv")] = None
    """Table to fit, a CSV file of numbers with a header line; the paper's Figure 2 is repeated unless given."""
    target: Annotated[str | None, tyro.conf.arg(metavar="COLUMN")] = None
    """Column of the table to predict, from all others."""
    ignore: tuple[str, ...] = ()
    """Columns of the table to leave out."""
    predict: OptionalPath = None
    """Another table, whose rows to predict; unless given, the table's own rows are predicted out of sample."""
    out: OptionalPath = None
    """Directory to create; fig2 or <table>-predictions unless given."""
    coverage: float = 0.9
    """Share of targets that the interval should contain."""
    hidden: tuple[int, ...] = (128, 128)
    """Units of each hidden layer."""
    epochs: int = 100
    """Passes over the data, at most."""
    learning_rate: float = 1e-3
    """Adam's learning rate at the start."""
    lambda_reg: float = 0.05
    """Strength of the evidence regulariser."""
    conformal: bool = False
    """Hold out rows to correct the interval by, which guarantees its coverage."""
    seed: int = 0
    """Seed, the first of them for Figure 2."""
    seeds: int = 1
    """How many seeds to repeat Figure 2 with."""
    quiet: bool = False
    """Print nothing but errors."""


@dataclass(frozen=True)
class SweepArgs:
    """Run many configurations: all combinations of agents, environments, seeds and options.

    Any option of 'ceqr train' can be given, too, with one value or several: --calibration paper,none --hidden 128,1600
    (layers as 256x256). An option that only some of the agents have multiplies the runs of those alone. With --search,
    options with several values or a range (--lambda-ep 0.0001..1:log) are searched. Started again, a sweep goes on.
    """

    sweep: Annotated[Positional[str | None], tyro.conf.arg(metavar="SWEEP")] = None
    """A TOML file, the directory of a sweep to go on with, or figure3 or small, which come with ceqr. Options given
    beside it count instead of its own."""
    out: OptionalPath = None
    """Sweep directory; sweeps/<name> unless given."""
    agents: Annotated[str | None, tyro.conf.arg(metavar="NAMES")] = None
    """Algorithms, with commas between them; all for all. ceqr-dqn unless given."""
    envs: Annotated[str | None, tyro.conf.arg(metavar="NAMES")] = None
    """Environments, with commas between them; minatar/all for all of them. minatar/breakout unless given."""
    seeds: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """How many seeds of each; 1 unless given."""
    seed_start: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """The first seed; 0 unless given."""
    seeds_per_run: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Seeds that share a run directory and train in step; 1 unless given, more for accelerators."""
    cores: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Cores of each run; 0, the default, for one, and two for networks so large that they make use of them."""
    search: bool = False
    """Search the space of all options that have several values or a range, with Optuna (extra `search`)."""
    trials: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None
    """Trials of a search for each environment and agent; 20 unless given."""
    metric: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """What a search looks for: final (mean return of the last 100 episodes, the default) or mean (of all)."""
    engine: Literal["local", "ray"] = "local"
    """Who runs the runs: this machine, or a Ray cluster (extra `ray`)."""
    address: Annotated[str | None, tyro.conf.arg(metavar="ADDRESS")] = None
    """Ray's address, such as auto or ray-head:6379; a Ray of its own on this machine unless given."""
    gpus: float = 0.0
    """Accelerators of each run, for Ray to place it by."""
    retries: int = 2
    """How often a run that failed is tried again, in all starts of the sweep together."""
    dry_run: bool = False
    """Print the runs, their frames, disk and time, the last from a short measurement; start nothing."""
    imports: Imports = ()
    """Modules to import first: what an environment or agent of your own needs, or what SWEEP names and you trust."""
    quiet: bool = False
    """Print nothing but errors."""


@dataclass(frozen=True)
class BenchArgs:
    """Measure the training loop against the bare arithmetic of its network, in one run."""

    env: str = "minatar/breakout"
    """Environment."""
    agents: tuple[str, ...] = ("ceqr-dqn",)
    """Algorithms to measure; all for all of them."""
    hidden: tuple[int, ...] = ()
    """Sizes of the hidden layer to measure; 1600 and 128 for ceqr-dqn alone, 128 for several agents."""
    seeds: int = 1
    """Seeds at once."""
    seconds: float = 2.0
    """How long each measurement should take."""
    repeats: int = 5
    """Measurements of each kind, of which the median counts."""
    sb3: bool = False
    """Also measure our QR-DQN against that of sb3-contrib, in turns (needs the extra `bench`)."""
    json: bool = False
    """Print JSON."""


def train(argv: Sequence[str]) -> int:
    args = _parse_train(argv)
    config = args.run
    config.check()
    game = re.sub(r"[^\w.-]", "-", config.env.partition("/")[2])
    out = args.out or Path("runs", f"{game}-{config.agent}-{config.preset}")
    use_compilation_cache()
    from ceqr.training.train import start

    return _run_training(lambda: start(config, out, args.quiet))


def _parse_train(argv: Sequence[str]) -> Any:
    """The options of `ceqr train`: which there are, and their defaults, depends on agent, preset and environment."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("agent", "preset", "env", "config"):
        first.add_argument(f"--{name}", nargs="?")
    first.add_argument("--env-kwargs", "--env_kwargs", nargs="*", default=())
    first.add_argument("--import", nargs="*", default=(), dest="imports")
    given, _ = first.parse_known_args(argv)
    _import(given.imports)

    from ceqr.agents import agent_classes
    from ceqr.config import RunConfig, default_config, require_trust

    if given.config is None:
        names = (given.agent or "ceqr-dqn", given.preset, given.env or "minatar/breakout")
        config = default_config(*names, env_kwargs=given.env_kwargs)
    else:
        for name in ("agent", "preset", "env"):
            if getattr(given, name) is not None:
                raise UserError(f"--{name} cannot be given with --config, which says it already.")
        from ceqr.runs import read_config_file

        config, _ = read_config_file(Path(given.config), f"--config {given.config} cannot be read")
        require_trust(config.env, given.imports, given.config)
    _, hyper_class = agent_classes(config.agent)
    # Names of nested records are the titles of groups in the help.
    hyper_type = Annotated[hyper_class, tyro.conf.arg(name=config.agent)]
    run_type = Annotated[RunConfig[hyper_type], tyro.conf.arg(name="")]  # pyright: ignore[reportInvalidTypeArguments]

    @dataclass(frozen=True)
    class TrainArgs:
        """Train an agent from scratch; what is not given comes from the preset."""

        run: run_type  # pyright: ignore[reportInvalidTypeForm]
        out: OptionalPath = None
        """Run directory to create; runs/<game>-<agent>-<preset> unless given."""
        config: OptionalPath = None
        """A run's config.json to repeat, instead of a preset."""
        imports: Imports = ()
        """Modules to import first: what an environment or agent of your own needs, or what --config names and you
        trust."""
        quiet: bool = False
        """Print nothing but errors."""

    args = _parse(TrainArgs, "train", argv, TrainArgs(run=config))
    args.run.share_env(config)
    return args


def _import(modules: Sequence[str]) -> None:
    """Imports what the user named on the command line."""
    from ceqr.envs import import_module

    for name in modules:
        try:
            import_module(name)
        except ValueError as error:
            raise UserError(str(error)) from error


def resume(argv: Sequence[str]) -> int:
    args = _parse(ResumeArgs, "resume", argv)
    _import(args.imports)
    use_compilation_cache()
    from ceqr.training.train import resume

    return _run_training(lambda: resume(args.run, args.frames, args.quiet, imports=args.imports))


def _run_training(go: Callable[[], None]) -> int:
    from ceqr.training.train import Diverged, EnvironmentStopped, Interrupted

    try:
        go()
    except Interrupted as stop:
        print(stop, file=sys.stderr)
        return 128 + stop.signal_number
    except Diverged as error:
        return _fail(error, EXIT_FAILED)
    except EnvironmentStopped as error:
        traceback.print_exception(error.__cause__)
        return _fail(error, EXIT_FAILED)
    return 0


def evaluate(argv: Sequence[str]) -> int:
    args = _parse(EvalArgs, "eval", argv)
    _import(args.imports)
    use_compilation_cache()
    from ceqr.evaluate import evaluate

    options = {"quiet": args.json, "imports": args.imports}
    result = evaluate(args.run, args.episodes, args.max_episode_frames, **options).to_json()
    if args.json:
        print(json.dumps(result, indent=2))
        return 0
    print(f"{result['run']} at frame {result['frame']:,}: return of {args.episodes} greedy episodes a seed")
    rows = [(f"seed {s['seed']}", s) for s in result["seeds"]] + [("overall", result["overall"])]
    for name, row in rows:
        print(f"  {name:<10} mean {row['mean']:8.2f}  std {row['std']:7.2f}  min {row['min']:g}  max {row['max']:g}")
    cut = sum(s["cut"] for s in result["seeds"])
    if cut:
        print(f"  {cut} episode(s) had not ended after {args.max_episode_frames:,} frames and count as they stood.")
    return 0


def calibrate(argv: Sequence[str]) -> int:
    args = _parse(CalibrateArgs, "calibrate", argv)
    _check_seed("seed", args.seed)
    _import(args.imports)
    use_compilation_cache()
    from ceqr.calibrate import calibrate_run

    options = (args.episodes, args.coverage, args.max_episode_frames, args.seed)
    path, found = calibrate_run(args.run, *options, quiet=args.json, imports=args.imports)
    if args.json:
        print(json.dumps({"file": str(path), "seeds": {str(k): v.to_json() for k, v in found.items()}}, indent=2))
        return 0
    share = f"{100 * args.coverage:g} %"
    print(f"{args.run}: {share} intervals of the return, from {args.episodes:,} greedy episodes a seed")
    for seed, each in found.items():
        own = f"its own held {100 * each.own_coverage:.1f} %, mean width {each.own_width:.4g}; "
        own = own if each.own_width else "it has no quantiles, so around the mean; "
        print(f"  seed {seed}: {own}moved by {each.widening:+.4g}, mean width {each.width:.4g}")
        if each.known < each.episodes:
            print(f"    {each.episodes - each.known:,} episode(s) were cut off so early that no return is known.")
        if each.rarity is None:
            print("    The agent has no doubt of its own, and so no novelty.")
    print(path)
    return 0


def monitor(argv: Sequence[str]) -> int:
    args = _parse(MonitorArgs, "monitor", argv)
    for option, seed in (("seed", args.seed), ("agent-seed", args.agent_seed)):
        _check_seed(option, seed)
    _import(args.imports)
    use_compilation_cache()
    from ceqr.monitor_run import monitor_run

    changed = {"env": args.env, "env_kwargs": args.env_kwargs, "protocol": args.protocol}
    options = (changed, args.episodes, args.delta, args.agent_seed, args.seed)
    result = monitor_run(args.run, *options, quiet=args.json, imports=args.imports)
    if args.json:
        print(json.dumps(result.to_json(), indent=2))
        return EXIT_ALARM if result.alarm else 0
    print(f"{args.run} in {result.env}, against {result.reference:,} episodes of its calibration")
    each = ", ".join(f"{kind} {capital:.3g}" for kind, capital in result.capitals.items())
    print(f"  capital {result.capital:.3g} after {result.episodes:,} episodes ({each}); alarm at {1 / args.delta:,.0f}")
    if result.alarm:
        print(f"ALARM after {result.episodes:,} episodes: the world is not the one it was calibrated in.")
        return EXIT_ALARM
    print("No alarm: no evidence that anything has changed.")
    return 0


def diagnose(argv: Sequence[str]) -> int:
    args = _parse(DiagnoseArgs, "diagnose", argv)
    _import(args.imports)
    if not args.runs:
        raise UserError("Which runs? Name run directories: ceqr diagnose runs/x runs/y.")
    use_compilation_cache()
    from ceqr.diagnostics import command

    patients = command.admit(args.runs, args.episodes, args.max_episode_frames, args.imports)
    with _new_folder(args.out):
        diagnosis = command.diagnose(patients, args.episodes, args.max_episode_frames, quiet=args.json)
        command.write(diagnosis, args.out, quiet=args.json)
    if args.json:
        print(json.dumps(diagnosis.to_json(), indent=2, allow_nan=False))
        return 0
    for line in command.describe(diagnosis):
        print(line)
    print(args.out / "index.html")
    return 0


def _check_seed(option: str, seed: int | None) -> None:
    if seed is not None and not 0 <= seed < 2**31 - 1:
        raise UserError(f"--{option} must be from 0 to 2,147,483,646, not {seed:,}.")


def watch(argv: Sequence[str]) -> int:
    args = _parse(WatchArgs, "watch", argv)
    for option, seed in (("seed", args.seed), ("agent-seed", args.agent_seed)):
        _check_seed(option, seed)
    _import(args.imports)
    use_compilation_cache()
    from ceqr.viewer.command import watch

    options = {
        "compare": args.compare, "out": args.out, "episodes": args.episodes, "agent_seed": args.agent_seed,
        "seed": args.seed, "limit": args.max_episode_frames, "explore": args.explore, "gif": args.gif, "mp4": args.mp4,
    }  # fmt: skip
    written = watch(args.run, **options, quiet=args.quiet, imports=args.imports)
    if not args.quiet:
        for note in written.notes:
            print(f"Note: {note}", file=sys.stderr)
        for file in written.files:
            print(file)
    if args.open:
        import webbrowser

        if not webbrowser.open(written.files[0].resolve().as_uri()) and not args.quiet:
            print("Note: there is no browser to open it with.", file=sys.stderr)
    return 0


def plot(argv: Sequence[str]) -> int:
    args = _parse(PlotArgs, "plot", argv)
    _import(args.imports)
    from ceqr.plot import plot

    print(plot(args.run, args.out))
    return 0


def report(argv: Sequence[str]) -> int:
    args = _parse(ReportArgs, "report", argv)
    _import(args.imports)
    if not args.paths:
        raise UserError("Which runs? Name run directories, or directories that hold some: ceqr report runs/.")
    from ceqr.experiments import report
    from ceqr.experiments.references import read_scales

    if not report.LEAST_RESAMPLES <= args.resamples <= 1_000_000:
        raise UserError(f"--resamples must be from {report.LEAST_RESAMPLES} to 1,000,000, not {args.resamples:,}.")
    if args.keep and args.frames is not None:
        raise UserError("--keep is of whole runs: leave --frames out.")
    scales = read_scales(args.scales) if args.scales else {}
    with _new_folder(args.out):
        records = report.read(args.paths, args.frames, args.quiet)
        if args.keep:
            report.keep(records)
        written = report.write(records, args.out, scales, args.across_capacity, args.resamples, args.quiet)
    if not args.quiet:
        for note in written.notes:
            print(f"Note: {note}", file=sys.stderr)
        print(f"{written.page}: {written.used:,} of {written.runs:,} runs")
    return 0


def regress(argv: Sequence[str]) -> int:
    args = _parse(RegressArgs, "regress", argv)
    _check_regress(args)
    use_compilation_cache()
    from ceqr.regression import EvidentialQuantileRegressor

    names = ("coverage", "hidden", "epochs", "learning_rate", "lambda_reg", "conformal")
    options = {name: getattr(args, name) for name in names}
    model = EvidentialQuantileRegressor(**options)
    try:
        model.check_parameters()
    except ValueError as error:
        name, _, rest = str(error).partition(" ")
        raise UserError(f"--{name.replace('_', '-')} {rest}") from error
    go = _regress_figure if args.table is None else _regress_table
    out = args.out or Path("fig2" if args.table is None else f"{args.table.stem}-predictions")
    try:
        model.check_memory(inputs=1)  # at least one column
        go(args, options, out)
    except ValueError as error:  # the estimator's own sentence, such as that rows are too few
        raise UserError(re.sub(r"n_samples = ", "", str(error))) from error
    return 0


def _check_regress(args: RegressArgs) -> None:
    for option, value, least in (("seed", args.seed, 0), ("seeds", args.seeds, 1)):
        if not least <= value < 2**31:
            raise UserError(f"--{option} must be from {least} to 2,147,483,647, not {value:,}.")
    if args.table is None:
        for option, value in (("target", args.target), ("ignore", args.ignore), ("predict", args.predict)):
            if value:
                raise UserError(f"--{option} needs a table: ceqr regress TABLE.csv --target COLUMN.")
    elif args.target is None:
        raise UserError(f"Which column of {args.table} should be predicted? Say it with --target COLUMN.")
    elif args.seeds != 1:
        raise UserError("--seeds is for the paper's example; a table is fitted with one --seed.")


def _regress_figure(args: RegressArgs, options: dict[str, Any], out: Path) -> None:
    from ceqr.regression.figure import header, repeat_figure

    say: Callable[[str], None] = (lambda text: None) if args.quiet else print
    with _new_folder(out):
        say(header())
        repeat_figure(options, range(args.seed, args.seed + args.seeds), out, say, not args.quiet)
    say(f"{out / 'figure.png'}, {out / 'summary.json'}")


def _regress_table(args: RegressArgs, options: dict[str, Any], out: Path) -> None:
    from ceqr.regression import table

    assert args.table is not None
    assert args.target is not None
    data = table.read(args.table, args.ignore)
    names = table.check_table(data, args.target)
    new = table.read(args.predict, (), (*names, args.target)) if args.predict else None
    if new:
        new.matrix(names)
    with _new_folder(out):
        summary = table.predict_table(data, args.target, new, options, args.seed, out, not args.quiet)
    if args.quiet:
        return
    print(f"{summary['predictions']:,} predictions from {summary['rows']:,} rows: {summary['predicted']}")
    if summary["coverage"] is not None:
        print(
            f"  coverage {100 * summary['coverage']:.1f} %, goal {100 * args.coverage:g} %; rmse {summary['rmse']:.4g}"
        )
    print(
        f"  mean width {summary['mean_width']:.4g}, aleatoric {summary['mean_aleatoric']:.4g}, "
        f"epistemic {summary['mean_epistemic']:.4g}"
    )
    print(f"{out / 'predictions.csv'}, {out / 'summary.json'}")


@contextlib.contextmanager
def _new_folder(path: Path) -> Iterator[None]:
    """A new folder for results, gone again if there are none."""
    from ceqr.files import claim_folder

    existed = path.exists()
    claim_folder(path)
    try:
        yield
    except BaseException:
        if not existed and not any(path.iterdir()):
            path.rmdir()
        raise


def sweep(argv: Sequence[str]) -> int:
    own, options = _split_options(argv, SweepArgs)
    args = _parse(SweepArgs, "sweep", own)
    _import(args.imports)
    from ceqr.experiments.command import sweep

    return sweep(args, options)


def _split_options(argv: Sequence[str], kind: Any) -> tuple[list[str], dict[str, str]]:
    """Apart: a command's own arguments, and all other options, which have one value each."""
    known = {_option_name(f.name) for f in dataclasses.fields(kind)} - {"imports"} | {"import", "help"}
    own: list[str] = []
    others: dict[str, str] = {}
    rest = list(argv)
    while rest:
        argument = rest.pop(0)
        name, equals, value = argument.removeprefix("--").partition("=")
        name = _option_name(name)
        if not argument.startswith("--") or name in known:
            own.append(argument)
            continue
        if not equals:
            value = rest.pop(0) if rest and not rest[0].startswith("--") else "true"
        if name in others:
            raise UserError(f"--{name} is given twice; separate several values by commas.")
        others[name] = value
    return own, {name.replace("-", "_"): value for name, value in others.items()}


def _option_name(name: str) -> str:
    return name.replace("_", "-")


def bench(argv: Sequence[str]) -> int:
    args = _parse(BenchArgs, "bench", argv)
    for option, value in (("seeds", args.seeds), ("repeats", args.repeats)):
        if value < 1:
            raise UserError(f"--{option} must be at least 1, not {value:,}.")
    if not 0 < args.seconds < 3600:
        raise UserError(f"--seconds must be above 0 and below 3,600, not {args.seconds:,}.")
    from ceqr import envs
    from ceqr.agents import AGENTS
    from ceqr.config import RunConfig, default_config

    def config(agent: str, units: int) -> RunConfig[Any]:
        base = default_config(agent, "paper", args.env)
        return dataclasses.replace(base, seeds=args.seeds, hyper=dataclasses.replace(base.hyper, hidden=(units,)))

    agents = list(AGENTS) if args.agents == ("all",) else args.agents
    sizes = args.hidden or ((1600, 128) if args.agents == ("ceqr-dqn",) else (128,))
    configs = [config(agent, units) for units in sizes for agent in agents]
    for each in configs:
        each.check()
        if not envs.family(each.env).compiled:
            raise UserError(f"ceqr bench measures compiled environments; for {each.env}, a run's timing.csv tells.")
    if args.sb3:
        from ceqr.bench_sb3 import require_sb3

        require_sb3()
    use_compilation_cache()
    from ceqr.bench import measure

    say = (lambda text: None) if args.json else (lambda text: print(text, file=sys.stderr, flush=True))
    results = []
    for each in configs:
        say(f"measuring {each.agent} on {each.env} with {each.hyper.hidden[0]} hidden units ...")
        results.append(measure(each, args.seconds, args.repeats))
    versus = None
    if args.sb3:
        from ceqr.bench_sb3 import measure_sb3

        say("measuring qr-dqn against sb3-contrib's with 128 hidden units ...")
        versus = measure_sb3(config("qr-dqn", 128), args.seconds, args.repeats)
    if args.json:
        print(json.dumps({"loops": [r.to_json() for r in results], "sb3": versus and versus.to_json()}, indent=2))
        return 0
    print(f"{'agent':<17} {'hidden':>6} {'parameters':>11} {'whole loop':>16} {'bare arithmetic':>16} {'ratio':>6}")
    for r in results:
        rates = f"{r.loop:>9,.1f} frames/s {r.bare:>9,.1f} frames/s"
        print(f"{r.agent:<17} {r.hidden[0]:>6} {r.parameters:>11,} {rates} {r.ratio:>6.2f}")
    if versus:
        print(
            f"qr-dqn against sb3-contrib's, 128 hidden units, batch 32, one update a frame, in turns: "
            f"{versus.ours:,.1f} against {versus.theirs:,.1f} frames/s, {versus.ratio:.1f} times"
        )
    return 0


COMMANDS: dict[str, tuple[Callable[[Sequence[str]], int], str]] = {
    "train": (train, "train an agent from scratch"),
    "resume": (resume, "go on with a run, or extend it"),
    "eval": (evaluate, "play greedy episodes with a trained run"),
    "calibrate": (calibrate, "give a run's beliefs a guarantee"),
    "monitor": (monitor, "alarm if the world is not the one of the calibration"),
    "diagnose": (diagnose, "measure what the beliefs of runs are worth: a page, pictures and JSON"),
    "watch": (watch, "write a page that plays a run with its doubt"),
    "plot": (plot, "draw a run's learning curves"),
    "sweep": (sweep, "run many configurations, on this machine or on a Ray cluster"),
    "report": (report, "compare many runs: a page, pictures and tables"),
    "regress": (regress, "fit the regressor to a table, or to the paper's example"),
    "bench": (bench, "measure the training loop against its bare arithmetic"),
}


def _help() -> str:
    lines = [f"  {name:<9} {text}" for name, (_, text) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: ceqr COMMAND [OPTIONS]",
            "",
            "Reinforcement learning that knows what it does not know.",
            "",
            "commands:",
            *lines,
            "",
            "'ceqr COMMAND --help' explains a command; 'ceqr --version' prints the version.",
        ]
    )


def _parse(kind: Any, command: str, argv: Sequence[str], default: Any = None) -> Any:
    options = {} if default is None else {"default": default}
    style = (tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff)
    return tyro.cli(kind, prog=f"ceqr {command}", args=list(argv), config=style, **options)


def use_compilation_cache() -> None:
    """Keeps compiled programs between starts."""
    from ceqr.compilation import use_compilation_cache

    use_compilation_cache()


def _fail(error: BaseException, code: int) -> int:
    print(f"ceqr: {error}", file=sys.stderr)
    return code


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(_help())
        return 0 if argv else EXIT_USAGE
    if argv[0] == "--version":
        import importlib.metadata

        print(f"ceqr {importlib.metadata.version('ceqr')}")
        return 0
    try:
        if argv[0] not in COMMANDS:
            raise UserError(f"Unknown command {argv[0]!r}: known are {', '.join(COMMANDS)}.")
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: print(f"Warning: {message}", file=sys.stderr)
            return COMMANDS[argv[0]][0](argv[1:])
    except UserError as error:
        return _fail(error, EXIT_USAGE)
    except BrokenPipeError:  # whoever read our output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except OSError as error:
        return _fail(error, EXIT_FAILED)
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
