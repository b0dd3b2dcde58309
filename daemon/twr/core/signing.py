"""Signatures of deliveries: made by twr, checked by a service with `twr.verify`."""

import hmac
from collections.abc import Sequence

_VERSION = "v1"
_LONGEST_TIMESTAMP = 20


def sign(secrets: Sequence[bytes], timestamp: int, body: bytes) -> str:
    """The value of X-Webhook-Signature: one `v1=<hex>` for each secret, comma-separated.

    `timestamp` is the unix time, in seconds, of X-Webhook-Timestamp. During a rotation
    there are two secrets, the newest first.
    """
    signed = b"%d." % timestamp + body
    return ",".join(f"{_VERSION}={_digest(secret, signed)}" for secret in secrets)


def is_authentic(
    secret: str | bytes,
    body: bytes,
    timestamp: str | int | None,
    signature: str | None,
    tolerance: float,
    now: float,
) -> bool:
    """What `twr.verify` says at the unix time `now`."""
    seconds = _seconds(timestamp)
    if seconds is None or not secret or not signature:
        return False
    if abs(seconds - now) > tolerance:
        return False
    key = secret.encode() if isinstance(secret, str) else secret
    expected = f"{_VERSION}={_digest(key, b'%d.' % seconds + body)}".encode()
    given = [part.strip().encode(errors="replace") for part in signature.split(",")]
    return True in [hmac.compare_digest(expected, candidate) for candidate in given]


def _digest(secret: bytes, signed: bytes) -> str:
    return hmac.digest(secret, signed, "sha256").hex()


def _seconds(timestamp: str | int | None) -> int | None:
    """Decimal digits only, and not so many that reading them takes long."""
    text = str(timestamp) if type(timestamp) is int else timestamp
    if not isinstance(text, str) or not (text.isascii() and text.isdigit()):
        return None
    return int(text) if len(text) <= _LONGEST_TIMESTAMP else None
