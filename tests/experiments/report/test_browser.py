"""The page in a real browser: three sizes, light and dark, the pointer, the keyboard, and paper."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.browser

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# No sandbox: continuous integration runs as root. The rest keeps Chromium from calling home.
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
SIZES = {"desk": (1440, 900), "tablet": (820, 1180), "phone": (390, 844)}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("there is no Chromium on this machine (Debian: apt-get install chromium)")
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (pip install playwright)")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


class Visit:
    """The page as it is open, and all that went wrong with it."""

    def __init__(self, browser: Any, report: Path, size: str, scheme: str):
        width, height = SIZES[size]
        self.context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, offline=True
        )
        self.page = self.context.new_page()
        self.wrong: list[str] = []
        self.loaded: list[str] = []
        self.page.on("console", lambda message: self.wrong.append(message.text))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("request", lambda request: self.loaded.append(request.url))
        self.page.goto((report / "index.html").as_uri())


@pytest.fixture
def visit(browser: Any, report: Path) -> Iterator[Any]:
    visits: list[Visit] = []

    def go(size: str = "desk", scheme: str = "light") -> Visit:
        visits.append(Visit(browser, report, size, scheme))
        return visits[-1]

    yield go
    for each in visits:
        each.context.close()
        assert each.wrong == []
        assert [url for url in each.loaded if not url.startswith(("file:", "data:"))] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_it_fits_and_can_be_read(visit: Any, size: str, scheme: str) -> None:
    page = visit(size, scheme).page
    assert page.evaluate("document.documentElement.scrollWidth") <= SIZES[size][0]
    ground, ink = page.evaluate(
        "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
    )
    dark, light = sorted((_brightness(ground), _brightness(ink)))
    assert (_brightness(ground) == dark) == (scheme == "dark")
    assert (light + 0.05) / (dark + 0.05) > 7  # WCAG's contrast of level AAA
    for panel in page.locator("svg.panel").all():
        box = panel.bounding_box()
        assert box["width"] > 250
        assert box["x"] + box["width"] <= SIZES[size][0]
    sizes = page.evaluate(
        "[...document.querySelectorAll('.tick')].map(t => t.getBoundingClientRect().height).filter(h => h > 0)"
    )
    assert min(sizes) > 9  # pixels of an axis's text


def _brightness(colour: str) -> float:
    """WCAG's relative luminance of rgb(r, g, b)."""
    channels = [int(n) / 255 for n in re.findall(r"\d+", colour)[:3]]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


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
