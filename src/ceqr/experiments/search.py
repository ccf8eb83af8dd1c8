"""A search: Optuna proposes configurations in the declared space, and runs tell it how good they were.

Each kind of run (an environment and an agent) has a study of its own, in `search.db` inside the sweep's directory.
Trials are proposed in batches, each from what all batches before it taught, with random numbers that follow from the
trial's number: so a search that was interrupted, or that had more machines, ends with the same trials as any other.
"""

import dataclasses
import json
import statistics
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import tomli_w

from ceqr.errors import UserError
from ceqr.experiments.directory import DONE, SweepDirectory
from ceqr.experiments.sweep import WHOLE, Declaration, Kind, Range, RunSpec, configure, runs_of
from ceqr.files import write_aside
from ceqr.runs import RECENT_EPISODES, read_episodes


class Search:
    """What a declared search still has to run. Proposes no trial before it is asked for work."""

    def __init__(self, kinds: list[Kind], declared: Declaration, directory: SweepDirectory):
        optuna = require_optuna()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._declared, self._directory, self._optuna = declared, directory, optuna
        self._settings = declared["search"]
        storage = optuna.storages.RDBStorage(f"sqlite:///{directory.search_storage.absolute()}")
        self._studies = {
            kind.name: optuna.create_study(
                storage=storage, study_name=kind.name, direction="maximize", load_if_exists=True
            )
            for kind in kinds
        }
        self._kinds = {kind.name: kind for kind in kinds}
        self._given: set[str] = set()  # names of runs that were handed out

    @property
    def trials(self) -> int:
        return self._settings["trials"]

    def first(self) -> list[RunSpec]:
        return self.more(set())

    def more(self, settled: set[str]) -> list[RunSpec]:
        return [spec for name in self._studies for spec in self._advance(name, settled)]

    def _advance(self, name: str, settled: set[str]) -> list[RunSpec]:
        """The new runs of a study: those of its batch under way, or of the next if that is settled."""
        study, batch = self._studies[name], self._settings["batch"]
        open_ = self._optuna.trial.TrialState.RUNNING
        while True:
            trials = study.get_trials(deepcopy=False)
            under_way = [trial.number for trial in trials if trial.state == open_]
            first = (under_way[0] if under_way else len(trials)) // batch * batch
            last = min(first + batch, self.trials)
            while len(trials) < last:
                self._ask(name, len(trials))
                trials = study.get_trials(deepcopy=False)
            specs = {t.number: self.runs(name, t.number, t.params) for t in trials[first:last] if t.state == open_}
            if not specs:
                return []
            everything = [spec for each in specs.values() for spec in each]
            new = [spec for spec in everything if spec.name not in self._given]
            if new:
                self._given.update(spec.name for spec in new)
                return new
            if not all(spec.name in settled for spec in everything):
                return []
            for number, each in specs.items():
                self._tell(name, number, each)

    def _ask(self, name: str, number: int) -> None:
        study = self._studies[name]
        seed = zlib.crc32(f"{self._settings['seed']}/{name}/{number}".encode())
        study.sampler = self._optuna.samplers.TPESampler(seed=seed)
        space = {key: self._distribution(name, key, values) for key, values in self._kinds[name].space.items()}
        study.ask(space)

    def _distribution(self, name: str, key: str, values: Any) -> Any:
        make = self._optuna.distributions
        if not isinstance(values, Range):
            return make.CategoricalDistribution([_plain(value) for value in values])
        config = self._kinds[name].config
        holder = config.hyper if hasattr(config.hyper, key) else config
        if isinstance(getattr(holder, key), int):
            return make.IntDistribution(int(values.low), int(values.high), log=values.log)
        return make.FloatDistribution(values.low, values.high, log=values.log)

    def _tell(self, name: str, number: int, specs: list[RunSpec]) -> None:
        scores = [self._score(spec) for spec in specs if self._directory.state(spec) == DONE]
        known = [score for score in scores if score is not None]
        whole = len(known) == len(specs)
        state = self._optuna.trial.TrialState
        if whole:
            self._studies[name].tell(number, statistics.fmean(known))
        else:
            self._studies[name].tell(number, state=state.FAIL)

    def _score(self, spec: RunSpec) -> float | None:
        path = self._directory.run(spec)
        if self._settings["metric"] == "mean":
            returns = [row.total for row in read_episodes(path, spec.config)]
            return statistics.fmean(returns) if returns else None
        seeds = json.loads((path / "summary.json").read_text(encoding="utf-8"))["seeds"]
        scores = [seed[f"mean_of_last_{RECENT_EPISODES}"] for seed in seeds]
        return None if None in scores else statistics.fmean(scores)

    def runs(self, name: str, number: int, params: dict[str, Any]) -> list[RunSpec]:
        """The runs of a trial."""
        return list(runs_of(self._chosen(name, number, params), self._declared))

    def _chosen(self, name: str, number: int, params: dict[str, Any]) -> Kind:
        kind = self._kinds[name]
        chosen = kind.options | {k: _value(kind, k, v) for k, v in params.items()}
        config = configure(kind.config.agent, kind.config.env, chosen)
        config.check_values()
        return dataclasses.replace(kind, name=f"{name}-trial{number:03d}", config=config)

    # What it found.

    def best(self) -> dict[str, tuple[dict[str, Any], float, int]]:
        """By study: the best parameters, their score, and how many trials there are."""
        found = {}
        for name, study in self._studies.items():
            with suppress(ValueError):  # none is complete
                found[name] = (study.best_params, study.best_value, len(study.get_trials(deepcopy=False)))
        return found

    def write_best(self) -> Path | None:
        """Writes the best of each study as a sweep of its own: `ceqr sweep best.toml --seeds 25` compares them."""
        arms = []
        for name, (params, _, _) in self.best().items():
            kind = self._kinds[name]
            chosen = kind.options | {k: _value(kind, k, v) for k, v in params.items()}
            names = {"agents": [kind.config.agent], "envs": [kind.config.env]}
            arms.append(names | {k: _toml(v) for k, v in chosen.items()})
        if not arms:
            return None
        path = self._directory.path / "best.toml"
        whole = {name: self._declared[name] for name in WHOLE}
        write_aside(path, tomli_w.dumps({**whole, "arms": arms}).encode())
        return path


def require_optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise UserError("--search needs an extra; install it with: pip install 'ceqr[search]'") from error
    return optuna


def _plain(value: Any) -> Any:
    """A choice as Optuna keeps it: JSON knows no tuples."""
    return json.dumps(value) if isinstance(value, tuple) else value


def _value(kind: Kind, name: str, value: Any) -> Any:
    """A choice as a configuration has it."""
    choices = kind.space[name]
    if isinstance(choices, Range):
        return value
    return next(each for each in choices if _plain(each) == value)


def _toml(value: Any) -> Any:
    """A value as a declaration says it: layers are a list in the list of values."""
    return [list(value)] if isinstance(value, tuple) else value
