"""Dead letters as an operator handles them: chosen, listed, replayed, dropped."""

import re
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from twr.core.jobs import REASONS, DeadLetter, Stats
from twr.core.nearest import nearest
from twr.core.text import escape
from twr.edges.store.dead_letters import Replayed
from twr.errors import NotFound

_ID = re.compile(r"\d{1,19}(?:~\d+)?/[A-Za-z0-9_.-]{1,64}", re.ASCII)

Result = Literal["replayed", "dropped", "missing", "taken", "no_route"]
DONE: frozenset[Result] = frozenset({"replayed", "dropped"})


class Letters(Protocol):
    """What the store knows of dead letters."""

    def pages(self) -> AsyncIterator[list[DeadLetter]]: ...
    async def show(self, job_id: str) -> DeadLetter | None: ...
    async def replay(self, job_id: str, to: str, *, ordered: bool) -> Replayed: ...
    async def drop(self, job_ids: Sequence[str]) -> int: ...


@dataclass(frozen=True, slots=True)
class Selection:
    """Dead letters by their ids; or those of these routes and reasons (of all, where none is
    named), of which only the oldest `limit` count.
    """

    ids: tuple[str, ...] = ()
    routes: frozenset[str] = frozenset()
    reasons: frozenset[str] = frozenset()
    limit: int | None = None

    def takes(self, route: str, reason: str) -> bool:
        """Whether a dead letter of that route and reason belongs to it."""
        return (not self.routes or route in self.routes) and (
            not self.reasons or reason in self.reasons
        )

    def count(self, stats: Stats) -> int:
        """How many dead letters it takes, as the store counts them, without its limit."""
        if self.ids:
            return len(self.ids)
        return sum(count for key, count in stats.dead.items() if self.takes(*key))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one dead letter. `to` is the route that it went, or should have gone, to."""

    id: str
    result: Result
    to: str | None = None

    @property
    def done(self) -> bool:
        return self.result in DONE


def known_routes(configured: Collection[str], stats: Stats) -> tuple[str, ...]:
    """All names of routes there are: of the configuration, and those that left something behind."""
    dead = (route for route, _ in stats.dead)
    return tuple(dict.fromkeys([*configured, *(it.name for it in stats.routes), *dead]))


def require(name: str, known: Collection[str], what: str) -> None:
    """Raise NotFound (`what` and the nearest name that is known) unless `name` is known."""
    if name not in known:
        close = nearest(name, known)
        raise NotFound(f"{what} {escape(name)}" + (f"; did you mean {close}?" if close else ""))


def check(selection: Selection, configured: Collection[str], stats: Stats) -> None:
    """Raise NotFound for a route or a reason that does not exist, and for what is no id."""
    known = known_routes(configured, stats)
    for route in sorted(selection.routes):
        require(route, known, "neither the configuration nor the store has a route")
    for reason in sorted(selection.reasons):
        require(reason, REASONS, f"the reasons are {', '.join(REASONS)}, and not")
    for job_id in selection.ids:
        if not _ID.fullmatch(job_id):
            raise NotFound(f"{escape(job_id)} is no id of a dead letter, such as 4242/support")


async def find(letters: Letters, job_id: str, routes: Collection[str]) -> DeadLetter:
    """The dead letter of that id, with its body. Raises NotFound with the nearest id: that of the
    same update on another of `routes`."""
    letter = await letters.show(job_id)
    if letter is not None:
        return letter
    update_id, _, route = job_id.partition("/")
    others = [f"{update_id}/{name}" for name in routes if name != route]
    present = [other for other in others if await letters.show(other) is not None]
    close = nearest(job_id, present) or next(iter(present), None)
    raise NotFound(f"no dead letter {job_id}" + (f"; did you mean {close}?" if close else ""))


async def select(
    letters: Letters, selection: Selection, stats: Stats
) -> AsyncIterator[list[DeadLetter]]:
    """The dead letters that a selection without ids takes, oldest first, in pages.

    Only those that had died when `stats` were taken: what is replayed and dies once more
    while this goes on does not come again.
    """
    left = selection.limit
    async for page in letters.pages():
        taken = [
            it for it in page if it.died_ms <= stats.now_ms and selection.takes(it.route, it.reason)
        ]
        if left is not None:
            taken = taken[:left]
            left -= len(taken)
        if taken:
            yield taken
        if left == 0 or (page and page[-1].died_ms > stats.now_ms):
            return


async def replay(
    letters: Letters,
    selection: Selection,
    stats: Stats,
    *,
    ordered: Mapping[str, bool],
    to: str | None = None,
) -> AsyncIterator[Outcome]:
    """Start what is selected anew, each at the end of its lane of route `to`, or of its own.

    `ordered` has the routes of the configuration, and whether each keeps the order of chats. One
    by one, so that dead letters of one lane keep theirs. Raises StoreError.
    """
    async for ids in _ids(letters, selection, stats):
        for job_id in ids:
            target = to or job_id.partition("/")[2]
            if target not in ordered:
                yield Outcome(job_id, "no_route", target)
                continue
            result = await letters.replay(job_id, target, ordered=ordered[target])
            yield Outcome(job_id, result, target)


async def drop(letters: Letters, selection: Selection, stats: Stats) -> AsyncIterator[Outcome]:
    """Delete what is selected for good, one by one, to tell of each. Raises StoreError."""
    async for ids in _ids(letters, selection, stats):
        for job_id in ids:
            dropped = await letters.drop([job_id])
            yield Outcome(job_id, "dropped" if dropped else "missing")


async def _ids(
    letters: Letters, selection: Selection, stats: Stats
) -> AsyncIterator[tuple[str, ...]]:
    if selection.ids:
        yield selection.ids
        return
    async for page in select(letters, selection, stats):
        yield tuple(letter.id for letter in page)
