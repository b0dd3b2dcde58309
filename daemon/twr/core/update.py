"""An update as received becomes the few facts that routing, order and expiry go by.

The shapes are those of the Bot API (https://core.telegram.org/bots/api#update).
"""

import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from itertools import accumulate
from typing import Any, NoReturn, TypeAlias

from pydantic_core import from_json

MAX_ID = 2**63 - 1
MAX_DEPTH = 1000

_DAY = 86_400
_FRAMES = 50  # more than what the parser calls needs
_LONGEST_NUMBER = 20
_STRING = re.compile(rb'"(?:[^"\\]++|\\.?)*+"?', re.DOTALL)
_ALL_ALIKE = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(sorted({*range(256)} - {*b"[]{}"}))
_PIECE = 64
_MARKED_COMMAND = re.compile(r"/([A-Za-z0-9_]+)(?:@([A-Za-z0-9_]+))?")
_TYPED_COMMAND = re.compile(r"/([A-Za-z0-9_]{1,32})(?:@([A-Za-z0-9_]+)|(?=\s)|\Z)")
_WORD = re.compile(r"[A-Za-z0-9_-]{1,64}")


class InvalidUpdate(ValueError):  # noqa: N818
    """The body is nothing that Telegram can have sent."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of an update; a fact that it does not carry, or not readably, is None.

    All texts can be encoded as UTF-8. `command` and `command_target` keep their case and
    come without slash and @. `lane` is the key inside which order holds: short, without
    spaces. `expires_after` counts seconds from acceptance.
    """

    update_id: int
    type: str | None
    user_id: int | None
    chat_id: int | None
    chat_type: str | None
    topic_id: int | None
    command: str | None
    command_target: str | None
    start_payload: str | None
    callback_data: str | None
    business_connection_id: str | None
    lane: str
    expires_after: int


_Ids: TypeAlias = tuple[int | None, int | None, str | None]  # user, chat, connection


@dataclass(frozen=True, slots=True)
class _Lane:
    """`prefix` and the id that `id_of` finds in the update's object and its ids."""

    prefix: str
    id_of: Callable[[dict[str, Any], _Ids], str | int | None]


@dataclass(frozen=True, slots=True)
class _Kind:
    """How updates of one type are read; the first path of `actor` that leads to an id counts."""

    actor: tuple[tuple[str, ...], ...] = ()
    lane: _Lane | None = None
    expires_after: int = _DAY
    scene: str | None = None  # the key of what holds chat, topic and connection
    connection: str = "business_connection_id"
    commands: bool = False


def _user(body: dict[str, Any], ids: _Ids) -> int | None:
    return ids[0]


def _chat(body: dict[str, Any], ids: _Ids) -> int | None:
    return ids[1]


def _member(body: dict[str, Any], ids: _Ids) -> int | None:
    """Whose membership it is, which need not be who acts."""
    subject = _id(body, ("new_chat_member", "user", "id"))
    return ids[0] if subject is None else subject


def _poll(body: dict[str, Any], ids: _Ids) -> str | None:
    text = _text(body.get("id")) or _text(body.get("poll_id"))
    return _part(text) if text else None


def _connection_chat(body: dict[str, Any], ids: _Ids) -> str | None:
    _, chat, connection = ids
    return None if connection is None or chat is None else f"{_part(connection)}:{chat}"


_FROM = (("from", "id"),)
_USER = (("user", "id"),)
_IN_CHAT = _Lane("", _chat)
_BUSINESS = _Lane("business:", _connection_chat)
_POLL = _Lane("poll:", _poll)
_BOOST = _Lane("boost:", _chat)
_PAYMENT = _Lane("payment:", _user)
_MEMBER = _Lane("member:", _member)

# Actors, lanes and expiries are those of the Bot API server's queues:
# https://github.com/tdlib/telegram-bot-api/blob/master/telegram-bot-api/Client.cpp
_KINDS: dict[str, _Kind] = {
    "message": _Kind(_FROM, _IN_CHAT, commands=True),
    "edited_message": _Kind(_FROM, _IN_CHAT, commands=True),
    "channel_post": _Kind((), _IN_CHAT, commands=True),
    "edited_channel_post": _Kind((), _IN_CHAT, commands=True),
    "business_connection": _Kind(_USER, _Lane("connection:", _user), connection="id"),
    "business_message": _Kind(_FROM, _BUSINESS, commands=True),
    "edited_business_message": _Kind(_FROM, _BUSINESS, commands=True),
    "deleted_business_messages": _Kind((), _BUSINESS),
    "guest_message": _Kind(_FROM, _Lane("guest:", _chat), commands=True),
    "stopped_message_generation": _Kind(),
    "message_reaction": _Kind((("user", "id"), ("actor_chat", "id")), _Lane("reaction:", _chat)),
    "message_reaction_count": _Kind((), _Lane("reaction_count:", _chat)),
    "inline_query": _Kind(_FROM, _Lane("inline:", _user), 30),
    "chosen_inline_result": _Kind(_FROM, _Lane("chosen:", _user), 600),
    "callback_query": _Kind(_FROM, _Lane("callback:", _user), 150, scene="message"),
    "shipping_query": _Kind(_FROM, _PAYMENT, 150),
    "pre_checkout_query": _Kind(_FROM, _PAYMENT, 150),
    "purchased_paid_media": _Kind(_FROM, _Lane("paid_media:", _user)),
    "subscription": _Kind(_USER),
    "managed_bot": _Kind(_USER),
    "poll": _Kind((), _POLL),
    "poll_answer": _Kind((("user", "id"), ("voter_chat", "id")), _POLL),
    "my_chat_member": _Kind(_FROM, _Lane("my_member:", _chat)),
    "chat_member": _Kind(_FROM, _MEMBER),
    "chat_join_request": _Kind(_FROM, _MEMBER),
    "chat_boost": _Kind((("boost", "source", "user", "id"),), _BOOST),
    "removed_chat_boost": _Kind((("source", "user", "id"),), _BOOST),
}
_UNKNOWN = _Kind(_FROM + _USER)

_Command: TypeAlias = tuple[str | None, str | None, str | None]
_NO_COMMAND: _Command = (None, None, None)

TYPES = tuple(_KINDS)
COMMAND_TYPES = (
    "message",
    "edited_message",
    "channel_post",
    "edited_channel_post",
    "business_message",
    "edited_business_message",
)
DEFAULT_TYPES = tuple(
    name
    for name in TYPES
    if name not in ("chat_member", "message_reaction", "message_reaction_count")
)


def parse(body: bytes) -> dict[str, Any]:
    """The update in `body`, good for `read`.

    Raises InvalidUpdate when it is no JSON object, has NaN, a byte order mark or over
    1,000 levels, or when its update_id is not a whole number from 0 to 2^63-1. Bytes that
    are not UTF-8 and lone surrogates inside strings are no reason to refuse it.
    """
    try:
        update = from_json(body, allow_inf_nan=False)
    except ValueError:
        update = _parse_tolerantly(body)
    if type(update) is not dict:
        raise InvalidUpdate("not a JSON object")
    update_id = update.get("update_id")
    if type(update_id) is not int or not 0 <= update_id <= MAX_ID:
        raise InvalidUpdate("update_id is not a whole number from 0 to 2^63-1")
    return update


def read(update: dict[str, Any]) -> Facts:
    """The facts of what `parse` returned; never raises on that."""
    update_id: int = update["update_id"]
    name, body = _payload(update)
    kind = _UNKNOWN if name is None else _KINDS.get(name, _UNKNOWN)
    scene = body if kind.scene is None else _object(body.get(kind.scene))
    chat = _object(scene.get("chat"))
    ids = (_actor(kind, body), _whole(chat.get("id")), _text(scene.get(kind.connection)))
    command, target, payload = _command(body) if kind.commands else _NO_COMMAND
    return Facts(
        update_id,
        name,
        ids[0],
        ids[1],
        _text(chat.get("type")),
        _whole(scene.get("message_thread_id")) if scene.get("is_topic_message") is True else None,
        command,
        target,
        payload,
        _text(body.get("data")) if name == "callback_query" else None,
        ids[2],
        _lane(kind, name, body, ids, update_id),
        kind.expires_after,
    )


def _parse_tolerantly(body: bytes) -> Any:
    if _is_deep(body):
        raise InvalidUpdate(f"over {MAX_DEPTH} levels")
    # In Python 3.11 each level counts like a frame on the caller's stack.
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(limit + MAX_DEPTH + _FRAMES)
    try:
        return json.loads(body.decode(errors="replace"), parse_int=_short, parse_constant=_refuse)
    except ValueError as error:
        raise InvalidUpdate("not JSON") from error
    finally:
        sys.setrecursionlimit(limit)


def _is_deep(body: bytes) -> bool:
    """Whether a bracket outside strings lies deeper than MAX_DEPTH; a million take no time."""
    brackets = _STRING.sub(b"", body).translate(_ALL_ALIKE, _NO_BRACKETS)
    depth = 0
    for at in range(0, len(brackets), _PIECE):
        piece = brackets[at : at + _PIECE]
        opened = piece.count(b"[")
        if depth + opened > MAX_DEPTH and _deepest(piece, depth) > MAX_DEPTH:
            return True
        depth += 2 * opened - len(piece)
    return False


def _deepest(brackets: bytes, depth: int) -> int:
    return max(accumulate((1 if it == ord("[") else -1 for it in brackets), initial=depth))


def _short(digits: str) -> int | None:
    """No id is longer, and the time for a long one grows with its square."""
    return int(digits) if len(digits) <= _LONGEST_NUMBER else None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


def _payload(update: dict[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """The type and its object; of several keys a known one that holds an object goes first."""
    names = [name for name in update if name != "update_id"]
    if not names:
        return None, {}
    if len(names) > 1:
        names.sort(key=lambda name: (name not in _KINDS, type(update[name]) is not dict, name))
    name = names[0]
    return name if name in _KINDS else _text(name), _object(update[name])


def _object(value: Any) -> dict[str, Any]:
    return value if type(value) is dict else {}


def _whole(value: Any) -> int | None:
    return value if type(value) is int and -MAX_ID <= value <= MAX_ID else None


def _text(value: Any) -> str | None:
    """A string as it is, with U+FFFD for lone surrogates, which cannot be encoded."""
    if type(value) is not str:
        return None
    if value.isascii():
        return value
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _id(body: Any, path: tuple[str, ...]) -> int | None:
    for key in path:
        if type(body) is not dict:
            return None
        body = body.get(key)
    return _whole(body)


def _actor(kind: _Kind, body: dict[str, Any]) -> int | None:
    for path in kind.actor:
        found = _id(body, path)
        if found is not None:
            return found
    return None


def _command(body: dict[str, Any]) -> _Command:
    """Command, target and start payload of a message's text or caption."""
    text, entities = body.get("text"), body.get("entities")
    if type(text) is not str:
        text, entities = body.get("caption"), body.get("caption_entities")
    if type(text) is not str or not text.startswith("/"):
        return _NO_COMMAND
    found = _TYPED_COMMAND.match(text) if entities is None else _marked(text, entities)
    if found is None:
        return _NO_COMMAND
    command, target = found.groups()
    rest = text[found.end() :] if command.lower() == "start" else ""
    return command, target, _text(rest.strip()) or None if rest[:1].isspace() else None


def _marked(text: str, entities: Any) -> re.Match[str] | None:
    """The command that an entity at the very start of `text` marks.

    Lengths are UTF-16 units, which are characters here: a command is ASCII throughout.
    """
    for entity in entities if type(entities) is list else ():
        if type(entity) is dict and entity.get("type") == "bot_command":
            offset, length = entity.get("offset"), _whole(entity.get("length"))
            if type(offset) is int and offset == 0 and length is not None and length > 0:
                return _MARKED_COMMAND.fullmatch(text, 0, length)
    return None


def _lane(kind: _Kind, name: str | None, body: dict[str, Any], ids: _Ids, update_id: int) -> str:
    """No two kinds share a lane: prefixes hold no dot, and types are cut to words."""
    if kind.lane is not None:
        own = kind.lane.id_of(body, ids)
        if own is not None:
            return f"{kind.lane.prefix}{own}"
    if name is None:
        return f"update:{update_id}"
    user, chat, _ = ids
    if user is not None:
        return f"{_part(name)}.user:{user}"
    if chat is not None:
        return f"{_part(name)}.chat:{chat}"
    return f"{_part(name)}.update:{update_id}"


def _part(text: str) -> str:
    """`text` itself where it is a word of up to 64 characters, else a digest of it."""
    if _WORD.fullmatch(text):
        return text
    return f"#{sha256(text.encode()).hexdigest()[:32]}"
