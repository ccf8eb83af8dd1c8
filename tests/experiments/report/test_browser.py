"""The page in a real browser: three sizes, light and dark, the pointer, the keyboard, and paper."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.browsing import SIZES, Visiting, check_it_can_be_read

pytestmark = pytest.mark.browser


@pytest.fixture
def visit(visiting: Visiting, report: Path) -> Any:
    return partial(visiting, report)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_it_fits_and_can_be_read(visit: Any, size: str, scheme: str) -> None:
    check_it_can_be_read(visit(size, scheme).page, size, scheme)


@pytest.mark.parametrize("size", ["desk", "phone"])
def test_hovering_shows_values(visit: Any, size: str) -> None:
    page = visit(size).page
    panel = page.locator("svg[data-panel]").first
    panel.scroll_into_view_if_needed()
    assert page.locator("#tip").is_hidden()
    box = panel.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.97, box["y"] + box["height"] / 2)  # the last frames
    data = json.loads(panel.get_attribute("data-panel"))
    tip = page.locator("#tip").inner_text()
    assert "frames: 4,000" in tip
    for line in data["lines"]:
        assert line["label"] in tip
        assert f"{line['y'][-1]:.4g}" in tip
    place = page.locator("#tip").bounding_box()
    assert place["x"] >= 0
    assert place["x"] + place["width"] <= SIZES[size][0]
    page.mouse.move(1, 1)
    assert page.locator("#tip").is_hidden()


def test_the_keyboard_reads_values_too(visit: Any) -> None:
    page = visit().page
    panel = page.locator("svg[data-panel]").first
    page.locator(".skip").focus()
    for _ in range(60):
        page.keyboard.press("Tab")
        if panel.evaluate("each => each === document.activeElement"):
            break
    tip = page.locator("#tip")
    assert tip.get_attribute("role") == "status"
    assert "frames: 4,000" in tip.inner_text()
    page.keyboard.press("ArrowLeft")
    assert "frames: 3,980" in tip.inner_text()
    page.keyboard.press("Home")
    assert "frames: 20" in tip.inner_text()
    page.keyboard.press("Shift+ArrowRight")
    assert "frames: 220" in tip.inner_text()
    page.keyboard.press("Escape")
    assert tip.is_hidden()


def test_every_figure_has_words_and_numbers_beside_it(visit: Any) -> None:
    page = visit().page
    for figure in page.locator("figure").all():
        assert figure.locator("figcaption").inner_text()
        for panel in figure.locator("svg.panel").all():
            assert len(panel.get_attribute("aria-label")) > 40
        panels = figure.locator("svg.panel").count()
        figure.locator("summary").click()
        assert figure.locator("table").count() == panels
        assert figure.locator("table td").first.is_visible()
    nameless = "e => !(e.innerText || e.getAttribute('aria-label'))"
    assert page.evaluate(f"[...document.querySelectorAll('a, summary, [tabindex]')].filter({nameless}).length") == 0


def test_on_paper_it_is_light_and_open(visit: Any) -> None:
    page = visit("desk", "dark").page
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details:not([open])").count() == 0
    page.emulate_media(media="print", color_scheme="dark")
    ground = page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--ground')").strip()
    assert ground == "#ffffff"
    assert page.locator("nav").is_hidden()
    assert page.pdf(format="A4").startswith(b"%PDF")
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("details[open]").count() == 0
