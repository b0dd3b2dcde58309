"""Dead letters: all of them can be listed, read, replayed, dropped and trimmed."""

from collections.abc import Sequence

import pytest

from store.invariants import leftovers
from store.world import KEYS, World, arrival
from twr.core.jobs import DeadLetter, Destination, Settle

pytestmark = pytest.mark.anyio


async def bury(world: World, numbers: Sequence[int], *routes: str) -> None:
    """Dead letters of these updates, all of one millisecond."""
    await world.accept(
        *(arrival(n, *(Destination(r, False, 99_999) for r in routes)) for n in numbers)
    )
    for route in routes:
        while jobs := (await world.claim(route, 500)).jobs:
            dead = (Settle("dead", job.id, job.token, "permanent", "410", "") for job in jobs)
            await world.settle(*dead)


async def listed(world: World) -> list[DeadLetter]:
    return [letter async for page in world.store.dead_letters.pages() for letter in page]


async def test_pages_hold_every_letter_once_and_the_oldest_first(world: World) -> None:
    """More letters than a page holds, of different times."""
    await bury(world, range(1200), "a")
    for n in range(1200):
        await world.redis.zadd(KEYS.dead_letters, {f"{n}/a": 1_000_000 - n})
    assert [letter.id for letter in await listed(world)] == [f"{n}/a" for n in range(1199, -1, -1)]


async def test_pages_go_on_within_one_millisecond(world: World) -> None:
    """Pages of letters that died at once, one letter of before and one of after."""
    await bury(world, range(1100), "a")
    scores = {f"{n}/a": 1_000_000 for n in range(1100)} | {"7/a": 999_999, "9/a": 1_000_001}
    await world.redis.zadd(KEYS.dead_letters, scores)
    ids = [letter.id for letter in await listed(world)]
    assert (ids[0], ids[-1]) == ("7/a", "9/a")
    assert sorted(ids) == sorted(f"{n}/a" for n in range(1100))


@pytest.mark.parametrize("dropped", ["all", "last", "first"])
async def test_letters_dropped_between_pages_hide_no_others(world: World, dropped: str) -> None:
    """Whoever drops or replays what a page showed still sees all of the next pages."""
    await bury(world, range(1100), "a")
    await world.redis.zadd(KEYS.dead_letters, {f"{n}/a": 1_000_000 for n in range(1100)})
    seen: list[str] = []
    async for page in world.store.dead_letters.pages():
        ids = [letter.id for letter in page]
        gone = {"all": ids, "last": ids[-1:], "first": ids[:1]}[dropped]
        assert await world.store.dead_letters.drop(gone) == len(gone)
        seen += ids
    assert sorted(seen) == sorted(f"{n}/a" for n in range(1100))
    await world.check()


async def test_no_letters_are_no_pages(world: World) -> None:
    """An empty list ends at once."""
    assert await listed(world) == []


@pytest.mark.parametrize("name", ["", "1", "1/", "/a", "1/a/b", "1/nobody", "x~1/a"])
async def test_an_id_of_no_letter_is_missing(world: World, name: str) -> None:
    """Whatever was typed is looked up, and not found, without an error."""
    await world.accept(arrival(1, "a"))
    assert await world.store.dead_letters.show(name) is None
    assert await world.store.dead_letters.show("1/a") is None
    assert await world.store.dead_letters.replay(name, "a", ordered=True) == "missing"
    assert await world.store.dead_letters.replay("1/a", "b", ordered=True) == "missing"
    assert await world.store.dead_letters.drop([name, "1/a"]) == 0
    assert await world.state("1/a") == "ready"
    await world.check()


async def test_a_replayed_letter_starts_anew_at_the_end_of_its_lane(world: World) -> None:
    """No attempts, no error, behind what has come since."""
    await world.accept(arrival(1, "a"))
    await world.kill(await world.take("a"))
    await world.accept(arrival(2, "a"), arrival(3, "a"))
    assert await world.store.dead_letters.replay("1/a", "a", ordered=True) == "replayed"
    assert await world.store.dead_letters.replay("1/a", "a", ordered=True) == "missing"
    await world.check()
    assert await world.redis.hgetall(KEYS.job("1/a")) == {
        b"lane": b"7",
        b"attempts": b"0",
        b"expires_ms": b"0",
        b"state": b"waiting",
    }
    assert [await world.deliver("a") for _ in range(3)] == ["2/a", "3/a", "1/a"]
    assert leftovers(await world.check()) == []


async def test_a_letter_can_go_to_another_route(world: World) -> None:
    """`--to` makes a job of that route, in its own order."""
    await world.accept(arrival(1, "a", body=b"one"))
    await world.kill(await world.take("a"))
    assert await world.store.dead_letters.replay("1/a", "new", ordered=False) == "replayed"
    job = await world.take("new")
    assert (job.id, job.body, job.attempts) == ("1/new", b"one", 0)
    assert "new" in {route.name for route in (await world.store.stats()).routes}
    await world.settle(Settle("delivered", job.id, job.token))
    assert leftovers(await world.check()) == []


@pytest.mark.parametrize("state", ["ready", "processing", "delayed", "dead"])
async def test_a_route_that_has_the_update_is_taken(world: World, state: str) -> None:
    """`--to` never overwrites a job, whatever its state."""
    await world.accept(arrival(1, "a", "b"))
    await world.kill(await world.take("a"))
    if state != "ready":
        job = await world.take("b")
        if state == "delayed":
            await world.settle(Settle("retry", job.id, job.token, "60000", "", ""))
        elif state == "dead":
            await world.kill(job)
    assert await world.store.dead_letters.replay("1/a", "b", ordered=True) == "taken"
    assert [await world.state(name) for name in ("1/a", "1/b")] == ["dead", state]
    await world.check()


async def test_a_dropped_letter_takes_its_body_along(world: World) -> None:
    """The body stays as long as another delivery of the update needs it."""
    await bury(world, [1], "a", "b")
    assert await world.store.dead_letters.drop(["1/a"]) == 1
    assert await world.redis.exists(KEYS.update("1")) == 1
    assert await world.store.dead_letters.drop(["1/a", "1/b"]) == 1
    assert leftovers(await world.check()) == []


async def test_any_number_can_be_dropped(world: World) -> None:
    """A list longer than one step drops."""
    await bury(world, range(1200), "a")
    assert await world.store.dead_letters.drop([f"{n}/a" for n in range(1200)]) == 1200
    assert leftovers(await world.check()) == []


async def test_the_oldest_are_trimmed(world: World) -> None:
    """Those over an age go, then the oldest of those over a count; live jobs of them stay."""
    await bury(world, range(1300), "a")
    await world.accept(arrival(5000, "b"))
    now = await world.now()
    await world.redis.zadd(
        KEYS.dead_letters,
        {f"{n}/a": now - (7200_000 if n < 600 else 5000 - n) for n in range(1300)},
    )
    assert await world.store.dead_letters.trim(3600, 100_000) == 600
    assert await world.store.dead_letters.trim(3600, 100_000) == 0
    assert await world.store.dead_letters.trim(3600, 10) == 690
    assert [letter.id for letter in await listed(world)] == [f"{n}/a" for n in range(1290, 1300)]
    assert (await world.store.stats()).dead == {("a", "permanent"): 10}
    await world.check()
    assert await world.store.dead_letters.trim(3600, 0) == 10
    assert await world.deliver("b") == "5000/b"
    assert leftovers(await world.check()) == []


async def test_letters_are_counted_by_route_and_reason(world: World) -> None:
    """The status needs no list to tell how many died of what, and forgets what is zero."""
    await bury(world, [1, 2], "a", "b")
    await world.accept(arrival(3, Destination("a", True, 0)))
    assert (await world.store.stats()).dead == {
        ("a", "permanent"): 2,
        ("b", "permanent"): 2,
        ("a", "overflow"): 1,
    }
    await world.store.dead_letters.drop(["1/a", "2/a"])
    await world.store.dead_letters.replay("3/a", "a", ordered=True)
    assert (await world.store.stats()).dead == {("b", "permanent"): 2}
    await world.check()


async def test_what_a_target_said_is_read_as_text(world: World) -> None:
    """A letter without a status, and text of any language."""
    await world.accept(arrival(1, "a"))
    job = await world.take("a")
    await world.settle(
        Settle("dead", job.id, job.token, "attempts", "", "Verbindung läuft ab", "❌")
    )
    letter = await world.store.dead_letters.show("1/a")
    assert letter is not None
    assert (letter.last_status, letter.last_error, letter.answer) == (
        None,
        "Verbindung läuft ab",
        "❌",
    )


async def test_a_letter_that_dies_again_is_counted_again(world: World) -> None:
    """Whatever is replayed, dropped or trimmed: how many died never falls."""
    await bury(world, range(3), "a")
    await world.store.dead_letters.replay("0/a", "a", ordered=False)
    await world.kill(await world.take("a"))
    await world.store.dead_letters.drop(["1/a"])
    await world.store.dead_letters.trim(3600, 1)
    stats = await world.store.stats()
    assert (stats.dead, stats.died) == ({("a", "permanent"): 1}, {("a", "permanent"): 4})
    await world.check()


async def test_every_way_to_die_is_counted(world: World) -> None:
    """By route and reason, where it is decided."""
    await world.accept(arrival(1, Destination("a", True, 0)), arrival(2, "b"), arrival(3, "c"))
    await world.let_expire(2)
    await world.store.sweep()
    await world.kill(await world.take("c"), "attempts")
    assert (await world.store.stats()).died == {
        ("a", "overflow"): 1,
        ("b", "expired"): 1,
        ("c", "attempts"): 1,
    }
