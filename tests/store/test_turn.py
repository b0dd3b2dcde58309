"""Claims and settles: who may have which job, and what becomes of it."""

import pytest

from store.invariants import leftovers
from store.world import KEYS, LEASE, World, arrival
from twr.core.jobs import Claim, Destination, Job, Settle

pytestmark = pytest.mark.anyio


def ids(jobs: tuple[Job, ...]) -> list[str]:
    return [job.id for job in jobs]


async def test_a_lane_has_one_job_out_at_a_time(world: World) -> None:
    """Within a lane the next job waits until the one before is delivered or dead."""
    await world.accept(*(arrival(n, "a") for n in (1, 2, 3)))
    first = await world.claim("a", 9)
    assert (ids(first.jobs), first.ready) == (["1/a"], 0)
    assert ids((await world.claim("a", 9)).jobs) == []
    turn = await world.store.turn(
        [Settle("delivered", "1/a", first.jobs[0].token)], [Claim("a", 9, LEASE)]
    )
    assert ids(turn.claimed[0].jobs) == ["2/a"]
    await world.kill(turn.claimed[0].jobs[0])
    assert ids((await world.claim("a", 9)).jobs) == ["3/a"]
    await world.check()


async def test_lanes_do_not_wait_for_each_other(world: World) -> None:
    """A busy chat takes one slot, whatever waits behind its head."""
    busy = [arrival(n, "a", lane="busy") for n in range(1, 101)]
    quiet = [arrival(200 + n, "a", lane=f"quiet {n}") for n in range(3)]
    await world.accept(*busy, *quiet)
    assert ids((await world.claim("a", 9)).jobs) == ["1/a", "200/a", "201/a", "202/a"]


async def test_a_busy_lane_goes_to_the_end_of_the_line(world: World) -> None:
    """What follows in a lane stands behind the lanes that were ready before."""
    await world.accept(arrival(1, "a", lane="1"), arrival(2, "a", lane="1"))
    await world.accept(arrival(3, "a", lane="3"))
    assert [await world.deliver("a") for _ in range(3)] == ["1/a", "3/a", "2/a"]


async def test_order_none_has_no_lanes(world: World) -> None:
    """A route without order gets all that waits at once."""
    to = Destination("a", False, 100)
    await world.accept(*(arrival(n, to) for n in (1, 2, 3)))
    assert ids((await world.claim("a", 9)).jobs) == ["1/a", "2/a", "3/a"]
    await world.check()


async def test_routes_have_jobs_of_their_own(world: World) -> None:
    """One turn claims for several routes, each with its own slots and the same body."""
    await world.accept(arrival(1, "a", "b"), arrival(2, "a", "b", lane="8"))
    turn = await world.store.turn([], [Claim("a", 1, LEASE), Claim("b", 5, LEASE)])
    assert [ids(claimed.jobs) for claimed in turn.claimed] == [["1/a"], ["1/b", "2/b"]]
    assert [(c.route, c.ready, c.suspects) for c in turn.claimed] == [("a", 1, 0), ("b", 0, 0)]
    assert {job.body for job in turn.claimed[0].jobs} == {b'{"update_id": 1}'}


async def test_no_slots_claim_nothing(world: World) -> None:
    """A claim without slots only tells what is left."""
    await world.accept(arrival(1, "a"))
    claimed = await world.claim("a", 0)
    assert (claimed.jobs, claimed.ready) == ((), 1)


async def test_a_job_whose_update_the_store_lost_is_told_and_ends(world: World) -> None:
    """It holds up neither its lane nor its route."""
    await world.accept(*(arrival(n, "a") for n in (1, 2)))
    await world.redis.delete("{twr:main}:update:1")
    claimed = await world.claim("a", 5)
    assert (ids(claimed.jobs), claimed.gone) == (["2/a"], ("1/a",))
    await world.check()


async def test_one_turn_carries_no_more_bodies_than_a_few(world: World) -> None:
    """Claims of one turn end once their bodies weigh 4 MiB; the rest comes with the next."""
    body = b"x" * 1_500_000
    await world.accept(*(arrival(n, "a", lane=str(n), body=body) for n in range(5)))
    claimed = await world.claim("a", 5)
    assert (len(claimed.jobs), claimed.ready) == (3, 2)
    assert len((await world.claim("a", 5)).jobs) == 2


async def test_a_retry_waits_and_keeps_its_lane(world: World) -> None:
    """A failed attempt is counted, waits its delay, and holds back its own lane alone."""
    await world.accept(arrival(1, "a", lane="1"), arrival(2, "a", lane="1"))
    await world.accept(arrival(3, "a", lane="3"))
    job = await world.take("a")
    assert await world.settle(Settle("retry", job.id, job.token, "600000", "500", "HTTP 500")) == (
        True,
    )
    claimed = await world.claim("a", 9)
    assert ids(claimed.jobs) == ["3/a"]
    assert claimed.next_due == int(await world.field("1/a", "due_ms") or 0)
    await world.check()
    await world.let_delay_end("1/a")
    again = await world.take("a")
    assert (again.id, again.attempts) == ("1/a", 1)
    assert again.token != job.token
    assert ids((await world.claim("a", 9)).jobs) == []


async def test_no_delay_is_due_in_the_same_turn(world: World) -> None:
    """Settles go before claims: a retry without delay can be claimed at once."""
    await world.accept(arrival(1, "a"))
    job = await world.take("a")
    turn = await world.store.turn(
        [Settle("retry", job.id, job.token, "0", "503", "")], [Claim("a", 1, LEASE)]
    )
    assert [(again.id, again.attempts) for again in turn.claimed[0].jobs] == [("1/a", 1)]


@pytest.mark.parametrize(
    ("where", "order"), [("front", ["1/a", "2/a", "3/a"]), ("back", ["2/a", "3/a", "1/a"])]
)
async def test_a_release_counts_no_attempt(world: World, where: str, order: list[str]) -> None:
    """A job given back stands in front of or behind the others, as if it was never claimed."""
    await world.accept(*(arrival(n, "a", lane=str(n)) for n in (1, 2, 3)))
    job = await world.take("a")
    assert await world.settle(Settle("release", job.id, job.token, where)) == (True,)
    fields = set(await world.redis.hkeys(KEYS.job("1/a")))
    assert fields == {b"lane", b"attempts", b"state", b"claims", b"due_ms"}
    await world.check()
    claimed = await world.claim("a", 9)
    assert ids(claimed.jobs) == order
    assert {job.attempts for job in claimed.jobs} == {0}


async def test_a_probe_that_failed_leaves_word(world: World) -> None:
    """A release may tell of an attempt that does not count."""
    await world.accept(arrival(1, "a"))
    job = await world.take("a")
    await world.settle(Settle("release", job.id, job.token, "back", "503", "HTTP 503"))
    assert [await world.field("1/a", name) for name in ("last_status", "last_error")] == [
        "503",
        "HTTP 503",
    ]


async def test_delivered_work_leaves_nothing(world: World) -> None:
    """The body goes with the last of its deliveries, not before."""
    await world.accept(arrival(1, "a", "b"))
    await world.deliver("a")
    assert await world.redis.hget(KEYS.update("1"), "body") == b'{"update_id": 1}'
    assert await world.redis.hget(KEYS.update("1"), "refs") == b"1"
    await world.deliver("b")
    assert leftovers(await world.check()) == []


SETTLES = [
    Settle("delivered", "1/a", "", ""),
    Settle("retry", "1/a", "", "0", "500", "HTTP 500"),
    Settle("release", "1/a", "", "front"),
    Settle("dead", "1/a", "", "permanent", "410", "gone"),
]


@pytest.mark.parametrize("settle", SETTLES, ids=lambda settle: settle.kind)
async def test_a_late_settle_changes_nothing(world: World, settle: Settle) -> None:
    """Once somebody else has claimed the job, the settle of its first holder is refused."""
    await world.accept(arrival(1, "a"))
    job = await world.take("a")
    await world.let_lease_end("1/a")
    other = world.process("n2", "vps-2")
    await other.sweep()
    again = await world.take("a", by=other)
    before = await world.picture()
    late = Settle(settle.kind, "1/a", job.token, settle.argument, settle.status, settle.error)
    assert await world.settle(late) == (False,)
    assert await world.picture() == before
    await world.settle(Settle("delivered", "1/a", again.token), by=other)
    assert await world.settle(late) == (False,)
    assert leftovers(await world.check()) == []


@pytest.mark.parametrize("settle", SETTLES, ids=lambda settle: settle.kind)
async def test_a_token_holds_until_somebody_has_claimed(world: World, settle: Settle) -> None:
    """A lease that ran out is no reason to refuse an answer, as long as the job is free."""
    await world.accept(arrival(1, "a"), arrival(2, "a"))
    job = await world.take("a")
    await world.let_lease_end("1/a")
    assert (await world.process("n2", "vps-2").sweep()).reaped == 1
    assert await world.state("1/a") == "ready"
    late = Settle(settle.kind, "1/a", job.token, settle.argument, settle.status, settle.error)
    assert await world.settle(late) == (True,)
    states = {"delivered": None, "retry": "delayed", "release": "ready", "dead": "dead"}
    assert await world.state("1/a") == states[settle.kind]
    await world.check()
    follower = await world.claim("a", 9)
    behind = settle.kind in ("delivered", "dead")
    assert ids(follower.jobs) == (["2/a"] if behind else ["1/a"])


async def test_a_settle_that_comes_twice_is_refused(world: World) -> None:
    """A settle whose answer was lost may be handed in again: the second changes nothing."""
    await world.accept(*(arrival(n, "a", lane=str(n)) for n in (1, 2, 3, 4)))
    jobs = (await world.claim("a", 4)).jobs
    kinds = ("delivered", "retry", "release", "dead")
    settles = [
        Settle(kind, job.id, job.token, argument)  # type: ignore[arg-type]
        for kind, job, argument in zip(kinds, jobs, ("", "1000", "front", "attempts"), strict=True)
    ]
    assert await world.settle(*settles) == (True,) * 4
    before = await world.picture()
    assert await world.settle(*settles) == (False,) * 4
    assert await world.picture() == before


async def test_no_token_comes_twice_for_an_id(world: World) -> None:
    """A job that died and was replayed is another lease to the same process."""
    await world.accept(arrival(1, "a"))
    first = await world.take("a")
    dead = Settle("dead", first.id, first.token, "permanent", "410", "gone")
    await world.settle(dead)
    await world.let_clock_tick()
    assert await world.store.dead_letters.replay("1/a", "a", ordered=True) == "replayed"
    again = await world.take("a")
    assert await world.settle(dead) == (False,)
    assert await world.settle(Settle("delivered", again.id, again.token)) == (True,)


async def test_a_dead_letter_tells_how_it_came(world: World) -> None:
    """What the target said last, and how often it was asked, is kept with the body."""
    await world.accept(arrival(1, "a", body=b"{}"))
    job = await world.take("a")
    await world.settle(Settle("retry", job.id, job.token, "0", "500", "HTTP 500"))
    job = await world.take("a")
    before = await world.now()
    await world.settle(Settle("dead", job.id, job.token, "attempts", "502", "HTTP 502", "<html>"))
    letter = await world.store.dead_letters.show("1/a")
    assert letter is not None
    assert before <= letter.died_ms <= await world.now()
    assert (letter.id, letter.update_id, letter.route, letter.type) == ("1/a", 1, "a", "message")
    assert (letter.reason, letter.attempts, letter.last_status) == ("attempts", 2, 502)
    assert (letter.last_error, letter.answer, letter.body) == ("HTTP 502", "<html>", b"{}")
    assert letter.accepted_ms == job.accepted_ms
    await world.check()


async def test_stale_ids_in_the_ready_list_are_skipped(world: World) -> None:
    """An id whose job is gone or elsewhere gives no lease, and is no reason to stop."""
    await world.accept(arrival(1, "a", lane="1"), arrival(2, "a", lane="2"))
    job = await world.take("a")
    await world.redis.lpush(KEYS.route("a", "ready"), job.id, "99/a", job.id)
    assert ids((await world.claim("a", 9)).jobs) == ["2/a"]
    await world.check()


async def test_a_job_without_a_body_is_dropped(world: World) -> None:
    """A body that somebody deleted by hand blocks neither its lane nor the claim."""
    await world.accept(arrival(1, "a"), arrival(2, "a"))
    await world.redis.delete(KEYS.update("1"))
    assert ids((await world.claim("a", 9)).jobs) == ["2/a"]
    assert await world.state("1/a") is None


async def test_a_claim_of_many_slots_stays_short(world: World) -> None:
    """One claim looks at 1,000 ids at most, and says that more is left."""
    to = Destination("a", False, 100_000)
    await world.accept(*(arrival(n, to, body=b"x") for n in range(1100)))
    claimed = await world.claim("a", 5000)
    assert (len(claimed.jobs), claimed.ready) == (1000, 100)
