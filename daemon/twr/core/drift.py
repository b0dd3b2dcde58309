"""What is wrong with the webhook, given what Telegram told of it by and by.

Each look at Telegram (`observed`, `missed`, `rejected`) turns a Memory into the next one;
`webhook_findings` reads from it what is wrong now. A Memory outlives the process as a short
JSON text, so that a restart takes no old error for a new one.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from pydantic import TypeAdapter, ValidationError

from twr.core.findings import (
    ERROR,
    PENDING,
    SECRET_MISMATCH,
    SETTINGS_DRIFT,
    TOKEN_INVALID,
    UNREACHABLE,
    URL_DRIFT,
    Detail,
    Finding,
)
from twr.core.matching import effective_types
from twr.core.text import utc
from twr.core.webhook_info import MAX_ERROR, Webhook, digest, plain, sealed, shown_url

ERROR_QUIET = 300.0
"""Seconds without a new error after which `webhook_error` and a secret mismatch are over."""

ERROR_STALE = 86400.0
"""Seconds after which Telegram has dropped every update that an error could be about."""

ADDRESS_QUIET = 3600.0
"""Seconds for which a new IP address of the webhook is news."""

REJECTIONS = 5
"""Answers of 401 within REJECTIONS_WINDOW seconds that are an alert in themselves."""

REJECTIONS_WINDOW = 300.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the configuration wants Telegram to hold.

    `url` None: any, only not none at all. `allowed_updates` None or empty: Telegram's default.
    """

    url: str | None
    max_connections: int
    allowed_updates: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Limits:
    """`pending` updates are no news; the others count looks in a row."""

    pending: int = 10
    fire_after: int = 2
    resolve_after: int = 1


@dataclass(frozen=True, slots=True)
class Since:
    """What the ingress answered since the last look: updates accepted, and 401s."""

    accepted: int
    unauthorized: int


@dataclass(frozen=True, slots=True)
class Streak:
    """A condition that starts after some bad looks in a row and ends after some good ones."""

    bad: int = 0
    good: int = 0
    on: bool = False

    def after(self, bad: bool, fire_after: int, resolve_after: int) -> "Streak":
        """The streak after one more look."""
        if bad:
            return Streak(self.bad + 1, 0, self.on or self.bad + 1 >= fire_after)
        return Streak(0, self.good + 1, self.on and self.good + 1 < resolve_after)


@dataclass(frozen=True, slots=True)
class Memory:
    """All that is known from the looks so far; times are our clock's unix seconds.

    `checked_at` is the last answered look. `error_at`, `mismatch_at` and `moved_at` are when
    that was noticed, None when it is no news (any more). `error` and `error_date` are kept apart
    from `webhook`, where setWebhook clears them.
    """

    checked_at: float | None = None
    webhook: Webhook | None = None
    since: Since = Since(0, 0)
    url: Streak = Streak()
    pending: Streak = Streak()
    settings: Streak = Streak()
    unreachable: Streak = Streak()
    token: Streak = Streak()
    failure: str = ""
    error_at: float | None = None
    error: str = ""
    error_date: int = 0
    mismatch_at: float | None = None
    moved_at: float | None = None
    moved_from: str | None = None


_MEMORY = TypeAdapter(Memory)


def dump_memory(memory: Memory) -> str:
    """`memory` as JSON."""
    return _MEMORY.dump_json(memory, exclude_defaults=True).decode()


def load_memory(text: str | None, mask: Callable[[str], str]) -> Memory:
    """The memory in `text`; an empty one where it cannot be read. `mask` takes secrets out."""
    try:
        memory = _MEMORY.validate_json(text or "{}")
    except ValidationError:
        return Memory()
    webhook = memory.webhook
    return memory if webhook is None else replace(memory, webhook=sealed(webhook, mask))


def observed(
    memory: Memory, webhook: Webhook, wanted: Wanted, limits: Limits, since: Since, now: float
) -> Memory:
    """The memory after an answer of getWebhookInfo; `since` counts from the last look."""
    before = memory.webhook
    fresh_error = before is not None and _error_advanced(before, webhook, now)
    moved = before is not None and _moved(before, webhook)
    fire, rest = limits.fire_after, limits.resolve_after
    if fresh_error:
        text, date = webhook.last_error_message or "", webhook.last_error_date or 0
        memory = replace(memory, error_at=now, error=text, error_date=date)
    memory = replace(
        memory,
        url=memory.url.after(url_differs(webhook, wanted), 1, rest),
        pending=memory.pending.after(_too_many_pending(webhook, limits, since), fire, rest),
        settings=memory.settings.after(bool(_settings(webhook, wanted)), 1, rest),
        unreachable=memory.unreachable.after(False, fire, rest),
        token=memory.token.after(False, 1, rest),
        error_at=_held(memory.error_at, now, ERROR_QUIET),
        mismatch_at=_mismatch_at(memory, webhook, fresh_error, since, now),
        moved_at=now if moved else _held(memory.moved_at, now, ADDRESS_QUIET),
        moved_from=before.ip_address if before is not None and moved else memory.moved_from,
    )
    return replace(memory, checked_at=now, webhook=webhook, since=since)


def missed(memory: Memory, limits: Limits, reason: str) -> Memory:
    """The memory after a look that got no usable answer; all else stays as it was."""
    streak = memory.unreachable.after(True, limits.fire_after, limits.resolve_after)
    return replace(memory, unreachable=streak, failure=plain(reason, MAX_ERROR))


def rejected(memory: Memory, limits: Limits, reason: str) -> Memory:
    """The memory after a look for which Telegram refused the bot token."""
    return replace(
        memory,
        unreachable=memory.unreachable.after(False, limits.fire_after, limits.resolve_after),
        token=memory.token.after(True, 1, limits.resolve_after),
        failure=plain(reason, MAX_ERROR),
    )


def webhook_findings(memory: Memory, wanted: Wanted) -> tuple[Finding, ...]:
    """What is wrong on Telegram's side, the mismatch of the secret apart."""
    found = [
        Finding(alert, detail=(("error", memory.failure),))
        for alert, streak in ((TOKEN_INVALID, memory.token), (UNREACHABLE, memory.unreachable))
        if streak.on
    ]
    if memory.webhook is not None:
        found += _findings_of(memory, memory.webhook, wanted)
    return tuple(found)


def _findings_of(memory: Memory, webhook: Webhook, wanted: Wanted) -> Iterable[Finding]:
    if memory.url.on:
        expected = (("expected", shown_url(wanted.url)),) if wanted.url else ()
        yield Finding(URL_DRIFT, detail=(*expected, ("actual", shown_url(webhook.url))))
    if memory.pending.on:
        yield Finding(PENDING, detail=_pending_detail(memory, webhook))
    if memory.error_at is not None:
        yield Finding(ERROR, detail=_error_detail(memory))
    address = _address_detail(memory, webhook)
    if memory.settings.on or address:
        yield Finding(SETTINGS_DRIFT, detail=(*_settings(webhook, wanted), *address))


def secret_mismatch(
    memory: Memory | None, recent: int, *, own: bool = False, shared: bool = False
) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
    """Whether Telegram seems to hold another secret: what to tell as `own`, what as `shared`.

    Telegram never returns the secret, so a wrong one shows only in what the ingress refused.
    `recent` 401s of this process in REJECTIONS_WINDOW are its own finding; what the looks at
    Telegram say is that of all, and of whoever asks it alone: else `memory` is None. `own` and
    `shared` say which of them fires already: that one goes on, so that nothing is told twice.
    """
    many = recent >= REJECTIONS
    if memory is None:
        return _mismatch(many, recent), ()
    seen = memory.mismatch_at is not None
    if own and shared:
        mine, all_of_us = many, seen
    elif own or shared:
        mine, all_of_us = own and (many or seen), shared and (many or seen)
    else:
        mine, all_of_us = many and not seen, seen
    count = max(recent, memory.since.unauthorized)
    return _mismatch(mine, count), _mismatch(all_of_us, count)


def _mismatch(fires: bool, unauthorized: int) -> tuple[Finding, ...]:
    if not fires:
        return ()
    hint = "is the registered secret_token the one configured?"
    return (Finding(SECRET_MISMATCH, detail=(("unauthorized", unauthorized), ("hint", hint))),)


def url_differs(webhook: Webhook, wanted: Wanted) -> bool:
    """Whether Telegram sends updates elsewhere, or nowhere."""
    return not webhook.url or (wanted.url is not None and webhook.url_digest != digest(wanted.url))


def _held(since: float | None, now: float, seconds: float) -> float | None:
    return since if since is not None and now - since < seconds else None


def _error_advanced(before: Webhook, webhook: Webhook, now: float) -> bool:
    date = webhook.last_error_date
    if date is None or now - date > ERROR_STALE:
        return False
    return before.last_error_date is None or date > before.last_error_date


def _moved(before: Webhook, webhook: Webhook) -> bool:
    """Whether the same URL has come to lead to another address."""
    known = before.ip_address is not None and webhook.ip_address is not None
    same = before.url_digest == webhook.url_digest
    return known and same and before.ip_address != webhook.ip_address


def _too_many_pending(webhook: Webhook, limits: Limits, since: Since) -> bool:
    # The count includes what is in flight, so a few with traffic in between are no news.
    return webhook.pending > limits.pending or (webhook.pending > 0 and since.accepted == 0)


def _mismatch_at(
    memory: Memory, webhook: Webhook, fresh_error: bool, since: Since, now: float
) -> float | None:
    before = memory.webhook
    rise = fresh_error or (before is not None and webhook.pending > before.pending)
    # Telegram may count an update or its error only after the look that counted our 401.
    if rise and since.unauthorized + memory.since.unauthorized > 0:
        return now
    if since.unauthorized == 0 and (webhook.pending == 0 or since.accepted > 0):
        return None
    return _held(memory.mismatch_at, now, ERROR_QUIET)


def _settings(webhook: Webhook, wanted: Wanted) -> Detail:
    """The settings that differ, as what they are and what they should be.

    None where there is no webhook to have them.
    """
    found: list[tuple[str, str | int | float]] = []
    if not webhook.url:
        return ()
    if webhook.max_connections not in (None, wanted.max_connections):
        found.append(("max_connections", webhook.max_connections or 0))
        found.append(("expected_max_connections", wanted.max_connections))
    asked = effective_types(wanted.allowed_updates)
    actual = effective_types(webhook.allowed_updates)
    if asked != actual:
        for name, kinds in (("missing", asked - actual), ("extra", actual - asked)):
            if kinds:
                found.append((f"allowed_updates_{name}", ",".join(sorted(kinds))))
    return tuple(found)


def _address_detail(memory: Memory, webhook: Webhook) -> Detail:
    if memory.moved_at is None:
        return ()
    return (("ip_address", webhook.ip_address or ""), ("was", memory.moved_from or ""))


def _pending_detail(memory: Memory, webhook: Webhook) -> Detail:
    counts = (("pending", webhook.pending), ("accepted", memory.since.accepted))
    if memory.error_at is None or not webhook.last_error_message:
        return counts
    return (*counts, ("last_error", webhook.last_error_message))


def _error_detail(memory: Memory) -> Detail:
    return (("error", memory.error), ("at", utc(memory.error_date)))
