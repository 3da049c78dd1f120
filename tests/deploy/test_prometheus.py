"""The sample of alerts: it is YAML of the right shape, and every figure in it is served."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import Any

import pytest
import yaml
from yamllint import linter
from yamllint.config import YamlLintConfig

from fedpriv.metrics import Figure
from fedpriv_client.jobs import STATES as JOB_STATES
from fedpriv_client.metrics import FIGURES as OF_SITE
from fedpriv_client.metrics import JOBS
from fedpriv_server.metrics import FIGURES as OF_SERVER
from fedpriv_server.metrics import STATE
from fedpriv_server.metrics import STATES as RUN_STATES
from tests.deploy.dockerfile import ROOT

FOLDER = ROOT / "deploy" / "prometheus"
RULES = FOLDER / "fedpriv.rules.yaml"
KNOWN = {figure.name: figure for figure in (*OF_SITE, *OF_SERVER)}
VALUES = {JOBS: JOB_STATES, STATE: RUN_STATES}
DURATION = re.compile(r"[0-9]+(s|m|h|d)")
SELECTOR = re.compile(r"([a-z_]+)(?:\{([^}]*)\})?")
WORDS = {"up", "changes", "and", "on", "instance"}  # of Prometheus itself


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


@pytest.mark.parametrize("name", ["fedpriv.rules.yaml", "scrape.yaml"])
def test_the_files_are_clean_yaml(name: str) -> None:
    config = YamlLintConfig(
        "{extends: default, rules: {document-start: disable, line-length: {max: 110}}}"
    )
    assert [str(one) for one in linter.run((FOLDER / name).read_text(), config)] == []


def test_rules_have_the_shape_that_prometheus_reads() -> None:
    found = yaml.safe_load(RULES.read_text())
    assert set(found) == {"groups"}
    assert all(set(group) == {"name", "rules"} for group in found["groups"])
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    for rule in rules():
        assert set(rule) - {"for"} == {"alert", "expr", "annotations"}
        assert DURATION.fullmatch(rule.get("for", "1m"))
        assert rule["expr"].count("(") == rule["expr"].count(")")
        assert (
            rule["annotations"]["summary"].endswith(".") or "{{" in rule["annotations"]["summary"]
        )


def test_every_figure_in_them_is_served_with_that_label() -> None:
    used = set()
    for rule in rules():
        expression = re.sub(r"\[[0-9a-z]+\]", "", rule["expr"])
        for name, labels in SELECTOR.findall(expression):
            if name in WORDS:
                continue
            figure: Figure = KNOWN[name]
            used.add(name)
            for label, value in re.findall(r'(\w+)="([^"]*)"', labels):
                assert label in figure.labels
                assert value in VALUES[figure]
        for label in re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]):
            of_rule = [KNOWN[n] for n, _ in SELECTOR.findall(expression) if n in KNOWN]
            assert label == "instance" or any(label in figure.labels for figure in of_rule)
    assert len(used) > 8


@pytest.mark.parametrize("figure", [*OF_SITE, *OF_SERVER], ids=lambda figure: figure.name)
def test_every_figure_is_documented(figure: Figure) -> None:
    text = (ROOT / "docs/how-to/network.md").read_text()
    labels = "".join(f" `{label}`" for label in figure.labels)
    assert f"| `{figure.name}` |{labels}" in text
    assert figure.counts == figure.name.endswith("_total")


def test_prometheus_reads_them_itself() -> None:
    """Its own tool, where it is installed."""
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("promtool is not installed")
    done = subprocess.run([tool, "check", "rules", str(RULES)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
