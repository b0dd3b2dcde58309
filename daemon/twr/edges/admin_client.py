"""The admin listener of a running twr, asked from another process."""

import http.client
import json
import socket
from typing import Any

from twr.config import Listen
from twr.core.text import clip, escape
from twr.errors import DaemonUnreachable

# Longer than the daemon itself waits for its store.
TIMEOUT = 8.0
_LARGEST = 16 << 20
_ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def fetch_status(admin: Listen, *, timeout: float = TIMEOUT) -> dict[str, Any]:
    """What GET /status answers. Raises DaemonUnreachable."""
    try:
        code, body = _get(admin, "/status", timeout)
    except PermissionError:
        raise DaemonUnreachable(
            f"{admin}: permission denied; run this as root, or as the user of twr"
        ) from None
    except TimeoutError:
        raise DaemonUnreachable(f"twr gives no answer at {admin} within {timeout:g} s") from None
    except (ConnectionRefusedError, FileNotFoundError):
        raise DaemonUnreachable(
            f"twr is not running, or not with this configuration: nothing listens at {admin}"
        ) from None
    except (OSError, http.client.HTTPException) as error:
        reason = clip(escape(str(error) or type(error).__name__), 200)
        raise DaemonUnreachable(f"twr gives no answer at {admin}: {reason}") from None
    return _checked(admin, code, body)


def _checked(admin: Listen, code: int, body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise DaemonUnreachable(f"what answers at {admin} is not twr (HTTP {code}, no JSON object)")
    if code == 200:
        return found
    reasons = found.get("reasons")
    why = "; ".join(map(str, reasons)) if isinstance(reasons, list) else found.get("status")
    raise DaemonUnreachable(
        f"twr has no status at {admin}: HTTP {code} {clip(escape(str(why)), 200)}"
    )


def _get(admin: Listen, path: str, timeout: float) -> tuple[int, bytes]:
    connection = _Connection(admin, timeout)
    try:
        connection.request("GET", path, headers={"Accept": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read(_LARGEST)
    finally:
        connection.close()


class _Connection(http.client.HTTPConnection):
    """To a unix socket, or to the port; one that listens everywhere is asked on this machine."""

    def __init__(self, admin: Listen, timeout: float) -> None:
        host = admin.host or "localhost"
        super().__init__(_ANYWHERE.get(host, host), admin.port, timeout=timeout)
        self._path = admin.path

    def connect(self) -> None:
        if self._path is None:
            super().connect()
            return
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
