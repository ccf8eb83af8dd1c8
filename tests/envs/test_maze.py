"""Mazes: the game against its model, the truth against play, layouts, options, and what others' agents see."""

from collections import deque
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.utils import seeding
from gymnasium.utils.env_checker import check_env

from ceqr.config import RunConfig, default_config
from ceqr.envs import is_compiled, make, observation_format
from ceqr.envs.maze import ACTIONS, COLOURS, LAYOUTS, OPTIONS, Kind, Maze
from ceqr.envs.maze.drawing import rgb
from ceqr.errors import UserError
from ceqr.gym import MAZES

UP, RIGHT, DOWN, LEFT = range(4)
PAGE = Path(__file__).parents[2] / "docs" / "mazes.md"
SIZES = range(5, 13)


def cell(maze: Maze, row: int, column: int) -> int:
    return int(np.flatnonzero((maze.positions == (row, column)).all(1))[0])


@partial(jax.jit, static_argnums=0)
def tries(maze: Maze, state: Any, actions: jax.Array, keys: jax.Array) -> Any:
    """One step from each state."""
    return jax.vmap(maze.step)(state, actions, keys)


@partial(jax.jit, static_argnums=(0, 3, 4))
def play(maze: Maze, policy: jax.Array, key: jax.Array, games: int, frames: int) -> Any:
    """Games side by side: rewards, ends and cells where steps led, [frames, games]."""

    def step(carry: Any, key: jax.Array) -> Any:
        state, observation = carry
        act, go = jax.random.split(key)
        logits = jnp.log(policy)[observation.argmax(-1)]
        state, after = jax.vmap(maze.step)(state, jax.random.categorical(act, logits), jax.random.split(go, games))
        over = after.terminated | after.truncated
        return (state, after.observation), (after.reward, over, after.successor.argmax(-1))

    start = jax.vmap(maze.reset)(jax.random.split(key, games))
    return jax.lax.scan(step, start, jax.random.split(key, frames))[1]


def returns(rewards: np.ndarray, over: np.ndarray, discount: float) -> np.ndarray:
    """Discounted returns of each game's first episode; all have ended."""
    going = np.cumsum(over, 0) - over == 0
    assert over.any(0).all()
    return (discount ** np.arange(len(rewards))[:, None] * rewards * going).sum(0)


def random_policy(maze: Maze, seed: int = 0) -> np.ndarray:
    """A policy that finds the goal most of the time, and draws."""
    best = np.eye(4)[maze.best_policy()]
    return 0.8 * best + 0.2 * np.random.default_rng(seed).dirichlet(np.ones(4), maze.cells)


# Layouts.


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("layout", range(LAYOUTS))
def test_every_labyrinth_has_a_short_way_past_traps_and_a_long_one_without(layout: int, size: int) -> None:
    maze = make("maze/traps", layout=layout, size=size)
    assert maze.grid.shape == (2 * size + 1, 2 * size + 1)
    assert (maze.kinds == Kind.START).sum() == (maze.kinds == Kind.GOAL).sum() == 1
    ends = [0, -1]
    assert (maze.grid[ends] == Kind.WALL).all()
    assert (maze.grid[:, ends] == Kind.WALL).all()
    anywhere, without = (distances(maze, enter) for enter in (tuple(Kind), tuple(set(Kind) - {Kind.TRAP})))
    goal = int(np.flatnonzero(maze.kinds == Kind.GOAL)[0])
    assert anywhere.keys() == set(range(maze.cells))  # nothing is out of reach
    assert anywhere[goal] + 8 <= without[goal] < maze.limit
    # Who looks at the mean takes the short way; who is averse to risk, the long one, though it is little worse.
    for discount in (0.99, 1.0):
        best, averse = (maze.episodes(maze.best_policy(discount, each)) for each in (0.0, 0.5))
        assert best.visits[goal] == pytest.approx(1)
        assert averse.visits[goal] == pytest.approx(1)
        assert best.visits[maze.kinds == Kind.TRAP].sum() >= 3
        assert averse.visits[maze.kinds == Kind.TRAP].sum() == 0
        assert best.visits.sum() == pytest.approx(1 + anywhere[goal])
        assert averse.visits.sum() == pytest.approx(1 + without[goal])
    assert 0 < best.reward - averse.reward < 0.2
    # Places that neither of them enters, with traps and without.
    unseen = (best.visits == 0) & (averse.visits == 0)
    assert (unseen & (maze.kinds == Kind.TRAP)).any()
    assert (unseen & (maze.kinds == Kind.FLOOR)).any()


def distances(maze: Maze, kinds: tuple[Kind, ...]) -> dict[int, int]:
    """Steps from the start to every cell, through cells of some kinds; by the grid alone."""
    number = {(int(r), int(c)): i for i, (r, c) in enumerate(maze.positions) if maze.kinds[i] in kinds}
    found, queue = {maze.start: 0}, deque([tuple(maze.positions[maze.start])])
    while queue:
        row, column = queue.popleft()
        here = number[row, column]
        if maze.kinds[here] == Kind.GOAL:
            continue
        for place in ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)):
            if place in number and number[place] not in found:
                found[number[place]] = found[here] + 1
                queue.append(place)
    return found


def test_layouts_never_change_and_differ() -> None:
    drawn = "\n".join("".join(".#SGT"[[1, 0, 2, 3, 4].index(k)] for k in row) for row in make("maze/traps").grid)
    assert drawn == (
        "###########\n"
        "#S..TT..#.#\n"
        "###.#.#.#.#\n"
        "#...#T#.T.#\n"
        "#.###.###.#\n"
        "#.#G..#...#\n"
        "#.###.#.###\n"
        "#.....#...#\n"
        "#########.#\n"
        "#.........#\n"
        "###########"
    )
    assert len({make("maze/traps", layout=i).grid.tobytes() for i in range(LAYOUTS)}) == LAYOUTS


def test_the_cliff_is_that_of_ua_dqn() -> None:
    """Start and goal in the lowest corners, the abyss between them, and the prices of its authors' environment."""
    maze = make("maze/cliff", width=4, height=3)
    kinds = [[Kind(k).name.lower() for k in row] for row in maze.grid]
    assert kinds == [
        ["floor"] * 4,
        ["floor"] * 4,
        ["start", "edge", "edge", "goal"],
        ["wall", "cliff", "cliff", "wall"],
    ]
    model = maze.model
    start, edge, above = cell(maze, 2, 0), cell(maze, 2, 1), cell(maze, 1, 1)
    for at, action in ((start, RIGHT), (above, DOWN)):  # whoever comes to the edge may be blown off
        np.testing.assert_allclose(model.probability[at, action], [0.8, 0.2])
        assert model.successor[at, action].tolist() == [edge, cell(maze, 3, 1)]
        assert model.reward[at, action].tolist() == [-1, -6]
        assert model.terminated[at, action].tolist() == [False, True]
    assert (model.successor[edge, DOWN, 0], model.reward[edge, DOWN, 0]) == (cell(maze, 3, 1), -6)
    assert (model.probability[edge, DOWN, 0], model.terminated[edge, DOWN, 0]) == (1, True)
    assert (model.probability[edge, UP, 0], model.successor[edge, UP, 0]) == (1, above)  # the wind is at the edge only
    goal = cell(maze, 2, 3)
    for at, action in ((cell(maze, 2, 2), RIGHT), (cell(maze, 1, 3), DOWN)):
        assert (model.successor[at, action, 0], model.reward[at, action, 0]) == (goal, 9)
        assert model.terminated[at, action, 0]
    for action in (LEFT, DOWN):  # walls, and the rim of the world
        assert (model.successor[start, action, 0], model.reward[start, action, 0]) == (start, -1)
    # Up, right, right, ..., down: six steps and the goal.
    assert make("maze/cliff").truth(make("maze/cliff").best_policy(1.0), 1.0).mean.max() == 9
    assert make("maze/cliff").episodes(make("maze/cliff").best_policy(1.0)).reward == pytest.approx(4)


# The game.


@pytest.mark.parametrize("name", ["maze/traps", "maze/cliff"])
def test_the_game_does_what_the_model_says(name: str) -> None:
    """Every action in every cell, many times: outcomes with their frequencies, and nothing else."""
    maze = make(name)
    many = 300
    acting = np.flatnonzero(~maze.terminal)
    at, actions = (grid.ravel() for grid in np.meshgrid(acting, range(4), indexing="ij"))
    at, actions = np.repeat(at, many).astype(np.int32), np.repeat(actions, many).astype(np.int32)
    state = maze.reset(jax.random.key(0))[0]._replace(cell=jnp.asarray(at), frame=jnp.zeros(len(at), jnp.int32))
    after, steps = tries(maze, state, actions, jax.random.split(jax.random.key(1), len(at)))
    led, model = maze.cell_of(steps.successor), maze.model
    matches = (
        (model.successor[at, actions] == led[:, None])
        & (model.reward[at, actions].astype(np.float32) == np.asarray(steps.reward)[:, None])
        & (model.terminated[at, actions] == np.asarray(steps.terminated)[:, None])
        & (model.probability[at, actions] > 0)
    )
    assert (matches.sum(1) == 1).all()
    second = matches[:, 1].reshape(-1, many).mean(1)
    likely = model.probability[at, actions, 1].reshape(-1, many)[:, 0]
    np.testing.assert_allclose(second, likely, atol=5 * 0.5 / np.sqrt(many))
    assert abs(second[likely > 0].mean() - likely[likely > 0].mean()) < 0.03
    np.testing.assert_allclose(model.probability.sum(-1), 1)
    # Who ends begins anew; who goes on is where the step led.
    over = np.asarray(steps.terminated)
    assert (np.asarray(after.cell) == np.where(over, maze.start, led)).all()
    assert (np.asarray(after.frame) == np.where(over, 0, 1)).all()
    assert (maze.cell_of(steps.observation) == np.asarray(after.cell)).all()


def test_the_limit_truncates_and_the_goal_terminates() -> None:
    maze = make("maze/cliff", max_episode_frames=6)
    rewards, ends, truncations = [], [], []
    state, first = maze.reset(jax.random.key(0))
    for i, action in enumerate([UP] * 6 + [UP] + [RIGHT] * 4 + [DOWN]):
        state, after = tries(maze, jax.tree.map(lambda x: x[None], state), jnp.array([action]), jax.random.key(i)[None])
        state, after = jax.tree.map(lambda x: x[0], (state, after))
        rewards.append(float(after.reward))
        ends.append(bool(after.terminated))
        truncations.append(bool(after.truncated))
        if i == 5:
            assert maze.cell_of(after.successor) == cell(maze, 0, 0)  # where it was cut off
            np.testing.assert_array_equal(after.observation, first)
    assert truncations == [False] * 5 + [True] + [False] * 6
    assert ends == [False] * 11 + [True]  # at the limit and at the goal: an end
    assert rewards == [-1] * 11 + [9]
    assert make("maze/cliff").limit == 4 * 13


def test_what_an_agent_sees() -> None:
    maze = make("maze/traps")
    assert is_compiled(maze)
    assert (maze, hash(maze)) == (make("maze/traps", size=5), hash(make("maze/traps", size=5)))
    assert maze != make("maze/traps", layout=1)
    assert (maze.num_actions, maze.action_names) == (4, ACTIONS)
    seen = maze.cell_observations()
    assert (seen.shape, seen.dtype) == ((50, 50), bool)
    assert (maze.cell_of(seen) == np.arange(50)).all()
    assert maze.cell_of(seen.reshape(5, 10, 50)).shape == (5, 10)
    assert maze.cell_of(maze.reset(jax.random.key(0))[1]) == maze.start
    assert observation_format(maze).network_shape == maze.observation_shape == (50,)
    config = default_config("ceqr-dqn", None, "maze/traps", ("layout=2",))
    assert (config.preset, config.make_env().options[0]) == ("vector", ("layout", 2))


# The truth.


@pytest.mark.parametrize(
    ("name", "options", "discount"),
    [
        ("maze/cliff", {"height": 3}, 0.99),
        ("maze/cliff", {"wind": 0.05, "fall": 0.0}, 1.0),
        ("maze/traps", {}, 0.95),
    ],
)
def test_the_truth_is_what_play_shows(name: str, options: dict[str, Any], discount: float) -> None:
    """From the start with a policy that draws: mean, deviation, quantiles and cdf of 8,000 episodes."""
    maze = make(name, **options, max_episode_frames=100_000)
    policy = random_policy(maze)
    truth = maze.truth(policy, discount)
    games = 8_000
    rewards, over, _ = map(np.asarray, play(maze, policy, jax.random.key(3), games, 300))
    found = returns(rewards, over, discount)
    start = (truth.policy[maze.start] @ truth.probabilities[maze.start].cumsum(-1)).clip(max=1)
    mean = policy[maze.start] @ truth.mean[maze.start]
    square = policy[maze.start] @ (truth.std**2 + truth.mean**2)[maze.start]
    std = np.sqrt(square - mean**2)
    assert abs(found.mean() - mean) < 4 * std / np.sqrt(games)
    assert abs(found.std() / std - 1) < 0.05
    # Distributions with jumps: levels whose quantile does not depend on a hair's breadth.
    for level in (0.02, 0.1, 0.25, 0.5, 0.75, 0.9):
        low, high = np.quantile(found, [level - 0.018, level + 0.018])
        quantile = truth.atoms[np.searchsorted(start, level)]
        assert low - 5 * truth.blur - 1e-6 <= quantile <= high + 5 * truth.blur + 1e-6
    assert truth.blur < 0.05


def test_the_truth_of_one_step_can_be_counted() -> None:
    """Two ways over a narrow cliff, by hand."""
    maze = make("maze/cliff", width=3, wind=0.1)
    edge = np.full(maze.cells, RIGHT)
    edge[cell(maze, 0, 2)] = DOWN
    truth = maze.truth(edge, 1.0)
    at = (maze.start, RIGHT)
    assert truth.mean[at] == pytest.approx(0.9 * 8 - 0.1 * 6)
    assert truth.std[at] == pytest.approx(14 * np.sqrt(0.09))
    np.testing.assert_allclose(truth.quantiles([0.05, 0.5])[at], [-6, 8], atol=3 * truth.blur + 0.01)
    np.testing.assert_allclose(truth.cdf([-6.5, -5.5, 7.5, 8.5])[at], [0, 0.1, 0.1, 1], atol=1e-6)
    assert truth.cdf(0).shape == (maze.cells, 4)
    assert truth.quantiles(np.linspace(0.1, 0.9, 9)).shape == (maze.cells, 4, 9)
    discounted = maze.truth(edge, 0.5)
    assert discounted.mean[at] == pytest.approx(0.9 * (-1 + 0.5 * 9) - 0.6)
    around = edge.copy()
    around[maze.start] = UP
    safe = maze.truth(around, 0.9)
    assert safe.std[maze.start, UP] == pytest.approx(0, abs=1e-9)  # but for rounding
    assert safe.mean[maze.start, UP] == pytest.approx(-1 - 0.9 - 0.81 + 0.729 * 9)
    np.testing.assert_allclose(safe.quantiles([0.01, 0.99])[maze.start, UP], safe.mean[maze.start, UP], atol=0.05)
    # Where episodes are over, nothing follows.
    assert (truth.mean[maze.terminal] == 0).all()
    assert (truth.std[maze.terminal] == 0).all()


@pytest.mark.parametrize(("name", "options"), [("maze/traps", {"layout": 3}), ("maze/cliff", {})])
def test_the_distribution_has_the_exact_moments(name: str, options: dict[str, Any]) -> None:
    maze = make(name, **options)
    truth = maze.truth(random_policy(maze, 1), 0.99)
    np.testing.assert_allclose(truth.probabilities.sum(-1), 1, atol=1e-9)
    np.testing.assert_allclose(truth.probabilities @ truth.atoms, truth.mean, atol=0.01)
    spread = truth.probabilities @ truth.atoms**2 - (truth.probabilities @ truth.atoms) ** 2
    assert (np.abs(np.sqrt(spread) - truth.std) < truth.blur + 0.01).all()
    finer = maze.truth(truth.policy, 0.99, points=6_001)
    assert finer.blur < truth.blur / 2
    np.testing.assert_allclose(finer.mean, truth.mean, rtol=1e-9)


def test_a_policy_that_never_arrives() -> None:
    maze = make("maze/traps")
    still = np.full(maze.cells, UP)  # from the start, into the wall for ever
    truth = maze.truth(still, 0.99)
    assert truth.mean[maze.start, UP] == pytest.approx(-0.1 / 0.01)
    assert truth.std[maze.start, UP] == pytest.approx(0, abs=1e-9)
    np.testing.assert_allclose(truth.quantiles(0.5)[maze.start, UP], -10, atol=0.05)
    with pytest.raises(ValueError, match="some episodes never end, so that a discount of 1 gives them no return"):
        maze.truth(still, 1.0)
    assert maze.episodes(still).visits[maze.start] == 1 + maze.limit
    assert maze.episodes(still).reward == pytest.approx(-0.1 * maze.limit)


def test_the_best_policy_is_the_best() -> None:
    maze = make("maze/traps", layout=4)
    best = maze.truth(maze.best_policy(0.99), 0.99).mean.max(1)
    for seed in range(5):
        other = maze.truth(random_policy(maze, seed), 0.99)
        assert (other.mean <= best[:, None] + 1e-9).all()


def test_episodes_are_counted_as_they_are_played() -> None:
    maze = make("maze/cliff", max_episode_frames=12)
    policy = random_policy(maze)
    games = 20_000
    rewards, over, led = map(np.asarray, play(maze, policy, jax.random.key(5), games, 12))
    going = np.cumsum(over, 0) - over == 0
    visits = np.bincount(led[going], minlength=maze.cells) / games
    visits[maze.start] += 1
    found = maze.episodes(policy)
    np.testing.assert_allclose(found.visits, visits, atol=0.04)
    assert abs((rewards * going).sum(0).mean() - found.reward) < 0.1
    assert 0.02 < found.visits[maze.kinds == Kind.CLIFF].sum() < 0.9


# Mistakes.


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("maze/trap", {}, "Unknown environment 'maze/trap' (did you mean 'maze/traps'?); known are maze/traps"),
        ("maze/traps", {"layout": 5}, "Unknown layout '5'; known are 0, 1, 2, 3, 4."),
        ("maze/traps", {"size": 4}, "size must be at least 5, not 4."),
        ("maze/traps", {"size": 13}, "size must be at most 12, not 13."),
        ("maze/traps", {"size": 5.5}, "size must be of type int, not 5.5."),
        ("maze/traps", {"spring": 1.5}, "spring must be at most 1, not 1.5."),
        ("maze/traps", {"wind": 0.1}, "maze/traps has no option 'wind'; it has layout (which labyrinth), size"),
        ("maze/cliff", {"wind": -0.1}, "wind must be at least 0, not -0.1."),
        ("maze/cliff", {"wind": "strong"}, "wind must be of type float, not 'strong'."),
        ("maze/cliff", {"width": 2}, "width must be at least 3, not 2."),
        ("maze/cliff", {"height": 1}, "height must be at least 2, not 1."),
        ("maze/cliff", {"fall": 1.0}, "fall must be at most 0, not 1.0."),
        ("maze/cliff", {"max_episode_frames": -1}, "max_episode_frames must be at least 0, not -1."),
    ],
)
def test_mistakes(name: str, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011
        make(name, **options)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_mistakes_on_the_command_line() -> None:
    hyper = default_config("dqn", None, "maze/cliff").hyper
    with pytest.raises(UserError, match="wind must be at most 1, not 3"):
        RunConfig(hyper, env="maze/cliff", env_kwargs=("wind=3",)).make_env()
    with pytest.raises(UserError, match="--protocol is MinAtar's; maze/cliff takes its options by --env-kwargs"):
        RunConfig(hyper, env="maze/cliff", protocol="standard").make_env()
    assert RunConfig(hyper, env="maze/cliff", max_episode_frames=9).make_env().limit == 9


def test_policies_and_levels_that_are_none() -> None:
    maze = make("maze/cliff")
    uniform = np.full((maze.cells, 4), 0.25)
    for wrong in (uniform[:-1], uniform * 2, -uniform, np.full(maze.cells, 4), np.full(maze.cells, 0.5), "up"):
        with pytest.raises(ValueError, match=r"A policy must be whole numbers from 0 to 3 of shape \(13,\), or prob"):
            maze.truth(wrong, 0.99)
    with pytest.raises(ValueError, match=r"The discount must lie between 0 and 1, not 1.5"):
        maze.truth(uniform, 1.5)
    with pytest.raises(ValueError, match="Levels of quantiles must lie between 0 and 1"):
        maze.truth(uniform, 0.9).quantiles([0.5, 1.0])


# For others' agents.


@pytest.mark.parametrize("name", MAZES)
def test_mazes_pass_gymnasium_s_checker(name: str) -> None:
    env = gymnasium.make(name, render_mode="rgb_array")
    check_env(env.unwrapped)
    env.reset(seed=1)
    picture: Any = env.render()
    maze: Maze = vars(env.unwrapped)["env"]
    assert picture.shape == (16 * maze.grid.shape[0], 16 * maze.grid.shape[1], 3)
    row, column = maze.positions[maze.start]
    assert (picture[16 * row + 8, 16 * column + 8] == rgb(COLOURS["agent"][1])).all()


def test_gymnasium_plays_our_own_game_on_the_same_keys() -> None:
    env = gymnasium.make("ceqr/MazeCliff-v0", max_episode_frames=9)
    ours = make("maze/cliff", max_episode_frames=9)
    key = jax.random.key(int(seeding.np_random(7)[0].integers(2**31)))
    reset_key, step_key = jax.random.split(key)
    state, expected = ours.reset(reset_key)
    step = jax.jit(ours.step)
    observation, _ = env.reset(seed=7)
    rng, ends = np.random.default_rng(0), [0, 0]
    for i in range(150):
        np.testing.assert_array_equal(observation, expected)
        action = rng.integers(ours.num_actions)
        state, after = step(state, jnp.int32(action), jax.random.fold_in(step_key, i))
        observation, reward, terminated, truncated, _ = env.step(action)
        np.testing.assert_array_equal(observation, after.successor)
        assert (reward, terminated, truncated) == (after.reward, after.terminated, after.truncated)
        expected = after.observation
        if terminated or truncated:
            ends[truncated] += 1
            observation, _ = env.reset()
    assert min(ends) > 1
    host = make("gymnasium/ceqr/MazeCliff-v0", wind=0.1)
    assert (host.observation_shape, host.observation_dtype) == (ours.observation_shape, ours.observation_dtype)


def test_options_of_the_gymnasium_environment_are_checked() -> None:
    with pytest.raises(ValueError, match="wind must be at most 1, not 2"):
        gymnasium.make("ceqr/MazeCliff-v0", wind=2)


# Pictures and the page.


def test_pictures() -> None:
    assert {kind.name.lower() for kind in Kind} | {"agent"} == set(COLOURS)
    assert len({colour for _, colour in COLOURS.values()}) == len(COLOURS)
    maze = make("maze/traps")
    empty, here = maze.picture(), maze.picture(maze.start)
    changed = np.argwhere((empty != here).any(-1))
    assert (changed.min(0) >= 16).all()  # the agent is a disc within its cell
    assert (changed.max(0) < 32).all()
    for place in maze.positions[::7]:
        middle = 16 * place + 8
        assert (empty[tuple(middle)] == rgb(COLOURS[Kind(maze.grid[tuple(place)]).name.lower()][1])).all()
    axes = maze.figure(maze.start).axes[0]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        COLOURS[each][0] for each in ("wall", "floor", "start", "goal", "trap", "agent")
    ]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("column", "row")


def test_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    """The example of docs/mazes.md prints what the page says it prints, and the page has every option."""
    text = PAGE.read_text()
    code = text.split("```python\n")[1].split("```")[0]
    promised = text.split("```text\n")[1].split("```")[0]
    exec(compile(code, "mazes.md", "exec"), {})
    assert capsys.readouterr().out == promised
    for options in OPTIONS.values():
        for option in options:
            assert f"`{option}`" in text
