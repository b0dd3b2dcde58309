"""What can be wrong: the names of the alerts, and what a finding is."""

from dataclasses import dataclass

URL_DRIFT = "webhook_url_drift"
PENDING = "webhook_pending"
ERROR = "webhook_error"
SETTINGS_DRIFT = "webhook_settings_drift"
SECRET_MISMATCH = "webhook_secret_mismatch"
UNREACHABLE = "telegram_unreachable"
TOKEN_INVALID = "telegram_token_invalid"
ROUTE_DOWN = "route_down"
ROUTE_BACKLOG = "route_backlog"
ROUTE_ORPHANED = "route_orphaned"
DEAD_LETTERS = "dead_letters"
STORE_DOWN = "store_down"
CONFIG_INVALID = "config_invalid"

WEBHOOK_ALERTS = frozenset({URL_DRIFT, PENDING, ERROR, SETTINGS_DRIFT, UNREACHABLE, TOKEN_INVALID})
STORE_ALERTS = frozenset({ROUTE_BACKLOG, ROUTE_ORPHANED, DEAD_LETTERS})
LOCAL_ALERTS = frozenset({SECRET_MISMATCH, ROUTE_DOWN, STORE_DOWN, CONFIG_INVALID})

Detail = tuple[tuple[str, str | int | float], ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong now.

    `subject` tells findings of one alert apart: a route, for dead letters `route/reason`.
    `detail` is for the reader, in the order of the log line.
    """

    alert: str
    subject: str | None = None
    detail: Detail = ()


def labels(subject: str | None) -> tuple[tuple[str, str], ...]:
    """The parts of a subject as fields of a log line."""
    if subject is None:
        return ()
    route, slash, reason = subject.partition("/")
    return (("route", route), ("reason", reason)) if slash else (("route", route),)
