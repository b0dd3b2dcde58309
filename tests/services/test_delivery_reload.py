"""The delivery loop when it drains, takes offers, or changes its routes."""

import asyncio

import pytest

from services.flying import AWAY, Bench, a_route, job, running
from targets import Target, answering, hanging, held
from twr.core.breaker import BreakerPolicy
from twr.core.jobs import Accepted
from twr.edges.sender import Sender
from twr.errors import StoreUnavailable
from twr.services.delivery.flights import Flights
from until import until

pytestmark = pytest.mark.anyio


async def test_a_drain_lets_what_flies_land() -> None:
    """It claims nothing more, and settles all."""
    gate = asyncio.Event()
    async with Target(held(gate)) as target:
        async with running(a_route(target, concurrency=2)) as bench:
            bench.add(*(job(n) for n in range(5)))
            await target.has(2)
            bench.stop.set()
            gate.set()
        assert len(target.received) == 2
        assert [kind for _, kind, _ in bench.store.kinds()] == ["delivered"] * 2
        assert bench.delivery.held() == 0


async def test_what_outlasts_the_grace_goes_back_to_the_front() -> None:
    """No attempt is counted."""
    async with Target(hanging()) as target:
        async with running(a_route(target), grace=0.05) as bench:
            bench.add(job(1), job(2))
            await target.has(2)
        assert sorted(bench.store.kinds()) == [
            ("1/shop", "release", "front"),
            ("2/shop", "release", "front"),
        ]


async def test_a_drain_sleeps_while_it_waits() -> None:
    """The loop does not spin."""
    async with Target(hanging()) as target:
        async with running(a_route(target), grace=0.3) as bench:
            bench.add(job(1))
            await target.has(1)
            bench.time.seconds += 100
            before = bench.beats
        assert bench.beats - before < 10


async def test_jobs_of_an_accept_that_ends_after_the_loop_go_back() -> None:
    """The store has leased them to us; they wait for nobody."""
    async with Target() as target:
        bench = Bench()
        await bench.configure(a_route(target))
        bench.start()
        await until(lambda: bench.beats > 1)
        with bench.delivery.offering({"shop"}) as (offers, start):
            assert [offer.slots for offer in offers] == [32]
            bench.stop.set()
            await asyncio.sleep(0)
            start(Accepted(1, (bench.store.lease(job(1)),)))
        await bench.drain()
        await bench.delivery.close()
        assert bench.store.leased == {}


async def test_an_offered_slot_is_kept_free() -> None:
    """What is offered to an accept is not claimed as well, and what it leased starts at once."""
    async with (
        Target(hanging()) as target,
        running(a_route(target, concurrency=1), grace=0.05) as bench,
    ):
        await until(lambda: bench.idle(), 10, "an idle route")
        with bench.delivery.offering({"shop", "unknown"}) as (offers, start):
            assert [(offer.route, offer.slots, offer.lease) for offer in offers] == [
                ("shop", 1, 20.0)
            ]
            bench.add(job(2))
            turns = bench.beats
            await until(lambda: bench.beats > turns, 10, "a turn")
            assert bench.store.leased == {}
            start(Accepted(1, (bench.store.lease(job(1)),)))
        await target.has(1)
        assert target.ids == [1]


async def test_a_poll_that_meets_offered_slots_comes_next() -> None:
    """What waits is not held up by accepts that follow each other: the next is offered nothing."""
    async with (
        Target(hanging()) as target,
        running(a_route(target, concurrency=1), grace=0.05) as bench,
    ):
        await until(bench.idle, 10, "an idle route")
        with bench.delivery.offering({"shop"}):
            bench.store.add(job(1))
            bench.pass_time(1.0)
            turns = bench.beats
            await until(lambda: bench.beats > turns, 10, "a turn")
            with bench.delivery.offering({"shop"}) as (offers, _):
                assert offers == []
        await target.has(1)


async def test_what_is_due_goes_before_what_arrives() -> None:
    """The slots of a route are not offered once a retry of it is due."""
    async with Target() as target, running(a_route(target)) as bench:
        await until(bench.idle, 10, "an idle route")
        run = bench.delivery.routes()[0]
        run.next_due = bench.time.clock().monotonic() + 1.0
        with bench.delivery.offering({"shop"}) as (offers, _):
            assert len(offers) == 1
        bench.time.seconds += 1.0
        with bench.delivery.offering({"shop"}) as (offers, _):
            assert offers == []


@pytest.mark.parametrize(
    ("count", "ago", "fast"), [(4, 0.0, True), (5, 0.0, False), (4, 0.03, False)]
)
async def test_few_deliveries_that_follow_each_other_turn_fast(
    count: int, ago: float, fast: bool
) -> None:
    """At most four, the last of which ended at most a fiftieth of a second ago."""
    gate = asyncio.Event()
    async with Target() as target, running(a_route(target)) as bench:
        assert not bench.delivery.turns_fast()
        bench.add(job(1))
        await bench.settles(1)
        assert not bench.delivery.turns_fast()
        target.behaviour = held(gate)
        bench.add(*(job(n) for n in range(2, 2 + count)))
        await target.has(1 + count)
        bench.time.seconds += ago
        assert bench.delivery.turns_fast() is fast
        gate.set()


@pytest.mark.parametrize("name", ["shop", "other"])
async def test_a_flight_that_starts_amid_a_reload_is_delivered(name: str) -> None:
    """Whatever of its route changes: its connections are closed only after it, and no attempt is
    counted."""
    async with Target() as target, running(a_route(target, max_attempts=1)) as bench:
        await until(bench.idle, 10, "an idle route")
        with bench.delivery.offering({"shop"}) as (_, start):
            start(Accepted(1, (bench.store.lease(job(1)),)))
            await bench.configure(a_route(target, name, max_attempts=1, concurrency=5))
        assert await bench.settles(1) == [("1/shop", "delivered", "")]


async def test_a_flight_that_starts_while_old_connections_close_is_delivered() -> None:
    """The new ones are in place before the old ones are closed."""
    async with Target() as target, running(a_route(target, max_attempts=1)) as bench:
        bench.add(job(1))
        await bench.settles(1)
        reload = asyncio.create_task(
            bench.configure(a_route(target, max_attempts=1, concurrency=5))
        )
        count = 1
        while not reload.done():
            count += 1
            bench.add(job(count))
            await asyncio.sleep(0)
        kinds = {kind for _, kind, _ in await bench.settles(count)}
        assert (kinds, count > 1) == ({"delivered"}, True)


async def test_all_routes_change_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the connections of one take to close."""
    gate = asyncio.Event()
    close = Sender.close

    async def slow(sender: Sender) -> None:
        await gate.wait()
        await close(sender)

    monkeypatch.setattr(Sender, "close", slow)
    async with Target() as target, running(a_route(target, "a"), a_route(target, "b")) as bench:
        reload = asyncio.create_task(
            bench.configure(*(a_route(target, name, concurrency=7) for name in "abc"))
        )
        await asyncio.sleep(0)
        runs = [(run.route.name, run.route.concurrency) for run in bench.delivery.routes()]
        assert (runs, reload.done()) == ([("a", 7), ("b", 7), ("c", 7)], False)
        gate.set()
        await reload


async def test_a_flight_keeps_to_the_timeout_that_its_lease_was_made_for() -> None:
    """A reload that makes it longer meanwhile would let the POST outlast the lease."""
    async with (
        Target(hanging()) as target,
        running(a_route(target, timeout=0.2, max_attempts=1)) as bench,
    ):
        await until(bench.idle, 10, "an idle route")
        with bench.delivery.offering({"shop"}) as (_, start):
            await bench.configure(a_route(target, timeout=60.0, max_attempts=1))
            start(Accepted(1, (bench.store.lease(job(1)),)))
        await bench.settles(1)
        (settle,) = bench.store.settled
        assert (settle.kind, settle.error) == ("dead", "timeout after 0.2s")


async def test_what_an_old_target_still_answers_says_nothing_of_the_new_one() -> None:
    """A request that hung there does not pause the route."""
    policy = BreakerPolicy(1, 5.0, 60.0)
    async with (
        Target(hanging()) as old,
        Target() as new,
        running(a_route(old, timeout=0.3, breaker=policy)) as bench,
    ):
        bench.add(job(1))
        await old.has(1)
        await bench.configure(a_route(new, timeout=0.3, breaker=policy))
        assert (await bench.settles(1))[0][1] == "retry"
        assert bench.breaker() == "closed"


async def test_flights_that_are_ended_before_they_have_begun_are_given_back() -> None:
    """Their slots are free again."""
    async with Target() as target:
        bench = Bench()
        await bench.configure(a_route(target))
        run = bench.delivery.routes()[0]
        flights = Flights(bench.given, lambda: None)
        async with flights.within():
            now = bench.time.clock().monotonic()
            flights.start(run, job(1), run.lease, bench.time.now_ms, now)
            assert run.flying == 1
        assert run.flying == 0
        assert [(settle.id, settle.kind) for settle in flights.take(9)] == [("1/shop", "release")]
        await bench.delivery.close()


async def test_an_accept_that_fails_may_have_leased() -> None:
    """Its jobs are looked for, and delivered."""
    async with Target() as target, running(a_route(target)) as bench:
        await until(lambda: bench.idle(), 10, "an idle route")
        bench.store.lease(job(1))
        with pytest.raises(StoreUnavailable), bench.delivery.offering({"shop"}):
            raise AWAY
        assert await bench.settles(1) == [("1/shop", "delivered", "")]


async def test_an_update_that_the_store_lost_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is left to deliver, but nobody has to find out by himself."""
    async with Target() as target, running(a_route(target)) as bench:
        bench.store.gone.add("1/shop")
        bench.add(job(1), job(2))
        assert await bench.settles(1) == [("2/shop", "delivered", "")]
    lost = [record for record in caplog.records if record.levelname == "ERROR"]
    assert [record.message for record in lost] == ["update lost by the store route=shop update=1"]


async def test_accepts_without_offers_do_not_hold_up_a_reclaim() -> None:
    """Under a constant stream of updates the loop finds its lost leases all the same."""
    async with Target() as target, running(a_route(target)) as bench:
        await until(lambda: bench.idle(), 10, "an idle route")
        with bench.delivery.offering({"nobody"}):
            bench.store.lose = True
            bench.add(job(1))
            assert await bench.settles(1) == [("1/shop", "delivered", "")]


async def test_a_route_that_goes_lets_its_flights_end() -> None:
    """What is claimed for it afterwards is given back."""
    gate = asyncio.Event()
    async with Target(held(gate)) as target, running(a_route(target)) as bench:
        bench.add(job(1))
        await target.has(1)
        await bench.configure(a_route(target, "other"))
        gate.set()
        assert await bench.settles(1) == [("1/shop", "delivered", "")]


async def test_a_new_target_starts_with_a_closed_breaker() -> None:
    """The old one's absence says nothing of it."""
    async with Target(answering(503)) as old, Target() as new:
        policy = BreakerPolicy(1, 5.0, 60.0)
        async with running(a_route(old, breaker=policy)) as bench:
            bench.add(job(1), job(2))
            await bench.settles(2)
            assert bench.breaker() == "open"
            await bench.configure(a_route(new, breaker=policy))
            bench.add(job(3))
            await new.has(1)
            assert bench.breaker() == "closed"
