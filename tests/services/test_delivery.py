"""The delivery loop with targets on real sockets: attempts, leases, slots, pauses."""

import asyncio

import pytest

from services.flying import NOW, a_route, job, running
from targets import Target, answering, by_turns, hanging, held
from twr.core.breaker import BreakerPolicy
from twr.core.signing import sign
from until import until

pytestmark = pytest.mark.anyio


async def test_the_request_is_exactly_this() -> None:
    """Two signatures while a secret is rotated, the target's own secret, the attempt's number."""
    async with Target() as target, running(a_route(target), token="own-secret") as bench:
        bench.add(job(4242, attempts=2))
        assert await bench.settles(1) == [("4242/shop", "delivered", "")]
        (request,) = target.received
    body = b'{"n":4242}'
    signatures = [sign([secret], int(NOW), body) for secret in (b"newer", b"older")]
    assert dict(request.headers) == {
        "Host": f"127.0.0.1:{target.port}",
        "Content-Length": "10",
        "Content-Type": "application/json",
        "X-Webhook-Timestamp": "1788088524",
        "X-Webhook-Signature": ",".join(signatures),
        "X-Telegram-Update-Id": "4242",
        "X-Webhook-Route": "shop",
        "X-Webhook-Attempt": "3",
        "X-Telegram-Bot-Api-Secret-Token": "own-secret",
        "User-Agent": "twr/1",
    }
    assert request.body == body


@pytest.mark.parametrize(
    ("status", "header", "attempts", "kind", "argument"),
    [
        (200, None, 0, "delivered", ""),
        (299, None, 9, "delivered", ""),
        (302, None, 0, "retry", "1000"),
        (404, None, 1, "retry", "2000"),
        (500, None, 2, "retry", "4000"),
        (503, None, 0, "retry", "1000"),
        (503, "30", 0, "retry", "30000"),
        (429, "Sun, 30 Aug 2026 11:16:24 GMT", 0, "retry", "60000"),
        (429, "99999", 0, "retry", "600000"),
        (500, "30", 0, "retry", "1000"),
        (410, None, 0, "dead", "permanent"),
        (500, None, 9, "dead", "attempts"),
        (503, None, 9, "dead", "attempts"),
    ],
)
async def test_what_a_status_settles(
    status: int, header: str | None, attempts: int, kind: str, argument: str
) -> None:
    """Delivered, once more after a delay in milliseconds, or dead for a reason."""
    headers = {} if header is None else {"Retry_After": header}
    async with (
        Target(answering(status, b"", **headers)) as target,
        running(a_route(target)) as bench,
    ):
        bench.add(job(1, attempts=attempts))
        assert await bench.settles(1) == [("1/shop", kind, argument)]
        outcome = kind if kind in ("delivered", "dead") else "failed"
        assert bench.measures.outcomes == [("shop", outcome)]


async def test_a_fault_of_ours_stops_neither_the_others_nor_the_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The job is tried again; a breaker that is open stays so, and may probe again."""
    async with Target(answering(503)) as target:
        shop = a_route(target, breaker=BreakerPolicy(1, 5.0, 60.0))
        async with running(shop) as bench:
            bench.add(job(1))
            await bench.settles(1)
            assert bench.breaker() == "open"
            monkeypatch.setattr("twr.services.delivery.flights.headers", _broken)
            bench.add(job(2))
            bench.pass_time(6)
            assert (await bench.settles(2))[1] == ("2/shop", "retry", "1000")
            assert bench.breaker() == "open"
            monkeypatch.undo()
            target.behaviour = answering()
            bench.add(job(3))
            assert (await bench.settles(3))[2] == ("3/shop", "delivered", "")
            assert bench.breaker() == "closed"


def _broken(*_: object) -> dict[str, str]:
    raise RuntimeError("broken")


@pytest.mark.parametrize(("takes", "posts"), [(9.9, 1), (10.1, 2)])
async def test_a_lease_that_could_end_first_is_given_back(takes: float, posts: int) -> None:
    """The margin is counted from before the claim; nothing is POSTed and no attempt is burned."""
    async with Target() as target, running(a_route(target)) as bench:
        bench.store.takes = takes
        bench.add(job(1))
        kinds = await bench.settles(posts)
    given_back = [("1/shop", "release", "front")] * (posts - 1)
    assert kinds == [*given_back, ("1/shop", "delivered", "")]
    assert len(target.received) == 1


async def test_what_expires_on_its_way_is_not_posted() -> None:
    """It is given back, for the store to bury."""
    async with Target() as target, running(a_route(target)) as bench:
        bench.store.takes = 3.0
        bench.add(job(1, expires_in=2))
        assert (await bench.settles(1))[0] == ("1/shop", "release", "front")
    assert target.received == []


async def test_each_route_has_its_own_slots() -> None:
    """A route that hangs in all of its slots holds up no other."""
    async with (
        Target(hanging()) as hung,
        Target() as target,
        running(a_route(hung, "hung", concurrency=3), a_route(target), grace=0.1) as bench,
    ):
        bench.add(*(job(n, "hung") for n in range(10)))
        await hung.has(3)
        bench.add(*(job(n) for n in range(10)))
        await bench.settles(10)
        assert len(hung.received) == 3


async def test_absences_open_the_breaker_and_burn_nothing_after() -> None:
    """Five in a row; then one probe after the cooldown, each time of another job, doubling."""
    async with (
        Target(answering(503)) as target,
        running(a_route(target, concurrency=1)) as bench,
    ):
        bench.add(*(job(n) for n in range(8)))
        kinds = await bench.settles(5)
        assert [kind for _, kind, _ in kinds] == ["retry"] * 5
        assert bench.breaker() == "open"
        for probe, cooldown in enumerate((5, 10, 20)):
            bench.pass_time(cooldown - 0.1)
            bench.pass_time(0.1)
            kinds = await bench.settles(6 + probe)
            assert kinds[-1] == (f"{5 + probe}/shop", "release", "back")
        target.behaviour = answering()
        bench.pass_time(40)
        await bench.settles(11)
        assert bench.breaker() == "closed"
    assert [request.attempt for request in target.received] == [1] * 11


async def test_nothing_is_sent_while_a_route_is_paused() -> None:
    """However much arrives."""
    async with (
        Target(answering(503)) as target,
        running(a_route(target, breaker=BreakerPolicy(1, 5.0, 60.0))) as bench,
    ):
        bench.add(job(1))
        await bench.settles(1)
        bench.add(*(job(n) for n in range(2, 50)))
        bench.pass_time(4.9)
        turns = bench.beats
        await until(lambda: bench.beats > turns, 10, "a turn of the loop")
        assert len(target.received) == 1


async def test_a_longer_retry_after_prolongs_the_pause() -> None:
    """The probe waits for as long as the target asks."""
    async with (
        Target(answering(503, Retry_After="40")) as target,
        running(a_route(target, breaker=BreakerPolicy(1, 5.0, 60.0))) as bench,
    ):
        bench.add(job(1))
        await bench.settles(1)
        (run,) = bench.delivery.routes()
        assert run.breaker.until == 1040.0


async def test_refusals_never_open_the_breaker() -> None:
    """They reset the row: four absences, a refusal, four absences leave it closed."""
    turns = [answering(503)] * 4 + [answering(500)] + [answering(503)] * 4 + [answering()]
    async with (
        Target(by_turns(*turns)) as target,
        running(a_route(target, concurrency=1)) as bench,
    ):
        bench.add(*(job(n) for n in range(10)))
        await bench.settles(10)
        assert bench.breaker() == "closed"


async def test_a_resumed_route_ramps_up() -> None:
    """One at a time after the probe, then two, then more."""
    gates = [asyncio.Event() for _ in range(4)]
    async with Target(answering(503)) as target:
        shop = a_route(target, breaker=BreakerPolicy(1, 5.0, 60.0))
        async with running(shop, grace=0.1) as bench:
            bench.add(job(0))
            await bench.settles(1)
            target.received.clear()
            target.behaviour = by_turns(answering(), *(held(gate) for gate in gates), hanging())
            bench.add(*(job(n) for n in range(1, 20)))
            bench.pass_time(5)
            await target.has(2)
            assert bench.breaker() == "closed"
            assert [run.flying for run in bench.delivery.routes()] == [1]
            gates[0].set()
            await target.has(4)
            assert [run.flying for run in bench.delivery.routes()] == [2]
            gates[1].set()
            await target.has(6)
            assert [run.flying for run in bench.delivery.routes()] == [3]
