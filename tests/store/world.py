"""One store for a test and the processes that share it.

Time belongs to the server, so no test waits for it: `let_*` write into the store what the
passing of time would have made of it (a lease, a delay or an expiry in the past).
"""

from collections.abc import Callable, Sequence
from typing import Any

import fakeredis
from redis.asyncio import Redis

from fakes import fake_redis, fake_script
from servers import Server
from store.invariants import Picture, read, violations
from twr.core.jobs import Accepted, Arrival, Claim, Claimed, Destination, Job, Offer, Settle
from twr.edges.store import Identity, Store
from twr.edges.store.client import Client, connect, script
from twr.edges.store.keys import Keys, route_of

KEYS = Keys("twr", "main")
LEASE = 3600.0
DAY = 86_400

Start = Callable[[str], Server]
Ran = tuple[str, tuple[str | bytes | int, ...]]


def arrival(
    update_id: int,
    *routes: str | Destination,
    lane: str = "7",
    expires_after: int = DAY,
    body: bytes | None = None,
) -> Arrival:
    """An update for routes that are ordered and never overflow, unless given in full."""
    destinations = tuple(
        to if isinstance(to, Destination) else Destination(to, True, 100_000) for to in routes
    )
    if body is None:
        body = b'{"update_id": %d}' % update_id
    return Arrival(update_id, "message", lane, expires_after, body, destinations)


class Watched(Client):
    """A client that notes which scripts it ran, with their arguments."""

    def __init__(self, redis: Redis, script: Callable[[str], str], ran: list[Ran]) -> None:
        super().__init__(redis, KEYS.tag, script)
        self._ran = ran

    async def run(self, name: str, *args: str | bytes | int, resend: bool = False) -> Any:
        self._ran.append((name, args))
        return await super().run(name, *args, resend=resend)


class World:
    """The keys of the bot `main`; `connect` makes a client and `script` a script's source.
    `ran` are the scripts that its processes ran."""

    def __init__(self, connect: Callable[[], Redis], script: Callable[[str], str]) -> None:
        self._connect = connect
        self._script = script
        self._stores: list[Store] = []
        self.ran: list[Ran] = []
        self.redis = connect()
        self.store = self.process()

    def process(
        self, nonce: str = "n1", instance: str = "vps-1", dedup_ttl: float = 90_000
    ) -> Store:
        """A process that uses the store."""
        client = Watched(self._connect(), self._script, self.ran)
        store = Store(client, KEYS, Identity(instance, nonce, "boot", 42), dedup_ttl)
        self._stores.append(store)
        return store

    async def close(self) -> None:
        for store in self._stores:
            await store.close()
        await self.redis.aclose()

    async def picture(self) -> Picture:
        return await read(self.redis, KEYS)

    async def check(self) -> Picture:
        """The picture of a store in which every invariant holds."""
        picture = await self.picture()
        assert violations(picture) == []
        return picture

    async def accept(self, *arrivals: Arrival, offers: Sequence[Offer] = ()) -> list[Accepted]:
        return await self.store.accept(arrivals, offers)

    async def claim(
        self, route: str, slots: int = 1, *, suspect: bool = False, by: Store | None = None
    ) -> Claimed:
        turn = await (by or self.store).turn([], [Claim(route, slots, LEASE, suspect)])
        return turn.claimed[0]

    async def take(self, route: str, *, suspect: bool = False, by: Store | None = None) -> Job:
        """The one job that a claim of one slot gets."""
        (job,) = (await self.claim(route, suspect=suspect, by=by)).jobs
        return job

    async def settle(self, *settles: Settle, by: Store | None = None) -> tuple[bool, ...]:
        return (await (by or self.store).turn(settles, [])).settled

    async def let_a_millisecond_pass(self) -> None:
        """Until the server's clock shows another one."""
        began = await self.redis.time()
        while (now := await self.redis.time())[1] // 1000 == began[1] // 1000:
            assert now >= began

    async def deliver(self, route: str) -> str:
        """Claim and deliver one job; its id."""
        job = await self.take(route)
        assert await self.settle(Settle("delivered", job.id, job.token)) == (True,)
        return job.id

    async def kill(self, job: Job, reason: str = "permanent") -> None:
        """Make a dead letter of a job that is leased."""
        assert await self.settle(Settle("dead", job.id, job.token, reason, "410", "gone")) == (
            True,
        )

    async def state(self, job_id: str) -> str | None:
        return await self.field(job_id, "state")

    async def field(self, job_id: str, name: str) -> str | None:
        found = await self.redis.hget(KEYS.job(job_id), name)
        return found.decode() if isinstance(found, bytes) else None

    async def let_lease_end(self, *job_ids: str) -> None:
        """As if the lease had run out a second ago."""
        for job_id in job_ids:
            await self._put_into_the_past(job_id, "processing")

    async def let_delay_end(self, *job_ids: str) -> None:
        """As if the delay had been over for a second."""
        for job_id in job_ids:
            await self._put_into_the_past(job_id, "delayed")

    async def _put_into_the_past(self, job_id: str, place: str) -> None:
        past = await self.now() - 1000
        await self.redis.zadd(KEYS.route(route_of(job_id), place), {job_id: past}, xx=True)
        await self.redis.hset(KEYS.job(job_id), "due_ms", str(past))

    async def let_expire(self, *update_ids: int | str) -> None:
        """As if the updates had expired a second ago."""
        past = await self.now() - 1000
        for update_id in update_ids:
            await self.redis.zadd(f"{KEYS.tag}:expiry", {str(update_id): past}, xx=True)
            await self.redis.hset(KEYS.update(str(update_id)), "expires_ms", str(past))

    async def let_heartbeat_lapse(self, instance: str, elder: str | None = None) -> None:
        """As if the instance, or the process `elder` that it replaced, had been silent for a
        minute."""
        silent = await self.now() - 60_000
        name, value = (
            ("heartbeat", f"{silent}") if elder is None else (f"old:{elder}", f"{silent} boot 42")
        )
        await self.redis.hset(f"{KEYS.tag}:instance:{instance}", name, value)

    async def let_be_forgotten(self, update_id: int) -> None:
        """As if the mark that the update was seen had ended."""
        await self.redis.delete(f"{KEYS.tag}:seen:{update_id // 8192}")

    async def let_clock_tick(self) -> None:
        """Until the server's clock shows another millisecond."""
        now = await self.now()
        while await self.now() == now:
            pass

    async def now(self) -> int:
        seconds, micros = await self.redis.time()
        return int(seconds) * 1000 + int(micros) // 1000


def fake_world() -> World:
    """An empty store on fakeredis."""
    server = fakeredis.FakeServer()
    return World(lambda: fake_redis(server), fake_script)


async def real_world(server: Server) -> World:
    """An empty store on a real server, with its usual settings."""
    found = World(lambda: connect(server.url), script)
    await found.redis.flushall()
    await found.redis.config_set("maxmemory", "0")
    return found
