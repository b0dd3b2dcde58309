"""The connection to a Redis or Valkey server: URL forms, scripts, errors in our own terms."""

import asyncio
import hashlib
import re
import ssl
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from importlib import resources
from typing import Any, cast
from urllib.parse import parse_qsl, unquote, urlsplit

from redis import asyncio as aredis
from redis import exceptions
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff

from twr.config.urls import passwords, split_url
from twr.core.masking import Mask
from twr.edges.store.connections import Connections
from twr.errors import StoreError, StoreFull, StoreUnavailable

# Under the 5 s after which the ingress answers 503, so that a caller gets the store's own reason.
ANSWER_TIMEOUT = 4.0
CONNECT_TIMEOUT = 2.0
CONNECTIONS = 16

# A full server refuses `accept` and lets everything else drain it.
_FLAGS = {"accept": "", "stats": " flags=no-writes,allow-stale"}
_DRAINS = " flags=allow-oom"
# redis-py cuts off the codes that have a class of their own.
_AWAY = (
    exceptions.ConnectionError,
    exceptions.ReadOnlyError,
    exceptions.ClusterDownError,
    exceptions.TryAgainError,
    OSError,
)
# A server that lacks a command repeats what it was called with: a password, an update.
_ARGUMENTS = re.compile(r",? *with args beginning with.*", re.DOTALL)
_MOST_TEXT = 200
_AWAY_CODES = ("NOREPLICAS", "BUSY", "UNKILLABLE")
_FULL_CODES = ("MISCONF",)


@cache
def script(name: str) -> str:
    """The whole source of a script, its shebang and the common part included."""
    folder = resources.files("twr.edges.store") / "lua"
    common = (folder / "common.lua").read_text("utf-8")
    own = (folder / f"{name}.lua").read_text("utf-8")
    return f"#!lua{_FLAGS.get(name, _DRAINS)}\n{common}\n{own}"


def _node(text: str) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    return parts.hostname or "", parts.port or 26379


def _sentinel(url: str, options: dict[str, Any]) -> aredis.Redis:
    """`redis+sentinel://[user:password@]host:port[,host:port…]/master[/db]`, as a client."""
    parts = split_url(url)
    login, _, hosts = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    nodes = [_node(host) for host in hosts.split(",")]
    master, _, db = parts.path.strip("/").partition("/")
    if password:
        options = {**options, "username": unquote(user) or None, "password": unquote(password)}
    extra = dict(parse_qsl(parts.query))
    sentinel = Sentinel(
        nodes,
        sentinel_kwargs={
            "socket_timeout": CONNECT_TIMEOUT,
            "socket_connect_timeout": CONNECT_TIMEOUT,
            "retry": Retry(NoBackoff(), 0),
            "username": extra.get("sentinel_username"),
            "password": extra.get("sentinel_password"),
        },
        **options,
    )
    return cast("aredis.Redis", sentinel.master_for(master, db=int(db or 0)))


def open_client(url: str, tag: str) -> "Client":
    """A client of the keys of `tag` at `url`, which no error of it shows a password of."""
    return Client(connect(url), tag, mask=Mask(passwords(url)))


def connect(url: str) -> aredis.Redis:
    """A client for `url`, not yet connected. The URL may hold a password: never log it."""
    options: dict[str, Any] = {
        # The client limits each call as a whole: redis-py's limit makes a task of each write.
        "socket_timeout": None,
        "socket_connect_timeout": CONNECT_TIMEOUT,
        # What may be sent twice is decided by whoever calls, never below.
        "retry": Retry(NoBackoff(), 0),
        "client_name": "twr",
    }
    if not url.startswith("unix:"):
        options["socket_keepalive"] = True
    if url.startswith("redis+sentinel:"):
        return _sentinel(url, options)
    if url.startswith("rediss:"):
        options["ssl_min_version"] = ssl.TLSVersion.TLSv1_2
    pool: aredis.BlockingConnectionPool = aredis.BlockingConnectionPool.from_url(
        url, max_connections=CONNECTIONS, timeout=ANSWER_TIMEOUT, **options
    )
    return aredis.Redis.from_pool(pool)


def translate(error: Exception, mask: Mask | None = None) -> StoreError:
    """What a redis-py error means to twr, in one line without the command's arguments."""
    told = " ".join(_ARGUMENTS.sub("", str(error)).split())
    text = (mask or Mask()).quoted(told, _MOST_TEXT)
    if isinstance(error, exceptions.OutOfMemoryError) or text.startswith(_FULL_CODES):
        return StoreFull(f"the store is full: {text}")
    if isinstance(error, exceptions.AuthenticationError):
        return StoreUnavailable("the store refuses the user or password of store.url")
    if isinstance(error, exceptions.NoPermissionError):
        return StoreError(f"the user of store.url may not do this: {text}")
    if isinstance(error, exceptions.TimeoutError | TimeoutError):
        return StoreUnavailable("the store did not answer in time")
    if isinstance(error, _AWAY) or text.startswith(_AWAY_CODES):
        return StoreUnavailable(f"the store is not available: {text}")
    return StoreError(f"the store answered with an error: {text}")


def _broke(error: Exception) -> bool:
    """Whether a connection broke, so that another try costs no time; a wait that ended, for an
    answer or for a free connection, is no reason to wait again."""
    waited = isinstance(error, TimeoutError) or isinstance(error.__cause__, TimeoutError)
    return not waited and not isinstance(error, exceptions.BusyLoadingError)


class Client:
    """Runs commands and scripts; raises StoreError and its kinds, and nothing of redis-py."""

    def __init__(
        self,
        redis: aredis.Redis,
        tag: str,
        load: Callable[[str], str] = script,
        mask: Mask | None = None,
    ) -> None:
        self.redis = redis
        self._connections = Connections(redis.connection_pool)
        self._tag = tag
        self._load = load
        self._mask = mask
        self._sha: dict[str, str] = {}

    async def run(self, name: str, *args: str | bytes | int, resend: bool = False) -> Any:
        """Run a script. `resend`: once more when the connection broke (it may then run twice)."""
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT):
                return await self._run(name, args)
        except (exceptions.ConnectionError, OSError) as error:
            if not resend or not _broke(error):
                raise translate(error, self._mask) from None
        except exceptions.RedisError as error:
            raise await self._failed(error) from None
        return await self.call(self._run(name, args))

    async def call(self, command: Awaitable[Any]) -> Any:
        """Await a redis-py command, its errors translated."""
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT):
                return await command
        except (exceptions.RedisError, OSError) as error:
            raise await self._failed(error) from None

    async def _failed(self, error: Exception) -> StoreError:
        # A connection to a server that was demoted would answer READONLY for ever.
        if isinstance(error, exceptions.ReadOnlyError):
            await self._connections.drop_idle()
        return translate(error, self._mask)

    async def _run(self, name: str, args: Sequence[str | bytes | int]) -> Any:
        source = self._load(name)
        sha = self._sha.get(name)
        if sha is None:
            sha = self._sha[name] = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
        try:
            return await self._connections.execute("EVALSHA", sha, 1, self._tag, *args)
        except exceptions.NoScriptError:
            # The server forgot it (a restart, SCRIPT FLUSH, a failover) and has run nothing.
            return await self._connections.execute("EVAL", source, 1, self._tag, *args)

    async def close(self) -> None:
        """Close all connections, waiting at most a second for them to say goodbye."""
        try:
            async with asyncio.timeout(1):
                await self._connections.give_back()
                await self.redis.aclose()
                pool = self.redis.connection_pool
                if isinstance(pool, SentinelConnectionPool):
                    for sentinel in pool.sentinel_manager.sentinels:
                        await sentinel.aclose()
        except (exceptions.RedisError, OSError, TimeoutError):
            pass
