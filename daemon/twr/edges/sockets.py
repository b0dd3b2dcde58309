"""Listening sockets, bound before anything is served, so that a taken address fails early."""

import errno
import grp
import os
import socket
import stat
from pathlib import Path
from typing import Protocol

from twr.core.system import UNIX_PATH_BYTES
from twr.errors import TwrError

BACKLOG = 1024
UNIX_MODE = 0o660


class Address(Protocol):
    """Where to listen: `path` for a unix socket, else `host` and `port`; str() as written."""

    @property
    def host(self) -> str | None: ...
    @property
    def port(self) -> int | None: ...
    @property
    def path(self) -> str | None: ...


def bind(listen: Address, mode: int = UNIX_MODE, group: str | None = None) -> socket.socket:
    """A listening, non-blocking socket on `listen`; `mode` and `group` are for unix sockets.

    `[::]` takes IPv4 as well, whose clients then appear as `::ffff:a.b.c.d`.

    Raises TwrError, one line that says what to do.
    """
    try:
        sock = _unix(listen.path, mode, group) if listen.path else _tcp(listen)
    except OSError as error:
        raise TwrError(f"cannot listen on {listen}: {_advice(listen, error)}") from None
    sock.setblocking(False)
    return sock


def _tcp(listen: Address) -> socket.socket:
    host, port = listen.host or "127.0.0.1", listen.port or 0
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(address[0] != "::"))
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def _unix(path: str, mode: int, group: str | None) -> socket.socket:
    if len(os.fsencode(path)) > UNIX_PATH_BYTES:
        raise OSError(errno.ENAMETOOLONG, f"the path is longer than {UNIX_PATH_BYTES} bytes")
    gid = None if group is None else _gid(group)
    _clear(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(path)
        # Nobody can connect before listen(), so there is no moment of wrong permissions.
        if gid is not None:
            os.chown(path, -1, gid)
        os.chmod(path, mode)
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def _gid(group: str) -> int:
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        raise TwrError(f"socket_group: there is no group {group!r} on this machine") from None


def _clear(path: str) -> None:
    """Remove a socket file that nobody answers on; anything else stays and is an error."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise OSError(errno.EEXIST, "a file of that name exists and is no socket: remove it")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except BlockingIOError:
            pass
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


def _advice(listen: Address, error: OSError) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return "in use by another process; stop it, or configure another address"
        case errno.EADDRNOTAVAIL:
            return "no interface of this machine has that address"
        case errno.EACCES | errno.EPERM | errno.EINVAL if listen.path:
            return (
                "no permission for its directory, or to give it to socket_group, "
                f"of which user {os.geteuid()} has to be a member"
            )
        case errno.EACCES | errno.EPERM:
            return "no permission; take a port above 1023, or grant CAP_NET_BIND_SERVICE"
        case errno.ENOENT if listen.path:
            return f"there is no directory {Path(listen.path).parent}; create it"
        case errno.ENAMETOOLONG:
            return f"{error.strerror}; a directory such as /run/twr is short enough"
        case _:
            return error.strerror or str(error)
