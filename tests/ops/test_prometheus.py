"""Rules, scrape configuration and dashboard fit the metrics that exist."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tools import ROOT, fed_metrics, tool

PROMETHEUS = ROOT / "etc/prometheus"
DASHBOARD = ROOT / "etc/grafana/twr.json"
NAME = re.compile(r"\b(?:twr|process)_[a-z_]+\b")


def rules() -> list[dict[str, Any]]:
    """All alerting rules."""
    document = yaml.safe_load((PROMETHEUS / "twr.rules.yml").read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    """All panels of the dashboard but its rows."""
    found = json.loads(DASHBOARD.read_text())["panels"]
    return [panel for panel in found if panel["type"] != "row"]


def queries() -> list[str]:
    """Every expression of the dashboard."""
    dashboard = json.loads(DASHBOARD.read_text())
    annotations = [each["expr"] for each in dashboard["annotations"]["list"]]
    return annotations + [target["expr"] for panel in panels() for target in panel["targets"]]


def series() -> set[str]:
    """The names of all series that twr shows."""
    text = fed_metrics().render().decode()
    return {
        sample.name for family in text_string_to_metric_families(text) for sample in family.samples
    }


def test_promtool_accepts_the_metrics() -> None:
    """Names, types and help texts pass Prometheus' own check."""
    done = subprocess.run(
        [tool("promtool"), "check", "metrics"], input=fed_metrics().render(), capture_output=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_promtool_accepts_rules_and_scrape_configuration() -> None:
    """The example configuration is valid together with the rules."""
    done = subprocess.run(
        [tool("promtool"), "check", "config", PROMETHEUS / "prometheus.yml"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"SUCCESS: {len(rules())} rules found" in done.stdout


def test_the_rules_fire_when_they_should_and_only_then(tmp_path: Path) -> None:
    """The cases of rules.test.yml: a healthy day, a domain move, firsts of their kind."""
    shutil.copy(PROMETHEUS / "twr.rules.yml", tmp_path)
    shutil.copy(ROOT / "tests/ops/rules.test.yml", tmp_path)
    done = subprocess.run(
        [tool("promtool"), "test", "rules", "rules.test.yml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: str(rule["alert"]))
def test_a_rule_speaks_of_existing_metrics_and_says_what_to_do(rule: dict[str, Any]) -> None:
    """No rule watches a name that twr does not have; each has a summary and an action."""
    assert set(NAME.findall(rule["expr"])) <= series()
    assert rule["annotations"].keys() == {"summary", "action"}
    assert rule["labels"]["severity"] in ("critical", "warning")


@pytest.mark.parametrize("query", queries())
def test_a_panel_speaks_of_existing_metrics(query: str) -> None:
    """No panel stays empty for want of its metric."""
    names = set(NAME.findall(query))
    assert names
    assert names <= series()


def test_prometheus_can_parse_every_query(tmp_path: Path) -> None:
    """With Grafana's variables filled in, each expression is valid PromQL."""
    filled = [
        query.replace("$__rate_interval", "5m").replace("$route", ".*") for query in queries()
    ]
    checked = [{"record": f"query:{n}", "expr": query} for n, query in enumerate(filled)]
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": checked}]}))
    done = subprocess.run(
        [tool("promtool"), "check", "rules", file], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dashboard_shows_every_metric() -> None:
    """What is measured can be looked at."""
    shown = {name for query in queries() for name in NAME.findall(query)}
    measured = {re.sub(r"_(?:bucket|sum|count)$", "", name) for name in series()}
    missing = measured - {re.sub(r"_bucket$", "", name) for name in shown}
    assert missing == {"process_virtual_memory_bytes"}


def test_no_two_panels_overlap() -> None:
    """Panels have unique ids and lie side by side in the grid."""
    everything = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in everything}) == len(everything)
    cells = [
        (x, y)
        for grid in (panel["gridPos"] for panel in everything)
        for x in range(grid["x"], grid["x"] + grid["w"])
        for y in range(grid["y"], grid["y"] + grid["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24
