"""How long to wait before another attempt."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime

_YEAR = 365 * 86_400.0
_SECONDS = re.compile(r"[+-]?[0-9]+(?:\.[0-9]*)?")
_LONGEST_HEADER = 64


@dataclass(frozen=True, slots=True)
class Backoff:
    """`first` and `max` are seconds; `jitter` 0.2 spreads a delay by 20 % either way."""

    first: float
    factor: float
    max: float
    jitter: float


def delay(policy: Backoff, attempt: int, random: Callable[[], float]) -> float:
    """Seconds to wait after `attempt` failures (1 for the first), never above `policy.max`.

    `random` gives numbers from 0 to 1. What jitter would carry over the maximum is folded
    back below it, so that attempts stay spread there too.
    """
    try:
        grown = policy.first * float(policy.factor) ** (max(attempt, 1) - 1)
    except OverflowError:
        grown = policy.max
    spread = min(grown, policy.max) * (1 + policy.jitter * (2 * random() - 1))
    return max(0.0, min(spread, 2 * policy.max - spread))


def retry_after(value: str | None, now: float) -> float | None:
    """Seconds that a Retry-After header asks for, from 0 to a year; None where it says nothing.

    The header is a number of seconds or an HTTP date, which counts from `now` (unix seconds).
    """
    text = (value or "").strip()
    if _SECONDS.fullmatch(text):
        return min(max(float(text), 0.0), _YEAR)
    moment = _unix_time(text) if len(text) <= _LONGEST_HEADER else None
    return None if moment is None else min(max(moment - now, 0.0), _YEAR)


def _unix_time(date: str) -> float | None:
    """A date without a zone is taken for UTC, as HTTP has it."""
    try:
        moment = parsedate_to_datetime(date)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
