"""A short form of the crash run."""

import asyncio
import json
import sys
from typing import Any

import pytest

from system.harness import ROOT

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(300)]


async def crash_run(*options: str) -> dict[str, Any]:
    """The report of a run."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(ROOT / "bench" / "crash.py"), "--json", *options),
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate()
    report: dict[str, Any] = json.loads(out)
    assert process.returncode == (0 if report["clean"] else 1)
    return report


@pytest.mark.parametrize(
    ("instances", "store", "seed"), [(1, "embedded", 11), (2, "valkey", 12), (2, "redis", 13)]
)
async def test_nothing_is_lost_while_everything_breaks(
    instances: int, store: str, seed: int
) -> None:
    """Daemons and stores are killed and stopped, targets fail: every update arrives, in order,
    and again only for a reason."""
    report = await crash_run(
        *("--seconds", "20", "--every", "2.5"),
        *("--instances", str(instances), "--store", store, "--seed", str(seed)),
    )
    found = {name: lines for name, lines in report["findings"].items() if lines}
    assert found == {}, report
    assert sum(report["faults"].values()) >= 2
    assert report["acknowledged"] == report["sent"] > 50
