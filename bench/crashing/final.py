"""What a run leaves in the store."""

import asyncio
import sys
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from redis.asyncio import Redis

from bench.crashing.record import Dead
from bench.crashing.updates import ROUTES
from bench.machine import ROOT
from twr.edges.store import Identity, open_store
from twr.edges.store.keys import Keys

sys.path.append(str(ROOT / "tests"))
from store.invariants import LIVE, Picture, leftovers, read, violations

KEYS = Keys("twr", "crash")
# So long nothing may be delivered before the rest counts as stuck.
PATIENCE = 45.0
# What scripts, connections and the marks of seen updates may add to an empty store, bytes.
MORE_MEMORY = 1_500_000


class Final:
    """The store of a run, looked at from outside; an async context manager."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._redis = Redis.from_url(url)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._redis.aclose()

    async def memory(self) -> int:
        """What its data takes, bytes."""
        info = await self._redis.info("memory")
        return int(info["used_memory_dataset"])

    async def settled(self) -> bool:
        """Wait until nothing waits any more; False when nothing moves."""
        least, moved = sys.maxsize, time.monotonic()
        while (left := await self._waiting()) > 0:
            if left < least:
                least, moved = left, time.monotonic()
            if time.monotonic() - moved > PATIENCE:
                return False
            await asyncio.sleep(0.1)
        return True

    async def _waiting(self) -> int:
        counts = [await self._redis.zcard(KEYS.route(name, "all")) for name in ROUTES]
        return sum(counts)

    async def picture(self) -> Picture:
        """All its keys."""
        return await read(self._redis, KEYS)

    async def empty(self, names: Iterable[str]) -> list[str]:
        """Drop these dead letters; what is there all the same."""
        who = Identity("crash run", "crash run")
        store = open_store(self._url, prefix="twr", bot="crash", identity=who, dedup_ttl=90_000)
        await store.dead_letters.drop(list(names))
        await store.close()
        return leftovers(await self.picture())


def dead(picture: Picture) -> list[Dead]:
    """The dead letters, their deaths on our clock."""
    clock = time.monotonic() - time.time()
    return [
        Dead(
            int(name.partition("/")[0]),
            name.partition("/")[2],
            picture.jobs.get(name, {}).get("reason", "unknown"),
            died / 1000 + clock,
            int(picture.jobs.get(name, {}).get("crashes", 0)),
        )
        for name, died in picture.dead.items()
    ]


def stuck(picture: Picture) -> list[str]:
    """What still waits, and each rule of the store that does not hold."""
    live = [f"{n}: {job.get('state')}" for n, job in picture.jobs.items() if job["state"] in LIVE]
    return live + violations(picture)
