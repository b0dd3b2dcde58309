"""docs/queue.md as its tables say it, and what a store did judged by them."""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from typing import NamedTuple

from store.invariants import Picture
from store.world import Ran
from tools import ROOT

PAGE = ROOT / "docs/queue.md"
# Reasons of the store's own; the others come with a settle.
REASONS = ("expired", "overflow", "poison")


class Transition(NamedTuple):
    """A step takes a job from one state to another; `none`: there is no such job."""

    before: str
    step: str
    after: str


def rows(*head: str) -> list[list[str]]:
    """The cells of the page's table with these headings."""
    lines = PAGE.read_text("utf-8").splitlines()
    first = lines.index(f"| {' | '.join(head)} |") + 2
    found = takewhile(lambda line: line.startswith("|"), lines[first:])
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in found]


def quoted(cell: str) -> list[str]:
    """What stands between backticks."""
    return re.findall(r"`([^`]+)`", cell)


def scripts() -> dict[str, str]:
    """By each step the script that performs it; "" for one that is none of the store."""
    found = rows("step", "script", "does", "before", "after")
    return {step: "".join(quoted(script)) for step, script, *_ in found}


def transitions() -> list[Transition]:
    """Every way of a job, one by one."""
    return [
        Transition(before, step, after)
        for froms, steps, tos, _ in rows("from", "step", "to", "when")
        for before in quoted(froms)
        for step in steps.split(", ")
        for after in quoted(tos)
    ]


STEPS = {script: step for step, script in scripts().items()}
DOCUMENTED = frozenset(transitions())


def steps_of(ran: Iterable[Ran]) -> list[str]:
    """The steps of these scripts, as the page calls them; a turn settles first, then claims."""
    found: list[str] = []
    for script, args in ran:
        if script != "turn":
            found.append(STEPS[script])
            continue
        settles, claims = int(args[3]), int(args[4])
        found += [f"settle: {args[5 + 7 * n]!s}" for n in range(settles)]
        found += ["claim"] * min(claims, 1)
    return found


def states(picture: Picture) -> dict[str, str]:
    """The state of each job; a dead one with its reason, where it is one of the store's own."""
    return {name: _state(job) for name, job in picture.jobs.items()}


def _state(job: dict[str, str]) -> str:
    own = job["state"] == "dead" and job.get("reason") in REASONS
    return f"dead ({job['reason']})" if own else job["state"]


def performed(
    before: dict[str, str], steps: Sequence[str], after: dict[str, str]
) -> Iterator[tuple[str, str, str]]:
    """The id, the state before and the state after of each job that has another state or id."""
    renamed = _renamed(before, steps, after)
    gone = before.keys() - after.keys() - set(renamed.values())
    for name, state in after.items():
        old = renamed.get(name, name)
        known = name in renamed or name not in renamed.values()
        was = before.get(old, "none").partition(" ")[0] if known else "none"
        if name in renamed or was == "none" or before[old] != state:
            yield name, was, "dead" if was == "dead" and state.startswith("dead") else state
    for name in gone:
        yield name, before[name].partition(" ")[0], "none"


def _renamed(before: dict[str, str], steps: Sequence[str], after: dict[str, str]) -> dict[str, str]:
    """By its new id the old id of each job that was moved, replayed elsewhere or set aside."""
    gone = {name.partition("/")[0]: name for name in before.keys() - after.keys()}
    found = {}
    for name in after.keys() - before.keys():
        update, _, route = name.partition("/")
        if "accept" in steps and "~" in update:
            found[name] = f"{update.partition('~')[0]}/{route}"
        elif update in gone and {"move", "replay"}.intersection(steps):
            found[name] = gone[update]
    return found


def undocumented(
    before: dict[str, str], steps: Sequence[str], after: dict[str, str]
) -> list[tuple[str, str, Sequence[str], str]]:
    """What these steps, one after the other, did with a job and the page has no way for."""
    return [
        (name, was, steps, became)
        for name, was, became in performed(before, steps, after)
        if became not in _reachable(was, steps)
    ]


def _reachable(state: str, steps: Sequence[str]) -> set[str]:
    found = {state}
    for step in steps:
        fresh = found
        while fresh:
            plain = {one.partition(" ")[0] for one in fresh}
            ways = (way for way in DOCUMENTED if way.step == step and way.before in plain)
            fresh = {way.after for way in ways} - found
            found |= fresh
    return found
