"""Work of whole routes: counted, moved, and given its place again."""

import pytest

from store.invariants import leftovers, violations
from store.world import KEYS, World, arrival
from twr.core.jobs import Destination, RouteStats, Settle

pytestmark = pytest.mark.anyio


async def test_stats_count_what_waits_where(world: World) -> None:
    """Every place has its number; `waiting` is all that is neither delivered nor dead."""
    await world.store.beat(["a", "empty"], take_over=True)
    await world.accept(arrival(1, "a"), arrival(2, "a"))
    await world.accept(*(arrival(n, "a", lane=str(n)) for n in (3, 4, 5)))
    retried, dead, _flying = (await world.claim("a", 3)).jobs
    await world.settle(
        Settle("retry", retried.id, retried.token, "60000", "500", ""),
        Settle("dead", dead.id, dead.token, "attempts", "500", ""),
    )
    stats = await world.store.stats()
    found = {route.name: route for route in stats.routes}
    served = found["a"].served_ms
    oldest = int(await world.redis.zscore(KEYS.route("a", "all"), "1/a") or 0)
    assert found["a"] == RouteStats("a", served, 1, 1, 1, 4, oldest, 0)
    assert found["empty"] == RouteStats("empty", served, 0, 0, 0, 0, None, 0)
    assert abs(stats.now_ms - await world.now()) < 5000
    assert 0 <= stats.now_ms - served < 5000
    assert stats.dead == {("a", "attempts"): 1}
    assert stats.died == {("a", "attempts"): 1}


async def test_move_takes_waiting_work_along_in_order(world: World) -> None:
    """Each lane goes to the end of its lane there, attempts, errors and expiry kept."""
    await world.accept(arrival(9, "new"))
    await world.accept(*(arrival(n, "old") for n in (1, 2, 3)), arrival(4, "old", lane="8"))
    job = await world.take("old")
    await world.settle(Settle("retry", job.id, job.token, "60000", "500", "HTTP 500"))
    before = await world.redis.zscore(KEYS.route("old", "all"), "1/old")
    assert await world.store.move("old", "new", ordered=True) == (4, 0)
    picture = await world.check()
    assert sorted(picture.jobs) == ["1/new", "2/new", "3/new", "4/new", "9/new"]
    moved = picture.jobs["1/new"]
    assert (moved["attempts"], moved["last_status"], moved["last_error"]) == (
        "1",
        "500",
        "HTTP 500",
    )
    assert picture.all["new"]["1/new"] == before
    order = [await world.deliver("new") for _ in range(5)]
    assert [name for name in order if name != "4/new"] == ["9/new", "1/new", "2/new", "3/new"]
    assert leftovers(await world.check()) == []


async def test_move_keeps_the_order_of_one_millisecond(world: World) -> None:
    """Updates stored in one call are moved as they came, whatever their ids look like."""
    numbers = [9, 10, 100, 11, 99, 8, 1000]
    await world.accept(*(arrival(n, "old") for n in numbers))
    assert await world.store.move("old", "new", ordered=True) == (7, 0)
    assert [await world.deliver("new") for _ in numbers] == [f"{n}/new" for n in numbers]


async def test_move_leaves_what_flies_and_what_is_there_already(world: World) -> None:
    """A delivery in flight ends where it began; no job of the other route is overwritten."""
    await world.accept(arrival(1, "old"), arrival(2, "old", "new"), arrival(3, "old"))
    job = await world.take("old")
    assert await world.store.move("old", "new", ordered=False) == (1, 2)
    assert [await world.state(n) for n in ("1/old", "2/old", "2/new", "3/new")] == [
        "processing",
        "waiting",
        "ready",
        "ready",
    ]
    await world.check()
    assert await world.settle(Settle("delivered", job.id, job.token)) == (True,)
    assert (await world.take("old")).id == "2/old"


async def test_moved_work_still_expires(world: World) -> None:
    """Another route is no other time."""
    await world.accept(arrival(1, "old", expires_after=30))
    await world.store.move("old", "new", ordered=True)
    await world.let_expire(1)
    assert (await world.store.sweep()).expired == ("1/new",)


async def test_a_late_settle_of_moved_work_is_refused(world: World) -> None:
    """A job that went elsewhere after its lease had ended is somebody else's."""
    await world.accept(arrival(1, "old"))
    job = await world.take("old")
    await world.let_lease_end("1/old")
    await world.process("m1", "vps-2").sweep()
    assert await world.store.move("old", "new", ordered=True) == (1, 0)
    assert await world.settle(Settle("delivered", job.id, job.token)) == (False,)
    assert await world.deliver("new") == "1/new"


async def test_any_number_can_be_moved(world: World) -> None:
    """More than one step moves, past more that stays than one step looks at."""
    stay = [arrival(n, Destination("old", False, 9999), "new") for n in range(250)]
    go = [arrival(n, "old", lane=str(n % 3)) for n in range(250, 900)]
    await world.accept(*stay, *go)
    assert await world.store.move("old", "new", ordered=True) == (650, 250)
    await world.check()


async def test_a_moved_route_leaves_no_list_behind(world: World) -> None:
    """Nobody claims an old route any more: nothing of it may stay."""
    await world.accept(*(arrival(n, "old", lane=str(n)) for n in range(500)))
    assert await world.store.move("old", "new", ordered=True) == (500, 0)
    assert [key async for key in world.redis.scan_iter("*:route:old:*")] == []


STRAYS = {
    "lease member": ("processing", "1/a"),
    "ready entry": ("ready", "4/a"),
    "delayed entry": ("delayed", "3/a"),
    "suspect entry": ("suspect", "5/a"),
}


async def a_job_of_each_state(world: World) -> None:
    """1 in flight with 2 behind it, 3 delayed, 4 ready, 5 a suspect; all but 2 heads of lanes."""
    await world.accept(arrival(1, "a", lane="1"), arrival(2, "a", lane="1"))
    await world.accept(*(arrival(n, "a", lane=str(n)) for n in (3, 5, 4)))
    _flying, delayed, suspect = (await world.claim("a", 3)).jobs
    await world.settle(Settle("retry", delayed.id, delayed.token, "60000", "500", ""))
    await world.redis.hset(KEYS.job(suspect.id), "crashes", "2")
    await world.settle(Settle("release", suspect.id, suspect.token, "front"))
    states = [await world.state(f"{n}/a") for n in range(1, 6)]
    assert states == ["processing", "waiting", "delayed", "ready", "suspect"]
    await world.check()


@pytest.mark.parametrize("stray", STRAYS)
async def test_a_stray_gets_its_place_again(world: World, stray: str) -> None:
    """An entry that was deleted by hand is missed, found by its job, and written anew."""
    await a_job_of_each_state(world)
    place, name = STRAYS[stray]
    key = KEYS.route("a", place)
    if place == "processing":
        await world.let_lease_end(name)
    assert await world.redis.delete(key) == 1
    assert violations(await world.picture())[0].startswith(name)
    assert await world.store.repair("a") == (name,)
    await world.check()
    assert await world.store.repair("a") == ()


async def test_a_lease_that_still_runs_is_no_stray(world: World) -> None:
    """A deleted lease is repaired once it would have ended: its holder may still be at work."""
    await world.accept(arrival(1, "a"))
    job = await world.take("a")
    await world.redis.delete(KEYS.route("a", "processing"))
    assert await world.store.repair("a") == ()
    assert await world.settle(Settle("delivered", job.id, job.token)) == (True,)
    assert leftovers(await world.check()) == []


@pytest.mark.parametrize("head", ["ready", "processing", "delayed"])
async def test_a_lost_lane_is_built_again_in_order(world: World, head: str) -> None:
    """Whatever the head is doing, nothing of its lane overtakes it."""
    await world.accept(*(arrival(n, "a") for n in (9, 10, 8)))
    if head != "ready":
        job = await world.take("a")
        if head == "delayed":
            await world.settle(Settle("retry", job.id, job.token, "60000", "500", ""))
    await world.redis.delete(KEYS.route("a", "lane:7"))
    assert await world.store.repair("a") == ("9/a", "10/a", "8/a")
    await world.check()
    assert await world.store.repair("a") == ()
    if head == "processing":
        await world.settle(Settle("delivered", job.id, job.token))
    elif head == "delayed":
        await world.let_delay_end("9/a")
    assert (await world.take("a")).id == ("10/a" if head == "processing" else "9/a")


async def test_a_lane_that_nobody_leads_goes_on(world: World) -> None:
    """A head whose job is gone is taken off its lane, and the next becomes ready."""
    await world.accept(*(arrival(n, "a") for n in (1, 2, 3)))
    await world.redis.delete(KEYS.job("1/a"))
    assert (await world.claim("a", 9)).jobs == ()
    assert await world.store.repair("a") == ("2/a",)
    assert [await world.deliver("a"), await world.deliver("a")] == ["2/a", "3/a"]


async def test_a_job_that_is_gone_is_not_waited_for(world: World) -> None:
    """The oldest waiting update is one that exists."""
    await world.accept(arrival(1, "a"))
    await world.redis.zadd(KEYS.route("a", "all"), {"99/a": 1})
    assert await world.store.repair("a") == ()
    assert (await world.store.stats()).routes[0].waiting == 1
    await world.check()


async def test_repair_gets_round_to_every_job(world: World) -> None:
    """However many are older: each call looks at some more, and starts again at the end."""
    await world.accept(*(arrival(n, "a", lane=str(n)) for n in range(1000)))
    assert [await world.store.repair("a") for _ in range(7)] == [()] * 7
    await world.redis.hset(KEYS.job("900/a"), mapping={"state": "delayed", "due_ms": "5"})
    found = [await world.store.repair("a") for _ in range(7)]
    assert sorted(found, reverse=True) == [("900/a",), *[()] * 6]
