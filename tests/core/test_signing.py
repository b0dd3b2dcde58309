"""Signatures made and checked."""

import hashlib
import hmac
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

import twr
from twr import verify
from twr.core.signing import sign

BODY = b'{"update_id":1,\n"message":{"text":"\\u001b \xff"}}'
NOW = 1_788_088_524
GOOD = sign([b"secret"], NOW, BODY)


def test_sign_is_hmac_of_timestamp_dot_body() -> None:
    """The signature is the one that a receiver computes with any HMAC library."""
    expected = hmac.new(b"secret", b"1788088524." + BODY, hashlib.sha256).hexdigest()
    assert f"v1={expected}" == GOOD


def test_sign_with_two_secrets_lists_the_newest_first() -> None:
    """During a rotation both signatures are there, in the order of the secrets."""
    both = sign([b"new", b"old"], NOW, BODY)
    assert both == f"{sign([b'new'], NOW, BODY)},{sign([b'old'], NOW, BODY)}"


@pytest.mark.parametrize(
    ("secret", "body", "timestamp", "signature", "now", "expected"),
    [
        ("secret", BODY, str(NOW), GOOD, NOW, True),
        (b"secret", BODY, NOW, GOOD, NOW, True),
        ("secret", BODY, NOW, f"v1=00, {GOOD}", NOW, True),
        ("secret", BODY, NOW, f"v0=00,{GOOD}", NOW, True),
        ("secret", BODY, NOW, GOOD, NOW + 300, True),
        ("secret", BODY, NOW, GOOD, NOW + 301, False),
        ("secret", BODY, NOW, GOOD, NOW - 301, False),
        ("other", BODY, NOW, GOOD, NOW, False),
        ("secret", BODY + b" ", NOW, GOOD, NOW, False),
        ("secret", BODY, NOW + 1, GOOD, NOW, False),
        ("secret", BODY, NOW, GOOD.upper(), NOW, False),
        ("secret", BODY, NOW, GOOD[3:], NOW, False),
        ("secret", BODY, NOW, GOOD[:-1], NOW, False),
        ("secret", BODY, NOW, "", NOW, False),
        ("secret", BODY, NOW, None, NOW, False),
        ("secret", BODY, None, GOOD, NOW, False),
        ("secret", BODY, "", GOOD, NOW, False),
        ("secret", BODY, f"{NOW}.0", GOOD, NOW, False),
        ("secret", BODY, f" {NOW}", GOOD, NOW, False),
        ("secret", BODY, "-1", GOOD, NOW, False),
        ("secret", BODY, "٥", GOOD, NOW, False),
        ("secret", BODY, "9" * 10_000, GOOD, NOW, False),
        ("secret", BODY, True, sign([b"secret"], 1, BODY), 1, False),
        ("", BODY, NOW, sign([b""], NOW, BODY), NOW, False),
        ("secret", BODY, NOW, "v1=é\ud800", NOW, False),
    ],
)
def test_verify_tells_authentic_from_not(
    secret: str | bytes,
    body: bytes,
    timestamp: str | int | None,
    signature: str | None,
    now: float,
    expected: bool,
) -> None:
    """Only the right secret over these bytes at about this time is authentic."""
    assert verify(secret, body, timestamp, signature, now=now) is expected


def test_verify_goes_by_the_system_clock_unless_told() -> None:
    """A service need not pass the time."""
    now = int(time.time())
    assert verify("secret", BODY, now, sign([b"secret"], now, BODY))
    assert not verify("secret", BODY, now - 900, sign([b"secret"], now - 900, BODY))
    assert verify("secret", BODY, now - 900, sign([b"secret"], now - 900, BODY), tolerance=1000)


@given(st.binary(min_size=1), st.binary(min_size=1), st.binary(), st.integers(0, 2**40))
def test_what_is_signed_verifies(new: bytes, old: bytes, body: bytes, now: int) -> None:
    """Either secret of a rotation verifies what was signed with both."""
    signature = sign([new, old], now, body)
    assert verify(new, body, str(now), signature, now=now)
    assert verify(old, body, str(now), signature, now=now)


@given(st.text(st.characters()), st.text(st.characters()))
def test_no_header_makes_verify_raise(timestamp: str, signature: str) -> None:
    """Whatever a stranger sends, the answer is a plain False."""
    assert verify("secret", BODY, timestamp, signature, now=NOW) is False


def test_importing_twr_stays_light() -> None:
    """A service that only verifies pays for none of the daemon's packages."""
    code = "import sys, twr; print(*{name.split('.')[0] for name in sys.modules})"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(ran.stdout.split())
    assert "twr" in loaded
    assert not loaded & {"aiohttp", "anyio", "asyncio", "logging", "pydantic", "quart", "redis"}
    assert twr.verify is verify
