"""Sends updates as Telegram does: one at a time in a chat, again until it is answered 2xx."""

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import aiohttp

from bench.crashing.record import Sent
from bench.crashing.updates import (
    ERROR_AT,
    EXPIRES,
    INVALID_AT,
    KINDS,
    PATH,
    SECRET,
    Made,
    make,
)

FIRST_ID = 700_000_000
# How long an answer is waited for, and the pause before an update is sent again.
PATIENCE, PAUSE = 3.0, 0.3
# How many of the updates are sent on two connections at once.
TWICE = 0.05
HEADERS = {"X-Telegram-Bot-Api-Secret-Token": SECRET, "Content-Type": "application/json"}


@dataclass(slots=True)
class Telegram:
    """`addresses`: where the balancer in front of the instances sends a request, in no order.
    `rate` is updates a second over all chats."""

    random: random.Random
    addresses: Callable[[], Sequence[str]]
    chats: int
    rate: float
    sent: list[Made] = field(default_factory=list)
    bodies: dict[int, bytes] = field(default_factory=dict)
    began: dict[int, float] = field(default_factory=dict)
    acknowledged: dict[int, float] = field(default_factory=dict)
    answers: Counter[str] = field(default_factory=Counter)
    strange: list[str] = field(default_factory=list)
    calm: set[int] = field(default_factory=set)
    _ids: "itertools.count[int]" = field(default_factory=lambda: itertools.count(FIRST_ID))

    async def run(self, over: asyncio.Event) -> None:
        """Send until it is over, and then until all that was begun is acknowledged."""
        async with _session() as session, asyncio.TaskGroup() as tasks:
            for chat in range(1, self.chats + 1):
                tasks.create_task(self._write_to(chat, session, over))

    async def run_calm(self, updates: int) -> None:
        """Send so many updates that nobody refuses, each from a chat of its own, when all is well;
        return when all are acknowledged."""
        async with _session() as session, asyncio.TaskGroup() as tasks:
            for chat in range(self.chats + 1, self.chats + 1 + updates):
                await asyncio.sleep(self.random.expovariate(self.rate))
                update_id = next(n for n in self._ids if n % ERROR_AT and n % INVALID_AT)
                self.calm.add(update_id)
                tasks.create_task(self._begin(update_id, chat, session))

    def record(self) -> list[Sent]:
        """All updates, in the order in which they were begun."""
        return [
            Sent(
                made.update_id,
                made.lane,
                made.routes,
                self.began[made.update_id],
                self.acknowledged.get(made.update_id),
                EXPIRES[made.kind],
                made.refused,
                made.update_id in self.calm,
            )
            for made in self.sent
        ]

    async def _write_to(
        self, chat: int, session: aiohttp.ClientSession, over: asyncio.Event
    ) -> None:
        while True:
            await asyncio.sleep(self.random.expovariate(self.rate / self.chats))
            if over.is_set():
                return
            await self._begin(next(self._ids), chat, session)

    async def _begin(self, update_id: int, chat: int, session: aiohttp.ClientSession) -> None:
        made = make(update_id, chat, self.random.choice(KINDS))
        self.sent.append(made)
        self.bodies[update_id] = made.body
        self.began[update_id] = time.monotonic()
        await self._deliver(made, session)

    async def _deliver(self, made: Made, session: aiohttp.ClientSession) -> None:
        while True:
            copies = 2 if self.random.random() < TWICE else 1
            posts = [self._post(made, session) for _ in range(copies)]
            if any(await asyncio.gather(*posts)):
                self.acknowledged[made.update_id] = time.monotonic()
                return
            await asyncio.sleep(self.random.uniform(0.5, 1.5) * PAUSE)

    async def _post(self, made: Made, session: aiohttp.ClientSession) -> bool:
        """One request, to the first of the instances that can be connected to."""
        addresses = list(self.addresses())
        self.random.shuffle(addresses)
        for address in addresses:
            try:
                async with session.post(
                    f"http://{address}{PATH}", data=made.body, headers=HEADERS
                ) as response:
                    return self._note(made, response.status, await response.json())
            except aiohttp.ClientConnectorError:
                continue
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                self.answers[type(error).__name__] += 1
                return False
        self.answers["no instance"] += 1
        return False

    def _note(self, made: Made, status: int, answer: dict[str, object]) -> bool:
        word = f"{status} {answer.get('status')}"
        self.answers[word] += 1
        wanted = {"queued": len(made.routes), "duplicate": 0}
        if status == 202 and answer.get("deliveries") == wanted.get(str(answer.get("status"))):
            return True
        if (status, answer) != (503, {"status": "unavailable"}):
            self.strange.append(f"{made.update_id}: {word}")
        return False


def _session() -> aiohttp.ClientSession:
    timeout = aiohttp.ClientTimeout(total=PATIENCE)
    return aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0))
