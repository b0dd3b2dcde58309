"""Who calls: the peer, or the client that a trusted proxy names; and whether they may."""

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Literal

from twr.config import Network

Address = IPv4Address | IPv6Address
Headers = Sequence[tuple[bytes, bytes]]
UNIX: Literal["unix"] = "unix"


def client_of(
    peer: str | None, headers: Headers, proxies: Sequence[Network | Literal["unix"]]
) -> Address | None:
    """The client's address; None when it cannot be told. `peer` is None on a unix socket.

    X-Forwarded-For counts only behind a trusted proxy, and there only its last hop, the one
    that this proxy has seen itself: all others can be forged by whoever calls.
    """
    address = None if peer is None else _address(peer)
    trusted = UNIX in proxies if peer is None else _within(address, proxies)
    if not trusted:
        return address
    hops = b",".join(value for name, value in headers if name == b"x-forwarded-for")
    if not hops:
        return address
    return _address(hops.rpartition(b",")[2].decode("ascii", "replace").strip())


def may_call(client: Address | None, networks: Sequence[Network] | None) -> bool:
    """Whether `client` is within the trusted networks; None means everyone."""
    return networks is None or _within(client, networks)


def _within(address: Address | None, networks: Sequence[Network | Literal["unix"]]) -> bool:
    return address is not None and any(
        network != UNIX and address in network
        for network in networks
        if not isinstance(network, str)
    )


def _address(text: str) -> Address | None:
    try:
        address = ip_address(text)
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address
