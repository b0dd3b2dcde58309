"""`twr demo` as a person starts it: every step holds, a broken one is named, nothing is left."""

import asyncio
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest

from system.harness import ROOT
from twr.demo import STEPS

pytestmark = pytest.mark.anyio

DEMO = ("-m", "twr", "demo")

# The demo, with services that take no signature for the right one.
_SABOTAGE = """
import twr
twr.verify = lambda *given: False
from twr.cli import main
main(["demo"])
"""
SABOTAGED = ("-c", _SABOTAGE)

FACTS = {
    "start": ["the daemon is ready", "Telegram knows the webhook"],
    "routing and fan-out": ["/order reached shop and support", "byte for byte"],
    "duplicate": ["each service got it once"],
    "hung service": ["shop gets 10 updates within", "support answers again"],
    "failing service": ["6 updates wait, the alert fires", "it gets all 6, the alert is resolved"],
    "dead letter": ["`twr dlq list` shows a dead letter", "`twr dlq replay` delivers it"],
    "kill -9": ["kill -9 with deliveries in flight", "none of 25 is lost, each chat in order"],
    "domain move": [
        "the old address answers 301",
        "6 updates pend at Telegram",
        "webhook_url_drift and webhook_pending fire",
        "pending falls to 0, support has the 6",
        "both alerts resolve",
    ],
}


@dataclass
class Running:
    """A demo that runs, with a temporary directory of its own, and what it printed so far."""

    process: asyncio.subprocess.Process
    temporary: Path
    out: str = ""

    async def prints(self, text: str) -> None:
        """Read until it prints a line with `text` in it."""
        assert self.process.stdout is not None
        while True:
            line = (await self.process.stdout.readline()).decode()
            assert line, f"it ended without printing {text!r}: {self.out}"
            self.out += line
            if text in line:
                return

    async def ends(self, within: float = 60.0) -> int:
        """Read to its end; its exit code."""
        async with asyncio.timeout(within):
            out, _ = await self.process.communicate()
        self.out += out.decode()
        assert self.process.returncode is not None
        return self.process.returncode

    def leftovers(self) -> list[str]:
        """Files it left, and processes that still name its directory."""
        files = [str(path) for path in self.temporary.rglob("*")]
        return files + [line for line in _command_lines() if str(self.temporary) in line]


def _command_lines() -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return found


@asynccontextmanager
async def running(directory: Path, *words: str, **more: str) -> AsyncIterator[Running]:
    """Start python with these words; whatever happens it has ended afterwards."""
    temporary = directory / "with a space"
    temporary.mkdir()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *words),
        cwd=directory,
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT / "daemon"),
            "TMPDIR": str(temporary),
            **more,
        },
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        yield Running(process, temporary)
    finally:
        if process.returncode is None:
            process.terminate()
            await process.communicate()


async def test_every_step_holds(short_path: Path) -> None:
    """It ends with 0 in under 30 s, shows each fact with a tick, and leaves nothing behind."""
    began = time.monotonic()
    async with running(short_path, *DEMO, NOTIFY_SOCKET="/nowhere", TWR_CONFIG="/nowhere") as demo:
        code = await demo.ends()
    took = time.monotonic() - began
    assert code == 0, demo.out
    assert took < 30
    assert demo.leftovers() == []
    assert list(FACTS) == [step.name for step in STEPS]
    expected = [r"A daemon, a stand-in for Telegram and three services, .*"]
    for name, facts in FACTS.items():
        expected.append(re.escape(name))
        expected += [rf"  ✓ .*{re.escape(fact)}.* +\d+\.\d s" for fact in facts]
    expected.append(rf"All {len(STEPS)} steps held, in \d+\.\d s\.")
    lines = demo.out.splitlines()
    assert len(lines) == len(expected), demo.out
    for line, pattern in zip(lines, expected, strict=True):
        assert re.fullmatch(pattern, line), (line, pattern)
        assert len(line) <= 100


async def test_a_step_that_does_not_hold_is_named(short_path: Path) -> None:
    """Exit code 1; what was expected, what was seen, and where the daemon's log is kept."""
    async with running(short_path, *SABOTAGED) as demo:
        code = await demo.ends()
    assert code == 1, demo.out
    failed = demo.out[demo.out.index("  ✗ ") :].splitlines()
    assert failed[:2] == [
        "  ✗ routing and fan-out failed",
        "    expected  shop to get update 700000001",
    ]
    assert re.fullmatch(r"    seen      0 of them, and \d+ with a wrong signature", failed[2])
    log = re.fullmatch("    the daemon's log is (.*); it ends with", failed[3])
    assert log is not None
    assert demo.leftovers() == [log[1]]
    said = (await anyio.Path(log[1]).read_text()).splitlines()
    assert failed[4:] == [f"      {line}" for line in said[-5:]]
    assert [line for line in said if "delivery failed route=shop update=700000001" in line]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_cleans_up(short_path: Path, number: signal.Signals) -> None:
    """Even where the daemon was killed and its store runs on; a second signal hurries nothing."""
    async with running(short_path, *DEMO) as demo:
        await demo.prints("kill -9 with deliveries in flight")
        for _ in range(2):
            demo.process.send_signal(number)
        assert await demo.ends() == 130, demo.out
        assert demo.leftovers() == []


async def test_a_reader_that_goes_away_ends_it(short_path: Path) -> None:
    """As in `twr demo | head -2`."""
    async with running(short_path, *DEMO) as demo:
        await demo.prints("start")
        demo.process._transport.get_pipe_transport(1).close()  # type: ignore[attr-defined]
        async with asyncio.timeout(30):
            assert await demo.process.wait() == 1
        assert demo.leftovers() == []


async def test_kept_running_until_ctrl_c(short_path: Path) -> None:
    """With --keep updates flow on, a killed daemon comes back, the commands shown work."""
    async with running(short_path, *DEMO, "--keep") as demo:
        await demo.prints("Ctrl-C ends it")
        await demo.prints("curl -H")
        commands = [line.strip() for line in demo.out.splitlines() if line.startswith("  ")]
        for start in ("twr status", "twr dlq list", "twr webhook info", ". "):
            command = next(line for line in commands if line.startswith(start))
            said = await _shell(command, demo.temporary)
        assert said == '{"status":"queued","deliveries":2}'
        await demo.prints("-> shop, support")
        (kill,) = [line for line in commands if line.startswith("kill -9 ") and "#" in line]
        await _shell(kill, demo.temporary)
        await demo.prints("the daemon has ended (-9) and is started again, as systemd would")
        await demo.prints("-> support")
        demo.process.send_signal(signal.SIGINT)
        assert await demo.ends() == 0, demo.out
        assert demo.leftovers() == []


async def _shell(command: str, directory: Path) -> str:
    """What a command line prints in a shell where `twr` is this one."""
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "daemon")}
    script = f'twr() {{ "{sys.executable}" -m twr "$@"; }}; {command}'
    process = await asyncio.create_subprocess_exec(
        *("bash", "-c", script),
        env=environ,
        cwd=directory,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode().strip()
