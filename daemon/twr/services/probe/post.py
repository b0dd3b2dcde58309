"""The ways out of the probe: the log, the sinks, the heartbeat."""

from collections.abc import Callable

import anyio
from anyio.abc import TaskGroup

from twr.core.alerting import Notice
from twr.core.clock import Clock
from twr.edges.notifiers import Heartbeat, Outbox, Pulse, Sink, tell_log
from twr.services.probe.ports import Outputs


class Post:
    """Hands notices to every sink and beats to the heartbeat, each with a task of its own."""

    def __init__(
        self,
        outputs: Outputs,
        clock: Clock,
        random: Callable[[], float],
        tasks: TaskGroup,
        stop: anyio.Event,
    ) -> None:
        self._outputs = outputs
        self._clock = clock
        self._random = random
        self._tasks = tasks
        self._stop = stop
        self._outboxes: dict[Sink, Outbox] = {}
        self._pulses: dict[Heartbeat, Pulse] = {}

    def send(self, notice: Notice, repeat: float) -> None:
        """Tell the log now and every sink by and by; `repeat` is seconds, as in Complaints."""
        tell_log(notice)
        for sink in self._outputs.sinks():
            outbox = self._outboxes.get(sink)
            if outbox is None:
                outbox = self._outboxes[sink] = Outbox(sink, self._clock, self._random, repeat)
                self._tasks.start_soon(outbox.run, self._stop)
            outbox.post(notice)

    def beat(self, repeat: float) -> None:
        """Ping the heartbeat, if there is one."""
        heartbeat = self._outputs.heartbeat()
        if heartbeat is None:
            return
        pulse = self._pulses.get(heartbeat)
        if pulse is None:
            pulse = self._pulses[heartbeat] = Pulse(heartbeat, self._clock, self._random, repeat)
            self._tasks.start_soon(pulse.run, self._stop)
        pulse.beat()
