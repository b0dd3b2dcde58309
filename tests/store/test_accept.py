"""What accepting an update leaves in the store."""

import pytest

from store.invariants import leftovers
from store.world import DAY, KEYS, LEASE, World, arrival
from twr.core.jobs import Accepted, Destination, Offer, Settle

pytestmark = pytest.mark.anyio


async def test_an_update_is_stored_under_the_documented_keys(world: World) -> None:
    """Every key and field that is read from outside has its name, type and value."""
    tag = KEYS.tag
    assert tag == "{twr:main}"
    before = await world.now()
    await world.store.beat(["a", "b"], take_over=True)
    await world.accept(arrival(8193, "a", "b", lane="7", body=b'{"update_id":8193}'))
    update = await world.redis.hgetall(f"{tag}:update:8193")
    accepted = int(update.pop(b"accepted_ms"))
    assert before <= accepted <= await world.now()
    assert update == {
        b"body": b'{"update_id":8193}',
        b"type": b"message",
        b"lane": b"7",
        b"expires_ms": str(accepted + DAY * 1000).encode(),
        b"refs": b"2",
        b"routes": b"a b",
    }
    assert await world.redis.getbit(f"{tag}:seen:1", 1) == 1
    assert 89_990_000 < await world.redis.pttl(f"{tag}:seen:1") <= 90_000_000
    job = await world.redis.hgetall(f"{tag}:job:8193/a")
    assert job == {b"lane": b"7", b"attempts": b"0", b"state": b"ready"}
    assert await world.redis.lrange(f"{tag}:route:a:ready", 0, -1) == [b"8193/a"]
    assert await world.redis.lrange(f"{tag}:route:a:lane:7", 0, -1) == [b"8193/a"]
    # A microsecond later than the whole milliseconds tell, and perhaps in the next one.
    stamp = await world.redis.zscore(f"{tag}:route:a:all", "8193/a")
    assert stamp is not None
    assert 0 < stamp - accepted < 1.01
    assert set(await world.redis.hkeys(f"{tag}:routes")) == {b"a", b"b"}
    assert set(await world.redis.hkeys(f"{tag}:instance:vps-1")) == {
        b"nonce",
        b"boot_id",
        b"pid",
        b"heartbeat",
        b"since",
    }
    await world.check()


async def test_a_claim_and_a_retry_are_stored_under_the_documented_keys(world: World) -> None:
    """A lease and a delay are scores in milliseconds, and the job's hash repeats them."""
    await world.accept(arrival(1, "a"))
    job = await world.take("a")
    lease = await world.redis.zscore(KEYS.route("a", "processing"), "1/a")
    assert lease is not None
    assert abs(lease - await world.now() - LEASE * 1000) < 5000
    stored = await world.redis.hgetall(KEYS.job("1/a"))
    assert stored == {
        b"lane": b"7",
        b"attempts": b"0",
        b"state": b"processing",
        b"claims": b"1",
        b"token": job.token.encode(),
        b"owner": b"vps-1",
        b"due_ms": str(int(lease)).encode(),
    }
    await world.settle(Settle("retry", "1/a", job.token, "60000", "500", "HTTP 500"))
    due = await world.redis.zscore(KEYS.route("a", "delayed"), "1/a")
    assert due is not None
    assert abs(due - await world.now() - 60_000) < 5000
    assert await world.redis.hgetall(KEYS.job("1/a")) == {
        b"lane": b"7",
        b"attempts": b"1",
        b"state": b"delayed",
        b"claims": b"1",
        b"due_ms": str(int(due)).encode(),
        b"last_status": b"500",
        b"last_error": b"HTTP 500",
    }


async def test_seen_before_is_none_and_changes_nothing(world: World) -> None:
    """Fifty copies of an update, in one call and in others, make one delivery."""
    copies = [arrival(1, "a")] * 25
    answers = await world.accept(*copies) + await world.accept(*copies)
    assert answers == [Accepted(1, ready=("a",))] + [Accepted(None)] * 49
    assert list((await world.check()).jobs) == ["1/a"]


async def test_ids_may_fall(world: World) -> None:
    """After a silent week Telegram's ids start anywhere: smaller is not older."""
    ids = (727334707, 117314199, 0, 2**63 - 1)
    for update_id in ids:
        found = await world.accept(arrival(update_id, "a", lane=str(update_id)))
        assert found == [Accepted(1, ready=("a",))]
    assert [job.id for job in (await world.claim("a", 9)).jobs] == [f"{n}/a" for n in ids]
    assert await world.redis.getbit(f"{KEYS.tag}:seen:{(2**63 - 1) // 8192}", 8191) == 1
    await world.check()


@pytest.mark.parametrize("body", [b"\xff\xfe\x00", b'{"a": "\\u001b"}\r\n', b"x" * 1_000_000])
async def test_bodies_come_back_as_they_were(world: World, body: bytes) -> None:
    """A body is bytes: nothing is decoded, trimmed or cut."""
    await world.accept(arrival(1, "a", body=body))
    assert (await world.take("a")).body == body


async def test_a_lane_may_be_any_text(world: World) -> None:
    """A lane with the characters that keys are made of is a lane like any other."""
    lane = "b:{x}:π 7/lane:"
    await world.accept(arrival(1, "a", lane=lane), arrival(2, "a", lane=lane))
    assert [await world.deliver("a"), await world.deliver("a")] == ["1/a", "2/a"]
    assert leftovers(await world.check()) == []


async def test_live_work_makes_a_returning_id_a_duplicate(world: World) -> None:
    """While one delivery of it lives, an id that comes back is marked again and not stored."""
    await world.accept(arrival(1, "a", "b"))
    await world.kill(await world.take("a"))
    await world.let_be_forgotten(1)
    assert await world.accept(arrival(1, "a", "b", body=b"new")) == [Accepted(None)]
    assert await world.redis.pttl(f"{KEYS.tag}:seen:0") > 89_990_000
    picture = await world.check()
    assert sorted(picture.jobs) == ["1/a", "1/b"]


async def test_dead_letters_stay_beside_a_returning_id(world: World) -> None:
    """With only dead letters left the new update is stored, and the old ones are kept, readable
    and replayable, each with its own body."""
    for round_ in range(3):
        await world.let_be_forgotten(1)
        body = b"round %d" % round_
        found = await world.accept(arrival(1, "a", "b", body=body))
        assert found == [Accepted(2, ready=("a", "b"))]
        await world.kill(await world.take("a"))
        await world.deliver("b")
    ids = [letter.id async for page in world.store.dead_letters.pages() for letter in page]
    assert sorted(ids) == ["1/a", "1~1/a", "1~2/a"]
    letters = {name: await world.store.dead_letters.show(name) for name in ids}
    bodies = {name: letter.body for name, letter in letters.items() if letter}
    assert bodies == {"1~1/a": b"round 0", "1~2/a": b"round 1", "1/a": b"round 2"}
    assert {letter.update_id for letter in letters.values() if letter} == {1}
    assert await world.store.dead_letters.replay("1~1/a", "a", ordered=True) == "replayed"
    job = await world.take("a")
    assert (job.update_id, job.route, job.body) == ("1", "a", b"round 0")
    await world.settle(Settle("delivered", job.id, job.token))
    assert await world.store.dead_letters.drop(["1~2/a", "1/a"]) == 2
    assert leftovers(await world.check()) == []


async def test_a_full_route_makes_a_dead_letter_at_once(world: World) -> None:
    """With `max_pending` waiting on one route its delivery overflows; the other route gets it."""
    full = Destination("a", True, 2)
    for update_id, ready in ((1, ("a", "b")), (2, ()), (3, ())):
        found = await world.accept(arrival(update_id, full, "b"))
        assert found == [Accepted(2, ready=ready)]
    letter = await world.store.dead_letters.show("3/a")
    assert letter is not None
    assert (letter.reason, letter.attempts, letter.body) == ("overflow", 0, b'{"update_id": 3}')
    stats = await world.store.stats()
    assert {r.name: r.waiting for r in stats.routes} == {"a": 2, "b": 3}
    assert stats.dead == {("a", "overflow"): 1}
    await world.check()


async def test_an_offer_leases_at_once(world: World) -> None:
    """A job that could start now is leased in the same step, within the slots offered."""
    accepted = await world.accept(
        arrival(1, "a", "b", lane="1"),
        arrival(2, "a", lane="2"),
        arrival(3, "a", lane="3"),
        offers=[Offer("a", 2, LEASE)],
    )
    assert [[job.id for job in one.leased] for one in accepted] == [["1/a"], ["2/a"], []]
    assert [one.deliveries for one in accepted] == [2, 1, 1]
    leased = accepted[0].leased[0]
    assert (leased.attempts, leased.body) == (0, b'{"update_id": 1}')
    stored = await world.redis.hgetall(KEYS.update("1"))
    assert (leased.accepted_ms, leased.expires_ms) == (
        int(stored[b"accepted_ms"]),
        int(stored[b"expires_ms"]),
    )
    assert await world.settle(Settle("delivered", leased.id, leased.token)) == (True,)
    await world.check()


async def test_an_offer_never_overtakes(world: World) -> None:
    """An offer leases nothing past what is ready, and nothing past the head of its lane."""
    await world.accept(arrival(1, "a", lane="1"))
    late = await world.accept(arrival(2, "a", lane="2"), offers=[Offer("a", 5, LEASE)])
    assert late[0].leased == ()
    await world.claim("a", 9)
    behind = await world.accept(
        arrival(3, "a", lane="1"), arrival(4, "a", lane="4"), offers=[Offer("a", 5, LEASE)]
    )
    assert [[job.id for job in one.leased] for one in behind] == [[], ["4/a"]]
    assert await world.state("3/a") == "waiting"
    await world.check()


async def test_a_route_is_known_from_its_first_job(world: World) -> None:
    """Work for a route that no process has shown yet is found by sweeps and by the status."""
    await world.accept(arrival(1, "never-served"))
    stats = await world.store.stats()
    assert [(route.name, route.waiting) for route in stats.routes] == [("never-served", 1)]
