"""Pages in a real browser: what opens them, what goes wrong with them, and whether they can be read."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# No sandbox: continuous integration runs as root. The rest keeps Chromium from calling home.
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
SIZES = {"desk": (1440, 900), "tablet": (820, 1180), "phone": (390, 844)}


class Visit:
    """A folder's page as it is open, and all that went wrong with it."""

    def __init__(self, browser: Any, folder: Path, size: str = "desk", scheme: str = "light"):
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
        self.page.goto((folder / "index.html").as_uri())

    def close(self) -> None:
        """Closes it; AssertionError if anything went wrong, or was loaded from elsewhere."""
        self.context.close()
        assert self.wrong == [], self.wrong
        assert [url for url in self.loaded if not url.startswith(("file:", "data:"))] == []


Visiting = Callable[..., Visit]  # of a folder, a size and a scheme


def check_it_can_be_read(page: Any, size: str, scheme: str) -> None:
    """Nothing is wider than the screen, text stands out from its ground, and axes have text that is large enough."""
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
