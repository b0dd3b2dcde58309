"""What is kept of a target's answer holds no part of a secret, wherever it was cut."""

import logging
from pathlib import Path
from unittest.mock import Mock

import pytest

from leaks import leaks
from targets import Target, reply, saying
from twr import config
from twr.core.breaker import Breaker
from twr.core.clock import Clock
from twr.core.jobs import Job, Settle
from twr.core.masking import Mask
from twr.edges.sender import EXCERPT, MOST_READ, Sender
from twr.services.delivery.attempt import Judge, Leased
from twr.services.delivery.route import RouteSecrets, RunningRoute

pytestmark = pytest.mark.anyio

SECRET = "qV7fXz2LmKp9RwTd"
PASSWORD = "uJ4/xNé8bYg+6sHc"
MASK = Mask((SECRET, PASSWORD))
JOB = Job("1/shop", "", 0, 0, 0, b"{}")


@pytest.fixture
def judge() -> Judge:
    return Judge(Clock(lambda: 0.0, lambda: 0.0), lambda: 0.5, lambda: MASK)


@pytest.fixture
async def run(tmp_path: Path) -> RunningRoute:
    """A route that gives up at once."""
    file = tmp_path / "twr.yaml"
    file.write_text(
        "routes: [{name: shop, target_url: 'http://h', signing_secret_env: S, max_attempts: 1}]"
    )
    (route,) = config.load(file, {}).routes
    return RunningRoute(route, RouteSecrets((), None), Mock(), Breaker(route.breaker))


async def kept(run: RunningRoute, judge: Judge, body: bytes = b"", reason: str = "Said") -> Settle:
    """What is stored of an update that a target refused like this."""
    async with Target(saying(reply(500, body, reason=reason))) as target:
        sender = Sender(1)
        answer = await sender.post(target.url, b"{}", {}, 5)
        await sender.close()
    leased = Leased(JOB, run.route, run.secrets, sender, run.breaker, 5.0, 1.0, probe=False)
    return judge.settle(run, leased, answer)


@pytest.mark.parametrize("pad", range(50, 90))
async def test_a_secret_across_the_end_of_the_reason(
    run: RunningRoute, judge: Judge, pad: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Of the reason phrase 80 characters are kept, counted without the secret."""
    caplog.set_level(logging.DEBUG, "twr")
    settle = await kept(run, judge, reason="." * pad + SECRET)
    told = f"{'.' * pad}***"
    assert settle.error == f"HTTP 500 {told if len(told) <= 80 else told[:79] + '…'}"
    assert leaks(f"{settle}\n{caplog.text}", [SECRET]) == []


@pytest.mark.parametrize("pad", [*range(490, 520), *range(EXCERPT - 20, EXCERPT + 1)])
async def test_a_secret_across_the_end_of_the_excerpt(
    run: RunningRoute, judge: Judge, pad: int
) -> None:
    """Of the body 512 characters are kept."""
    settle = await kept(run, judge, b"." * pad + SECRET.encode())
    told = f"{'.' * pad}***"
    assert settle.answer == (told if len(told) <= 512 else told[:511] + "…")


@pytest.mark.parametrize("left", range(1, len(SECRET)))
async def test_a_secret_across_the_end_of_what_is_read(
    run: RunningRoute, judge: Judge, left: int
) -> None:
    """Masking makes a text shorter, so that what was cut off first moves into what is kept."""
    bodies = (
        ("\U0001f6a2" * 600).encode()[: EXCERPT - left // 4 * 4] + SECRET.encode() * 2,
        b"." * left + (SECRET * EXCERPT).encode(),
        b"." * left + (PASSWORD * EXCERPT).encode(),
        b"." * left + (SECRET * MOST_READ).encode(),
    )
    for body in bodies:
        settle = await kept(run, judge, body)
        assert leaks(settle.answer, [SECRET, PASSWORD]) == []


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (f'{{"X-Token": "{SECRET}"}}', '{"X-Token": "***"}'),
        ("Authorization: Basic dXNlcjp1SjQveE7DqThiWWcrNnNIYw==", None),
        ("http://user:uJ4%2FxN%C3%A98bYg%2B6sHc@h/", "http://user:***@h/"),
        (r'{"url": "uJ4\/xN\u00e98bYg+6sHc"}', '{"url": "***"}'),
        (f"\x1b[1m{SECRET}\r\n", "\\x1b[1m***\\x0d\\x0a"),
    ],
)
async def test_a_secret_in_another_form(
    run: RunningRoute, judge: Judge, said: str, expected: str | None
) -> None:
    """A target shows what it was sent as its framework does."""
    settle = await kept(run, judge, said.encode())
    assert expected is None or settle.answer == expected
    assert leaks(settle.answer, [SECRET, PASSWORD]) == []
