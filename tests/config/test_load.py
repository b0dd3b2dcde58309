"""What a valid file becomes: defaults, merged routes, warnings, where the file is."""

from collections.abc import Callable
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path

import pytest

from twr import config
from twr.config import Alerts, Bot, Config, DeadLetters, Listen, Probe, TelegramSink
from twr.core.backoff import Backoff
from twr.core.breaker import BreakerPolicy
from twr.core.matching import Match, Rule
from twr.errors import ConfigError

ROUTE = "{name: %s, target_url: 'http://h/', signing_secret_env: S%s}"
ROUTES = f"routes: [{ROUTE % ('shop', '')}]\n"
Load = Callable[..., Config]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Loads a file of some text, in an empty environment by default."""

    def loaded(text: str, environ: dict[str, str] | None = None) -> Config:
        file = tmp_path / "twr.yaml"
        file.write_text(text)
        return config.load(file, environ or {"HOME": "/home/me"})

    return loaded


def test_a_file_of_routes_alone_has_all_defaults(load: Load, tmp_path: Path) -> None:
    """All else has the default that the example file names."""
    found = load(ROUTES)
    assert found.file == tmp_path / "twr.yaml"
    assert found.bot == Bot("main", None, "https://api.telegram.org", None, "auto", 40)
    assert found.listen == Listen("127.0.0.1", 8080)
    assert found.admin == Listen("127.0.0.1", 8081)
    assert (found.path, found.max_body) == ("/webhooks/telegram", 1 << 20)
    assert (found.trusted_networks, found.trusted_proxies) == (None, ())
    assert (found.socket_mode, found.socket_group) == (0o660, None)
    assert found.store.embedded
    assert (found.store.max_memory, found.store.prefix) == (256 << 20, "twr")
    assert found.store.dedup_ttl == 25 * 3600.0
    assert found.shutdown_grace == 20.0
    assert found.dead_letters == DeadLetters(30 * 86400.0, 100_000)
    assert found.probe == Probe(60.0, 10, 2, 1)
    assert found.alerts == Alerts(4 * 3600.0, 300.0, None, False, False)
    assert found.warnings == ()
    route = found.routes[0]
    assert (route.timeout, route.concurrency, route.order) == (10.0, 32, "chat")
    assert (route.max_attempts, route.max_pending) == (10, 100_000)
    assert route.backoff == Backoff(1.0, 2.0, 600.0, 0.2)
    assert route.permanent_statuses == frozenset({400, 410, 413, 415, 422})
    assert route.breaker == BreakerPolicy(5, 5.0, 60.0)
    assert route.rule == Rule("shop", Match())


def test_a_route_is_merged_over_the_delivery_section(load: Load) -> None:
    """A route's own key wins, then `delivery`, then the default; inside of sections too."""
    found = load(
        "delivery: {timeout: 3s, max_attempts: 4, backoff: {first: 2s, max: 1h}}\n"
        "routes:\n"
        "  - {name: a, target_url: 'http://h/', signing_secret_env: A, timeout: 1m,\n"
        "     order: none, backoff: {max: 5s}, breaker: {failures: 9}, permanent_statuses: []}\n"
        "  - {name: b, target_url: 'http://h/', signing_secret_env: A, timeout: 10s}\n"
    )
    a, b = found.routes
    assert (a.timeout, a.max_attempts, a.order) == (60.0, 4, "none")
    assert a.backoff == Backoff(2.0, 2.0, 5.0, 0.2)
    assert a.breaker == BreakerPolicy(9, 5.0, 60.0)
    assert a.permanent_statuses == frozenset()
    assert (b.timeout, b.order) == (10.0, "chat")
    assert b.backoff == Backoff(2.0, 2.0, 3600.0, 0.2)
    assert b.breaker == BreakerPolicy(5, 5.0, 60.0)


def test_conditions_become_a_rule(load: Load) -> None:
    """Commands lose slash and case; `except` and `fallback` are taken over."""
    found = load(
        "routes:\n  - name: a\n    target_url: http://h/\n    signing_secret_env: A\n"
        "    fallback: true\n"
        "    match:\n      update_types: [message]\n      user_ids: [1, 2]\n"
        "      chat_ids: [-100]\n"
        "      chat_types: [private]\n      topic_ids: [7]\n      commands: [/Admin, orders]\n"
        "      start_prefixes: [ref]\n"
        "    except: {callback_prefixes: ['b:', 'a:']}\n"
    )
    assert found.rules == (
        Rule(
            "a",
            Match(
                update_types=frozenset({"message"}),
                user_ids=frozenset({1, 2}),
                chat_ids=frozenset({-100}),
                chat_types=frozenset({"private"}),
                topic_ids=frozenset({7}),
                commands=frozenset({"admin", "orders"}),
                start_prefixes=("ref",),
            ),
            Match(callback_prefixes=("b:", "a:")),
            fallback=True,
        ),
    )


@pytest.mark.parametrize("match", ["match:", "match: {}", "# none"])
def test_an_empty_match_takes_everything(load: Load, match: str) -> None:
    """An empty or absent `match` asks for nothing."""
    text = (
        f"routes:\n  - name: a\n    target_url: http://h/\n    signing_secret_env: A\n    {match}\n"
    )
    assert load(text).rules == (Rule("a", Match()),)


def test_networks_have_names(load: Load) -> None:
    """`telegram`, `loopback` and `unix` stand for what they are; single addresses work."""
    found = load(
        "trusted_networks: [telegram, 192.0.2.1]\ntrusted_proxies: [unix, loopback]\n" + ROUTES
    )
    assert found.trusted_networks == tuple(
        map(ip_network, ("149.154.160.0/20", "91.108.4.0/22", "192.0.2.1/32"))
    )
    assert found.trusted_proxies == ("unix", ip_network("127.0.0.0/8"), ip_network("::1/128"))


LISTENERS = [
    ("127.0.0.1:8080", Listen("127.0.0.1", 8080)),
    ("[::1]:8080", Listen("::1", 8080)),
    ("bot.internal:0", Listen("bot.internal", 0)),
    ("unix:/run/twr/in.sock", Listen(path="/run/twr/in.sock")),
]


@pytest.mark.parametrize(("written", "expected"), LISTENERS)
def test_listeners(load: Load, written: str, expected: Listen) -> None:
    """A listener is read, and shown as it was written."""
    found = load(f"listen: '{written}'\n{ROUTES}").listen
    assert (found, str(found)) == (expected, written)


def test_small_things_are_made_uniform(load: Load) -> None:
    """A username loses its @, the API's URL its slash, a sink keeps its topic."""
    found = load(
        "bot: {username: '@My_bot', api_url: 'http://127.0.0.1:8081/'}\n"
        "alerts: {telegram: {chat_id: -100, message_thread_id: 7}, webhook: {url: 'http://h'},\n"
        f"  heartbeat_url_file: beat}}\nadmin: 127.0.0.1:9\n{ROUTES}"
    )
    assert (found.bot.username, found.bot.api_url) == ("My_bot", "http://127.0.0.1:8081")
    assert found.alerts == Alerts(14400.0, 300.0, TelegramSink(-100, 7), True, True)


def test_the_instance_is_the_host_by_default(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host name becomes a valid name of an instance, whatever is in it."""
    monkeypatch.setattr("socket.gethostname", lambda: "my host/" + "x" * 70)
    assert load(ROUTES).instance == "my-host-" + "x" * 56
    assert load("instance: vps-1\n" + ROUTES).instance == "vps-1"


def test_where_the_embedded_store_lives(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file's own, else $STATE_DIRECTORY, else /var/lib/twr if there, else the home's."""
    state = tmp_path / "state"
    monkeypatch.setattr("twr.config.loading._SYSTEM_STATE", state)
    home = {"HOME": "/home/me"}
    assert load(ROUTES, home).store.dir == Path("/home/me/.local/state/twr")
    state.mkdir()
    assert load(ROUTES, home).store.dir == state
    assert load(ROUTES, {"STATE_DIRECTORY": "/a:/b"}).store.dir == Path("/a")
    assert load(f"store: {{dir: /d}}\n{ROUTES}", home).store.dir == Path("/d")
    assert load(f"store: {{dir: ~/d}}\n{ROUTES}", home).store.dir == Path("/home/me/d")
    assert load(f"store: {{dir: data}}\n{ROUTES}", home).store.dir == tmp_path / "data"
    assert str(load(f"store: {{dir: /d}}\n{ROUTES}", home).store) == "embedded in /d"


def test_no_password_is_shown(load: Load) -> None:
    """Passwords in URLs stay out of the repr, and out of what is meant for people."""
    found = load(
        "store: {url: 'redis://:hunter2@h:6379/0'}\n"
        "alerts: {webhook: {url: 'https://u:hunter2@h/'}}\n"
        "routes: [{name: a, target_url: 'http://me:hunter2@h:1/x?y', signing_secret_env: A}]\n"
    )
    assert "hunter2" not in repr(found)
    assert str(found.store) == "redis://h:6379/0"
    assert found.routes[0].target == "http://h:1/x?y"
    assert found.routes[0].target_url == "http://me:hunter2@h:1/x?y"
    assert str(load(f"store: {{url_env: REDIS}}\n{ROUTES}").store) == "$REDIS"


WARNINGS = [
    (
        "admin: 0.0.0.0:9000",
        ("admin: not a loopback address: whoever reaches it reads status and metrics"),
    ),
    (
        "admin: bot.internal:9000",
        ("admin: not a loopback address: whoever reaches it reads status and metrics"),
    ),
    (
        "trusted_networks: []",
        ("trusted_networks: an empty list lets everyone in; name some, or leave it out"),
    ),
    (
        "store: {url: 'redis://:x@h'}",
        ("store.url: holds a password; url_env takes the whole URL from a variable"),
    ),
    (
        "bot: {allowed_updates: [mesage]}",
        ('bot.allowed_updates: no update type "mesage" is known; did you mean message?'),
    ),
    (
        "bot: {allowed_updates: [zzzzzzzz]}",
        ('bot.allowed_updates: no update type "zzzzzzzz" is known'),
    ),
]
ROUTE_WARNINGS = [
    (
        "match: {update_types: [Message]}",
        ('match.update_types: no update type "Message" is known; did you mean message?'),
    ),
    (
        "except: {update_types: [pol]}",
        ('except.update_types: no update type "pol" is known; did you mean poll?'),
    ),
    (
        "match: {commands: [a], callback_prefixes: [b]}",
        ("match: no update meets all of these (conditions are joined by AND); make it two routes"),
    ),
    (
        "match: {update_types: [poll], start_prefixes: [b]}",
        ("match: no update meets all of these (conditions are joined by AND); make it two routes"),
    ),
]


@pytest.mark.parametrize(("line", "message"), WARNINGS)
def test_what_is_valid_and_hardly_meant(load: Load, line: str, message: str) -> None:
    """What works and yet looks wrong is a warning at its line."""
    found = load(f"\n{line}\n{ROUTES}").warnings
    assert [(warning.line, warning.message) for warning in found] == [(2, message)]


@pytest.mark.parametrize(("line", "message"), ROUTE_WARNINGS)
def test_what_is_hardly_meant_of_a_route(load: Load, line: str, message: str) -> None:
    """A warning of a route names it."""
    found = load(
        f"routes:\n  - name: a\n    target_url: http://h/\n    signing_secret_env: A\n    {line}\n"
    ).warnings
    assert [(warning.line, warning.message) for warning in found] == [(5, f"route a: {message}")]


def test_a_type_that_is_not_asked_for_is_a_warning(load: Load) -> None:
    """A route that waits for what allowed_updates leaves out gets it never; an except may."""
    found = load(
        "bot: {allowed_updates: [message]}\n"
        "routes:\n  - name: a\n    target_url: http://h/\n    signing_secret_env: A\n"
        "    match: {update_types: [message, poll]}\n    except: {update_types: [poll_answer]}\n"
    ).warnings
    assert [(warning.line, warning.message) for warning in found] == [
        (6, "route a: match.update_types: poll is left out of bot.allowed_updates")
    ]


LOCAL = ["127.0.0.2:9", "'[::1]:9'", "localhost:9", "unix:/run/twr/admin.sock"]


@pytest.mark.parametrize("admin", LOCAL)
def test_a_local_admin_listener_is_no_warning(load: Load, admin: str) -> None:
    """Loopback addresses and sockets are what the admin listener is for."""
    assert load(f"admin: {admin}\n{ROUTES}").warnings == ()


CHANGES = [
    ("listen: 127.0.0.1:9", ("listen",)),
    ("socket_mode: 600", ("socket_mode",)),
    ("socket_group: www-data", ("socket_group",)),
    ("admin: 127.0.0.1:9", ("admin",)),
    ("store: {prefix: b}", ("store",)),
    ("store: {url: 'redis://h'}", ("store",)),
    ("store: {url_env: A}", ("store",)),
    ("bot: {name: b}", ("bot.name",)),
    ("instance: other", ("instance",)),
    ("bot: {username: abc}", ()),
    ("delivery: {timeout: 1s}", ()),
    ("max_body: 2MiB", ()),
    ("probe: {interval: 1s}", ()),
    ("path: /other", ()),
    ("bot: {name: b}\nadmin: 127.0.0.1:9", ("admin", "bot.name")),
]


@pytest.mark.parametrize(("line", "expected"), CHANGES)
def test_what_cannot_change_while_running(load: Load, line: str, expected: tuple[str, ...]) -> None:
    """Each of the settings that need a restart is named when it differs, and no other."""
    old, new = load(ROUTES), load(f"{line}\n{ROUTES}")
    assert config.unchangeable_differences(old, new) == expected


def test_comments_and_lines_change_nothing(load: Load) -> None:
    """The same settings on other lines are the same configuration."""
    assert load(ROUTES) == load(f"# a comment\n\n{ROUTES}")
    assert load(ROUTES) != load(ROUTES.replace("http://h/", "http://i/"))
    assert load(ROUTES) != load(ROUTES.replace("_env: S", "_env: T"))
    assert replace(load(ROUTES), max_body=1) != load(ROUTES)


def test_where_the_file_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The option, then $TWR_CONFIG, then /etc/twr/twr.yaml, then ./twr.yaml."""
    system = tmp_path / "etc/twr.yaml"
    monkeypatch.setattr("twr.config.loading.DEFAULT_FILE", system)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        config.find_config(None, {})
    assert str(caught.value) == (
        f"twr.yaml: no configuration here or at {system}; `twr init` writes one, -c names another"
    )
    (tmp_path / "twr.yaml").touch()
    assert config.find_config(None, {}) == Path("twr.yaml")
    system.parent.mkdir()
    system.touch()
    assert config.find_config(None, {"TWR_CONFIG": ""}) == system
    assert config.find_config(None, {"TWR_CONFIG": "/a"}) == Path("/a")
    assert config.find_config(Path("b"), {"TWR_CONFIG": "/a"}) == Path("b")
