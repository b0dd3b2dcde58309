"""What is read of an update."""

import json
import time
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twr.core.update import (
    COMMAND_TYPES,
    DEFAULT_TYPES,
    TYPES,
    Facts,
    InvalidUpdate,
    parse,
    read,
)

CASES = Path(__file__).parent / "cases"
UPDATES = [line.encode() for line in (CASES / "updates.jsonl").read_text().splitlines()]
EXPECTED = [json.loads(line) for line in (CASES / "updates.expect.jsonl").read_text().splitlines()]
SAME_NAMES = (
    "update_id",
    "type",
    "user_id",
    "chat_id",
    "command",
    "command_target",
    "callback_data",
    "business_connection_id",
)
USER = {"id": 7, "is_bot": False, "first_name": "Ida"}
CHAT = {"id": -100, "type": "supergroup"}
DAY = 86_400
DIGEST = {
    text: sha256(text.encode()).hexdigest()[:32]
    for text in ("5" * 300_000, "a b", "#", "\ufffd", "a:b")
}


def facts(**payload: object) -> Facts:
    """The facts of an update 1 that carries `payload`, by way of its bytes."""
    return read(parse(json.dumps({"update_id": 1, **payload}).encode()))


def message(**fields: object) -> Facts:
    """The facts of a message of user 7 in chat -100."""
    return facts(message={"from": USER, "chat": CHAT, **fields})


def nested(levels: int) -> bytes:
    """An update with `levels` levels in all, its own object counted."""
    arrays = levels - 2
    return b'{"update_id":1,"message":{"chat":{"id":5},"x":' + b"[" * arrays + b"]" * arrays + b"}}"


@pytest.mark.parametrize(
    ("body", "expected"),
    list(zip(UPDATES, EXPECTED, strict=True)),
    ids=[case["name"] for case in EXPECTED],
)
def test_sample_updates(body: bytes, expected: dict[str, Any]) -> None:
    """Updates as Telegram sends them give the facts written down beside them."""
    found = read(parse(body))
    for name in SAME_NAMES:
        assert getattr(found, name) == expected[name]
    assert found.topic_id == expected["thread_id"]
    starts = expected["command"] == "start"
    assert found.start_payload == (expected["command_args"] if starts else None)


BUSINESS = {"from": USER, "chat": CHAT, "business_connection_id": "bz_1"}
REACTION = {"chat": CHAT, "message_id": 1}
FROM = {"from": USER}


@pytest.mark.parametrize(
    ("name", "body", "user_id", "chat_id", "lane", "expires_after"),
    [
        ("message", {"from": USER, "chat": CHAT}, 7, -100, "-100", DAY),
        ("edited_message", {"from": USER, "chat": CHAT}, 7, -100, "-100", DAY),
        ("channel_post", {"chat": CHAT, "sender_chat": CHAT}, None, -100, "-100", DAY),
        ("edited_channel_post", {"chat": CHAT}, None, -100, "-100", DAY),
        ("business_message", BUSINESS, 7, -100, "business:bz_1:-100", DAY),
        ("edited_business_message", BUSINESS, 7, -100, "business:bz_1:-100", DAY),
        (
            "deleted_business_messages",
            {"chat": CHAT, "business_connection_id": "bz_1"},
            None,
            -100,
            "business:bz_1:-100",
            DAY,
        ),
        ("business_connection", {"id": "bz_1", "user": USER}, 7, None, "connection:7", DAY),
        ("guest_message", {"from": USER, "chat": CHAT}, 7, -100, "guest:-100", DAY),
        (
            "stopped_message_generation",
            {"chat": CHAT},
            None,
            -100,
            "stopped_message_generation.chat:-100",
            DAY,
        ),
        ("message_reaction", {**REACTION, "user": USER}, 7, -100, "reaction:-100", DAY),
        ("message_reaction", {**REACTION, "actor_chat": CHAT}, -100, -100, "reaction:-100", DAY),
        ("message_reaction_count", REACTION, None, -100, "reaction_count:-100", DAY),
        ("inline_query", FROM, 7, None, "inline:7", 30),
        ("chosen_inline_result", FROM, 7, None, "chosen:7", 600),
        (
            "callback_query",
            {"from": USER, "message": {"from": {"id": 9}, "chat": CHAT}},
            7,
            -100,
            "callback:7",
            150,
        ),
        ("callback_query", {"from": USER, "inline_message_id": "x"}, 7, None, "callback:7", 150),
        ("shipping_query", FROM, 7, None, "payment:7", 150),
        ("pre_checkout_query", FROM, 7, None, "payment:7", 150),
        ("purchased_paid_media", FROM, 7, None, "paid_media:7", DAY),
        ("subscription", {"user": USER}, 7, None, "subscription.user:7", DAY),
        ("managed_bot", {"user": USER, "bot": {"id": 9}}, 7, None, "managed_bot.user:7", DAY),
        ("poll", {"id": "53"}, None, None, "poll:53", DAY),
        ("poll_answer", {"poll_id": "53", "user": USER}, 7, None, "poll:53", DAY),
        ("poll_answer", {"poll_id": "53", "voter_chat": CHAT}, -100, None, "poll:53", DAY),
        (
            "my_chat_member",
            {"from": USER, "chat": CHAT, "new_chat_member": {"user": {"id": 9}}},
            7,
            -100,
            "my_member:-100",
            DAY,
        ),
        (
            "chat_member",
            {"from": USER, "chat": CHAT, "new_chat_member": {"user": {"id": 9}}},
            7,
            -100,
            "member:9",
            DAY,
        ),
        ("chat_join_request", {"from": USER, "chat": CHAT}, 7, -100, "member:7", DAY),
        (
            "chat_boost",
            {"chat": CHAT, "boost": {"source": {"user": USER}}},
            7,
            -100,
            "boost:-100",
            DAY,
        ),
        ("chat_boost", {"chat": CHAT, "boost": {"source": {}}}, None, -100, "boost:-100", DAY),
        (
            "removed_chat_boost",
            {"chat": CHAT, "source": {"user": USER}},
            7,
            -100,
            "boost:-100",
            DAY,
        ),
        ("brand_new", {"from": USER, "chat": CHAT}, 7, -100, "brand_new.user:7", DAY),
        ("brand_new", {"user": USER}, 7, None, "brand_new.user:7", DAY),
        ("brand_new", {"chat": CHAT}, None, -100, "brand_new.chat:-100", DAY),
        ("brand_new", {}, None, None, "brand_new.update:1", DAY),
    ],
)
def test_actor_chat_lane_and_expiry(
    name: str,
    body: dict[str, Any],
    user_id: int | None,
    chat_id: int | None,
    lane: str,
    expires_after: int,
) -> None:
    """Each type has its actor, its chat, its order and its patience."""
    found = facts(**{name: body})
    assert (
        found.type,
        found.user_id,
        found.chat_id,
        found.lane,
        found.expires_after,
    ) == (name, user_id, chat_id, lane, expires_after)


def test_types_are_those_of_the_bot_api() -> None:
    """Of 27 known types Telegram sends 24 unasked, and six can carry a command."""
    assert len(TYPES) == 27
    assert set(TYPES) - set(DEFAULT_TYPES) == {
        "chat_member",
        "message_reaction",
        "message_reaction_count",
    }
    assert len(COMMAND_TYPES) == 6
    assert set(COMMAND_TYPES) < set(DEFAULT_TYPES)


def command(**fields: object) -> tuple[str | None, str | None, str | None]:
    """Command, target and start payload of a message."""
    found = message(**fields)
    return found.command, found.command_target, found.start_payload


def entity(length: object, offset: object = 0, kind: object = "bot_command") -> dict[str, object]:
    """One entity of a text."""
    return {"type": kind, "offset": offset, "length": length}


NONE = (None, None, None)


@pytest.mark.parametrize(
    ("text", "entities", "expected"),
    [
        ("/start ref42", [entity(6)], ("start", None, "ref42")),
        ("/START  ref42 \n", [entity(6)], ("START", None, "ref42")),
        ("/start\nref42", [entity(6)], ("start", None, "ref42")),
        ("/start", [entity(6)], ("start", None, None)),
        ("/start ", [entity(6)], ("start", None, None)),
        ("/start@My_Bot ref", [entity(13)], ("start", "My_Bot", "ref")),
        ("/start@My_Bot ref", [entity(6)], ("start", None, None)),
        ("/started x", [entity(8)], ("started", None, None)),
        ("/help x", [entity(5)], ("help", None, None)),
        ("/start 🚢", [entity(6), entity(2, 7, "bold")], ("start", None, "🚢")),
        ("/stop", [entity(5, kind="code")], NONE),
        ("/stop", [], NONE),
        ("/stop", [entity(5, kind="bold"), entity(5)], ("stop", None, None)),
        ("go /stop", [entity(5, 3)], NONE),
        ("🚢/stop", [entity(5, 2)], NONE),
        ("/stop", [entity(99)], ("stop", None, None)),
        ("/stop now", [entity(99)], NONE),
        ("/stop", [entity(0)], NONE),
        ("/stop", [entity(-1)], NONE),
        ("/stop", [entity(True)], NONE),
        ("/stop", [entity(5, False)], NONE),
        ("/stop", [entity(5, 0.0)], NONE),
        ("/stop", [None, 1, "x", entity("5")], NONE),
        ("/stop", {"type": "bot_command"}, NONE),
        ("/stop", "bot_command", NONE),
        ("stop", [entity(4)], NONE),
        ("/", [entity(1)], NONE),
        ("/помощь", [entity(7)], NONE),
    ],
)
def test_command_marked_by_an_entity(
    text: str, entities: object, expected: tuple[str | None, ...]
) -> None:
    """A bot_command entity at offset 0 makes a command, in a text as in a caption."""
    assert command(text=text, entities=entities) == expected
    assert command(caption=text, caption_entities=entities) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/start ref42", ("start", None, "ref42")),
        ("/start@My_Bot ref42", ("start", "My_Bot", "ref42")),
        ("/help@My_Bot", ("help", "My_Bot", None)),
        ("/help\tme", ("help", None, None)),
        ("/" + "a" * 32, ("a" * 32, None, None)),
        ("/" + "a" * 33, NONE),
        ("/help!", NONE),
        ("/help@", NONE),
        ("/help/me", NONE),
        (" /help", NONE),
        ("/", NONE),
        ("/ help", NONE),
        ("/помощь мне", NONE),
        ("", NONE),
    ],
)
def test_command_in_a_text_without_entities(text: str, expected: tuple[str | None, ...]) -> None:
    """Senders of test updates leave the entities out; a command counts all the same."""
    assert command(text=text) == expected
    assert command(text=text, entities=None) == expected
    assert command(caption=text) == expected


def test_text_goes_before_caption() -> None:
    """A caption counts only where there is no text."""
    assert command(text="hello", caption="/help") == NONE
    assert command(text=None, caption="/help") == ("help", None, None)
    assert command(text="hello", entities=[], caption_entities=[entity(5)]) == NONE


@pytest.mark.parametrize("name", [*COMMAND_TYPES, "guest_message"])
def test_messages_of_all_kinds_carry_commands(name: str) -> None:
    """Posts, edits and business messages are messages too."""
    assert facts(**{name: {"text": "/help"}}).command == "help"


@pytest.mark.parametrize("name", ["inline_query", "callback_query", "poll", "brand_new"])
def test_nothing_else_carries_commands(name: str) -> None:
    """A field named text makes no message."""
    assert facts(**{name: {"text": "/help"}}).command is None


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"message_thread_id": 4, "is_topic_message": True}, 4),
        ({"message_thread_id": 4}, None),
        ({"message_thread_id": 4, "is_topic_message": False}, None),
        ({"message_thread_id": 4, "is_topic_message": 1}, None),
        ({"message_thread_id": "4", "is_topic_message": True}, None),
        ({"is_topic_message": True}, None),
    ],
)
def test_topic(fields: dict[str, Any], expected: int | None) -> None:
    """A thread is a topic only where the message says so; a callback has its message's."""
    assert message(**fields).topic_id == expected
    found = facts(callback_query={"from": USER, "message": {"chat": CHAT, **fields}})
    assert found.topic_id == expected


def test_callback_reads_connection_and_chat_type_of_its_message() -> None:
    """What surrounds the button is the scene, the one who pressed it the actor."""
    scene = {"chat": {"id": 5, "type": "private"}, "business_connection_id": "bz_1"}
    found = facts(callback_query={"from": USER, "message": scene, "data": "order:1"})
    assert (found.user_id, found.chat_id, found.chat_type) == (7, 5, "private")
    assert (found.business_connection_id, found.callback_data) == ("bz_1", "order:1")


@pytest.mark.parametrize(
    "written",
    ["null", "true", "7.0", "7e0", '"7"', "[7]", '{"id":7}', str(2**63), str(-(2**70)), "9" * 5000],
    ids=lambda written: written[:20],
)
def test_an_id_of_the_wrong_kind_is_absent(written: str) -> None:
    """What is no integer of a sensible size is no id, and harms nothing else."""
    body = f'{{"update_id":1,"message":{{"from":{{"id":7}},"chat":{{"id":{written}}}}}}}'
    found = read(parse(body.encode()))
    assert (found.user_id, found.chat_id, found.lane) == (7, None, "message.user:7")


@pytest.mark.parametrize("value", [None, True, 1, 1.5, "x", [], [{}], {}])
@pytest.mark.parametrize("name", [*TYPES, "brand_new"])
def test_a_payload_of_the_wrong_kind_has_no_facts(name: str, value: object) -> None:
    """An update without a proper object is still one of its type."""
    found = facts(**{name: value})
    assert (found.type, found.user_id, found.chat_id, found.command) == (name, None, None, None)
    assert found.lane == f"{name}.update:1"


@pytest.mark.parametrize("key", ["from", "chat", "message", "data", "text", "user", "boost", "id"])
@pytest.mark.parametrize("value", [None, True, 1, "x", [1], {"x": None}])
def test_a_field_of_the_wrong_kind_raises_nothing(key: str, value: object) -> None:
    """Every type reads every field with care."""
    for name in TYPES:
        assert facts(**{name: {key: value}}).type == name


def test_52_bit_ids_are_exact() -> None:
    """The largest ids come through as they are."""
    largest = 2**52 - 1
    found = facts(message={"from": {"id": largest}, "chat": {"id": -largest}})
    assert (found.user_id, found.chat_id, found.lane) == (largest, -largest, f"-{largest}")


def test_update_without_payload() -> None:
    """Nothing beside the update_id is an update without a type."""
    found = facts()
    assert (found.type, found.lane, found.expires_after) == (None, "update:1", DAY)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"zzz": {}, "message": {}}, "message"),
        ({"aaa": {}, "message": {}}, "message"),
        ({"message": None, "callback_query": {}}, "callback_query"),
        ({"zzz": {}, "aaa": {}}, "aaa"),
        ({"aaa": None, "zzz": {}}, "zzz"),
    ],
)
def test_type_among_several_keys(body: dict[str, Any], expected: str) -> None:
    """A known type goes before an unknown one, an object before anything else."""
    assert facts(**body).type == expected


@pytest.mark.parametrize(
    ("body", "update_id"),
    [
        (b'{"update_id":0}', 0),
        (b'{"update_id":9223372036854775807}', 2**63 - 1),
        (b' \r\n\t{"update_id":1,\n"message":{}}\n', 1),
        (b'{"update_id":1,"update_id":2}', 2),
        (b'{"update_id":1.0,"update_id":2}', 2),
        (b'{"update_id":1,"message":{"x":1e400,"y":-0.0}}', 1),
        (b'{"update_id":1,"message":{"x":' + b"9" * 100_000 + b"}}", 1),
        (b'{"update_id":1,"message":{"x":"\xff\xfe"}}', 1),
        (b'{"update_id":1,"message":{"x":"\xed\xa0\x80"}}', 1),
        (b'{"update_id":1,"message":{"\xff":1}}', 1),
        (b'{"update_id":1,"message":{"x":"\\ud83d"}}', 1),
        (b'{"update_id":1,"message":{"x":"\\udea2\\ud83d"}}', 1),
        (b'{"update_id":1,"message":{"x":"\\u0000"}}', 1),
        (nested(150), 1),
        (nested(250), 1),
        (nested(999), 1),
        (nested(1000), 1),
    ],
)
def test_valid_bodies(body: bytes, update_id: int) -> None:
    """Whatever Telegram can send is an update."""
    assert read(parse(body)).update_id == update_id


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"null",
        b"1",
        b'"text"',
        b"[]",
        b'[{"update_id":1}]',
        b"{}",
        b'{"update_id":1',
        b'{"update_id":1}}',
        b'{"update_id":1} x',
        b'{"update_id":1}\0',
        b"{'update_id':1}",
        b'{"update_id":1,}',
        b'{"update_id":01}',
        b'{"update_id":null}',
        b'{"update_id":true}',
        b'{"update_id":1.0}',
        b'{"update_id":1e3}',
        b'{"update_id":"1"}',
        b'{"update_id":[1]}',
        b'{"update_id":-1}',
        b'{"update_id":9223372036854775808}',
        b'{"update_id":' + b"9" * 1_000_000 + b"}",
        b'{"update_id":1,"update_id":true}',
        b'{"update_id":1,"message":{"x":NaN}}',
        b'{"update_id":1,"message":{"x":Infinity}}',
        b'{"update_id":1,"message":{"x":-Infinity}}',
        b'{"update_id":1,"message":{"x":"\xff","y":NaN}}',
        b'{"update_id":1,"message":\xff}',
        b'{"update_id":1,"message":"a\nb"}',
        b'{"update_id":1,"message":"\\x"}',
        b'\xef\xbb\xbf{"update_id":1}',
        '{"update_id":1}'.encode("utf-16"),
        '{"update_id":1}'.encode("utf-16-le"),
        '{"update_id":1}'.encode("utf-32"),
        nested(1001),
        nested(100_000),
        b"[" * 1_000_000,
        b'{"a":' * 200_000,
        b'{"update_id":1,"x":' + b"[" * 500 + b",," + b"]" * 500 + b"}",
        b'{"update_id":1,"x":' + b"[" * 500 + b"}" * 500 + b"}",
        b'{"update_id":1,"x":"' + b'\\"' * 500_000,
        b'{"update_id":1,"x":' + b"[]," * 300 + b"]",
    ],
    ids=lambda body: repr(body[:40]),
)
def test_invalid_bodies(body: bytes) -> None:
    """What Telegram cannot have sent is refused, in good time and without another error."""
    started = time.perf_counter()
    with pytest.raises(InvalidUpdate):
        parse(body)
    assert time.perf_counter() - started < 2


@pytest.mark.parametrize("levels", [90, 100, 101, 102, 199, 200, 201, 202, 500, 1000])
def test_facts_are_read_beside_deep_nesting(levels: int) -> None:
    """How deep something else is nested changes no fact, and its faults are still seen."""
    assert read(parse(nested(levels))).lane == "5"
    with pytest.raises(InvalidUpdate):
        parse(nested(levels).replace(b"[]", b"[,]"))


def test_deep_nesting_is_read_far_up_the_stack() -> None:
    """The depth that a body may have does not depend on the caller's."""

    def deeper(levels: int) -> Facts:
        return deeper(levels - 1) if levels else read(parse(nested(1000)))

    assert deeper(500).lane == "5"


def test_brackets_in_strings_are_text() -> None:
    """Only structure counts as depth."""
    body = b'{"update_id":1,"message":{"chat":{"id":5},"x":"\xff' + b'[{\\"' * 2000 + b'"}}'
    assert read(parse(body)).lane == "5"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"order:1", "order:1"),
        (b"order:\xff", "order:\ufffd"),
        (b"order:\\ud83d", "order:\ufffd"),
        (b"order:\\ud83d\\udea2", "order:🚢"),
        ("заказ".encode(), "заказ"),
    ],
)
def test_unreadable_callback_data_is_readable_as_far_as_it_goes(data: bytes, expected: str) -> None:
    """A prefix still matches where what follows it is no text."""
    body = b'{"update_id":1,"callback_query":{"data":"' + data + b'"}}'
    assert read(parse(body)).callback_data == expected


@pytest.mark.parametrize(
    ("name", "body", "lane"),
    [
        ("poll", {"id": "5" * 64}, "poll:" + "5" * 64),
        ("poll", {"id": "5" * 300_000}, "poll:#" + DIGEST["5" * 300_000]),
        ("poll", {"id": "a b"}, "poll:#" + DIGEST["a b"]),
        ("poll", {"id": "#"}, "poll:#" + DIGEST["#"]),
        ("poll", {"id": "\ud800"}, "poll:#" + DIGEST["\ufffd"]),
        ("poll", {"id": ""}, "poll.update:1"),
        ("poll", {"id": 53}, "poll.update:1"),
        ("a:b", {"chat": CHAT}, f"#{DIGEST['a:b']}.chat:-100"),
        ("update", {"chat": CHAT}, "update.chat:-100"),
        ("business_message", {"chat": CHAT}, "business_message.chat:-100"),
        (
            "business_message",
            {"chat": CHAT, "business_connection_id": "a:b"},
            f"business:#{DIGEST['a:b']}:-100",
        ),
    ],
    ids=range(11),
)
def test_odd_ids_make_short_unambiguous_lanes(name: str, body: dict[str, Any], lane: str) -> None:
    """What is no short word stands in a lane as a digest; without its id a lane is the type's."""
    assert facts(**{name: body}).lane == lane


def test_lanes_of_different_ids_differ_when_cut() -> None:
    """A digest stands for the whole text."""
    lanes = {facts(poll={"id": "5" * 1000 + end}).lane for end in "123"}
    assert len(lanes) == 3


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(), max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["id", "from", "chat", "message", "text", "entities", "data", "user"])
            | st.text(st.characters(), max_size=8),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@given(
    st.integers(0, 2**63 - 1),
    st.dictionaries(st.sampled_from([*TYPES, "brand_new"]) | st.text(st.characters()), JSON),
    st.booleans(),
)
def test_any_object_with_an_update_id_is_read(
    update_id: int, payload: dict[str, Any], ascii_only: bool
) -> None:
    """Every JSON object with an update_id is accepted, and its facts can be stored."""
    text = json.dumps({**payload, "update_id": update_id}, ensure_ascii=ascii_only)
    found = read(parse(text.encode(errors="surrogatepass")))
    assert found.update_id == update_id
    for value in (getattr(found, name) for name in found.__slots__):
        if isinstance(value, str):
            assert value.encode().decode() == value
    assert len(found.lane) < 120
    assert found.lane.isascii()
    assert " " not in found.lane


@given(st.binary())
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    """Nothing but InvalidUpdate comes out of bytes that are no update."""
    try:
        found = read(parse(body))
    except InvalidUpdate:
        return
    assert 0 <= found.update_id < 2**63


@given(st.text(st.characters(exclude_categories=["Cs"])), st.booleans())
def test_both_parsers_read_the_same(text: str, deep: bool) -> None:
    """The tolerant path gives what the fast one gives."""
    fields = {"from": USER, "chat": CHAT, "text": text, "caption": "x"}
    plain = json.dumps({"update_id": 1, "message": fields}).encode()
    odd = plain[:-2] + b',"x":' + (b"[" * 300 + b"]" * 300 if deep else b'"\xff"') + b"}}"
    assert read(parse(odd)) == read(parse(plain))
