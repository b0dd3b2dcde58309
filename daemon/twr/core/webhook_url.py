"""Which webhook URLs Telegram takes (https://core.telegram.org/bots/webhooks)."""

from ipaddress import IPv6Address, ip_address
from urllib.parse import urlsplit

PORTS = (443, 80, 88, 8443)
OFFICIAL_HOST = "api.telegram.org"

WRONG_SECRET = "not-the-secret_webhook-set-asks-for-401"
"""With which `twr webhook set` knocks at the public URL; no sign of a stale secret at Telegram."""


def is_official(api_url: str) -> bool:
    """Whether `api_url` is Telegram's own server; one of your own takes any webhook URL."""
    return urlsplit(api_url).hostname == OFFICIAL_HOST


def refusal(url: str) -> str | None:
    """Why Telegram would refuse to send updates to `url`, in words; None when it would not."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or 443
    except ValueError:
        return "it is no URL: look at its host and port"
    if parts.scheme != "https":
        return "it must begin with https://"
    if not host:
        return "it has no host"
    if port not in PORTS:
        return f"port {port} is not one of {', '.join(map(str, PORTS))}"
    return _host_refusal(host)


def _host_refusal(host: str) -> str | None:
    try:
        address = ip_address(host)
    except ValueError:
        return None
    if isinstance(address, IPv6Address):
        return "Telegram sends to IPv4 only: give a name, or an IPv4 address"
    if not address.is_global:
        return f"{host} cannot be reached from outside"
    return None
