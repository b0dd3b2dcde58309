"""`twr routes list` and `twr routes test`."""

import json
from pathlib import Path
from typing import Any

import pytest

MESSAGE = {
    "update_id": 4242,
    "message": {
        "message_id": 1,
        "date": 1,
        "chat": {"id": 1, "type": "private"},
        "from": {"id": 1, "is_bot": False, "first_name": "x"},
        "text": "/admin now",
        "entities": [{"type": "bot_command", "offset": 0, "length": 6}],
    },
}
POLL = {"update_id": 4243, "poll": {"id": "9"}}


@pytest.fixture
def update(tmp_path: Path, config: Path) -> Path:
    """A file with one update, over several lines."""
    file = tmp_path / "update.json"
    file.write_text(json.dumps(MESSAGE, indent=2))
    return file


def test_list(twr: Any, config: Path) -> None:
    """One line for each route: its target without a password, and what it takes."""
    ended = twr("routes", "list")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == (
        "support  http://support:8080/updates  update_types: message\n"
        "admin    http://admin:8080/updates  user_ids: 1 and commands: admin;"
        " except chat_types: channel\n"
        "rest     http://rest:8080/updates  everything; fallback\n"
    )


def test_list_as_json(twr: Any, config: Path) -> None:
    """--json is an array of the routes."""
    found = json.loads(twr("routes", "list", "--json", "-c", config).out)
    assert found[1] == {
        "name": "admin",
        "target_url": "http://admin:8080/updates",
        "match": {"user_ids": [1], "commands": ["admin"]},
        "except": {"chat_types": ["channel"]},
        "fallback": False,
        "order": "chat",
    }
    assert [route["name"] for route in found] == ["support", "admin", "rest"]


def test_test_explains_every_decision(twr: Any, update: Path) -> None:
    """The facts of the update, then one line for each route with the reason."""
    ended = twr("routes", "test", update)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == (
        "update 4242: type=message user_id=1 chat_id=1 command=admin lane=1\n"
        "  takes  support  update_types: message\n"
        "  takes  admin    user_ids: 1; commands: /admin\n"
        "  skips  rest     fallback: taken by support, admin\n"
    )


def test_test_as_json(twr: Any, update: Path) -> None:
    """--json is one object for each update, on a line of its own."""
    ended = twr("routes", "test", "-", "--json", stdin=update.read_bytes())
    assert ended.out.count("\n") == 1
    assert json.loads(ended.out) == {
        "update_id": 4242,
        "facts": {
            "type": "message",
            "user_id": 1,
            "chat_id": 1,
            "topic_id": None,
            "command": "admin",
            "command_target": None,
            "start_payload": None,
            "callback_data": None,
            "business_connection_id": None,
            "lane": "1",
            "expires_after": 86400,
        },
        "routes": [
            {"name": "support", "takes": True, "why": "update_types: message"},
            {"name": "admin", "takes": True, "why": "user_ids: 1; commands: /admin"},
            {"name": "rest", "takes": False, "why": "fallback: taken by support, admin"},
        ],
    }


def test_one_update_on_each_line(twr: Any, config: Path) -> None:
    """A file of several updates gives one object for each; empty lines do not count."""
    lines = f"{json.dumps(MESSAGE)}\n\n{json.dumps(POLL)}\r\n".encode()
    ended = twr("routes", "test", "-", "--json", stdin=lines)
    found = [json.loads(line) for line in ended.out.splitlines()]
    taken = [[r["name"] for r in update["routes"] if r["takes"]] for update in found]
    assert [update["update_id"] for update in found] == [4242, 4243]
    assert taken == [["support", "admin"], ["rest"]]


EXPECTED = [
    (("--expect", "support", "--expect", "admin"), 0, ""),
    (("--expect", "admin", "support"), 0, ""),
    (("--expect", "admin,support"), 0, ""),
    (("--expect", "support"), 1, "update 4242: expected support, goes to admin, support\n"),
    (("--expect", ""), 1, "update 4242: expected no route, goes to admin, support\n"),
    (("--expect", "suport"), 1, "twr.yaml has no route suport; did you mean support?\n"),
    (("support",), 2, "support is one argument too many; names of routes go to --expect\n"),
]


@pytest.mark.parametrize(("arguments", "code", "err"), EXPECTED)
def test_expectations(
    twr: Any, update: Path, arguments: tuple[str, ...], code: int, err: str
) -> None:
    """--expect ends with 1 unless exactly the named routes take every update."""
    ended = twr("routes", "test", update, *arguments)
    assert (ended.code, ended.err) == (code, err)


def test_an_update_that_no_route_takes(twr: Any, config: Path) -> None:
    """`--expect ''` holds where nothing takes the update."""
    config.write_text(config.read_text().partition("  - name: rest")[0])
    ended = twr("routes", "test", "-", "--expect", "", stdin=json.dumps(POLL).encode())
    assert (ended.code, ended.err) == (0, "")


def test_the_username_of_the_file_counts(twr: Any, config: Path) -> None:
    """A command addressed to another bot is not ours when the file names our own."""
    config.write_text("bot: {username: our_bot}\n" + config.read_text())
    text = json.dumps(MESSAGE).replace("/admin now", "/admin@other_bot")
    update = text.replace('"length": 6', '"length": 16').encode()
    assert twr("routes", "test", "-", "--expect", "support", stdin=update).code == 0


NO_UPDATE = [
    (b"", "-: no update: "),
    (b"[1]", "-: no update: "),
    (b'{"update_id": 1.5}\n', "-: no update: "),
    (b'{"update_id": 1}\nnonsense\n', "-:2: no update: "),
]


@pytest.mark.parametrize(("stdin", "beginning"), NO_UPDATE)
def test_what_is_no_update(twr: Any, config: Path, stdin: bytes, beginning: str) -> None:
    """What cannot be an update is one line with its place, and 1."""
    ended = twr("routes", "test", "-", stdin=stdin)
    assert (ended.code, ended.err.count("\n")) == (1, 1)
    assert ended.err.startswith(beginning)


def test_a_file_that_is_not_there(twr: Any, config: Path) -> None:
    """A file that cannot be read is wrong usage."""
    ended = twr("routes", "test", "none.json")
    assert (ended.code, ended.err) == (
        2,
        "none.json: cannot be read: No such file or directory\n",
    )
