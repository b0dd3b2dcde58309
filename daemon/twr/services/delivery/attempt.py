"""One attempt: the request that a target gets, and what its answer settles."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from twr.config import Route
from twr.core.breaker import Breaker
from twr.core.clock import Clock
from twr.core.jobs import Job, Settle
from twr.core.masking import Mask
from twr.core.outcome import Answer, Outcome, decide
from twr.core.signing import sign
from twr.core.text import kv
from twr.edges.sender import Sender
from twr.services.delivery.route import RouteSecrets, RunningRoute, policy_of

log = logging.getLogger("twr.delivery")

# What is kept of a target's answer to a dead letter, in characters: the body, `HTTP 500` and the
# reason phrase.
EXCERPT, ERROR = 512, 89


@dataclass(slots=True)
class Leased:
    """A job, and its route as it was when the lease began: a reload changes nothing of it.

    `start_by` is the monotonic moment before which its POST has to start: later its lease would
    end first, or the update is expired. `timeout` is what the lease covers, seconds. `probe`: it
    tries whether its target is back.
    """

    job: Job
    route: Route
    secrets: RouteSecrets
    sender: Sender
    breaker: Breaker
    timeout: float
    start_by: float
    probe: bool


def headers(job: Job, secrets: RouteSecrets, now: float, user_agent: str) -> Mapping[str, str]:
    """The headers of an attempt, the signature made anew for `now` (unix seconds)."""
    timestamp = int(now)
    found = {
        "Content-Type": "application/json",
        "X-Webhook-Timestamp": str(timestamp),
        "X-Telegram-Update-Id": job.update_id,
        "X-Webhook-Route": job.route,
        "X-Webhook-Attempt": str(job.attempts + 1),
        "User-Agent": user_agent,
    }
    if secrets.signing:
        found["X-Webhook-Signature"] = sign(secrets.signing, timestamp, job.body)
    if secrets.token is not None:
        found["X-Telegram-Bot-Api-Secret-Token"] = secrets.token
    return found


@dataclass(frozen=True, slots=True)
class Judge:
    """Turns an answer into a settle, and tells the route's breaker of it."""

    clock: Clock
    random: Callable[[], float]
    mask: Callable[[], Mask] = field(repr=False)

    def settle(self, run: RunningRoute, leased: Leased, answer: Answer) -> Settle:
        """What to do with the job. While its route is paused a failure burns no attempt."""
        job = leased.job
        policy = policy_of(leased.route)
        outcome = decide(answer, policy, job.attempts, self.clock.time(), self.random)
        paused = leased.breaker.open
        self._tell_breaker(run, leased, answer, outcome)
        if outcome.kind == "delivered":
            run.delivered += 1
            if log.isEnabledFor(logging.DEBUG):
                log.debug("delivery done %s", _line(job, answer))
            return Settle("delivered", job.id, job.token)
        run.failed_attempts += 1
        answer = self._masked(answer)
        status, error = str(answer.status or ""), answer.error
        if outcome.away and paused:
            log.info("delivery failed %s", _line(job, answer, then="waits for the target"))
            return Settle("release", job.id, job.token, "back", status, error)
        if outcome.kind == "dead":
            log.warning("dead letter %s", _line(job, answer, reason=outcome.reason))
            return Settle(
                "dead", job.id, job.token, outcome.reason or "", status, error, answer.excerpt
            )
        log.info("delivery failed %s", _line(job, answer, retry_in=f"{outcome.delay:.1f}s"))
        return Settle("retry", job.id, job.token, str(int(outcome.delay * 1000)), status, error)

    def _masked(self, answer: Answer) -> Answer:
        """A target may echo what it was sent."""
        quoted = self.mask().quoted
        error, excerpt = quoted(answer.error, ERROR), quoted(answer.excerpt, EXCERPT)
        return replace(answer, error=error, excerpt=excerpt)

    def _tell_breaker(
        self, run: RunningRoute, leased: Leased, answer: Answer, outcome: Outcome
    ) -> None:
        route, breaker = leased.route.name, leased.breaker
        if breaker is not run.breaker:
            # The route has another target since.
            return
        if answer.internal:
            if leased.probe:
                breaker.withdraw()
        elif not outcome.away:
            if breaker.answered(run.route.concurrency):
                log.info("route resumed %s", kv(route=route))
        elif breaker.away(self.clock.monotonic(), probe=leased.probe, retry_after=outcome.wait):
            log.warning("route paused %s", kv(route=route, failures=leased.route.breaker.failures))


def _line(job: Job, answer: Answer, **more: object) -> str:
    error = answer.error if answer.status is None else None
    return kv(
        route=job.route,
        update=job.update_id,
        attempt=job.attempts + 1,
        status=answer.status,
        error=error,
        **more,
    )
