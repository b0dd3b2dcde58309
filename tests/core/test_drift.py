"""What an answer of getWebhookInfo means, given the ones before it."""

from dataclasses import dataclass, replace

import pytest

from twr.core import drift, findings, webhook_info
from twr.core.drift import Limits, Memory, Since, Streak, Wanted
from twr.core.findings import Finding
from twr.core.text import utc
from twr.core.update import DEFAULT_TYPES, TYPES

URL = "https://panel-new.example/webhooks/telegram"
NOW = 1_790_000_000.0
WANTED = Wanted(URL, 40, None)
LIMITS = Limits(pending=10, fire_after=2, resolve_after=1)
BUSY = Since(accepted=5, unauthorized=0)
QUIET = Since(accepted=0, unauthorized=0)


@dataclass(frozen=True, slots=True)
class Info:
    """An answer of getWebhookInfo."""

    url: str = URL
    pending_update_count: int = 0
    ip_address: str | None = "203.0.113.7"
    last_error_date: int | None = None
    last_error_message: str | None = None
    max_connections: int | None = 40
    allowed_updates: tuple[str, ...] | None = None


HEALTHY = Info()
MOVED = "Wrong response from the webhook: 301 Moved Permanently"


def unmasked(text: str) -> str:
    """Where there is no secret."""
    return text


def mask(text: str) -> str:
    """Takes the one secret out."""
    return text.replace("hidden", "***")


def looks(
    *told: Info,
    since: Since = BUSY,
    memory: Memory | None = None,
    wanted: Wanted = WANTED,
    limits: Limits = LIMITS,
    start: float = NOW,
    every: float = 60.0,
) -> Memory:
    """The memory after these answers, one a minute."""
    memory = memory or Memory()
    for number, info in enumerate(told):
        webhook = webhook_info.remembered(info, unmasked)
        memory = drift.observed(memory, webhook, wanted, limits, since, start + number * every)
    return memory


def alerts(memory: Memory, wanted: Wanted = WANTED) -> list[str]:
    """The names of what is found."""
    return [finding.alert for finding in drift.webhook_findings(memory, wanted)]


def test_nothing_is_wrong_with_a_healthy_webhook() -> None:
    """A webhook as wanted, with nothing pending, gives no finding at the first look or later."""
    assert alerts(Memory()) == []
    assert alerts(looks(HEALTHY)) == []
    assert alerts(looks(HEALTHY, HEALTHY, HEALTHY)) == []


@pytest.mark.parametrize(
    ("wanted", "told", "detail"),
    [
        (URL, URL, None),
        (URL, "", (("expected", URL), ("actual", ""))),
        (URL, URL + "/", (("expected", URL), ("actual", URL + "/"))),
        (
            URL,
            "https://old.example/hook",
            (("expected", URL), ("actual", "https://old.example/hook")),
        ),
        (None, "https://anything.example/", None),
        (None, "", (("actual", ""),)),
        (
            "https://u:p@h.example/x",
            "https://me:secret@h.example/x",
            (("expected", "https://***@h.example/x"), ("actual", "https://***@h.example/x")),
        ),
    ],
)
def test_a_url_that_differs_is_found_at_once(
    wanted: str | None, told: str, detail: findings.Detail | None
) -> None:
    """One look is enough for a drifted or empty URL, and no password of one is shown."""
    want = replace(WANTED, url=wanted)
    found = drift.webhook_findings(looks(Info(url=told), wanted=want), want)
    assert found == (() if detail is None else (Finding("webhook_url_drift", None, detail),))


@pytest.mark.parametrize(("resolve_after", "expected"), [(1, [False]), (3, [True, True, False])])
def test_a_drift_ends_after_as_many_good_looks_as_wanted(
    resolve_after: int, expected: list[bool]
) -> None:
    """`resolve_after` good looks in a row end an alert, not fewer."""
    limits = replace(LIMITS, resolve_after=resolve_after)
    memory = looks(Info(url=""), limits=limits)
    seen = []
    for _ in expected:
        memory = looks(HEALTHY, memory=memory, limits=limits)
        seen.append(bool(alerts(memory)))
    assert seen == expected


def test_a_streak_starts_anew_after_a_break() -> None:
    """Bad looks count in a row only, and good ones likewise."""
    streak = Streak()
    for bad in (True, True, False, True, True):
        streak = streak.after(bad, fire_after=3, resolve_after=2)
    assert not streak.on
    streak = streak.after(True, fire_after=3, resolve_after=2)
    assert streak.on
    for bad in (False, True, False):
        streak = streak.after(bad, fire_after=3, resolve_after=2)
    assert streak.on
    assert not streak.after(False, fire_after=3, resolve_after=2).on


@pytest.mark.parametrize(
    ("pending", "since", "fires"),
    [
        ((10, 10, 10), BUSY, False),
        ((11,), BUSY, False),
        ((11, 11), BUSY, True),
        ((11, 10, 11), BUSY, False),
        ((6,), QUIET, False),
        ((6, 6), QUIET, True),
        ((1, 1), QUIET, True),
        ((1, 0, 1), QUIET, False),
        ((0, 0, 0), QUIET, False),
        ((11, 1), QUIET, True),
        ((3, 3, 3), BUSY, False),
    ],
)
def test_pending_updates_alarm(pending: tuple[int, ...], since: Since, fires: bool) -> None:
    """Too many, or any with nothing accepted in between, in two looks running."""
    memory = looks(*(Info(pending_update_count=count) for count in pending), since=since)
    assert alerts(memory) == (["webhook_pending"] if fires else [])


def test_the_pending_alarm_says_what_telegram_complains_about() -> None:
    """Its detail has the counts, and the error while that is news."""
    stuck = Info(pending_update_count=6, last_error_date=int(NOW), last_error_message=MOVED)
    memory = looks(HEALTHY, stuck, stuck, since=QUIET)
    pending, error = drift.webhook_findings(memory, WANTED)
    assert pending.detail == (("pending", 6), ("accepted", 0), ("last_error", MOVED))
    assert error == Finding(
        "webhook_error", None, (("error", MOVED), ("at", "2026-09-21T14:13:20Z"))
    )


DAY = 86_400


@pytest.mark.parametrize(
    ("dates", "fires"),
    [
        ((int(NOW) - 2 * DAY,), False),
        ((int(NOW) - 5,), False),
        ((int(NOW) - 2 * DAY, int(NOW) - 2 * DAY), False),
        ((None, int(NOW)), True),
        ((int(NOW) - DAY, int(NOW)), True),
        ((int(NOW) - 1, int(NOW)), True),
        ((int(NOW), int(NOW) - 1), False),
        ((int(NOW), None), False),
        ((None, int(NOW) - 2 * DAY), False),
        ((None, 10**15), False),
        ((None, -5), False),
    ],
)
def test_only_an_error_that_advanced_is_news(dates: tuple[int | None, ...], fires: bool) -> None:
    """last_error_date is never cleared: neither the first one seen nor a stale one counts."""
    told = (Info(last_error_date=date, last_error_message=MOVED) for date in dates)
    assert alerts(looks(*told)) == (["webhook_error"] if fires else [])


@pytest.mark.parametrize(("after", "fires"), [(299.0, True), (300.0, False)])
def test_an_error_is_over_five_minutes_later(after: float, fires: bool) -> None:
    """Five minutes after it was noticed, with no new one since."""
    failed = Info(last_error_date=int(NOW), last_error_message=MOVED)
    memory = looks(HEALTHY, start=NOW - 60)
    memory = looks(failed, memory=memory)
    memory = looks(failed, memory=memory, start=NOW + after)
    assert alerts(memory) == (["webhook_error"] if fires else [])


def test_an_error_is_remembered_when_telegram_has_forgotten_it() -> None:
    """setWebhook clears it at Telegram; the alert goes on saying it for its five minutes."""
    failed = Info(last_error_date=int(NOW), last_error_message=MOVED)
    memory = looks(HEALTHY, failed, HEALTHY, start=NOW - 60)
    told = (("error", MOVED), ("at", utc(NOW)))
    assert drift.webhook_findings(memory, WANTED) == (Finding("webhook_error", None, told),)


def test_no_webhook_has_no_settings() -> None:
    """Where none is set, that is the one thing to say."""
    assert alerts(looks(Info(url="", max_connections=3))) == ["webhook_url_drift"]


def test_a_new_error_keeps_the_alarm_alive() -> None:
    """The five minutes count from the last error, not from the first."""
    told = [Info(last_error_date=int(NOW) + 200 * n, last_error_message=MOVED) for n in range(4)]
    memory = looks(HEALTHY, start=NOW - 60)
    memory = looks(*told, memory=memory, every=200.0)
    memory = looks(told[-1], memory=memory, start=NOW + 600 + 299)
    assert alerts(memory) == ["webhook_error"]


def test_a_restart_takes_no_old_error_for_a_new_one() -> None:
    """The memory survives as text: the same date is no news after it, a later one is."""
    failed = Info(last_error_date=int(NOW), last_error_message=MOVED)
    memory = drift.load_memory(drift.dump_memory(looks(HEALTHY, failed, start=NOW - 60)), unmasked)
    assert alerts(looks(failed, memory=memory, start=NOW + 3600)) == []
    later = replace(failed, last_error_date=int(NOW) + 3000)
    assert alerts(looks(later, memory=memory, start=NOW + 3600)) == ["webhook_error"]


@pytest.mark.parametrize("known", [URL, "https://u:hidden@h.example/x", "https://h.example/hidden"])
def test_a_url_is_kept_without_its_secrets_and_compared_with_them(known: str) -> None:
    """Whether it was kept so from the start, or is read as it once was kept."""
    webhook = webhook_info.remembered(Info(url=known), mask)
    old = drift.dump_memory(Memory(webhook=replace(webhook, url=known, url_digest=None)))
    assert drift.load_memory(old, mask) == Memory(webhook=webhook)
    assert "hidden" not in drift.dump_memory(Memory(webhook=webhook))
    assert not drift.url_differs(webhook, replace(WANTED, url=known))
    assert drift.url_differs(webhook, replace(WANTED, url=known.replace("hidden", "***") + "/"))


def test_another_secret_in_the_url_is_another_url() -> None:
    """Both look the same to people."""
    first, second = (
        webhook_info.remembered(
            Info(url=f"https://h.example/{word}"), lambda text: "https://h.example/***"
        )
        for word in ("hidden", "secret")
    )
    assert first.url == second.url
    assert drift.url_differs(first, replace(WANTED, url="https://h.example/secret"))
    assert not drift.url_differs(second, replace(WANTED, url="https://h.example/secret"))


@pytest.mark.parametrize(
    "text", [None, "", "{}", "[]", "nonsense", '{"url": 3}', '{"webhook": {}}']
)
def test_a_memory_that_cannot_be_read_is_an_empty_one(text: str | None) -> None:
    """Whatever the store holds, the probe starts."""
    assert drift.load_memory(text, unmasked) == Memory()


def test_whatever_telegram_tells_can_be_stored_and_shown() -> None:
    """Lone surrogates, endless texts and numbers beyond all bounds come out as something plain."""
    strange = Info(
        url="https://\ud800.example/" + "x" * 10_000,
        pending_update_count=10**400,
        ip_address="\udfff",
        last_error_date=10**400,
        last_error_message="\ud800" * 1000,
        max_connections=-(10**400),
        allowed_updates=("\ud800",),
    )
    memory = drift.missed(looks(strange, strange), LIMITS, "\ud800" * 1000)
    assert memory.webhook is not None
    assert memory.webhook.pending == 2**31 - 1
    assert memory.webhook.max_connections == 0
    assert memory.webhook.last_error_date is None
    assert memory.webhook.last_error_message == "?" * 299 + "…"
    assert drift.load_memory(drift.dump_memory(memory), unmasked) == memory


WITHOUT_POLLS = tuple(kind for kind in DEFAULT_TYPES if kind != "poll")


@pytest.mark.parametrize(
    ("wanted", "told", "detail"),
    [
        (None, None, ()),
        ((), None, ()),
        (("message",), ("message",), ()),
        (("message", "poll"), ("poll", "message"), ()),
        (DEFAULT_TYPES, None, ()),
        (None, DEFAULT_TYPES, ()),
        (TYPES, TYPES, ()),
        (("message", "poll"), ("message",), (("allowed_updates_missing", "poll"),)),
        (("message",), ("message", "poll"), (("allowed_updates_extra", "poll"),)),
        (None, WITHOUT_POLLS, (("allowed_updates_missing", "poll"),)),
        (
            TYPES,
            None,
            (("allowed_updates_missing", "chat_member,message_reaction,message_reaction_count"),),
        ),
    ],
)
def test_allowed_updates_are_compared_as_sets(
    wanted: tuple[str, ...] | None, told: tuple[str, ...] | None, detail: findings.Detail
) -> None:
    """Order is nothing, and none at all means Telegram's default."""
    want = replace(WANTED, allowed_updates=wanted)
    found = drift.webhook_findings(looks(Info(allowed_updates=told), wanted=want), want)
    assert found == ((Finding("webhook_settings_drift", None, detail),) if detail else ())


@pytest.mark.parametrize(
    ("told", "detail"),
    [
        (40, ()),
        (None, ()),
        (100, (("max_connections", 100), ("expected_max_connections", 40))),
        (1, (("max_connections", 1), ("expected_max_connections", 40))),
    ],
)
def test_max_connections_are_compared(told: int | None, detail: findings.Detail) -> None:
    """A number that Telegram does not tell is no difference."""
    found = drift.webhook_findings(looks(Info(max_connections=told)), WANTED)
    assert found == ((Finding("webhook_settings_drift", None, detail),) if detail else ())


def test_a_new_address_of_the_same_url_is_news_for_an_hour() -> None:
    """The address behind the name changed; an hour later it is the known one."""
    memory = looks(Info(ip_address="203.0.113.7"), Info(ip_address="198.51.100.9"))
    assert drift.webhook_findings(memory, WANTED) == (
        Finding(
            "webhook_settings_drift", None, (("ip_address", "198.51.100.9"), ("was", "203.0.113.7"))
        ),
    )
    moved = Info(ip_address="198.51.100.9")
    assert alerts(looks(moved, memory=memory, start=NOW + 60 + 3599)) == ["webhook_settings_drift"]
    assert alerts(looks(moved, memory=memory, start=NOW + 60 + 3600)) == []


@pytest.mark.parametrize(
    "next_look",
    [
        Info(url=URL, ip_address=None),
        Info(url=URL, ip_address="203.0.113.7"),
    ],
)
def test_an_address_not_told_is_no_change(next_look: Info) -> None:
    """Only two addresses that are both known can differ."""
    assert alerts(looks(HEALTHY, next_look)) == []


def test_a_webhook_that_was_set_anew_may_lead_elsewhere() -> None:
    """After `webhook set` with another URL the new address belongs to it."""
    old = Info(url="https://old.example/hook", ip_address="192.0.2.1")
    assert alerts(looks(old)) == ["webhook_url_drift"]
    assert alerts(looks(old, HEALTHY)) == []


def test_an_unreachable_telegram_is_found_after_some_misses() -> None:
    """`fire_after` misses in a row; one good look ends it."""
    memory = drift.missed(looks(HEALTHY), LIMITS, "no answer")
    assert alerts(memory) == []
    memory = drift.missed(memory, LIMITS, "no connection")
    assert drift.webhook_findings(memory, WANTED) == (
        Finding("telegram_unreachable", None, (("error", "no connection"),)),
    )
    assert alerts(looks(HEALTHY, memory=memory)) == []


def test_misses_that_are_not_in_a_row_are_none() -> None:
    """A good look in between starts the count anew."""
    memory = drift.missed(Memory(), LIMITS, "no answer")
    memory = drift.missed(looks(HEALTHY, memory=memory), LIMITS, "no answer")
    assert alerts(memory) == []


def test_what_was_wrong_stays_so_while_telegram_is_away() -> None:
    """A miss says nothing about the webhook, so that nothing is over by it."""
    memory = looks(Info(url=""))
    for _ in range(3):
        memory = drift.missed(memory, LIMITS, "no answer")
    assert alerts(memory) == ["telegram_unreachable", "webhook_url_drift"]


def test_a_refused_token_is_found_at_once() -> None:
    """It is no outage, ends one, and is over with the first good look."""
    memory = drift.missed(Memory(), LIMITS, "no answer")
    memory = drift.rejected(memory, LIMITS, "Telegram refused: 401 Unauthorized")
    assert drift.webhook_findings(memory, WANTED) == (
        Finding("telegram_token_invalid", None, (("error", "Telegram refused: 401 Unauthorized"),)),
    )
    memory = drift.missed(memory, LIMITS, "no answer")
    assert alerts(memory) == ["telegram_token_invalid"]
    assert alerts(looks(HEALTHY, memory=memory)) == []


def mismatch(memory: Memory, recent: int = 0) -> bool:
    """Whether the secret is found to be another one."""
    return any(drift.secret_mismatch(memory, recent))


@pytest.mark.parametrize(("recent", "fires"), [(0, False), (4, False), (5, True), (500, True)])
def test_five_rejections_in_five_minutes_are_a_mismatch(recent: int, fires: bool) -> None:
    """Whatever Telegram says of it."""
    assert mismatch(looks(HEALTHY), recent) is fires


def test_the_finding_of_a_mismatch_names_the_secret() -> None:
    """It says what to look at, for the URL is right and nothing else shows it."""
    (finding,), () = drift.secret_mismatch(Memory(), 7)
    assert finding.alert == "webhook_secret_mismatch"
    assert finding.detail[0] == ("unauthorized", 7)
    assert "secret_token" in str(finding.detail[1])


REJECTING = Since(accepted=0, unauthorized=1)
FAILED = Info(
    pending_update_count=1,
    last_error_date=int(NOW) + 30,
    last_error_message="Wrong response from the webhook: 401 Unauthorized",
)


@pytest.mark.parametrize(
    ("before", "after", "since", "fires"),
    [
        (HEALTHY, Info(pending_update_count=1), REJECTING, True),
        (HEALTHY, Info(pending_update_count=1), QUIET, False),
        (HEALTHY, HEALTHY, REJECTING, False),
        (Info(pending_update_count=1), FAILED, REJECTING, True),
        (FAILED, FAILED, REJECTING, False),
        (Info(pending_update_count=2), Info(pending_update_count=1), REJECTING, False),
    ],
)
def test_rejections_while_pending_or_errors_rise_are_a_mismatch(
    before: Info, after: Info, since: Since, fires: bool
) -> None:
    """One 401 is enough, if Telegram has more to complain about than at the last look."""
    memory = looks(before, since=QUIET)
    memory = looks(after, since=since, memory=memory, start=NOW + 60)
    assert mismatch(memory) is fires


def test_a_rejection_counts_for_the_look_after_next_too() -> None:
    """Telegram may note the failure only after the look that counted our 401."""
    memory = looks(HEALTHY, since=QUIET)
    memory = looks(HEALTHY, since=REJECTING, memory=memory, start=NOW + 60)
    assert mismatch(looks(FAILED, since=QUIET, memory=memory, start=NOW + 120))


def test_a_mismatch_is_over_when_updates_come_in_again() -> None:
    """The next look that saw no 401 and nothing stuck ends it, at the latest five minutes do."""
    memory = looks(HEALTHY, since=QUIET)
    memory = looks(FAILED, since=REJECTING, memory=memory, start=NOW + 60)
    assert mismatch(memory)
    assert not mismatch(looks(HEALTHY, since=QUIET, memory=memory, start=NOW + 120))
    assert not mismatch(looks(FAILED, since=BUSY, memory=memory, start=NOW + 120))
    assert mismatch(looks(FAILED, since=QUIET, memory=memory, start=NOW + 120))
    assert mismatch(looks(FAILED, since=QUIET, memory=memory, start=NOW + 60 + 299))
    assert not mismatch(looks(FAILED, since=QUIET, memory=memory, start=NOW + 60 + 300))


SEEN = Memory(mismatch_at=NOW)
UNSEEN = Memory(checked_at=NOW)


@pytest.mark.parametrize(
    ("memory", "recent", "firing", "told"),
    [
        (None, 4, "", ""),
        (None, 5, "", "own"),
        (None, 5, "shared", "own"),
        (None, 0, "own shared", ""),
        (UNSEEN, 5, "", "own"),
        (SEEN, 0, "", "shared"),
        (SEEN, 5, "", "shared"),
        (SEEN, 0, "own", "own"),
        (SEEN, 5, "own", "own"),
        (UNSEEN, 0, "own", ""),
        (UNSEEN, 5, "shared", "shared"),
        (UNSEEN, 0, "shared", ""),
        (UNSEEN, 5, "own shared", "own"),
        (SEEN, 0, "own shared", "shared"),
    ],
)
def test_a_mismatch_is_told_once_by_whoever_knows_of_it(
    memory: Memory | None, recent: int, firing: str, told: str
) -> None:
    """What Telegram showed is told by the instance that asks it, 401s by the one that gave them,
    and what fires already goes on instead of being told under the other's name."""
    own, shared = drift.secret_mismatch(
        memory, recent, own="own" in firing, shared="shared" in firing
    )
    assert " ".join(["own"] * len(own) + ["shared"] * len(shared)) == told


def test_the_finding_of_a_mismatch_counts_what_others_refused() -> None:
    """The instance that asks Telegram may have refused nothing itself."""
    memory = Memory(mismatch_at=NOW, since=Since(0, 2))
    _, (finding,) = drift.secret_mismatch(memory, 0)
    assert finding.detail[0] == ("unauthorized", 2)


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        (None, ()),
        ("shop", (("route", "shop"),)),
        ("shop/expired", (("route", "shop"), ("reason", "expired"))),
    ],
)
def test_a_subject_becomes_fields(
    subject: str | None, expected: tuple[tuple[str, str], ...]
) -> None:
    """A route, or a route and a reason."""
    assert findings.labels(subject) == expected
