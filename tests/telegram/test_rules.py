"""What the double decides about updates and webhooks, line by line of the Bot API's rules."""

import json

import pytest

from twr.double import sample
from twr.double.rules import (
    DEFAULT_TYPES,
    TYPES,
    Patience,
    QueueKey,
    RefusalError,
    after_failure,
    allowed_updates,
    executable,
    lifetime,
    permits,
    queue_key,
    webhook,
)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("message", ("chat", -5)),
        ("edited_message", ("chat", -5)),
        ("channel_post", ("chat", -5)),
        ("edited_channel_post", ("chat", -5)),
        ("business_message", ("business chat", -5)),
        ("edited_business_message", ("business chat", -5)),
        ("deleted_business_messages", ("business chat", -5)),
        ("business_connection", ("business connection", 8)),
        ("guest_message", ("guest chat", -5)),
        ("stopped_message_generation", ("stopped generation", -5)),
        ("inline_query", ("inline query", 8)),
        ("chosen_inline_result", ("chosen result", 8)),
        ("callback_query", ("callback", 8)),
        ("shipping_query", ("checkout", 8)),
        ("pre_checkout_query", ("checkout", 8)),
        ("purchased_paid_media", ("paid media", 8)),
        ("subscription", ("subscription", 8)),
        ("managed_bot", ("managed bot", 8)),
        ("my_chat_member", ("my member", -5)),
        ("chat_member", ("member", 8)),
        ("chat_join_request", ("member", 8)),
        ("message_reaction", ("reaction", -5)),
        ("message_reaction_count", ("reaction count", -5)),
        ("chat_boost", ("boost", -5)),
        ("removed_chat_boost", ("boost", -5)),
        ("poll", ("poll", "p1")),
        ("poll_answer", ("poll", "p1")),
        ("from_the_future", ("alone", 4242)),
    ],
)
def test_queue_of_each_type(kind: str, expected: QueueKey) -> None:
    """Each type of update waits in the serial queue that Telegram puts it in."""
    assert queue_key(sample(kind, 4242, user_id=8, chat_id=-5, data="p1")) == expected


def test_every_type_has_a_queue_and_a_sample() -> None:
    """There are 27 types, and each has a sample that names its queue."""
    assert len(TYPES) == 27
    assert [kind for kind in TYPES if queue_key(sample(kind, 1))[0] == "alone"] == []


@pytest.mark.parametrize(
    "update", [{"update_id": 7}, {"update_id": 7, "message": None}, {"update_id": 7, "poll": [1]}]
)
def test_update_without_what_its_queue_needs_stands_alone(update: dict[str, object]) -> None:
    """An update that names no chat, user or poll waits for no other."""
    assert queue_key(update) == ("alone", 7)


@pytest.mark.parametrize(
    ("random", "expected"),
    [
        (0.0, [0, 2, 4, 8, 16, 32, 60, 60, 60]),
        (0.05, [0, 2, 4, 8, 16, 32, 63, 63, 63]),
        (0.999, [0, 2, 4, 8, 16, 32, 64, 120, 120]),
    ],
)
def test_delays_grow_as_telegrams(random: float, expected: list[float]) -> None:
    """Failures wait 0, 2, 4, 8, 16, 32, 60 to 64, then 60 to 120 seconds."""
    patience, delays = Patience(), []
    for _ in expected:
        pause, patience = after_failure(patience, 0, lambda: random)
        delays.append(pause)
    assert delays == expected


@pytest.mark.parametrize(("asked", "expected"), [(1, 1), (7, 7), (3600, 3600), (86400, 3600)])
def test_retry_after_is_taken_up_to_an_hour(asked: int, expected: float) -> None:
    """Retry-After replaces the delay, capped at 3600 s, and leaves the row of delays as it was."""
    pause, patience = after_failure(Patience(3, 4), asked, lambda: 0.0)
    assert pause == expected
    assert patience == Patience(4, 4)


@pytest.mark.parametrize(
    ("kind", "seconds"),
    [
        ("inline_query", 30),
        ("callback_query", 150),
        ("shipping_query", 150),
        ("pre_checkout_query", 150),
        ("chosen_inline_result", 600),
        ("message", 86400),
        ("from_the_future", 86400),
    ],
)
def test_lifetimes(kind: str, seconds: float) -> None:
    """Updates that are of use only for a while are dropped after it, the others after a day."""
    assert lifetime(kind) == seconds


@pytest.mark.parametrize(
    ("value", "before", "expected"),
    [
        (None, frozenset({"poll"}), frozenset({"poll"})),
        ([], frozenset({"poll"}), None),
        ("[]", frozenset({"poll"}), None),
        (["message", "chat_member"], None, frozenset({"message", "chat_member"})),
        ('["Message"]', None, frozenset({"message"})),
        (["message", "from_the_future"], None, frozenset({"message"})),
        (["from_the_future"], frozenset({"poll"}), None),
        (sorted(DEFAULT_TYPES), frozenset({"poll"}), None),
        ("no json", frozenset({"poll"}), frozenset({"poll"})),
        ([1], frozenset({"poll"}), frozenset({"poll"})),
    ],
)
def test_allowed_updates(
    value: object, before: frozenset[str] | None, expected: frozenset[str] | None
) -> None:
    """Absent keeps what was, [] and the default are the default, unknown names are ignored."""
    assert allowed_updates(value, before) == expected


def test_default_leaves_out_three_types() -> None:
    """Without a list everything is sent but members, reactions and reaction counts."""
    left_out = [kind for kind in TYPES if not permits(None, kind)]
    assert sorted(left_out) == ["chat_member", "message_reaction", "message_reaction_count"]
    assert permits(frozenset({"chat_member"}), "chat_member")
    assert not permits(frozenset({"chat_member"}), "message")
    assert permits(None, "from_the_future")


BAD = "Bad Request: bad webhook: "


@pytest.mark.parametrize(
    ("params", "description"),
    [
        ({"url": "http://x.example/"}, BAD + "An HTTPS URL must be provided for webhook"),
        (
            {"url": "https://x.example:8080/"},
            BAD + "Webhook can be set up only on ports 80, 88, 443 or 8443",
        ),
        ({"url": "https://[2001:db8::1]/"}, BAD + "IPv6-only addresses are not allowed"),
        ({"url": "https://"}, "Bad Request: invalid webhook URL specified"),
        ({"url": "https://x.example:port/"}, "Bad Request: invalid webhook URL specified"),
        ({"url": "ftp://x.example/"}, "Bad Request: invalid webhook URL specified"),
        (
            {"url": "https://x.example/", "secret_token": "ä"},
            "Bad Request: secret token contains unallowed characters",
        ),
        (
            {"url": "https://x.example/", "secret_token": "a" * 257},
            "Bad Request: secret token is too long",
        ),
    ],
)
def test_webhooks_that_are_refused(params: dict[str, str], description: str) -> None:
    """Scheme, port, address and secret are checked as Telegram checks them."""
    with pytest.raises(RefusalError) as caught:
        webhook(params, local=False)
    assert (caught.value.code, caught.value.description) == (400, description)


@pytest.mark.parametrize("port", [443, 80, 88, 8443])
def test_ports_that_are_taken(port: int) -> None:
    """Telegram sends to four ports."""
    assert webhook({"url": f"https://x.example:{port}/"}, local=False).max_connections == 40


@pytest.mark.parametrize("url", ["http://x.example:8080/", "https://x.example:9/"])
def test_local_server_takes_any_url(url: str) -> None:
    """In local mode plain http and any port are allowed."""
    assert webhook({"url": url}, local=True).url == url


@pytest.mark.parametrize(("given", "expected"), [(None, 40), (1, 1), ("7", 7), (0, 1), (500, 100)])
def test_max_connections_stays_in_range(given: object, expected: int) -> None:
    """1 to 100, 40 where it is left out."""
    params = {"url": "https://x.example/", "max_connections": given}
    assert webhook(params, local=False).max_connections == expected


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("sendMessage", True),
        ("answerCallbackQuery", True),
        ("setWebhook", False),
        ("deleteWebhook", False),
        ("getMe", False),
        ("logOut", False),
        ("close", False),
        ("", False),
        (None, False),
    ],
)
def test_which_answers_are_executed(method: str | None, expected: bool) -> None:
    """A method in a webhook's answer is carried out, but for the ones about the session itself."""
    assert executable({"method": method}) is expected


def test_samples_are_json() -> None:
    """Every sample is plain JSON, with its id and one more key."""
    for kind in TYPES:
        update = json.loads(json.dumps(sample(kind, 9)))
        assert list(update) == ["update_id", kind]


def test_sample_marks_a_command() -> None:
    """A text that begins with a command carries the entity for it."""
    message = sample("message", 1, text="/start@double_bot ref")["message"]
    assert message["entities"] == [{"offset": 0, "length": 17, "type": "bot_command"}]
