"""Requests and answers as bytes."""

from system.harness import SECRET, SECRET_HEADER, Daemon

HEAD = f"POST /hook HTTP/1.1\r\nHost: x\r\n{SECRET_HEADER}: {SECRET}\r\n".encode()


def whole(body: bytes) -> bytes:
    """A request as Telegram sends it."""
    return HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body


def first_status(answer: bytes) -> int:
    """The status of the first answer; 0 where there is none."""
    words = answer.split(b" ", 2)
    return int(words[1]) if len(words) > 1 else 0


def said(daemon: Daemon) -> list[str]:
    """The lines of its log but for the one alert that wrong secrets may raise."""
    return [line for line in daemon.log().splitlines() if "webhook_secret_mismatch" not in line]
