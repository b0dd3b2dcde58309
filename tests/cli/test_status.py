"""`twr status`: its lines, and the command against a running daemon."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cli.commands import ROUTES, Place, end
from tools import tool
from twr.cli.overview import Sample, lines, rates, sample
from twr.cli.tables import age

NOON = 1_788_091_200.0  # 2026-08-30T12:00:00Z
DAEMON = """\
listen: "unix:{at}/in.sock"
admin: "unix:{at}/admin.sock"
store: {{dir: "{at}/state"}}
instance: vps-1
"""
ENV = {"TELEGRAM_WEBHOOK_SECRET": "secret", "SIGNING": "signing"}


def status(**changed: Any) -> dict[str, Any]:
    """A status in which all is well."""
    webhook = {
        "url": "https://a.example/hook",
        "expected": "https://a.example/hook",
        "matches": True,
        "pending": 0,
        "last_error": None,
        "last_error_at": None,
        "checked_at": "2026-08-30T11:59:48Z",
    }
    support = {
        "name": "support",
        "ready": 1,
        "delayed": 2,
        "processing": 3,
        "waiting": 7,
        "oldest_seconds": 125.2,
        "dead": 4,
        "breaker": "closed",
        "delivered": 17,
        "failed_attempts": 2,
    }
    return {
        "version": "0.1.0",
        "instance": "vps-1",
        "started_at": "2026-08-30T07:00:00Z",
        "store": {"ok": True, "server": "valkey 9.1.2"},
        "webhook": webhook | changed.pop("webhook", {}),
        "routes": [support],
        "alerts": [],
        **changed,
    }


def test_one_screen_when_all_is_well() -> None:
    """Process, store, webhook, routes and alerts each have their line."""
    assert lines(status(), NOON) == [
        "twr      0.1.0, instance vps-1, up 5h",
        "store    valkey 9.1.2",
        "webhook  https://a.example/hook",
        "         as expected, pending 0, seen 12s ago",
        "",
        "ROUTE    WAITING  READY  DELAYED  FLIGHT  OLDEST  DELIVERED   DEAD  BREAKER",
        "support        7      1        2       3      2m         17      4  closed",
        "",
        "alerts   none",
    ]


def test_one_screen_when_nothing_is_well() -> None:
    """A store that is down, a drift, errors, orphans and alerts are seen, text on its line."""
    routes = [{**status()["routes"][0], "name": "old", "orphaned": True, "breaker": "none"}]
    webhook = {
        "url": "https://old.example/hook",
        "matches": False,
        "pending": 6,
        "last_error": "Wrong response\n301",
        "last_error_at": "2026-08-28T11:00:00Z",
    }
    alerts = [
        {"name": "webhook_url_drift", "since": "2026-08-30T11:57:00Z", "detail": "expected=a"},
        {"name": "store_down", "since": "2026-08-30T11:59:30Z", "detail": None},
    ]
    shown = status(
        webhook=webhook, routes=routes, alerts=alerts, store={"ok": False, "server": "redis 7.0.15"}
    )
    assert lines(shown, NOON) == [
        "twr      0.1.0, instance vps-1, up 5h",
        "store    DOWN (redis 7.0.15)",
        "webhook  https://old.example/hook",
        "         DIFFERS from https://a.example/hook: `twr webhook set` registers it",
        "         pending 6, seen 12s ago",
        "         last error 2d ago: Wrong response\\x0a301",
        "",
        "ROUTE  WAITING  READY  DELAYED  FLIGHT  OLDEST  DELIVERED   DEAD  BREAKER",
        "old          7      1        2       3      2m         17      4  orphaned",
        "",
        "alerts   webhook_url_drift for 3m  expected=a",
        "         store_down for 30s",
    ]


@pytest.mark.parametrize(
    ("webhook", "expected"),
    [
        (
            {"url": None, "expected": None, "checked_at": None},
            ["webhook  not looked at: no bot token, or not yet"],
        ),
        (
            {"checked_at": None},
            ["webhook  not looked at: no bot token, or not yet; expected https://a.example/hook"],
        ),
        (
            {"url": "", "matches": False},
            [
                "webhook  (none is set)",
                "         DIFFERS from https://a.example/hook: `twr webhook set` registers it",
                "         pending 0, seen 12s ago",
            ],
        ),
        (
            {"expected": None},
            ["webhook  https://a.example/hook", "         pending 0, seen 12s ago"],
        ),
    ],
)
def test_the_webhook_in_its_states(webhook: dict[str, Any], expected: list[str]) -> None:
    """A webhook that was not looked at, is not set, or is expected nowhere is told as that."""
    shown = lines(status(webhook=webhook), NOON)
    assert shown[2 : shown.index("")] == expected


def test_rates_take_the_place_of_totals() -> None:
    """With rates, the deliveries a second are shown; none for a route that is new."""
    route = status()["routes"][0]
    shown = status(routes=[route, {**route, "name": "new"}])
    assert [line.split()[6] for line in lines(shown, NOON, {"support": 2.25})[6:8]] == ["2.2", "-"]
    assert "PER SEC" in lines(shown, NOON, {})[5]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (Sample(1.0, "a", {"x": 5}), Sample(3.0, "a", {"x": 10, "y": 3}), {"x": 2.5}),
        (Sample(1.0, "a", {"x": 5}), Sample(3.0, "b", {"x": 10}), {}),
        (Sample(1.0, "a", {"x": 5}), Sample(1.0, "a", {"x": 5}), {}),
    ],
)
def test_rates_are_differences(before: Sample, after: Sample, expected: dict[str, float]) -> None:
    """A rate needs two looks at one process."""
    assert rates(before, after) == expected


def test_a_sample_is_of_one_status() -> None:
    """It keeps what each route has delivered, by whichever process that was."""
    assert sample(status(), 7.0) == Sample(7.0, "2026-08-30T07:00:00Z", {"support": 17})


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (-1, "0s"),
        (0, "0s"),
        (59.4, "59s"),
        (60, "1m"),
        (3599, "59m"),
        (7200, "2h"),
        (172_799, "47h"),
        (172_800, "2d"),
    ],
)
def test_an_age_is_one_word(seconds: float, expected: str) -> None:
    """The largest unit that fits, hours until there are two days."""
    assert age(seconds) == expected


def post(path: Path, update_id: int) -> int:
    """Hand the daemon an update, as Telegram does; the status it answers."""
    connection = http.client.HTTPConnection("localhost", timeout=10)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(path))
    body = json.dumps({"update_id": update_id, "message": {"chat": {"id": 5}, "text": "hi"}})
    headers = {"X-Telegram-Bot-Api-Secret-Token": "secret"}
    connection.request("POST", "/webhooks/telegram", body, headers)
    code = connection.getresponse().status
    connection.close()
    return code


@contextmanager
def daemon(place: Place) -> Iterator[None]:
    """A daemon that runs on the configuration and its embedded store until the end."""
    place.write(DAEMON.format(at=place.directory) + ROUTES)
    log = (place.directory / "log").open("w")
    process = subprocess.Popen(
        [sys.executable, "-m", "twr", "run"], env=place.environ(ENV), stderr=log, stdout=log
    )
    try:
        deadline = time.monotonic() + 30
        while place.twr("status").code != 0:
            assert process.poll() is None, (place.directory / "log").read_text()
            assert time.monotonic() < deadline
        yield
    finally:
        process.terminate()
        process.wait(30)
        log.close()


@pytest.fixture
def running(place: Place) -> Iterator[Place]:
    """A place at which a daemon runs."""
    with daemon(place):
        yield place


def test_status_of_a_running_daemon(running: Place) -> None:
    """The daemon is asked at its admin socket; `--json` prints what GET /status answers."""
    assert post(running.directory / "in.sock", 1) == 202
    (shown,) = running.twr("status", "--json").objects
    routes = {route["name"]: route["waiting"] for route in shown["routes"]}
    assert (shown["instance"], shown["store"]["ok"]) == ("vps-1", True)
    assert routes == {"support": 1, "billing": 1}
    ended = running.twr("status")
    told = ended.out.splitlines()
    assert (ended.code, ended.err) == (0, "")
    assert told[0].startswith("twr      0.1.0, instance vps-1, up ")
    assert [line.split()[:2] for line in told[5:7]] == [["support", "1"], ["billing", "1"]]


def test_watch_goes_on_until_interrupted(running: Place) -> None:
    """`--watch` shows the status again and again, then with rates; Ctrl-C ends it with 0."""
    process = running.start("status", "--watch")
    assert process.stdout is not None
    headers = 0
    while headers < 2:
        headers += "PER SEC" in process.stdout.readline()
    assert process.stdout.readline().split()[6] == "0.0"
    ended = end(process, signal.SIGINT)
    assert (ended.code, ended.err) == (0, "")


def test_watch_outlives_a_restart(place: Place) -> None:
    """While the daemon is away `--watch` says so, and shows it again when it is back."""
    with daemon(place):
        process = place.start("status", "--watch", "--json")
        assert process.stdout is not None
        assert process.stderr is not None
        first = json.loads(process.stdout.readline())
    assert process.stderr.readline() == (
        "twr is not running, or not with this configuration:"
        f" nothing listens at unix:{place.directory}/admin.sock\n"
    )
    with daemon(place):
        second = json.loads(process.stdout.readline())
        assert second["started_at"] > first["started_at"]
        assert end(process, signal.SIGINT).code == 0


def test_an_embedded_store_is_read_beside_the_daemon(running: Place) -> None:
    """With the embedded store the commands reach the dead letters over its socket."""
    from redis import Redis

    from cli.commands import Death, bury

    with Redis(unix_socket_path=str(running.directory / "state" / "store.sock")) as redis:
        bury(redis, [Death("1/support")])
    assert [it["id"] for it in running.twr("dlq", "list", "--json").objects] == ["1/support"]
    assert running.twr("dlq", "replay", "1/support").out == "replayed 1 dead letter\n"
    (shown,) = running.twr("status", "--json").objects
    assert [(it["waiting"], it["dead"]) for it in shown["routes"]] == [(1, 0), (0, 0)]


def test_no_daemon_is_one_line(place: Place) -> None:
    """Without a daemon the exit code is 69, with one line, watching or not."""
    place.write(DAEMON.format(at=place.directory) + ROUTES)
    line = (
        "twr is not running, or not with this configuration:"
        f" nothing listens at unix:{place.directory}/admin.sock\n"
    )
    for options in ([], ["--json"], ["--watch"]):
        ended = place.twr("status", *options)
        assert (ended.code, ended.out, ended.err) == (69, "", line)


def test_an_admin_socket_of_another_user(place: Place) -> None:
    """An admin socket that is not ours is told with who may ask."""
    place.write(DAEMON.format(at=place.directory) + ROUTES)
    path = place.directory / "admin.sock"
    unprivileged = [tool("setpriv"), "--bounding-set=-dac_override,-dac_read_search"]
    command = [*(unprivileged if os.getuid() == 0 else []), sys.executable, "-m", "twr", "status"]
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        path.chmod(0)
        shown = subprocess.run(
            command, capture_output=True, text=True, env=place.environ(), check=False
        )
    assert (shown.returncode, shown.stdout) == (69, "")
    assert shown.stderr == (
        f"unix:{path}: permission denied; run this as root, or as the user of twr\n"
    )


def http_answer(code: int, body: str) -> bytes:
    """An answer as it goes over the wire."""
    return f"HTTP/1.1 {code} Told\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (http_answer(404, "<html>"), "what answers at {at} is not twr (HTTP 404, no JSON object)"),
        (
            http_answer(503, '{"status": "unavailable"}'),
            "twr has no status at {at}: HTTP 503 unavailable",
        ),
        (
            http_answer(503, '{"reasons": ["no answer\\u001b[J"]}'),
            "twr has no status at {at}: HTTP 503 no answer\\x1b[J",
        ),
        (b"SSH-2.0-OpenSSH\r\n", "twr gives no answer at {at}: SSH-2.0-OpenSSH\\x0d\\x0a"),
        (
            b"",
            "twr gives no answer at {at}: Remote end closed connection without response",
        ),
    ],
)
def test_somebody_else_answers(place: Place, answer: bytes, line: str) -> None:
    """Whatever answers at the admin port is told in one line, TCP or not, with exit code 69."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        at = f"127.0.0.1:{listener.getsockname()[1]}"
        place.write(f"admin: {at}\n{ROUTES}")

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        ended = place.twr("status")
        thread.join()
    assert (ended.code, ended.out, ended.err) == (69, "", line.format(at=at) + "\n")
