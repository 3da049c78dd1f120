"""Line charts as inline SVG that takes its colours and font from the page around it.

matplotlib draws a chart in placeholder colours, which become CSS variables afterwards. So one
SVG serves for light pages, dark pages and print. Each line has its name at its end.
"""

from __future__ import annotations

import html
import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

from fedpriv.report.page_parts import COLOURS, css_colours

if TYPE_CHECKING:
    from matplotlib.axes import Axes

T = TypeVar("T")
Shown = Callable[[float], str]  # the text of a value on an axis
PALETTE = sum(role.startswith("series-") for role in COLOURS)
LABEL_HEIGHT = 15  # px between two labels at the right edge
TEXT = 12.0  # px
ROLES = {role: f"#0000{0x10 + index:02x}" for index, role in enumerate(COLOURS)}  # placeholders


@dataclass(frozen=True)
class Line:
    """One curve; if `dashed`, a level."""

    label: str
    points: Sequence[tuple[float, float]]
    colour: str
    width: float = 1.8
    dashed: bool = False


def thin(points: Sequence[T], at_most: int) -> list[T]:
    """Return every k-th of `points` and the last: at most `at_most` + 1 points."""
    step = max(1, math.ceil(len(points) / at_most))
    kept = list(points[::step])
    return kept if (len(points) - 1) % step == 0 else [*kept, points[-1]]


def spread(wanted: Sequence[float], gap: float, top: float) -> list[float]:
    """Place heights at least `gap` apart, near the wanted ones and in their order.

    They lie within [0, top] if there is room; else they go beyond `top`.
    """
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    placed = list(wanted)
    for below, above in pairwise(order):
        placed[above] = max(placed[above], placed[below] + gap)
    ceiling = max(top, gap * (len(order) - 1))
    for i in reversed(order):
        placed[i] = min(placed[i], ceiling)
        ceiling = placed[i] - gap
    return placed


def standalone(svg: str) -> str:
    """Turn a chart of `line_chart` into a file of its own, with its colours."""
    names = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    opening = f'<svg {names} style="{css_colours()} background: #fff" '
    return svg.replace("<svg ", opening, 1) + "\n"


def line_chart(
    name: str,
    lines: Sequence[Line],
    *,
    width: int,
    height: int,
    from_zero: bool = True,
    description: str,
    across: str = "round",
    places: Shown = "{:,.0f}".format,
) -> str:
    """Draw an ``<svg>`` element of `lines` over rounds, or over something else.

    Args:
        name: makes this chart's element ids differ from those of other charts on the page.
        width, height: size of the view box, in px; the page scales it.
        from_zero: whether the vertical axis must show zero.
        description: what a screen reader says.
        across, places: what the horizontal axis shows, and how a value on it is written.
    """
    import matplotlib
    from matplotlib.figure import Figure

    left, bottom, top = 52, 38, 10
    right = 8 + math.ceil(max((_label_width(line.label) for line in lines), default=0))
    plot = width - left - right, height - bottom - top
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name, "font.size": TEXT}):
        figure = Figure(figsize=(width / 72, height / 72), dpi=72)
        figure.patch.set_visible(False)
        axes = figure.add_axes((left / width, bottom / height, plot[0] / width, plot[1] / height))
        for line in lines:
            _draw(axes, line)
        axes.set_xlim(*_extent([x for line in lines for x, _ in line.points]))
        axes.set_ylim(*_limits([y for line in lines for _, y in line.points], from_zero))
        _dress(axes, plot, places)
        axes.set_xlabel(across, color=ROLES["quiet"], labelpad=3, loc="right")
        _label_ends(axes, plot, [line for line in lines if line.label])
        stream = io.StringIO()
        figure.savefig(stream, format="svg", metadata={"Date": None})
    return _for_page(stream.getvalue(), description)


def _draw(axes: Axes, line: Line) -> None:
    axes.plot(
        *zip(*line.points, strict=True),
        color=ROLES[line.colour],
        linewidth=line.width,
        linestyle=(0, (4, 3)) if line.dashed else "-",
        solid_capstyle="round",
        solid_joinstyle="round",
        marker="o" if len(line.points) == 1 else None,
        markersize=5,
    )


def _dress(axes: Axes, plot: tuple[int, int], places: Shown) -> None:
    """Style the axes with little ink: a base line, horizontal lines and few numbers."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.patch.set_visible(False)
    across = MaxNLocator(max(3, plot[0] // 90), steps=[1, 2, 5, 10], integer=True)
    axes.xaxis.set_major_locator(across)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: places(value)))
    axes.yaxis.set_major_locator(MaxNLocator(max(3, plot[1] // 45)))
    axes.ticklabel_format(axis="y", style="plain", useOffset=False)
    axes.grid(axis="y", color=ROLES["rule"], linewidth=1)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, pad=7, labelcolor=ROLES["quiet"])
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(ROLES["quiet"])


def _label_ends(axes: Axes, plot: tuple[int, int], lines: Sequence[Line]) -> None:
    """Write each line's label to the right of its end, moved up or down so that none overlap."""
    low, high = axes.get_ylim()
    ends = [(line.points[-1][1] - low) / (high - low) * plot[1] for line in lines]
    for line, place in zip(lines, spread(ends, LABEL_HEIGHT, plot[1]), strict=True):
        axes.text(
            1 + 8 / plot[0],
            place / plot[1],
            line.label,
            transform=axes.transAxes,
            va="center",
            color=ROLES[line.colour],
            parse_math=False,
        )


def _label_width(label: str) -> float:
    return 0.0 if not label else 10 + 0.6 * TEXT * len(label)


def _extent(xs: Sequence[float]) -> tuple[float, float]:
    first, last = min(xs), max(xs)
    return (first, last) if first < last else (first - 1, last + 1)


def _limits(ys: Sequence[float], from_zero: bool) -> tuple[float, float]:
    low, high = min(ys), max(ys)
    if from_zero:
        return 0.0, high * 1.08 or 1.0
    margin = (high - low) * 0.1 or abs(high) * 0.05 or 1.0
    return low - margin, high + margin


def _for_page(svg: str, description: str) -> str:
    """Turn Matplotlib's file into an element of a page: no prolog, no metadata, CSS colours."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    svg = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", svg)
    for role, placeholder in ROLES.items():
        svg = svg.replace(placeholder, f"var(--{role})")
    view_box = re.search(r'viewBox="[^"]*"', svg)
    assert view_box is not None
    label = html.escape(description)
    svg = re.sub(
        r"<svg[^>]*>",
        lambda _: f'<svg {view_box[0]} role="img" aria-label="{label}">',
        svg,
        count=1,
    )
    return re.sub(r"\n\s*", "\n", svg).strip()
