"""The service manager's side, played by real datagram sockets."""

import json
import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from twr.edges.systemd import Notifier, listen_fds, watchdog_interval


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


ACTIVATED = """
import json, os, socket
from twr.edges.systemd import listen_fds
given = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
high = [os.dup2(sock.fileno(), 50 + n) for n, sock in enumerate(given)]
for n, fd in enumerate(high):
    os.dup2(fd, 3 + n)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="2", LISTEN_FDNAMES="ingress:")
found = listen_fds(os.environ, os.getpid())
print(json.dumps({
    "names": list(found),
    "fds": [sock.fileno() for sock in found.values()],
    "listening": [s.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) for s in found.values()],
    "inheritable": [sock.get_inheritable() for sock in found.values()],
    "left": [name for name in os.environ if name.startswith("LISTEN_")],
}), flush=True)
os._exit(0)
"""


def test_handed_over_sockets_are_found_by_name() -> None:
    """Descriptors from 3 on come back as sockets that no child inherits."""
    done = subprocess.run(
        [sys.executable, "-c", ACTIVATED],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        check=True,
    )
    assert json.loads(done.stdout) == {
        "names": ["ingress", "4"],
        "fds": [3, 4],
        "listening": [1, 1],
        "inheritable": [False, False],
        "left": [],
    }


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"LISTEN_FDS": "1"},
        {"LISTEN_FDS": "1", "LISTEN_PID": "8"},
        {"LISTEN_FDS": "one", "LISTEN_PID": "7"},
    ],
)
def test_sockets_of_another_process_are_not_taken(environ: dict[str, str]) -> None:
    """Without our pid in LISTEN_PID nothing is touched, and the variables go."""
    assert listen_fds(environ, pid=7) == {}
    assert environ == {}
