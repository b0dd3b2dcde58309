"""What becomes of work whose process is gone, and of a name that two processes want."""

from typing import Any

import pytest

from store.world import KEYS, Ran, World, arrival
from twr.core.jobs import Beat, Destination, Elder, Job, Settle, Swept
from twr.edges.store import Store

pytestmark = pytest.mark.anyio


async def crash(world: World, nonce: str, old: Store) -> Store:
    """The process is gone; the next of its name has started and recovered."""
    new = world.process(nonce)
    beat = await new.beat(["a", "b"], take_over=True)
    assert [elder.nonce for elder in beat.elders] == [old._identity.nonce]
    await new.recover([])
    return new


async def start(world: World) -> Store:
    assert (await world.store.beat(["a", "b"], take_over=True)).ours
    return world.store


async def test_a_start_requeues_what_its_name_left_in_flight(world: World) -> None:
    """The jobs of the old process come first and in the old order, with no attempt burned."""
    await start(world)
    await world.accept(*(arrival(n, "a", lane=str(n)) for n in range(1, 6)))
    held = (await world.claim("a", 3)).jobs
    new = world.process("n2")
    await new.beat(["a"], take_over=True)
    assert await new.recover([]) == Swept(3, (), ())
    await world.check()
    again = (await world.claim("a", 9, by=new)).jobs
    assert sorted(job.id for job in again[:3]) == [job.id for job in held]
    assert [job.id for job in again[3:]] == ["4/a", "5/a"]
    assert {job.attempts for job in again} == {0}
    assert (await new.beat(["a"])).elders == ()


async def test_recovery_leaves_other_instances_alone(world: World) -> None:
    """Only leases under our own name, of processes that no longer live, are requeued."""
    await start(world)
    other = world.process("m1", "vps-2")
    await other.beat(["a"], take_over=True)
    await world.accept(*(arrival(n, "a", lane=str(n)) for n in (1, 2, 3)))
    mine = await world.take("a")
    await world.take("a", by=other)
    new = world.process("n2")
    await new.beat(["a"], take_over=True)
    own = await world.take("a", by=new)
    assert await new.recover(["n1"]) == Swept()
    assert await new.recover([]) == Swept(1, (), ())
    assert [await world.state(name) for name in ("1/a", "2/a", "3/a")] == [
        "ready",
        "processing",
        "processing",
    ]
    assert await world.settle(Settle("delivered", own.id, own.token), by=new) == (True,)
    assert (mine.id, await world.field("1/a", "crashes")) == ("1/a", "1")
    await world.check()


async def test_more_than_one_sweep_is_recovered(world: World) -> None:
    """However much was in flight, one recovery gets it all."""
    await start(world)
    to = Destination("a", False, 10_000)
    await world.accept(*(arrival(n, to) for n in range(450)))
    for _ in range(3):
        await world.claim("a", 150)
    new = world.process("n2")
    await new.beat(["a"], take_over=True)
    assert (await new.recover([])).reaped == 450
    assert (await new.stats()).routes[0].processing == 0
    await world.check()


async def test_a_claim_whose_answer_was_lost_is_reclaimed(world: World) -> None:
    """Our own leases that we know nothing of go back, and no crash is counted."""
    await start(world)
    await world.accept(*(arrival(n, "a", lane=str(n)) for n in (1, 2)))
    known, lost = (await world.claim("a", 2)).jobs
    assert await world.store.reclaim([known.id]) == (lost.id,)
    assert await world.store.reclaim([known.id]) == ()
    assert await world.field(lost.id, "crashes") is None
    assert (await world.take("a")).id == lost.id
    await world.check()


async def carry_out(world: World, store: Store, script: Ran) -> Any:
    """Let the server carry out what a process sent some time ago."""
    return await store._client.run(script[0], *script[1])


async def test_a_reclaim_that_is_carried_out_late_leaves_later_leases_alone(world: World) -> None:
    """Its caller goes on meanwhile, and knows of them."""
    await start(world)
    await world.accept(*(arrival(n, "a", lane=str(n)) for n in (1, 2)))
    lost = await world.take("a")
    await world.store.reclaim([])
    script = world.ran[-1]
    await world.let_a_millisecond_pass()
    held = {job.id for job in (await world.claim("a", 2)).jobs}
    assert held == {lost.id, "2/a"}
    assert await carry_out(world, world.store, script) == []
    assert {await world.state(name) for name in held} == {"processing"}
    await world.check()


async def test_a_take_over_that_is_carried_out_late_takes_nothing_over(world: World) -> None:
    """The newer process keeps the name, however often the older one's call comes."""
    await start(world)
    script = world.ran[-1]
    await world.let_a_millisecond_pass()
    new = world.process("n2")
    assert (await new.beat(["a"], take_over=True)).ours
    _, ours, *_ = await carry_out(world, world.store, script)
    assert ours == 0
    assert (await new.beat(["a"])).ours


async def test_a_recovery_that_is_carried_out_late_touches_no_living_lease(world: World) -> None:
    """Its caller has lost the name to a process that it can't know of."""
    await start(world)
    await world.store.recover([])
    script = world.ran[-1]
    await world.accept(arrival(1, "a"))
    new = world.process("n2")
    await new.beat(["a"], take_over=True)
    job = await world.take("a", by=new)
    assert await carry_out(world, world.store, script) == [0, 0, [], []]
    assert (await world.state(job.id), await world.field(job.id, "crashes")) == ("processing", None)
    await world.check()


@pytest.mark.parametrize("place", ["ready", "delayed", "processing", "all", "suspect"])
async def test_a_damaged_route_stops_no_other(world: World, place: str) -> None:
    """Leases of the others are recovered, reaped and reclaimed, what expired there is buried, and
    they are counted."""
    await start(world)
    await world.accept(*(arrival(n, "b", lane=str(n)) for n in (1, 2, 3)))
    (first, second, third) = (await world.claim("b", 3)).jobs
    await world.redis.set(KEYS.route("a", place), "damaged")
    await world.let_lease_end(first.id)
    other = world.process("m1", "vps-2")
    swept = await other.sweep()
    assert swept.reaped == 1
    assert set(swept.damaged) <= {"a"}
    assert await world.store.reclaim([second.id]) == (third.id,)
    new = world.process("n2")
    await new.beat(["b"], take_over=True)
    assert (await new.recover([])).reaped == 1
    found = [(route.name, route.ready, route.waiting) for route in (await new.stats()).routes]
    assert ("b", 3, 3) in found


async def suspect(world: World, store: Store) -> Store:
    """Bring job 1/a through two crashes."""
    await world.accept(arrival(1, "a", lane="1"))
    for nonce in ("n2", "n3"):
        assert (await world.take("a", by=store)).id == "1/a"
        store = await crash(world, nonce, store)
    return store


async def test_two_crashes_make_a_suspect_and_a_third_is_poison(world: World) -> None:
    """A suspect is claimed only as such; dying with it alone in flight is the proof."""
    store = await suspect(world, await start(world))
    claimed = await world.claim("a", 9, by=store)
    assert (claimed.jobs, claimed.ready, claimed.suspects) == ((), 0, 1)
    await world.check()
    job = await world.take("a", suspect=True, by=store)
    assert (job.id, job.attempts) == ("1/a", 0)
    new = world.process("n4")
    await new.beat(["a"], take_over=True)
    assert await new.recover([]) == Swept(1, (), ("1/a",))
    letter = await world.store.dead_letters.show("1/a")
    assert letter is not None
    assert (letter.reason, letter.attempts) == ("poison", 0)
    assert await world.settle(Settle("delivered", job.id, job.token)) == (False,)
    await world.check()


@pytest.mark.parametrize("way", ["release", "reclaim", "cut off", "repair"])
async def test_a_suspect_that_comes_back_is_still_one(world: World, way: str) -> None:
    """Without a third crash it waits to be delivered alone again: never beside others, where
    another job's crash would bury it."""
    store = await suspect(world, await start(world))
    job = await world.take("a", suspect=True, by=store)
    if way == "release":
        await world.settle(Settle("release", job.id, job.token, "front"), by=store)
    elif way == "reclaim":
        assert await store.reclaim([]) == ("1/a",)
    elif way == "cut off":
        await world.let_lease_end("1/a")
        await store.beat(["a"])
        assert await world.process("m1", "vps-2").sweep() == Swept(1, (), ())
    else:
        await world.let_lease_end("1/a")
        await world.redis.zrem(KEYS.route("a", "processing"), "1/a")
        assert await store.repair("a") == ("1/a",)
    assert await world.state("1/a") == "suspect"
    assert (await world.claim("a", 9, by=store)).jobs == ()
    assert (await world.take("a", suspect=True, by=store)).id == "1/a"
    await world.check()


async def test_a_suspect_that_fails_is_cleared(world: World) -> None:
    """An attempt that the process survives, whatever the answer, shows that it was not the job."""
    store = await suspect(world, await start(world))
    job = await world.take("a", suspect=True, by=store)
    await world.settle(Settle("retry", job.id, job.token, "0", "500", "HTTP 500"), by=store)
    assert (await world.take("a", by=store)).id == "1/a"
    await crash(world, "n4", store)
    assert await world.state("1/a") == "ready"


async def test_a_lease_that_ran_out_is_reaped_by_another_instance(world: World) -> None:
    """An instance that is gone for good: another takes its work over once the lease has ended."""
    await start(world)
    await world.accept(arrival(1, "a", lane="1"), arrival(2, "a", lane="2"))
    await world.claim("a", 2)
    other = world.process("m1", "vps-2")
    assert await other.sweep() == Swept()
    await world.let_lease_end("1/a")
    assert await other.sweep() == Swept(1, (), ())
    assert (await world.take("a", by=other)).id == "1/a"
    await world.check()


@pytest.mark.parametrize(
    ("fate", "crashes"), [("beats", None), ("silent", "1"), ("restarted", "1"), ("replaced", None)]
)
async def test_only_a_dead_owner_has_crashed(world: World, fate: str, crashes: str | None) -> None:
    """A lease that ran out while its process still shows itself is no crash of it."""
    await start(world)
    await world.accept(arrival(1, "a"))
    await world.take("a")
    await world.let_lease_end("1/a")
    if fate == "silent":
        await world.let_heartbeat_lapse("vps-1")
    elif fate in ("restarted", "replaced"):
        await world.let_heartbeat_lapse("vps-1")
        await world.process("n2").beat(["a"], take_over=True)
    if fate == "replaced":
        assert not (await world.store.beat(["a"])).ours
    assert (await world.process("m1", "vps-2").sweep()).reaped == 1
    assert await world.field("1/a", "crashes") == crashes


async def test_a_process_never_reaps_its_own(world: World) -> None:
    """Its table of flights knows better, even when there are more than one sweep looks at."""
    await start(world)
    to = Destination("a", False, 10_000)
    await world.accept(*(arrival(n, to) for n in range(400)))
    jobs = (await world.claim("a", 400)).jobs
    other = world.process("m1", "vps-2")
    await world.accept(arrival(1000, to))
    theirs = await world.take("a", by=other)
    await world.let_lease_end(*(job.id for job in jobs), theirs.id)
    assert await world.store.sweep() == Swept(1, (), ())
    assert await world.settle(*(Settle("delivered", j.id, j.token) for j in jobs)) == (True,) * 400


async def test_a_sweep_takes_any_number(world: World) -> None:
    """Leases of several routes that all ran out are requeued in one sweep of many steps."""
    to = [Destination(name, False, 10_000) for name in ("a", "b")]
    await world.accept(*(arrival(n, *to) for n in range(250)))
    names = [job.id for r in ("a", "b") for job in (await world.claim(r, 250)).jobs]
    await world.let_lease_end(*names)
    assert (await world.process("m1", "vps-2").sweep()).reaped == 500
    await world.check()


def elder(beat: Beat) -> list[tuple[str, str, int]]:
    return [(e.nonce, e.boot_id, e.pid) for e in beat.elders]


async def test_the_newer_of_two_processes_has_the_name(world: World) -> None:
    """Taking over shows who had the name before; the older finds that it was replaced."""
    await start(world)
    new = world.process("n2")
    beat = await new.beat(["a"], take_over=True)
    assert (beat.ours, elder(beat)) == (True, [("n1", "boot", 42)])
    assert not (await world.store.beat(["a"])).ours
    assert (await new.beat(["a"])).ours


async def test_an_elder_that_lives_shows_it(world: World) -> None:
    """The heartbeats of a replaced process go on being seen by the newer one."""
    await start(world)
    await world.let_heartbeat_lapse("vps-1")
    new = world.process("n2")
    (before,) = (await new.beat(["a"], take_over=True)).elders
    assert isinstance(before, Elder)
    await world.store.beat(["a"])
    (after,) = (await new.beat(["a"])).elders
    assert after.heartbeat_ms - before.heartbeat_ms >= 60_000


async def test_several_elders_are_told_apart(world: World) -> None:
    """Processes that crashed one after the other before any recovery are all found."""
    await start(world)
    for nonce in ("n2", "n3"):
        beat = await world.process(nonce).beat(["a"], take_over=True)
    assert sorted(elder(beat)) == [("n1", "boot", 42), ("n2", "boot", 42)]


async def test_a_store_that_lost_its_data_is_no_rival(world: World) -> None:
    """After FLUSHALL the next heartbeat writes name and routes anew, and work goes on."""
    await start(world)
    await world.accept(arrival(1, "a"))
    job = await world.take("a")
    await world.redis.flushall()
    assert await world.settle(Settle("delivered", job.id, job.token)) == (False,)
    beat = await world.store.beat(["a", "b"])
    assert (beat.ours, beat.elders) == (True, ())
    assert set(await world.redis.hkeys(f"{KEYS.tag}:routes")) == {b"a", b"b"}
    assert (await world.accept(arrival(1, "a")))[0].deliveries == 1
    assert await world.deliver("a") == "1/a"
    await world.check()


async def test_two_instances_share_a_lane_in_order(world: World) -> None:
    """A lane has one job out, whichever instance has it."""
    other = world.process("m1", "vps-2")
    await world.accept(arrival(1, "a"), arrival(2, "a"))
    job: Job = await world.take("a")
    assert (await world.claim("a", 9, by=other)).jobs == ()
    await world.settle(Settle("delivered", job.id, job.token))
    assert (await world.take("a", by=other)).id == "2/a"


async def test_how_long_an_instance_has_been_silent(world: World) -> None:
    """By the store's clock; nothing is known of one that never beat."""
    await start(world)
    await world.process("m1", "vps-2").beat([], take_over=True)
    await world.let_heartbeat_lapse("vps-2")
    found = await world.store.silences(["vps-1", "vps-2", "vps-3"])
    assert list(found) == ["vps-1", "vps-2", "vps-3"]
    assert 0 <= (found["vps-1"] or 0.0) < 5
    assert 60 <= (found["vps-2"] or 0.0) < 65
    assert found["vps-3"] is None
