"""What a run is: every option of `ceqr train`, its presets and its checks. It is enough to repeat the run."""

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, get_args, get_origin, get_type_hints

import numpy as np

from ceqr import envs
from ceqr.agents import agent_classes
from ceqr.agents.base import LARGEST, Agent, Hyperparameters, check_bounds
from ceqr.errors import UserError, nearest
from ceqr.memory import GIB, machine_memory
from ceqr.networks import LARGE_IMAGE

# CEQR-DQN where fidelity to the paper is not the point: doubt that counts what was played, intervals that cover, and
# one lambda_ep for every environment; docs/evidence.md has the reasons and the measurements.
REAL_DOUBT: dict[str, Any] = {
    "evidence": "conjugate",
    "location": "calibrated",
    "calibrate_quantiles": False,
    "coverage_window": 100,
    "thompson": "optimistic",
    "lambda_ep": 1.0,
}
PRESETS: dict[str, dict[str, Any]] = {  # values by option; under an agent's name, values for that agent alone
    "paper": {},  # the defaults are the paper's
    "quick": {"frames": 60_000, "hidden": (128,), "ceqr-dqn": REAL_DOUBT},
    # What environments other than MinAtar's get unless told otherwise; docs/how-to-gymnasium.md has the measurements.
    "vector": {
        "frames": 60_000,
        "hidden": (256, 256),
        "learning_starts": 1_000,
        "learning_rate": 5e-4,
        "adam_eps": 1.5e-4,
        "batch_size": 64,
        "target_period": 100,
        "target_rate": 0.01,
        "quantiles": 25,
        "epsilon_frames": 10_000,
        "epsilon_hold": 32,
        "n_step": 3,
        "bound_returns": True,
        "init": "uniform",
        "double": True,
        "ceqr-dqn": REAL_DOUBT,
    },
    "pixels": {
        "frames": 1_000_000,
        "hidden": (512,),
        "learning_starts": 10_000,
        "replay_size": 50_000,  # 1.4 GB of 84 x 84 x 4 bytes
        "target_period": 8_000,
        "update_every": 4,
        "checkpoint_seconds": 600.0,  # a checkpoint holds replay, too
        "ceqr-dqn": REAL_DOUBT,
    },
}

Hyper = TypeVar("Hyper", bound=Hyperparameters)


@dataclass(frozen=True)
class RunConfig(Generic[Hyper]):
    """The run: environment, algorithm, seeds, frames."""

    hyper: Hyper
    env: str = "minatar/breakout"
    """Environment: minatar/asterix, breakout, freeway, seaquest or space_invaders; gymnasium/ and any id with discrete
    actions, such as gymnasium/CartPole-v1; gymnax/ and an id of gymnax, such as gymnax/CartPole-v1, which is compiled;
    maze/traps or maze/cliff."""
    env_kwargs: tuple[str, ...] = ()
    """Options of the environment, as key=value."""
    num_envs: int = field(default=1, metadata={"least": 1, "most": 4_096})
    """How many environments to play side by side, per seed; each step of one of them is a frame."""
    agent: str = "ceqr-dqn"
    """Algorithm: ceqr-dqn, dqn, qr-dqn, bootstrapped-dqn, duvn or ua-dqn."""
    preset: str = "paper"
    """Where other defaults come from: paper (its Table 1, 2.5M frames), quick (128 hidden units, 60,000 frames),
    vector or pixels (the defaults of environments other than MinAtar's, by what they let the agent see)."""
    protocol: str = "paper"
    """MinAtar's rules: paper (no sticky actions), released (as paper, every episode replays the run's one environment
    seed) or standard (sticky actions 0.1)."""
    seeds: int = field(default=1, metadata={"least": 1})
    """How many seeds to train at once: side by side on the cores of a CPU, in one program on an accelerator."""
    seed_start: int = field(default=0, metadata={"least": 0})
    """The first seed; the others follow it."""
    frames: int = field(default=2_500_000, metadata={"least": 1})
    """Frames to train, per seed."""
    max_episode_frames: int = field(default=0, metadata={"least": 0})
    """Frames after which an episode is truncated (it still bootstraps); 0 for the environment's own limit, if any."""
    log_every: int = field(default=1_000, metadata={"least": 1})
    """Frames between rows of metrics.csv."""
    checkpoint_seconds: float = field(default=60.0, metadata={"least": 0.0})
    """Seconds between checkpoints; 0 saves after every chunk."""
    tensorboard: bool = False
    """Also write TensorBoard event files (needs the extra `tensorboard`)."""
    wandb: bool = False
    """Also log to Weights & Biases (needs the extra `wandb`; WANDB_MODE=offline keeps it on this machine)."""

    @property
    def seed_numbers(self) -> range:
        return range(self.seed_start, self.seed_start + self.seeds)

    def check(self) -> None:
        """Raises `UserError` in one sentence for the first thing that cannot be."""
        self.check_values()
        env = self.make_env()
        agent_class, _ = agent_classes(self.agent)
        agent = agent_class(self.hyper, env.observation_shape, env.num_actions)
        check_memory(agent, env.observation_dtype, self.seeds)

    def check_values(self) -> None:
        """The same but for the memory that training takes, and without making the environment."""
        if self.preset not in PRESETS:
            raise UserError(nearest("preset", self.preset, PRESETS))
        check_bounds(self)
        self.hyper.check()
        if self.seed_numbers[-1] > LARGEST:
            raise UserError(f"--seed-start {self.seed_start:,} with --seeds {self.seeds:,} goes past {LARGEST:,}.")
        if self.frames < self.hyper.learning_starts:
            raise UserError(
                f"--frames {self.frames:,} ends before learning starts at frame {self.hyper.learning_starts:,}; "
                "ask for more frames or set --learning-starts lower."
            )

    def make_env(self) -> Any:
        """The environment, with the options of the run; it is made once for a configuration."""
        if "_made" not in vars(self):
            try:
                kwargs = envs.parse_kwargs(self.env_kwargs)
            except ValueError as error:
                raise UserError(str(error)) from error
            vars(self)["_made"] = make_env(self.env, self.protocol, self.max_episode_frames, kwargs)
        return vars(self)["_made"]

    @property
    def rules(self) -> str:
        """The protocol, if the environment's family has such a thing; else nothing, as for a family not imported."""
        family = envs.FAMILIES.get(self.env.partition("/")[0])
        return self.protocol if family is not None and "protocol" in (family.options or ()) else ""

    def describe_env(self) -> str:
        """The environment and the options that tell it from others, for people."""
        options = [f"{self.rules} protocol"] * bool(self.rules) + list(self.env_kwargs)
        return f"{self.env} ({', '.join(options)})" if options else self.env

    def share_env(self, other: "RunConfig[Any]") -> None:
        """Takes over the environment that another configuration has made, if this one would make the same."""
        alike = all(getattr(self, n) == getattr(other, n) for n in ("env", "env_kwargs", *ENV_OPTIONS))
        if alike and "_made" in vars(other):
            vars(self)["_made"] = vars(other)["_made"]

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def default_config(agent: str, preset: str | None, env: str, env_kwargs: Sequence[str] = ()) -> RunConfig[Any]:
    """The configuration of a preset (unless given: the one that fits the environment), before any option is given."""
    probe = RunConfig(Hyperparameters(), env=env, env_kwargs=tuple(env_kwargs))
    if preset is None:
        preset = preset_of(probe)
    hyper = default_hyper(agent, preset, env)
    names = {f.name for f in dataclasses.fields(RunConfig)}
    rest = {k: v for k, v in PRESETS[preset].items() if k in names}
    config = RunConfig(hyper=hyper, agent=agent, preset=preset, env=env, env_kwargs=tuple(env_kwargs), **rest)
    config.share_env(probe)
    return config


def preset_of(config: RunConfig[Any]) -> str:
    """The preset for the environment of a configuration."""
    try:
        family = envs.family(config.env)
    except ValueError as error:
        raise UserError(str(error)) from error
    return family.preset or fitting_preset(config.make_env())


def fitting_preset(env: Any) -> str:
    """The preset for what an environment lets an agent see: small images are taken for MinAtar's like."""
    if len(env.observation_shape) == 1:
        return "vector"
    return "pixels" if min(env.observation_shape[:2]) >= LARGE_IMAGE else "paper"


ENV_OPTIONS = ("protocol", "max_episode_frames")  # options of a run that are the environment's


def make_env(name: str, protocol: str, max_episode_frames: int, env_kwargs: Mapping[str, Any]) -> Any:
    """The environment of that name with the options of a run; `UserError` in one sentence if it cannot be made."""
    given = {"protocol": protocol, "max_episode_frames": max_episode_frames}
    try:
        family = envs.family(name)
        if protocol != RunConfig.protocol and "protocol" not in (family.options or ()):
            raise ValueError(f"--protocol is MinAtar's; {name} takes its options by --env-kwargs.")
        for each in ENV_OPTIONS:
            if each in env_kwargs:
                raise ValueError(f"--env-kwargs gives {each}, for which there is --{each.replace('_', '-')}.")
        changed = {k: v for k, v in given.items() if v != getattr(RunConfig, k)}
        return envs.make(name, **changed, **env_kwargs)
    except (ValueError, envs.MissingExtra) as error:
        raise UserError(str(error)) from error


def default_hyper(agent: str, preset: str, env: str) -> Any:
    """An agent's hyperparameters under a preset."""
    if preset not in PRESETS:
        raise UserError(nearest("preset", preset, PRESETS))
    _, hyper_class = agent_classes(agent)
    names = {f.name for f in dataclasses.fields(hyper_class)}
    values = PRESETS[preset] | PRESETS[preset].get(agent, {})
    return hyper_class(**{k: v for k, v in values.items() if k in names}).for_env(env)


def from_json(values: dict[str, Any]) -> RunConfig[Any]:
    """The configuration that `to_json` wrote; `UserError` if it is not one."""
    try:
        _, hyper_class = agent_classes(values["agent"])
        values = {"env_kwargs": (), "num_envs": 1, "wandb": False} | values  # older runs do not have them
        return build(RunConfig, values | {"hyper": build_hyper(hyper_class, values["hyper"])})
    except (KeyError, TypeError, ValueError) as error:
        raise UserError("The configuration was made by an incompatible version of ceqr.") from error


def build_hyper(hyper_class: Any, values: dict[str, Any]) -> Any:
    """An agent's hyperparameters as they were saved; TypeError or ValueError if they are not that."""
    names = {f.name for f in dataclasses.fields(hyper_class)}
    # Older runs and agents may not have these. What older ones counted, where they did, is not what is counted now.
    lacking = {"init": "orthogonal", "n_step": 1, "double": False, "epsilon_hold": 1, "bound_returns": False}
    if dict(values).get("evidence") != "conjugate":
        lacking["evidence_features"] = 0
    return build(hyper_class, {k: v for k, v in lacking.items() if k in names} | values)


def build(cls: Any, values: dict[str, Any]) -> Any:
    """A dataclass from the values of all its fields; ValueError if they are not that."""
    hints = get_type_hints(cls)
    fields = {f.name: hints[f.name] for f in dataclasses.fields(cls)}
    if set(values) != set(fields):
        raise ValueError(f"{cls.__name__} has other fields than {sorted(values)}.")
    return cls(**{name: of_type(name, value, fields[name]) for name, value in values.items()})


def of_type(name: str, value: Any, kind: Any) -> Any:
    """The value if it is of that type, lists as tuples; ValueError if it is not. Types of no plain kind are passed."""
    if get_origin(kind) is tuple:
        if not isinstance(value, list | tuple):
            raise ValueError(f"{name} must be a list, not {value!r}.")
        return tuple(of_type(name, each, get_args(kind)[0]) for each in value)
    plain = kind in (int, float, str, bool)
    if plain and type(value) is not kind and not (kind is float and type(value) is int):
        raise ValueError(f"{name} must be of type {kind.__name__}, not {value!r}.")
    return value


def require_trust(env: str, imports: Collection[str], where: object, word: str = "--import {}") -> None:
    """Raises `UserError` if an environment that a file names would import a module that the user has not named.

    A run or a sweep may come from a stranger, and importing a module runs it. `word` is how to name it.
    """
    for module in envs.modules(env):
        if module not in imports:
            raise UserError(
                f"{where} plays {env}, for which the module {module!r} would be imported, and its code run; "
                f"if you trust it, say so with {word.format(module)}."
            )


# Memory.


def check_memory(agent: Agent, observation_dtype: Any, seeds: int = 1) -> None:
    """Raises `UserError` if training so many agents would take more memory than the machine has."""
    replay, state = training_memory(agent, observation_dtype)
    counts = getattr(agent.hyper, "evidence", "") == "conjugate"
    refuse_more_than_there_is(
        seeds * (replay + state),
        f"{seeds:,} seed(s) with {replay / GIB:,.1f} GiB of replay and {state / GIB:,.1f} GiB of networks"
        f"{' and counts' * counts} each",
        f"--seeds, --replay-size{', --hidden or --evidence-features' if counts else ' or --hidden'}",
    )


def training_memory(agent: Agent, observation_dtype: Any) -> tuple[int, int]:
    """Bytes that a seed's replay and its agent's state take while it trains."""
    size, dtype = math.prod(agent.observation_shape), np.dtype(observation_dtype)
    observation = -(-size // 8) if dtype == np.bool_ else size * dtype.itemsize  # booleans are kept as bits
    replay = agent.hyper.replay_size * (observation + 13)
    return replay, agent.state_bytes()


def refuse_more_than_there_is(needed: int, what: str, options: str) -> None:
    """Raises `UserError` if that many bytes are more than the machine's memory, where the system tells its size."""
    there_is = machine_memory()
    if there_is is not None and needed > there_is:
        raise UserError(
            f"{what} would take about {needed / GIB:,.1f} GiB of memory, and this machine has {there_is / GIB:,.1f}: "
            f"set {options} lower."
        )
