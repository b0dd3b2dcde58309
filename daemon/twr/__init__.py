"""A Telegram webhook router: one public webhook, several services behind it."""

import time

from twr.core.signing import is_authentic

__version__ = "0.1.0"
__all__ = ["__version__", "verify"]


def verify(
    secret: str | bytes,
    body: bytes,
    timestamp: str | int | None,
    signature: str | None,
    *,
    tolerance: float = 300,
    now: float | None = None,
) -> bool:
    """Whether a delivery is authentic: for services, before they parse `body`.

    `body` is the request's body, byte for byte; `timestamp` and `signature` are its headers
    X-Webhook-Timestamp and X-Webhook-Signature as received, None where absent. One right
    signature of those listed is enough, the comparison takes constant time. A timestamp more
    than `tolerance` seconds from `now` (unix seconds, the system's clock by default) is
    refused. An empty secret verifies nothing. Headers of any content raise nothing.
    """
    moment = time.time() if now is None else now
    return is_authentic(secret, body, timestamp, signature, tolerance, moment)
