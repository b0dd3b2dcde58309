"""Services that fail, redirect, hang, or are away for a while."""

import asyncio
from pathlib import Path

import pytest

from system.harness import Daemon, message, route
from targets import (
    Behaviour,
    Received,
    Target,
    answering,
    by_turns,
    cutting,
    hanging,
    held,
    late,
    saying,
)
from until import until

pytestmark = pytest.mark.anyio

QUICK = {"backoff": {"first": "50ms", "factor": 1, "max": "10s", "jitter": 0}}
PATIENT = {"breaker": {"failures": 1000, "cooldown": "5s", "max_cooldown": "1m"}}


async def test_a_redirect_is_a_failure_and_is_not_followed(short_path: Path) -> None:
    """The place it names is never asked, and the update is tried again."""
    async with Target() as elsewhere:
        first = answering(302, Location=elsewhere.url)
        async with (
            Target(by_turns(first, answering())) as target,
            Daemon(short_path, [route("shop", target, **QUICK)]) as daemon,
        ):
            await daemon.accepts(message(1))
            await daemon.comes("shop", delivered=1, failed_attempts=1)
        assert [request.attempt for request in target.received] == [1, 2]
    assert elsewhere.connections == 0


@pytest.mark.parametrize(
    "failure",
    [answering(500), answering(503), cutting, saying(b"no HTTP\r\n\r\n", keep=False)],
    ids=["500", "503", "cut", "not http"],
)
async def test_a_failing_target_gets_its_updates_when_it_recovers(
    short_path: Path, failure: Behaviour
) -> None:
    """Each is delivered after the failures, in the order of its chat."""
    turns = by_turns(failure, failure, answering())
    async with (
        Target(turns) as target,
        Daemon(short_path, [route("shop", target, **QUICK)]) as daemon,
    ):
        await daemon.accepts(message(1), message(2))
        await daemon.comes("shop", delivered=2, failed_attempts=2, waiting=0)
    seen = [(request.update_id, request.attempt) for request in target.received]
    assert seen == [(1, 1), (1, 2), (1, 3), (2, 1)]


async def test_a_slow_answer_within_the_timeout_is_one_post(short_path: Path) -> None:
    """Half a second before the timeout nothing has been given up or sent again."""
    async with (
        Target(late(1.5)) as target,
        Daemon(short_path, [route("shop", target, timeout="2s")]) as daemon,
    ):
        await daemon.accepts(message(1))
        await daemon.comes("shop", delivered=1, failed_attempts=0)
    assert len(target.received) == 1


async def test_a_target_that_is_away_gets_everything_when_it_is_back(short_path: Path) -> None:
    """The route pauses, burns no attempts, and resumes by itself."""
    breaker = {"failures": 3, "cooldown": "100ms", "max_cooldown": "200ms"}
    async with Target() as target:
        shop = route("shop", target, breaker=breaker, max_attempts=4, **QUICK)
        await target.close()
        async with Daemon(short_path, [shop]) as daemon:
            await daemon.accepts(*(message(n, chat=n) for n in range(10)))
            await daemon.comes("shop", breaker="open", waiting=10)
            await daemon.says("delivery failed .*then=")
            await target.open()
            await daemon.comes("shop", breaker="closed", delivered=10, waiting=0, dead=0)
            assert daemon.logged("route paused route=shop")
            assert daemon.logged("route resumed route=shop")
    assert sorted(target.ids) == list(range(10))


async def test_retry_after_is_waited_for(short_path: Path) -> None:
    """A target that asks for a second is asked again not before, and then once."""
    first = answering(429, Retry_After="1")
    async with (
        Target(by_turns(first, answering())) as target,
        Daemon(short_path, [route("shop", target, **QUICK)]) as daemon,
    ):
        await daemon.accepts(message(1))
        await daemon.comes("shop", delivered=1)
    one, two = target.received
    assert 1.0 <= two.at - one.at < 2.0


async def test_refused_updates_block_nobody(short_path: Path) -> None:
    """A hundred chats whose updates are answered 500, then a good one: delivered at once."""

    async def refuse(request: Received, writer: asyncio.StreamWriter) -> bool:
        return await answering(200 if request.update_id == 1000 else 500)(request, writer)

    async with (
        Target(refuse) as target,
        Daemon(short_path, [route("shop", target, concurrency=4)]) as daemon,
    ):
        for n in range(100):
            await daemon.accepts(message(n, chat=n))
        await target.has(100)
        await daemon.accepts(message(1000, chat=1000))
        await daemon.comes("shop", within=2, delivered=1)


@pytest.mark.parametrize(
    ("status", "reason", "posts"), [(410, "permanent", 1), (500, "attempts", 3)]
)
async def test_what_a_target_never_takes_is_a_dead_letter_and_frees_its_chat(
    short_path: Path, status: int, reason: str, posts: int
) -> None:
    """At once where its status is permanent, else when the attempts are used up."""

    async def refuse_first(request: Received, writer: asyncio.StreamWriter) -> bool:
        given = status if request.update_id == 1 else 200
        return await answering(given, b"go away")(request, writer)

    shop = {"max_attempts": 3, **QUICK, **PATIENT}
    async with (
        Target(refuse_first) as target,
        Daemon(short_path, [route("shop", target, **shop)]) as daemon,
    ):
        await daemon.accepts(message(1), message(2))
        await daemon.comes("shop", delivered=1, dead=1, waiting=0)
        assert target.ids == [1] * posts + [2]
        store = daemon.open_store()
        letter = await store.dead_letters.show("1/shop")
        await store.close()
    assert letter is not None
    assert (letter.reason, letter.attempts, letter.last_status) == (reason, posts, status)
    assert letter.answer == "go away"


async def test_a_timeout_frees_the_slot(short_path: Path) -> None:
    """A target that hangs once is tried again after the timeout."""
    async with (
        Target(by_turns(hanging(), answering())) as target,
        Daemon(short_path, [route("shop", target, timeout="300ms", **QUICK)]) as daemon,
    ):
        await daemon.accepts(message(1))
        await daemon.comes("shop", delivered=1, failed_attempts=1)
        assert daemon.logged('delivery failed route=shop .*error="timeout after 0.3s"')


async def test_a_full_queue_makes_dead_letters_of_what_comes_on_top(short_path: Path) -> None:
    """With `max_pending` waiting, the next update is answered 202 and is a dead letter."""
    gate = asyncio.Event()
    async with (
        Target(held(gate)) as target,
        Daemon(short_path, [route("shop", target, max_pending=2)]) as daemon,
    ):
        await daemon.accepts(message(1), message(2), message(3))
        await daemon.comes("shop", waiting=2, dead=1)
        gate.set()
        await daemon.comes("shop", waiting=0, delivered=2)
    assert target.ids == [1, 2]


async def test_a_paused_route_tries_another_chat_each_time(short_path: Path) -> None:
    """Of ten chats with work each is tried, one at a time."""
    breaker = {"failures": 1, "cooldown": "20ms", "max_cooldown": "20ms"}
    async with (
        Target(answering(503)) as target,
        Daemon(short_path, [route("shop", target, breaker=breaker, concurrency=1)]) as daemon,
    ):
        await daemon.accepts(*(message(n, chat=n) for n in range(10)))
        await until(lambda: set(target.ids) == set(range(10)), 10, "a try of each chat")
    assert target.most_at_once == 1
