"""The page of a report: one HTML file that needs nothing else, neither a network nor fonts nor other files."""

import importlib.metadata
from dataclasses import dataclass
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

from ceqr.experiments import references
from ceqr.experiments.report import rows, svg
from ceqr.experiments.report.figures import slug
from ceqr.experiments.report.panels import Figure, LinePanel
from ceqr.experiments.report.results import FEW_SEEDS, Results, Suite
from ceqr.experiments.report.style import COLOURS, DASHES

HERE = "ceqr.experiments.report"
ORDER = ("curves", "aggregates", "profiles", "improvement", "nongreedy", "coverage", "epistemic", "aleatoric")
ONE_GAME = ("curves", "profiles", "improvement", "aggregates", *ORDER[4:])  # narrow figures side by side


@dataclass(frozen=True)
class Section:
    """A setting on the page."""

    anchor: str
    title: str
    suite: Suite
    figures: list[Figure]
    targets: rows.Table


def render(results: Results, figures: dict[str, dict[str, Figure]], published: Figure | None) -> bytes:
    """The page; `figures` are by setting's slug and by what they show."""
    sections = []
    for suite in results.suites:
        here = figures[slug(suite.setting)]
        drawn = [here[key] for key in (ORDER if len(suite.envs) > 1 else ONE_GAME) if key in here]
        sections.append(Section(slug(suite.setting), suite.setting.describe(), suite, drawn, rows.targets(suite)))
    seeds = sum(len(group.entries) for suite in results.suites for group in suite.groups)
    text = (
        environment(HERE)
        .get_template("page.html")
        .render(
            results=results,
            sections=sections,
            published=published,
            scores=rows.scores(results),
            runs=rows.runs(results),
            problems=rows.runs(results, only_problems=True),
            seeds=seeds,
            games=len({env for suite in results.suites for env in suite.envs}),
            used=sum(not record.problem for record in results.records),
            references=references,
            few_seeds=FEW_SEEDS,
            label_style={label: i for i, label in enumerate(results.labels)},
        )
    )
    return text.encode()


def environment(package: str) -> jinja2.Environment:
    """Templates of a package, in the frame and with the parts of those here."""
    made = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(where, "") for where in dict.fromkeys((package, HERE))]),
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    made.globals.update(
        version=importlib.metadata.version("ceqr"),
        css=Markup(_part("page.css") + _colours()),
        js=Markup(_part("page.js")),
        draw=lambda panel: Markup(svg.draw(panel)),
        swatch=lambda style: Markup(svg.swatch(style)),
        table_of=_table_of,
    )
    return made


def _part(name: str) -> str:
    return resources.files(HERE).joinpath(name).read_text(encoding="utf-8")


def _colours() -> str:
    """The classes of the algorithms' lines."""
    light = "".join(f"--c{i}:{on_white};" for i, (on_white, _) in enumerate(COLOURS))
    dark = "".join(f"--c{i}:{on_dark};" for i, (_, on_dark) in enumerate(COLOURS))
    classes = "".join(f".c{i}{{--c:var(--c{i})}}" for i in range(len(COLOURS)))
    dashes = "".join(f".line.d{i}{{stroke-dasharray:{dash}}}" for i, dash in enumerate(DASHES) if dash)
    return f":root{{{light}}}@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}{classes}{dashes}"


def _table_of(panel: Any) -> rows.Table:
    """The table beside a panel."""
    if isinstance(panel, LinePanel):
        return rows.points(panel)
    body = [(row.label, row.interval) for row in panel.rows]
    return rows.Table("estimates", panel.title, ("algorithm", panel.x_label), body)
