"""No secret leaves the process but for where it belongs, whatever goes wrong."""

import asyncio
import base64
import json
import os
import sys
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from redis.asyncio import Redis

from servers import Server
from system.harness import ROOT, SECRET_HEADER, Daemon, free_port, message, route
from targets import Received, Target, answering, reply
from twr.double import FAULTS, TelegramDouble
from until import until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]

TOKEN = "7000000001:mark-token-A1b2C3"
WEBHOOK = "mark-webhook-A1b2C3"
SIGNING = 'mark/signing "A1b2C3"'
SIGNING_OLD = "mark-signing-old-é-A1b2C3"
TARGET_TOKEN = "mark-target-token-A1b2C3"
TARGET_PASSWORD = "mark/target+password-A1b2C3"
STORE_PASSWORD = "mark@store:password-A1b2C3"
STALE_PASSWORD = "mark-stale-password-A1b2C3"
PROXY_PASSWORD = "mark-proxy-password-A1b2C3"
ALERT_PATH = "mark-alert-path-A1b2C3"
ALERT_PASSWORD = "mark-alert-password-A1b2C3"
ALERT_HEADER = "mark-alert-header-A1b2C3"
HEARTBEAT_PATH = "mark-heartbeat-path-A1b2C3"
INLINE = "mark-inline-A1b2C3"
TEXT = "mark-text-of-a-message-A1b2C3"

SECRETS = (
    TOKEN, WEBHOOK, SIGNING, SIGNING_OLD, TARGET_TOKEN, TARGET_PASSWORD, STORE_PASSWORD,
    STALE_PASSWORD, PROXY_PASSWORD, ALERT_PATH, ALERT_PASSWORD, ALERT_HEADER, HEARTBEAT_PATH,
    INLINE,
)  # fmt: skip


def disguises(secret: str) -> set[str]:
    """The forms in which a secret could be seen."""
    plain = {secret, quote(secret, safe=""), quote(secret), json.dumps(secret)[1:-1], repr(secret)}
    plain.add(json.dumps(secret, ensure_ascii=False)[1:-1])
    logins = {f"{user}:{secret}" for user in ("user", "")}
    return plain | {base64.b64encode(text.encode()).decode() for text in logins}


def leaks(what: str, secrets: Iterable[str] = SECRETS) -> list[str]:
    """The lines of a text in which a secret stands."""
    marks = {mark for secret in secrets for mark in disguises(secret)}
    return [line for line in what.splitlines() if any(mark in line for mark in marks)]


async def echo(request: Received, writer: asyncio.StreamWriter) -> bool:
    """Refuses with all that it was sent: in the reason, in a header and in the body, as text and
    as JSON."""
    said = f"{request.path} {[*request.headers]}"
    loud = " ".join(value for _, value in request.headers) + request.path
    body = json.dumps({"ok": False, "error_code": 500, "description": said, "loud": loud})
    everything = body.encode() + said.encode() + request.body
    writer.write(reply(500, everything, reason=loud[:2000], X_Echo=loud, Location=loud))
    return True


# Started with the daemon's process: faults that say everything they know, traceback and all.
BUG = """
import os, pathlib
from twr.edges.store import Store
from twr.edges.sender import Sender
from twr.supervisor import Daemon

KNOWN = ("BOT_TOKEN", "WEBHOOK_SECRET", "SIGNING_SECRET", "OLD_SECRET", "TARGET_TOKEN", "STORE_URL",
         "ALERT_URL", "ALERT_HEADERS", "HEARTBEAT_URL")

def bugged(owner, name):
    real = getattr(owner, name)
    async def call(self, *args, **kwargs):
        if pathlib.Path("break-" + name).exists():
            known = {name: os.environ[name] for name in KNOWN}
            raise RuntimeError(f"a bug: {known}")
        return await real(self, *args, **kwargs)
    setattr(owner, name, call)

for owner, name in ((Store, "turn"), (Store, "sweep"), (Store, "stats"), (Store, "accept"),
                    (Sender, "post"), (Daemon, "run")):
    bugged(owner, name)
"""


class Locked(Server):
    """A server that wants a password."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        super().__init__("redis", directory, "--requirepass", STORE_PASSWORD)
        self.port = free_port()
        self.options += ("--port", str(self.port), "--bind", "127.0.0.1")

    def answers(self) -> bool:
        return self.socket.exists()


@asynccontextmanager
async def locked(directory: Path) -> AsyncIterator[Locked]:
    server = Locked(directory)
    server.start()
    try:
        yield server
    finally:
        server.stop()


async def command(server: Locked, *words: str) -> Any:
    redis = Redis.from_url(f"unix://{server.socket}", password=STORE_PASSWORD)
    try:
        return await redis.execute_command(*words)
    finally:
        await redis.aclose()


class Scene:
    """A daemon all of whose neighbours repeat what they were told."""

    def __init__(self, directory: Path, server: Locked, stack: AsyncExitStack) -> None:
        self.directory = directory
        self.server = server
        self.stack = stack
        self.said: dict[str, str] = {}

    async def build(self) -> None:
        enter = self.stack.enter_async_context
        self.talker = await enter(Target(echo))
        self.sink = await enter(Target(echo))
        await self.sink.close()
        self.telegram = await enter(TelegramDouble(token=TOKEN, time_scale=0.02))
        hooks = self.directory / "hooks"
        hooks.mkdir()
        (hooks / "sitecustomize.py").write_text(BUG)
        self.daemon = Daemon(self.directory, self.routes(), store_url="placeholder")
        self.daemon.environ |= self.environ(hooks)
        self.daemon.settings |= {
            "bot": self.bot(api_url=self.telegram.api_url),
            "store": {"url_env": "STORE_URL"},
            "probe": {"interval": "100ms", "fire_after": 1},
            "alerts": {
                "repeat": "5s",
                "telegram": {"chat_id": -100123},
                "webhook": {"url_env": "ALERT_URL", "headers_env": "ALERT_HEADERS"},
                "heartbeat_url_env": "HEARTBEAT_URL",
            },
        }
        await self.daemon.__aenter__()
        self.stack.push_async_exit(self.daemon.__aexit__)

    def environ(self, hooks: Path) -> dict[str, str]:
        password = quote(STORE_PASSWORD, safe="")
        at_sink = f"127.0.0.1:{self.sink.port}"
        return {
            "PYTHONPATH": f"{hooks}:{ROOT / 'daemon'}",
            "BOT_TOKEN": TOKEN,
            "WEBHOOK_SECRET": WEBHOOK,
            "SIGNING_SECRET": SIGNING,
            "OLD_SECRET": SIGNING_OLD,
            "TARGET_TOKEN": TARGET_TOKEN,
            "STORE_URL": f"redis://:{password}@127.0.0.1:{self.server.port}/0",
            "TELEGRAM_PROXY": f"http://user:{PROXY_PASSWORD}@127.0.0.1:{self.talker.port}",
            "GONE_PROXY": f"socks5://user:{PROXY_PASSWORD}@127.0.0.1:{free_port()}",
            "ALERT_URL": f"http://user:{ALERT_PASSWORD}@{at_sink}/{ALERT_PATH}",
            "ALERT_HEADERS": json.dumps({"X-Key": f"Bearer {ALERT_HEADER}"}),
            "HEARTBEAT_URL": f"http://{at_sink}/{HEARTBEAT_PATH}?key={HEARTBEAT_PATH}",
        }

    def bot(self, **more: str) -> dict[str, Any]:
        return {
            "name": "main",
            "token_env": "BOT_TOKEN",
            "secret_token_env": "WEBHOOK_SECRET",
            "webhook_url": "https://bot.example/hook",
            **more,
        }

    def routes(self) -> list[dict[str, Any]]:
        login = f"user:{quote(TARGET_PASSWORD, safe='')}"
        quick = {
            "max_attempts": 3,
            "backoff": {"first": "50ms", "factor": 1, "max": "1s"},
            "breaker": {"failures": 2, "cooldown": "3s", "max_cooldown": "3s"},
            "timeout": "1s",
            "signing_secret_env": ["SIGNING_SECRET", "OLD_SECRET"],
            "secret_token_env": "TARGET_TOKEN",
        }
        port = self.talker.port
        urls = {
            "echo": f"http://{login}@127.0.0.1:{port}/a?key=1",
            "gone": f"http://{login}@127.0.0.1:{free_port()}/a",
            "tls": f"https://{login}@127.0.0.1:{port}/a",
            "nowhere": f"http://{login}@no-such-host.invalid/a",
        }
        return [route(name, url, **quick) for name, url in urls.items()]

    # --- what goes wrong ----------------------------------------------------------------------

    async def targets_fail(self) -> None:
        """One refuses and repeats everything; one is not there, one has no TLS, one no name."""
        for n in range(1, 4):
            update = message(n, chat=n, text=TEXT)
            assert (await self.daemon.post(update, secret=WEBHOOK))[0] == 202
        await self.daemon.comes("echo", dead=3)
        for name in ("gone", "tls", "nowhere"):
            await self.daemon.says(f"delivery failed route={name}")
            await self.daemon.says(f"ALERT firing route_down route={name}")

    async def callers_fail(self) -> None:
        """A wrong secret, a body that is no JSON, one that is too large."""
        assert (await self.daemon.post(message(1), secret=INLINE))[0] == 401
        assert (await self.daemon.post(b"{" + TEXT.encode(), secret=WEBHOOK))[0] == 400
        head = f"POST /hook HTTP/1.1\r\nHost: x\r\n{SECRET_HEADER}: {WEBHOOK}\r\n"
        large = await self.daemon.raw(f"{head}Content-Length: 9000000\r\n\r\n{TEXT}".encode())
        assert large.startswith(b"HTTP/1.1 413")

    async def telegram_fails(self) -> None:
        """Every fault of the Bot API, then one that repeats the token, then two proxies."""
        for fault in FAULTS:
            calls = len(self.telegram.calls)
            self.telegram.api_fault = fault
            await until(lambda n=calls: len(self.telegram.calls) > n, 40)  # type: ignore[misc]
        self.telegram.api_fault = None
        await self.reload(bot=self.bot(api_url=f"http://127.0.0.1:{self.talker.port}"))
        await self.asked(self.talker, "/bot")
        await self.reload(bot=self.bot(api_url=self.telegram.api_url, proxy_env="TELEGRAM_PROXY"))
        await self.asked(self.talker, "http://")
        await self.reload(bot=self.bot(api_url=self.telegram.api_url, proxy_env="GONE_PROXY"))
        await self.daemon.says("ALERT firing telegram_unreachable")
        await self.reload(bot=self.bot(api_url=self.telegram.api_url))

    async def asked(self, server: Target, path: str) -> None:
        await until(lambda: any(r.path.startswith(path) for r in server.received), 20, path)

    async def sinks_fail(self) -> None:
        """Where alerts go to is not there, repeats what it gets, and then leads elsewhere."""
        await self.daemon.says('sink webhook unavailable reason="connection refused"')
        await self.sink.open()
        await self.asked(self.sink, f"/{ALERT_PATH}")
        await self.daemon.says('sink webhook unavailable reason="it answers 500"')
        self.sink.behaviour = answering(307, Location=f"http://127.0.0.1:1/{ALERT_PATH}")

    async def reload(self, **changes: Any) -> None:
        times = len(self.daemon.logged("config loaded"))
        self.daemon.write(**changes)
        await until(lambda: len(self.daemon.logged("config loaded")) > times, 10, "a reload")

    async def bad_reloads(self) -> None:
        """Secrets that stand in the file, in places where none belongs, and a file that is none."""
        good = self.daemon.file.read_text()
        bad = [
            f"{good}\nsecret: {INLINE}\n",
            good.replace("token_env: BOT_TOKEN", f"token: {INLINE}"),
            good.replace("token_env: BOT_TOKEN", f"token_env: {INLINE}:x"),
            good.replace("url_env: STORE_URL", f"url: 'redis://:{INLINE}@host:port/x'"),
            good.replace("url_env: STORE_URL", f"url: 'ftp://user:{INLINE}@host/'"),
            good.replace("url_env: ALERT_URL", f"url: 'http://user:{INLINE}@:80/'"),
            f"{good}\n\t{INLINE}: [",
            f"{INLINE}",
        ]
        for text in bad:
            times = len(self.daemon.logged("config invalid"))
            self.daemon.file.write_text(text)
            await until(lambda n=times: len(self.daemon.logged("config invalid")) > n)  # type: ignore[misc]
            await self.cli("check", text, "--debug")
        self.daemon.file.write_text(good)
        await self.daemon.says("ALERT resolved config_invalid", 20)
        await self.daemon.says('sink webhook unavailable reason=".*307', 60)

    async def bugs(self) -> None:
        """Crashes with tracebacks that show the environment and the arguments."""
        for name in ("post", "turn", "sweep", "stats", "accept"):
            bug = self.directory / f"break-{name}"
            bug.touch()
            before = len(self.daemon.logged("a bug"))
            await self.daemon.post(message(1000 + before, chat=before, text=TEXT), secret=WEBHOOK)
            await until(lambda n=before: len(self.daemon.logged("a bug")) > n)  # type: ignore[misc]
            bug.unlink()
        await self.daemon.ready()

    async def store_fails(self) -> None:
        """The password is no longer the one that is configured, then the store is gone."""
        await command(self.server, "CONFIG", "SET", "requirepass", STALE_PASSWORD + "x")
        redis = Redis.from_url(f"unix://{self.server.socket}", password=STALE_PASSWORD + "x")
        await redis.execute_command("CLIENT", "KILL", "TYPE", "normal")
        await self.daemon.says("the store refuses the user or password")
        assert (await self.daemon.post(message(5000, text=TEXT), secret=WEBHOOK))[0] == 503
        await self.ask("while the store refuses")
        await redis.execute_command("CONFIG", "SET", "requirepass", STORE_PASSWORD)
        await redis.aclose()
        await self.daemon.ready()
        self.server.stop()
        await until(self.unready, 10, "readiness 503")
        await self.ask("while the store is gone")

    async def unready(self) -> bool:
        return (await self.daemon.readiness())[0] == 503

    # --- what was said ------------------------------------------------------------------------

    async def ask(self, when: str) -> None:
        """Listen to all that can be asked."""
        for path in ("/status", "/metrics", "/-/ready"):
            async with self.daemon.session.get(f"{self.daemon.admin_url}{path}") as response:
                self.said[f"{path} {when}"] = await response.text()
        for words in (
            ("status",),
            ("status", "--json"),
            ("check", "--json"),
            ("routes", "list", "--json"),
            ("dlq", "list", "--json"),
            ("dlq", "list", "--debug"),
            ("webhook", "info", "--debug"),
            ("webhook", "info", "--json"),
        ):
            await self.cli(when, None, *words)

    async def cli(self, when: str, config: str | None, *words: str) -> None:
        """What a command says, with the daemon's file or with the text given."""
        file = self.daemon.file
        if config is not None:
            words = ("check", *words)
            file = self.directory / "bad.yaml"
            file.write_text(config)
        out = await said_by(self.daemon.environ, self.directory, *words, "-c", str(file))
        self.said[f"twr {' '.join(words)} {when} {len(self.said)}"] = out

    async def letters(self) -> None:
        """Each dead letter in full, but for the update itself."""
        await self.ask("with dead letters")
        await self.cli("with dead letters", None, "dlq", "show", "1/echo")
        shown = self.said.pop(list(self.said)[-1])
        assert "HTTP 500" in shown
        self.said["twr dlq show"] = shown
        keys = await command(self.server, "KEYS", "*")
        for key in keys:
            if b":update:" not in key:
                self.said[f"store {key.decode()}"] = str(await self.dumped(key))

    async def dumped(self, key: bytes) -> Any:
        reads = {b"hash": "HGETALL", b"string": "GET", b"set": "SMEMBERS"}
        name = key.decode(errors="replace")
        kind = await command(self.server, "TYPE", name)
        if kind in reads:
            return await command(self.server, reads[kind], name)
        read = "LRANGE" if kind == b"list" else "ZRANGE"
        return await command(self.server, read, name, "0", "-1")


async def said_by(environ: Mapping[str, str], directory: Path, *words: str) -> str:
    """All that a command says."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "twr", *words),
        cwd=directory,
        env={"PATH": os.environ["PATH"], **environ},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(60):
        out, _ = await process.communicate()
    return out.decode()


def arguments(pid: int) -> str:
    """What everybody on the machine can see of a process."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")


async def test_no_error_tells_a_secret(short_path: Path) -> None:
    """Every neighbour repeats what it was told, every fault happens, every command is asked: no
    secret in the log, the metrics, the status, the dead letters, tracebacks or arguments."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(locked(short_path / "redis"))
        scene = Scene(short_path, server, stack)
        await scene.build()
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
    found = {what: lines for what, text in scene.said.items() if (lines := leaks(text))}
    assert found == {}
    # A dead letter shows what its target said, which may be the message.
    told = {what: text for what, text in scene.said.items() if "dlq" not in what}
    texts = {what: leaks(text, [TEXT]) for what, text in told.items() if "store " not in what}
    assert {what: lines for what, lines in texts.items() if lines} == {}
    assert "RuntimeError: a bug" in daemon.log()
    assert "***" in daemon.log()


async def test_no_failed_start_tells_a_secret(short_path: Path) -> None:
    """Also not with --debug, and whatever it is that can't be started with."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(locked(short_path / "redis"))
        scene = Scene(short_path, server, stack)
        await scene.build()
        daemon = scene.daemon
        await daemon.stop()
        (short_path / "break-run").touch()
        for words in (("run",), ("run", "--debug"), ("run", "--log-level", "debug")):
            await scene.cli("with a bug", None, *words)
        for name, value in (
            ("BOT_TOKEN", f"{INLINE} !"),
            ("WEBHOOK_SECRET", f"{INLINE} !"),
            ("STORE_URL", f"redis://:{INLINE}@host:port/x"),
            ("ALERT_URL", f"ftp://user:{INLINE}@host/"),
            ("ALERT_HEADERS", f'["{INLINE}"]'),
            ("HEARTBEAT_URL", INLINE),
        ):
            good = daemon.environ[name]
            daemon.environ[name] = value
            await scene.cli(f"with a bad {name}", None, "run", "--debug")
            daemon.environ[name] = good
    assert len(scene.said) == 9
    found = {what: lines for what, text in scene.said.items() if (lines := leaks(text))}
    assert found == {}
