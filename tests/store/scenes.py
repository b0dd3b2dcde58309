"""For each way of a job that docs/queue.md knows the shortest history in which it is gone."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from store.page import Transition
from store.world import KEYS, LEASE, World, arrival
from twr.core.jobs import Destination, Offer, Settle
from twr.errors import StoreError

Step = Callable[[], Awaitable[object]]
# Prepares a store and returns the step that takes the job 1/a its way.
Scene = Callable[[World], Awaitable[Step]]

HELD = ("processing", "ready", "suspect")
WAITING = ("waiting", "ready", "delayed", "suspect")
JOB = "1/a"


async def send(world: World, number: int, *, whole: bool = True) -> None:
    """An update for the route a; one that is not whole is stopped at a key of the route b."""
    if whole:
        await world.accept(arrival(number, "a"))
        return
    await world.redis.set(KEYS.route("b", "ready"), "mine")
    with pytest.raises(StoreError):
        await world.accept(arrival(number, "a", "b"))
    await world.redis.delete(KEYS.route("b", "ready"))


async def begin(world: World, state: str, *, crashes: int = 0, whole: bool = True) -> str:
    """Bring the job into a state; the token of its lease. `waiting` is behind 0/a."""
    await world.store.beat(["a", "b"], take_over=True)
    if state == "waiting":
        await send(world, 0)
    await send(world, 1, whole=whole)
    if state == "waiting":
        return ""
    job = await world.take("a")
    if state == "delayed":
        await world.settle(Settle("retry", JOB, job.token, "60000"))
    elif state == "dead":
        await world.kill(job)
    elif state != "processing":
        await set_crashes(world, 2 if state == "suspect" else 0)
        await cut_off(world)
    if crashes:
        await set_crashes(world, crashes)
    assert await world.state(JOB) == state
    return job.token


async def set_crashes(world: World, number: int, job: str = JOB) -> None:
    await world.redis.hset(KEYS.job(job), "crashes", str(number))


async def cut_off(world: World) -> None:
    """The lease ends and another instance gives it back; its token holds on."""
    await world.let_lease_end(JOB)
    await world.process("m1", "vps-2").sweep()


def settle(kind: Any, before: str, argument: str = "", crashes: int = 0) -> Scene:
    async def scene(world: World) -> Step:
        token = await begin(world, before, crashes=crashes)
        return lambda: world.settle(Settle(kind, JOB, token, argument))

    return scene


def new(*earlier: int, most: int = 9, slots: int = 0) -> Scene:
    async def scene(world: World) -> Step:
        for number in earlier:
            await send(world, number)
        update = arrival(1, Destination("a", True, most))
        return lambda: world.accept(update, offers=[Offer("a", slots, LEASE)])

    return scene


def again(before: str, *, whole: bool) -> Scene:
    """The update comes once more, for another route."""

    async def scene(world: World) -> Step:
        await begin(world, before, whole=whole)
        if whole:
            await world.let_be_forgotten(1)
        return lambda: world.accept(arrival(1, "c"))

    return scene


def claim(before: str, fate: str = "") -> Scene:
    async def scene(world: World) -> Step:
        await begin(world, before)
        if fate == "late":
            await world.let_expire(1)
        elif fate == "bodiless":
            await world.redis.delete(KEYS.update("1"))
        return lambda: world.claim("a", suspect=before == "suspect")

    return scene


async def promote(world: World) -> Step:
    """Another one is first, and takes the only slot."""
    await begin(world, "delayed")
    await world.let_delay_end(JOB)
    await world.accept(arrival(2, "a", lane="2"))
    return lambda: world.claim("a")


async def crash(world: World) -> object:
    new = world.process("n2")
    await new.beat(["a"], take_over=True)
    return await new.recover([])


def recover(crashes: int) -> Scene:
    async def scene(world: World) -> Step:
        await begin(world, "processing", crashes=crashes)
        return lambda: crash(world)

    return scene


def reclaim(crashes: int) -> Scene:
    async def scene(world: World) -> Step:
        await begin(world, "processing", crashes=crashes)
        return lambda: world.store.reclaim([])

    return scene


def reap(crashes: int, *, silent: bool = False) -> Scene:
    async def scene(world: World) -> Step:
        await begin(world, "processing", crashes=crashes)
        await world.let_lease_end(JOB)
        if silent:
            await world.let_heartbeat_lapse("vps-1")
        return world.process("m1", "vps-2").sweep

    return scene


def expire(before: str) -> Scene:
    async def scene(world: World) -> Step:
        await begin(world, before)
        await world.let_expire(1)
        return world.store.sweep

    return scene


async def two_heads(world: World) -> Step:
    """The lane's list was lost with its head in it, and the job was taken for the head."""
    await send(world, 0)
    job = await world.take("a")
    await world.settle(Settle("retry", job.id, job.token, "60000"))
    await send(world, 1)
    lane = KEYS.route("a", "lane:7")
    await world.redis.delete(lane)
    await world.redis.rpush(lane, JOB)
    await world.redis.rpush(KEYS.route("a", "ready"), JOB)
    await world.redis.hset(KEYS.job(JOB), "state", "ready")
    return lambda: world.store.repair("a")


def repair(crashes: int) -> Scene:
    """The lease is lost, and would have ended."""

    async def scene(world: World) -> Step:
        await begin(world, "processing", crashes=crashes)
        await world.let_lease_end(JOB)
        await world.redis.zrem(KEYS.route("a", "processing"), JOB)
        return lambda: world.store.repair("a")

    return scene


def replay(to: str, *, ordered: bool, behind: bool = False) -> Scene:
    async def scene(world: World) -> Step:
        await begin(world, "dead")
        if behind:
            await world.accept(arrival(2, to))
        return lambda: world.store.dead_letters.replay(JOB, to, ordered=ordered)

    return scene


def move(before: str, *, behind: bool) -> Scene:
    async def scene(world: World) -> Step:
        await begin(world, before)
        if behind:
            await world.accept(arrival(2, "b"))
        return lambda: world.store.move("a", "b", ordered=behind)

    return scene


async def drop(world: World) -> Step:
    await begin(world, "dead")
    return lambda: world.store.dead_letters.drop([JOB])


async def trim(world: World) -> Step:
    await begin(world, "dead")
    return lambda: world.store.dead_letters.trim(3600, 0)


# The head of its lane leaves it: each by the step that takes 0/a away.


def head_settled(kind: Any) -> Scene:
    async def scene(world: World) -> Step:
        await begin(world, "waiting")
        head = await world.take("a")
        return lambda: world.settle(Settle(kind, head.id, head.token, "permanent"))

    return scene


async def head_taken_back(world: World) -> Step:
    await send(world, 0, whole=False)
    await send(world, 1)
    return lambda: world.accept(arrival(0, "c"))


async def head_late_for_a_claim(world: World) -> Step:
    """Another one is next, and takes the only slot."""
    await begin(world, "waiting")
    await world.let_expire(0)
    await world.accept(arrival(2, "a", lane="2"))
    return lambda: world.claim("a")


async def head_poison(world: World) -> Step:
    await begin(world, "waiting")
    await world.take("a")
    await set_crashes(world, 2, "0/a")
    return lambda: crash(world)


async def head_expired(world: World) -> Step:
    await begin(world, "waiting")
    await world.let_expire(0)
    return world.store.sweep


async def head_lost(world: World) -> Step:
    """The lane was lost, and then its head delivered."""
    await begin(world, "waiting")
    head = await world.take("a")
    await world.redis.delete(KEYS.route("a", "lane:7"))
    await world.settle(Settle("delivered", head.id, head.token))
    return lambda: world.store.repair("a")


async def head_moved(world: World) -> Step:
    """What is behind it stays: the other route has it."""
    await world.accept(arrival(0, "a"), arrival(1, "a", "b"))
    return lambda: world.store.move("a", "b", ordered=True)


_WAYS: list[tuple[str, str, str, Scene]] = [
    ("none", "accept", "waiting", new(0)),
    ("none", "accept", "ready", new()),
    ("none", "accept", "processing", new(slots=1)),
    ("none", "accept", "dead (overflow)", new(most=0)),
    ("dead", "accept", "dead", again("dead", whole=True)),
    *((state, "accept", "none", again(state, whole=False)) for state in (*WAITING, "processing")),
    ("dead", "accept", "none", again("dead", whole=False)),
    ("waiting", "accept", "ready", head_taken_back),
    ("waiting", "claim", "ready", head_late_for_a_claim),
    ("waiting", "settle: delivered", "ready", head_settled("delivered")),
    ("waiting", "settle: dead", "ready", head_settled("dead")),
    ("waiting", "recover", "ready", head_poison),
    ("waiting", "sweep", "ready", head_expired),
    ("waiting", "repair", "ready", head_lost),
    ("waiting", "move", "ready", head_moved),
    ("delayed", "claim", "ready", promote),
    *((state, "claim", "processing", claim(state)) for state in ("ready", "suspect")),
    *((state, "claim", "dead (expired)", claim(state, "late")) for state in ("ready", "suspect")),
    *((state, "claim", "none", claim(state, "bodiless")) for state in ("ready", "suspect")),
    *((state, "settle: delivered", "none", settle("delivered", state)) for state in HELD),
    *((state, "settle: retry", "delayed", settle("retry", state, "60000")) for state in HELD),
    *((state, "settle: dead", "dead", settle("dead", state, "permanent")) for state in HELD),
    ("processing", "settle: release", "ready", settle("release", "processing", "back", 1)),
    ("processing", "settle: release", "suspect", settle("release", "processing", "front", 2)),
    ("processing", "reclaim", "ready", reclaim(1)),
    ("processing", "reclaim", "suspect", reclaim(2)),
    ("ready", "repair", "waiting", two_heads),
    ("processing", "repair", "ready", repair(1)),
    ("processing", "repair", "suspect", repair(2)),
    ("processing", "recover", "ready", recover(0)),
    ("processing", "recover", "suspect", recover(1)),
    ("processing", "recover", "dead (poison)", recover(2)),
    ("processing", "sweep", "ready", reap(0, silent=True)),
    ("processing", "sweep", "suspect", reap(2)),
    ("processing", "sweep", "dead (poison)", reap(2, silent=True)),
    *((state, "sweep", "dead (expired)", expire(state)) for state in WAITING),
    *((state, "move", "waiting", move(state, behind=True)) for state in WAITING),
    *((state, "move", "ready", move(state, behind=False)) for state in WAITING[1:]),
    ("dead", "replay", "waiting", replay("a", ordered=True, behind=True)),
    ("dead", "replay", "ready", replay("b", ordered=False)),
    ("dead", "drop", "none", drop),
    ("dead", "trim", "none", trim),
]
SCENES = {Transition(before, step, after): scene for before, step, after, scene in _WAYS}
