"""What load and target agree on: the update that is sent, and the mark in it by which it is known.

All fields have a fixed width, so that every update has the same length and is made by one format.
"""

from dataclasses import dataclass

SECRET = "bench-secret-0123456789abcdefghij"
PATH = "/webhooks/telegram"
FIRST_ID = 1_000_000_000
FIRST_CHAT = 2_000_000_000

_MARK = b'"text":"bench '
_MARK_LENGTH = 10 + 1 + 10 + 1 + 4 + 1 + 8 + 1 + 19
# As Telegram writes it: no spaces, and a newline behind the first comma.
_UPDATE = (
    b'{"update_id":%(id)010d,\n"message":{"message_id":1234567,"from":{"id":%(chat)010d,'
    b'"is_bot":false,"first_name":"Somebody","last_name":"Else","username":"somebody_else","language_code":"en"},"chat":{"id":%(chat)010d,'
    b'"first_name":"Somebody","last_name":"Else","username":"somebody_else","type":"private"},'
    b'"date":1788088524,"text":"bench %(id)010d %(chat)010d %(sender)04d %(seq)08d %(at)019d'
    b' \\u0437\\u0430\\u043a\\u0430\\u0437 \\u043f\\u0440\\u0438\\u043d\\u044f\\u0442"}}'
)


@dataclass(frozen=True, slots=True)
class Mark:
    """What an update says of itself: who sent it as its how-manieth, when (unix nanoseconds)."""

    update_id: int
    chat: int
    sender: int
    seq: int
    sent_ns: int


def update(mark: Mark) -> bytes:
    """The body of an update."""
    return _UPDATE % {
        b"id": mark.update_id,
        b"chat": mark.chat,
        b"sender": mark.sender,
        b"seq": mark.seq,
        b"at": mark.sent_ns,
    }


def find_mark(body: bytes) -> bytes:
    """The mark inside a body, still to be read; empty when there is none."""
    at = body.find(_MARK)
    return b"" if at < 0 else body[at + len(_MARK) : at + len(_MARK) + _MARK_LENGTH]


def read_mark(mark: bytes) -> Mark:
    """A mark as `find_mark` gives it; raises ValueError when it is none."""
    update_id, chat, sender, seq, sent_ns = map(int, mark.split())
    return Mark(update_id, chat, sender, seq, sent_ns)


def request_head(host: str) -> bytes:
    """The head of a request with an update, as Telegram sends it."""
    length = len(update(Mark(FIRST_ID, FIRST_CHAT, 0, 0, 0)))
    return (
        f"POST {PATH} HTTP/1.1\r\n"
        f"Host: {host}\r\n"
        f"X-Telegram-Bot-Api-Secret-Token: {SECRET}\r\n"
        "Content-Type: application/json\r\n"
        f"Content-Length: {length}\r\n"
        "Connection: keep-alive\r\n"
        "Accept-Encoding: gzip, deflate\r\n"
        "\r\n"
    ).encode()
