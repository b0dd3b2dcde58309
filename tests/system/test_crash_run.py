"""A short form of the crash run, and the proof that it would find what it looks for."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from system.harness import ROOT

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(300)]

SABOTAGE = Path(__file__).parent / "sabotage"


async def crash_run(*options: str, planted: str = "") -> dict[str, Any]:
    """The report of a run. `planted`: a fault of every daemon, by its name in `sabotage`."""
    more = {"PYTHONPATH": str(SABOTAGE), "SABOTAGE": planted} if planted else {}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(ROOT / "bench" / "crash.py"), "--json", *options),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, **more},
    )
    out, _ = await process.communicate()
    report: dict[str, Any] = json.loads(out)
    assert process.returncode == (0 if report["clean"] else 1)
    return report


def found(report: dict[str, Any]) -> dict[str, list[str]]:
    """The findings that there are."""
    return {name: lines for name, lines in report["findings"].items() if lines}


ALONE = {"daemon killed", "daemon ended", "daemon stopped", "store killed"}
TOGETHER = {"second process of a name", "daemon killed for good, another started"}


@pytest.mark.parametrize(
    ("instances", "store", "seed", "faults"),
    [
        (1, "embedded", 11, ALONE),
        (2, "valkey", 12, ALONE | TOGETHER),
        (3, "redis", 13, ALONE | TOGETHER),
    ],
)
async def test_nothing_is_lost_while_everything_breaks(
    instances: int, store: str, seed: int, faults: set[str]
) -> None:
    """Daemons and stores are killed and stopped, targets fail: every update arrives, in order and
    in time, and again only for a reason."""
    report = await crash_run(
        *("--seconds", "30", "--every", "1.5"),
        *("--instances", str(instances), "--store", store, "--seed", str(seed)),
    )
    assert found(report) == {}, report
    assert faults - set(report["faults"]) == set()
    assert report["acknowledged"] == report["sent"] > 100


@pytest.mark.parametrize(
    ("planted", "finding"),
    [
        ("accept", "lost"),
        ("lane", "order violations"),
        ("settle", "unexplained repeats"),
        ("crash", "tracebacks"),
    ],
)
async def test_the_run_finds_what_is_planted(planted: str, finding: str) -> None:
    """A daemon that breaks a promise now and then is not found clean."""
    report = await crash_run("--seconds", "8", "--every", "1000", planted=planted)
    assert finding in found(report)
