"""What an answer means for the job."""

import pytest

from twr.core.backoff import Backoff
from twr.core.outcome import Answer, Outcome, Policy, decide

NOW = 1_788_088_524.0
BACKOFF = Backoff(first=1.0, factor=2.0, max=600.0, jitter=0.2)
POLICY = Policy(10, BACKOFF, frozenset({400, 410, 413, 415, 422}))


def after(answer: Answer, attempts: int = 0, policy: Policy = POLICY) -> Outcome:
    """The outcome where randomness takes the middle, so that there is no jitter."""
    return decide(answer, policy, attempts, NOW, lambda: 0.5)


@pytest.mark.parametrize("status", [200, 201, 202, 204, 206, 226, 299])
def test_2xx_is_delivered(status: int) -> None:
    """Any of them, and whatever was tried before."""
    assert after(Answer(status), attempts=9) == Outcome("delivered")


@pytest.mark.parametrize("status", [400, 410, 413, 415, 422])
def test_permanent_statuses_kill_at_once(status: int) -> None:
    """They say nothing of the target."""
    assert after(Answer(status)) == Outcome("dead", reason="permanent")


@pytest.mark.parametrize(
    "status", [100, 199, 300, 301, 302, 303, 304, 307, 308, 401, 403, 404, 405, 409, 500, 501, 505]
)
def test_a_refusal_is_the_updates_own(status: int) -> None:
    """It is tried again, and the target is not taken for away."""
    assert after(Answer(status)) == Outcome("retry", away=False, delay=1.0)


@pytest.mark.parametrize("answer", [Answer(None, "refused"), *map(Answer, (429, 502, 503, 504))])
def test_no_answer_or_an_overload_is_an_absence(answer: Answer) -> None:
    """It is tried again, and it counts as a sign that the target is away."""
    assert after(answer) == Outcome("retry", away=True, delay=1.0)


def test_a_fault_of_ours_says_nothing_of_the_target() -> None:
    """It is tried again like a refusal."""
    assert after(Answer(None, "broke", internal=True)) == Outcome("retry", away=False, delay=1.0)


@pytest.mark.parametrize(("attempts", "delay"), [(0, 1.0), (1, 2.0), (2, 4.0), (8, 256.0)])
def test_delays_grow_with_the_failures(attempts: int, delay: float) -> None:
    """The first failure waits the first delay."""
    assert after(Answer(500), attempts).delay == delay


@pytest.mark.parametrize(
    ("answer", "away"), [(Answer(500), False), (Answer(503), True), (Answer(None, "x"), True)]
)
def test_the_last_attempt_that_fails_kills(answer: Answer, away: bool) -> None:
    """The tenth of ten does, the ninth does not."""
    assert after(answer, attempts=8).kind == "retry"
    assert after(answer, attempts=9) == Outcome("dead", away=away, reason="attempts")


@pytest.mark.parametrize(
    ("status", "header", "wait"),
    [
        (429, "30", 30.0),
        (503, "30", 30.0),
        (503, "Thu, 30 Aug 2026 11:16:24 GMT", 60.0),
        (503, "Thu, 30 Aug 2026 11:14:24 GMT", 0.0),
        (503, "86400", 600.0),
        (503, "-5", 0.0),
        (503, "soon", 0.0),
        (503, None, 0.0),
        (502, "30", 0.0),
        (500, "30", 0.0),
        (302, "30", 0.0),
    ],
)
def test_retry_after(status: int, header: str | None, wait: float) -> None:
    """Seconds or a date, on 429 and 503 alone, capped at the longest backoff."""
    outcome = after(Answer(status, retry_after=header))
    assert (outcome.wait, outcome.delay) == (wait, max(wait, 1.0))


def test_a_longer_backoff_is_not_shortened() -> None:
    """Retry-After only ever makes the wait longer."""
    assert after(Answer(503, retry_after="2"), attempts=4).delay == 16.0
