"""`twr routes move` as a process, on a real Valkey."""

import time
from typing import Any

import pytest
from redis import Redis

from cli.commands import KEYS, Place


def wait_for(redis: Redis, route: str, *update_ids: int, state: str = "ready") -> None:
    """Write jobs that wait for a route, as the store's own scripts leave them."""
    now_ms = int(time.time() * 1000)
    for number, update_id in enumerate(update_ids):
        job_id, place = f"{update_id}/{route}", KEYS.route(route, state)
        fields: dict[Any, Any] = {"body": "{}", "type": "message", "lane": "7", "routes": route}
        fields |= {"accepted_ms": now_ms + number, "expires_ms": now_ms + 86_400_000}
        redis.hset(KEYS.update(str(update_id)), mapping=fields)
        redis.hincrby(KEYS.update(str(update_id)), "refs", 1)
        redis.hset(KEYS.job(job_id), mapping={"state": state, "attempts": 3, "lane": ""})
        redis.zadd(KEYS.route(route, "all"), {job_id: now_ms + number})
        if state == "processing":
            redis.zadd(place, {job_id: now_ms + 60_000})
        else:
            redis.rpush(place, job_id)
    redis.hset(f"{KEYS.tag}:routes", route, now_ms)


def ready(redis: Redis, route: str) -> list[str]:
    """The ids that are ready for a route."""
    found: Any = redis.lrange(KEYS.route(route, "ready"), 0, -1)
    return list(found)


def test_work_of_an_orphaned_route_is_moved(place: Place, redis: Redis) -> None:
    """What waits for a route that the file no longer has goes to another, in its order."""
    wait_for(redis, "old", *range(1, 451))
    ended = place.twr("routes", "move", "old", "billing")
    assert (ended.code, ended.out, ended.err) == (0, "moved 450 from old to billing\n", "")
    assert ready(redis, "billing") == [f"{number}/billing" for number in range(1, 451)]
    assert redis.zcard(KEYS.route("old", "all")) == 0
    assert redis.hget(KEYS.job("1/billing"), "attempts") == "3"


def test_an_ordered_route_gets_lanes(place: Place, redis: Redis) -> None:
    """In a route that keeps the order of chats only the first of a chat is ready."""
    wait_for(redis, "old", 1, 2)
    assert place.twr("routes", "move", "old", "support").code == 0
    assert ready(redis, "support") == ["1/support"]
    assert redis.lrange(KEYS.route("support", "lane:7"), 0, -1) == ["1/support", "2/support"]


def test_what_cannot_be_moved_stays(place: Place, redis: Redis) -> None:
    """A job in flight stays, and one whose update the other route has; the exit code is 1."""
    wait_for(redis, "support", 1, state="processing")
    wait_for(redis, "support", 2, 3)
    wait_for(redis, "billing", 2)
    ended = place.twr("routes", "move", "support", "billing")
    assert (ended.code, ended.out) == (1, "moved 1 from support to billing\n")
    assert ended.err == "2 still with support: in flight, or billing has the update already\n"
    assert ready(redis, "billing") == ["2/billing", "3/billing"]


def test_json_tells_both_numbers(place: Place, redis: Redis) -> None:
    """`--json` prints what was moved and what stayed, nothing at all being fine too."""
    ended = place.twr("routes", "move", "support", "billing", "--json")
    assert (ended.code, ended.objects) == (0, [{"moved": 0, "stayed": 0}])


@pytest.mark.parametrize(
    ("old", "new", "code", "line"),
    [
        (
            "suport",
            "billing",
            1,
            "neither the configuration nor the store has a route suport; did you mean support?",
        ),
        (
            "odl",
            "billing",
            1,
            "neither the configuration nor the store has a route odl; did you mean old?",
        ),
        ("old", "biling", 1, "{file} has no route biling; did you mean billing?"),
        ("support", "old", 1, "{file} has no route old"),
        ("support", "support", 2, "OLD and NEW are the same route"),
    ],
)
def test_a_wrong_name_moves_nothing(
    place: Place, redis: Redis, old: str, new: str, code: int, line: str
) -> None:
    """OLD must be known to the file or the store, NEW to the file; the nearest name is told."""
    wait_for(redis, "old", 1)
    ended = place.twr("routes", "move", old, new)
    assert (ended.code, ended.out, ended.err) == (code, "", line.format(file=place.file) + "\n")
    assert ready(redis, "old") == ["1/old"]
