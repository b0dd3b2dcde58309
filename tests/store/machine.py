"""The store beside a model of it: processes that accept, claim and settle, and what must hold
after each step."""

import asyncio
from collections.abc import Awaitable
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from store.invariants import ACTIVE, LIVE, Picture, leftovers, violations
from store.model import Model, Process, Work
from store.page import states, steps_of, undocumented
from store.world import LEASE, World, arrival
from twr.core.jobs import Accepted, Claim, Destination, Job, Offer, Settle
from twr.edges.store import Store

ORDERED = {"a": True, "b": True, "c": False}
ROUTES = tuple(ORDERED)
INSTANCES = ("one", "two")
LANES = ("1", "2", "")
KINDS = ("delivered", "retry", "release", "dead")
# How a flight ends, with the argument of its settle; a retry after none or after an hour.
ENDS = (
    ("delivered", ""),
    ("retry", "0"),
    ("retry", "3600000"),
    ("release", "front"),
    ("release", "back"),
    ("dead", "permanent"),
)
MOST = 5


class Machine(RuleBasedStateMachine):
    """Two instances, three routes; each rule does the same to the store and to the model."""

    world_of: ClassVar[Any]

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.model = Model()
        self.tokens: list[tuple[str, str]] = []
        self.next_id = 8190
        self.picture: Picture | None = None
        # The process that has the name, by instance; those that had it and still run; and by
        # instance the nonces that a start is told of.
        self.processes: dict[str, Process] = {}
        self.elders: list[Process] = []
        self.told: dict[str, set[str]] = {instance: set() for instance in INSTANCES}
        self.started = 0

    def run(self, what: Awaitable[Any]) -> Any:
        async def wait() -> Any:
            return await what

        return self.runner.run(wait())

    @initialize()
    def start(self) -> None:
        self.world: World = self.run(self.world_of())
        for instance in INSTANCES:
            self._start_process(instance)

    def _start_process(self, instance: str) -> Process:
        """It has the name now, and is told of all that had it and were not recovered."""
        self.started += 1
        nonce = f"{instance}.{self.started}"
        if instance in self.processes:
            self.told[instance].add(self.processes[instance].nonce)
        process = Process(instance, nonce, self.world.process(nonce, instance))
        beat = self.run(process.store.beat(ROUTES, take_over=True))
        assert beat.ours
        assert {elder.nonce for elder in beat.elders} == self.told[instance]
        self.processes[instance] = process
        return process

    def _everybody(self) -> list[Process]:
        return [*self.processes.values(), *self.elders]

    def _lease(self, process: Process, job: Job) -> None:
        """What the store leased is what the model has ready; it is leased there as well."""
        work = self.model.jobs[job.id]
        assert (job.id, job.token) not in self.tokens
        assert job.attempts == work.attempts
        if work.lane:
            assert self.model.lanes[work.route, work.lane][0] == job.id
        work.state, work.holder, work.token = "processing", process.nonce, job.token
        process.flights[job.id] = job.token
        self.tokens.append((job.id, job.token))

    @rule(
        instance=st.sampled_from(INSTANCES),
        routes=st.sets(st.sampled_from(ROUTES), min_size=1),
        lane=st.sampled_from(LANES),
        offers=st.booleans(),
        copies=st.integers(1, 2),
        number=st.integers(1, 3),
    )
    def accept(
        self, instance: str, routes: set[str], lane: str, offers: bool, copies: int, number: int
    ) -> None:
        """New updates, some of them sent twice in one call."""
        for _ in range(number):
            self.next_id += 1
            self._accept(instance, self.next_id, sorted(routes), lane, offers, copies)

    @precondition(lambda self: self.model.jobs)
    @rule(data=st.data(), routes=st.sets(st.sampled_from(ROUTES), min_size=1))
    def accept_again(self, data: st.DataObject, routes: set[str]) -> None:
        """An id of which there is work comes once more, its mark forgotten or not."""
        name = data.draw(st.sampled_from(sorted(self.model.jobs)))
        update_id = int(name.partition("/")[0].partition("~")[0])
        if data.draw(st.booleans()):
            self.run(self.world.let_be_forgotten(update_id))
            self.model.seen -= {n for n in self.model.seen if n // 8192 == update_id // 8192}
        self._accept("one", update_id, sorted(routes), "1", False, 1)
        # The marks of others on that page are gone in the store alone: set them again.
        self._mark_all()

    def _mark_all(self) -> None:
        for name in self.model.jobs:
            number = int(name.partition("/")[0].partition("~")[0])
            page, bit = divmod(number, 8192)
            self.run(self.world.redis.setbit(f"{{twr:main}}:seen:{page}", bit, 1))
            self.run(self.world.redis.pexpire(f"{{twr:main}}:seen:{page}", 90_000_000))
            self.model.seen.add(number)

    def _accept(
        self, instance: str, update_id: int, routes: list[str], lane: str, offer: bool, copies: int
    ) -> None:
        process = self.processes[instance]
        update = arrival(
            update_id, *(Destination(to, ORDERED[to], MOST) for to in routes), lane=lane
        )
        offers = [Offer(to, 1, LEASE) for to in ROUTES] if offer else []
        answers = self.run(process.store.accept([update] * copies, offers))
        assert answers[1:] == [Accepted(None)] * (copies - 1)
        self._expect_accepted(process, update_id, routes, lane, answers[0], offer)

    def _expect_accepted(
        self,
        process: Process,
        update_id: int,
        routes: list[str],
        lane: str,
        answer: Accepted,
        offer: bool,
    ) -> None:
        old = [self.model.jobs[name].state for name in self.model.of(str(update_id))]
        duplicate = update_id in self.model.seen or any(state != "dead" for state in old)
        self.model.seen.add(update_id)
        if duplicate:
            assert answer == Accepted(None)
            return
        assert answer.deliveries == len(routes)
        self.model.set_aside(str(update_id))
        leased = {job.id: job for job in answer.leased}
        for to in routes:
            name = f"{update_id}/{to}"
            job = Work(to, lane if ORDERED[to] else "")
            if self.model.waiting(to) >= MOST:
                self.model.jobs[name] = job
                job.state, job.reason = "dead", "overflow"
                assert name not in leased
                assert to not in answer.ready
                continue
            self.model.join(name, job)
            if name in leased:
                assert offer
                assert job.state == "ready"
                self._lease(process, leased[name])
                assert to not in answer.ready
            else:
                assert (to in answer.ready) == (job.state == "ready")

    @precondition(lambda self: self.model.named("ready", "suspect"))
    @rule(
        instance=st.sampled_from(INSTANCES),
        route=st.sampled_from(ROUTES),
        slots=st.integers(1, 4),
        suspect=st.booleans(),
    )
    def claim(self, instance: str, route: str, slots: int, suspect: bool) -> None:
        """A claim gets exactly what is ready, up to its slots."""
        self._claim(self.processes[instance], route, slots, suspect)

    def _claim(self, process: Process, route: str, slots: int, suspect: bool) -> None:
        turn = self.run(process.store.turn([], [Claim(route, slots, LEASE, suspect)]))
        self._expect_claimed(process, turn.claimed[0], slots, suspect)

    def _expect_claimed(self, process: Process, claimed: Any, slots: int, suspect: bool) -> None:
        wanted = "suspect" if suspect else "ready"
        for name in claimed.expired:
            assert self.model.jobs[name].overdue
            self.model.bury(name, "expired")
        free = [n for n in self.model.named(wanted) if self.model.jobs[n].route == claimed.route]
        assert len(claimed.jobs) == min(slots, len(free))
        for job in claimed.jobs:
            assert job.id in free
            assert not self.model.jobs[job.id].overdue
            self._lease(process, job)

    def _flight(self, data: st.DataObject) -> tuple[Process, str, str]:
        flights = [
            (process.nonce, name)
            for process in self._everybody()
            for name in sorted(process.flights)
        ]
        nonce, name = data.draw(st.sampled_from(flights))
        (process,) = (process for process in self._everybody() if process.nonce == nonce)
        return process, name, process.flights.pop(name)

    def is_live(self) -> bool:
        return bool(self.model.named(*LIVE))

    def is_flying(self) -> bool:
        return any(process.flights for process in self._everybody())

    @precondition(is_flying)
    @rule(data=st.data(), end=st.sampled_from(ENDS))
    def settle(self, data: st.DataObject, end: tuple[str, str]) -> None:
        """A flight ends; its settle holds exactly as long as nobody else has claimed the job."""
        self._settle(*self._flight(data), *end)

    @precondition(lambda self: self.model.named("ready"))
    @rule(
        instance=st.sampled_from(INSTANCES),
        route=st.sampled_from(ROUTES),
        ends=st.lists(st.sampled_from(ENDS), min_size=1, max_size=3),
    )
    def work(self, instance: str, route: str, ends: list[tuple[str, str]]) -> None:
        """Some jobs of a route are claimed, and so many flights of the process end."""
        process = self.processes[instance]
        self._claim(process, route, len(ends), suspect=False)
        for name, end in zip(sorted(process.flights), ends, strict=False):
            self._settle(process, name, process.flights.pop(name), *end)

    def _settle(self, process: Process, name: str, token: str, kind: str, argument: str) -> None:
        found: Any = kind
        settle = Settle(found, name, token, argument, "500", "HTTP 500")
        (held,) = self.run(process.store.turn([settle], [])).settled
        work = self.model.jobs.get(name)
        assert held == (work is not None and work.token == token)
        if held and work is not None:
            self._settled(name, work, kind, argument)

    def _settled(self, name: str, work: Work, kind: str, argument: str) -> None:
        if kind == "delivered":
            self.model.remove(name)
        elif kind == "dead":
            work.attempts += 1
            self.model.bury(name, argument)
        elif kind == "retry":
            work.attempts += 1
            work.crashes, work.holder, work.token = 0, None, None
            work.state = "ready" if argument == "0" else "delayed"
        elif work.state == "processing":
            self.model.free(name, crashed=False)
            work.token = None

    @precondition(lambda self: self.tokens)
    @rule(data=st.data(), kind=st.sampled_from(KINDS))
    def settle_late(self, data: st.DataObject, kind: Any) -> None:
        """A token that no longer holds is refused, whatever it asks for."""
        name, token = data.draw(st.sampled_from(self.tokens))
        work = self.model.jobs.get(name)
        if work is not None and work.token == token:
            return
        settle = Settle(kind, name, token, "0", "500", "HTTP 500")
        assert self.run(self.world.store.turn([settle], [])).settled == (False,)

    def _will_expire(self, name: str) -> bool:
        work = self.model.jobs[name]
        return work.overdue and work.state in LIVE and work.state != "processing"

    def _expect_expired(self, expired: tuple[str, ...]) -> None:
        # One that was in flight at the last sweep is looked at again two seconds later.
        for name in expired:
            assert self._will_expire(name)
            self.model.bury(name, "expired")

    def _lane_of(self, name: str) -> str:
        key = f"{{twr:main}}:update:{name.partition('/')[0]}"
        found: bytes = self.run(self.world.redis.hget(key, "lane"))
        return found.decode()

    def _in_order_of_all(self, names: list[str]) -> list[str]:
        """As the store moves them: by the scores they had before."""
        assert self.picture is not None
        return sorted(
            names,
            key=lambda n: (self.picture.all[self.model.jobs[n].route][n], n.encode()),  # type: ignore[union-attr]
        )

    @invariant()
    def agrees(self) -> None:
        """Every invariant holds, the store has exactly the jobs of the model, and each went a way
        that is on the page."""
        before = states(self.picture or Picture())
        picture: Picture = self.run(self.world.picture())
        self.picture = picture
        assert violations(picture) == []
        assert {n: self._seen_as(n, j) for n, j in picture.jobs.items()} == {
            name: (work.state, work.attempts, work.crashes, work.token, work.reason)
            for name, work in self.model.jobs.items()
        }
        lanes = {key: names for key, names in self.model.lanes.items() if names}
        assert picture.lanes == lanes
        assert undocumented(before, steps_of(self.world.ran), states(picture)) == []
        self.world.ran.clear()

    def _seen_as(self, name: str, job: dict[str, str]) -> tuple[str, int, int, str | None, str]:
        state = job["state"]
        # A delay that is over ends when somebody claims.
        if state == "delayed" and self.model.jobs[name].state == "ready":
            state = "ready"
        return (
            state,
            int(job["attempts"]),
            int(job.get("crashes", 0)),
            job.get("token"),
            job.get("reason", ""),
        )

    def teardown(self) -> None:
        """When all is settled nothing is left but marks, routes and instances."""
        if hasattr(self, "world"):
            self.run(self._drain())
            assert leftovers(self.run(self.world.picture())) == []
            self.run(self.world.close())
        self.runner.close()

    async def _drain(self) -> None:
        store = self.world.store
        for name in list(self.model.named(*ACTIVE)):
            await self.world.let_lease_end(name)
            await self.world.let_delay_end(name)
        await store.sweep()
        while await self._deliver_all(store):
            pass
        dead = [letter.id async for page in store.dead_letters.pages() for letter in page]
        assert await store.dead_letters.drop(dead) == len(dead)

    async def _deliver_all(self, store: Store) -> bool:
        claims = [Claim(to, 9, LEASE, suspect) for to in ROUTES for suspect in (False, True)]
        turn = await store.turn([], claims)
        settles = [
            Settle("delivered", job.id, job.token) for one in turn.claimed for job in one.jobs
        ]
        await store.turn(settles, [])
        return bool(settles) or any(one.ready or one.suspects for one in turn.claimed)
