"""The URLs of a configuration. No error here repeats the URL, since it may hold a password."""

from collections.abc import Collection
from urllib.parse import SplitResult, unquote, unquote_plus, urlsplit, urlunsplit

_WEB = ("http", "https")
_PROXY = ("http", "https", "socks", "socks4", "socks4a", "socks5", "socks5h")
_STORE = ("redis", "rediss", "unix", "redis+sentinel")
_SENTINEL = "redis+sentinel:"
_PASSWORDS = ("password", "sentinel_password")


def web_url(text: str, *, schemes: Collection[str] = _WEB) -> str:
    """`text`, which must be an http(s) URL with a host and no fragment, else ValueError."""
    parts = _split(text, schemes)
    if not parts.hostname:
        raise ValueError("the URL has no host")
    if parts.fragment or text.endswith("#"):
        raise ValueError("leave out the part from `#` on: it is never sent")
    return text


def public_url(text: str) -> str:
    """`text`, a `web_url` that Telegram or twr itself calls: without user and password."""
    if userinfo(web_url(text)):
        raise ValueError("leave out user and password")
    return text


def proxy_url(text: str) -> str:
    """`text`, which must name an http or socks proxy, else ValueError."""
    if not _split(text, _PROXY).hostname:
        raise ValueError("the URL has no host")
    return text


def store_url(text: str) -> str:
    """`text`, which must say where a Redis is, else ValueError.

    redis://host:6379/0, rediss://…, unix:///run/redis.sock?db=0,
    redis+sentinel://h1:26379,h2:26379/mymaster/0
    """
    _refuse_space(text)
    parts = split_url(text) if text.startswith(_SENTINEL) else _split(text, _STORE)
    if parts.scheme == "unix":
        if not parts.path.startswith("/") or len(parts.path) < 2:
            raise ValueError("write unix:///path/of/the.sock")
    elif parts.scheme == "redis+sentinel":
        _check_sentinel(parts)
    elif not parts.hostname:
        raise ValueError("the URL has no host")
    elif not _is_database(parts.path.strip("/")):
        raise ValueError("the path of the URL must be a database number, such as /0")
    return text


def split_url(text: str) -> SplitResult:
    """The parts of any URL of a configuration. Raises ValueError where it is none.

    That of sentinels names several hosts, which urlsplit takes or refuses as one, depending on its
    version, where one of them is in brackets.
    """
    if not text.startswith(_SENTINEL):
        return urlsplit(text)
    scheme, _, rest = text.partition(":")
    rest, _, fragment = rest.partition("#")
    rest, _, query = rest.partition("?")
    netloc, slash, path = rest.removeprefix("//").partition("/")
    return SplitResult(scheme, netloc, slash + path, query, fragment)


def userinfo(text: str) -> tuple[str, ...]:
    """What of a URL's `user:password@` is secret: the password, as written and decoded.

    A user without a password counts as one: some services take a key there.
    """
    given = split_url(text).netloc.rpartition("@")[0]
    user, _, password = given.partition(":")
    secret = password or user
    return tuple(dict.fromkeys((secret, unquote(secret)))) if secret else ()


def passwords(text: str) -> tuple[str, ...]:
    """What of a URL must not be shown: its `userinfo`, and passwords that stand in its query."""
    pairs = (pair.partition("=") for pair in split_url(text).query.split("&"))
    values = [value for name, _, value in pairs if name in _PASSWORDS and value]
    found = (*userinfo(text), *(form for it in values for form in (it, unquote_plus(it))))
    return tuple(dict.fromkeys(found))


def without_passwords(text: str) -> str:
    """`text` without user and password, and with *** for passwords in its query."""
    parts = split_url(text)
    pairs = [(pair, pair.partition("=")[0]) for pair in parts.query.split("&")]
    query = "&".join(f"{name}=***" if name in _PASSWORDS else pair for pair, name in pairs)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query=query))


def _split(text: str, schemes: Collection[str]) -> SplitResult:
    _refuse_space(text)
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:  # which repeats the part that is wrong
        raise ValueError("is no URL: look at its host and port") from None
    if parts.scheme not in schemes or ":" not in text:
        raise ValueError(f"must begin with {_listed(schemes)}")
    return parts


def _refuse_space(text: str) -> None:
    if any(character.isspace() or not character.isprintable() for character in text):
        raise ValueError("a URL holds no white space")


def _listed(schemes: Collection[str]) -> str:
    names = [f"{scheme}://" for scheme in schemes]
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _check_sentinel(parts: SplitResult) -> None:
    hosts = parts.netloc.rpartition("@")[2].split(",")
    if not all(_is_host(host) for host in hosts):
        raise ValueError("write the sentinels as host:port, separated by commas")
    master, _, database = parts.path.strip("/").partition("/")
    if not master or not _is_database(database):
        raise ValueError("after the sentinels write /name-of-the-master/0")


def _is_host(text: str) -> bool:
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, "26379"
    return bool(host) and port.isdecimal() and 0 < int(port) < 65536


def _is_database(text: str) -> bool:
    return not text or (text.isdecimal() and len(text) < 6)
