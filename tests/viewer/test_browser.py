"""The page in a real browser: it plays, seeks, obeys mouse and keyboard, shows the agent's numbers, and fits."""

import dataclasses
import io
import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from ceqr.viewer.page import render
from ceqr.viewer.pictures import shrink
from ceqr.viewer.record import Episode, Subject
from ceqr.viewer.scenes import SKY
from tests.browsing import SIZES, Visiting, _brightness
from tests.viewer.conftest import EPISODES
from tests.viewer.subjects import invented, subject, watched

pytestmark = pytest.mark.browser

Recorded = tuple[Subject, list[Episode]]


@pytest.fixture
def visit(visiting: Visiting, alone: Path) -> Any:
    return partial(_ready, visiting, alone)


def _ready(visiting: Visiting, folder: Path, *size_and_scheme: str) -> Any:
    page = visiting(folder, *size_and_scheme).page
    page.wait_for_selector("body[data-ready]")
    return page


def _frame(page: Any) -> int:
    """The frame that is shown, from 0 on; after it was drawn."""
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return int(page.locator("#clock").inner_text().split("/")[0].replace(",", "")) - 1


def _number(text: str) -> float:
    return float(text.replace("−", "-"))


def _seek(page: Any, frame: int) -> None:
    page.locator("#seek").evaluate("(e, v) => { e.value = v; e.dispatchEvent(new Event('input')); }", str(frame))
    assert _frame(page) == frame


def test_the_numbers_are_those_that_the_agent_computes(visit: Any, breakout: Recorded) -> None:
    page = visit()
    subject, episodes = breakout
    for number in (0, EPISODES - 1):
        page.keyboard.press(str(number + 1))
        page.wait_for_selector(f"[data-episode='{number}'][aria-pressed='true']")
        episode = episodes[number]
        for frame in {0, len(episode) // 2, len(episode) - 1}:
            _seek(page, frame)
            # Asked anew, one observation at a time.
            greedy, beliefs = subject.agent.act_greedily(
                subject.state, jnp.asarray(episode.observation[frame : frame + 1])
            )
            rows = page.locator(".rows .row").all()
            assert len(rows) == subject.env.num_actions
            for action, row in enumerate(rows):
                assert row.locator("b").inner_text() == subject.env.action_names[action]
                for kind in ("mean", "epistemic", "aleatoric"):
                    text = row.locator(f".{kind}").inner_text()
                    digits = len(text.partition(".")[2])
                    true = float(np.asarray(getattr(beliefs, kind))[0, action])
                    assert abs(_number(text) - true) <= 0.5001 * 10**-digits + 1e-6 * abs(true), (kind, text, true)
                assert row.locator(".greedy").is_visible() == (action == int(greedy[0]))
                assert row.locator(".sampled").is_visible() == (action == episode.sampled[frame])
                assert ("did" in row.get_attribute("class").split()) == (action == episode.action[frame])
            facts = {
                each: page.locator(f"dd.{each}").inner_text() for each in ("interval", "novelty", "reward", "total")
            }
            ends = [_number(each) for each in facts["interval"].split(" to ")]
            assert ends == pytest.approx([each[frame] for each in episode.beliefs.interval], abs=0.001)
            assert _number(facts["novelty"]) == pytest.approx(episode.beliefs.novelty[frame], abs=0.0006)
            assert _number(facts["reward"]) == episode.reward[frame]
            assert _number(facts["total"]) == episode.reward[: frame + 1].sum()


def test_it_plays_pauses_and_ends(visit: Any, breakout: Recorded) -> None:
    page = visit()
    last = len(breakout[1][0]) - 1
    before = page.locator("#screen0").screenshot()
    page.locator("#speed").select_option("1")
    page.locator("#toggle").click()
    assert page.locator("#toggle").get_attribute("aria-label") == "Pause"
    assert page.locator("#reading").get_attribute("aria-live") == "off"
    page.locator("#speed").select_option("60")
    page.wait_for_selector("body:not(.playing)")
    assert _frame(page) == last
    assert page.locator("#screen0").screenshot() != before
    assert page.locator("#reading").get_attribute("aria-live") == "polite"
    assert "ends here" in page.locator(".over").inner_text()
    page.locator("#speed").select_option("1")
    page.locator("#toggle").click()  # again from the start
    page.locator("#toggle").click()
    assert _frame(page) <= 1


def test_the_keyboard_does_all(visit: Any, breakout: Recorded) -> None:
    page = visit()
    last = len(breakout[1][0]) - 1
    for key, frame in (
        ("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("End", last), ("ArrowRight", last), ("Home", 0),
        ("Shift+ArrowRight", min(10, last)), ("Shift+ArrowLeft", 0),
    ):  # fmt: skip
        page.keyboard.press(key)
        assert _frame(page) == frame, key
    for key, speed in (("]", "20"), ("]", "30"), ("[", "20"), ("[", "10"), ("[", "5")):
        page.keyboard.press(key)
        assert page.locator("#speed").input_value() == speed
    page.keyboard.press("Space")
    assert page.evaluate("document.body.classList.contains('playing')")
    page.keyboard.press("Space")
    assert not page.evaluate("document.body.classList.contains('playing')")
    page.keyboard.press("2")
    page.wait_for_selector("[data-episode='1'][aria-pressed='true']")
    assert _frame(page) == 0
    page.keyboard.press("?")
    assert page.locator("#help").get_attribute("open") is not None


def test_everything_can_be_reached_and_has_a_name(visit: Any) -> None:
    page = visit()
    controls = "[...document.querySelectorAll('button:not(:disabled), input, select, summary, a')]"
    wanted = page.evaluate(f"{controls}.map((e) => e.id || e.textContent)")
    reached = []
    for _ in range(len(wanted) + 2):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.textContent"))
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none" or page.evaluate("document.activeElement === document.body")
    assert set(wanted) <= set(reached)
    nameless = "e => !(e.textContent.trim() || e.ariaLabel || (e.labels && e.labels.length))"
    assert page.evaluate(f"[...document.querySelectorAll('button, input, select, a')].filter({nameless}).length") == 0


def test_the_time_line_and_the_moments_are_clicked(visit: Any, breakout: Recorded) -> None:
    page = visit()
    last = len(breakout[1][0]) - 1
    line = page.locator("#line")
    line.scroll_into_view_if_needed()
    box = line.bounding_box()
    page.mouse.click(box["x"] + box["width"] - 9, box["y"] + 60)
    assert _frame(page) == last
    page.mouse.click(box["x"] + 46, box["y"] + 60)
    assert _frame(page) == 0
    page.mouse.down()
    page.mouse.move(box["x"] + 46 + (box["width"] - 54) / 2, box["y"] + 60, steps=3)
    page.mouse.up()
    assert abs(_frame(page) - last / 2) <= 1
    data = json.loads(page.locator("#data").text_content())
    moments = data["episodes"][0]["agents"][0]["moments"]
    assert {moment["kind"] for moment in moments} == {"doubt", "surprise"}
    for kind, place in (("doubt", "#doubts"), ("surprise", "#surprises")):
        frames = [moment["frame"] for moment in moments if moment["kind"] == kind]
        buttons = page.locator(f"{place} button").all()
        assert sorted(int(button.get_attribute("data-frame")) for button in buttons) == sorted(frames)
        buttons[0].click()
        assert _frame(page) == int(buttons[0].get_attribute("data-frame"))
    page.keyboard.press("Home")
    marked = sorted({moment["frame"] for moment in moments} - {0})
    for frame in marked:
        page.keyboard.press("n")
        assert _frame(page) == frame
    page.keyboard.press("p")
    assert _frame(page) < marked[-1]


def test_words_tell_the_frame(visit: Any, breakout: Recorded) -> None:
    page = visit()
    _seek(page, 2)
    episode = breakout[1][0]
    words = page.locator("#reading").inner_text()
    assert words.startswith(f"Frame 3 of {len(episode)}. The greedy action is")
    assert breakout[0].env.action_names[episode.greedy[2]] in words
    seen = page.locator("#screen0").get_attribute("aria-label")
    ((row, column),) = np.argwhere(episode.observation[2, ..., 1])
    assert f"ball at row {row + 1}, column {column + 1}" in seen
    assert f"{episode.observation[2, ..., 3].sum()} cells of brick" in seen
    _seek(page, 3)
    assert page.locator("#reading").inner_text() != words


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("which", ["alone", "beside"])
def test_it_fits_and_can_be_read(
    visiting: Visiting, request: pytest.FixtureRequest, which: str, size: str, scheme: str
) -> None:
    page = _ready(visiting, request.getfixturevalue(which), size, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= SIZES[size][0]
    assert page.evaluate(OVERLAPS) == []
    for words, ink, ground in page.evaluate(CONTRASTS):
        dark, light = sorted((_brightness(ink), _brightness(ground)))
        assert (light + 0.05) / (dark + 0.05) >= 4.5, (words, ink, ground)  # WCAG's contrast of level AA
    assert page.locator("#screen0").bounding_box()["width"] > (150 if which == "beside" else 300)


# Pairs of texts, pictures or controls that cover each other, or stick out of what holds them.
OVERLAPS = """(() => {
  const kinds = 'h1, h2, h3, p, dt, dd, button, input, select, canvas, b, .n, .tags i, li, summary, output';
  const seen = [...document.querySelectorAll(kinds)]
    .filter((e) => e.checkVisibility() && !e.closest('.over') && !e.closest('.skip'));
  const boxes = seen.map((e) => e.getBoundingClientRect());
  const found = [];
  for (let i = 0; i < seen.length; i++) for (let j = i + 1; j < seen.length; j++) {
    if (seen[i].contains(seen[j]) || seen[j].contains(seen[i])) continue;
    const [a, b] = [boxes[i], boxes[j]];
    const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (wide > 1.5 && high > 1.5) found.push([seen[i].outerHTML.slice(0, 80), seen[j].outerHTML.slice(0, 80)]);
  }
  for (const e of seen) {
    const cut = e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 0 && e.tagName !== 'SELECT';
    if (cut) found.push([e.outerHTML.slice(0, 80), 'is cut off']);
  }
  return found;
})()"""
# Texts, with the colours of their ink and of the nearest ground below them.
CONTRASTS = """(() => {
  const found = [];
  const kinds = 'h1, h1 span, p, dt, dd, button, .n, .tags i, li, summary, label, h2 span';
  for (const e of document.querySelectorAll(kinds)) {
    if (!e.checkVisibility() || !e.textContent.trim() || e.disabled) continue;
    let under = e;
    while (under && /rgba\\(.*, 0\\)/.test(getComputedStyle(under).backgroundColor)) under = under.parentElement;
    if (!under || e.closest('.over')) continue;
    found.push([e.textContent.trim().slice(0, 40), getComputedStyle(e).color, getComputedStyle(under).backgroundColor]);
  }
  return found;
})()"""


def test_two_agents_are_played_together(visiting: Visiting, beside: Path, breakout: Recorded, plain: Recorded) -> None:
    page = _ready(visiting, beside)
    lengths = [len(each[1][0]) for each in (breakout, plain)]
    assert page.locator("#clock").inner_text() == f"1 / {max(lengths)}"
    assert page.locator("#screen0").screenshot() == page.locator("#screen1").screenshot()  # one start for both
    page.keyboard.press("End")
    _frame(page)
    for number, recorded in enumerate((breakout, plain)):
        total = recorded[1][0].reward.sum()
        assert _number(page.locator(f"#beliefs{number} dd.total").inner_text()) == total  # each at its own end
    words = page.locator("#beliefs1 .missing").inner_text()
    assert "does not estimate the distribution of returns, its own doubt (epistemic) or the world’s noise" in words
    assert page.locator("#beliefs1 .epistemic").first.inner_text() == "–"
    assert "Frame" in page.locator("#reading").inner_text()


def test_a_frame_has_an_address(visiting: Visiting, alone: Path) -> None:
    page = _ready(visiting, alone)
    page.goto((alone / "index.html").as_uri() + "#2.3")
    page.reload()
    page.wait_for_selector("body[data-ready]")
    assert _frame(page) == 2
    assert page.locator("[data-episode='1']").get_attribute("aria-pressed") == "true"
    page.keyboard.press("ArrowRight")
    assert re.search(r"#2\.4$", page.evaluate("location.href"))


def test_colours_follow_the_scheme_while_it_is_open(visit: Any) -> None:
    page = visit()
    before = page.locator("#line").screenshot()
    page.emulate_media(color_scheme="dark")
    _frame(page)
    assert page.locator("#line").screenshot() != before


def _pixel(page: Any, x: float, y: float) -> list[int]:
    """The colour of the game at a share of its width and height."""
    image = np.asarray(Image.open(io.BytesIO(page.locator("#screen0").screenshot())).convert("RGB"))
    return image[int(y * len(image)), int(x * image.shape[1])].tolist()


def test_screens_of_gymnasium_and_shapes_are_drawn(visiting: Visiting, tmp_path: Path) -> None:
    made = subject("dqn", "gymnax/CartPole-v1")
    lean = np.zeros((40, 4), np.float32)
    lean[:, 0] = np.linspace(-2, 2, 40)
    shown = invented(40, 2, 3, lean)
    screens = [shrink(np.full((20, 30, 3), 6 * i, np.uint8)) for i in range(40)]
    for name, episode in (("shapes", shown), ("screens", dataclasses.replace(shown, pictures=screens))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "index.html").write_bytes(render(watched([made], [[episode]])))
    page = _ready(visiting, tmp_path / "screens")
    for frame in (0, 31, 32, 39, 3):  # the second sheet begins at 32
        _seek(page, frame)
        for _ in range(100):  # a sheet is decoded when it is first needed
            if _pixel(page, 0.5, 0.3) == [6 * frame] * 3:
                break
            page.wait_for_timeout(20)
        assert _pixel(page, 0.5, 0.3) == [6 * frame] * 3, frame
    page = _ready(visiting, tmp_path / "shapes")
    cart = [int(SKY[i : i + 2], 16) for i in (1, 3, 5)]
    for frame in (0, 39):
        _seek(page, frame)
        assert _pixel(page, 0.5 + lean[frame, 0] / 5.2, 0.73) == cart
        assert _pixel(page, 0.5 - lean[frame, 0] / 5.2, 0.73) != cart
