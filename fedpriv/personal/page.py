"""A site's own view as a page, which needs no other file and is for the site alone."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from fedpriv.files import write_atomic
from fedpriv.personal.evaluation import MEANING, Evaluation
from fedpriv.report.page_parts import css_colours, templates


def write_page(evaluation: Evaluation, path: Path) -> None:
    """Write the page, readable by its owner only.

    Privacy:
        Made of raw records. The page itself says that it is not to be handed on.
    """
    page = templates("fedpriv.personal").get_template("evaluation.html.j2")
    shown = {**vars(evaluation), "columns": evaluation.columns, "meaning": MEANING}
    text = page.render(**shown, made=datetime.now(UTC), css_colours=css_colours)
    write_atomic(path, text, mode=0o600)
