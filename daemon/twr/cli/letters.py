"""How dead letters look: a table, one in full, JSON, and what became of many."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import typer

from twr.cli.tables import age, row
from twr.core.jobs import DeadLetter
from twr.core.text import clip, escape
from twr.core.update import InvalidUpdate, parse
from twr.services.dead_letters import Outcome

_HEADER = ("ID", "REASON", "ATTEMPTS", "STATUS", "AGE", "ERROR")
_REASON_WIDTH = 9
# How many failures are told one by one.
_MOST_TOLD = 20
# Under that many a replay is over before a bar could be read.
_LONG = 1000


class Table:
    """Dead letters as lines of `columns`; the ids of the first page set the width for all."""

    def __init__(self, now_ms: int, columns: int) -> None:
        self._now_ms = now_ms
        self._columns = columns
        self._widths: tuple[int, ...] = ()

    def lines(self, page: Sequence[DeadLetter]) -> Iterator[str]:
        """The lines of one page, after the header where it is the first."""
        if not self._widths:
            longest = max(len(letter.id) for letter in page)
            self._widths = (longest, _REASON_WIDTH, -8, -6, -4)
            yield self._line(_HEADER)
        for letter in page:
            yield self._line(self._cells(letter))

    def _line(self, cells: Sequence[str]) -> str:
        """The error is cut to fit; an id never is, since it is there to be copied."""
        *fixed, error = cells
        start = row(fixed, self._widths)
        return f"{start}  {clip(error, max(0, self._columns - len(start) - 2))}".rstrip()

    def _cells(self, letter: DeadLetter) -> Sequence[str]:
        return (
            letter.id,
            letter.reason,
            str(letter.attempts),
            str(letter.last_status or "-"),
            age((self._now_ms - letter.died_ms) / 1000),
            escape(letter.last_error or ""),
        )


def as_json(letter: DeadLetter) -> dict[str, Any]:
    """A dead letter for a program, without its body."""
    return {
        "id": letter.id,
        "update_id": letter.update_id,
        "route": letter.route,
        "reason": letter.reason,
        "attempts": letter.attempts,
        "last_status": letter.last_status,
        "last_error": letter.last_error,
        "accepted_at": _iso(letter.accepted_ms),
        "died_at": _iso(letter.died_ms),
    }


def whole_as_json(letter: DeadLetter) -> str:
    """A dead letter with the target's answer and the update, on one line of ASCII: an update
    may hold characters that no encoding has."""
    body = letter.body or b"null"
    try:
        content: Any = parse(body) if letter.body else None
    except InvalidUpdate:
        content = body.decode("utf-8", "replace")
    found = {**as_json(letter), "type": letter.type, "answer": letter.answer or None}
    return json.dumps({**found, "body": content})


def whole(letter: DeadLetter, now_ms: int) -> Iterator[str]:
    """A dead letter for a person: what happened, then the update."""
    fields = {
        "id": letter.id,
        "type": letter.type,
        "reason": letter.reason,
        "attempts": str(letter.attempts),
        "status": str(letter.last_status or "none"),
        "error": letter.last_error or "none",
        "answer": letter.answer or "none",
        "accepted": _moment(letter.accepted_ms, now_ms),
        "died": _moment(letter.died_ms, now_ms),
    }
    for name, text in fields.items():
        yield f"{name:<9} {escape(text)}"
    yield ""
    yield from _pretty(letter.body)


def _pretty(body: bytes | None) -> Iterator[str]:
    if body is None:
        yield "(the update is no longer there)"
        return
    try:
        text = json.dumps(parse(body), indent=2, ensure_ascii=False)
    except InvalidUpdate:
        text = body.decode("utf-8", "backslashreplace")
    for line in text.split("\n"):
        yield escape(line)


def _iso(ms: int) -> str | None:
    if not ms:
        return None
    moment = datetime.fromtimestamp(ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _moment(ms: int, now_ms: int) -> str:
    return f"{_iso(ms)} ({age((now_ms - ms) / 1000)} ago)" if ms else "unknown"


class Tally:
    """Counts what became of dead letters, and keeps the first failures."""

    def __init__(self, file: str) -> None:
        self.done = 0
        self.failed = 0
        self._file = file
        self._kept: list[Outcome] = []

    def add(self, outcome: Outcome) -> None:
        """Count one."""
        if outcome.done:
            self.done += 1
            return
        self.failed += 1
        if len(self._kept) < _MOST_TOLD:
            self._kept.append(outcome)

    def failures(self) -> Iterator[str]:
        """A line for each failure, of which only the first are told one by one."""
        for outcome in self._kept:
            yield f"{outcome.id}: {self._why(outcome)}"
        if self.failed > len(self._kept):
            yield f"and {self.failed - len(self._kept)} more (--json tells of each)"

    def _why(self, outcome: Outcome) -> str:
        if outcome.result == "taken":
            return f"route {outcome.to} already has this update"
        if outcome.result == "no_route":
            return f"{self._file} has no route {outcome.to}; --to ROUTE replays it to another"
        return "no such dead letter"


@contextmanager
def progress(total: int, label: str) -> Iterator[Callable[[], None]]:
    """A bar on standard error where that is a terminal and it takes a while; call for each step."""
    if total < _LONG or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn(label), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda: bar.advance(task)


def echo_lines(lines: Iterator[str]) -> None:
    """Print lines at once: a write for each costs more than the line."""
    text = "\n".join(lines)
    if text:
        typer.echo(text)
