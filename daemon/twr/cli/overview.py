"""The status on one screen: what GET /status answers, as lines of text."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from twr.cli.tables import age, row
from twr.core.text import clip, escape

_MAX_TEXT = 300
_COLUMNS = (
    ("WAITING", "waiting"),
    ("READY", "ready"),
    ("DELAYED", "delayed"),
    ("FLIGHT", "processing"),
    ("OLDEST", "oldest_seconds"),
    ("DELIVERED", "delivered"),
    ("DEAD", "dead"),
    ("BREAKER", "breaker"),
)


@dataclass(frozen=True, slots=True)
class Sample:
    """The deliveries of each route at a moment (seconds of a monotonic clock); `started_at` tells
    one process from the next, with which the count begins anew."""

    at: float
    started_at: str | None
    delivered: Mapping[str, int]


Rates = Mapping[str, float]


def sample(status: Mapping[str, Any], at: float) -> Sample:
    """What rates are made of."""
    delivered = {str(it["name"]): int(it.get("delivered") or 0) for it in _routes(status)}
    return Sample(at, status.get("started_at"), delivered)


def rates(before: Sample, after: Sample) -> Rates:
    """Deliveries a second for each route that both know; nothing across a restart."""
    seconds = after.at - before.at
    if before.started_at != after.started_at or seconds <= 0:
        return {}
    both = after.delivered.keys() & before.delivered.keys()
    return {name: (after.delivered[name] - before.delivered[name]) / seconds for name in both}


def lines(status: Mapping[str, Any], now: float, rates: Rates | None = None) -> list[str]:
    """The whole status; `now` in unix seconds. With `rates` those stand where else the deliveries
    since the start do."""
    found = [
        *_head(status, now),
        *_webhook(status.get("webhook") or {}, now),
        "",
        *_table(_routes(status), rates),
        "",
        *_alerts(status.get("alerts") or [], now),
    ]
    return [escape(line).rstrip() for line in found]


def _head(status: Mapping[str, Any], now: float) -> Iterator[str]:
    up = _since(status.get("started_at"), now)
    yield f"twr      {status.get('version')}, instance {status.get('instance')}, up {up}"
    store = status.get("store") or {}
    server = store.get("server") or "not looked at yet"
    yield f"store    {server}" if store.get("ok") else f"store    DOWN ({server})"


def _webhook(webhook: Mapping[str, Any], now: float) -> Iterator[str]:
    checked, expected = webhook.get("checked_at"), webhook.get("expected")
    if checked is None:
        yield f"webhook  not looked at: no bot token, or not yet{_expected(expected)}"
        return
    yield f"webhook  {webhook.get('url') or '(none is set)'}"
    if webhook.get("matches") is False:
        yield f"         DIFFERS from {expected}: `twr webhook set` registers it"
    matches = "as expected, " if webhook.get("matches") and expected else ""
    yield f"         {matches}pending {webhook.get('pending')}, seen {_since(checked, now)} ago"
    if webhook.get("last_error_at"):
        error = clip(str(webhook.get("last_error")), _MAX_TEXT)
        yield f"         last error {_since(webhook['last_error_at'], now)} ago: {error}"


def _expected(url: object) -> str:
    return f"; expected {url}" if url else ""


def _table(routes: Sequence[Mapping[str, Any]], rates: Rates | None) -> Iterator[str]:
    names = ["ROUTE", *(str(route["name"]) for route in routes)]
    headers = [header for header, _ in _COLUMNS]
    if rates is not None:
        headers[headers.index("DELIVERED")] = "PER SEC"
    widths = (max(map(len, names)), *(-max(5, len(header)) for header in headers[:-1]), 9)
    yield row(("ROUTE", *headers), widths)
    for route in routes:
        yield row((str(route["name"]), *_cells(route, rates)), widths)


def _cells(route: Mapping[str, Any], rates: Rates | None) -> Iterator[str]:
    for _, field in _COLUMNS:
        value = route.get(field)
        if field == "oldest_seconds":
            yield age(value) if value else "-"
        elif field == "delivered" and rates is not None:
            rate = rates.get(str(route["name"]))
            yield "-" if rate is None else f"{rate:.1f}"
        elif field == "breaker" and route.get("orphaned"):
            yield "orphaned"
        else:
            yield str(value)


def _alerts(alerts: Sequence[Mapping[str, Any]], now: float) -> Iterator[str]:
    if not alerts:
        yield "alerts   none"
    for number, alert in enumerate(alerts):
        start = "alerts   " if number == 0 else "         "
        since, detail = _since(alert.get("since"), now), alert.get("detail") or ""
        yield f"{start}{alert.get('name')} for {since}  {clip(str(detail), _MAX_TEXT)}"


def _routes(status: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return status.get("routes") or []


def _since(moment: object, now: float) -> str:
    """How long ago a moment in ISO 8601 was."""
    try:
        return age(now - datetime.fromisoformat(str(moment)).timestamp())
    except ValueError:
        return "unknown"
