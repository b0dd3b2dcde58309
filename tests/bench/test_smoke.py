"""The load generator and the runs it is part of stay runnable."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]

RUN = """
import json, sys
from pathlib import Path
from bench.load import Plan
from bench.sides import Setup
from bench.trial import Given, Shape, trial

side, folder = sys.argv[1:]
with trial(Given("valkey", Path(folder)), Setup(side), Shape()) as made:
    made.start()
    measured = made.load(Plan(0, 1.0, 0.2, connections=4, rate=50.0))
    print(json.dumps({
        "accepted": len(measured.result.ids),
        "refused": measured.result.refused,
        "broken": measured.result.broken,
        "lost": made.lost(),
        "ids": sorted(measured.result.ids),
        "delivered": {name: sorted(it.ids) for name, it in made.deliveries().items()},
    }))
"""


def measure(side: str, folder: Path) -> dict[str, Any]:
    """One short run in a process of its own, as `python -m bench.run` makes them."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "daemon")}
    done = subprocess.run(
        [sys.executable, "-c", RUN, side, str(folder)],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("side", ["bare", "bare-uvloop", "twr", "plain"])
def test_every_side_accepts_what_is_sent(side: str, short_path: Path) -> None:
    """At a fixed rate every update is sent once, accepted, and none is lost."""
    if side == "plain":
        for name in ("fastapi", "uvicorn", "httpx"):
            pytest.importorskip(name)
    found = measure(side, short_path)
    assert {name: found[name] for name in ("refused", "broken", "lost")} == {
        "refused": {},
        "broken": 0,
        "lost": [],
    }
    assert len(set(found["ids"])) == found["accepted"] == 60
    if not side.startswith("bare"):
        assert set(found["delivered"]["r0"]) <= set(found["ids"])
