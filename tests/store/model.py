"""The model of a store: what is known of its jobs when every step does what it should."""

from dataclasses import dataclass, field

from store.invariants import LIVE
from twr.edges.store import Store


@dataclass
class Work:
    """What the model knows of a job."""

    route: str
    lane: str
    state: str = "waiting"
    attempts: int = 0
    crashes: int = 0
    holder: str | None = None
    token: str | None = None
    mortal: bool = True
    overdue: bool = False
    reason: str = ""


@dataclass
class Process:
    """A process and its table of flights, by job id."""

    instance: str
    nonce: str
    store: Store
    flights: dict[str, str] = field(default_factory=dict)


@dataclass
class Model:
    """Jobs by id; lanes by route and name, the head first; what was seen."""

    jobs: dict[str, Work] = field(default_factory=dict)
    lanes: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)

    def of(self, update_id: str) -> list[str]:
        return [name for name in self.jobs if name.partition("/")[0] == update_id]

    def named(self, *states: str) -> list[str]:
        return [name for name, job in self.jobs.items() if job.state in states]

    def waiting(self, route: str) -> int:
        return sum(job.route == route and job.state in LIVE for job in self.jobs.values())

    def join(self, name: str, job: Work) -> None:
        self.jobs[name] = job
        job.state = "ready"
        if job.lane:
            lane = self.lanes.setdefault((job.route, job.lane), [])
            lane.append(name)
            job.state = "ready" if len(lane) == 1 else "waiting"

    def leave(self, name: str) -> None:
        job = self.jobs[name]
        if job.lane and job.state in LIVE:
            lane = self.lanes[job.route, job.lane]
            lane.remove(name)
            if lane and self.jobs[lane[0]].state == "waiting":
                self.jobs[lane[0]].state = "ready"

    def bury(self, name: str, reason: str) -> None:
        self.leave(name)
        job = self.jobs[name]
        job.state, job.reason, job.holder, job.token = "dead", reason, None, None

    def remove(self, name: str) -> None:
        self.leave(name)
        del self.jobs[name]

    def free(self, name: str, *, crashed: bool) -> None:
        """A lease ends without its holder; the token holds on."""
        job = self.jobs[name]
        job.holder = None
        job.crashes += crashed
        job.state = "ready" if job.crashes < 2 else "suspect"
        if crashed and job.crashes >= 3:
            self.bury(name, "poison")

    def set_aside(self, update_id: str) -> None:
        """Dead letters of an id that comes back get another name."""
        number = 1
        while self.of(f"{update_id}~{number}"):
            number += 1
        for name in self.of(update_id):
            work = self.jobs.pop(name)
            self.jobs[f"{update_id}~{number}/{work.route}"] = work
