"""The service manager's side, played by real datagram sockets."""

import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from twr.edges.systemd import Notifier, watchdog_interval


@pytest.fixture(params=["path", "abstract"])
def manager(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, socket.socket]]:
    """A service manager's socket, with the text that NOTIFY_SOCKET would hold."""
    monkeypatch.chdir(tmp_path)
    name = f"@twr-{uuid.uuid4()}" if request.param == "abstract" else "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(name.replace("@", "\0"))
        sock.settimeout(2)
        yield name, sock


@pytest.fixture
def notifier(manager: tuple[str, socket.socket]) -> Iterator[Notifier]:
    """A notifier whose clock stands at 12.5 s."""
    made = Notifier(manager[0], lambda: 12.5)
    yield made
    made.close()


def test_each_state_is_one_datagram(manager: tuple[str, socket.socket], notifier: Notifier) -> None:
    """The texts are those of sd_notify(3)."""
    notifier.status("loading the store")
    notifier.ready("5 routes")
    notifier.reloading()
    notifier.ready()
    notifier.watchdog()
    notifier.stopping("draining 3 deliveries")
    assert [manager[1].recv(4096).decode() for _ in range(6)] == [
        "STATUS=loading the store",
        "READY=1\nSTATUS=5 routes",
        "RELOADING=1\nMONOTONIC_USEC=12500000",
        "READY=1",
        "WATCHDOG=1",
        "STOPPING=1\nSTATUS=draining 3 deliveries",
    ]


def test_a_status_can_forge_no_assignment(
    manager: tuple[str, socket.socket], notifier: Notifier
) -> None:
    """A line break inside a status does not begin another message."""
    notifier.status("bad\nSTOPPING=1")
    assert manager[1].recv(4096) == b"STATUS=bad\\x0aSTOPPING=1"


def test_without_a_manager_nothing_happens() -> None:
    """Outside systemd every method is silent."""
    notifier = Notifier.take({}, lambda: 0.0)
    notifier.ready("up")
    notifier.reloading()
    notifier.watchdog()
    notifier.stopping()
    notifier.close()


def test_the_address_is_not_left_to_children() -> None:
    """NOTIFY_SOCKET is gone from the environment once it is taken."""
    environ = {"NOTIFY_SOCKET": "/run/none", "PATH": "/bin"}
    Notifier.take(environ, lambda: 0.0).close()
    assert environ == {"PATH": "/bin"}


def test_a_manager_that_is_gone_is_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A dead socket never stops the process, nor does it fill the log."""
    notifier = Notifier(str(tmp_path / "gone"), lambda: 0.0)
    for _ in range(3):
        notifier.watchdog()
    notifier.close()
    assert [record.getMessage() for record in caplog.records] == [
        "systemd notify failed error=No such file or directory"
    ]


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "7"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "8"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "²"}, None),
    ],
)
def test_the_watchdog_is_fed_twice_as_often_as_it_asks(
    environ: dict[str, str], expected: float | None
) -> None:
    """Half of WATCHDOG_USEC in seconds, and only where the watchdog is ours."""
    assert watchdog_interval(environ, pid=7) == expected
