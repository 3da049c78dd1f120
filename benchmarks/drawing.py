"""Charts as files of their own, in the colours of the reports."""

from __future__ import annotations

from fedpriv.report.charts import css_colours


def standalone(svg: str) -> str:
    """An ``<svg>`` element of `fedpriv.report.charts` as a file, which brings its colours."""
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" style="{css_colours()} background: #fff" '
    return svg.replace("<svg ", opening, 1) + "\n"
