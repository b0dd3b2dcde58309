"""The daemon: load, start, run, drain, stop."""

import logging
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import anyio
from anyio.abc import TaskGroup

from twr import pace
from twr.config import Config, Secrets, load, unchangeable_differences
from twr.core.clock import Clock
from twr.core.text import kv
from twr.edges import embedded
from twr.edges.embedded import Embedded
from twr.edges.metrics import Metrics
from twr.edges.sockets import bind
from twr.edges.store import Identity, Store, open_store
from twr.edges.systemd import Notifier
from twr.errors import ConfigError, TwrError
from twr.services import admin, delivery, ingress
from twr.services.delivery import Delivery
from twr.services.ingress import Accepting
from twr.services.recovery import Recovery
from twr.services.reload import ConfigWatch
from twr.supervisor.current import derive
from twr.supervisor.keeper import keep
from twr.supervisor.process import Process
from twr.supervisor.status import Status
from twr.supervisor.tasks import Restarts, supervise
from twr.supervisor.watching import Watching

log = logging.getLogger("twr.supervisor")

# How long the first contact with the store may hold up readiness.
FIRST_CONTACT = 5.0
STATUS_EVERY = 5.0


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the process is given from outside. `random` gives numbers from 0 to 1; `hide` takes
    texts that the log is never to show; `watchdog` is its interval in seconds, if there is one."""

    environ: Mapping[str, str] = field(repr=False)
    clock: Clock
    random: Callable[[], float]
    nonce: str
    version: str
    notifier: Notifier
    watchdog: float | None
    hide: Callable[[Sequence[str]], None]


class Daemon:
    """One process. `run` once; its error, if any, says how the process ends."""

    def __init__(self, config: Config, secrets: Secrets, given: Surroundings) -> None:
        self._given = given
        self._file = config.file
        self._config_watch = ConfigWatch(config.file, config.content)
        self._started_with = config
        self._current = derive(config, secrets)
        self._embedded = (
            Embedded(config.store.dir, config.store.max_memory) if config.store.embedded else None
        )
        self._store = self._open_store(config, secrets)
        metrics = Metrics(given.version, config.bot.name)
        self._process = Process(given.clock, metrics, self._store, config.bot.username)
        self._delivery = Delivery(self._delivery_dependencies())
        self._process.delivery = self._delivery
        self._watching = Watching(self._process, lambda: self._current, given, config.instance)
        self._status = Status(
            self._process,
            self._watching.board,
            given.version,
            config.instance,
            lambda text: self._current.mask(text),
        )
        self._recovery = Recovery(
            self._store,
            _Loop(self._process, "recovery"),
            lambda: self._current.recovery,
            given.clock,
            boot_id=_boot_id(),
            runs=_runs,
        )
        self._closing = anyio.Event()
        self._store_started = anyio.Event()
        self._reloading = anyio.Lock()

    def _open_store(self, config: Config, secrets: Secrets) -> Store:
        return open_store(
            secrets.store_url or embedded.url(config.store.dir),
            prefix=config.store.prefix,
            bot=config.bot.name,
            identity=Identity(config.instance, self._given.nonce, _boot_id(), os.getpid()),
            dedup_ttl=config.store.dedup_ttl,
        )

    def _delivery_dependencies(self) -> delivery.Dependencies:
        return delivery.Dependencies(
            store=self._store,
            measures=self._process.metrics,
            clock=self._given.clock,
            random=self._given.random,
            mask=lambda: self._current.mask,
            alive=lambda: self._process.alive("delivery"),
            user_agent=f"twr/{self._given.version}",
            grace=lambda: self._current.config.shutdown_grace,
        )

    # --- the life of the process ------------------------------------------------------------

    async def run(self) -> None:
        """Run until a signal or a failure ends it; raises the failure once all is drained."""
        public, private = self._bind()
        async with AsyncExitStack() as stack:
            stack.callback(self._given.notifier.close)
            stack.callback(private.close)
            stack.callback(public.close)
            if self._embedded is not None:
                await self._embedded.lock()
                stack.callback(self._embedded.unlock)
            stack.push_async_callback(self._close_store)
            await stack.enter_async_context(self._watching)
            stack.push_async_callback(self._delivery.close)
            await self._run(public, private)
        if self._process.failure is not None:
            raise self._process.failure

    def _bind(self) -> tuple[socket.socket, socket.socket]:
        config = self._current.config
        public = bind(config.listen, config.socket_mode, config.socket_group)
        try:
            return public, bind(config.admin)
        except TwrError:
            public.close()
            raise

    async def _run(self, public: socket.socket, private: socket.socket) -> None:
        """The groups end from the inside out: first delivery, then the ingress, then the rest."""
        await self._delivery.configure(self._current.config.routes, self._current.route_secrets)
        ingress_stop = anyio.Event()
        async with anyio.create_task_group() as signals:
            signals.start_soon(self._on_signals)
            async with anyio.create_task_group() as rest:
                self._start_rest(rest, private)
                async with anyio.create_task_group() as outer:
                    self._start(outer, "ingress", lambda: self._ingress(public, ingress_stop))
                    async with anyio.create_task_group() as inner:
                        await self._first_contact()
                        self._start_work(inner, rest)
                        await self._ready()
                        await self._process.stop.wait()
                        self._given.notifier.stopping("draining")
                        log.info("draining %s", kv(in_flight=self._delivery.held()))
                    self._process.beats.forget("delivery")
                    ingress_stop.set()
                self._closing.set()
            signals.cancel_scope.cancel()
        log.info("stopped")

    def _start_rest(self, tasks: TaskGroup, private: socket.socket) -> None:
        if self._embedded is not None:
            store = self._embedded
            self._start(
                tasks,
                "store",
                lambda: keep(store, self._given.clock, self._store_started.set, self._closing),
            )
        self._start(tasks, "admin", lambda: self._admin(private))
        self._start(tasks, "config watcher", self._watch_config)
        self._start(tasks, "status line", self._report)

    def _start_work(self, inner: TaskGroup, rest: TaskGroup) -> None:
        self._process.expect("recovery")
        self._process.expect("delivery")
        self._start(rest, "recovery", lambda: self._recovery.run(self._closing))
        self._start(rest, "probe", lambda: self._watching.run(self._closing))
        self._start(inner, "delivery", lambda: self._delivery.run(self._process.stop))

    def _start(self, tasks: TaskGroup, name: str, body: Callable[[], Awaitable[None]]) -> None:
        restarts = Restarts(
            self._given.clock,
            self._process.stop,
            self._process.metrics.task_restarted,
            self._process.fail,
        )
        tasks.start_soon(supervise, name, body, restarts, name=name)

    async def _first_contact(self) -> None:
        """An embedded store is given a moment, so that its start is no outage."""
        if self._embedded is not None:
            await pace.wait_for_first((self._store_started, self._process.stop), FIRST_CONTACT)

    async def _ready(self) -> None:
        await pace.wait(self._process.attempted, FIRST_CONTACT)
        if self._process.stop.is_set():
            return
        config = self._current.config
        self._given.notifier.ready(self._line())
        log.info(
            "ready %s",
            kv(
                listen=config.listen,
                path=config.path,
                admin=config.admin,
                routes=len(config.routes),
            ),
        )

    async def _close_store(self) -> None:
        await self._store.close()
        if self._embedded is not None:
            await self._embedded.stop()

    # --- services ---------------------------------------------------------------------------

    async def _ingress(self, sock: socket.socket, stop: anyio.Event) -> None:
        given = ingress.Dependencies(
            settings=lambda: self._current.ingress,
            username=lambda: self._process.username,
            store=Accepting(self._store, self._delivery),
            measures=self._process.metrics,
            accepted=self._process.accepted,
            unauthorized=self._process.unauthorized,
        )
        await ingress.run(given, sock, stop)

    async def _admin(self, sock: socket.socket) -> None:
        await admin.run(
            sock,
            self._closing,
            ready=self._unready,
            status=self._status.json,
            metrics=self._status.metrics,
        )

    async def _watch_config(self) -> None:
        await self._config_watch.run(self._reload, self._closing)

    async def _report(self) -> None:
        """Feed the watchdog while all loops turn, and keep the status line fresh."""
        every = min(self._given.watchdog or STATUS_EVERY, STATUS_EVERY)
        while not await pace.wait(self._closing, every):
            if not self._process.beats.stale(self._given.clock.monotonic()):
                self._given.notifier.watchdog()
            if not self._process.stop.is_set():
                self._given.notifier.status(self._line())

    def _unready(self) -> Sequence[str]:
        return [self._current.mask(reason) for reason in self._process.unready()]

    def _line(self) -> str:
        """What `systemctl status` shows."""
        reasons = self._unready()
        if reasons:
            return f"degraded: {reasons[0]}"
        runs = self._delivery.routes()
        paused = sum(run.breaker.open for run in runs)
        return (
            f"routes {len(runs)}, paused {paused}; accepted {self._process.traffic().accepted}, "
            f"delivered {sum(run.delivered for run in runs)}, in flight {self._delivery.held()}"
        )

    # --- signals and reload -----------------------------------------------------------------

    async def _on_signals(self) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as received:
            async for number in received:
                if number == signal.SIGHUP:
                    await self._reload("SIGHUP")
                else:
                    log.info("stopping %s", kv(signal=signal.Signals(number).name))
                    self._process.stop.set()

    async def _reload(self, cause: str) -> None:
        """Take the file as it is now, or keep what runs and say why."""
        async with self._reloading:
            self._given.notifier.reloading()
            try:
                await self._take_over(cause)
            except ConfigError as error:
                self._reload_failed(error.problems[0] if error.problems else error)
                for problem in error.problems:
                    log.error("config invalid %s", kv(problem=problem))
            except Exception as error:
                self._reload_failed(f"{type(error).__name__} while loading")
                log.exception("config not loaded")
            self._given.notifier.ready(self._line())

    def _reload_failed(self, reason: object) -> None:
        self._process.config_error = str(reason)
        self._process.metrics.config_reload(ok=False)

    async def _take_over(self, cause: str) -> None:
        environ = self._given.environ

        def read() -> tuple[Config, Secrets]:
            config = load(self._file, environ)
            return config, config.secrets(environ)

        config, secrets = await anyio.to_thread.run_sync(read)
        await self._swap(config, secrets, cause)
        self._config_watch.loaded(config.content)

    async def _swap(self, config: Config, secrets: Secrets, cause: str) -> None:
        for name in unchangeable_differences(self._started_with, config):
            log.warning("config needs a restart %s", kv(setting=name))
        before = self._current
        told = {*before.config.warnings, *before.secrets.warnings}
        for problem in (*config.warnings, *secrets.warnings):
            if problem not in told:
                log.warning("config %s", kv(warning=problem))
        self._given.hide(secrets.all())
        current = derive(config, secrets, before.mask)
        # What can fail comes before anything has changed.
        ways = await self._watching.prepare(current)
        self._current = current
        self._watching.take(ways)
        if config.bot.username is not None:
            self._process.username = config.bot.username
        await self._delivery.configure(config.routes, current.route_secrets)
        self._process.config_error = None
        self._process.metrics.config_reload(ok=True)
        log.info("config loaded %s", kv(cause=cause, routes=len(config.routes)))


class _Loop:
    """The process as one of its loops sees it: `alive` is the loop's own."""

    def __init__(self, process: Process, name: str) -> None:
        self.store_answers = process.store_answers
        self.store_works = process.store_works
        self.store_failed = process.store_failed
        self.recovered = process.recovered
        self.replaced = process.replaced
        self.leases_expired = process.leases_expired
        self.trimmed = process.trimmed
        self.work_found = process.work_found
        self.alive = lambda: process.alive(name)


def _boot_id() -> str:
    """Tells starts of the machine apart, and process tables on it (containers have their own)."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot}.{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return f"{socket.gethostname()}.0"


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
