"""What befalls a store and its processes: crashes, take-overs, lost answers, lost keys."""

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from store.invariants import LIVE
from store.machine import INSTANCES, ROUTES, Machine
from store.model import Process
from store.world import KEYS
from twr.edges.store.keys import route_of

PLACES = ("ready", "suspect", "delayed", "processing")


class Mishaps(Machine):
    """Rules for what nobody wants."""

    @precondition(lambda self: self.model.named("processing"))
    @rule(instance=st.sampled_from(INSTANCES), lost=st.booleans(), judged=st.booleans())
    def restart(self, instance: str, lost: bool, judged: bool) -> None:
        """A process crashes, its flights forgotten, and the next of its name recovers; before
        that, perhaps, another one started and crashed as well. Elder ones that still run may be
        taken for dead."""
        if lost:
            self._start_process(instance)
        self._recover(self._start_process(instance), [] if judged else self._living(instance))

    @precondition(lambda self: self.model.named("ready", "suspect"))
    @rule(
        instance=st.sampled_from(INSTANCES),
        route=st.sampled_from(ROUTES),
        times=st.integers(1, 3),
    )
    def crash_again(self, instance: str, route: str, times: int) -> None:
        """Something of a route lets each process crash that claims it."""
        for _ in range(times):
            for suspect in (False, True):
                self._claim(self.processes[instance], route, 3, suspect)
            self._recover(self._start_process(instance), self._living(instance))

    def _recover(self, new: Process, living: list[str]) -> None:
        """A start gives back what all others of the name hold but those that live."""
        gone = self._leases(new.instance, {new.nonce, *living})
        swept = self.run(new.store.recover(living))
        for name in gone:
            self.model.free(name, crashed=True)
        poison = {name for name in gone if self.model.jobs[name].state == "dead"}
        assert (swept.reaped, set(swept.poison), swept.expired) == (len(gone), poison, ())
        self.told[new.instance] = set(living)

    def _living(self, instance: str) -> list[str]:
        """Elder processes of the name that nobody has taken for dead yet."""
        running = {elder.nonce for elder in self.elders}
        return sorted(running & self.told[instance])

    def _leases(self, instance: str, living: set[str]) -> list[str]:
        return [
            name
            for name in self.model.named("processing")
            if (holder := self.model.jobs[name].holder or "") not in living
            and holder.startswith(f"{instance}.")
        ]

    @precondition(lambda self: self.is_flying() and len(self.elders) < 2)
    @rule(instance=st.sampled_from(INSTANCES))
    def take_over(self, instance: str) -> None:
        """A second process of a name starts: the first is told, and keeps what it holds."""
        old = self.processes[instance]
        new = self._start_process(instance)
        self.elders.append(old)
        assert not self.run(old.store.beat(ROUTES)).ours
        self._recover(new, self._living(instance))

    @precondition(lambda self: self.elders)
    @rule(data=st.data())
    def end_elder(self, data: st.DataObject) -> None:
        """A replaced process ends; what it holds stays leased until somebody recovers it."""
        self.elders.remove(data.draw(st.sampled_from(self.elders)))

    @precondition(Machine.is_live)
    @rule()
    def forget_scripts(self) -> None:
        """The server forgets all scripts, as by a restart or a failover."""
        self.run(self.world.redis.script_flush())

    @precondition(Machine.is_flying)
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

    @precondition(Machine.is_flying)
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
        elder = process in self.elders
        assert self.run(process.store.beat(ROUTES)).ours == (not elder)
        if silent:
            nonce = process.nonce if elder else None
            self.run(self.world.let_heartbeat_lapse(process.instance, nonce))
        swept = self.run(other.store.sweep())
        assert swept.reaped == 1
        self.model.free(name, crashed=silent)
        self._expect_expired(swept.expired)
        self.run(process.store.beat(ROUTES))

    @precondition(lambda self: self.model.named(*PLACES))
    @rule(data=st.data())
    def lose_place(self, data: st.DataObject) -> None:
        """A place of a route is lost, and repaired; of leases, once they would have ended."""
        lost = data.draw(st.sampled_from(sorted(self.model.named(*PLACES))))
        route, place = route_of(lost), self._stored(lost)
        names = [name for name in self._live_of(route) if self._stored(name) == place]
        self.run(self.world.redis.delete(KEYS.route(route, place)))
        if place == "processing":
            self.run(self.world.let_lease_end(*names))
        assert self.run(self.world.store.repair(route)) == tuple(names)
        if place == "processing":
            for name in names:
                self.model.free(name, crashed=False)

    @precondition(lambda self: self.model.named("waiting"))
    @rule(route=st.sampled_from(ROUTES))
    def lose_lanes(self, route: str) -> None:
        """The lanes of a route are lost, and built again in the order of acceptance: those whose
        head is the oldest of them."""
        names = [name for name in self._live_of(route) if self.model.jobs[name].lane]
        lanes: dict[str, list[str]] = {}
        for name in names:
            lanes.setdefault(self.model.jobs[name].lane, []).append(name)
        for lane, jobs in lanes.items():
            head = self.model.lanes[route, lane][0]
            self.run(self.world.redis.delete(KEYS.route(route, f"lane:{lane}")))
            self.model.lanes[route, lane] = [head, *(n for n in jobs if n != head)]
        assert set(self.run(self.world.store.repair(route))) == set(names)

    def _live_of(self, route: str) -> list[str]:
        """The live jobs of a route, by their acceptance."""
        names = [n for n, job in self.model.jobs.items() if job.route == route]
        return self._in_order_of_all([n for n in names if self.model.jobs[n].state in LIVE])

    def _stored(self, name: str) -> str:
        """The state that the store has: a delay that is over ends when somebody claims."""
        assert self.picture is not None
        return self.picture.jobs[name]["state"]

    @precondition(Machine.is_live)
    @rule(route=st.sampled_from(ROUTES))
    def repair(self, route: str) -> None:
        """A healthy store has nothing to repair."""
        assert self.run(self.world.store.repair(route)) == ()
