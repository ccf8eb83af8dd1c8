"""`ceqr sweep`: from arguments to a sweep that has run, and what is said of it."""

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ceqr.envs import modules
from ceqr.errors import UserError
from ceqr.experiments import sweep as sweeps
from ceqr.experiments.directory import DONE, SweepDirectory, check_grown
from ceqr.experiments.execute import FAILED, WAITING, Fixed, Status, Work, execute
from ceqr.experiments.live import Live
from ceqr.experiments.sweep import WHOLE, Declaration, RunSpec
from ceqr.progress import duration
from ceqr.training import signals

if TYPE_CHECKING:
    from ceqr.cli import SweepArgs
    from ceqr.experiments.engine import Engine


def sweep(args: "SweepArgs", options: Mapping[str, str]) -> int:
    """Runs a sweep, or says what it would be; the exit code."""
    declared, trusted, out = _declaration(args, options)
    directory = SweepDirectory(out)
    if not directory.exists and out.is_dir() and any(not p.name.startswith(".") for p in out.iterdir()):
        raise UserError(f"{out} is not empty, and no sweep; choose another --out.")
    searched = "search" in declared
    if searched:
        from ceqr.experiments.search import require_optuna

        require_optuna()
    what = _what(declared, trusted)
    if directory.exists and (before := directory.declaration()) != declared:
        check_grown(directory, _what(before, trusted), what)
    # As many runs as there will be: what a search has yet to choose is at its default.
    trials = declared["search"]["trials"] if searched else 1
    runs = what if not searched else [run for kind in what for run in sweeps.runs_of(kind, declared)] * trials
    with signals.collected() as received:
        engine = _engine(args, runs)
        try:
            if args.dry_run:
                return _dry_run(runs, directory, engine, args.imports, received, searched)
            directory.hold()
            try:
                return _run(args, declared, what, directory, engine, received)
            finally:
                directory.let_go()
        finally:
            engine.close()


def _declaration(args: "SweepArgs", options: Mapping[str, str]) -> tuple[Declaration, tuple[str, ...], Path]:
    """What is declared by a file and by flags, which modules may be imported for it, and where it belongs."""
    given: Declaration = {}
    for name in ("agents", "envs", *WHOLE):
        if getattr(args, name) is not None:
            given[name] = getattr(args, name)
    if args.sweep is None and not given and not options:
        raise UserError(
            "Say what to sweep: a TOML file, a sweep's directory, figure3, small, or flags such as --agents."
        )
    path = None if args.sweep is None else sweeps.find(args.sweep)
    declared: Declaration = {} if path is None else sweeps.read(path)
    declared |= given
    whole = sweeps.complete(declared)
    agents = {agent for arm in ({}, *whole.get("arms", ())) for agent in (whole | arm)["agents"]}
    declared |= sweeps.from_flags(options, sorted(agents))
    asked = {name: getattr(args, name) for name in ("trials", "metric") if getattr(args, name) is not None}
    if args.search or asked:
        if not args.search and "search" not in declared:
            raise UserError(f"--{next(iter(asked))} is for a search: give --search, too.")
        declared["search"] = {**declared.get("search", {}), **asked}
    whole = sweeps.complete(declared)
    if path is None:
        out = Path("sweeps", re.sub(r"[^\w.-]+", "-", "-".join((*whole["envs"], *whole["agents"])))[:80])
    else:
        out = path.parent if path.name == "sweep.toml" else Path("sweeps", path.stem)
    # Who names an environment on the command line has named its module; a file's arms may play others yet.
    said = [module for env in whole["envs"] for module in modules(env)] if "envs" in given else []
    return whole, (*args.imports, *said), args.out or out


def _what(declared: Declaration, trusted: tuple[str, ...]) -> Sequence[Any]:
    """The runs of a sweep; of a search, its kinds, since it has yet to choose."""
    return sweeps.kinds(declared, trusted) if "search" in declared else sweeps.expand(declared, trusted)


def _engine(args: "SweepArgs", runs: Sequence[RunSpec]) -> "Engine":
    if args.retries < 0:
        raise UserError(f"--retries must be at least 0, not {args.retries}.")
    if args.engine == "local":
        for option, value in (("address", args.address), ("gpus", args.gpus)):
            if value:
                raise UserError(f"--{option} is for --engine ray.")
        from ceqr.experiments.local import LocalEngine

        engine = LocalEngine()
    else:
        if not 0 <= args.gpus < float("inf"):
            raise UserError(f"--gpus must be at least 0, not {args.gpus}.")
        from ceqr.experiments.ray import RayEngine

        engine = RayEngine(args.address, args.gpus)
    try:
        for spec in {(run.cores, run.memory): run for run in runs}.values():
            engine.check(spec)
    except BaseException:
        engine.close()
        raise
    return engine


def _run(
    args: "SweepArgs",
    declared: Declaration,
    what: Sequence[Any],
    directory: SweepDirectory,
    engine: "Engine",
    received: list[int],
) -> int:
    if args.engine == "ray":
        engine.check_storage(directory.path)  # pyright: ignore[reportAttributeAccessIssue]
    directory.write_declaration(declared)
    work: Work = Fixed(list(what))
    search = None
    if "search" in declared:
        from ceqr.experiments.search import Search

        work = search = Search(list(what), declared, directory)
    status = Status(directory, args.retries)
    with Live(args.quiet) as live:
        execute(work, status, engine, live, received, args.imports)
    say = (lambda text: None) if args.quiet else (lambda text: print(text, file=sys.stderr, flush=True))
    code = _conclude(args, status, received, say)
    if search is not None:
        _tell_best(search, directory, say)
    return code


def _conclude(args: "SweepArgs", status: Status, received: list[int], say: Any) -> int:
    """Says how a sweep ended; the exit code."""
    directory, failed = status.directory, status.of(FAILED)
    done, waiting = len(status.of(DONE)), len(status.of(WAITING))
    before = f", {status.skipped:,} of them before" if status.skipped else ""
    say(f"{done:,} of {len(status.specs):,} runs are done{before}. Results are in {directory.path / 'runs'}.")
    for spec in failed:
        tries = directory.failures[spec.name]
        print(f"ceqr: {spec.name} failed {len(tries)} time(s): {tries[-1]}", file=sys.stderr)
        print(f"      its log is {directory.log(spec)}", file=sys.stderr)
    again = f"ceqr sweep {directory.path}{' --import ' * bool(args.imports)}{' '.join(args.imports)}"
    for option, value in (("engine", args.engine), ("address", args.address), ("gpus", args.gpus)):
        again += f" --{option} {value}" * (args.engine == "ray" and bool(value))
    if received:
        print(f"Stopped with {waiting:,} run(s) to go; go on with '{again}'.", file=sys.stderr)
        return 128 + received[0]
    if failed:
        most = max(len(directory.failures[spec.name]) for spec in failed)
        print(
            f"ceqr: {len(failed):,} run(s) failed; once mended, try them again with '{again} --retries {most}'.",
            file=sys.stderr,
        )
        return 1
    return 0


def _tell_best(search: Any, directory: SweepDirectory, say: Any) -> None:
    for name, (params, value, trials) in search.best().items():
        found = ", ".join(f"{k} = {v}" for k, v in params.items())
        say(f"{name}: best of {trials:,} trials is {found} with {value:,.4g}")
    path = search.write_best()
    if path is not None:
        say(f"As a sweep of its own: ceqr sweep {path} --out {directory.path.with_name(directory.path.name + '-best')}")


def _dry_run(
    runs: Sequence[RunSpec],
    directory: SweepDirectory,
    engine: "Engine",
    imports: tuple[str, ...],
    received: list[int],
    searched: bool,
) -> int:
    from ceqr.experiments.estimate import estimate

    left = runs
    if directory.exists and not searched:
        left = [run for run in runs if directory.state(run) != DONE]
    if not searched:
        for run in runs:
            state = "" if run in left else "  done"
            print(f"{run.name}  {run.config.frames:,} frames x {run.config.seeds} seed(s), {run.cores} core(s){state}")
    frames = sum(run.frames for run in left)
    print(f"{len(runs):,} runs, {len(runs) - len(left):,} done; {frames:,} frames to play, in {directory.path}")
    found = estimate(left, engine, imports, received)
    if found is None:
        return 128 + received[0]
    for name, rate in found.rates.items():
        print(f"  {rate:,.0f} frames/s a seed, with {engine.cores} core(s) busy: {name} and its like")
    print(f"about {duration(found.seconds)} (h:mm:ss) on {engine.cores} core(s), {found.disk / 1e9:,.2f} GB of disk")
    return 0
