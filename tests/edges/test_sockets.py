"""Listening sockets on real addresses."""

import grp
import os
import socket
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from twr.edges import sockets
from twr.errors import TwrError


@dataclass(frozen=True)
class Listen:
    """An address as the configuration gives it."""

    host: str | None = None
    port: int | None = None
    path: str | None = None

    def __str__(self) -> str:
        return f"unix:{self.path}" if self.path else f"{self.host}:{self.port}"


def short(path: Path) -> str:
    """A path that fits into a socket's address, whatever the temporary directory is."""
    return os.path.relpath(path)


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, where relative socket paths are short."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on which somebody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_a_tcp_socket_listens_and_does_not_block(host: str) -> None:
    """A bound address accepts a connection at once."""
    with sockets.bind(Listen(host=host, port=0)) as sock:
        assert sock.gettimeout() == 0.0
        with socket.create_connection(sock.getsockname()[:2], timeout=2):
            pass


def test_the_ipv6_wildcard_takes_ipv4_too() -> None:
    """`[::]` is reachable over IPv4."""
    with sockets.bind(Listen(host="::", port=0)) as sock:
        address = "127.0.0.1", sock.getsockname()[1]
        socket.create_connection(address, timeout=2).close()


def test_a_port_just_left_can_be_bound_again() -> None:
    """A restart does not wait for the connections of the last run to time out."""
    with sockets.bind(Listen(host="127.0.0.1", port=0)) as first:
        port = first.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port), timeout=2):
            first.setblocking(True)
            first.accept()[0].close()
    with sockets.bind(Listen(host="127.0.0.1", port=port)) as second:
        assert second.getsockname()[1] == port


def test_a_taken_port_is_one_line(taken: int) -> None:
    """The error names the address and what to do."""
    with pytest.raises(TwrError) as caught:
        sockets.bind(Listen(host="127.0.0.1", port=taken))
    assert str(caught.value) == (
        f"cannot listen on 127.0.0.1:{taken}: "
        "in use by another process; stop it, or configure another address"
    )


def test_a_foreign_address_is_one_line() -> None:
    """An address of no interface is told as such."""
    with pytest.raises(TwrError) as caught:
        sockets.bind(Listen(host="192.0.2.1", port=8080))
    assert str(caught.value) == (
        "cannot listen on 192.0.2.1:8080: no interface of this machine has that address"
    )


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666])
def test_a_unix_socket_has_exactly_the_mode_asked_for(directory: Path, mode: int) -> None:
    """The umask of the process does not matter."""
    path = short(directory / "s")
    before = os.umask(0o077)
    try:
        with sockets.bind(Listen(path=path), mode):
            assert stat.S_IMODE(os.stat(path).st_mode) == mode
    finally:
        os.umask(before)


def test_a_unix_socket_is_given_to_its_group(directory: Path) -> None:
    """`group` owns the socket file afterwards."""
    path = short(directory / "s")
    gid = os.getgid()
    name = grp.getgrgid(gid).gr_name
    with sockets.bind(Listen(path=path), 0o660, name):
        assert os.stat(path).st_gid == gid


def test_an_unknown_group_is_one_line(directory: Path) -> None:
    """The error names the option, and no socket file is made."""
    with pytest.raises(TwrError, match=r"^socket_group: there is no group 'no-such-group'"):
        sockets.bind(Listen(path=short(directory / "s")), 0o660, "no-such-group")
    assert list(directory.iterdir()) == []


def test_a_stale_unix_socket_is_replaced(directory: Path) -> None:
    """What a killed process left behind does not stop the next start."""
    path = short(directory / "s")
    sockets.bind(Listen(path=path)).close()
    assert os.path.exists(path)
    with sockets.bind(Listen(path=path)), socket.socket(socket.AF_UNIX) as client:
        client.connect(path)


def test_a_unix_socket_in_use_is_left_alone(directory: Path) -> None:
    """A second process neither takes the socket nor breaks the first."""
    path = short(directory / "s")
    with sockets.bind(Listen(path=path)):
        with pytest.raises(TwrError, match="in use by another process"):
            sockets.bind(Listen(path=path))
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)


def test_a_unix_socket_with_a_full_backlog_counts_as_in_use(directory: Path) -> None:
    """A listener too busy to accept is no stale file."""
    path = short(directory / "s")
    with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as client:
        busy.bind(path)
        busy.listen(0)
        client.connect(path)
        with pytest.raises(TwrError, match="in use by another process"):
            sockets.bind(Listen(path=path))


def test_a_file_in_the_way_is_not_removed(directory: Path) -> None:
    """Only sockets are ever unlinked."""
    path = directory / "s"
    path.write_text("precious")
    with pytest.raises(TwrError, match="is no socket: remove it"):
        sockets.bind(Listen(path=short(path)))
    assert path.read_text() == "precious"


def test_a_missing_directory_is_one_line(directory: Path) -> None:
    """The error names the directory to create."""
    with pytest.raises(TwrError, match=r"there is no directory gone; create it$"):
        sockets.bind(Listen(path="gone/s"))


def test_a_path_that_does_not_fit_is_one_line(directory: Path) -> None:
    """The limit of the system is told, not an errno."""
    with pytest.raises(TwrError, match=r"the path is longer than \d+ bytes; a directory such as"):
        sockets.bind(Listen(path="x" * 108))
