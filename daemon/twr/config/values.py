"""Single values of the file: how each kind is read, and what an editor is told about it.

A reader takes what YAML gave (str, int, float, bool, None or tuple) and returns the value,
or raises ValueError with what is wrong and what to write. No message repeats a value that
could be a secret put in the wrong place.
"""

import ipaddress
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from twr.config.model import Listen, Network
from twr.config.units import duration, size
from twr.core.nearest import nearest
from twr.core.system import UNIX_PATH_BYTES
from twr.core.text import clip, escape

Reader = Callable[[Any], Any]
NAME = r"[A-Za-z0-9_.-]{1,64}"
UPDATE_TYPE = r"[A-Za-z0-9_]{1,64}"
NAME_WORDS = "1 to 64 of A-Z a-z 0-9 _ . -"
TELEGRAM_NETWORKS = ("149.154.160.0/20", "91.108.4.0/22")
_LOOPBACK = ("127.0.0.0/8", "::1/128")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?", re.ASCII)
_TOKEN = re.compile(r"[0-9]{5,}:[A-Za-z0-9_-]{20,}", re.ASCII)
_QUANTITY = {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)? ?(ms|s|m|h|d)$"}
_SIZE = {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)? ?(B|KiB|MiB|GiB)$"}


@dataclass(frozen=True, slots=True, eq=False)
class Read:
    """Annotates a field: its value is what `reader` makes of it, `schema` its JSON schema."""

    reader: Reader
    schema: JsonSchemaValue

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.read)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return dict(self.schema)

    def read(self, value: Any) -> Any:
        """`reader`, but for a key without a value."""
        if value is None:
            raise ValueError("has no value; give one, or leave the key out")
        return self.reader(value)


def lasting(least: str, most: str = "366d", because: str = "") -> Read:
    """A duration from `least` to `most`, in seconds."""

    def read(value: Any) -> float:
        seconds = duration(value)
        if seconds < duration(least):
            raise ValueError(f"must be at least {least}{because}, not {value}")
        if seconds > duration(most):
            raise ValueError(f"must be at most {most}, not {value}")
        return seconds

    return Read(read, _QUANTITY)


def sized(least: str, because: str = "") -> Read:
    """A size of at least `least`, in bytes."""

    def read(value: Any) -> int:
        count = size(value)
        if count < size(least):
            raise ValueError(f"must be at least {least}{because}, not {value}")
        return count

    return Read(read, _SIZE)


def text(pattern: str, words: str, change: Reader = str) -> Read:
    """Text that `pattern` describes in full, and `words` for people."""
    compiled = re.compile(pattern, re.ASCII)

    def read(value: Any) -> Any:
        if not compiled.fullmatch(as_text(value)):
            raise ValueError(f"must be {words}, not {shown(value)}")
        return change(value)

    return Read(read, {"type": "string", "pattern": f"^(?:{pattern})$"})


def whole(least: int, most: int) -> Read:
    """A whole number from `least` to `most`."""

    def read(value: Any) -> int:
        if type(value) is not int or not least <= value <= most:
            raise ValueError(f"must be a whole number from {least} to {most}, not {shown(value)}")
        return value

    return Read(read, {"type": "integer", "minimum": least, "maximum": most})


def number(least: float, most: float) -> Read:
    """A number from `least` to `most`."""

    def read(value: Any) -> float:
        if type(value) not in (int, float) or not least <= value <= most:
            raise ValueError(f"must be a number from {least:g} to {most:g}, not {shown(value)}")
        return float(value)

    return Read(read, {"type": "number", "minimum": least, "maximum": most})


def identifier(least: int, kind: str) -> Read:
    """A Telegram id of `kind`: a whole number other than 0, of at most 52 bits."""

    def read(value: Any) -> int:
        if isinstance(value, str) and re.fullmatch(r"-?[1-9][0-9]*", value, re.ASCII):
            raise ValueError(f"{clip(value, 24)} is in quotes; write the number without them")
        if type(value) is not int or not value or not least <= value < 2**52:
            raise ValueError(f"{shown(value)} is no {kind} id, which is a whole number")
        return value

    return Read(read, {"type": "integer", "minimum": least})


def one_of(names: Sequence[str]) -> Read:
    """One of `names`."""

    def read(value: Any) -> str:
        if value not in names:
            close = nearest(str(value), names)
            hint = f"; did you mean {close}?" if close else ""
            raise ValueError(f"{shown(value)} is not one of {', '.join(names)}{hint}")
        return str(value)

    return Read(read, {"enum": list(names)})


def url(check: Callable[[str], str], example: str) -> Read:
    """A URL that `check` accepts."""
    return Read(lambda value: check(as_text(value)), {"type": "string", "examples": [example]})


def as_text(value: Any) -> str:
    """`value`, if it is text."""
    if isinstance(value, str):
        return value
    if isinstance(value, (bool, int, float)):
        raise ValueError('must be text; put it in "quotes"')
    raise ValueError(f"must be text, not {shown(value)}")


def shown(value: Any) -> str:
    """A value of the file as a message repeats it."""
    if isinstance(value, (dict, tuple)):
        return "a mapping" if isinstance(value, dict) else "a list"
    if isinstance(value, str):
        return f'"{clip(escape(_TOKEN.sub("***", value)), 40)}"'
    return str(value).lower() if isinstance(value, bool) else clip(str(value), 40)


def flag(value: Any) -> bool:
    """true or false."""
    if not isinstance(value, bool):
        raise ValueError(f"must be true or false, not {shown(value)}")
    return value


def listen(value: Any) -> Listen:
    """`host:port`, `[::1]:8080` or `unix:/path`."""
    if type(value) is int:
        raise ValueError(f"has no host; write 127.0.0.1:{value}")
    written = as_text(value)
    if written.startswith("unix:"):
        return Listen(path=_socket_path(written.removeprefix("unix:")))
    host, colon, port = written.rpartition(":")
    if not colon or not re.fullmatch(r"[0-9]{1,5}", port, re.ASCII) or int(port) > 65535:
        raise ValueError(f"must be host:port or unix:/path, not {shown(value)}")
    return Listen(host=_host(host, port), port=int(port))


def mode(value: Any) -> int:
    """Permissions of a socket in octal digits, with or without quotes."""
    digits = str(value) if type(value) is int else as_text(value)
    bits = int(digits, 8) if re.fullmatch(r"0?[0-7]{3}", digits) else 0
    if bits & 0o600 != 0o600:
        raise ValueError(f'must be octal permissions such as "0660", not {shown(value)}')
    return bits


def networks(value: Any) -> tuple[Network, ...]:
    """The networks that one entry of a list stands for."""
    return _networks(value, {"telegram": TELEGRAM_NETWORKS, "loopback": _LOOPBACK})


def proxies(value: Any) -> tuple[Network | str, ...]:
    """As `networks`, of peers: `unix` is whoever comes through a unix socket."""
    if value == "unix":
        return ("unix",)
    return _networks(value, {"loopback": _LOOPBACK}, also="unix, ")


def command(value: Any) -> str:
    """A bot command, lower case and without its slash."""
    name = as_text(value).removeprefix("/")
    if not re.fullmatch(r"[A-Za-z0-9_]{1,32}", name, re.ASCII):
        at = "; the part from @ on is matched by twr itself" if "@" in name else ""
        raise ValueError(f"{shown(value)} is no command: 1 to 32 of A-Z a-z 0-9 _{at}")
    return name.lower()


def prefix(value: Any) -> str:
    """The beginning of a text, not empty."""
    if not as_text(value):
        raise ValueError("an empty prefix would match everything")
    return str(value)


def allowed_updates(value: Any) -> str | tuple[str, ...]:
    """`auto`, or a list of update types."""
    if value == "auto":
        return "auto"
    if not isinstance(value, tuple) or not value:
        raise ValueError("must be auto, or a list of update types such as [message]")
    return tuple(update_type(name) for name in value)


def update_type(value: Any) -> str:
    """The name of an update type; it need not be known yet."""
    if not isinstance(value, str) or not re.fullmatch(UPDATE_TYPE, value):
        raise ValueError(f"{shown(value)} is no update type, such as message")
    return value


def recipient(value: Any) -> int | str:
    """A chat to write to: its id, or the @name of a public one."""
    if isinstance(value, str) and re.fullmatch(r"@[A-Za-z0-9_]{1,64}", value):
        return value
    if type(value) is not int or not value or abs(value) >= 2**52:
        raise ValueError(f"must be the id of a chat or an @name, not {shown(value)}")
    return value


def variables(value: Any) -> tuple[str, ...]:
    """The name of an environment variable."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", as_text(value), re.ASCII):
        raise ValueError("must be the name of a variable (A-Z a-z 0-9 _), never the secret itself")
    return (str(value),)


def paths(value: Any) -> tuple[str, ...]:
    """The path of a file, or a name in the credentials directory."""
    if not as_text(value) or not str(value).isprintable():
        raise ValueError("must be the path of a file")
    return (str(value),)


def one_or_two(reader: Reader) -> Reader:
    """What `reader` reads, or a list of two, the newest first."""

    def read(value: Any) -> tuple[str, ...]:
        if not isinstance(value, tuple):
            return tuple(reader(value))
        if not 1 <= len(value) <= 2:
            raise ValueError("must be one, or a list of two while the secret is rotated")
        found = tuple(name for item in value for name in reader(item))
        if len(set(found)) < len(found):
            raise ValueError("names the same one twice")
        return found

    return read


def filled(value: Any) -> Any:
    """A list with something in it, for conditions: an empty one must not mean everybody."""
    if value is None or value == ():
        raise ValueError("is empty; list at least one, or leave the key out")
    return listed(value)


def routes(value: Any) -> Any:
    """A list of routes, not empty."""
    if value is None or value == ():
        raise ValueError("is empty; without a route no update goes anywhere")
    return listed(value)


def listed(value: Any) -> Any:
    """A list."""
    if value is None:
        raise ValueError("has no value; give a list, or leave the key out")
    if not isinstance(value, tuple):
        example = clip(escape(value if isinstance(value, str) else str(value)), 40)
        hint = "" if isinstance(value, dict) else f"; write [{example}]"
        raise ValueError(f"must be a list{hint}")
    return value


def _socket_path(path: str) -> str:
    if not path.startswith("/") or path.endswith("/"):
        raise ValueError("must be unix: and the absolute path of a socket")
    if len(path.encode()) > UNIX_PATH_BYTES or not path.isprintable():
        raise ValueError(f"the path of a socket has at most {UNIX_PATH_BYTES} bytes")
    return path


def _host(host: str, port: str) -> str:
    if host in ("", "*"):
        raise ValueError(f"has no host; write 127.0.0.1:{port}, or 0.0.0.0:{port} for everybody")
    if host.startswith("[") and host.endswith("]"):
        return str(_address(host[1:-1]))
    if ":" in host:
        raise ValueError(f"an IPv6 address stands in brackets: [::1]:{port}")
    if not _HOST.fullmatch(host):
        raise ValueError(f"{shown(host)} is no host name or address")
    return host


def _address(host: str) -> ipaddress.IPv6Address:
    try:
        return ipaddress.IPv6Address(host)
    except ValueError:
        raise ValueError(f"{shown(host)} is no IPv6 address") from None


def _networks(value: Any, names: dict[str, tuple[str, ...]], also: str = "") -> tuple[Network, ...]:
    written = as_text(value)
    try:
        return tuple(ipaddress.ip_network(entry) for entry in names.get(written, (written,)))
    except ValueError as error:
        if "host bits" in str(error):
            wider = ipaddress.ip_network(written, strict=False)
            raise ValueError(f"{shown(value)} has host bits set; write {wider}") from None
    known = also + ", ".join(names)
    raise ValueError(f"{shown(value)} is no network; write one as 10.0.0.0/8, or {known}")
