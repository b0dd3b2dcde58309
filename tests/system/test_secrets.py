"""No secret leaves the process but for where it belongs, whatever goes wrong."""

import json
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from leaks import leaks
from system.repeating import INLINE, SECRETS, TEXT, locked
from system.telling import Kind, Scene, arguments

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]


def told(said: dict[str, str], *secrets: str) -> dict[str, list[str]]:
    """What tells a part of one of these, and in which lines."""
    return {what: lines for what, text in said.items() if (lines := leaks(text, secrets))}


@pytest.mark.parametrize(("kind", "level"), [("env", "info"), ("file", "debug")])
async def test_no_error_tells_a_secret(short_path: Path, kind: Kind, level: str) -> None:
    """Every neighbour repeats what it was told, every fault happens, every command is asked: no
    part of a secret is in the log, metrics, status, dead letters, tracebacks or arguments."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(locked(short_path / "redis"))
        scene = Scene(short_path, server, stack, kind)
        await scene.build("--log-level", level)
        daemon = scene.daemon
        await scene.sinks_fail()
        await scene.callers_fail()
        await scene.targets_fail()
        await scene.letters()
        await scene.telegram_fails()
        await scene.bad_reloads()
        await scene.bugs()
        await scene.store_fails()
        scene.said["arguments"] = arguments(daemon.pid)
        alerts = [r.body.decode() for r in scene.sink.received] + [
            json.dumps(call) for _, call in scene.telegram.calls
        ]
        scene.said["alerts"] = "\n".join(alerts)
        await daemon.stop()
        scene.said["log"] = daemon.log()
    assert told(scene.said, *SECRETS) == {}
    # A dead letter shows what its target said, which may be the message.
    others = {
        what: text
        for what, text in scene.said.items()
        if "dlq" not in what and "store " not in what
    }
    assert told(others, TEXT) == {}
    assert "RuntimeError: a bug" in daemon.log()
    assert "***" in daemon.log()


WRONG = [
    ("BOT_TOKEN", f"{INLINE} !", "is no bot token"),
    ("WEBHOOK_SECRET", f"{INLINE} !", "must be 1 to 256 of"),
    ("STORE_URL", f"redis://:{INLINE}@host:port/x", "is no URL"),
    ("STORE_URL", f"redis+sentinel://:{INLINE}\u2100@host:x/x", "write the sentinels"),
    ("ALERT_URL", f"ftp://user:{INLINE}@host/", "must begin with http://"),
    ("ALERT_HEADERS", f'["{INLINE}"]', "must be a JSON object of headers"),
    ("HEARTBEAT_URL", INLINE, "must begin with http://"),
]

LINES = [
    (INLINE.encode(), "not NAME=value"),
    (b"export A=" + INLINE.encode(), "leave out `export`"),
    (b"A-B=" + INLINE.encode(), "is no name of a variable"),
    (INLINE.encode() + b"-=x", "is no name of a variable"),
    (b"A='" + INLINE.encode(), "a quote is opened"),
    (b"# " + INLINE.encode() + b"\\\nA=1", "a comment that ends in a backslash"),
    (b"A=\xff" + INLINE.encode(), "not UTF-8 text"),
]


@pytest.mark.parametrize("kind", ["env", "file"])
async def test_no_failed_start_tells_a_secret(short_path: Path, kind: Kind) -> None:
    """Also not with --debug, and whatever it is that can't be started with."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(locked(short_path / "redis"))
        scene = Scene(short_path, server, stack, kind)
        await scene.build()
        await scene.daemon.stop()
        bug = short_path / "break-run"
        bug.touch()
        for words in (("run",), ("run", "--debug"), ("run", "--log-level", "debug")):
            await scene.cli("with a bug", 1, "RuntimeError: a bug", *words)
        bug.unlink()
        for name, value, expected in WRONG:
            scene.give(name, value)
            await scene.cli(f"with a bad {name}", 78, expected, "run", "--debug")
            scene.give(name, scene.secrets()[name])
        bad = short_path / "bad.env"
        for line, expected in LINES:
            bad.write_bytes(b"X=1\n" + line + b"\n")
            for words in (("run",), ("check",), ("webhook", "info"), ("dlq", "list")):
                more = ("--debug", "--env-file", str(bad))
                out = await scene.cli("with a bad file", 78, expected, *words, *more)
                assert out.splitlines()[-1].startswith(f"{bad}")
    assert len(scene.said) == 3 + len(WRONG) + 4 * len(LINES)
    assert told(scene.said, *SECRETS) == {}
