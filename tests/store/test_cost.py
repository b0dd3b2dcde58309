"""No script holds the server for long, however much lies in it."""

import sys
from pathlib import Path
from typing import Any

import pytest

from store.world import KEYS, LEASE, World, arrival
from twr.core.jobs import Arrival, Claim, Destination, Settle
from twr.edges.store import Store

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells of processor time"),
]

MANY = 100_000
LIMIT_MS = 50


class Watch:
    """The processor time that the server spent on each script, in milliseconds.

    Not what its slow log tells: that counts what other processes took from it as well. What a
    virtual machine lost to its neighbours cannot be told apart: the two longest do not count.
    """

    def __init__(self, pid: int) -> None:
        self._time = Path(f"/proc/{pid}/task/{pid}/schedstat")
        self._took: dict[str, list[float]] = {}

    def attach(self, store: Store) -> Store:
        client = store._client
        run = client.run

        async def watched(name: str, *args: str | bytes | int, resend: bool = False) -> Any:
            before = self._spent()
            answer = await run(name, *args, resend=resend)
            self._took.setdefault(name, []).append(self._spent() - before)
            return answer

        client.run = watched  # type: ignore[method-assign]
        return store

    def _spent(self) -> float:
        return int(self._time.read_text().split()[0]) / 1e6

    def too_long(self) -> dict[str, float]:
        third = {name: sorted(took)[-3:][0] for name, took in self._took.items()}
        return {name: took for name, took in third.items() if took > LIMIT_MS}


async def fill(world: World, arrivals: list[Arrival]) -> None:
    for start in range(0, len(arrivals), 200):
        await world.accept(*arrivals[start : start + 200])


@pytest.fixture
async def watch(real: World) -> Watch:
    """Watches the first process of the world."""
    found = Watch(int((await real.redis.info("server"))["process_id"]))
    found.attach(real.store)
    return found


def many(count: int, *, ordered: bool, expires_after: int = 3600) -> list[Arrival]:
    to = Destination("a", ordered, 10 * MANY)
    return [arrival(n, to, expires_after=expires_after, body=b"{}") for n in range(count)]


async def put_into_the_past(world: World, place: str) -> None:
    """All of a sorted set at once: every score becomes 0."""
    key = KEYS.route("a", place)
    await world.redis.zunionstore(key, {key: 0})


@pytest.mark.slow
async def test_100_000_retries_due_at_once(real: World, watch: Watch) -> None:
    """Claims promote a few at a time, and every one is delivered."""
    await fill(real, many(MANY, ordered=False))
    jobs = (await real.claim("a", 200)).jobs
    while jobs:
        retries = [Settle("retry", job.id, job.token, "3600000", "500", "") for job in jobs]
        jobs = (await real.store.turn(retries, [Claim("a", 200, LEASE)])).claimed[0].jobs
    assert await real.redis.zcard(KEYS.route("a", "delayed")) == MANY
    await put_into_the_past(real, "delayed")
    delivered = 0
    jobs = (await real.claim("a", 32)).jobs
    while delivered < 5000:
        settles = [Settle("delivered", job.id, job.token) for job in jobs]
        delivered += len(settles)
        jobs = (await real.store.turn(settles, [Claim("a", 32, LEASE)])).claimed[0].jobs
        assert len(jobs) == 32
    assert (await real.store.stats()).routes[0].waiting == MANY - delivered
    for _ in range(3):
        await real.store.sweep()
        await real.store.repair("a")
    assert watch.too_long() == {}


@pytest.mark.slow
async def test_100_000_in_one_lane(real: World, watch: Watch) -> None:
    """A lane is worked off from its head, repaired, moved, and expires, in short steps."""
    await fill(real, many(MANY, ordered=True))
    assert await real.deliver("a") == "0/a"
    for _ in range(3):
        assert await real.store.repair("a") == ()
    job = await real.take("a")
    assert await real.store.move("a", "b", ordered=True) == (MANY - 2, 1)
    await real.settle(Settle("delivered", job.id, job.token))
    assert await real.deliver("b") == "2/b"
    assert watch.too_long() == {}


@pytest.mark.slow
async def test_100_000_expired_in_one_lane(real: World, watch: Watch) -> None:
    """A chat whose target was away for a day: its lane empties from the front."""
    await fill(real, many(MANY, ordered=True, expires_after=0))
    assert len((await real.store.sweep()).expired) == MANY
    left = await real.redis.keys(KEYS.route("a", "*"))
    assert left == []
    assert watch.too_long() == {}


@pytest.mark.slow
async def test_10_000_in_flight(real: World, watch: Watch) -> None:
    """A crash with many in flight is recovered in steps, and so are leases that ran out."""
    await real.store.beat(["a"], take_over=True)
    await fill(real, many(10_000, ordered=False))
    for _ in range(20):
        await real.claim("a", 500)
    new = watch.attach(real.process("n2"))
    await new.beat(["a"], take_over=True)
    for _ in range(3):
        assert await new.reclaim([]) == ()
    assert (await new.recover([])).reaped == 10_000
    for _ in range(20):
        await real.claim("a", 500)
    await put_into_the_past(real, "processing")
    other = watch.attach(real.process("m1", "vps-2"))
    assert (await other.sweep()).reaped == 10_000
    assert watch.too_long() == {}


@pytest.mark.slow
async def test_100_000_expired_at_once(real: World, watch: Watch) -> None:
    """Sweeps bury them in steps, stats count them, trims and drops take them away."""
    await fill(real, many(MANY, ordered=False, expires_after=0))
    assert len((await real.store.sweep()).expired) == MANY
    for _ in range(3):
        assert (await real.store.stats()).dead == {("a", "expired"): MANY}
    ids = [letter.id async for page in real.store.dead_letters.pages() for letter in page]
    assert len(ids) == MANY
    assert await real.store.dead_letters.drop(ids[:10_000]) == 10_000
    assert await real.store.dead_letters.trim(3600, 1000) == MANY - 11_000
    assert watch.too_long() == {}
