"""The store against a model of it: random histories, and after each step everything is compared."""

from collections.abc import Awaitable, Callable

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test

from servers import SERVERS
from store.invariants import LIVE
from store.machine import ORDERED, ROUTES
from store.mishaps import Mishaps
from store.model import Work
from store.world import KEYS, Start, World, fake_world, real_world

MakeWorld = Callable[[], Awaitable[World]]


class StoreMachine(Mishaps):
    """And what time does, and a person."""

    @precondition(Mishaps.is_live)
    @rule(data=st.data())
    def expire(self, data: st.DataObject) -> None:
        """An update's time is over: whatever waits of it dies, whatever flies is left alone."""
        name = data.draw(st.sampled_from(sorted(self.model.named(*LIVE))))
        update_id = name.partition("/")[0]
        self.run(self.world.let_expire(update_id))
        for other in self.model.of(update_id):
            self.model.jobs[other].overdue = self.model.jobs[other].mortal
        resting = {n for n in self.model.of(update_id) if self._will_expire(n)}
        expired = self.run(self.world.store.sweep()).expired
        assert resting <= set(expired)
        self._expect_expired(expired)

    @precondition(lambda self: self.model.named("delayed"))
    @rule(data=st.data())
    def end_delay(self, data: st.DataObject) -> None:
        """A delay is over."""
        name = data.draw(st.sampled_from(sorted(self.model.named("delayed"))))
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

    @precondition(lambda self: self.model.named("dead"))
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        """A dead letter is dropped; a live job is not, whoever asks."""
        name = data.draw(st.sampled_from(sorted(self.model.jobs)))
        dead = self.model.jobs[name].state == "dead"
        assert self.run(self.world.store.dead_letters.drop([name])) == int(dead)
        if dead:
            self.model.remove(name)

    @precondition(lambda self: self.model.named("dead"))
    @rule(data=st.data(), most=st.integers(0, 3))
    def trim(self, data: st.DataObject, most: int) -> None:
        """Of the dead letters one that is too old goes, and the oldest of those over a number."""
        assert self.picture is not None
        died = dict(self.picture.dead)
        old = data.draw(st.sampled_from(sorted(died)))
        died[old] -= 7_200_000
        self.run(self.world.redis.zadd(KEYS.dead_letters, {old: died[old]}))
        letters = sorted(died, key=lambda name: (died[name], name.encode()))
        gone = letters[: max(1, len(letters) - most)]
        assert self.run(self.world.store.dead_letters.trim(3600, most)) == len(gone)
        for name in gone:
            self.model.remove(name)

    @precondition(Mishaps.is_live)
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

    run_machine(world_of, 40)


@pytest.mark.parametrize("kind", SERVERS)
def test_random_histories_on_a_real_server(kind: str, shared_server: Start) -> None:
    """The real servers agree with the model as fakeredis does."""
    server = shared_server(kind)

    async def world_of() -> World:
        return await real_world(server)

    run_machine(world_of, 25)
