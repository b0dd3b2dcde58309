"""Nothing is delivered after its time, wherever it waits, and nothing dies in flight."""

import pytest

from store.invariants import leftovers
from store.world import KEYS, World, arrival
from twr.core.jobs import Claim, Destination, Settle, Swept

pytestmark = pytest.mark.anyio


async def expired(world: World, *names: str) -> None:
    """A sweep makes exactly these jobs dead letters, and leaves nothing of them elsewhere."""
    assert (await world.store.sweep()).expired == names
    picture = await world.check()
    for name in names:
        job = picture.jobs[name]
        assert (job["state"], job["reason"], job["attempts"]) == ("dead", "expired", "0")
    assert await world.store.sweep() == Swept()


async def test_behind_the_head_of_a_lane(world: World) -> None:
    """What waits in a lane dies while the head is still in flight, and the lane goes on."""
    await world.accept(arrival(1, "a"), arrival(2, "a", expires_after=30), arrival(3, "a"))
    job = await world.take("a")
    await world.let_expire(2)
    await expired(world, "2/a")
    await world.settle(Settle("delivered", job.id, job.token))
    assert (await world.take("a")).id == "3/a"


async def test_delayed(world: World) -> None:
    """A retry that would come too late is not waited for, and frees its lane."""
    await world.accept(arrival(1, "a"), arrival(2, "a"))
    job = await world.take("a")
    await world.settle(Settle("retry", job.id, job.token, "600000", "500", ""))
    await world.let_expire(1)
    assert (await world.store.sweep()).expired == ("1/a",)
    assert await world.state("2/a") == "ready"
    await world.check()


async def test_ready(world: World) -> None:
    """A route that nobody claims, paused or orphaned: its ready list does not keep them."""
    await world.accept(*(arrival(n, "a", lane=str(n), expires_after=30) for n in (1, 2, 3)))
    await world.let_expire(1, 2, 3)
    await expired(world, "1/a", "2/a", "3/a")
    assert await world.redis.exists(KEYS.route("a", "ready")) == 0


async def test_suspect(world: World) -> None:
    """A suspect that waits to be delivered alone is no exception."""
    await world.accept(arrival(1, "a"))
    await world.take("a")
    await world.redis.hset(KEYS.job("1/a"), "crashes", "1")
    await world.let_lease_end("1/a")
    await world.process("m1", "vps-2").sweep()
    assert await world.state("1/a") == "suspect"
    await world.let_expire(1)
    await expired(world, "1/a")
    assert await world.redis.exists(KEYS.route("a", "suspect")) == 0


async def test_every_route_of_an_update(world: World) -> None:
    """One update's deliveries die together, those in flight excepted."""
    await world.accept(arrival(1, "a", "b", "c"))
    await world.deliver("a")
    job = await world.take("b")
    await world.let_expire(1)
    assert (await world.store.sweep()).expired == ("1/c",)
    assert await world.state("1/b") == "processing"
    await world.check()
    assert await world.settle(Settle("delivered", job.id, job.token)) == (True,)


async def test_in_flight_it_waits_for_the_settle(world: World) -> None:
    """What fails after its time dies at the next look, two seconds later."""
    await world.accept(arrival(1, "a"))
    job = await world.take("a")
    await world.let_expire(1)
    assert await world.store.sweep() == Swept()
    look = await world.redis.zscore(f"{KEYS.tag}:expiry", "1")
    assert look is not None
    assert 0 < look - await world.now() <= 2000
    await world.settle(Settle("retry", job.id, job.token, "600000", "500", ""))
    await world.let_expire(1)
    assert (await world.store.sweep()).expired == ("1/a",)
    await world.check()


async def test_a_claim_takes_nothing_that_is_late(world: World) -> None:
    """Between two sweeps the claim itself makes dead letters, and goes on with the lane."""
    await world.accept(arrival(1, "a", expires_after=30), arrival(2, "a"))
    await world.let_expire(1)
    claimed = await world.claim("a", 1)
    assert ([job.id for job in claimed.jobs], claimed.expired) == (["2/a"], ("1/a",))
    await world.check()


async def test_a_replayed_letter_never_expires(world: World) -> None:
    """Whoever replays a dead letter wants it delivered, however old it is."""
    await world.accept(arrival(1, "a", expires_after=30))
    await world.let_expire(1)
    await world.store.sweep()
    assert await world.store.dead_letters.replay("1/a", "a", ordered=True) == "replayed"
    await world.let_expire(1)
    assert await world.store.sweep() == Swept()
    job = await world.take("a")
    assert (job.id, job.expires_ms) == ("1/a", 0)
    await world.settle(Settle("delivered", job.id, job.token))
    assert leftovers(await world.check()) == []


async def test_many_at_once(world: World) -> None:
    """One sweep of many steps gets all that is due, in one lane and in many."""
    lanes = [arrival(n, "a", lane=str(n % 2 * n), expires_after=30) for n in range(450)]
    await world.accept(*lanes)
    await world.let_expire(*range(450))
    assert len((await world.store.sweep()).expired) == 450
    assert (await world.store.stats()).dead == {("a", "expired"): 450}
    await world.check()


async def test_stale_ids_of_one_route_do_not_hide_another_job(world: World) -> None:
    """Expired ids between live ones in the ready list cost claims nothing but a look."""
    to = Destination("a", False, 1000)
    await world.accept(*(arrival(n, to, expires_after=30 + n % 2) for n in range(100)))
    await world.let_expire(*range(1, 100, 2))
    await world.store.sweep()
    turn = await world.store.turn([], [Claim("a", 60, 60)])
    assert [job.id for job in turn.claimed[0].jobs] == [f"{n}/a" for n in range(0, 100, 2)]
    assert turn.claimed[0].ready == 0
    await world.check()
