"""The delivery loop when jobs, the store or the loop itself are in trouble."""

import asyncio
from collections import deque
from dataclasses import replace

import pytest

from services.flying import AWAY, Bench, a_route, job, running
from targets import Target, answering, by_turns, hanging, held
from twr.errors import StoreError
from twr.services.delivery.alone import Alone
from until import until

pytestmark = pytest.mark.anyio


async def test_a_suspect_flies_alone() -> None:
    """It waits for the others to land, and the others wait for it."""
    gates = {n: asyncio.Event() for n in (1, 2)}
    async with (
        Target(by_turns(held(gates[1]), held(gates[2]), answering())) as target,
        running(a_route(target)) as bench,
    ):
        bench.add(job(1))
        await target.has(1)
        bench.store.suspects["shop"] = deque([job(2)])
        bench.pass_time(1.1)
        await until(lambda: bench.delivery.routes()[0].suspects == 1, 10, "news of the suspect")
        bench.add(job(3))
        turns = bench.beats
        await until(lambda: bench.beats > turns + 1, 10, "a turn")
        assert target.ids == [1]
        with bench.delivery.offering({"shop"}) as (offers, _):
            assert offers == []
        gates[1].set()
        await target.has(2)
        assert target.ids == [1, 2]
        gates[2].set()
        assert len(await bench.settles(3)) == 3
    assert target.ids == [1, 2, 3]
    assert target.most_at_once == 1


def test_the_others_get_as_long_as_the_suspect_took() -> None:
    """A row of suspects that hang does not stop everything."""
    alone = Alone()
    assert not alone.wanted({}, waits=False, now=100.0)
    assert alone.wanted({}, waits=True, now=103.0)
    alone.began("1/shop")
    assert alone.wanted({"1/shop"}, waits=True, now=110.0)
    assert not alone.wanted({}, waits=True, now=112.0)
    assert not alone.wanted({}, waits=True, now=123.9)
    assert alone.wanted({}, waits=True, now=124.0)


async def test_settles_go_before_claims_after_an_outage() -> None:
    """They are kept, in their order, and sent with the first call that works."""
    gate = asyncio.Event()
    async with Target(held(gate)) as target, running(a_route(target)) as bench:
        bench.add(job(1), job(2))
        await target.has(2)
        bench.store.errors.extend([AWAY] * 3)
        bench.store.add(job(3))
        gate.set()
        kinds = await bench.settles(3)
        assert {name for name, _, _ in kinds[:2]} == {"1/shop", "2/shop"}
        assert kinds[2] == ("3/shop", "delivered", "")
        assert bench.measures.stale == 0
        assert bench.measures.errors == 3
    assert target.ids.count(3) == 1


async def test_claims_whose_answer_was_lost_are_reclaimed() -> None:
    """They are delivered, once, and what flies meanwhile is left alone."""
    gate = asyncio.Event()
    async with (
        Target(by_turns(held(gate), answering())) as target,
        running(a_route(target)) as bench,
    ):
        bench.add(job(1))
        await target.has(1)
        bench.store.lose = True
        bench.add(job(2))
        assert await bench.settles(1) == [("2/shop", "delivered", "")]
        assert bench.store.reclaims[-1] == ("1/shop",)
        gate.set()
        assert len(await bench.settles(2)) == 2
    assert target.ids == [1, 2]


async def test_settles_whose_answer_was_lost_are_no_stale_ones() -> None:
    """The store refuses them the second time, and nobody is alarmed."""
    async with Target() as target, running(a_route(target)) as bench:
        bench.add(job(1))
        await target.has(1)
        bench.store.lose = True
        await bench.settles(1)
        bench.add(job(2))
        await bench.settles(2)
        assert (bench.measures.stale, bench.delivery.held()) == (0, 0)


async def test_a_fenced_settle_is_counted() -> None:
    """A late answer, when somebody else has the job by now, changes nothing."""
    gate = asyncio.Event()
    async with Target(held(gate)) as target, running(a_route(target)) as bench:
        bench.add(job(1))
        await target.has(1)
        bench.store.leased["1/shop"] = replace(bench.store.leased["1/shop"], token="other:1")
        gate.set()
        await until(lambda: bench.measures.stale == 1, 10, "a stale settle")
        assert bench.store.settled == []


@pytest.mark.parametrize("place", ["1/shop", "bad"])
async def test_a_damaged_key_isolates(place: str) -> None:
    """Whatever a turn cannot do with one job or route, the others are done."""
    async with Target() as target, running(a_route(target), a_route(target, "bad")) as bench:
        bench.store.damaged.add(place)
        bench.add(*(job(n) for n in range(1, 5)), job(9, "bad"))
        expected = {f"{n}/shop" for n in range(1, 5)} | {"9/bad"}
        expected -= {place, f"9/{place}"}
        await bench.settles(len(expected))
        assert {name for name, _, _ in bench.store.kinds()} == expected


async def test_an_outage_amid_a_damaged_turn_keeps_the_rest() -> None:
    """What was not yet tried one by one waits for the store."""
    gate = asyncio.Event()
    async with Target(held(gate)) as target, running(a_route(target)) as bench:
        bench.add(*(job(n) for n in range(1, 4)))
        await target.has(3)
        bench.store.errors.extend([StoreError("damaged"), None, AWAY])
        gate.set()
        kinds = await bench.settles(3)
        assert {name for name, _, _ in kinds} == {"1/shop", "2/shop", "3/shop"}
        assert bench.measures.stale == 0


async def test_a_reclaim_that_fails_for_damage_stops_nothing() -> None:
    """Deliveries go on without it."""
    async with Target() as target:
        bench = Bench()
        bench.store.errors.append(StoreError("damaged"))
        await bench.configure(a_route(target))
        bench.start()
        bench.add(job(1))
        assert await bench.settles(1) == [("1/shop", "delivered", "")]
        await bench.drain()
        await bench.delivery.close()


async def test_a_crashed_loop_can_run_again() -> None:
    """What it had in flight is given back with no attempt counted, and delivered."""
    async with Target(by_turns(hanging(), hanging(), answering())) as target:
        bench = Bench()
        await bench.configure(a_route(target))
        bench.start()
        bench.add(job(1), job(2))
        await target.has(2)
        bench.store.errors.append(RuntimeError("a bug"))  # type: ignore[arg-type]
        bench.add(job(3))
        assert bench.task is not None
        with pytest.raises(ExceptionGroup):
            await bench.task
        bench.start()
        kinds = await bench.settles(5)
        assert sorted(kinds[:2]) == [("1/shop", "release", "front"), ("2/shop", "release", "front")]
        assert sorted(kinds[2:]) == [(f"{n}/shop", "delivered", "") for n in (1, 2, 3)]
        await bench.drain()
        await bench.delivery.close()
