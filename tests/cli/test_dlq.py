"""`twr dlq` as a process, on a real Valkey."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from typing import Any

import pytest
from redis import Redis

from cli.commands import KEYS, ROUTES, Death, Ended, Place, bury, bury_many, end
from servers import Server
from tools import tool
from twr.cli.letters import Table
from twr.core.jobs import DeadLetter

MIDNIGHT = 1_788_048_000_000  # 2026-08-30T00:00:00Z
REASONS = (
    "the reasons are attempts, permanent, expired, poison, overflow, and not expird;"
    " did you mean expired?"
)
NO_SOCKET = (
    "the store is not available: Error 2 connecting to {at}/nothing. No such file or directory."
)
NO_VARIABLE = (
    "{at}/twr.yaml:1: store.url_env: the variable STORE_URL is not set;"
    " --env-file FILE reads the unit's environment file"
)
NOT_RUNNING = (
    "the embedded store is not running (nothing listens on {at}/state/store.sock);"
    " it runs while `twr run` does"
)


def ids(redis: Redis) -> list[str]:
    """The dead letters that are left."""
    found: Any = redis.zrange(KEYS.dead_letters, 0, -1)
    return list(found)


def jobs(redis: Redis, route: str) -> list[str]:
    """What waits for a route, the next first."""
    found: Any = redis.lrange(KEYS.route(route, "ready"), 0, -1)
    return list(found)


def on_terminal(place: Place, *arguments: str, typed: str = "") -> Ended:
    """Run a command on a terminal, on which `typed` was typed ahead; both outputs in one."""
    outer, inner = pty.openpty()
    os.write(outer, typed.encode())
    process = subprocess.Popen(
        [sys.executable, "-m", "twr", *arguments],
        stdin=inner,
        stdout=inner,
        stderr=inner,
        env=place.environ({"TERM": "xterm"}),
    )
    os.close(inner)
    out = b""
    try:
        while part := os.read(outer, 65536):
            out += part
    except OSError:  # how Linux tells the end of a terminal
        pass
    os.close(outer)
    return Ended(process.wait(30), out.decode().replace("\r\n", "\n"), "")


def test_list_json_has_one_object_for_each(place: Place, redis: Redis) -> None:
    """Each line of `list --json` tells all of one dead letter, the oldest first."""
    bury(
        redis,
        [
            Death("8/billing", "attempts", 10, "", "connection refused", died_ms=MIDNIGHT + 61_000),
            Death("7~1/support", died_ms=MIDNIGHT + 60_001),
        ],
    )
    ended = place.twr("dlq", "list", "--json")
    assert (ended.code, ended.err) == (0, "")
    assert ended.objects == [
        {
            "id": "7~1/support",
            "update_id": 7,
            "route": "support",
            "reason": "permanent",
            "attempts": 1,
            "last_status": 410,
            "last_error": "410 Gone",
            "accepted_at": "2026-08-30T00:00:00.001Z",
            "died_at": "2026-08-30T00:01:00.001Z",
        },
        {
            "id": "8/billing",
            "update_id": 8,
            "route": "billing",
            "reason": "attempts",
            "attempts": 10,
            "last_status": None,
            "last_error": "connection refused",
            "accepted_at": "2026-08-30T00:00:01.000Z",
            "died_at": "2026-08-30T00:01:01.000Z",
        },
    ]


def test_list_is_a_table_of_80_columns(place: Place, redis: Redis) -> None:
    """For people there is a table whose lines end before column 81, with text kept on its line."""
    now = int(time.time() * 1000)
    bury(
        redis,
        [
            Death("727334707/support", error="410 Gone", died_ms=now - 7_230_000),
            Death("727334708/support", "attempts", 10, "", "x\ny " * 40, died_ms=now - 125_000),
        ],
    )
    ended = place.twr("dlq", "list")
    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert lines[:2] == [
        "ID                 REASON     ATTEMPTS  STATUS   AGE  ERROR",
        "727334707/support  permanent         1     410    2h  410 Gone",
    ]
    assert lines[2].startswith(
        "727334708/support  attempts         10       -    2m  x\\x0ay x\\x0a"
    )
    assert [len(line) for line in lines[2:]] == [80]


def test_an_id_is_never_cut() -> None:
    """An id that alone fills the line stands there whole, the error gives way."""
    letter = DeadLetter(f"1/{'r' * 64}", 1, "r" * 64, "permanent", 1, 410, "410 Gone", 0, 0)
    _, line = Table(1000, 80).lines([letter])
    assert line == f"1/{'r' * 64}  permanent         1     410    1s"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], ["1/support", "2/billing", "3/support", "4/gone"]),
        (["--all"], ["1/support", "2/billing", "3/support", "4/gone"]),
        (["--route", "support"], ["1/support", "3/support"]),
        (["--route", "gone", "--route", "billing"], ["2/billing", "4/gone"]),
        (["--reason", "expired"], ["3/support", "4/gone"]),
        (["--route", "support", "--reason", "expired"], ["3/support"]),
        (["--reason", "poison"], []),
        (["--limit", "2"], ["1/support", "2/billing"]),
        (["--route", "support", "--limit", "1"], ["1/support"]),
    ],
)
def test_list_chooses(place: Place, redis: Redis, options: list[str], expected: list[str]) -> None:
    """Routes, reasons and a limit choose, the oldest first; a route may be gone from the file."""
    bury(
        redis,
        [
            Death("1/support", died_ms=1),
            Death("2/billing", died_ms=2),
            Death("3/support", "expired", died_ms=3),
            Death("4/gone", "expired", died_ms=4),
        ],
    )
    ended = place.twr("dlq", "list", "--json", *options)
    assert (ended.code, [it["id"] for it in ended.objects]) == (0, expected)


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (
            ["list", "--route", "suport"],
            1,
            "neither the configuration nor the store has a route suport; did you mean support?",
        ),
        (
            ["list", "--reason", "expird"],
            1,
            REASONS,
        ),
        (["show", "1/suport"], 1, "no dead letter 1/suport; did you mean 1/support?"),
        (["show", "9/support"], 1, "no dead letter 9/support"),
        (["show", "support"], 1, "support is no id of a dead letter, such as 4242/support"),
        (["show", "1/support", "--json", "--body"], 2, "--body and --json exclude each other"),
        (["replay", "1/suport"], 1, "no dead letter 1/suport; did you mean 1/support?"),
        (
            ["replay", "1/support", "--to", "biling"],
            1,
            "{file} has no route biling; did you mean billing?",
        ),
        (
            ["replay", "--route", "supports"],
            1,
            "--to ROUTE is needed: {file} has no route supports; did you mean support?",
        ),
        (
            ["replay"],
            2,
            "which dead letters? give their ids, --route, --reason or --all",
        ),
        (
            ["drop", "1/support", "--all"],
            2,
            "give ids, or choose with --route, --reason, --all and --limit; not both",
        ),
        (["drop", "9/support"], 1, "no dead letter 9/support"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(
    place: Place, redis: Redis, arguments: list[str], code: int, line: str
) -> None:
    """A wrong name is told with the nearest right one, and nothing is touched."""
    bury(redis, [Death("1/support"), Death("2/supports")])
    ended = place.twr("dlq", *arguments)
    assert (ended.code, ended.out, ended.err) == (code, "", line.format(file=place.file) + "\n")
    assert ids(redis) == ["1/support", "2/supports"]


def test_show_prints_the_update_byte_for_byte(place: Place, redis: Redis, server: Server) -> None:
    """`--body` gives the very bytes that Telegram sent."""
    body = b'{ "update_id":1,\n"text":"\\u001b \xf0\x9f\x8d\x8b \xff" }'
    bury(redis, [Death("1/support", body=body)])
    shown = subprocess.run(
        [sys.executable, "-m", "twr", "dlq", "show", "1/support", "--body"],
        capture_output=True,
        env=place.environ(),
        check=True,
    )
    assert (shown.stdout, shown.stderr) == (body, b"")


def test_show_json_has_the_answer_and_the_update(place: Place, redis: Redis) -> None:
    """`--json` adds the type, what the target answered, and the update as an object."""
    body = '{"update_id": 1, "message": {"text": "\\ud800 й \\u001b"}}'.encode()
    bury(redis, [Death("1/support", answer='{"no": 1}', body=body, died_ms=MIDNIGHT)])
    (shown,) = place.twr("dlq", "show", "1/support", "--json").objects
    assert shown == {
        "id": "1/support",
        "update_id": 1,
        "route": "support",
        "reason": "permanent",
        "attempts": 1,
        "last_status": 410,
        "last_error": "410 Gone",
        "accepted_at": "2026-08-29T23:59:00.000Z",
        "died_at": "2026-08-30T00:00:00.000Z",
        "type": "message",
        "answer": '{"no": 1}',
        "body": {"update_id": 1, "message": {"text": "\ud800 й \x1b"}},
    }


def test_show_is_for_reading(place: Place, redis: Redis) -> None:
    """Without options the story stands first and the update below it, no control character raw."""
    body = '{"update_id":1,"message":{"text":"привет \\u009b31m"}}'.encode()
    died = int(time.time() * 1000) - 7_230_000
    bury(redis, [Death("1/support", answer="a\nb", body=body, died_ms=died)])
    ended = place.twr("dlq", "show", "1/support")
    told = ended.out.splitlines()
    assert (ended.code, ended.err) == (0, "")
    assert told[:7] == [
        "id        1/support",
        "type      message",
        "reason    permanent",
        "attempts  1",
        "status    410",
        "error     410 Gone",
        "answer    a\\x0ab",
    ]
    assert told[8].startswith("died      ")
    assert told[8].endswith("Z (2h ago)")
    assert told[9:] == [
        "",
        "{",
        '  "update_id": 1,',
        '  "message": {',
        '    "text": "привет \\x9b31m"',
        "  }",
        "}",
    ]


def test_replay_starts_anew_at_the_end_of_the_lane(place: Place, redis: Redis) -> None:
    """A replayed job keeps its update id, has no attempts and no expiry, and stands last."""
    bury(redis, [Death("2/support", attempts=10, died_ms=2), Death("1/support", died_ms=1)])
    ended = place.twr("dlq", "replay", "--route", "support")
    assert (ended.code, ended.out, ended.err) == (0, "replayed 2 dead letters\n", "")
    assert ids(redis) == []
    assert redis.lrange(KEYS.route("support", "lane:7"), 0, -1) == ["1/support", "2/support"]
    assert redis.hmget(KEYS.job("2/support"), "attempts", "expires_ms", "state") == [
        "0",
        "0",
        "waiting",
    ]


def test_replay_to_another_route(place: Place, redis: Redis) -> None:
    """After a rename the dead letters of the old name are delivered under the new one."""
    bury(redis, [Death("1/old", died_ms=1), Death("2/old", died_ms=2), Death("3/support")])
    ended = place.twr("dlq", "replay", "--route", "old", "--to", "billing")
    assert (ended.code, ended.out, ended.err) == (0, "replayed 2 dead letters\n", "")
    assert (ids(redis), jobs(redis, "billing")) == (["3/support"], ["1/billing", "2/billing"])


def test_replay_tells_at_the_end_what_it_could_not(place: Place, redis: Redis) -> None:
    """What the other route already has, what has no route and what is not there stays, exit 1."""
    bury(redis, [Death("1/support"), Death("1/billing"), Death("2/support")])
    ended = place.twr("dlq", "replay", "1/support", "2/support", "9/support", "--to", "billing")
    assert (ended.code, ended.out) == (1, "replayed 1 dead letter\n")
    assert ended.err.splitlines() == [
        "1/support: route billing already has this update",
        "9/support: no such dead letter",
        "not replayed: 2 dead letters",
    ]
    assert (sorted(ids(redis)), jobs(redis, "billing")) == (
        ["1/billing", "1/support"],
        ["2/billing"],
    )


def test_replay_all_leaves_those_without_a_route(place: Place, redis: Redis) -> None:
    """Dead letters of a route that the file no longer has wait for --to."""
    bury(redis, [Death("1/old", died_ms=1), Death("2/support", died_ms=2)])
    ended = place.twr("dlq", "replay", "--all", "--json")
    assert (ended.code, ended.err) == (1, "not replayed: 1 dead letter\n")
    assert ended.objects == [
        {"id": "1/old", "result": "no_route", "to": "old"},
        {"id": "2/support", "result": "replayed", "to": "support"},
    ]
    alone = place.twr("dlq", "replay", "1/old")
    line = f"1/old: {place.file} has no route old; --to ROUTE replays it to another\n"
    assert (alone.code, alone.out, alone.err) == (1, "", line)


def test_many_failures_are_told_by_number(place: Place, redis: Redis) -> None:
    """Of many failures the first twenty are told one by one."""
    bury(redis, [Death(f"{n}/old", died_ms=n) for n in range(1, 31)])
    ended = place.twr("dlq", "replay", "--all")
    assert (ended.code, ended.out) == (1, "")
    told = ended.err.splitlines()
    assert told[0].startswith("1/old: ")
    assert told[19].startswith("20/old: ")
    assert told[20:] == ["and 10 more (--json tells of each)", "not replayed: 30 dead letters"]


def test_drop_deletes_for_good(place: Place, redis: Redis) -> None:
    """What is dropped leaves no body, unless the dead letter of another route needs it."""
    bury(redis, [Death("1/support"), Death("1/billing"), Death("2/support")])
    ended = place.twr("dlq", "drop", "1/support", "2/support", "1/support")
    assert (ended.code, ended.out, ended.err) == (0, "dropped 2 dead letters\n", "")
    assert ids(redis) == ["1/billing"]
    assert redis.exists(KEYS.update("1"), KEYS.update("2")) == 1
    again = place.twr("dlq", "drop", "1/support", "1/billing", "--json")
    assert (again.code, again.err) == (1, "not dropped: 1 dead letter\n")
    assert again.objects == [
        {"id": "1/support", "result": "missing"},
        {"id": "1/billing", "result": "dropped"},
    ]


@pytest.mark.parametrize(
    ("options", "left"),
    [
        (["--all"], []),
        (["--all", "--yes"], []),
        (["--all", "--yes", "--limit", "1"], ["2/billing", "3/support"]),
        (["--route", "support"], ["2/billing"]),
        (["--reason", "expired", "--limit", "5"], ["1/support", "2/billing"]),
    ],
)
def test_drop_chooses(place: Place, redis: Redis, options: list[str], left: list[str]) -> None:
    """Routes, reasons and a limit choose what is dropped, the oldest first."""
    bury(
        redis,
        [
            Death("1/support", died_ms=1),
            Death("2/billing", died_ms=2),
            Death("3/support", "expired", died_ms=3),
        ],
    )
    assert (place.twr("dlq", "drop", *options).code, ids(redis)) == (0, left)


@pytest.mark.parametrize(
    ("typed", "code", "last", "left"),
    [
        ("y\n", 0, "dropped 2 dead letters", []),
        ("n\n", 1, "nothing was dropped", ["1/support", "2/support"]),
        ("\n", 1, "nothing was dropped", ["1/support", "2/support"]),
    ],
)
def test_drop_all_asks_on_a_terminal(
    place: Place, redis: Redis, typed: str, code: int, last: str, left: list[str]
) -> None:
    """`drop --all` drops only after a yes."""
    bury(redis, [Death("1/support", died_ms=1), Death("2/support", died_ms=2)])
    ended = on_terminal(place, "dlq", "drop", "--all", typed=typed)
    assert "Delete 2 dead letters for good? [y/N]" in ended.out
    assert (ended.code, ids(redis)) == (code, left)
    assert ended.out.endswith(f"{last}\n")


def test_a_terminal_gets_a_screenful(place: Place, redis: Redis) -> None:
    """On a terminal 100 are listed, with the number of all; --all lists them."""
    bury(redis, [Death(f"{n}/support", died_ms=n) for n in range(1, 131)])
    lines = on_terminal(place, "dlq", "list").out.splitlines()
    assert (len(lines), lines[-1]) == (102, "100 of 130 dead letters; --all lists the rest")
    assert len(on_terminal(place, "dlq", "list", "--all").out.splitlines()) == 131


def test_a_long_replay_shows_a_bar_on_a_terminal(place: Place, redis: Redis) -> None:
    """A thousand and more are replayed with a bar, which only a terminal gets to see."""
    bury(redis, [Death(f"{n}/support", died_ms=n) for n in range(1, 1001)])
    ended = on_terminal(place, "dlq", "replay", "--route", "support")
    assert (ended.code, ids(redis)) == (0, [])
    assert "1000/1000" in ended.out
    assert "replayed 1000 dead letters" in ended.out


def test_nothing_dead_is_no_failure(place: Place, redis: Redis) -> None:
    """An empty store lists nothing, and there is nothing to replay or to drop."""
    listed = place.twr("dlq", "list")
    assert (listed.code, listed.out, listed.err) == (0, "", "no dead letters\n")
    assert place.twr("dlq", "list", "--json").out == ""
    assert place.twr("dlq", "replay", "--all").out == "replayed 0 dead letters\n"
    assert place.twr("dlq", "drop", "--all", "--yes").out == "dropped 0 dead letters\n"


@pytest.mark.slow
def test_a_hundred_thousand_block_nothing(place: Place, redis: Redis) -> None:
    """100,000 are listed, replayed and dropped in bounded time and memory, and no command keeps
    the store from its other work for 50 ms."""
    many = 100_000
    bury_many(redis, many, MIDNIGHT)
    redis.config_set("slowlog-log-slower-than", 50_000)
    redis.slowlog_reset()
    listed = place.measured("dlq", "list", "--json")
    assert (listed.code, listed.err) == (0, "")
    numbers = sorted(int(json.loads(line)["update_id"]) for line in listed.out.splitlines())
    assert numbers == list(range(many))
    assert place.twr("dlq", "replay", "--all", "--limit", "5000").out == (
        "replayed 5000 dead letters\n"
    )
    assert place.twr("dlq", "drop", "--all", "--yes", "--limit", "5000").out == (
        "dropped 5000 dead letters\n"
    )
    assert redis.zcard(KEYS.dead_letters) == many - 10_000
    # The log tells wall time: on a busy machine a command or two were held up by others.
    assert len(redis.slowlog_get()) <= 2
    assert listed.peak < 150 << 20
    assert listed.cpu < 30


def half_done(place: Place, redis: Redis) -> "subprocess.Popen[str]":
    """A replay of 20,000 that has begun."""
    bury_many(redis, 20_000, MIDNIGHT)
    process = place.start("dlq", "replay", "--all")
    deadline = time.monotonic() + 30
    while redis.zcard(KEYS.dead_letters) > 19_900:
        assert time.monotonic() < deadline
    return process


def test_ctrl_c_stops_a_replay(place: Place, redis: Redis) -> None:
    """An interrupted replay stops at once and tells how far it came."""
    ended = end(half_done(place, redis), signal.SIGINT)
    assert (ended.code, ended.out) == (130, "")
    told = re.fullmatch(r"replayed (\d+) of 20000 dead letters\n", ended.err)
    assert told is not None
    assert int(told[1]) in (20_000 - redis.zcard(KEYS.dead_letters) - n for n in (0, 1))


def test_a_store_that_goes_away_stops_a_replay(place: Place, redis: Redis, server: Server) -> None:
    """When the store dies the exit code is 69, and one line tells why and how far it came."""
    process = half_done(place, redis)
    server.kill()
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (69, "")
    assert re.fullmatch(
        r"the store is not available: .*; \d+ of 20000 dead letters replayed before\n", err
    )


def test_a_reader_that_has_enough(place: Place, redis: Redis) -> None:
    """`twr dlq list | head` ends without a complaint."""
    bury_many(redis, 5000, MIDNIGHT)
    process = place.start("dlq", "list")
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline().startswith("ID ")
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(30) == 1


@pytest.mark.parametrize(
    ("config", "code", "line"),
    [
        (
            "store: {{url: 'unix://{at}/nothing'}}",
            69,
            NO_SOCKET,
        ),
        (
            "store: {{url_env: STORE_URL}}",
            78,
            NO_VARIABLE,
        ),
        (
            "store: {{dir: '{at}/state'}}",
            69,
            NOT_RUNNING,
        ),
    ],
)
def test_a_store_out_of_reach(place: Place, config: str, code: int, line: str) -> None:
    """A store that can't be reached is told in one line that says what to do."""
    at = place.directory
    place.write(config.format(at=at) + ROUTES)
    ended = place.twr("dlq", "list")
    assert (ended.code, ended.out, ended.err) == (code, "", line.format(at=at) + "\n")


def test_the_environment_file_has_the_url(place: Place, server: Server, redis: Redis) -> None:
    """With `--env-file` the store is found, and no other secret is asked for."""
    bury(redis, [Death("1/support")])
    place.write(place.file.read_text().replace(f"url: 'unix://{server.socket}'", "url_env: STORE"))
    env = place.directory / "twr.env"
    env.write_text(f"STORE=unix://{server.socket}\n")
    ended = place.twr("dlq", "list", "--json", "--env-file", str(env))
    assert [it["id"] for it in ended.objects] == ["1/support"]


def test_a_store_of_another_user(place: Place, redis: Redis, server: Server) -> None:
    """An embedded store that is not ours to read is told with who may."""
    directory = server.socket.parent
    place.write(f"store: {{dir: '{directory}'}}\n{ROUTES}")
    server.socket.rename(directory / "store.sock").chmod(0)
    unprivileged = [tool("setpriv"), "--bounding-set=-dac_override,-dac_read_search"]
    command = [*(unprivileged if os.getuid() == 0 else []), sys.executable, "-m", "twr"]
    shown = subprocess.run(
        [*command, "dlq", "list"], capture_output=True, text=True, env=place.environ(), check=False
    )
    assert (shown.returncode, shown.stdout) == (69, "")
    assert shown.stderr == (
        f"{directory}/store.sock: permission denied; run this as root, or as the user of"
        " twr (sudo -u twr twr …)\n"
    )


def test_redis_cli_reads_a_dead_letter_without_twr(
    place: Place, redis: Redis, server: Server
) -> None:
    """Two lines of redis-cli are enough to find a dead letter and its update."""
    bury(redis, [Death("4242/support", body=b'{"update_id":4242}')])
    cli = [tool("redis-cli"), "-s", str(server.socket)]
    found = subprocess.run(
        [*cli, "ZRANGE", "{twr:main}:dead-letter", "0", "9"], capture_output=True, check=True
    )
    body = subprocess.run(
        [*cli, "HGET", "{twr:main}:update:4242", "body"], capture_output=True, check=True
    )
    assert (found.stdout, body.stdout) == (b"4242/support\n", b'{"update_id":4242}\n')
