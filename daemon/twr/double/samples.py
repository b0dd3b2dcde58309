"""Updates to push: one small, plausible sample of each type."""

import re
from collections.abc import Callable, Mapping
from typing import Any

_DATE = 1_793_009_001
_COMMAND = re.compile(r"/[A-Za-z0-9_]{1,32}(?:@[A-Za-z0-9_]+)?(?=\s|$)")


def sample(
    kind: str,
    update_id: int,
    *,
    user_id: int = 1001,
    chat_id: int | None = None,
    text: str = "hello",
    data: str = "x",
) -> dict[str, Any]:
    """An update of type `kind`.

    `chat_id` is the user's own chat where it is left out. `text` is the text of a message,
    the query of an inline query, the payload of a payment; `data` that of a callback. A text
    that begins with a command carries its entity.
    """
    chat = user_id if chat_id is None else chat_id
    build = _BUILDERS.get(kind, _unknown)
    return {"update_id": update_id, kind: build(update_id, user_id, chat, text, data)}


def _user(user_id: int) -> dict[str, Any]:
    return {"id": user_id, "is_bot": False, "first_name": "Ida", "language_code": "en"}


def _chat(chat_id: int) -> dict[str, Any]:
    if chat_id > 0:
        return {"id": chat_id, "first_name": "Ida", "type": "private"}
    return {"id": chat_id, "title": "Night shift", "type": "supergroup"}


def _message(update_id: int, user: int, chat: int, text: str, data: str) -> dict[str, Any]:
    message: dict[str, Any] = {
        "message_id": update_id % 100_000,
        "from": _user(user),
        "chat": _chat(chat),
        "date": _DATE,
        "text": text,
    }
    command = _COMMAND.match(text)
    if command:
        message["entities"] = [{"offset": 0, "length": command.end(), "type": "bot_command"}]
    return message


def _post(update_id: int, user: int, chat: int, text: str, data: str) -> dict[str, Any]:
    post = _message(update_id, user, chat, text, data)
    del post["from"]
    channel = {"id": chat, "title": "Tides", "type": "channel"}
    return {**post, "chat": channel, "sender_chat": channel}


def _business(update_id: int, user: int, chat: int, text: str, data: str) -> dict[str, Any]:
    return {"business_connection_id": "bc1", **_message(update_id, user, chat, text, data)}


def _guest(update_id: int, user: int, chat: int, text: str, data: str) -> dict[str, Any]:
    return {**_message(update_id, user, chat, text, data), "guest_query_id": str(update_id)}


def _callback(update_id: int, user: int, chat: int, text: str, data: str) -> dict[str, Any]:
    message = _message(update_id, 7, chat, text, data)
    return {
        "id": str(update_id),
        "from": _user(user),
        "message": message,
        "chat_instance": "1",
        "data": data,
    }


def _query(update_id: int, user: int, chat: int, text: str, data: str) -> dict[str, Any]:
    return {"id": str(update_id), "from": _user(user), "query": text, "offset": ""}


def _chosen(update_id: int, user: int, chat: int, text: str, data: str) -> dict[str, Any]:
    return {"result_id": str(update_id), "from": _user(user), "query": text}


def _payment(update_id: int, user: int, chat: int, text: str, data: str) -> dict[str, Any]:
    price = {"currency": "EUR", "total_amount": 100}
    return {"id": str(update_id), "from": _user(user), **price, "invoice_payload": text}


def _media(update_id: int, user: int, chat: int, text: str, data: str) -> dict[str, Any]:
    return {"from": _user(user), "paid_media_payload": text}


def _of_user(update_id: int, user: int, chat: int, text: str, data: str) -> dict[str, Any]:
    return {"id": str(update_id), "user": _user(user), "user_chat_id": user, "date": _DATE}


def _deleted(update_id: int, user: int, chat: int, text: str, data: str) -> dict[str, Any]:
    return {"business_connection_id": "bc1", "chat": _chat(chat), "message_ids": [1]}


def _poll(update_id: int, user: int, chat: int, text: str, data: str) -> dict[str, Any]:
    return {"id": data, "question": text, "options": [], "total_voter_count": 0}


def _answer(update_id: int, user: int, chat: int, text: str, data: str) -> dict[str, Any]:
    return {"poll_id": data, "user": _user(user), "option_ids": [0]}


def _member(update_id: int, user: int, chat: int, text: str, data: str) -> dict[str, Any]:
    member = {"user": _user(7), "status": "member"}
    return {
        "chat": _chat(chat),
        "from": _user(user),
        "date": _DATE,
        "old_chat_member": {**member, "status": "left"},
        "new_chat_member": member,
    }


def _join(update_id: int, user: int, chat: int, text: str, data: str) -> dict[str, Any]:
    return {"chat": _chat(chat), "from": _user(user), "user_chat_id": user, "date": _DATE}


def _reaction(update_id: int, user: int, chat: int, text: str, data: str) -> dict[str, Any]:
    reactions = {"old_reaction": [], "new_reaction": [{"type": "emoji", "emoji": "👍"}]}
    return {"chat": _chat(chat), "message_id": 1, "user": _user(user), "date": _DATE, **reactions}


def _reactions(update_id: int, user: int, chat: int, text: str, data: str) -> dict[str, Any]:
    return {"chat": _chat(chat), "message_id": 1, "date": _DATE, "reactions": []}


def _boost(update_id: int, user: int, chat: int, text: str, data: str) -> dict[str, Any]:
    source = {"source": "premium", "user": _user(user)}
    dates = {"add_date": _DATE, "expiration_date": _DATE + 1}
    return {"chat": _chat(chat), "boost": {"boost_id": "b1", **dates, "source": source}}


def _unboost(update_id: int, user: int, chat: int, text: str, data: str) -> dict[str, Any]:
    source = {"source": "premium", "user": _user(user)}
    return {"chat": _chat(chat), "boost_id": "b1", "remove_date": _DATE, "source": source}


def _stopped(update_id: int, user: int, chat: int, text: str, data: str) -> dict[str, Any]:
    return {"chat": _chat(chat), "message_thread_id": 1}


def _unknown(update_id: int, user: int, chat: int, text: str, data: str) -> dict[str, Any]:
    return {"from": _user(user), "chat": _chat(chat), "text": text}


_BUILDERS: Mapping[str, Callable[[int, int, int, str, str], dict[str, Any]]] = {
    "message": _message,
    "edited_message": _message,
    "channel_post": _post,
    "edited_channel_post": _post,
    "business_message": _business,
    "edited_business_message": _business,
    "deleted_business_messages": _deleted,
    "business_connection": _of_user,
    "guest_message": _guest,
    "stopped_message_generation": _stopped,
    "inline_query": _query,
    "chosen_inline_result": _chosen,
    "callback_query": _callback,
    "shipping_query": _payment,
    "pre_checkout_query": _payment,
    "purchased_paid_media": _media,
    "subscription": _of_user,
    "managed_bot": _of_user,
    "my_chat_member": _member,
    "chat_member": _member,
    "chat_join_request": _join,
    "message_reaction": _reaction,
    "message_reaction_count": _reactions,
    "chat_boost": _boost,
    "removed_chat_boost": _unboost,
    "poll": _poll,
    "poll_answer": _answer,
}
