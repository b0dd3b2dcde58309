"""One HTTP/1.1 connection to a webhook, byte for byte as Telegram holds one."""

import asyncio
import json
import ssl
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from email import message_from_bytes
from typing import Any
from urllib.parse import parse_qsl, urlsplit

MAX_HEAD = 64 * 1024
MAX_BODY = 1024 * 1024


class NoAnswerError(Exception):
    """No answer. `text` is what getWebhookInfo shows for it, None where it shows nothing."""

    def __init__(self, text: str | None) -> None:
        super().__init__(text or "closed without an answer")
        self.text = text


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a webhook URL leads: an address, and TLS with the name to check or None."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None
    server_name: str | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds Telegram waits: for the connection, for a whole answer, on an idle connection."""

    connect: float = 10.0
    answer: float = 60.0
    idle: float = 60.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What a webhook answered. Header names are in lower case, the last of a name counts."""

    status: int
    reason: str
    headers: Mapping[str, str]
    body: bytes
    keep_alive: bool

    @property
    def retry_after(self) -> int:
        """Whole seconds of Retry-After; a date or nonsense counts as 0."""
        value = self.headers.get("retry-after", "")
        return int(value) if value.isascii() and value.isdigit() else 0

    def parameters(self) -> Mapping[str, Any]:
        """The parameters of a Bot API call in the body: JSON, form or multipart."""
        kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        try:
            if kind == "application/json":
                value = json.loads(self.body)
                return value if isinstance(value, dict) else {}
            if kind == "application/x-www-form-urlencoded":
                return dict(parse_qsl(self.body.decode()))
            if kind == "multipart/form-data":
                return _multipart(self.headers["content-type"], self.body)
        except (ValueError, RecursionError):
            pass
        return {}


def encode_update(update: Mapping[str, Any]) -> bytes:
    """An update as Telegram writes it: a newline after the first comma, text in \\u escapes."""
    rest = {key: value for key, value in update.items() if key != "update_id"}
    if not rest:
        return json.dumps(dict(update), separators=(",", ":")).encode()
    inner = json.dumps(rest, separators=(",", ":"))[1:-1]
    return f'{{"update_id":{update["update_id"]},\n{inner}}}'.encode()


def encode_request(url: str, secret: str, body: bytes) -> bytes:
    """The whole POST; the headers in Telegram's own order."""
    parts = urlsplit(url)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    lines = [f"POST {target} HTTP/1.1", f"Host: {parts.netloc.rpartition('@')[2]}"]
    if secret:
        lines.append(f"X-Telegram-Bot-Api-Secret-Token: {secret}")
    lines += [
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Connection: keep-alive",
        "Accept-Encoding: gzip, deflate",
        "",
        "",
    ]
    return "\r\n".join(lines).encode() + body


class Connection:
    """A kept-alive connection with one exchange at a time; opened by the first one.

    `scale` is how many real seconds one second of `limits` takes.
    """

    def __init__(self, endpoint: Endpoint, limits: Limits, scale: float) -> None:
        self._endpoint = endpoint
        self._connect_timeout = limits.connect * scale
        self._answer_timeout = limits.answer * scale
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.idle_since = 0.0

    @property
    def usable(self) -> bool:
        """Whether another request may go over it: neither side has closed it."""
        if self._streams is None:
            return False
        reader, writer = self._streams
        return not (reader.at_eof() or writer.is_closing())

    async def exchange(self, request: bytes) -> Answer:
        """Send one request and read its answer; NoAnswerError when there is none."""
        reader, writer = self._streams = self._streams or await self._open()
        try:
            await self._write(writer, request)
            async with asyncio.timeout(self._answer_timeout):
                return await _read_answer(reader)
        except TimeoutError:
            raise NoAnswerError("Read timeout expired") from None
        except asyncio.IncompleteReadError:
            raise NoAnswerError(None) from None
        except asyncio.LimitOverrunError:
            raise NoAnswerError("Wrong response from the webhook: too long a header") from None
        except ssl.SSLError as error:
            raise NoAnswerError(_tls_text(error)) from None
        except OSError:
            raise NoAnswerError("Connection reset by peer") from None

    def abort(self) -> None:
        """Close the socket at once."""
        if self._streams is not None:
            self._streams[1].transport.abort()

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        where = self._endpoint
        try:
            async with asyncio.timeout(self._connect_timeout):
                return await asyncio.open_connection(
                    where.host,
                    where.port,
                    ssl=where.tls,
                    server_hostname=where.server_name if where.tls else None,
                    limit=MAX_HEAD,
                )
        except TimeoutError:
            raise NoAnswerError("Connection timed out") from None
        except ssl.SSLError as error:
            raise NoAnswerError(_tls_text(error)) from None
        except ConnectionRefusedError:
            raise NoAnswerError("Connection refused") from None
        except ConnectionResetError:
            raise NoAnswerError("Connection reset by peer") from None
        except OSError:
            raise NoAnswerError("Can't connect to the webhook") from None

    async def _write(self, writer: asyncio.StreamWriter, request: bytes) -> None:
        writer.write(request)
        try:
            async with asyncio.timeout(self._answer_timeout):
                await writer.drain()
        except TimeoutError:
            raise NoAnswerError("Write timeout expired") from None


async def _read_answer(reader: asyncio.StreamReader) -> Answer:
    status, reason, headers, persistent = await _read_head(reader)
    while 100 <= status < 200:
        status, reason, headers, persistent = await _read_head(reader)
    body = b"" if status in (204, 304) else await _read_body(reader, headers)
    persistent = persistent and headers.get("connection", "").lower() != "close"
    return Answer(status, reason, headers, _unpacked(headers, body), persistent)


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, str, dict[str, str], bool]:
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")[:-2]
    version, _, rest = first.partition(" ")
    code, _, reason = rest.partition(" ")
    if not version.startswith("HTTP/1.") or not (code.isascii() and code.isdigit()):
        raise NoAnswerError("Wrong response from the webhook: not HTTP")
    pairs = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    return int(code), reason, headers, version != "HTTP/1.0"


async def _read_body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return await _read_chunks(reader)
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit()) or int(length) > MAX_BODY:
        raise NoAnswerError("Wrong response from the webhook: a body of the wrong length")
    return await reader.readexactly(int(length))


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    body = bytearray()
    while True:
        line = (await reader.readuntil(b"\r\n")).split(b";")[0].strip()
        try:
            size = int(line, 16)
        except ValueError:
            size = -1
        if not 0 <= size <= MAX_BODY - len(body):
            raise NoAnswerError("Wrong response from the webhook: a chunk of the wrong length")
        if size == 0:
            break
        body += (await reader.readexactly(size + 2))[:-2]
    while await reader.readuntil(b"\r\n") != b"\r\n":
        pass
    return bytes(body)


def _unpacked(headers: Mapping[str, str], body: bytes) -> bytes:
    if headers.get("content-encoding", "").lower() not in ("gzip", "deflate"):
        return body
    try:
        return zlib.decompressobj(wbits=47).decompress(body, MAX_BODY)
    except zlib.error:
        return b""


def _multipart(content_type: str, body: bytes) -> Mapping[str, Any]:
    whole = message_from_bytes(f"Content-Type: {content_type}\r\n\r\n".encode() + body)
    if not whole.is_multipart():
        return {}
    found: dict[str, Any] = {}
    for part in whole.walk():
        name = part.get_param("name", header="content-disposition")
        content = part.get_payload(decode=True)
        if isinstance(name, str) and isinstance(content, bytes):
            found[name] = content.decode(errors="replace")
    return found


def _tls_text(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return "SSL error {error:0A000086:SSL routines::certificate verify failed}"
    reason = (error.reason or "unknown error").replace("_", " ").lower()
    return f"SSL error {{error:0A000000:SSL routines::{reason}}}"
