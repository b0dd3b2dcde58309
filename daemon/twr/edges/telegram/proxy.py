"""The proxy of the Bot API: http(s) by aiohttp itself, socks by aiohttp-socks."""

import os
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

import aiohttp
from yarl import URL

_PORTS = {"http": 80, "https": 443, "socks4": 1080, "socks5": 1080}
_ALIASES = {"socks": "socks5", "socks5h": "socks5", "socks4a": "socks4"}


@dataclass(frozen=True, slots=True)
class Proxy:
    """Where the Bot API is reached through. User and password never show in the repr."""

    scheme: str
    host: str
    port: int
    username: str = field(default="", repr=False)
    password: str = field(default="", repr=False)

    def connector(self) -> aiohttp.TCPConnector:
        """A connector for a session whose requests go through this proxy."""
        if not self.scheme.startswith("socks"):
            return aiohttp.TCPConnector(limit=8)
        from aiohttp_socks import ProxyConnector, ProxyType  # costs its import only where used

        return ProxyConnector(
            host=self.host,
            port=self.port,
            proxy_type=ProxyType[self.scheme.upper()],
            username=self.username or None,
            password=self.password or None,
            rdns=True,
            limit=8,
        )

    def request_options(self) -> dict[str, Any]:
        """What each request of the session is given besides."""
        if self.scheme.startswith("socks"):
            return {}
        user, password = self.username or None, self.password or None
        proxy = URL.build(
            scheme=self.scheme, host=self.host, port=self.port, user=user, password=password
        )
        return {"proxy": proxy}


def read_proxy(url: str) -> Proxy:
    """The proxy a URL names; ValueError in words that hold nothing of the URL but its scheme."""
    try:
        parts = urlsplit(url.strip())
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ValueError("is no URL: scheme://user:password@host:port") from None
    scheme = _ALIASES.get(parts.scheme, parts.scheme)
    if scheme not in _PORTS:
        raise ValueError("must begin with http://, https://, socks5:// or socks4://")
    if not host:
        raise ValueError("names no host: scheme://user:password@host:port")
    username, password = unquote(parts.username or ""), unquote(parts.password or "")
    return Proxy(scheme, host, port or _PORTS[scheme], username, password)


def proxy_failure(error: Exception) -> str | None:
    """What the proxy did wrong, in words; None when the error is not the proxy's."""
    match error:
        case aiohttp.ClientHttpProxyError(status=status):
            return f"the proxy answers {status}"
        case aiohttp.ClientProxyConnectionError(os_error=reason):
            return f"no connection to the proxy: {system_reason(reason)}"
    return _SOCKS_FAILURES.get((type(error).__module__.partition(".")[0], type(error).__name__))


def system_reason(error: OSError) -> str:
    """The system's word for a failed connection, without the address."""
    return os.strerror(error.errno).lower() if error.errno else "it fails"


_SOCKS_FAILURES = {
    ("aiohttp_socks", "ProxyError"): "the socks proxy refuses",
    ("aiohttp_socks", "ProxyConnectionError"): "no connection to the socks proxy",
    ("aiohttp_socks", "ProxyTimeoutError"): "the socks proxy does not answer",
}
