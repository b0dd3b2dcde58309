"""An interpreter that has the bot frameworks, which need other versions than twr does."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools import ROOT

LOCK = Path(__file__).with_name("requirements.lock")


@pytest.fixture(scope="session")
def frameworks() -> Path:
    """The interpreter; made once for each lock file, and kept for later runs.

    Where it has to be there (CI) a failure to make it is a failure.
    """
    key = hashlib.sha256(LOCK.read_bytes() + sys.version.encode()).hexdigest()[:16]
    home = ROOT / ".venv-targets" / key
    python, complete = home / "bin/python", home / "complete"
    if not complete.exists():
        _make(home, python)
        complete.touch()
    return python


def _make(home: Path, python: Path) -> None:
    commands: list[list[str | Path]] = [
        [sys.executable, "-m", "venv", "--clear", home],
        [python, "-m", "pip", "install", "-q", "--require-hashes", "-r", LOCK],
    ]
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            refuse = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
            refuse(f"the bot frameworks cannot be installed: {done.stderr[-500:]}")
