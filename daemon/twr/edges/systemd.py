"""The service manager: readiness, status, watchdog. The protocol is that of sd_notify(3)."""

import logging
import socket
from collections.abc import Callable, Mapping, MutableMapping

from twr.core.text import clip, escape

log = logging.getLogger("twr.systemd")

SEND_TIMEOUT = 0.5
STATUS_LENGTH = 500


class Notifier:
    """Tells the service manager how the process is; without one, every method does nothing.

    `address` is what NOTIFY_SOCKET holds (a path, or `@name` for an abstract socket), or
    None; `monotonic` is the clock of CLOCK_MONOTONIC, in seconds.
    """

    def __init__(self, address: str | None, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._failed = False
        self._socket: socket.socket | None = None
        if address:
            self._address = f"\0{address[1:]}" if address.startswith("@") else address
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.settimeout(SEND_TIMEOUT)

    @classmethod
    def take(cls, environ: MutableMapping[str, str], monotonic: Callable[[], float]) -> "Notifier":
        """A notifier for NOTIFY_SOCKET, which is removed so that no child speaks for us."""
        return cls(environ.pop("NOTIFY_SOCKET", None), monotonic)

    def ready(self, status: str | None = None) -> None:
        """Start-up, or a reload, is finished."""
        self._send("READY=1", *_status(status))

    def reloading(self) -> None:
        """A reload has begun; `ready` ends it."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={int(self._monotonic() * 1_000_000)}")

    def stopping(self, status: str | None = None) -> None:
        """The process has begun to end."""
        self._send("STOPPING=1", *_status(status))

    def status(self, text: str) -> None:
        """One line for `systemctl status`."""
        self._send(*_status(text))

    def watchdog(self) -> None:
        """The process is alive; see `watchdog_interval`."""
        self._send("WATCHDOG=1")

    def close(self) -> None:
        """Nothing more is told."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, *assignments: str) -> None:
        if self._socket is None:
            return
        try:
            self._socket.sendto("\n".join(assignments).encode(), self._address)
        except OSError as error:
            if not self._failed:
                log.warning("systemd notify failed error=%s", error.strerror or "timeout")
            self._failed = True
        else:
            self._failed = False


def _status(text: str | None) -> tuple[str, ...]:
    return () if text is None else (f"STATUS={clip(escape(text), STATUS_LENGTH)}",)


def watchdog_interval(environ: Mapping[str, str], pid: int) -> float | None:
    """Seconds between two `watchdog()` calls (half of WATCHDOG_USEC), None without a watchdog.

    `pid` is our own: a watchdog meant for another process (WATCHDOG_PID) is not ours.
    """
    if environ.get("WATCHDOG_PID", str(pid)) != str(pid):
        return None
    usec = environ.get("WATCHDOG_USEC", "")
    if not usec.isascii() or not usec.isdigit() or int(usec) == 0:
        return None
    return int(usec) / 2_000_000
