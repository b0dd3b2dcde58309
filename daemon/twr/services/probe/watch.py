"""The loops of the probe. Each has its own task, so that what hangs delays nothing else."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

import anyio

from twr import pace
from twr.core import backlog, drift, findings, webhook_info
from twr.core.alerting import Alert
from twr.core.clock import Clock
from twr.core.drift import Memory
from twr.core.findings import Finding
from twr.core.matching import left_out
from twr.core.text import kv
from twr.errors import StoreError, TelegramError, TokenInvalid
from twr.services.probe.board import Board, Traffic, masked
from twr.services.probe.leavings import Leavings
from twr.services.probe.ports import Bot, Inputs, Outputs, Settings
from twr.services.probe.post import Post

EVALUATE_EVERY = 0.5
"""Seconds between two looks at what this process knows by itself."""

STATS_EVERY = 5.0
"""Seconds between two looks at the store, at most."""

CLAIM_EVERY = 1.5

CLAIM_TTL = 5.0
"""Seconds after which another instance probes in place of one that is gone."""

STORE_PATIENCE = 5.0
"""Seconds after which the probe goes on without what the store remembers."""

LOOK_TIMEOUT = 15.0

ASTRAY_EVERY = 5.0
"""Seconds between two looks, at most, while Telegram has another URL: whoever mends that soon sees
that it is mended."""

SETTLING = 60.0
"""Seconds for which a start takes no route that was down for one that is up again."""

_SAVE_RETRY = 1.0
_LAST_SAVE = 2.0
_AT_ONCE = 0.001

_CUT_OFF = frozenset(
    {
        findings.URL_DRIFT,
        findings.PENDING,
        findings.SECRET_MISMATCH,
        findings.UNREACHABLE,
        findings.TOKEN_INVALID,
        findings.STORE_DOWN,
    }
)
"""While one of these fires updates do not come in, and the heartbeat stops."""

log = logging.getLogger("twr.probe")


async def run(
    inputs: Inputs,
    outputs: Outputs,
    board: Board,
    clock: Clock,
    random: Callable[[], float],
    stop: anyio.Event,
) -> None:
    """Watch until `stop`, then send and store what still waits, within some seconds."""
    async with anyio.create_task_group() as senders:
        post = Post(outputs, clock, random, senders, stop)
        watch = _Watch(inputs, outputs, board, clock, post)
        async with anyio.create_task_group() as loops:
            for loop in (watch.claim, watch.look, watch.count, watch.evaluate, watch.save):
                loops.start_soon(loop)
            await stop.wait()
            loops.cancel_scope.cancel()
        with anyio.move_on_after(_LAST_SAVE):
            await watch.save_once()
            await watch.yield_claim()


class _Watch:
    def __init__(
        self, inputs: Inputs, outputs: Outputs, board: Board, clock: Clock, post: Post
    ) -> None:
        self._inputs = inputs
        self._outputs = outputs
        self._board = board
        self._clock = clock
        self._post = post
        self._started = clock.monotonic()
        self._started_at = clock.time()
        self._settings: Settings | None = None
        self._look_now = anyio.Event()
        self._count_now = anyio.Event()
        self._unsaved = anyio.Event()
        self._named: Bot | None = None
        self._leavings = Leavings(inputs.store, board.instance, clock)

    async def claim(self) -> None:
        """Find out, again and again, whether this is the instance that probes."""
        while True:
            before = self._board.prober
            await self._claim_once()
            if self._board.prober and not before:
                self._look_now.set()
                self._count_now.set()
            with suppress(StoreError):
                if self._outputs.recall is not None:
                    await self._outputs.recall()
            await anyio.sleep(CLAIM_EVERY)

    async def _claim_once(self) -> None:
        board, store = self._board, self._inputs.store
        try:
            held = await store.claim_probe(CLAIM_TTL)
            texts = await store.load_alerts()
        except StoreError:
            # Nobody can be asked: one that knows of no other has to probe.
            board.prober = board.prober or (not board.loaded and self._uptime() > STORE_PATIENCE)
        else:
            if not (held and board.prober and board.loaded):
                board.restore(texts, self._outputs.mask, merge=held and board.prober)
            board.prober = held
            board.hear(texts)
            if held:
                await self._clear_leavings(texts)
            else:
                board.count_from_look(self._inputs.traffic())

    async def _clear_leavings(self, texts: Mapping[str, str]) -> None:
        with suppress(StoreError):
            for notice in await self._leavings.clear(texts):
                self._post.send(notice, self._inputs.settings().repeat)

    async def yield_claim(self) -> None:
        """Let whoever comes next probe at once."""
        if self._board.prober:
            self._board.prober = False
            with suppress(StoreError):
                await self._inputs.store.claim_probe(_AT_ONCE)

    async def look(self) -> None:
        """Ask Telegram every interval, at once when this instance begins to probe, and sooner than
        that while the webhook leads elsewhere."""
        while True:
            settings = self._inputs.settings()
            if self._board.prober and await self._cycle(settings):
                self._post.beat(settings.repeat)
            astray = self._board.memory.url.on
            pause = min(settings.interval, ASTRAY_EVERY) if astray else settings.interval
            await pace.wait(self._look_now, pause)
            self._look_now = anyio.Event()

    async def _cycle(self, settings: Settings) -> bool:
        """One look; whether all is well."""
        bot = self._inputs.bot()
        answered = await self._ask(bot, settings) if bot else self._ask_nobody()
        self._evaluate_once()
        if bot is not None:
            await self._learn(bot)
        return answered and not self._board.firing & _CUT_OFF

    def _ask_nobody(self) -> bool:
        """Without a token: what was refused by now is no news to a token that comes later."""
        board = self._board
        board.memory = replace(board.memory, mismatch_at=None)
        board.traffic_since(self._inputs.traffic())
        return True

    async def _ask(self, bot: Bot, settings: Settings) -> bool:
        board = self._board
        try:
            with anyio.fail_after(LOOK_TIMEOUT):
                told = await bot.get_webhook_info()
        except TokenInvalid as error:
            board.memory = drift.rejected(board.memory, settings.limits, str(error))
        except TelegramError as error:
            board.memory = drift.missed(board.memory, settings.limits, str(error))
        except TimeoutError:
            reason = f"no answer within {LOOK_TIMEOUT:g} s"
            board.memory = drift.missed(board.memory, settings.limits, reason)
        else:
            self._observe(told, settings)
            return True
        return False

    def _observe(self, told: webhook_info.Told, settings: Settings) -> None:
        board, wanted, now = self._board, settings.wanted, self._clock.time()
        traffic = self._inputs.traffic()
        since = board.traffic_since(traffic)
        webhook = webhook_info.remembered(told, self._outputs.mask)
        board.memory = drift.observed(board.memory, webhook, wanted, settings.limits, since, now)
        board.count_from_look(traffic)
        matches = not drift.url_differs(webhook, wanted)
        metrics = self._outputs.metrics
        metrics.webhook(matches, webhook.pending, webhook.last_error_date)
        metrics.probe_success(now)
        board.measured = True

    async def _learn(self, bot: Bot) -> None:
        if self._outputs.learned is None or self._named is bot:
            return
        try:
            with anyio.fail_after(LOOK_TIMEOUT):
                username = (await bot.get_me()).username
            if username:
                await self._outputs.learned(username)
        except (TelegramError, StoreError, TimeoutError):
            return
        self._named = bot

    async def count(self) -> None:
        """Look at what waits and what died; leave our traffic for another that probes.

        At once when this instance begins to probe: what has died before is no news.
        """
        while True:
            board = self._board
            board.publish(Traffic() if board.prober else self._inputs.traffic())
            if board.prober and board.loaded:
                await self._count_once()
            pause = min(STATS_EVERY, self._inputs.settings().interval)
            await pace.wait(self._count_now, pause)
            self._count_now = anyio.Event()

    async def _count_once(self) -> None:
        try:
            stats = await self._inputs.store.stats()
        except StoreError:
            return
        board = self._board
        board.stats = stats
        board.deaths = backlog.counted(board.deaths, stats.died, self._clock.time())

    async def evaluate(self) -> None:
        """Turn what is known into alerts, twice a second."""
        while True:
            self._evaluate_once()
            await anyio.sleep(EVALUATE_EVERY)

    def _evaluate_once(self) -> None:
        board, settings = self._board, self._take_settings()
        recent = board.rejections.growth(
            self._inputs.traffic().unauthorized, self._clock.monotonic()
        )
        own = list(self._inputs.local())
        shared: list[Finding] = []
        if self._may_tell():
            mine, all_of_us = drift.secret_mismatch(
                board.memory if self._asks() else None,
                recent,
                own=findings.SECRET_MISMATCH in board.own,
                shared=findings.SECRET_MISMATCH in board.shared,
            )
            own += mine
            shared += [*all_of_us, *self._shared_findings(settings)]
        else:
            own = [finding for finding in own if finding.alert == findings.STORE_DOWN]
        notices = board.step(
            self._masked(own),
            self._masked(shared),
            self._is_judged,
            settings.repeat,
            self._clock.time(),
        )
        for notice in notices:
            self._post.send(notice, settings.repeat)
        self._outputs.metrics.alerts_firing(board.firing)
        if board.measured and not self._asks():
            self._unmeasure()
        if board.loaded and board.unsaved():
            self._unsaved.set()

    def _unmeasure(self) -> None:
        """Old numbers would stay beside those of the instance that probes now."""
        self._outputs.metrics.webhook(None, None, None)
        self._outputs.metrics.probe_success(None)
        self._board.measured = False

    def _take_settings(self) -> Settings:
        settings = self._inputs.settings()
        if settings != self._settings:
            if self._settings is not None:
                self._look_now.set()
            self._settings = settings
            self._board.wanted = settings.wanted
            _warn_of_left_out(settings)
        return settings

    def _asks(self) -> bool:
        """Whether this is the instance that asks Telegram."""
        return self._board.prober and self._inputs.bot() is not None

    def _may_tell(self) -> bool:
        """Whether it is known, or never will be soon, what has been told already."""
        return self._board.loaded or self._uptime() > STORE_PATIENCE

    def _uptime(self) -> float:
        return self._clock.monotonic() - self._started

    def _shared_findings(self, settings: Settings) -> Iterator[Finding]:
        board = self._board
        if self._inputs.bot() is not None:
            yield from drift.webhook_findings(board.memory, settings.wanted)
        if board.stats is not None:
            names = [rule.name for rule in settings.rules]
            late = board.subjects(findings.ROUTE_BACKLOG)
            yield from backlog.route_findings(board.stats, names, settings.backlog, late)
        yield from backlog.death_findings(board.deaths)

    def _masked(self, findings: Iterable[Finding]) -> Iterator[Finding]:
        return (masked(finding, self._outputs.mask) for finding in findings)

    def _is_judged(self, alert: Alert) -> bool:
        """Whether it would be known by now that this alert still holds."""
        board = self._board
        if not self._may_tell():
            return alert.alert == findings.STORE_DOWN
        match alert.alert:
            case name if name in findings.WEBHOOK_ALERTS:
                return self._inputs.bot() is None or board.memory != Memory()
            case name if name in findings.STORE_ALERTS:
                return board.stats is not None
            case findings.ROUTE_DOWN if alert.since < self._started_at:
                return self._uptime() > SETTLING
            case findings.SECRET_MISMATCH if alert.since < self._started_at:
                return board.rejections.covered(self._clock.monotonic())
        return True

    async def save(self) -> None:
        """Store what has changed, as soon as it has; a store that is down is tried again."""
        while True:
            await self._unsaved.wait()
            self._unsaved = anyio.Event()
            if not await self.save_once():
                await anyio.sleep(_SAVE_RETRY)
                self._unsaved.set()

    async def save_once(self) -> bool:
        """Store what has changed; whether the store took it."""
        changed = self._board.unsaved() if self._board.loaded else {}
        try:
            if changed:
                await self._inputs.store.save_alerts(changed)
        except StoreError:
            return False
        self._board.saved(changed)
        return True


def _warn_of_left_out(settings: Settings) -> None:
    if not settings.listed:
        return
    listed = settings.wanted.allowed_updates or ()
    for route, types in left_out(listed, settings.rules):
        log.warning(
            "allowed_updates leaves out what a route waits for %s",
            kv(route=route, types=",".join(types)),
        )
