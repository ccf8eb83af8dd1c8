"""Whether every link of a built site leads somewhere: to a page, a file or a heading of the site itself.

Pictures, scripts, styles and fonts must be the site's own, so that it can be read without a network; only links that
a reader follows may lead elsewhere.
"""

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

FETCHED = {("img", "src"), ("script", "src"), ("link", "href"), ("iframe", "src"), ("source", "src"), ("video", "src")}
POINTERS = {"canonical", "next", "prev", "edit"}  # of <link rel=...>: they name an address and fetch nothing


class Page(HTMLParser):
    """The addresses that a page has, and the places in it that an address may name."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.places: set[str] = set()
        self.addresses: list[tuple[str, bool]] = []  # and whether the browser fetches it
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        of = {name: value or "" for name, value in attrs}
        self.places |= {of[name] for name in ("id", "name") if name in of}
        for name in ("href", "src"):
            if of.get(name):
                fetched = (tag, name) in FETCHED and of.get("rel") not in POINTERS
                self.addresses.append((of[name], fetched))


def broken(site: Path) -> list[str]:
    """A sentence for each link that leads nowhere, and for each thing that would be fetched from elsewhere."""
    site = site.resolve()
    pages = {path: Page(path.read_text("utf-8")) for path in sorted(site.rglob("*.html"))}
    wrong = []
    for path, page in pages.items():
        where = path.relative_to(site)
        for address, fetched in page.addresses:
            wrong += [f"{where}: {why}" for why in _why(address, fetched, path, site, pages)]
    for style in sorted(site.rglob("*.css")):
        for address in re.findall(r"""url\(["']?((?!data:)[^)"']+)""", style.read_text("utf-8")):
            wrong += [f"{style.relative_to(site)}: {why}" for why in _why(address, True, style, site, pages)]
    return list(dict.fromkeys(wrong))


def _why(address: str, fetched: bool, source: Path, site: Path, pages: dict[Path, Page]) -> list[str]:
    """What is wrong with an address: nothing, or one thing."""
    parts = urlsplit(address)
    if parts.scheme in ("data", "mailto", "javascript"):
        return []
    if parts.scheme or parts.netloc:
        return [f"{address} is fetched from elsewhere."] if fetched else []
    target = source if not parts.path else (source.parent / unquote(parts.path)).resolve()
    if parts.path.startswith("/") or not target.is_relative_to(site):
        # The page for what was not found may be shown at any address, so its own are absolute.
        return [] if source.name == "404.html" else [f"{address} leads out of the site."]
    target = target / "index.html" if target.is_dir() else target
    if not target.is_file():
        return [f"{address} leads to no file."]
    place = unquote(parts.fragment)
    if place and target in pages and place not in pages[target].places:
        return [f"{address} names a place that is not in that page."]
    return []
