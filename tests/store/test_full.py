"""A server without memory for more: it takes no update, and lets everything else drain it."""

import pytest

from store.invariants import leftovers
from store.world import World, arrival
from twr.core.jobs import Accepted, Claim, Settle
from twr.errors import StoreFull

pytestmark = pytest.mark.anyio


async def fill(world: World) -> None:
    """As if memory had just run out."""
    await world.redis.config_set("maxmemory", "1")


@pytest.fixture
async def full(real: World) -> World:
    """A server in which two updates wait, a third is in flight and a fourth is dead; then full."""
    await real.store.beat(["a"], take_over=True)
    await real.accept(*(arrival(n, "a", lane=str(n)) for n in (3, 4, 1, 2)))
    flying, dead = (await real.claim("a", 2)).jobs
    await real.kill(dead)
    await fill(real)
    assert flying.id == "3/a"
    return real


async def test_accept_is_refused_and_nothing_is_written(full: World) -> None:
    """Not a mark, not a body, not a job, also by a script the server has never seen; when there
    is room again, the same update is stored."""
    before = await full.picture()
    for _ in range(2):
        with pytest.raises(StoreFull):
            await full.accept(arrival(9, "a", "b"), arrival(10, "b"))
        await full.redis.script_flush()
    assert await full.picture() == before
    await full.redis.config_set("maxmemory", "0")
    assert await full.accept(arrival(9, "a", "b")) == [Accepted(2, ready=("a", "b"))]
    await full.check()


async def test_all_else_goes_on(full: World) -> None:
    """Heartbeats, claims, every kind of settle, sweeps, repair, replay, moves and the status."""
    store = full.store
    assert (await store.beat(["a"])).ours
    one, two = (await full.claim("a", 2)).jobs
    settles = [
        Settle("retry", one.id, one.token, "0", "500", "HTTP 500"),
        Settle("release", two.id, two.token, "front"),
    ]
    assert (await store.turn(settles, [])).settled == (True, True)
    assert await store.dead_letters.replay("4/a", "a", ordered=True) == "replayed"
    assert (await store.stats()).routes[0].waiting == 4
    await full.redis.config_set("maxmemory", "0")
    await full.let_lease_end("3/a")
    await fill(full)
    assert (await full.process("m1", "vps-2").sweep()).reaped == 1
    assert await store.repair("a") == ()
    assert await store.recover([]) is not None
    assert await store.reclaim([]) == ()
    assert await store.move("a", "b", ordered=True) == (4, 0)
    assert sorted([await full.deliver("b") for _ in range(4)]) == ["1/b", "2/b", "3/b", "4/b"]
    assert await store.dead_letters.trim(60, 10) == 0
    assert await store.dead_letters.drop(["9/a"]) == 0
    assert leftovers(await full.check()) == []


async def test_a_store_that_has_just_filled_up_can_claim_a_script_it_forgot(full: World) -> None:
    """SCRIPT FLUSH on a full server: scripts that drain it are loaded all the same."""
    await full.redis.script_flush()
    turn = await full.store.turn([], [Claim("a", 2, 60)])
    assert len(turn.claimed[0].jobs) == 2
