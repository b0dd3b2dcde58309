"""Dead letters in the store: listed in pages, shown, replayed, dropped, trimmed."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Literal, cast

from twr.core.jobs import DeadLetter
from twr.edges.store.client import Client
from twr.edges.store.keys import Keys, route_of, update_id_of

PAGE = 500
_FIELDS = ("state", "reason", "attempts", "last_status", "last_error", "died_ms", "answer")

Replayed = Literal["replayed", "missing", "taken"]


class DeadLetters:
    """The dead letters of one bot. Raises StoreError and its kinds."""

    def __init__(self, client: Client, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    async def pages(self) -> AsyncIterator[list[DeadLetter]]:
        """All dead letters, oldest first, a page at a time; no page blocks the store."""
        last: tuple[float, bytes] | None = None
        while True:
            fresh = await self._after(last)
            if not fresh:
                return
            last = fresh[-1]
            yield [
                letter
                for letter in await self._read([name.decode() for _, name in fresh])
                if letter
            ]

    async def _after(self, last: tuple[float, bytes] | None) -> list[tuple[float, bytes]]:
        """What follows `last`, be it still there or not: its millisecond is searched from the
        start, since many may have died in the same one."""
        low = "-inf" if last is None else str(int(last[0]))
        start = 0
        while True:
            found = await self._client.call(
                self._client.redis.zrangebyscore(
                    self._keys.dead_letters, low, "+inf", start=start, num=PAGE, withscores=True
                )
            )
            fresh = [(score, name) for name, score in found if last is None or (score, name) > last]
            if fresh or len(found) < PAGE:
                return fresh
            start += PAGE

    async def show(self, job_id: str) -> DeadLetter | None:
        """One dead letter with its body; None when there is none of that id."""
        letter = (await self._read([job_id]))[0]
        if letter is None:
            return None
        key = self._keys.update(job_id.partition("/")[0])
        body = await self._client.call(self._client.redis.hget(key, "body"))
        return replace(letter, body=body)

    async def replay(self, job_id: str, to: str, *, ordered: bool) -> Replayed:
        """Start a dead letter anew at the end of its lane of route `to`."""
        answer = await self._client.run("replay", job_id, to, int(ordered))
        return cast(Replayed, answer.decode())

    async def drop(self, job_ids: Sequence[str]) -> int:
        """Delete dead letters for good, in steps; how many there were."""
        dropped = 0
        for start in range(0, len(job_ids), PAGE):
            dropped += await self._client.run("drop", *job_ids[start : start + PAGE])
        return dropped

    async def trim(self, max_age: float, max_count: int) -> int:
        """Drop the oldest over an age (seconds) or a count; how many."""
        dropped, more = 0, 1
        while more:
            count, more = await self._client.run("trim", int(max_age * 1000), max_count, PAGE)
            dropped += count
        return dropped

    async def _read(self, job_ids: Sequence[str]) -> list[DeadLetter | None]:
        pipe = self._client.redis.pipeline(transaction=False)
        for job_id in job_ids:
            pipe.hmget(self._keys.job(job_id), *_FIELDS)
            pipe.hmget(self._keys.update(job_id.partition("/")[0]), "accepted_ms", "type")
        rows = await self._client.call(pipe.execute())
        return [_letter(*found) for found in zip(job_ids, rows[::2], rows[1::2], strict=True)]


def _letter(
    job_id: str, job: Sequence[bytes | None], update: Sequence[bytes | None]
) -> DeadLetter | None:
    state, reason, attempts, status, error, died, answer = (
        value and value.decode() for value in job
    )
    if state != "dead":
        return None
    accepted, kind = update
    return DeadLetter(
        id=job_id,
        update_id=int(update_id_of(job_id)),
        route=route_of(job_id),
        reason=reason or "",
        attempts=int(attempts or 0),
        last_status=int(status) if status else None,
        last_error=error or None,
        accepted_ms=int(accepted or 0),
        died_ms=int(died or 0),
        type=(kind or b"").decode(),
        answer=answer or "",
    )
