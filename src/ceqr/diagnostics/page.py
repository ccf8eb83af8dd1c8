"""The page of a diagnosis, in the frame and the style of a report's: one HTML file that needs nothing else."""

from ceqr.diagnostics import tables
from ceqr.diagnostics.play import STEPS
from ceqr.diagnostics.results import Diagnosis
from ceqr.experiments.comparison import algorithm_of, describe_options
from ceqr.experiments.report.page import environment
from ceqr.experiments.report.panels import Figure


def render(diagnosis: Diagnosis, figures: dict[str, Figure]) -> bytes:
    """The page, with figures by name."""
    text = (
        environment("ceqr.diagnostics")
        .get_template("page.html")
        .render(
            diagnosis=diagnosis,
            figures=figures,
            runs=len(diagnosis.runs),
            steps=STEPS,
            main=tables.main_table(diagnosis),
            coverage=tables.coverage_table(diagnosis),
            exploration=tables.exploration_table(diagnosis),
            strange=tables.strange_table(diagnosis),
            maze=tables.maze_table(diagnosis),
            options=[describe_options(algorithm_of(run.config, across_capacity=True)) for run in diagnosis.runs],
        )
    )
    return text.encode()
