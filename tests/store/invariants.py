"""What must hold of a store between two steps, whatever happened before.

`read` takes a picture of all keys of a bot, `violations` and `leftovers` judge it. The picture is
made of many reads: take it while nothing else writes.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from redis.asyncio import Redis

from twr.edges.store.keys import SEEN_PAGE, Keys, route_of

ACTIVE = frozenset({"ready", "delayed", "processing", "suspect"})
LIVE = ACTIVE | {"waiting"}


@dataclass
class Picture:
    """A bot's keys, by kind. Scores are unix milliseconds."""

    jobs: dict[str, dict[str, str]] = field(default_factory=dict)
    updates: dict[str, dict[str, str]] = field(default_factory=dict)
    ready: dict[str, list[str]] = field(default_factory=dict)
    suspect: dict[str, list[str]] = field(default_factory=dict)
    delayed: dict[str, dict[str, float]] = field(default_factory=dict)
    processing: dict[str, dict[str, float]] = field(default_factory=dict)
    all: dict[str, dict[str, float]] = field(default_factory=dict)
    lanes: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    dead: dict[str, float] = field(default_factory=dict)
    counts: dict[str, str] = field(default_factory=dict)
    died: dict[str, str] = field(default_factory=dict)
    expiry: dict[str, float] = field(default_factory=dict)
    routes: dict[str, str] = field(default_factory=dict)
    seen: dict[int, bytes] = field(default_factory=dict)
    endless: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)


async def read(redis: Redis, keys: Keys) -> Picture:
    """All keys of the bot, each read by its type."""
    picture = Picture()
    names = sorted([key async for key in redis.scan_iter(f"{keys.tag}:*", count=1000)])
    types = redis.pipeline(transaction=False)
    for name in names:
        types.type(name)
    values = redis.pipeline(transaction=False)
    for name, kind in zip(names, await types.execute(), strict=True):
        match kind:
            case b"hash":
                values.hgetall(name)
            case b"list":
                values.lrange(name, 0, -1)
            case b"zset":
                values.zrange(name, 0, -1, withscores=True)
            case _:
                values.get(name)
    for name, value in zip(names, await values.execute(), strict=True):
        short = name.decode().removeprefix(f"{keys.tag}:")
        _sort_in(picture, short, value)
        if short.startswith("seen:") and await redis.pttl(name) < 0:
            picture.endless.append(short)
    return picture


def _texts(value: object) -> dict[str, str]:
    assert isinstance(value, dict)
    return {name.decode(): text.decode(errors="replace") for name, text in value.items()}


def _names(value: object) -> list[str]:
    assert isinstance(value, list)
    return [name.decode() for name in value]


def _scores(value: object) -> dict[str, float]:
    assert isinstance(value, list)
    return {name.decode(): float(score) for name, score in value}


def _bits(value: object) -> bytes:
    assert isinstance(value, bytes)
    return value


# Every kind of key there is, `*` being what varies: what is kept of it in the picture, and how.
READ: dict[str, tuple[str, Callable[[object], Any]] | None] = {
    "seen:*": ("seen", _bits),
    "update:*": ("updates", _texts),
    "job:*": ("jobs", _texts),
    "route:*:ready": ("ready", _names),
    "route:*:delayed": ("delayed", _scores),
    "route:*:processing": ("processing", _scores),
    "route:*:suspect": ("suspect", _names),
    "route:*:lane:*": ("lanes", _names),
    "route:*:all": ("all", _scores),
    "routes": ("routes", _texts),
    "expiry": ("expiry", _scores),
    "dead-letter": ("dead", _scores),
    "dead-letter:counts": ("counts", _texts),
    "died": ("died", _texts),
    "instance:*": None,
    "alerts": None,
    "probe": None,
    "username": None,
}


def _pattern(kind: str) -> re.Pattern[str]:
    """A route has no colon; whatever comes last may be any text."""
    text = re.escape(kind).replace(r"\*", "([^:]*)")
    return re.compile(re.sub(r"\(\[\^:\]\*\)$", "(.*)", text), re.S)


_PATTERNS = {kind: _pattern(kind) for kind in READ}


def kind_of(name: str) -> str | None:
    """The kind of a key, its tag left out; None for one that nobody knows."""
    return next((kind for kind, found in _PATTERNS.items() if found.fullmatch(name)), None)


def _sort_in(picture: Picture, name: str, value: object) -> None:
    kind = kind_of(name)
    if kind is None:
        picture.unknown.append(name)
        return
    how = READ[kind]
    if how is None:
        return
    found = _PATTERNS[kind].fullmatch(name)
    assert found is not None
    place, read_as = how
    match place, found.groups():
        case _, ():
            setattr(picture, place, read_as(value))
        case "seen", (page,):
            picture.seen[int(page)] = read_as(value)
        case _, (part,):
            getattr(picture, place)[part] = read_as(value)
        case _, parts:
            getattr(picture, place)[parts] = read_as(value)


def violations(picture: Picture) -> list[str]:
    """Every invariant that does not hold, one line each; empty when all is well."""
    checks: tuple[Callable[[Picture], Iterator[str]], ...] = (
        _jobs_have_a_place,
        _places_hold_their_jobs,
        _lanes_are_in_order,
        _updates_are_referred_to,
        _dead_letters_are_counted,
        _marks_are_set,
    )
    return [line for check in checks for line in check(picture)]


def _jobs_have_a_place(picture: Picture) -> Iterator[str]:
    for name, job in picture.jobs.items():
        state, route = job.get("state"), route_of(name)
        places: dict[str, Collection[str]] = {
            "ready": picture.ready.get(route, ()),
            "suspect": picture.suspect.get(route, ()),
            "delayed": picture.delayed.get(route, ()),
            "processing": picture.processing.get(route, ()),
            "waiting": picture.lanes.get((route, job.get("lane", "")), ()),
            "dead": picture.dead,
        }
        if state not in places:
            yield f"{name}: unknown state {state}"
        elif name not in places[state]:
            yield f"{name}: {state}, but not there"
        if (state in LIVE) != (name in picture.all.get(route, ())):
            yield f"{name}: {state}, and all says otherwise"
        if state in LIVE and route not in picture.routes:
            yield f"{name}: route {route} is unknown"
        yield from _fields(name, job)


def _fields(name: str, job: dict[str, str]) -> Iterator[str]:
    state = job.get("state")
    leased = {"token", "owner", "claims", "due_ms"}
    if state == "processing" and not leased <= job.keys():
        yield f"{name}: a lease without {sorted(leased - job.keys())}"
    if state in ("waiting", "delayed", "dead") and "token" in job:
        yield f"{name}: {state} with a token"
    if state == "dead" and not {"reason", "died_ms"} <= job.keys():
        yield f"{name}: dead without a reason"
    numbers = ("attempts", "claims", "due_ms", "died_ms", "crashes", "expires_ms")
    for number in numbers:
        if number in job and not job[number].isdigit():
            yield f"{name}: {number} is {job[number]}"


def _places_hold_their_jobs(picture: Picture) -> Iterator[str]:
    """Ready lists may hold stale ids; every other place holds jobs of its own state, once."""
    exact: tuple[tuple[str, dict[str, list[str]]], ...] = (
        ("suspect", picture.suspect),
        ("delayed", {route: list(found) for route, found in picture.delayed.items()}),
        ("processing", {route: list(found) for route, found in picture.processing.items()}),
    )
    for state, lists in exact:
        for route, names in lists.items():
            for name, times in Counter(names).items():
                found = picture.jobs.get(name, {}).get("state")
                if found != state or route_of(name) != route or times > 1:
                    yield f"{name}: {times} times in {state} of {route}, but {found}"
    for route, scores in picture.all.items():
        for name in scores:
            if picture.jobs.get(name, {}).get("state") not in LIVE or route_of(name) != route:
                yield f"{name}: in all of {route}, but not live there"
    for name, due in _due(picture):
        if float(picture.jobs.get(name, {}).get("due_ms", 0)) != due:
            yield f"{name}: due_ms is not its score {due}"


def _due(picture: Picture) -> Iterator[tuple[str, float]]:
    for places in (picture.delayed, picture.processing):
        for scores in places.values():
            yield from scores.items()


def _lanes_are_in_order(picture: Picture) -> Iterator[str]:
    placed: Counter[str] = Counter()
    for (route, lane), names in picture.lanes.items():
        placed.update(names)
        for position, name in enumerate(names):
            job = picture.jobs.get(name, {})
            wanted = ACTIVE if position == 0 else {"waiting"}
            if job.get("state") not in wanted:
                yield f"{name}: {job.get('state')} at {position} in lane {lane} of {route}"
            if job.get("lane") != lane or route_of(name) != route:
                yield f"{name}: in lane {lane} of {route}, but not its own"
    for name, job in picture.jobs.items():
        wanted_times = 1 if job.get("lane") and job.get("state") in LIVE else 0
        if placed[name] != wanted_times:
            yield f"{name}: {placed[name]} times in lanes"


def _updates_are_referred_to(picture: Picture) -> Iterator[str]:
    jobs: dict[str, list[str]] = {}
    for name in picture.jobs:
        jobs.setdefault(name.partition("/")[0], []).append(name)
    for update_id, names in jobs.items():
        if not picture.updates.get(update_id, {}).get("body"):
            yield f"update {update_id}: jobs without a body"
        routes = picture.updates.get(update_id, {}).get("routes", "").split()
        if missing := {route_of(name) for name in names} - set(routes):
            yield f"update {update_id}: routes lack {sorted(missing)}"
    for update_id, update in picture.updates.items():
        if update.get("refs") != str(len(jobs.get(update_id, ()))):
            yield f"update {update_id}: refs {update.get('refs')}, jobs {jobs.get(update_id, [])}"
        yield from _expiry_of(picture, update_id, jobs.get(update_id, []))
    for update_id in picture.expiry.keys() - picture.updates.keys():
        yield f"update {update_id}: expires, but is gone"


def _expiry_of(picture: Picture, update_id: str, names: list[str]) -> Iterator[str]:
    jobs = [picture.jobs[name] for name in names]
    mortal = any(job.get("state") in LIVE and job.get("expires_ms") != "0" for job in jobs)
    if mortal and update_id not in picture.expiry:
        yield f"update {update_id}: never expires"


def _dead_letters_are_counted(picture: Picture) -> Iterator[str]:
    found: Counter[str] = Counter()
    for name in picture.dead:
        job = picture.jobs.get(name, {})
        if job.get("state") != "dead":
            yield f"{name}: among the dead letters, but {job.get('state')}"
        found[f"{route_of(name)}/{job.get('reason')}"] += 1
    counts = {name: int(count) for name, count in picture.counts.items()}
    if counts != dict(found):
        yield f"dead letters are {dict(found)}, counted {counts}"
    for name, count in counts.items():
        if count > int(picture.died.get(name, 0)):
            yield f"{name}: {count} dead letters, but {picture.died.get(name, 0)} died"


def _marks_are_set(picture: Picture) -> Iterator[str]:
    for update_id in picture.updates:
        if "~" in update_id:
            continue
        page, bit = divmod(int(update_id), SEEN_PAGE)
        bits = picture.seen.get(page, b"")
        if len(bits) <= bit // 8 or not bits[bit // 8] & (128 >> bit % 8):
            yield f"update {update_id}: not marked as seen"
    yield from (f"{name}: has no time to live" for name in picture.endless)
    yield from (f"{name}: an unknown key" for name in picture.unknown)


def leftovers(picture: Picture) -> list[str]:
    """What should be gone once every update is delivered and no dead letter is left."""
    found = [f"job {name}" for name in picture.jobs]
    found += [f"update {name}" for name in picture.updates]
    for place in ("ready", "suspect", "delayed", "processing", "all"):
        found += [f"{place} of {route}" for route in getattr(picture, place)]
    found += [f"lane {lane} of {route}" for route, lane in picture.lanes]
    for place in ("dead", "counts", "expiry"):
        if getattr(picture, place):
            found.append(place)
    return found
