"""The store: Redis or Valkey. Each method is one atomic step, or says how it is made of some."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from twr.core.jobs import (
    Accepted,
    Arrival,
    Beat,
    Claim,
    Claimed,
    Elder,
    Job,
    Offer,
    RouteStats,
    Settle,
    Stats,
    Swept,
    Turn,
)
from twr.edges.store.client import Client, open_client
from twr.edges.store.dead_letters import DeadLetters
from twr.edges.store.keys import SEEN_PAGE, Keys
from twr.errors import StoreError, StoreUnavailable

__all__ = ["Identity", "Store", "open_store"]

# What one call may carry, so that no script runs long and no answer is huge.
MOST_BYTES = 4 * 1024 * 1024
MOST_PER_SWEEP = 200


@dataclass(frozen=True, slots=True)
class Identity:
    """Who claims: the instance's name, a nonce of this process, and where the process lives."""

    instance: str
    nonce: str
    boot_id: str = ""
    pid: int = 0


class Store:
    """All that twr keeps outside its own process, of one bot. Raises StoreError and its kinds."""

    def __init__(self, client: Client, keys: Keys, identity: Identity, dedup_ttl: float) -> None:
        self._client = client
        self._keys = keys
        self._identity = identity
        self._dedup_ttl_ms = int(dedup_ttl * 1000)
        self._repair_ranks: dict[str, int] = {}
        self.dead_letters = DeadLetters(client, keys)

    async def accept(
        self, arrivals: Sequence[Arrival], offers: Sequence[Offer] = ()
    ) -> list[Accepted]:
        """Store updates and their jobs, each update once; lease what may start at once.

        Survives: a crash before it stores nothing, a crash after it everything. It is sent a
        second time when the connection broke: what was stored then answers as seen before.
        """
        args: list[str | bytes | int] = [
            self._dedup_ttl_ms,
            self._identity.instance,
            self._identity.nonce,
            len(offers),
            len(arrivals),
        ]
        for offer in offers:
            args += (offer.route, offer.slots, int(offer.lease * 1000))
        for arrival in arrivals:
            page, bit = divmod(arrival.update_id, SEEN_PAGE)
            args += (arrival.update_id, page, bit, arrival.type, arrival.lane)
            args += (arrival.expires_after * 1000, arrival.body, len(arrival.destinations))
            for to in arrival.destinations:
                args += (to.route, 1 if to.ordered else 0, to.max_pending)
        now_ms, *answers = await self._client.run("accept", *args, resend=True)
        return [
            self._accepted(a, answer, now_ms) for a, answer in zip(arrivals, answers, strict=True)
        ]

    def _accepted(self, arrival: Arrival, answer: int | bytes, now_ms: int) -> Accepted:
        if isinstance(answer, int):
            return Accepted(None if answer < 0 else answer)
        deliveries, *numbers = map(int, answer.split())
        expires_ms = now_ms + arrival.expires_after * 1000
        token = f"{self._identity.nonce}:1.{now_ms}"
        leased: list[Job] = []
        ready: list[str] = []
        for n in numbers:
            name = arrival.destinations[abs(n) - 1].route
            if n < 0:
                ready.append(name)
            else:
                job_id = f"{arrival.update_id}/{name}"
                leased.append(Job(job_id, token, 0, now_ms, expires_ms, arrival.body))
        return Accepted(deliveries, tuple(leased), tuple(ready))

    async def turn(self, settles: Sequence[Settle], claims: Sequence[Claim]) -> Turn:
        """Settle, then claim, in one step. Never sent twice: leases of a lost answer are found by
        `reclaim`, and settles of one may be handed in again (they are then refused)."""
        args: list[str | bytes | int] = [
            self._identity.instance,
            self._identity.nonce,
            MOST_BYTES,
            len(settles),
            len(claims),
        ]
        for s in settles:
            args += (s.kind, s.id, s.token, s.argument, s.status, s.error, s.answer)
        for c in claims:
            args += (c.route, c.slots, int(c.lease * 1000), 1 if c.suspect else 0)
        now_ms, *rest = await self._client.run("turn", *args)
        settled = tuple(held == 1 for held in rest[: len(settles)])
        answers = zip(claims, rest[len(settles) :], strict=True)
        return Turn(
            now_ms, settled, tuple(_claimed(claim.route, answer) for claim, answer in answers)
        )

    async def beat(self, routes: Sequence[str], *, take_over: bool = False) -> Beat:
        """Show that this process lives and serves these routes; `take_over` at its start: that
        asks for the store's time first, so that it can't be carried out after another one's."""
        who = self._identity
        asked = await self._now_ms() if take_over else 0
        now_ms, ours, *elders = await self._client.run(
            "instance", who.instance, who.nonce, who.boot_id, who.pid, asked, *routes
        )
        found = (
            Elder(nonce.decode(), int(beat), boot.decode(), int(pid or 0))
            for nonce, beat, boot, pid in elders
        )
        return Beat(now_ms, ours == 1, tuple(found))

    async def recover(self, living: Sequence[str]) -> Swept:
        """Requeue leases under our name of processes other than this one and those of the nonces
        `living`: a crash for each job. Made of steps that can be repeated; what a crash leaves
        undone the next start does."""
        done = 0
        poison: list[str] = []
        more, damaged = 1, []
        living = [self._identity.nonce, *living]
        while more:
            count, more, dead, damaged = await self._client.run(
                "recover", self._identity.instance, MOST_PER_SWEEP, *living
            )
            done += count
            poison += _texts(dead)
        return Swept(done, (), tuple(poison), _texts(damaged))

    async def reclaim(self, held: Sequence[str]) -> tuple[str, ...]:
        """Requeue this process's own leases but those `held`, as claims whose answer was lost
        leave them; the ids. Only while no claim and no offer of ours is under way. What was leased
        after the first of its two steps, which asks for the time, the second leaves alone."""
        asked = await self._now_ms()
        return _texts(await self._client.run("reclaim", self._identity.nonce, asked, *held))

    async def sweep(self) -> Swept:
        """Requeue leases that ran out, bury what expired. Made of steps that can be repeated."""
        reaped, more, damaged = 0, 1, []
        expired: list[str] = []
        poison: list[str] = []
        while more:
            count, more, late, dead, damaged = await self._client.run(
                "reap", self._identity.nonce, MOST_PER_SWEEP
            )
            reaped += count
            expired += _texts(late)
            poison += _texts(dead)
        return Swept(reaped, tuple(expired), tuple(poison), _texts(damaged))

    async def repair(self, route: str) -> tuple[str, ...]:
        """Give jobs of the route their place again; the ids that had lost it. Each call looks at
        the oldest and at some more, from where the last one ended."""
        rank = self._repair_ranks.get(route, 0)
        rank, *names = await self._client.run("repair", route, rank, MOST_PER_SWEEP)
        self._repair_ranks[route] = rank
        return _texts(names)

    async def stats(self) -> Stats:
        """What waits where. Costs the same whatever the number of jobs."""
        now_ms, *routes, dead, died = await self._client.run("stats", resend=True)
        counted = tuple(_route_stats(fields) for fields in routes)
        return Stats(now_ms, counted, _by_reason(dead), _by_reason(died))

    async def move(self, old: str, new: str, *, ordered: bool) -> tuple[int, int]:
        """Move waiting work to another route; how many were moved and how many had to stay.
        Made of steps that can be repeated."""
        moved = stayed = 0
        more = 1
        while more:
            done, skipped, more = await self._client.run(
                "move", old, new, int(ordered), stayed, MOST_PER_SWEEP
            )
            moved, stayed = moved + done, stayed + skipped
        return moved, stayed

    async def load_alerts(self) -> dict[str, str]:
        """The stored state of each alert."""
        found = await self._client.call(self._client.redis.hgetall(self._keys.alerts))
        return {name.decode(): text.decode() for name, text in found.items()}

    async def save_alerts(self, changed: Mapping[str, str | None]) -> None:
        """Write the states given, forget those that are None. One step each."""
        kept = {name: text for name, text in changed.items() if text is not None}
        mapping: Any = kept
        gone = [name for name, text in changed.items() if text is None]
        redis = self._client.redis
        if kept:
            await self._client.call(redis.hset(self._keys.alerts, mapping=mapping))
        if gone:
            await self._client.call(redis.hdel(self._keys.alerts, *gone))

    async def claim_probe(self, ttl: float) -> bool:
        """Whether this instance is the one that probes, for the next `ttl` seconds.

        By name, so that one that is started again after a crash goes on at once.
        """
        redis, key, me = self._client.redis, self._keys.probe, self._identity.instance
        ttl_ms = int(ttl * 1000)
        if await self._client.call(redis.set(key, me, nx=True, px=ttl_ms)):
            return True
        if await self._client.call(redis.get(key)) != me.encode():
            return False
        return bool(await self._client.call(redis.pexpire(key, ttl_ms)))

    async def silences(self, instances: Sequence[str]) -> dict[str, float | None]:
        """For how many seconds each instance has not beaten; None for one that is not known (any
        more: that takes a month)."""
        pipe = self._client.redis.pipeline(transaction=False)
        for instance in instances:
            pipe.hget(self._keys.instance(instance), "heartbeat")
        now_ms = await self._now_ms()
        beats = await self._client.call(pipe.execute())
        return {
            name: None if beat is None else max(0, now_ms - int(beat)) / 1000
            for name, beat in zip(instances, beats, strict=True)
        }

    async def load_username(self) -> str | None:
        """The bot's username, if it was ever learnt."""
        found = await self._client.call(self._client.redis.get(self._keys.username))
        return found.decode() if found else None

    async def save_username(self, name: str) -> None:
        """Keep the bot's username for starts at which Telegram can't be asked."""
        await self._client.call(self._client.redis.set(self._keys.username, name))

    async def _now_ms(self) -> int:
        seconds, microseconds = await self._client.call(self._client.redis.time())
        return int(seconds) * 1000 + int(microseconds) // 1000

    async def ping(self) -> None:
        """Raise unless the store answers."""
        await self._client.call(self._client.redis.execute_command("PING"))

    async def info(self) -> dict[str, str]:
        """The server's INFO, as text by name."""
        raw = await self._client.call(self._client.redis.info())
        return {name: str(value) for name, value in raw.items()}

    async def setting(self, name: str) -> str | None:
        """A configuration value of the server; None where it does not tell (managed servers)."""
        try:
            found = await self._client.call(self._client.redis.config_get(name))
        except StoreUnavailable:
            raise
        except StoreError:
            return None
        return str(found.get(name)) if name in found else None

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()


def _texts(names: Sequence[bytes]) -> tuple[str, ...]:
    return tuple(name.decode() for name in names)


def _claimed(route: str, answer: Sequence[Any]) -> Claimed:
    ready, suspects, next_due, expired, gone, *flat = answer
    jobs = (
        Job(name.decode(), token.decode(), int(attempts), int(accepted), int(expires), body)
        for name, token, attempts, accepted, expires, body in _chunks(flat, 6)
    )
    return Claimed(
        route=route,
        jobs=tuple(jobs),
        ready=ready,
        suspects=suspects,
        next_due=None if next_due < 0 else next_due,
        expired=_texts(expired),
        gone=_texts(gone),
    )


def _chunks(flat: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    return (flat[n : n + size] for n in range(0, len(flat), size))


def _route_stats(fields: Sequence[Any]) -> RouteStats:
    name, served, ready, delayed, processing, waiting, oldest, suspects = fields
    oldest_ms = int(oldest)
    return RouteStats(
        name.decode(), int(served), int(ready), int(delayed), int(processing), int(waiting),
        None if oldest_ms < 0 else oldest_ms, int(suspects),
    )  # fmt: skip


def _by_reason(flat: Sequence[bytes]) -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = {}
    for name, count in zip(flat[::2], flat[1::2], strict=True):
        route, _, reason = name.decode().rpartition("/")
        if int(count) > 0:
            found[route, reason] = int(count)
    return found


def open_store(url: str, *, prefix: str, bot: str, identity: Identity, dedup_ttl: float) -> Store:
    """A store at `url`, not yet connected. The URL may hold a password: never log it."""
    keys = Keys(prefix, bot)
    return Store(open_client(url, keys.tag), keys, identity, dedup_ttl)
