"""A daemon whose neighbours repeat what they were told, and everything that it says."""

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from redis.asyncio import Redis

from system.harness import ROOT, SECRET_HEADER, Daemon, free_port, message, route
from system.repeating import (
    ALERT_HEADER,
    ALERT_PASSWORD,
    ALERT_PATH,
    BUG,
    HEARTBEAT_PATH,
    INLINE,
    PROXY_PASSWORD,
    SIGNING,
    SIGNING_OLD,
    STALE_PASSWORD,
    STORE_PASSWORD,
    TARGET_PASSWORD,
    TARGET_TOKEN,
    TEXT,
    TOKEN,
    WEBHOOK,
    Locked,
    command,
    echo,
)
from targets import Target, answering
from twr.double import FAULTS, TelegramDouble
from until import until

Kind = Literal["env", "file"]

# What a command says of a daemon that runs: the words, the exit code, and what has to be in it.
ASKED = (
    (("status",), 0, "echo"),
    (("status", "--json"), 0, '"name": "echo"'),
    (("check", "--json"), 0, '"ok": true'),
    (("routes", "list", "--json"), 0, '"name": "echo"'),
    (("webhook", "info", "--debug"), 0, "  pending "),
    (("webhook", "info", "--json"), 0, '"pending_update_count": '),
)


class Scene:
    """A daemon whose secrets stand in its environment or in files, and its neighbours."""

    def __init__(
        self, directory: Path, server: Locked, stack: AsyncExitStack, kind: Kind = "env"
    ) -> None:
        self.directory = directory
        self.server = server
        self.stack = stack
        self.kind = kind
        self.said: dict[str, str] = {}

    async def build(self, *options: str) -> None:
        enter = self.stack.enter_async_context
        self.talker = await enter(Target(echo))
        self.sink = await enter(Target(echo))
        await self.sink.close()
        self.telegram = await enter(TelegramDouble(token=TOKEN, time_scale=0.02))
        hooks = self.directory / "hooks"
        hooks.mkdir()
        (hooks / "sitecustomize.py").write_text(BUG)
        (self.directory / "secrets").mkdir()
        self.daemon = Daemon(self.directory, self.routes(), store_url="placeholder")
        self.daemon.options = options
        self.daemon.environ = {"PYTHONPATH": f"{hooks}:{ROOT / 'daemon'}"}
        secrets = self.secrets()
        (self.directory / "known").write_text(
            repr({name: it for name, it in secrets.items() if "PROXY" not in name})
        )
        for name, value in secrets.items():
            self.give(name, value)
        self.daemon.settings |= self.placed(
            {
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
        )
        await self.daemon.__aenter__()
        self.stack.push_async_exit(self.daemon.__aexit__)

    def secrets(self) -> dict[str, str]:
        password = quote(STORE_PASSWORD, safe="")
        at_sink = f"127.0.0.1:{self.sink.port}"
        return {
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

    def give(self, name: str, value: str) -> None:
        """Let a secret have this value."""
        if self.kind == "env":
            self.daemon.environ[name] = value
        else:
            (self.directory / "secrets" / name).write_text(f"{value}\n")

    def placed(self, settings: Any) -> Any:
        """The settings, with secrets where this daemon has them."""
        if isinstance(settings, list):
            return [self.placed(item) for item in settings]
        if not isinstance(settings, dict):
            return settings
        found = {}
        for key, value in settings.items():
            if self.kind == "file" and key.endswith("_env"):
                names = value if isinstance(value, list) else [value]
                paths = [f"./secrets/{name}" for name in names]
                found[key[:-4] + "_file"] = paths if isinstance(value, list) else paths[0]
            else:
                found[key] = self.placed(value)
        return found

    def bot(self, **more: str) -> dict[str, Any]:
        bot = {
            "name": "main",
            "token_env": "BOT_TOKEN",
            "secret_token_env": "WEBHOOK_SECRET",
            "webhook_url": "https://bot.example/hook",
            **more,
        }
        found: dict[str, Any] = self.placed(bot)
        return found

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
        rows = []
        for name, url in urls.items():
            row = route(name, url, **quick)
            found: dict[str, Any] = self.placed(row)
            rows.append(found)
        return rows

    # --- what goes wrong ----------------------------------------------------------------------

    async def targets_fail(self) -> None:
        """One refuses and repeats everything; one is not there, one has no TLS, one no name."""
        for n in range(1, 7):
            update = message(n, chat=n, text=TEXT)
            assert (await self.daemon.post(update, secret=WEBHOOK))[0] == 202
        await self.daemon.comes("echo", dead=6)
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
        where = "" if self.kind == "env" else "./secrets/"
        token = f"token_{self.kind}: {where}BOT_TOKEN"
        hook = f"secret_token_{self.kind}: {where}WEBHOOK_SECRET"
        store = f"url_{self.kind}: {where}STORE_URL"
        alert = f"url_{self.kind}: {where}ALERT_URL"
        bad = [
            f"{good}\nsecret: {INLINE}\n",
            f"{good}\n\t{INLINE}: [",
            INLINE,
            *(
                good.replace(there, instead)
                for there, instead in (
                    (token, f"token: {INLINE}"),
                    (token, f"token: *{INLINE}"),
                    (token, f"token: !{INLINE} x"),
                    (token, f"token: !x!{INLINE}"),
                    (token, f"token_env: {INLINE}:x"),
                    (hook, f"secret_token_env: {INLINE}"),
                    (hook, f"secret_token_file: {INLINE}"),
                    (store, f"url: 'redis://:{INLINE}@host:port/x'"),
                    (store, f"url: 'redis+sentinel://:{INLINE}\u2100@host:x/x'"),
                    (store, f"url: 'ftp://user:{INLINE}@host/'"),
                    (alert, f"url: 'http://user:{INLINE}@:80/'"),
                )
            ),
        ]
        for text in bad:
            assert text != good
            times = len(self.daemon.logged("config invalid"))
            self.daemon.file.write_text(text)
            await until(lambda n=times: len(self.daemon.logged("config invalid")) > n)  # type: ignore[misc]
            wrong = ("check", "--debug", "--env-file", "/dev/null")
            await self.cli("a bad file", 78, "bad.yaml", *wrong, config=text)
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
        refused = "the store refuses the user or password"
        await self.daemon.says(refused)
        assert (await self.daemon.post(message(5000, text=TEXT), secret=WEBHOOK))[0] == 503
        await self.ask("while the store refuses", 69, refused)
        await redis.execute_command("CONFIG", "SET", "requirepass", STORE_PASSWORD)
        await redis.aclose()
        await self.daemon.ready()
        self.server.stop()
        await until(self.unready, 10, "readiness 503")
        await self.ask("while the store is gone", 69, "the store is not available")

    async def unready(self) -> bool:
        return (await self.daemon.readiness())[0] == 503

    # --- what was said ------------------------------------------------------------------------

    async def ask(self, when: str, code: int, of_store: str) -> None:
        """Listen to all that can be asked; `code` and `of_store` come of asking the store."""
        for path in ("/status", "/metrics", "/-/ready"):
            async with self.daemon.session.get(f"{self.daemon.admin_url}{path}") as response:
                self.said[f"{path} {when}"] = await response.text()
        for words, usual, expected in ASKED:
            await self.cli(when, usual, expected, *words)
        for more in ("--json", "--debug"):
            await self.cli(when, code, of_store, "dlq", "list", more)

    async def cli(
        self, when: str, code: int, expected: str, *words: str, config: str | None = None
    ) -> str:
        """What a command says, with the daemon's file or with the text given. It has to end with
        this code, having said what is expected."""
        file = self.daemon.file
        if config is not None:
            file = self.directory / "bad.yaml"
            file.write_text(config)
        out = await said_by(self.daemon.environ, self.directory, *words, "-c", str(file))
        assert (out[0], expected in out[1]) == (code, True), f"twr {' '.join(words)}: {out}"
        self.said[f"twr {' '.join(words)} {when} {len(self.said)}"] = out[1]
        return out[1]

    async def letters(self) -> None:
        """Each dead letter in full, but for the update itself."""
        await self.ask("with dead letters", 0, "6/echo")
        for n in range(1, 7):
            await self.cli("with dead letters", 0, "HTTP 500", "dlq", "show", f"{n}/echo")
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


async def said_by(environ: Mapping[str, str], directory: Path, *words: str) -> tuple[int, str]:
    """How a command ends, and all that it says."""
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
    assert process.returncode is not None
    return process.returncode, out.decode()


def arguments(pid: int) -> str:
    """What everybody on the machine can see of a process and of its children."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    processes = [str(pid), *children]
    return "\n".join(Path(f"/proc/{it}/cmdline").read_text(errors="replace") for it in processes)
