"""What a run is: every option of `ceqr train`, its presets and its checks. It is enough to repeat the run."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, get_type_hints

from ceqr import envs
from ceqr.agents import agent_classes
from ceqr.agents.base import LARGEST, Hyperparameters, check_bounds
from ceqr.errors import UserError, nearest
from ceqr.networks import LARGE_IMAGE

PRESETS: dict[str, dict[str, Any]] = {  # values by option; under an agent's name, values for that agent alone
    "paper": {},  # the defaults are the paper's
    "quick": {"frames": 60_000, "hidden": (128,)},
    # What Gymnasium environments get unless told otherwise; docs/how-to-gymnasium.md has the measurements.
    "vector": {
        "frames": 60_000,
        "hidden": (256, 256),
        "learning_starts": 1_000,
        "learning_rate": 1e-3,
        "batch_size": 64,
        "target_period": 250,
        "update_every": 2,
        "epsilon_frames": 10_000,
        "ceqr-dqn": {"lambda_ep": 1e-4},  # values are large, and so are its doubts
    },
    "pixels": {
        "frames": 1_000_000,
        "hidden": (512,),
        "learning_starts": 10_000,
        "replay_size": 50_000,  # 1.4 GB of 84 x 84 x 4 bytes
        "target_period": 8_000,
        "update_every": 4,
        "checkpoint_seconds": 600.0,  # a checkpoint holds replay, too
    },
}

Hyper = TypeVar("Hyper", bound=Hyperparameters)


@dataclass(frozen=True)
class RunConfig(Generic[Hyper]):
    """The run: environment, algorithm, seeds, frames."""

    hyper: Hyper
    env: str = "minatar/breakout"
    """Environment: minatar/asterix, breakout, freeway, seaquest or space_invaders; or gymnasium/ and any id with
    discrete actions, such as gymnasium/CartPole-v1."""
    env_kwargs: tuple[str, ...] = ()
    """Options of a Gymnasium environment, as key=value."""
    num_envs: int = field(default=1, metadata={"least": 1, "most": 4_096})
    """How many Gymnasium environments to play side by side, per seed; each step of one of them is a frame."""
    agent: str = "ceqr-dqn"
    """Algorithm: ceqr-dqn, dqn, qr-dqn, bootstrapped-dqn, duvn or ua-dqn."""
    preset: str = "paper"
    """Where other defaults come from: paper (its Table 1, 2.5M frames), quick (128 hidden units, 60,000 frames),
    vector or pixels (the defaults of Gymnasium environments, by what they let the agent see)."""
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
    """Frames after which an episode is truncated (it still bootstraps); 0 for no limit."""
    log_every: int = field(default=1_000, metadata={"least": 1})
    """Frames between rows of metrics.csv."""
    checkpoint_seconds: float = field(default=60.0, metadata={"least": 0.0})
    """Seconds between checkpoints; 0 saves after every chunk."""
    tensorboard: bool = False
    """Also write TensorBoard event files (needs the extra `tensorboard`)."""

    @property
    def seed_numbers(self) -> range:
        return range(self.seed_start, self.seed_start + self.seeds)

    def check(self) -> None:
        """Raises `UserError` in one sentence for the first thing that cannot be."""
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
        self.make_env()

    def make_env(self) -> "envs.Environment | envs.HostEnvironment":
        options: dict[str, Any] = {"max_episode_frames": self.max_episode_frames}
        if envs.is_host(self.env):
            if self.protocol != "paper":
                raise UserError("--protocol is MinAtar's; a Gymnasium environment takes its options by --env-kwargs.")
        else:
            for option, given in (("--num-envs", self.num_envs > 1), ("--env-kwargs", self.env_kwargs)):
                if given:
                    raise UserError(f"{option} is for Gymnasium environments; {self.env} is compiled into the program.")
        try:
            if envs.is_host(self.env):
                options["kwargs"] = envs.parse_kwargs(self.env_kwargs)
            else:
                options["protocol"] = self.protocol
            return envs.make(self.env, **options)
        except (ValueError, envs.MissingExtra) as error:
            raise UserError(str(error)) from error

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def default_config(agent: str, preset: str | None, env: str, env_kwargs: Sequence[str] = ()) -> RunConfig[Any]:
    """The configuration of a preset (unless given: the one that fits the environment), before any option is given."""
    if preset is None:
        preset = "paper"
        if envs.is_host(env):
            probe = RunConfig(Hyperparameters(), env=env, env_kwargs=tuple(env_kwargs)).make_env()
            preset = fitting_preset(probe.observation_shape)
    hyper = default_hyper(agent, preset, env)
    names = {f.name for f in dataclasses.fields(RunConfig)}
    rest = {k: v for k, v in PRESETS[preset].items() if k in names}
    return RunConfig(hyper=hyper, agent=agent, preset=preset, env=env, env_kwargs=tuple(env_kwargs), **rest)


def fitting_preset(observation_shape: tuple[int, ...]) -> str:
    """The preset for an environment of that kind: small images are taken for MinAtar's like."""
    if len(observation_shape) == 1:
        return "vector"
    return "pixels" if min(observation_shape[:2]) >= LARGE_IMAGE else "paper"


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
        values = {"env_kwargs": (), "num_envs": 1} | values  # runs from before Gymnasium have neither
        return build(RunConfig, values | {"hyper": build(hyper_class, values["hyper"])})
    except (KeyError, TypeError, ValueError) as error:
        raise UserError("The configuration was made by an incompatible version of ceqr.") from error


def build(cls: Any, values: dict[str, Any]) -> Any:
    """A dataclass from the values of all its fields; ValueError if they are not that."""
    hints = get_type_hints(cls)
    fields = {f.name: hints[f.name] for f in dataclasses.fields(cls)}
    if set(values) != set(fields):
        raise ValueError(f"{cls.__name__} has other fields than {sorted(values)}.")
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
    for name, value in values.items():
        plain = fields[name] in (int, float, str, bool)
        if plain and type(value) is not fields[name] and not (fields[name] is float and type(value) is int):
            raise ValueError(f"{name} must be of type {fields[name].__name__}.")
    return cls(**values)
