"""The public webhook URL as a caller from outside sees it: one POST with a wrong secret."""

import asyncio
import json
import os
import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit

import aiohttp

from twr.core.text import clip, escape
from twr.core.webhook_url import WRONG_SECRET

TIMEOUT = 8.0
"""Seconds for the whole attempt."""

_MAX_ANSWER = 4096


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back. `word` is the `status` of a JSON answer, as twr's own have it;
    `leads_to` the host of a redirect; `failure` why nothing came back (`status` is then 0).
    """

    status: int = 0
    word: str = ""
    leads_to: str | None = None
    failure: str | None = None


async def knock(url: str, *, timeout: float = TIMEOUT) -> Answer:
    """POST an empty object with a wrong secret to `url`; never raises for what comes back."""
    try:
        async with (
            asyncio.timeout(timeout),
            aiohttp.ClientSession(auto_decompress=False) as session,
            session.post(url, data=b"{}", headers=_HEADERS, allow_redirects=False) as response,
        ):
            body = await response.content.read(_MAX_ANSWER)
            location = response.headers.get("Location")
            leads_to = _host(location) if 300 <= response.status < 400 else None
            return Answer(response.status, _word(body), leads_to)
    except TimeoutError:
        return Answer(failure=f"no answer within {timeout:g} s")
    except aiohttp.ClientConnectorCertificateError as error:
        return Answer(failure=f"its certificate is not accepted: {_reason(error)}")
    except aiohttp.ClientConnectorDNSError:
        return Answer(failure="its name does not resolve")
    except aiohttp.ClientConnectorError as error:
        return Answer(failure=f"no connection: {_system_reason(error.os_error)}")
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return Answer(failure=f"no usable answer ({type(error).__name__})")


_HEADERS = {
    "Content-Type": "application/json",
    "X-Telegram-Bot-Api-Secret-Token": WRONG_SECRET,
    "Accept-Encoding": "identity",
}


def _word(body: bytes) -> str:
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    word = answer.get("status") if isinstance(answer, dict) else None
    return word if isinstance(word, str) else ""


def _host(location: str | None) -> str:
    try:
        host = urlsplit(location or "").hostname
    except ValueError:
        host = None
    return escape(clip(host, 100)) if host else "the same host"


def _reason(error: aiohttp.ClientConnectorCertificateError) -> str:
    reason = error.certificate_error
    if isinstance(reason, ssl.SSLCertVerificationError):
        return escape(reason.verify_message)
    return "not trusted"


def _system_reason(error: OSError) -> str:
    return os.strerror(error.errno).lower() if error.errno else "it fails"
