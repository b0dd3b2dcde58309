"""What the ingress, the delivery and the store say to each other about jobs.

A job is the delivery of one update to one route; its id is `<update_id>/<route>`.
"""

from dataclasses import dataclass, field
from typing import Literal

Reason = Literal["attempts", "permanent", "expired", "poison", "overflow"]
REASONS: tuple[Reason, ...] = ("attempts", "permanent", "expired", "poison", "overflow")


def named(job_id: str) -> dict[str, str]:
    """A job as log lines name it: `route` and `update`."""
    update, _, route = job_id.partition("/")
    return {"route": route, "update": update}


@dataclass(frozen=True, slots=True)
class Destination:
    """One route an update goes to; with `max_pending` waiting there, it overflows."""

    route: str
    ordered: bool
    max_pending: int


@dataclass(frozen=True, slots=True)
class Arrival:
    """An update to be stored for its destinations; `expires_after` in seconds."""

    update_id: int
    type: str
    lane: str
    expires_after: int
    body: bytes = field(repr=False)
    destinations: tuple[Destination, ...]


@dataclass(frozen=True, slots=True)
class Offer:
    """Slots of a route that are free while nothing is ready: what arrives may start at once."""

    route: str
    slots: int
    lease: float


@dataclass(frozen=True, slots=True)
class Job:
    """A job leased to this process. Times are unix milliseconds of the store's clock."""

    id: str
    token: str
    attempts: int
    accepted_ms: int
    expires_ms: int
    body: bytes = field(repr=False)

    @property
    def route(self) -> str:
        return self.id.partition("/")[2]

    @property
    def update_id(self) -> str:
        """Telegram's id; a dead letter that moved aside for a newer one has `~<n>` behind it."""
        return self.id.partition("/")[0].partition("~")[0]


@dataclass(frozen=True, slots=True)
class Accepted:
    """What became of an arrival: None deliveries when it was seen before. `ready` are the routes
    where its job can be claimed now; at the others it is leased already, waits behind one of its
    lane, or overflowed."""

    deliveries: int | None
    leased: tuple[Job, ...] = ()
    ready: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Settle:
    """How a leased job ended.

    `argument`: for retry the delay in milliseconds, for release `front` or `back`, for dead
    the reason. `status` and `error` tell of the last attempt, `answer` is what the target said.
    """

    kind: Literal["delivered", "retry", "release", "dead"]
    id: str
    token: str
    argument: str = ""
    status: str = ""
    error: str = ""
    answer: str = ""


@dataclass(frozen=True, slots=True)
class Claim:
    """A wish for up to `slots` jobs of a route; `lease` in seconds; `suspect`: one of those that
    were in flight in two crashes, to be delivered with nothing else in flight."""

    route: str
    slots: int
    lease: float
    suspect: bool = False


@dataclass(frozen=True, slots=True)
class Claimed:
    """The jobs that a claim got, and what is left of its route; `next_due` in unix milliseconds.

    `gone` are jobs that ended because the store has lost what they were to deliver.
    """

    route: str
    jobs: tuple[Job, ...]
    ready: int
    suspects: int
    next_due: int | None
    expired: tuple[str, ...]
    gone: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Turn:
    """The answer to one turn: the store's time, which settles held, what was claimed."""

    now_ms: int
    settled: tuple[bool, ...]
    claimed: tuple[Claimed, ...]


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep over all routes found: leases that ran out, jobs that died of it, and routes of
    which a key is damaged, so that they were left out."""

    reaped: int = 0
    expired: tuple[str, ...] = ()
    poison: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Elder:
    """An older process under this instance's name: its last heartbeat in unix milliseconds."""

    nonce: str
    heartbeat_ms: int
    boot_id: str
    pid: int


@dataclass(frozen=True, slots=True)
class Beat:
    """The answer to a heartbeat: whether the instance's name is still ours, and who had it."""

    now_ms: int
    ours: bool
    elders: tuple[Elder, ...]


SERVED_MS = 5000
"""Milliseconds without a heartbeat after which no instance serves a route any more."""


@dataclass(frozen=True, slots=True)
class RouteStats:
    """What waits for a route. `waiting` is all that is neither delivered nor dead.

    `served_ms` is the last heartbeat of any instance that has the route in its file.
    """

    name: str
    served_ms: int
    ready: int
    delayed: int
    processing: int
    waiting: int
    oldest_ms: int | None
    suspects: int

    def served(self, now_ms: int) -> bool:
        """Whether an instance, this one or another, has just served it."""
        return now_ms - self.served_ms <= SERVED_MS


@dataclass(frozen=True, slots=True)
class Stats:
    """All routes the store knows, and dead letters by route and reason.

    `dead` are those there are; `died` is how often one was made, which never falls.
    """

    now_ms: int
    routes: tuple[RouteStats, ...]
    dead: dict[tuple[str, str], int]
    died: dict[tuple[str, str], int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A delivery that was given up. Times are unix milliseconds."""

    id: str
    update_id: int
    route: str
    reason: str
    attempts: int
    last_status: int | None
    last_error: str | None
    accepted_ms: int
    died_ms: int
    type: str = ""
    answer: str = ""
    body: bytes | None = field(default=None, repr=False)
