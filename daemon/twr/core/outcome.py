"""What an attempt's answer means for the job: delivered, once more, or given up."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from twr.core.backoff import Backoff, delay, retry_after
from twr.core.jobs import Reason

# Statuses by which a proxy or an overloaded service says that the target is away.
AWAY = frozenset({429, 502, 503, 504})
_MAY_ASK_TO_WAIT = frozenset({429, 503})


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back of a POST: a status, or in `error` why there is none.

    `retry_after` is the header as it came, `excerpt` the first bytes of the body as text;
    it and `error` are as the target said them: secrets are not masked, nothing is escaped.
    `internal`: the fault is our own and says nothing of the target.
    """

    status: int | None
    error: str = ""
    retry_after: str | None = None
    excerpt: str = ""
    internal: bool = False


@dataclass(frozen=True, slots=True)
class Policy:
    """What a route says of failures."""

    max_attempts: int
    backoff: Backoff
    permanent_statuses: frozenset[int]


@dataclass(frozen=True, slots=True)
class Outcome:
    """`away`: the failure tells of the target, not of this update. `delay` and `wait` (what the
    target asked for, already capped) are seconds; `reason` is set when the job is dead."""

    kind: Literal["delivered", "retry", "dead"]
    away: bool = False
    delay: float = 0.0
    wait: float = 0.0
    reason: Reason | None = None


DELIVERED = Outcome("delivered")


def decide(
    answer: Answer, policy: Policy, attempts: int, now: float, random: Callable[[], float]
) -> Outcome:
    """The outcome of an attempt after `attempts` failed ones; `now` in unix seconds."""
    status = answer.status
    if status is not None and 200 <= status < 300:
        return DELIVERED
    if status in policy.permanent_statuses:
        return Outcome("dead", reason="permanent")
    away = (status is None and not answer.internal) or status in AWAY
    wait = 0.0
    if status in _MAY_ASK_TO_WAIT:
        wait = min(retry_after(answer.retry_after, now) or 0.0, policy.backoff.max)
    if attempts + 1 >= policy.max_attempts:
        return Outcome("dead", away, wait=wait, reason="attempts")
    pause = max(delay(policy.backoff, attempts + 1, random), wait)
    return Outcome("retry", away, pause, wait)
