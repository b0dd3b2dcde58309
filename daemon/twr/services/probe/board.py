"""What the probe knows: the last look, the alerts that fire, and what the store holds of both."""

import json
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from twr.core import alerting, backlog, drift, findings, webhook_info
from twr.core.alerting import Alert, Firing, Notice
from twr.core.drift import Memory, Since, Wanted
from twr.core.findings import Finding
from twr.core.jobs import Stats
from twr.core.text import kv, utc

MEMORY = "probe:memory"
DEATHS = "probe:deaths"
TRAFFIC = "probe:traffic"


@dataclass(frozen=True, slots=True)
class Traffic:
    """What the ingress of one process has answered so far: updates accepted, and 401s."""

    accepted: int = 0
    unauthorized: int = 0


class Board:
    """The state of the probe; made once by whoever runs it, so that it outlives a restart of it.

    Alerts of this process alone (`own`) are stored as `alert/subject@instance`, those that
    whichever instance probes looks after (`shared`) without the instance.
    """

    def __init__(self, instance: str) -> None:
        self.memory = Memory()
        self.deaths = backlog.Deaths()
        self.stats: Stats | None = None
        self.wanted: Wanted | None = None
        self.prober = False
        self.loaded = False
        self.measured = False
        self.own: Firing = {}
        self.shared: Firing = {}
        self.rejections = Window(drift.REJECTIONS_WINDOW)
        self.instance = instance
        self._suffix = f"@{instance}"
        self._saved: dict[str, str] = {}
        self._published = Traffic()
        self._heard: dict[str, Traffic] = {}
        self._counted: dict[str, Traffic] = {}
        self._counted_at: float | None = None

    def restore(self, texts: Mapping[str, str], mask: Callable[[str], str], *, merge: bool) -> None:
        """Take over what the store holds; `merge` keeps what is known here where both know.

        `mask` takes the secrets out of a text that was kept with them.
        """
        self._saved = dict(texts)
        own, shared = self._alerts(texts)
        if not self.loaded:
            self.own = {**own, **self.own}
        self.shared = {**shared, **self.shared} if merge else shared
        if not merge or self.memory == Memory():
            self.memory = drift.load_memory(texts.get(MEMORY), mask)
        if not merge or self.deaths.died is None:
            self.deaths = backlog.load_deaths(texts.get(DEATHS))
        self.loaded = True

    def unsaved(self) -> Mapping[str, str | None]:
        """What the store does not hold yet of what this process looks after; None deletes."""
        before = {name: text for name, text in self._saved.items() if self._is_mine(name)}
        return alerting.changes(before, self._texts())

    def saved(self, changed: Mapping[str, str | None]) -> None:
        """Note that the store holds these now."""
        for name, text in changed.items():
            if text is None:
                self._saved.pop(name, None)
            else:
                self._saved[name] = text

    def publish(self, traffic: Traffic) -> None:
        """Leave our traffic for the instance that probes; that one leaves none."""
        self._published = traffic

    def hear(self, texts: Mapping[str, str]) -> None:
        """Take in the traffic that other instances have left in the store."""
        self._heard = _traffic_of_others(texts, TRAFFIC + self._suffix)

    def traffic_since(self, own: Traffic) -> Since:
        """What all instances answered since this was asked last.

        Another instance counts from the second time it is seen.
        """
        now = {**self._heard, TRAFFIC + self._suffix: own}
        known = self._counted or {TRAFFIC + self._suffix: Traffic()}
        self._counted = now
        fresh = [_fresh(traffic, known.get(name, traffic)) for name, traffic in now.items()]
        return Since(sum(it.accepted for it in fresh), sum(it.unauthorized for it in fresh))

    def count_from_look(self, own: Traffic) -> None:
        """Count from here on, where Telegram was asked since, by whichever instance.

        So whoever takes over counts from about the last look, neither from its own start
        (old 401s would be news) nor from now (an interval without traffic would be one).
        """
        if self.memory.checked_at != self._counted_at:
            self._counted_at = self.memory.checked_at
            self._counted = {**self._heard, TRAFFIC + self._suffix: own}

    def step(
        self,
        own: Iterable[Finding],
        shared: Iterable[Finding],
        judged: Callable[[Alert], bool],
        repeat: float,
        now: float,
    ) -> tuple[Notice, ...]:
        """Take in what was found; what is to be told. `shared` counts only while we probe."""
        self.own, notices = alerting.step(self.own, own, judged, repeat, now)
        if not self.prober:
            return notices
        self.shared, more = alerting.step(self.shared, shared, judged, repeat, now)
        return notices + more

    @property
    def firing(self) -> frozenset[str]:
        """The names of the alerts that fire."""
        return frozenset(it.alert for it in (*self.own.values(), *self.shared.values()))

    def subjects(self, alert: str) -> frozenset[str]:
        """The subjects for which this shared alert fires."""
        alerts = self.shared.values()
        return frozenset(it.subject for it in alerts if it.alert == alert and it.subject)

    def snapshot(self) -> dict[str, Any]:
        """The `webhook` and `alerts` of the status."""
        alerts = sorted((*self.own.values(), *self.shared.values()), key=lambda it: it.since)
        return {"webhook": self._webhook(), "alerts": [_shown(alert) for alert in alerts]}

    def _webhook(self) -> dict[str, Any]:
        wanted, at = self.wanted, self.memory.checked_at
        expected = webhook_info.shown_url(wanted.url) if wanted and wanted.url else None
        webhook = self.memory.webhook
        if webhook is None:
            shown = dict.fromkeys(("url", "matches", "pending", "last_error", "last_error_at"))
            return {"url": None, "expected": expected, **shown, "checked_at": None}
        date = webhook.last_error_date
        return {
            "url": webhook_info.shown_url(webhook.url),
            "expected": expected,
            "matches": not drift.url_differs(webhook, wanted) if wanted else None,
            "pending": webhook.pending,
            "last_error": webhook.last_error_message,
            "last_error_at": utc(date) if date else None,
            "checked_at": utc(at) if at is not None else None,
        }

    def _alerts(self, texts: Mapping[str, str]) -> tuple[Firing, Firing]:
        own: dict[str, Alert] = {}
        shared: dict[str, Alert] = {}
        for name, text in texts.items():
            if ":" in name or not self._is_readable(name):
                continue
            alert = alerting.load(name.removesuffix(self._suffix), text)
            if alert is not None:
                (own if name.endswith(self._suffix) else shared)[alert.key] = alert
        return own, shared

    def _is_readable(self, name: str) -> bool:
        return name.endswith(self._suffix) or "@" not in name

    def _is_mine(self, name: str) -> bool:
        return name.endswith(self._suffix) or (self.prober and "@" not in name)

    def _texts(self) -> dict[str, str]:
        texts = {name + self._suffix: alerting.dump(alert) for name, alert in self.own.items()}
        if self._published != Traffic():
            traffic = self._published
            texts[TRAFFIC + self._suffix] = json.dumps([traffic.accepted, traffic.unauthorized])
        if self.prober:
            texts |= {name: alerting.dump(alert) for name, alert in self.shared.items()}
            texts[MEMORY] = drift.dump_memory(self.memory)
            texts[DEATHS] = backlog.dump_deaths(self.deaths)
        return texts


class Window:
    """How much a running total grew within the last `seconds`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._samples: deque[tuple[float, int]] = deque()

    def growth(self, total: int, now: float) -> int:
        """The growth, taking in the total as of now; `now` is a monotonic time."""
        samples = self._samples
        if not samples:
            samples.append((now, 0))
        if total != samples[-1][1]:
            samples.append((now, total))
        while len(samples) > 1 and samples[1][0] <= now - self._seconds:
            samples.popleft()
        return max(0, total - samples[0][1])

    def covered(self, now: float) -> bool:
        """Whether it has been looked at for that long."""
        return bool(self._samples) and now - self._samples[0][0] >= self._seconds


def _traffic_of_others(texts: Mapping[str, str], own: str) -> dict[str, Traffic]:
    found = {}
    for name, text in texts.items():
        if name.startswith(f"{TRAFFIC}@") and name != own:
            try:
                accepted, unauthorized = json.loads(text)
                found[name] = Traffic(int(accepted), int(unauthorized))
            except (ValueError, TypeError):
                continue
    return found


def _fresh(now: Traffic, before: Traffic) -> Traffic:
    """A total that fell belongs to a process that was started anew."""
    if now.accepted < before.accepted or now.unauthorized < before.unauthorized:
        return now
    return Traffic(now.accepted - before.accepted, now.unauthorized - before.unauthorized)


def _shown(alert: Alert) -> dict[str, str]:
    fields = dict((*findings.labels(alert.subject), *alert.detail))
    return {"name": alert.alert, "since": utc(alert.since), "detail": kv(**fields)}


def masked(finding: Finding, mask: Callable[[str], str]) -> Finding:
    """The finding without the secrets that a text from outside may repeat."""
    detail = ((name, mask(it) if isinstance(it, str) else it) for name, it in finding.detail)
    return replace(finding, detail=tuple(detail))
