"""Builds the documentation site: `make docs`, then open build/site/index.html.

The pages of docs/ are written to be read on a code forge, too. So they link to each other and to files of the
repository by their paths, and the README is the first page. Here all of it is gathered into one folder: docs/ as it is,
the README as the first page, and for whatever else a page links to (a script, a folder, another text) a page that shows
it; for a sweep's directory, the report of it. Zensical makes the site. Then the one script that it would fetch from
elsewhere is replaced by a copy, and every link is followed: the site can be read and searched without a network,
straight from the disk.

Why Zensical: it is by the makers of Material for MkDocs, whose own end they have announced for May 2027, reads
docstrings with mkdocstrings, and searches from a disk. It does not see links that lead out of its folder or pages that
the navigation leaves out, so that is looked at here.
"""

import os
import posixpath
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from tools.docs.links import broken

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
CONFIG = ROOT / "zensical.toml"
ELSEWHERE = "repository"  # the folder of the site for what does not stand in docs/
LIVE = "live"  # the folder of pages that are whole by themselves: reports, and what stands in docs/live
CDN = "https://unpkg.com/iframe-worker/shim"  # lets search run from a disk, where browsers allow no workers
FONT = "STIXTwoMath-Regular.ttf"
LANGUAGES = {".py": "python", ".sh": "bash", ".toml": "toml", ".json": "json", ".yml": "yaml", ".csv": "text"}

# A link of Markdown: what stands before its target, the target, and the heading that it names.
LINK = re.compile(r"(\]\()([^)\s#:]+)(#[^)\s]*)?(?=\))")
CODE = re.compile(r"^(`{3,}|~{3,}).*?^\1\s*$|(`+)[^`].*?\2(?!`)", re.M | re.S)


class Broken(Exception):
    """Something about the pages is wrong; a sentence a line."""


def nav_pages(entries: list) -> Iterator[str]:
    """The pages of a navigation, in its order."""
    for entry in entries:
        for value in entry.values() if isinstance(entry, dict) else [entry]:
            yield from nav_pages(value) if isinstance(value, list) else [value]


def is_sweep(path: Path) -> bool:
    """Whether it is a directory of `ceqr sweep`; the site has the report of it."""
    return (path / "sweep.toml").is_file()


def place(path: Path) -> str:
    """Where a file or folder of the repository stands in the site's source."""
    name = path.relative_to(ROOT).as_posix()
    if name == "README.md":
        return "index.md"
    if name.startswith("docs/"):
        return name.removeprefix("docs/")
    if is_sweep(path):
        return f"{LIVE}/{path.name}/index.html"
    if path.is_dir():
        return f"{ELSEWHERE}/{name}/index.md"
    return f"{ELSEWHERE}/{name}" if path.suffix == ".md" else f"{ELSEWHERE}/{name}.md"


def origin(page: str) -> Path:
    """The file that a page of the navigation comes from."""
    if page == "index.md":
        return ROOT / "README.md"
    name = page.removeprefix(f"{ELSEWHERE}/")
    return ROOT / name if name != page else ROOT / "docs" / page


def outside_code(text: str) -> Iterator[tuple[bool, str]]:
    """The parts of a text in order, and whether each may hold links: code does not."""
    last = 0
    for code in CODE.finditer(text):
        yield True, text[last : code.start()]
        yield False, code[0]
        last = code.end()
    yield True, text[last:]


def with_links(path: Path, text: str) -> tuple[str, list[Path]]:
    """A text with its links as they must be in the site, and what they lead to."""
    led: list[Path] = []
    wrong: list[str] = []

    def moved(link: re.Match[str]) -> str:
        target = (path.parent / link[2]).resolve()
        if not target.exists() or not target.is_relative_to(ROOT):
            wrong.append(f"{path.relative_to(ROOT)} links to {link[2]}, which there is not.")
            return link[0]
        if target.is_dir() and (target / "README.md").exists():
            target /= "README.md"
        led.append(target)
        return f"{link[1]}{posixpath.relpath(place(target), posixpath.dirname(place(path)) or '.')}{link[3] or ''}"

    parts = [LINK.sub(moved, part) if links else part for links, part in outside_code(text)]
    if wrong:
        raise Broken("\n".join(wrong))
    return "".join(parts), led


def page_of(path: Path) -> str:
    """The text of the page that shows a file or a folder which is no page by itself."""
    name = path.relative_to(ROOT).as_posix()
    if path.is_dir():
        tracked = [p for p in sorted(path.iterdir()) if p.is_file() and not p.name.startswith((".", "__"))]
        return f"# {name}/\n\n" + "\n".join(f"- [{p.name}]({p.name})" for p in tracked) + "\n"
    fence = "`" * 5
    head = "---\nsearch:\n  exclude: true\n---\n\n"
    return (
        f"{head}# {name}\n\n{fence}{LANGUAGES.get(path.suffix, 'text')}\n{path.read_text('utf-8').rstrip()}\n{fence}\n"
    )


def gather(source: Path, nav: list) -> None:
    """Writes the source of the site: all of docs/, and whatever its pages, or the navigation, lead to."""
    texts, copies, sweeps = pages(nav)
    shutil.rmtree(source, ignore_errors=True)
    own = {source / "assets" / name: HERE / name for name in ("style.css", "iframe-worker.js")}
    for target, path in {source / place(path): path for path in copies}.items() | own.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    for path in sweeps:
        write_report(path, (source / place(path)).parent)
    for path, text in texts.items():
        target = source / place(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, "utf-8")
    # A font with mathematics, from a package that carries one (and is not imported for it).
    (folder,) = find_spec("ziamath").submodule_search_locations  # pyright: ignore
    shutil.copyfile(Path(folder, "fonts", FONT), source / "assets" / FONT)


def write_report(sweep: Path, folder: Path) -> None:
    """What `ceqr report` makes of what is kept of a sweep's runs, and a page that lists its tables."""
    from ceqr.errors import UserError
    from ceqr.experiments import report

    folder.mkdir(parents=True)
    try:
        report.write(report.read([sweep], quiet=True), folder, quiet=True)
    except UserError as error:
        raise Broken(f"{sweep.relative_to(ROOT)} has no report: {error}") from error
    tables = folder / "tables"
    listed = "".join(f'<li><a href="{table.name}">{table.name}</a></li>' for table in sorted(tables.iterdir()))
    (tables / "index.html").write_text(f"<!doctype html><title>Tables</title><ul>{listed}</ul>\n", "utf-8")


def pages(nav: list) -> tuple[dict[Path, str], list[Path], list[Path]]:
    """The text of every page, by the file or folder that it shows; files that are taken over as they are; sweeps."""
    texts: dict[Path, str] = {}
    copies: list[Path] = []
    sweeps: list[Path] = []
    wrong: list[str] = []
    docs = ROOT / "docs"
    waiting = [path for path in sorted(docs.rglob("*")) if path.is_file()] + [origin(page) for page in nav_pages(nav)]
    while waiting:
        path = waiting.pop()
        if path in texts or path in copies or path in sweeps:
            continue
        if not path.exists():
            wrong.append(f"The navigation names {path.relative_to(ROOT)}, which there is not.")
        elif path.is_file() and path.is_relative_to(docs) and path.suffix != ".md":
            copies.append(path)
        elif is_sweep(path):
            sweeps.append(path)
        else:
            text = path.read_text("utf-8") if path.suffix == ".md" else page_of(path)
            try:
                # The list of a folder is written as if it stood in the folder.
                texts[path], led = with_links(path / "README.md" if path.is_dir() else path, text)
                waiting += led
            except Broken as error:
                texts[path] = text
                wrong.append(str(error))
    for page in sorted({place(path) for path in texts if path.is_relative_to(docs)} - set(nav_pages(nav))):
        wrong.append(f"docs/{page} is not in the navigation (zensical.toml).")
    if wrong:
        raise Broken("\n".join(wrong))
    return texts, copies, sweeps


def main() -> int:
    config = tomllib.loads(CONFIG.read_text("utf-8"))["project"]
    source, site = ROOT / config["docs_dir"], ROOT / config["site_dir"]
    try:
        gather(source, config["nav"])
        shutil.rmtree(site, ignore_errors=True)
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}  # where tools.docs.equations is
        command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean", "--config-file", str(CONFIG)]
        made = subprocess.run(command, env=environment, cwd=ROOT, check=False)
        if made.returncode:
            raise Broken("Zensical could not build the site; what it said stands above.")
        for page in site.rglob("*.html"):
            local = posixpath.relpath(
                "assets/iframe-worker.js", posixpath.dirname(page.relative_to(site).as_posix()) or "."
            )
            page.write_text(page.read_text("utf-8").replace(CDN, local), "utf-8")
        if wrong := broken(site):
            raise Broken("\n".join(wrong))
    except Broken as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{sum(1 for _ in site.rglob('*.html'))} pages: {(site / 'index.html').relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
