"""Every rule of the file: what is refused, in which words, at which line."""

from pathlib import Path

import pytest

from twr.config import load
from twr.errors import ConfigError, Problem

ROUTES = """\
routes:
  - name: shop
    target_url: http://shop:8080/updates
    signing_secret_env: SHOP
"""


def problems(tmp_path: Path, text: str) -> list[str]:
    """What is wrong with a file of that text, as `line: message`."""
    file = tmp_path / "twr.yaml"
    file.write_text(text)
    try:
        load(file, {})
    except ConfigError as error:
        return [_placed(problem, file) for problem in error.problems]
    return []


def _placed(problem: Problem, file: Path) -> str:
    assert problem.file == str(file)
    return f"{problem.line}: {problem.message}"


TOP = [
    ("lisen: 127.0.0.1:1", "lisen: no such key; did you mean listen?"),
    ("timeout: 10s", "timeout: no such key here; it belongs under delivery"),
    (
        "zzz: 1",
        (
            "zzz: no such key; known here are bot, listen, path, max_body, trusted_networks,"
            " trusted_proxies, admin, socket_mode, socket_group, store, instance, delivery,"
            " shutdown_grace, dead_letters, probe, alerts, routes"
        ),
    ),
    ("bot: main", "bot: must hold keys and values"),
    ("bot: [main]", "bot: must hold keys and values"),
    ("bot: {nmae: x}", "bot.nmae: no such key; did you mean name?"),
    ("bot: {name: a b}", 'bot.name: must be 1 to 64 of A-Z a-z 0-9 _ . -, not "a b"'),
    ('bot: {name: "a\\nb"}', 'bot.name: must be 1 to 64 of A-Z a-z 0-9 _ . -, not "a\\x0ab"'),
    ("bot: {name: 12}", 'bot.name: must be text; put it in "quotes"'),
    (
        "bot: {token: '1:A'}",
        "bot.token: a secret never stands in the file; use token_env or token_file",
    ),
    (
        "bot: {proxy: 'http://u:p@h'}",
        "bot.proxy: a secret never stands in the file; use proxy_env or proxy_file",
    ),
    (
        "bot: {token_env: '1:A'}",
        "bot.token_env: must be the name of a variable (A-Z a-z 0-9 _), never the secret itself",
    ),
    (
        "bot: {token_env: [A, B]}",
        "bot.token_env: must be text, not a list",
    ),
    (
        "bot: {token_env: A, token_file: /a}",
        "bot.token_file: stands beside token_env; only one of them can count",
    ),
    (
        "bot: {secret_token_env: [A, B, C]}",
        "bot.secret_token_env: must be one, or a list of two while the secret is rotated",
    ),
    (
        "bot: {secret_token_env: []}",
        "bot.secret_token_env: must be one, or a list of two while the secret is rotated",
    ),
    ("bot: {secret_token_env: [A, A]}", "bot.secret_token_env: names the same one twice"),
    ("bot: {token_file: ''}", "bot.token_file: must be the path of a file"),
    (
        "bot: {webhook_url: 'http://bot.example/a'}",
        (
            "bot.webhook_url: Telegram takes only https://"
            " (a Bot API server of your own, api_url, takes http://)"
        ),
    ),
    (
        "bot: {webhook_url: 'ftp://bot.example/a'}",
        "bot.webhook_url: must begin with http:// or https://",
    ),
    ("bot: {webhook_url: 'https:///a'}", "bot.webhook_url: the URL has no host"),
    ("bot: {webhook_url: 'https://u:p@h/a'}", "bot.webhook_url: leave out user and password"),
    (
        "bot: {webhook_url: 'https://h/a#b'}",
        "bot.webhook_url: leave out the part from `#` on: it is never sent",
    ),
    (
        "bot: {webhook_url: 'https://h:99999/'}",
        "bot.webhook_url: is no URL: look at its host and port",
    ),
    (
        "bot: {webhook_url: 'https://[::1/'}",
        "bot.webhook_url: is no URL: look at its host and port",
    ),
    ("bot: {webhook_url: 'https://h/a b'}", "bot.webhook_url: a URL holds no white space"),
    ("bot: {username: a-b}", 'bot.username: must be the bot\'s username, not "a-b"'),
    ("bot: {api_url: api.example}", "bot.api_url: must begin with http:// or https://"),
    (
        "bot: {allowed_updates: all}",
        "bot.allowed_updates: must be auto, or a list of update types such as [message]",
    ),
    (
        "bot: {allowed_updates: []}",
        "bot.allowed_updates: must be auto, or a list of update types such as [message]",
    ),
    (
        "bot: {allowed_updates: [1]}",
        "bot.allowed_updates: 1 is no update type, such as message",
    ),
    (
        "bot: {max_connections: 0}",
        "bot.max_connections: must be a whole number from 1 to 100, not 0",
    ),
    (
        "bot: {max_connections: true}",
        "bot.max_connections: must be a whole number from 1 to 100, not true",
    ),
    (
        "bot: {max_connections: '40'}",
        'bot.max_connections: must be a whole number from 1 to 100, not "40"',
    ),
    (
        "bot: {max_connections: 040}",
        'bot.max_connections: must be a whole number from 1 to 100, not "040"',
    ),
    (
        "bot: {max_connections: 1.5}",
        "bot.max_connections: must be a whole number from 1 to 100, not 1.5",
    ),
    ("listen: 8080", "listen: has no host; write 127.0.0.1:8080"),
    (
        "listen: ':8080'",
        "listen: has no host; write 127.0.0.1:8080, or 0.0.0.0:8080 for everybody",
    ),
    (
        "listen: '*:8080'",
        "listen: has no host; write 127.0.0.1:8080, or 0.0.0.0:8080 for everybody",
    ),
    ("listen: localhost", 'listen: must be host:port or unix:/path, not "localhost"'),
    ("listen: localhost:99999", 'listen: must be host:port or unix:/path, not "localhost:99999"'),
    ("listen: '::1:8080'", "listen: an IPv6 address stands in brackets: [::1]:8080"),
    ("listen: '[zz]:8080'", 'listen: "zz" is no IPv6 address'),
    ("listen: 'a b:8080'", 'listen: "a b" is no host name or address'),
    ("listen: unix:twr.sock", "listen: must be unix: and the absolute path of a socket"),
    (f"listen: unix:/{'a' * 107}", "listen: the path of a socket has at most 107 bytes"),
    ("listen:", "listen: has no value; give one, or leave the key out"),
    ("admin: 127.0.0.1:8080", "admin: listen and admin are the same"),
    ("listen: 127.0.0.1:8081", "listen: listen and admin are the same"),
    ("path: hook", 'path: must be a path that begins with /, without ? # or %, not "hook"'),
    ("path: /a?b", 'path: must be a path that begins with /, without ? # or %, not "/a?b"'),
    ("max_body: 1048576", "max_body: 1048576 has no unit; write 1048576MiB"),
    (
        "max_body: 512KiB",
        (
            "max_body: must be at least 576KiB"
            " (Telegram's largest update is 512KiB; that needs headroom), not 512KiB"
        ),
    ),
    ("max_body: 1MB", "max_body: `MB` is no unit here; known are B, KiB, MiB, GiB"),
    ("max_body: lots", "max_body: write a number and a unit, such as 512KiB, 1MiB"),
    (
        "trusted_networks: [10.0.0.1/8]",
        'trusted_networks: "10.0.0.1/8" has host bits set; write 10.0.0.0/8',
    ),
    (
        "trusted_networks: [telegam]",
        'trusted_networks: "telegam" is no network; write one as 10.0.0.0/8, or telegram, loopback',
    ),
    ("trusted_networks: telegram", "trusted_networks: must be a list; write [telegram]"),
    ("trusted_networks:", "trusted_networks: has no value; give a list, or leave the key out"),
    (
        "trusted_proxies: [telegram]",
        'trusted_proxies: "telegram" is no network; write one as 10.0.0.0/8, or unix, loopback',
    ),
    (
        "socket_mode: rw-rw----",
        'socket_mode: must be octal permissions such as "0660", not "rw-rw----"',
    ),
    ("socket_mode: 0060", 'socket_mode: must be octal permissions such as "0660", not "0060"'),
    ("socket_mode: 432", 'socket_mode: must be octal permissions such as "0660", not 432'),
    ("socket_group: a b", 'socket_group: must be the name of a group, not "a b"'),
    (
        "store: {url: 'mysql://h'}",
        "store.url: must begin with redis://, rediss://, unix:// or redis+sentinel://",
    ),
    ("store: {url: 'redis://'}", "store.url: the URL has no host"),
    (
        "store: {url: 'redis://h/zero'}",
        "store.url: the path of the URL must be a database number, such as /0",
    ),
    ("store: {url: 'unix://'}", "store.url: write unix:///path/of/the.sock"),
    (
        "store: {url: 'redis+sentinel://h1:26379'}",
        "store.url: after the sentinels write /name-of-the-master/0",
    ),
    (
        "store: {url: 'redis+sentinel://h1:x,h2/m'}",
        "store.url: write the sentinels as host:port, separated by commas",
    ),
    (
        "store: {url: 'redis+sentinel://h1:26379, h2/m'}",
        "store.url: a URL holds no white space",
    ),
    (
        "store: {url: 'redis://h', url_env: A}",
        "store.url_env: stands beside url; only one of them can count",
    ),
    (
        "store: {dedup_ttl: 23h}",
        "store.dedup_ttl: must be at least 24h (so long Telegram repeats an update), not 23h",
    ),
    ("store: {max_memory: 0B}", "store.max_memory: must be at least 1MiB, not 0B"),
    ("store: {prefix: '{a}'}", 'store.prefix: must be 1 to 64 of A-Z a-z 0-9 _ . : -, not "{a}"'),
    ("instance: a/b", 'instance: must be 1 to 64 of A-Z a-z 0-9 _ . -, not "a/b"'),
    ("delivery: {timeout: 10}", "delivery.timeout: 10 has no unit; write 10s"),
    ("delivery: {timeout: '10'}", "delivery.timeout: 10 has no unit; write 10s"),
    ("delivery: {timeout: 1.5}", "delivery.timeout: 1.5 has no unit; write 1.5s"),
    ("delivery: {timeout: 0s}", "delivery.timeout: must be at least 1ms, not 0s"),
    ("delivery: {timeout: 2h}", "delivery.timeout: must be at most 1h, not 2h"),
    ("delivery: {timeout: 400d}", "delivery.timeout: 400d is more than a year"),
    (
        "delivery: {timeout: -1s}",
        "delivery.timeout: write a number and a unit, such as 10s, 5m, 24h",
    ),
    (
        "delivery: {timeout: true}",
        "delivery.timeout: write a number and a unit, such as 10s, 5m, 24h",
    ),
    (
        "delivery: {timeout: 1y}",
        "delivery.timeout: `y` is no unit here; known are ms, s, m, h, d",
    ),
    (
        "delivery: {order: caht}",
        'delivery.order: "caht" is not one of chat, none; did you mean chat?',
    ),
    ("delivery: {order: null}", "delivery.order: has no value; give one, or leave the key out"),
    (
        "delivery: {backoff: {factor: 0.5}}",
        "delivery.backoff.factor: must be a number from 1 to 100, not 0.5",
    ),
    (
        "delivery: {backoff: {jitter: 20}}",
        "delivery.backoff.jitter: must be a number from 0 to 1, not 20",
    ),
    ("delivery: {backoff: {first: 11m}}", "delivery.backoff.first: is above max (10m)"),
    (
        "delivery: {backoff: {first: 2m, max: 90s}}",
        "delivery.backoff.max: is below first (2m)",
    ),
    (
        "delivery: {breaker: {cooldown: 2m}}",
        "delivery.breaker.cooldown: is above max_cooldown (1m)",
    ),
    (
        "delivery: {permanent_statuses: [200]}",
        "delivery.permanent_statuses: must be a whole number from 300 to 599, not 200",
    ),
    (
        "delivery: {permanent_statuses: 400}",
        "delivery.permanent_statuses: must be a list; write [400]",
    ),
    ("delivery: {name: x}", "delivery.name: no such key here; it belongs under bot"),
    (
        "alerts: {telegram: {chat_id: bob}}",
        'alerts.telegram.chat_id: must be the id of a chat or an @name, not "bob"',
    ),
    ("alerts: {telegram: {}}", "alerts.telegram.chat_id: is missing"),
    (
        "alerts: {webhook: {headers_env: A}}",
        "alerts.webhook: url, url_env or url_file is missing",
    ),
    (
        "alerts: {webhook: {url: 'http://h', headers: {}}}",
        (
            "alerts.webhook.headers: a secret never stands in the file;"
            " use headers_env or headers_file"
        ),
    ),
    (
        "alerts: {heartbeat_url: 'http://h'}",
        (
            "alerts.heartbeat_url: a secret never stands in the file;"
            " use heartbeat_url_env or heartbeat_url_file"
        ),
    ),
    (
        "probe: {fire_after: 0}",
        "probe.fire_after: must be a whole number from 1 to 1000, not 0",
    ),
    (
        "dead_letters: {max_count: 1e5}",
        'dead_letters.max_count: must be a whole number from 1 to 100000000, not "1e5"',
    ),
]


@pytest.mark.parametrize(("line", "message"), TOP, ids=[line for line, _ in TOP])
def test_a_fault_is_told_at_its_line(tmp_path: Path, line: str, message: str) -> None:
    """Each rule outside the routes has one message, at the line of the key."""
    assert problems(tmp_path, f"# a comment\n{line}\n{ROUTES}") == [f"2: {message}"]


IN_ROUTE = [
    ("timeout: 10", "timeout: 10 has no unit; write 10s"),
    ("tiemout: 10s", "tiemout: no such key; did you mean timeout?"),
    ("fallback: yes", 'fallback: must be true or false, not "yes"'),
    ("fallback: 1", "fallback: must be true or false, not 1"),
    ("backoff: {max: 500ms}", "backoff.max: is below first (1s)"),
    (
        "signing_secret: abc",
        (
            "signing_secret: a secret never stands in the file;"
            " use signing_secret_env or signing_secret_file"
        ),
    ),
    (
        "signing_secret_file: key",
        "signing_secret_file: stands beside signing_secret_env; only one of them can count",
    ),
    ("secret_token_env: [A, B]", "secret_token_env: must be text, not a list"),
    ("match: [message]", "match: must hold keys and values"),
    ("match: {user_ids: []}", "match.user_ids: is empty; list at least one, or leave the key out"),
    ("match: {user_ids: }", "match.user_ids: is empty; list at least one, or leave the key out"),
    ("match: {user_ids: 5}", "match.user_ids: must be a list; write [5]"),
    ("match: {user_ids: {a: 1}}", "match.user_ids: must be a list"),
    (
        'match: {user_ids: ["5"]}',
        "match.user_ids: 5 is in quotes; write the number without them",
    ),
    (
        "match: {user_ids: [bob]}",
        'match.user_ids: "bob" is no user id, which is a whole number',
    ),
    (
        "match: {user_ids: [0123]}",
        'match.user_ids: "0123" is no user id, which is a whole number',
    ),
    (
        "match: {user_ids: [4503599627370496]}",
        "match.user_ids: 4503599627370496 is no user id, which is a whole number",
    ),
    ("match: {chat_ids: [true]}", "match.chat_ids: true is no chat id, which is a whole number"),
    ("match: {topic_ids: [0]}", "match.topic_ids: 0 is no topic id, which is a whole number"),
    (
        "match: {chat_types: [grup]}",
        (
            'match.chat_types: "grup" is not one of private, group, supergroup, channel;'
            " did you mean group?"
        ),
    ),
    (
        "match: {update_types: [my-type]}",
        'match.update_types: "my-type" is no update type, such as message',
    ),
    (
        "match: {commands: [/a-b]}",
        'match.commands: "/a-b" is no command: 1 to 32 of A-Z a-z 0-9 _',
    ),
    (
        "match: {commands: [/a@bot]}",
        (
            'match.commands: "/a@bot" is no command: 1 to 32 of A-Z a-z 0-9 _;'
            " the part from @ on is matched by twr itself"
        ),
    ),
    ("match: {commands: [1]}", 'match.commands: must be text; put it in "quotes"'),
    (
        "match: {start_prefixes: ['']}",
        "match.start_prefixes: an empty prefix would match everything",
    ),
    (
        "match: {callback_prefixes: [42]}",
        'match.callback_prefixes: must be text; put it in "quotes"',
    ),
    ("match: {user_id: [1]}", "match.user_id: no such key; did you mean user_ids?"),
    ("except: {}", "except: is empty, and so would skip every update; leave it out"),
    ("except:", "except: is empty, and so would skip every update; leave it out"),
    (
        "except: {commands: []}",
        "except.commands: is empty; list at least one, or leave the key out",
    ),
]


@pytest.mark.parametrize(("line", "message"), IN_ROUTE, ids=[line for line, _ in IN_ROUTE])
def test_a_fault_of_a_route_names_the_route(tmp_path: Path, line: str, message: str) -> None:
    """Each rule of a route has one message, at the line of the key, with the route's name."""
    assert problems(tmp_path, f"{ROUTES}    {line}\n") == [f"5: route shop: {message}"]


WHOLE = [
    ("listen: 127.0.0.1:1\n", ["1: routes: is missing"]),
    ("routes:\n", ["1: routes: is empty; without a route no update goes anywhere"]),
    ("routes: []\n", ["1: routes: is empty; without a route no update goes anywhere"]),
    ("routes: {a: b}\n", ["1: routes: must be a list"]),
    ("\nroutes:\n  - shop\n", ["3: route #1: must hold keys and values"]),
    (
        "routes:\n  - name: a\n",
        [
            "2: route a: signing_secret_env or signing_secret_file is missing",
            "2: route a: target_url: is missing",
        ],
    ),
    (
        "routes:\n  - target_url: h\n    signing_secret_env: A\n",
        [
            "2: route #1: name: is missing",
            "2: route #1: target_url: must begin with http:// or https://",
        ],
    ),
    (
        f"{ROUTES}  - name: shop\n    target_url: http://h/\n    signing_secret_env: B\n",
        ["5: route shop: name: another route above has this name"],
    ),
    (
        f"{ROUTES}    match:\n      chat_ids:\n        - 5\n        - bob\n",
        ['8: route shop: match.chat_ids: "bob" is no chat id, which is a whole number'],
    ),
]


@pytest.mark.parametrize(("text", "expected"), WHOLE, ids=[text for text, _ in WHOLE])
def test_a_file_without_good_routes(tmp_path: Path, text: str, expected: list[str]) -> None:
    """Routes are needed, complete, and of different names; an item is told at its own line."""
    assert problems(tmp_path, text) == expected


def test_all_faults_are_told_in_one_go(tmp_path: Path) -> None:
    """Faults of the YAML, of values and across keys come together, in the order of lines."""
    text = (
        "bot:\n  name: a\n  name: b\n  webhook_url: http://h/\n  max_connections: 400\n"
        "admin: 127.0.0.1:8080\nmax_body: 1\n"
        "delivery: {backoff: {first: 2m}}\n"
        "routes:\n  - name: a\n    target_url: x\n    backoff: {max: 1m}\n"
        "    match: {user_ids: []}\n"
        "  - name: a\n"
    )
    assert [problem.partition(":")[0] for problem in problems(tmp_path, text)] == [
        "3", "4", "5", "6", "7", "10", "11", "12", "13", "14", "14", "14"
    ]  # fmt: skip


def test_a_secret_in_the_wrong_place_is_not_repeated(tmp_path: Path) -> None:
    """Whatever is written where the name of a variable or a URL belongs shows in no message."""
    secret = "hunter-2-hunter"
    text = (
        f"bot: {{token: {secret}, secret_token_env: {secret}, webhook_url: 'https://u:{secret}@h'}}\n"
        f"store: {{url: 'redis://:{secret}@/x'}}\n"
        f"routes:\n  - name: a\n    target_url: 'ftp://u:{secret}@h/'\n"
        f"    signing_secret: {secret}\n"
    )
    found = problems(tmp_path, text)
    assert len(found) == 6
    assert secret not in "\n".join(found)


VALID = [
    "bot: {webhook_url: 'http://127.0.0.1:1/a', api_url: 'http://127.0.0.1:2'}",
    "bot: {webhook_url: 'https://h:8443/a?b=c'}",
    "bot: {username: '@My_bot'}",
    "bot: {allowed_updates: [message, something_new]}",
    "bot: {secret_token_env: [A, B]}",
    "bot:",
    "listen: '[::1]:8080'",
    "listen: localhost:0\nadmin: localhost:0",
    "listen: unix:/run/twr/ingress.sock",
    "path: /",
    "path: /a/",
    "max_body: 576KiB",
    "trusted_networks: [telegram, loopback, 10.0.0.0/8, '2001:db8::/32', 192.0.2.1]",
    "trusted_proxies: [loopback, unix, 10.0.0.0/8]",
    "socket_mode: 0660",
    'socket_mode: "660"',
    "socket_mode: 600",
    "store: {url: 'redis://127.0.0.1'}",
    "store: {url: 'redis://[::1]:6379/3'}",
    "store: {url: 'rediss://redis.example:6380/0'}",
    "store: {url: 'unix:///run/redis.sock?db=1'}",
    "store: {url: 'redis+sentinel://h1:26379,h2,[::1]:26379/mymaster/0'}",
    "store: {url: 'redis+sentinel://h1/mymaster'}",
    "store: {url: 'redis+sentinel://user:p@h1,[::1],[::2]:26380/mymaster?sentinel_username=u'}",
    "store: {dedup_ttl: 24h}",
    "delivery: {timeout: 2.5 s, permanent_statuses: []}",
    "delivery: {backoff: {first: 1s, max: 1s, factor: 1, jitter: 0}}",
    "shutdown_grace: 0s",
    "alerts: {telegram: {chat_id: '@ops_room'}}",
    "alerts: {webhook: {url_file: alert-url}}",
]


@pytest.mark.parametrize("line", VALID)
def test_what_is_valid(tmp_path: Path, line: str) -> None:
    """None of these is an error."""
    assert problems(tmp_path, f"{line}\n{ROUTES}") == []
