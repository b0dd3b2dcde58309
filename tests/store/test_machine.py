"""The store against a model of it: random histories, and after each step everything is compared."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from servers import SERVERS
from store.invariants import ACTIVE, LIVE, Picture, leftovers, violations
from store.world import LEASE, Start, World, arrival, fake_world, real_world
from twr.core.jobs import Accepted, Claim, Destination, Job, Offer, Settle
from twr.edges.store import Store

ORDERED = {"a": True, "b": True, "c": False}
ROUTES = tuple(ORDERED)
LANES = ("1", "2", "")
MOST = 5
HOUR = "3600000"

MakeWorld = Callable[[], Awaitable[World]]


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


class StoreMachine(RuleBasedStateMachine):
    """Two instances, three routes; each rule does the same to the store and to the model."""

    world_of: ClassVar[Any]

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.model = Model()
        self.tokens: list[tuple[str, str]] = []
        self.next_id = 8190
        self.picture: Picture | None = None

    def run(self, what: Awaitable[Any]) -> Any:
        async def wait() -> Any:
            return await what

        return self.runner.run(wait())

    @initialize()
    def start(self) -> None:
        self.world: World = self.run(self.world_of())
        self.processes: dict[str, Process] = {}
        for instance in ("one", "two"):
            self._start_process(instance, f"{instance}.0")

    def _start_process(self, instance: str, nonce: str) -> Process:
        process = Process(instance, nonce, self.world.process(nonce, instance))
        self.run(process.store.beat(ROUTES, take_over=True))
        self.processes[instance] = process
        return process

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
        instance=st.sampled_from(["one", "two"]),
        routes=st.sets(st.sampled_from(ROUTES), min_size=1),
        lane=st.sampled_from(LANES),
        offers=st.booleans(),
        copies=st.integers(1, 2),
    )
    def accept(self, instance: str, routes: set[str], lane: str, offers: bool, copies: int) -> None:
        """New updates, some of them sent twice in one call."""
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

    @rule(
        instance=st.sampled_from(["one", "two"]),
        route=st.sampled_from(ROUTES),
        slots=st.integers(1, 4),
        suspect=st.booleans(),
    )
    def claim(self, instance: str, route: str, slots: int, suspect: bool) -> None:
        """A claim gets exactly what is ready, up to its slots."""
        process = self.processes[instance]
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
            (process.instance, name)
            for process in self.processes.values()
            for name in sorted(process.flights)
        ]
        instance, name = data.draw(st.sampled_from(flights))
        process = self.processes[instance]
        return process, name, process.flights.pop(name)

    def _is_flying(self) -> bool:
        return any(process.flights for process in self.processes.values())

    @precondition(_is_flying)
    @rule(data=st.data(), kind=st.sampled_from(["delivered", "retry", "release", "dead"]))
    def settle(self, data: st.DataObject, kind: str) -> None:
        """A flight ends; its settle holds exactly as long as nobody else has claimed the job."""
        process, name, token = self._flight(data)
        arguments = {
            "retry": ["0", HOUR],
            "release": ["front", "back"],
            "dead": ["permanent", "attempts"],
        }
        argument = data.draw(st.sampled_from(arguments.get(kind, [""])))
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
    @rule(data=st.data(), kind=st.sampled_from(["delivered", "retry", "release", "dead"]))
    def settle_late(self, data: st.DataObject, kind: Any) -> None:
        """A token that no longer holds is refused, whatever it asks for."""
        name, token = data.draw(st.sampled_from(self.tokens))
        work = self.model.jobs.get(name)
        if work is not None and work.token == token:
            return
        settle = Settle(kind, name, token, "0", "500", "HTTP 500")
        assert self.run(self.world.store.turn([settle], [])).settled == (False,)

    @rule(instance=st.sampled_from(["one", "two"]), lost=st.booleans())
    def restart(self, instance: str, lost: bool) -> None:
        """A process crashes, its flights forgotten, and the next of its name recovers; before
        that, perhaps, another one started and crashed as well."""
        old = self.processes[instance]
        number = int(old.nonce.partition(".")[2]) + 1
        if lost:
            self._start_process(instance, f"{instance}.{number}")
            number += 1
        new = self._start_process(instance, f"{instance}.{number}")
        self.run(new.store.recover([]))
        for name, work in list(self.model.jobs.items()):
            if work.state == "processing" and work.holder == old.nonce:
                self.model.free(name, crashed=True)

    @precondition(_is_flying)
    @rule(data=st.data())
    def forget_claims(self, data: st.DataObject) -> None:
        """A process never saw the answer to a claim, and finds out."""
        process, name, token = self._flight(data)
        work = self.model.jobs.get(name)
        lost = work is not None and work.state == "processing" and work.token == token
        found = self.run(process.store.reclaim(list(process.flights)))
        assert found == ((name,) if lost else ())
        if lost:
            self.model.free(name, crashed=False)

    @precondition(_is_flying)
    @rule(data=st.data(), silent=st.booleans())
    def end_lease(self, data: st.DataObject, silent: bool) -> None:
        """A lease runs out, and the other instance reaps it; the process flies on."""
        process, name, token = self._flight(data)
        process.flights[name] = token
        work = self.model.jobs.get(name)
        if work is None or work.token != token or work.state != "processing":
            return
        self.run(self.world.let_lease_end(name))
        other = self.processes["two" if process.instance == "one" else "one"]
        own = self.run(process.store.sweep())
        assert own.reaped == 0
        self._expect_expired(own.expired)
        self.run(process.store.beat(ROUTES))
        if silent:
            self.run(self.world.let_heartbeat_lapse(process.instance))
        swept = self.run(other.store.sweep())
        assert swept.reaped == 1
        self.model.free(name, crashed=silent)
        self._expect_expired(swept.expired)
        self.run(process.store.beat(ROUTES))

    @precondition(lambda self: self.model.jobs)
    @rule(data=st.data())
    def expire(self, data: st.DataObject) -> None:
        """An update's time is over: whatever waits of it dies, whatever flies is left alone."""
        name = data.draw(st.sampled_from(sorted(self.model.jobs)))
        update_id = name.partition("/")[0]
        self.run(self.world.let_expire(update_id))
        for other in self.model.of(update_id):
            self.model.jobs[other].overdue = self.model.jobs[other].mortal
        resting = {n for n in self.model.of(update_id) if self._will_expire(n)}
        expired = self.run(self.world.store.sweep()).expired
        assert resting <= set(expired)
        self._expect_expired(expired)

    def _will_expire(self, name: str) -> bool:
        work = self.model.jobs[name]
        return work.overdue and work.state in LIVE and work.state != "processing"

    def _expect_expired(self, expired: tuple[str, ...]) -> None:
        # One that was in flight at the last sweep is looked at again two seconds later.
        for name in expired:
            assert self._will_expire(name)
            self.model.bury(name, "expired")

    @rule(data=st.data())
    def end_delay(self, data: st.DataObject) -> None:
        """A delay is over."""
        delayed = sorted(self.model.named("delayed"))
        if delayed:
            name = data.draw(st.sampled_from(delayed))
            self.run(self.world.let_delay_end(name))
            self.model.jobs[name].state = "ready"

    @precondition(lambda self: self.model.named("dead"))
    @rule(data=st.data(), to=st.sampled_from(ROUTES), same=st.booleans())
    def replay(self, data: st.DataObject, to: str, same: bool) -> None:
        """A dead letter starts anew, on its own route or on another that has none of it."""
        name = data.draw(st.sampled_from(sorted(self.model.named("dead"))))
        old = self.model.jobs[name]
        to = old.route if same else to
        target = f"{name.partition('/')[0]}/{to}"
        answer = self.run(self.world.store.dead_letters.replay(name, to, ordered=ORDERED[to]))
        taken = target != name and target in self.model.jobs
        assert answer == ("taken" if taken else "replayed")
        if not taken:
            lane = self._lane_of(target) if ORDERED[to] else ""
            self.model.remove(name)
            self.model.join(target, Work(to, lane, mortal=False))

    def _lane_of(self, name: str) -> str:
        key = f"{{twr:main}}:update:{name.partition('/')[0]}"
        found: bytes = self.run(self.world.redis.hget(key, "lane"))
        return found.decode()

    @precondition(lambda self: self.model.named("dead"))
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        """A dead letter is dropped; a live job is not, whoever asks."""
        name = data.draw(st.sampled_from(sorted(self.model.jobs)))
        dead = self.model.jobs[name].state == "dead"
        assert self.run(self.world.store.dead_letters.drop([name])) == int(dead)
        if dead:
            self.model.remove(name)

    @rule(old=st.sampled_from(ROUTES), new=st.sampled_from(ROUTES))
    def move(self, old: str, new: str) -> None:
        """Waiting work goes to another route; what flies stays, and what that route has."""
        names = [n for n, j in self.model.jobs.items() if j.route == old and j.state in LIVE]
        moved = self.run(self.world.store.move(old, new, ordered=ORDERED[new]))
        going = [n for n in names if self._can_move(n, new)]
        assert moved == (len(going), len(names) - len(going))
        for name in self._in_order_of_all(going):
            work = self.model.jobs[name]
            target = f"{name.partition('/')[0]}/{new}"
            lane = self._lane_of(target) if ORDERED[new] else ""
            self.model.remove(name)
            fresh = Work(new, lane, attempts=work.attempts, mortal=work.mortal)
            fresh.overdue = work.overdue
            self.model.join(target, fresh)

    def _can_move(self, name: str, new: str) -> bool:
        taken = f"{name.partition('/')[0]}/{new}" in self.model.jobs
        return not taken and self.model.jobs[name].state != "processing"

    def _in_order_of_all(self, names: list[str]) -> list[str]:
        """As the store moves them: by the scores they had before."""
        assert self.picture is not None
        return sorted(
            names,
            key=lambda n: (self.picture.all[self.model.jobs[n].route][n], n.encode()),  # type: ignore[union-attr]
        )

    @rule(route=st.sampled_from(ROUTES))
    def repair(self, route: str) -> None:
        """A healthy store has nothing to repair."""
        assert self.run(self.world.store.repair(route)) == ()

    @invariant()
    def agrees(self) -> None:
        """Every invariant holds, and the store has exactly the jobs of the model."""
        picture: Picture = self.run(self.world.picture())
        self.picture = picture
        assert violations(picture) == []
        assert {n: self._seen_as(n, j) for n, j in picture.jobs.items()} == {
            name: (work.state, work.attempts, work.crashes, work.token, work.reason)
            for name, work in self.model.jobs.items()
        }
        lanes = {key: names for key, names in self.model.lanes.items() if names}
        assert picture.lanes == lanes

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


def run_machine(world_of: MakeWorld, examples: int) -> None:
    machine = type("Machine", (StoreMachine,), {"world_of": staticmethod(world_of)})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_random_histories() -> None:
    """No history of accepts, claims, settles, crashes and moves breaks an invariant."""

    async def world_of() -> World:
        return fake_world()

    run_machine(world_of, 60)


@pytest.mark.parametrize("kind", SERVERS)
def test_random_histories_on_a_real_server(kind: str, shared_server: Start) -> None:
    """The real servers agree with the model as fakeredis does."""
    server = shared_server(kind)

    async def world_of() -> World:
        return await real_world(server)

    run_machine(world_of, 25)
