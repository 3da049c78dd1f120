"""Plots of docs/results show the present figures of the tables above them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs/pictures"
PLOTS = sorted(p for p in PICTURES.glob("*.svg") if not p.with_suffix(".dot").exists())


def plots(root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "scripts/plots", *options]
    # The copy of a test, too, imports the packages from here.
    environment = {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)


def test_plots_are_those_of_the_present_tables() -> None:
    done = plots(ROOT, "--check")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", PLOTS, ids=lambda path: path.stem)
def test_a_plot_is_small_fetches_nothing_and_is_described_on_a_page(path: Path) -> None:
    svg = path.read_text()
    assert len(svg) < 40_000 and "<text" in svg
    assert not re.search(r"href|url\(|@import", svg)
    shown = rf"^!\[(.{{60,}})\]\(\S*pictures/{path.name}\)$"
    pages = [ROOT / "docs/results.md", *(ROOT / "docs/results").glob("*.md")]
    assert sum(len(re.findall(shown, page.read_text(), re.M)) for page in pages) == 1


def test_a_figure_that_changed_and_a_plot_that_no_page_shows_are_seen(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs/results", tmp_path / "docs/results")
    shutil.copytree(PICTURES, tmp_path / "docs/pictures")
    shutil.copy(ROOT / "docs/results.md", tmp_path / "docs")
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts/plots", tmp_path / "scripts")
    page, plot = tmp_path / "docs/results/small-clinics.md", "docs/pictures/small-clinics.svg"
    assert plots(tmp_path).returncode == 0
    assert (tmp_path / plot).read_bytes() == (ROOT / plot).read_bytes()

    page.write_text(page.read_text().replace("| **3.308 ± 0.010**", "| **3.318 ± 0.010**"))
    done = plots(tmp_path, "--check")
    assert done.returncode == 1 and re.findall(r"\S+\.svg", done.stdout) == [plot]

    page.write_text(page.read_text().replace("/small-clinics.svg", "/another.svg"))
    done = plots(tmp_path, "--check")
    assert done.returncode == 1 and "small-clinics.md does not show" in done.stderr


def test_dots_lie_where_the_figures_are() -> None:
    page = (ROOT / "docs/results/small-clinics.md").read_text().partition("## One adapter")[0]
    losses = [float(loss) for loss in re.findall(r"\| \**(\d\.\d+) ± ", page)]
    svg = (PICTURES / "small-clinics.svg").read_text()
    places = [float(x) for x in re.findall(r'<circle cx="([\d.]+)"', svg)]
    labels = {float(v): float(x) for x, v in re.findall(r'x="([\d.]+)"[^>]*middle">([\d.]+)<', svg)}
    low, high = min(labels), max(labels)
    scale = (labels[high] - labels[low]) / (high - low)
    wanted = [labels[low] + (loss - low) * scale for loss in losses]
    assert len(losses) == 6 and places == pytest.approx(wanted, abs=0.2)
