"""The page of a diagnosis in a real browser: it fits, it can be read, and its figures have words and numbers."""

from pathlib import Path

import pytest

from tests.browsing import Visiting, check_it_can_be_read

pytestmark = pytest.mark.browser


@pytest.mark.parametrize(("size", "scheme"), [("desk", "light"), ("phone", "dark")])
def test_it_fits_and_can_be_read(visiting: Visiting, diagnosis: Path, size: str, scheme: str) -> None:
    check_it_can_be_read(visiting(diagnosis, size, scheme).page, size, scheme)


def test_figures_have_words_numbers_and_files(visiting: Visiting, diagnosis: Path) -> None:
    page = visiting(diagnosis).page
    assert page.locator("figure").count() >= 7
    for figure in page.locator("figure").all():
        figure.locator("summary").click()
        assert figure.locator("table").count() == figure.locator("svg.panel").count()
        for link in figure.locator("figcaption a").all():
            assert (diagnosis / link.get_attribute("href")).is_file()
    for link in page.locator("nav a").all():
        assert page.locator(link.get_attribute("href")).count() == 1
    curve = page.locator("#figure-reliability svg[data-panel]").first
    curve.focus()
    page.keyboard.press("ArrowLeft")
    assert "level of the quantile (%)" in page.locator("#tip").inner_text()
