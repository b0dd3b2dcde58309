"""Text for people: log fields, times, quoting of what came from outside."""

import json
import re
from datetime import UTC, datetime

_UNSAFE = re.compile(
    r"[^\x20-\x7e\xa1-\U0010ffff]"  # control characters
    r"|[\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"  # line breaks, direction
    r"|[\ud800-\udfff\ufeff\U000e0000-\U000e007f]"  # what cannot be encoded or seen
)
_PLAIN = re.compile(r"[^\s\"'\\]+")


def escape(text: str) -> str:
    """`text` on one line: control characters, line breaks, direction marks and lone
    surrogates as \\xNN or \\uNNNN. A backslash of the text's own stays as it is.
    """
    return _UNSAFE.sub(_escaped, text)


def kv(**fields: object) -> str:
    """`key=value key2="quoted value"`, in the order given; a field that is None is left out.

    Values with spaces, quotes or backslashes are quoted as in JSON, so that
    no value can pass for another field or another line.
    """
    return " ".join(f"{key}={_value(value)}" for key, value in fields.items() if value is not None)


def clip(text: str, limit: int) -> str:
    """At most `limit` characters of `text`, the last being an ellipsis where it was cut."""
    if len(text) <= limit:
        return text
    return text[: limit - 1] + "…" if limit > 0 else ""


def utc(seconds: float) -> str:
    """Unix seconds as a UTC time, to the second."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _escaped(match: re.Match[str]) -> str:
    code = ord(match.group())
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(round(value, 6))
    text = str(value)
    if _PLAIN.fullmatch(text):
        return escape(text)
    return escape(json.dumps(text, ensure_ascii=False))
