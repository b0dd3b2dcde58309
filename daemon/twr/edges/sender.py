"""POSTs to targets: one connection pool per route, no redirects, no cookies, no proxies."""

import asyncio
import codecs
import io
import os
import ssl
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

import aiohttp
from yarl import URL

from twr.core.outcome import Answer

# Servers close idle connections after 2 s (gunicorn) to 75 s (nginx); ours go first.
IDLE = 1.5
MOST_READ = 64 * 1024
# Bytes of a body that are handed on: 512 characters, however long each is.
EXCERPT = 2048
# A timeout that comes so late finds the process held up (stopped, starved): what the target has
# answered meanwhile is read first, or a delivery that was made would be made again.
LATE, READ_FIRST = 0.1, 0.5
# A shorter hold-up can't be told from none: the loop turns so often before it is over, and reads.
LOOKS = 8
# Above it aiohttp warns that bytes block the loop.
_STREAM_ABOVE = 1024 * 1024


class Sender:
    """The connections of one route. Every failure is an Answer; nothing is raised."""

    def __init__(self, concurrency: int) -> None:
        # One more than may be in flight, for the probe beside strays of the time before it.
        most = concurrency + 1
        self._pooled = _session(_Connector(limit=most, keepalive_timeout=IDLE))
        self._fresh = _session(aiohttp.TCPConnector(limit=most, force_close=True))
        self._expected = 0
        self._retired = False

    async def post(
        self, url: str, body: bytes, headers: Mapping[str, str], timeout: float
    ) -> Answer:
        """POST the bytes as they are; `timeout` seconds bound all of it, the answer's end included.

        A kept connection that the target closed before it answered is tried once more on a
        fresh one within the same time: that costs no attempt.
        """
        deadline = _Deadline(timeout)
        try:
            async with deadline.scope:
                return await self._post_once_or_again(URL(url, encoded=True), body, headers)
        except TimeoutError:
            return Answer(None, f"timeout after {timeout:g}s")
        except (aiohttp.ClientError, OSError) as error:
            return Answer(None, _describe(error))
        finally:
            deadline.cancel()

    def expect(self) -> None:
        """A POST will come, until `done`."""
        self._expected += 1

    async def done(self) -> None:
        """One that was expected has ended, or will not come."""
        self._expected -= 1
        if self._retired and not self._expected:
            await self.close()

    async def _post_once_or_again(
        self, target: URL, body: bytes, headers: Mapping[str, str]
    ) -> Answer:
        _counts.set(False)
        try:
            return await self._post(self._pooled, target, body, headers)
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, ConnectionError):
            if _counts.get():
                raise
        return await self._post(self._fresh, target, body, headers)

    async def _post(
        self, session: aiohttp.ClientSession, target: URL, body: bytes, headers: Mapping[str, str]
    ) -> Answer:
        data = body if len(body) <= _STREAM_ABOVE else io.BytesIO(body)
        async with session.post(
            target, data=data, headers=headers, allow_redirects=False
        ) as response:
            _counts.set(True)
            delivered = response.status < 300
            if delivered and response.content.is_eof():
                return Answer(response.status)
            first = await _read(response)
            if delivered:
                return Answer(response.status)
            return Answer(
                response.status,
                _say(response),
                response.headers.get("Retry-After"),
                _text(first[:EXCERPT]),
            )

    async def retire(self) -> None:
        """Close once nothing is expected any more; no more will be."""
        self._retired = True
        if not self._expected:
            await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._pooled.close()
        await self._fresh.close()


class _Deadline:
    """Ends what runs in its `scope` after so many seconds, a little later where it comes late."""

    def __init__(self, seconds: float) -> None:
        self.scope = asyncio.timeout(None)
        self._loop = asyncio.get_running_loop()
        self._ends = self._loop.time() + seconds
        self._handle: asyncio.Handle = self._loop.call_at(self._ends, self._over, LOOKS)

    def cancel(self) -> None:
        """What runs in the scope has ended."""
        self._handle.cancel()

    def _over(self, looks: int) -> None:
        now = self._loop.time()
        if now - self._ends > LATE:
            self.scope.reschedule(now + READ_FIRST)
        elif looks:
            self._handle = self._loop.call_soon(self._over, looks - 1)
        else:
            self.scope.reschedule(now)


class _Connector(aiohttp.TCPConnector):
    """Notes who opens a connection, as tracing would for a twentieth of the cost of a POST."""

    async def _create_connection(self, *args: Any, **options: Any) -> Any:
        _counts.set(True)
        return await super()._create_connection(*args, **options)


# Whether a failure of this task's POST counts: it does once the connection is its own, or answered.
_counts: ContextVar[bool] = ContextVar("counts", default=False)


def _session(connector: aiohttp.TCPConnector) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None),
        auto_decompress=False,
        trust_env=False,
        skip_auto_headers=("Accept", "Accept-Encoding"),
    )


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """The first 64 KiB of a body; a longer one is cut off with its connection."""
    first = bytearray()
    while len(first) < MOST_READ:
        chunk = await response.content.read(MOST_READ - len(first))
        if not chunk:
            return bytes(first)
        first += chunk
    if not response.content.at_eof():
        response.close()
    return bytes(first)


def _say(response: aiohttp.ClientResponse) -> str:
    return f"HTTP {response.status} {response.reason or ''}".rstrip()


def _text(excerpt: bytes) -> str:
    """Without the character in the middle of which it was cut: its rest would hide what it ends."""
    return codecs.getincrementaldecoder("utf-8")("replace").decode(excerpt)


def _describe(error: Exception) -> str:
    """A failure in a few words: no address, no URL, which may hold a password."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError | ssl.SSLError):
        return "TLS certificate refused"
    if isinstance(error, aiohttp.ClientConnectorSSLError):
        return "TLS handshake failed"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "host name not found"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "closed without an answer"
    if isinstance(error, OSError) and error.errno and error.errno > 0:
        # Not its strerror, in which asyncio puts the address.
        return os.strerror(error.errno).lower()
    if isinstance(error, aiohttp.ClientPayloadError):
        return "answer cut off"
    if isinstance(error, aiohttp.ClientResponseError | aiohttp.http.HttpProcessingError):
        return "not an HTTP answer"
    return type(error).__name__
