"""How environments are drawn: which things are where, and that pictures fit."""

import dataclasses
import io

import numpy as np
import pytest
from PIL import Image

from ceqr import envs
from ceqr.viewer import pictures
from ceqr.viewer.record import Episode
from ceqr.viewer.scenes import (
    GROUND,
    MOST_BARS,
    NAMED,
    GridScene,
    Layer,
    PicturesScene,
    ShapesScene,
    action_names,
    scene_of,
)
from tests.viewer.subjects import invented


def _seen(observation: np.ndarray) -> Episode:
    return invented(len(observation), 2, 3, observation)


def _drawn(scene: object, episode: Episode, frame: int = 0, size: int = 100) -> np.ndarray:
    assert isinstance(scene, GridScene | ShapesScene | PicturesScene)
    image = Image.new("RGB", (round(size * scene.ratio), size))
    scene.draw(image, (0, 0, size * scene.ratio, size), episode, frame)
    return np.asarray(image)


@pytest.mark.parametrize("game", envs.MINATAR_GAMES)
def test_minatars_things_have_names_colours_and_shapes_that_differ(game: str) -> None:
    env = envs.make(f"minatar/{game}")
    scene = scene_of(env, [_seen(np.zeros((1, *env.observation_shape), bool))])
    assert isinstance(scene, GridScene)
    assert [each.name for each in scene.layers] == list(env.channel_names)
    assert set(env.channel_names) <= set(NAMED)
    assert len({each.shape for each in scene.layers}) == len(scene.layers)  # none is told by its colour alone
    assert len(action_names(env)) == env.num_actions
    assert "stay" in action_names(env)


def test_minatars_channels_are_named_as_in_the_original() -> None:
    minatar = pytest.importorskip("minatar")
    ours = {"own bullet": "friendly_bullet", "submarine": "sub_front", "stern": "sub_back", "fish": "enemy_fish",
            "enemy submarine": "enemy_sub", "oxygen": "oxygen_guage", "divers aboard": "diver_guage",
            "moving left": "alien_left", "moving right": "alien_right"}  # fmt: skip
    for game in envs.MINATAR_GAMES:
        original = minatar.Environment(game).env.channels
        for number, name in enumerate(envs.make(f"minatar/{game}").channel_names):
            words = ours.get(name, name.replace(" ", "" if name.startswith("speed") else "_"))
            assert original[words] == number, name


def test_a_grid_is_drawn_where_its_things_are() -> None:
    env = envs.make("minatar/breakout")
    seen = np.zeros((2, 10, 10, 4), bool)
    seen[0, 2, 7, 3], seen[1, 9, 0, 0] = True, True  # a brick, and then the paddle
    episode = _seen(seen)
    scene = scene_of(env, [episode])
    first, second = _drawn(scene, episode), _drawn(scene, episode, 1)
    assert _hex(first[25, 75]) == NAMED["brick"][0]
    assert _hex(second[95, 5]) == NAMED["paddle"][0]
    assert _hex(first[95, 5]) == _hex(second[25, 75]) == GROUND
    bits = np.unpackbits(scene.arrays(episode)["cells"], axis=1, bitorder="little")[:, :400].reshape(seen.shape)
    np.testing.assert_array_equal(bits, seen)


def test_what_is_small_is_drawn_on_what_is_large() -> None:
    env = envs.make("minatar/breakout")
    seen = np.ones((1, 10, 10, 4), bool)
    drawn = _drawn(scene_of(env, [_seen(seen)]), _seen(seen))
    assert _hex(drawn[55, 55]) == NAMED["trail"][0]
    assert _hex(drawn[55, 52]) == NAMED["ball"][0]
    assert _hex(drawn[51, 51]) == NAMED["brick"][0]


def _hex(pixel: np.ndarray) -> str:
    return "#" + "".join(f"{value:02x}" for value in pixel)


def test_a_pole_is_drawn_as_it_leans() -> None:
    env = envs.make("gymnax/CartPole-v1")
    scale = np.asarray(env.observations.scale or 1.0)
    states = np.array([[0, 0, 0, 0], [1.2, 0, 0.2, 0], [-1.2, 0, -0.2, 0]]) * scale
    scene = scene_of(env, [_seen(states.astype(np.float32))])
    assert isinstance(scene, ShapesScene)
    upright, right, left = scene.arrays(_seen(states.astype(np.float32)))["numbers"][:, 8:]
    assert upright[0] == pytest.approx(upright[2])  # foot and tip
    assert upright[3] < upright[1]
    assert right[2] > right[0] > upright[0] > left[0] > left[2]
    np.testing.assert_allclose(right[0] - upright[0], upright[0] - left[0], rtol=1e-5)
    assert action_names(env) == ["push left", "push right"]


def test_classic_control_from_its_observations() -> None:
    hanging = np.array([[1, 0, 1, 0, 0, 0]], np.float32)
    acrobot = scene_of(envs.make("gymnax/Acrobot-v1"), [_seen(hanging)])
    x0, y0, x1, y1, x2, y2 = acrobot.arrays(_seen(hanging))["numbers"][0]
    assert x0 == pytest.approx(x1)
    assert x1 == pytest.approx(x2)
    assert y0 < y1 < y2
    env = envs.make("gymnax/MountainCar-v0")
    places = np.array([[-0.5, 0], [0.5, 0]], np.float32) * np.asarray(env.observations.scale or 1.0, np.float32)
    valley, top = scene_of(env, [_seen(places)]).arrays(_seen(places))["numbers"]
    assert valley[1] > top[1]  # y is downwards
    assert valley[0] < top[0]


class Plain:
    """An environment of which only the observations' shape is known."""

    name, num_actions, observation_dtype = "probe/plain", 2, np.float32

    def __init__(self, *shape: int):
        self.observation_shape = shape


def test_other_vectors_are_bars_or_a_picture() -> None:
    seen = np.array([[0.5, -1.0, 2.0], [1.0, 0.0, -2.0]], np.float32)
    bars = scene_of(Plain(3), [_seen(seen)])
    assert isinstance(bars, ShapesScene)
    tips = bars.arrays(_seen(seen))["numbers"].reshape(2, 3, 4, 2)
    zero = tips[0, 0, 0, 0]
    np.testing.assert_array_equal(np.sign(tips[:, :, 1, 0] - zero), np.sign(seen))
    assert tips[1, 0, 1, 0] - zero == pytest.approx(2 * (tips[0, 0, 1, 0] - zero))
    many = np.random.default_rng(0).normal(size=(3, MOST_BARS + 1)).astype(np.float32)
    assert isinstance(scene_of(Plain(MOST_BARS + 1), [_seen(many)]), PicturesScene)
    assert _drawn(scene_of(Plain(MOST_BARS + 1), [_seen(many)]), _seen(many)).std() > 10


def test_deep_sea_and_numbers_are_grids() -> None:
    sea = envs.make("gymnax/DeepSea-bsuite", size=5)
    seen = np.zeros((1, 25), np.float32)
    seen[0, 7] = 1
    scene = scene_of(sea, [_seen(seen)])
    assert isinstance(scene, GridScene)
    assert np.argwhere(scene.cells(seen)[0, ..., 0]).tolist() == [[1, 2]]
    lake = envs.make("gymnasium/FrozenLake-v1")
    scene = scene_of(lake, [_seen(np.eye(16, dtype=bool)[[5]])])
    assert isinstance(scene, GridScene)
    assert (scene.height, scene.width) == (4, 4)
    assert np.argwhere(scene.cells(np.eye(16, dtype=bool)[[5]])[0, ..., 0]).tolist() == [[1, 1]]


def test_a_maze_has_its_ground_and_the_agent_on_it() -> None:
    env = envs.make("maze/cliff")
    seen = env.cell_observations()
    scene = scene_of(env, [_seen(seen)])
    assert isinstance(scene, GridScene)
    assert np.array(scene.ground).shape == env.grid.shape
    names = [name for name, _ in scene.grounds]
    assert "goal" in names
    for cell, (row, column) in enumerate(env.positions):
        assert np.argwhere(scene.cells(seen)[cell, ..., 0]).tolist() == [[row, column]]


def test_layers_that_nobody_named_differ() -> None:
    seen = np.zeros((1, 6, 6, 12), np.float32)
    scene = scene_of(Plain(6, 6, 12), [_seen(seen)])
    assert isinstance(scene, GridScene)
    assert len({(layer.colour, layer.shape) for layer in scene.layers}) == 12
    assert scene.layers[3] == Layer("channel 3", scene.layers[3].colour, scene.layers[3].shape)


def _png(pixels: np.ndarray) -> bytes:
    return pictures.shrink(pixels)


def test_sheets_hold_every_frame() -> None:
    shades = [np.full((20, 30, 3), 5 * i, np.uint8) for i in range(40)]  # a sheet and a piece of another
    sheets = pictures.encode([_png(each) for each in shades])
    assert sheets.every == 1
    assert len(sheets.sheets) == 2
    assert sheets.width / sheets.height == pytest.approx(1.5)
    for i in range(40):
        number, at = divmod(i, pictures.ACROSS * pictures.DOWN)
        image = np.asarray(Image.open(io.BytesIO(sheets.sheets[number])).convert("RGB"))
        y, x = at // pictures.ACROSS * sheets.height, at % pictures.ACROSS * sheets.width
        assert (image[y : y + sheets.height, x : x + sheets.width] == 5 * i).all()


def test_pictures_that_do_not_compress_still_fit_the_budget() -> None:
    chance = np.random.default_rng(0)
    noise = [_png(chance.integers(0, 256, (60, 80, 3), np.uint8)) for _ in range(80)]
    free = pictures.encode(noise)
    tight = pictures.encode(noise, budget=100_000)
    assert sum(map(len, tight.sheets)) <= 100_000 < sum(map(len, free.sheets))
    assert tight.width <= free.width
    assert tight.every > 1  # nothing else would do


def test_a_screen_is_shown_as_it_is() -> None:
    screens = [np.full((40, 60, 3), 100 + i, np.uint8) for i in range(3)]
    episode = dataclasses.replace(_seen(np.zeros((3, 4), np.float32)), pictures=[_png(each) for each in screens])
    scene = scene_of(Plain(4), [episode])
    assert isinstance(scene, PicturesScene)
    assert scene.ratio == pytest.approx(1.5)
    assert (_drawn(scene, episode, 2) == 102).all()
