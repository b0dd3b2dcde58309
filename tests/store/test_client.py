"""The connection to the server: what breaks it, and what a caller then gets."""

import asyncio
import contextlib
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from redis import exceptions
from redis.asyncio import BlockingConnectionPool

from servers import SERVERS, Server, redis_binary
from store.invariants import leftovers
from store.world import KEYS, LEASE, Start, World, arrival
from twr.core.jobs import Accepted, Claim, Destination, Offer, Settle
from twr.edges.store import Identity, Store, open_store
from twr.edges.store.client import Client, connect, translate
from twr.errors import StoreError, StoreFull, StoreUnavailable

pytestmark = pytest.mark.anyio


def process(url: str, nonce: str = "n1") -> Store:
    identity = Identity("vps-1", nonce)
    return open_store(url, prefix="twr", bot="main", identity=identity, dedup_ttl=90_000)


class Proxy:
    """Between a client and the server; breaks the connection once instead of passing a reply on
    that came after a request with `break_at` in it."""

    def __init__(self, upstream: Path, path: Path) -> None:
        self.upstream = upstream
        self.path = path
        self.break_at: bytes | None = None
        self.breaks = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"unix://{self.path}"

    async def __aenter__(self) -> "Proxy":
        self._server = await asyncio.start_unix_server(self._serve, str(self.path))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        up_reader, up_writer = await asyncio.open_unix_connection(str(self.upstream))
        try:
            while request := await reader.read(1 << 20):
                armed = self.break_at is not None and self.break_at in request
                up_writer.write(request)
                reply = await up_reader.read(1 << 20)
                if armed:
                    self.break_at = None
                    self.breaks += 1
                    return
                writer.write(reply)
        except OSError:
            pass
        finally:
            self._tasks.discard(task)
            for side in (writer, up_writer):
                side.close()
                with contextlib.suppress(OSError):
                    await side.wait_closed()


@pytest.fixture
async def proxy(
    real: World, request: pytest.FixtureRequest, shared_server: Start, short_path: Path
) -> AsyncIterator[Proxy]:
    kind = request.node.callspec.params["real"]
    async with Proxy(shared_server(kind).socket, short_path / "p") as found:
        yield found


async def test_a_lost_answer_to_accept_loses_nothing(real: World, proxy: Proxy) -> None:
    """Sent again, the update is a duplicate of itself; what was leased for it is reclaimed."""
    store = process(proxy.url)
    offers = [Offer("a", 5, LEASE)]
    assert len((await store.accept([arrival(1, "a", lane="1")], offers))[0].leased) == 1
    proxy.break_at = b"EVALSHA"
    assert await store.accept([arrival(2, "a", lane="2")], offers) == [Accepted(None)]
    assert proxy.breaks == 1
    assert await real.state("2/a") == "processing"
    assert await store.reclaim(["1/a"]) == ("2/a",)
    assert [await real.state(name) for name in ("1/a", "2/a")] == ["processing", "ready"]
    await real.check()
    await store.close()


async def test_a_lost_answer_to_a_claim_is_an_error_once(real: World, proxy: Proxy) -> None:
    """A turn is never sent twice; its leases are reclaimed, its settles refused the second time."""
    store = process(proxy.url)
    await store.accept([arrival(n, "a", lane=str(n)) for n in (1, 2, 3)])
    (job,) = (await store.turn([], [Claim("a", 1, LEASE)])).claimed[0].jobs
    settle = Settle("delivered", job.id, job.token)
    proxy.break_at = b"EVALSHA"
    with pytest.raises(StoreUnavailable):
        await store.turn([settle], [Claim("a", 1, LEASE)])
    assert proxy.breaks == 1
    assert await real.state("2/a") == "processing"
    assert (await store.turn([settle], [])).settled == (False,)
    assert await store.reclaim([]) == ("2/a",)
    claimed = (await store.turn([], [Claim("a", 9, LEASE)])).claimed[0]
    assert [found.id for found in claimed.jobs] == ["2/a", "3/a"]
    await real.check()
    await store.close()


async def test_forgotten_scripts_are_sent_again(world: World) -> None:
    """SCRIPT FLUSH, a restart or a failover between any two calls is no error."""
    flush = world.redis.script_flush
    await flush()
    await world.store.beat(["a"], take_over=True)
    await flush()
    await world.accept(arrival(1, "a"))
    await flush()
    job = await world.take("a")
    await flush()
    assert await world.settle(Settle("delivered", job.id, job.token)) == (True,)
    await flush()
    assert (await world.store.stats()).routes[0].waiting == 0


async def test_cancelled_callers_leave_no_reply_for_the_next(real: World) -> None:
    """Thousands of cancelled calls on a pool of 16 connections: each later caller gets its own
    answer, and every connection is free in the end."""
    names = [f"r{n}" for n in range(8)]
    await real.accept(*(arrival(n, name) for n, name in enumerate(names)))

    async def ask(n: int) -> None:
        name = names[n % 8]
        claimed = (await real.store.turn([], [Claim(name, 0, LEASE)])).claimed[0]
        assert (claimed.route, claimed.ready) == (name, 1)
        assert len((await real.store.turn([], [Claim(name, 0, LEASE)] * (n % 5))).claimed) == n % 5

    for round_ in range(30):
        tasks = [asyncio.create_task(ask(n)) for n in range(100)]
        for _ in range(round_ % 12):
            await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [r for r in results if r and not isinstance(r, asyncio.CancelledError)] == []
        assert not any(results[1::2])
    client = real.store._client
    await client._connections.give_back()
    assert len(client.redis.connection_pool._in_use_connections) == 0
    await asyncio.gather(*(ask(n) for n in range(100)))


@pytest.fixture(params=SERVERS)
def own_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server that a test may stop and start."""
    with tempfile.TemporaryDirectory(prefix="twr-") as name:
        server = Server(request.param, Path(name), "--appendonly", "yes", "--appendfsync", "always")
        server.start()
        yield server
        server.kill()


async def test_a_restart_in_between_costs_an_accept_nothing(own_server: Server) -> None:
    """However many connections were kept from before: it is sent once more, on one that holds."""
    store = process(own_server.url)
    await asyncio.gather(*(store.stats() for _ in range(16)))
    await asyncio.to_thread(own_server.kill)
    await asyncio.to_thread(own_server.start)
    assert await store.accept([arrival(1, "a")]) == [Accepted(1, ready=("a",))]
    await store.close()


@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_a_restart_costs_one_error_at_most(own_server: Server, end: str) -> None:
    """Idle connections of before are found dead, and what was accepted is still there."""
    store = process(own_server.url)
    await store.accept([arrival(1, "a")])
    await asyncio.gather(*(store.stats() for _ in range(16)))
    getattr(own_server, end)()
    with pytest.raises(StoreUnavailable):
        await store.accept([arrival(2, "a")])
    own_server.start()
    errors = 0
    for n in range(2, 40):
        try:
            await store.turn([], [Claim("a", 0, LEASE)])
        except StoreUnavailable:
            errors += 1
        assert await store.accept([arrival(n, "a")]) == [Accepted(1)]
    assert errors <= 1
    assert (await store.stats()).routes[0].waiting == 39
    await store.close()


async def test_a_server_that_hangs_is_unavailable(real: World, short_path: Path) -> None:
    """A server that takes the request and says nothing is given up, and not asked again."""
    requests: list[bytes] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            requests.append(data)
            if b"EVALSHA" not in data:
                writer.write(b"+OK\r\n" * data.count(b"CLIENT"))
        writer.close()

    async with await asyncio.start_unix_server(listen, str(short_path / "p")):
        url = f"unix://{short_path / 'p'}?protocol=2&socket_timeout=0.1"
        client = Client(connect(url), KEYS.tag)
        with pytest.raises(StoreUnavailable, match="did not answer in time"):
            await client.run("stats", resend=True)
        await client.close()
    assert sum(b"EVALSHA" in data for data in requests) == 1


async def test_a_pool_without_a_free_connection_is_unavailable(real: World) -> None:
    """Waiting for a connection ends by the time limit, and is not begun a second time."""
    pool = real.store._client.redis.connection_pool
    assert isinstance(pool, BlockingConnectionPool)
    held = [await pool.get_connection() for _ in range(16)]
    pool.timeout = 0.2
    started = asyncio.get_running_loop().time()
    with pytest.raises(StoreUnavailable):
        await real.accept(arrival(1, "a"))
    assert asyncio.get_running_loop().time() - started < 0.39
    for connection in held:
        await pool.release(connection)
    assert await real.accept(arrival(1, "a")) == [Accepted(1, ready=("a",))]


REPLIES: list[tuple[bytes, type[StoreError], str]] = [
    (b"-OOM command not allowed when used memory > 'maxmemory'.", StoreFull, "full"),
    (b"-MISCONF Errors writing to the AOF file: No space left on device", StoreFull, "No space"),
    (b"-LOADING Redis is loading the dataset in memory", StoreUnavailable, "loading"),
    (b"-READONLY You can't write against a read only replica.", StoreUnavailable, "read only"),
    (b"-MASTERDOWN Link with MASTER is down", StoreUnavailable, "MASTER"),
    (b"-CLUSTERDOWN The cluster is down", StoreUnavailable, "cluster"),
    (b"-TRYAGAIN Multiple keys request during rehashing of slot", StoreUnavailable, "rehashing"),
    (b"-NOREPLICAS Not enough good replicas to write.", StoreUnavailable, "replicas"),
    (b"-BUSY Redis is busy running a script.", StoreUnavailable, "busy"),
    (b"-NOAUTH Authentication required.", StoreUnavailable, "user or password of store.url"),
    (b"-WRONGPASS invalid username-password pair", StoreUnavailable, "user or password"),
    (b"-ERR max number of clients reached", StoreUnavailable, "clients"),
    (b"-NOPERM User x has no permissions to run 'evalsha'", StoreError, "may not"),
    (b"-WRONGTYPE Operation against a key", StoreError, "WRONGTYPE"),
    (b"-ERR unknown command", StoreError, "unknown"),
]


@pytest.mark.parametrize(
    ("reply", "kind", "text"), REPLIES, ids=[r.decode()[1:14] for r, *_ in REPLIES]
)
async def test_errors_are_told_in_our_own_terms(
    reply: bytes, kind: type[StoreError], text: str, short_path: Path
) -> None:
    """Each error of a server is full, away or an error; in one line."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            failed = b"EVALSHA" in data
            writer.write(reply + b"\r\n" if failed else b"+OK\r\n" * data.count(b"CLIENT"))
        writer.close()

    async with await asyncio.start_unix_server(answer, str(short_path / "p")):
        client = Client(connect(f"unix://{short_path / 'p'}?protocol=2"), KEYS.tag)
        with pytest.raises(StoreError, match=text) as caught:
            await client.run("stats")
        await client.close()
    assert type(caught.value) is kind
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (exceptions.TimeoutError("Timeout reading from host:1"), StoreUnavailable),
        (exceptions.ConnectionError("Error 111 connecting to host:1."), StoreUnavailable),
        (TimeoutError(), StoreUnavailable),
        (ConnectionResetError(104, "reset"), StoreUnavailable),
        (exceptions.ResponseError("two\nlines " + "x" * 999), StoreError),
    ],
)
def test_errors_of_connections_are_unavailable(error: Exception, kind: type[StoreError]) -> None:
    """What happens below the protocol is no different; and no text is long."""
    found = translate(error)
    assert type(found) is kind
    assert len(str(found)) < 300
    assert "\n" not in str(found)


async def test_a_key_of_the_wrong_kind_is_an_error(world: World) -> None:
    """Somebody else's key under our name: calls that need it say so, and other routes go on."""
    await world.redis.set(KEYS.route("a", "ready"), "mine")
    with pytest.raises(StoreError, match="WRONGTYPE"):
        await world.claim("a")
    assert await world.accept(arrival(2, "b")) == [Accepted(1, ready=("b",))]
    assert await world.deliver("b") == "2/b"


@pytest.mark.parametrize("place", ["ready", "all", "lane:7"])
async def test_an_update_that_could_not_be_stored_whole_comes_again(
    world: World, place: str
) -> None:
    """One bad key of one route: the update is refused until it is gone, and then stored for
    every route as if for the first time."""
    await world.redis.set(KEYS.route("b", place), "mine")
    update = arrival(1, Destination("full", True, 0), "a", "b", "c")
    for _ in range(3):
        with pytest.raises(StoreError, match="WRONGTYPE"):
            await world.accept(update)
    await world.redis.delete(KEYS.route("b", place))
    assert await world.accept(update) == [Accepted(4, ready=("a", "b", "c"))]
    picture = await world.check()
    assert sorted(picture.jobs) == ["1/a", "1/b", "1/c", "1/full"]
    assert [await world.deliver(route) for route in "abc"] == ["1/a", "1/b", "1/c"]
    assert await world.store.dead_letters.drop(["1/full"]) == 1
    assert [name for name in leftovers(await world.check()) if "ready" not in name] == []


async def test_a_setting_that_is_not_told_is_none(real: World) -> None:
    """Managed servers refuse CONFIG; a user may lack the right to it."""
    assert await real.store.setting("maxmemory-policy") == "noeviction"
    assert await real.store.setting("no-such-setting") is None
    await real.redis.execute_command(
        "ACL", "SETUSER", "limited", "on", ">pw", "~*", "+@all", "-config"
    )
    url = real.store._client.redis.connection_pool.connection_kwargs["path"]
    store = process(f"unix://limited:pw@{url}")
    assert await store.setting("maxmemory-policy") is None
    await store.ping()
    await store.close()
    await real.redis.execute_command("ACL", "DELUSER", "limited")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def tcp_server() -> Iterator[tuple[Server, int]]:
    """A server with a password on a TCP port as well."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="twr-") as name:
        server = Server("valkey", Path(name), "--port", str(port), "--bind", "127.0.0.1")
        server.start()
        yield server, port
        server.stop()


Url = Callable[[Server, int], str]
URLS: dict[str, tuple[Url, int]] = {
    "tcp": (lambda _, port: f"redis://127.0.0.1:{port}", 0),
    "tcp with a database": (lambda _, port: f"redis://127.0.0.1:{port}/3", 3),
    "tcp with a login": (lambda _, port: f"redis://joe:s%40cret@127.0.0.1:{port}/0", 0),
    "tcp with a password": (lambda _, port: f"redis://:@127.0.0.1:{port}/0", 0),
    "unix": (lambda server, _: f"unix://{server.socket}", 0),
    "unix with a database": (lambda server, _: f"unix://{server.socket}?db=5", 5),
    "unix with a login": (lambda server, _: f"unix://joe:s%40cret@{server.socket}?db=2", 2),
}


@pytest.mark.parametrize("form", URLS)
async def test_forms_of_the_url(form: str, tcp_server: tuple[Server, int]) -> None:
    """Every documented form reaches the server, the database and the user it names."""
    server, port = tcp_server
    url, database = URLS[form]
    admin = connect(server.url)
    await admin.flushall()
    await admin.execute_command("ACL", "SETUSER", "joe", "on", ">s@cret", "~*", "+@all")
    await admin.aclose()
    store = process(url(server, port))
    await store.save_username("my_bot")
    found = connect(f"{server.url}?db={database}")
    assert await found.get(KEYS.username) == b"my_bot"
    await found.aclose()
    await store.close()


@pytest.fixture
def sentinel_port(tcp_server: tuple[Server, int], short_path: Path) -> Iterator[int]:
    """A sentinel that knows the server as `mymaster`."""
    port = free_port()
    file = short_path / "sentinel.conf"
    file.write_text(f"port {port}\nsentinel monitor mymaster 127.0.0.1 {tcp_server[1]} 1\n")
    process = subprocess.Popen(
        [redis_binary(), str(file), "--sentinel", "--bind", "127.0.0.1"], stdout=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 20
    while not listens(port):
        assert process.poll() is None
        assert time.monotonic() < deadline
    yield port
    process.terminate()
    process.wait(20)


def listens(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


async def test_a_sentinel_names_the_server(
    tcp_server: tuple[Server, int], sentinel_port: int
) -> None:
    """The first sentinel that answers is asked for the master; the rest of the URL is for that."""
    dead = free_port()
    store = process(f"redis+sentinel://[::1]:{dead},127.0.0.1:{sentinel_port}/mymaster/4")
    await store.save_username("by_sentinel")
    found = connect(f"{tcp_server[0].url}?db=4")
    assert await found.get(KEYS.username) == b"by_sentinel"
    await found.aclose()
    await store.close()
    unknown = process(f"redis+sentinel://127.0.0.1:{sentinel_port}/nobody")
    with pytest.raises(StoreUnavailable, match="nobody"):
        await unknown.ping()
    await unknown.close()


async def test_a_wrong_password_says_where_it_stands(tcp_server: tuple[Server, int]) -> None:
    """The error names the setting, and holds neither user nor password."""
    _, port = tcp_server
    store = process(f"redis://joe:wrong-secret@127.0.0.1:{port}/0")
    with pytest.raises(StoreUnavailable) as caught:
        await store.ping()
    assert str(caught.value) == "the store refuses the user or password of store.url"
    await store.close()


async def test_nobody_listens(short_path: Path) -> None:
    """A server that is not there is unavailable, at once, by each of its methods."""
    store = process(f"unix://{short_path / 'none'}")
    for call in (store.ping(), store.stats(), store.accept([arrival(1, "a")]), store.info()):
        with pytest.raises(StoreUnavailable):
            await call
    await store.close()
