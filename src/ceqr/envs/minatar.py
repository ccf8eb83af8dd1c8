"""MinAtar's five games as an `Environment`: a small adapter around pgx-minatar.

The games are those of the original `minatar` package, step for step: the tests replay thousands of steps of
it and find the same observations, rewards, ends and difficulty. pgx-minatar alone agrees in Asterix,
Breakout, Freeway and Space Invaders. In Seaquest it does not, and we correct:

- enemy bullets that leave the screen are never removed; they come back on the other side, and stop others;
- a submarine that is shot in the step in which it would shoot does not shoot; in the original it does;
- the last unit of oxygen lasts a step longer, and the gauge of an empty supply is drawn almost full;
- enemies become faster with the first, third, ... rescue instead of the second, fourth, ...

What remains: pgx-minatar has room for 25 fish, submarines and enemy bullets each (with one more, one is
lost), where the original has no limit. It should hardly ever matter: 300,000 steps of the original at full
difficulty, with nothing shot, had at most 23 fish, 16 submarines and 7 enemy bullets at a time.

An episode ends as in the original (Freeway's 2,500 frames are its rule, hence a termination); it is truncated
only by `max_episode_frames`. The protocols:

- `paper`: no sticky actions, fresh randomness in every episode;
- `standard`: the same with sticky actions: one step in ten repeats the action before, also the last one of
  the episode before, as in the original;
- `released`: no sticky actions, and every episode of a run draws the same random numbers frame by frame, so
  that the same actions lead to the same episode. The run's numbers follow from the key of its `reset`.
"""

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ceqr.envs import MINATAR_GAMES as GAMES
from ceqr.envs import MINATAR_PROTOCOLS as PROTOCOLS
from ceqr.envs.base import MissingExtra, TimeStep
from ceqr.errors import nearest

Fields = dict[str, jax.Array]  # a game's state: the fields of the pgx state that the game itself reads
Outcomes = Mapping[str, Any]  # what chance decided in one step, by the names of pgx-minatar's arguments


class State(NamedTuple):
    """What `MinAtar` carries from step to step."""

    game: Fields
    frame: jax.Array  # int32: steps taken in this episode
    last_action: jax.Array  # int32: for sticky actions; outlives the episode, as in the original
    seed: jax.Array  # uint32: the run's environment seed, which protocol `released` replays


# What chance decides in a step, drawn whether or not the game asks for it: one draw for all is cheapest.


def _no_chance(fields: Fields, key: jax.Array) -> Outcomes:
    return {}


def _asterix_chance(fields: Fields, key: jax.Array) -> Outcomes:
    u = jax.random.uniform(key, (3,))
    # The k-th empty row, k uniform; with no empty row the answer is not used.
    empty = fields["_entities"][:, 0] == _rules("asterix").INF
    rank = jnp.floor(u[2] * empty.sum()).astype(jnp.int32)
    slot = jnp.argmax(jnp.cumsum(empty) > rank)
    return {"lr": u[0] < 1 / 2, "is_gold": u[1] < 1 / 3, "slot": slot.astype(jnp.int32)}


def _freeway_chance(fields: Fields, key: jax.Array) -> Outcomes:
    u = jax.random.uniform(key, (2, 8))
    return {
        "speeds": 1 + jnp.floor(5 * u[0]).astype(jnp.int32),
        "directions": jnp.where(u[1] < 1 / 2, -1, 1).astype(jnp.int32),
    }


def _seaquest_chance(fields: Fields, key: jax.Array) -> Outcomes:
    u = jax.random.uniform(key, (5,))
    row = 1 + jnp.floor(8 * u[3:]).astype(jnp.int32)
    return {
        "enemy_lr": u[0] < 1 / 2,
        "is_sub": u[1] < 1 / 3,
        "enemy_y": row[0],
        "diver_lr": u[2] < 1 / 2,
        "diver_y": row[1],
    }


def _breakout_start(key: jax.Array) -> Outcomes:
    return {"ball_start": jax.random.bernoulli(key).astype(jnp.int32)}


class _Facts(NamedTuple):
    channels: tuple[str, ...]  # what each of them shows, in the original's words
    actions: tuple[int, ...]  # the minimal action set, in the original's numbering of six
    chance: Callable[[Fields, jax.Array], Outcomes] = _no_chance
    start: Callable[[jax.Array], Outcomes] | None = None  # None: every episode starts alike


ACTION_NAMES = ("stay", "left", "up", "right", "down", "fire")  # of the original's six

_FACTS = {
    "asterix": _Facts(("player", "enemy", "trail", "gold"), (0, 1, 2, 3, 4), _asterix_chance),
    "breakout": _Facts(("paddle", "ball", "trail", "brick"), (0, 1, 3), start=_breakout_start),
    "freeway": _Facts(
        ("chicken", "car", *(f"speed {n}" for n in range(1, 6))),
        (0, 2, 4),
        _freeway_chance,
        start=lambda key: _freeway_chance({}, key),
    ),
    "seaquest": _Facts(
        (
            "submarine",
            "stern",
            "own bullet",
            "trail",
            "enemy bullet",
            "fish",
            "enemy submarine",
            "oxygen",
            "divers aboard",
            "diver",
        ),
        (0, 1, 2, 3, 4, 5),
        _seaquest_chance,
    ),
    "space_invaders": _Facts(
        ("cannon", "alien", "moving left", "moving right", "own bullet", "enemy bullet"), (0, 1, 3, 5)
    ),
}


@cache
def _rules(game: str) -> Any:
    """pgx-minatar's module for the game."""
    try:
        # Its module-level arrays must not belong to the trace of whichever function comes first.
        with jax.ensure_compile_time_eval():
            return importlib.import_module(f"pgx_minatar.{game}")
    except ImportError as error:
        raise MissingExtra("minatar", "MinAtar") from error


def begin(game: str, outcomes: Outcomes) -> Fields:
    """An episode's first state, given what chance decided."""
    rules = _rules(game)
    fields = _fields(rules, rules._init_det(**outcomes) if outcomes else rules.State())
    return jax.tree.map(jnp.array, fields)  # copies: whoever donates a state must not donate pgx-minatar's constants


def advance(game: str, fields: Fields, action: jax.Array, outcomes: Outcomes) -> tuple[Fields, jax.Array, jax.Array]:
    """One step given what chance decided: the new state, the reward and whether the game is over."""
    rules = _rules(game)
    step = partial(_seaquest_step, rules) if game == "seaquest" else rules._step_det
    state = step(rules.State(**fields), action, **outcomes)
    return _fields(rules, state), state.rewards[0], state.terminated


def observe(game: str, fields: Fields) -> jax.Array:
    """The 10 x 10 x channels image of a state."""
    rules = _rules(game)
    if game == "seaquest":  # pgx-minatar draws an almost full gauge for a negative supply
        fields = fields | {"_oxygen": jnp.maximum(fields["_oxygen"], 0)}
    return rules._observe(rules.State(**fields))


def _fields(rules: Any, state: Any) -> Fields:
    """What of a pgx state the next step depends on, in types that never change."""
    blank = vars(rules.State())
    return {
        name: jnp.asarray(getattr(state, name), blank[name].dtype)
        for name in blank
        if name.startswith("_") and name not in ("_step_count", "_last_action", "_terminal")
    }


def _seaquest_step(
    rules: Any,
    state: Any,
    action: jax.Array,
    enemy_lr: Any,
    is_sub: Any,
    enemy_y: Any,
    diver_lr: Any,
    diver_y: Any,
) -> Any:
    """Seaquest's step: pgx-minatar's parts where they agree with the original, ours where they do not.

    Ours are the enemies, their bullets and the bookkeeping at the end. They treat all enemies at once
    instead of one after the other, which is also several times faster.
    """
    due = state._e_spawn_timer == 0
    subs, fish = rules._spawn_enemy(state._e_subs, state._e_fish, state._move_speed, enemy_lr, is_sub, enemy_y)
    subs, fish = jnp.where(due, subs, state._e_subs), jnp.where(due, fish, state._e_fish)
    e_spawn_timer = jnp.where(due, state._e_spawn_speed, state._e_spawn_timer)
    due = state._d_spawn_timer == 0
    divers = jnp.where(due, rules._spawn_diver(state._divers, diver_lr, diver_y), state._divers)
    d_spawn_timer = jnp.where(due, rules.DIVER_SPAWN_SPEED, state._d_spawn_timer)
    bullets, shot_timer, x, y, facing = rules._resolve_action(
        action, state._shot_timer, state._f_bullets, state._sub_x, state._sub_y, state._sub_or
    )
    bullets, subs, fish, reward = rules._update_friendly_bullets(bullets, subs, fish, jnp.float32(0))
    divers, diver_count = rules._update_divers(divers, state._diver_count, x, y)

    player = jnp.stack([x, y])
    subs, alive, bullets, sub_touches, sub_kills = _move_enemies(subs, bullets, player, state._move_speed)
    # A submarine shoots when its time has come, even if it was itself shot a moment ago.
    shoots = _filled(subs) & (subs[:, 4] == 0)
    shots = jnp.concatenate([state._e_bullets, jnp.where(shoots[:, None], subs[:, :3], -1)])
    subs = _keep(alive, subs.at[:, 4].set(jnp.where(shoots, rules.ENEMY_SHOT_INTERVAL, subs[:, 4] - 1)))
    ahead = _ahead(shots)
    shot_touches = (_filled(shots) & (_at(shots, player) | _at(ahead, player))).any()
    e_bullets = _keep(_filled(shots) & _inside(ahead), ahead)[: len(state._e_bullets)]
    fish, alive, bullets, fish_touches, fish_kills = _move_enemies(fish, bullets, player, state._move_speed)
    fish = _keep(alive, fish)

    under = y > 0
    returns = ~under & ~state._surface
    rescues = returns & (diver_count != 0)
    full = rescues & (diver_count == 6)
    harder = rescues & ((state._e_spawn_speed > 1) | (state._move_speed > 2))
    faster = harder & (state._move_speed > 2) & (state._ramp_index % 2 == 1)
    reward += sub_kills + fish_kills + jnp.where(full, state._oxygen * 10 // rules.MAX_OXYGEN, 0)
    terminated = sub_touches | shot_touches | fish_touches | (state._oxygen <= 0) | (returns & ~rescues)
    return state.replace(
        _oxygen=jnp.where(rescues, rules.MAX_OXYGEN, state._oxygen - under),
        _diver_count=jnp.where(full, 0, diver_count) - rescues,
        _sub_x=x,
        _sub_y=y,
        _sub_or=facing,
        _f_bullets=bullets,
        _e_bullets=e_bullets,
        _e_fish=fish,
        _e_subs=subs,
        _divers=divers,
        _e_spawn_speed=state._e_spawn_speed - (harder & (state._e_spawn_speed > 1)),
        _e_spawn_timer=jnp.maximum(e_spawn_timer - 1, 0),
        _d_spawn_timer=jnp.maximum(d_spawn_timer - 1, 0),
        _move_speed=state._move_speed - faster,
        _ramp_index=state._ramp_index + harder,
        _shot_timer=jnp.maximum(shot_timer - 1, 0),
        _surface=~under & (state._surface | rescues),
        rewards=reward[None],
        terminated=terminated,
    )


# Seaquest's creatures and bullets are rows (x, y, to the right?, ...); a row of -1 is empty.


def _filled(rows: jax.Array) -> jax.Array:
    return rows[:, 1] >= 0


def _inside(rows: jax.Array) -> jax.Array:
    return (rows[:, 0] >= 0) & (rows[:, 0] <= 9)


def _at(rows: jax.Array, cell: jax.Array) -> jax.Array:
    return (rows[:, :2] == cell).all(axis=1)


def _ahead(rows: jax.Array) -> jax.Array:
    return rows.at[:, 0].add(jnp.where(rows[:, 2] == 1, 1, -1))


def _keep(mask: jax.Array, rows: jax.Array) -> jax.Array:
    """The rows under the mask in their order, then empty ones."""
    place = jnp.where(mask, jnp.cumsum(mask) - 1, len(rows))
    return jnp.full_like(rows, -1).at[place].set(rows, mode="drop")


def _move_enemies(
    rows: jax.Array, bullets: jax.Array, player: jax.Array, speed: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]:
    """Moves the enemies whose time has come, into bullets and the player if these are in the way.

    Returns the rows after the move, which of them live on, the bullets left, whether one touches the
    player, and how many were shot.
    """
    filled = _filled(rows)
    due = filled & (rows[:, 3] == 0)
    moved = jnp.where(due[:, None], _ahead(rows), rows).at[:, 3].set(jnp.where(due, speed, rows[:, 3] - 1))
    moved = jnp.where(filled[:, None], moved, -1)
    touches = (filled & (_at(rows, player) | _at(moved, player))).any()
    # Where several bullets and enemies meet in one cell, the first bullet takes the last enemy, and so on.
    exposed = due & _inside(moved) & ~_at(moved, player)
    meets = (bullets[:, None, :2] == moved[:, :2]).all(axis=2) & exposed
    later = jnp.cumsum(meets[:, ::-1], axis=1)[:, ::-1] - meets
    earlier = jnp.tril((bullets[:, None, :2] == bullets[:, :2]).all(axis=2), -1).sum(axis=1)
    kills = meets & (later == earlier[:, None])
    alive = filled & _inside(moved) & ~kills.any(axis=0)
    bullets = _keep(_filled(bullets) & ~kills.any(axis=1), bullets)
    return moved, alive, bullets, touches, kills.sum()


@dataclasses.dataclass(frozen=True)
class MinAtar:
    """One MinAtar game under one protocol, both described above."""

    game: str
    protocol: str = "paper"
    max_episode_frames: int = 0  # 0: no limit

    def __post_init__(self) -> None:
        if self.game not in GAMES:
            raise ValueError(nearest("MinAtar game", self.game, GAMES))
        if self.protocol not in PROTOCOLS:
            raise ValueError(nearest("protocol", self.protocol, PROTOCOLS))
        if self.max_episode_frames < 0:
            raise ValueError(f"max_episode_frames is 0 (no limit) or more, not {self.max_episode_frames}.")
        _rules(self.game)

    @property
    def name(self) -> str:
        return f"minatar/{self.game}"

    @property
    def num_actions(self) -> int:
        return len(_FACTS[self.game].actions)

    @property
    def observation_shape(self) -> tuple[int, ...]:
        return (10, 10, len(self.channel_names))

    @property
    def observation_dtype(self) -> Any:
        return np.dtype(bool)

    @property
    def channel_names(self) -> tuple[str, ...]:
        """What each channel of an observation shows."""
        return _FACTS[self.game].channels

    @property
    def action_names(self) -> tuple[str, ...]:
        return tuple(ACTION_NAMES[action] for action in _FACTS[self.game].actions)

    def reset(self, key: jax.Array) -> tuple[State, jax.Array]:
        key, seed_key = jax.random.split(key)
        seed = jax.random.bits(seed_key, dtype=jnp.uint32)
        if self.protocol == "released":
            key = jax.random.fold_in(jax.random.key(seed), 0)
        game, observation = self._begin(key)
        return State(game, jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32), seed), observation

    def step(self, state: State, action: jax.Array, key: jax.Array) -> tuple[State, TimeStep]:
        facts = _FACTS[self.game]
        frame = state.frame + 1
        chance_key, start_key, sticky_key = jax.random.split(key, 3)
        if self.protocol == "released":
            run = jax.random.key(state.seed)
            chance_key, start_key = jax.random.fold_in(run, frame), jax.random.fold_in(run, 0)
        action = jnp.asarray(action, jnp.int32)
        if self.protocol == "standard":
            sticks = jax.random.uniform(sticky_key) < 0.1
            action = jnp.where(sticks, state.last_action, action)

        outcomes = facts.chance(state.game, chance_key)
        played, reward, terminated = advance(
            self.game, state.game, jnp.asarray(facts.actions, jnp.int32)[action], outcomes
        )
        successor = observe(self.game, played)
        limit = self.max_episode_frames
        truncated = ~terminated & (frame >= limit) if limit else jnp.zeros((), bool)

        over = terminated | truncated
        fresh, first = self._begin(start_key)
        game = jax.tree.map(lambda new, old: jnp.where(over, new, old), fresh, played)
        observation = jnp.where(over, first, successor)
        after = State(game, jnp.where(over, 0, frame), action, state.seed)
        return after, TimeStep(observation, successor, reward, terminated, truncated)

    def _begin(self, key: jax.Array) -> tuple[Fields, jax.Array]:
        start = _FACTS[self.game].start
        if start is None:
            return jax.tree.map(jnp.array, _fixed_start(self.game))
        fields = begin(self.game, start(key))
        return fields, observe(self.game, fields)


@cache
def _fixed_start(game: str) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The one start of a game that always starts alike, computed once instead of in every step."""
    with jax.ensure_compile_time_eval():
        fields = begin(game, {})
        return jax.tree.map(np.asarray, (fields, jax.jit(observe, static_argnums=0)(game, fields)))
