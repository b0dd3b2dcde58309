"""Secrets: where they are looked up, what is refused, and that they are never shown."""

from pathlib import Path

import pytest

from twr import config
from twr.config import Config, Secrets
from twr.errors import ConfigError

ENVIRON = {"BOT_TOKEN": "1:A", "TELEGRAM_WEBHOOK_SECRET": "hook", "S": "sign"}
ROUTES = "routes:\n  - name: shop\n    target_url: http://h/\n    signing_secret_env: S\n"


def load(tmp_path: Path, text: str) -> Config:
    """The configuration of a file of that text."""
    file = tmp_path / "twr.yaml"
    file.write_text(text)
    return config.load(file, {})


def refused(found: Config, environ: dict[str, str]) -> list[str]:
    """What is wrong with the secrets, as `line: message`."""
    with pytest.raises(ConfigError) as caught:
        found.secrets(environ)
    assert {problem.file for problem in caught.value.problems} == {str(found.file)}
    return [f"{problem.line}: {problem.message}" for problem in caught.value.problems]


def test_every_secret_from_the_environment(tmp_path: Path) -> None:
    """Each setting finds its variable; of two the newest comes first."""
    found = load(
        tmp_path,
        "bot: {token_env: T, secret_token_env: [NEW, OLD], proxy_env: P}\n"
        "store: {url_env: R}\n"
        "alerts: {webhook: {url_env: W, headers_env: H}, heartbeat_url_env: B}\n"
        "routes:\n"
        "  - {name: a, target_url: 'http://me:p%40ss@h/', signing_secret_env: [A2, A1]}\n"
        "  - {name: b, target_url: 'http://h/', secret_token_env: BT}\n",
    )
    secrets = found.secrets(
        {
            "T": "1:A", "NEW": "new", "OLD": "old", "P": "socks5://u:proxypass@h:1080",
            "R": "redis://:redispass@h:1/0", "W": "https://w/",
            "H": '{"Authorization": "Bearer x"}', "B": "https://b/",
            "A1": "one", "A2": "zwei\u00fc", "BT": "bt",
        }
    )  # fmt: skip
    assert secrets.bot_token == "1:A"
    assert secrets.webhook == (b"new", b"old")
    assert secrets.proxy == "socks5://u:proxypass@h:1080"
    assert secrets.store_url == "redis://:redispass@h:1/0"
    assert secrets.alert_webhook_url == "https://w/"
    assert secrets.alert_webhook_headers == {"Authorization": "Bearer x"}
    assert secrets.heartbeat_url == "https://b/"
    assert secrets.signing == {"a": ("zwei\u00fc".encode(), b"one")}
    assert secrets.target_tokens == {"b": "bt"}
    assert secrets.warnings == ()
    assert set(secrets.all()) == {
        "1:A", "new", "old", "socks5://u:proxypass@h:1080", "proxypass", "redis://:redispass@h:1/0",
        "redispass", "https://w/", '{"Authorization": "Bearer x"}', "Bearer x", "https://b/", "one",
        "A", "x",
        "zwei\u00fc", "bt", "p%40ss", "p@ss",
    }  # fmt: skip


def test_the_defaults(tmp_path: Path) -> None:
    """Without being named, BOT_TOKEN and TELEGRAM_WEBHOOK_SECRET are looked up."""
    secrets = load(tmp_path, ROUTES).secrets(ENVIRON)
    assert (secrets.bot_token, secrets.webhook) == ("1:A", (b"hook",))
    assert (secrets.store_url, secrets.proxy, secrets.heartbeat_url) == (None, None, None)


@pytest.mark.parametrize(("environ", "why"), [({}, "is not set"), ({"BOT_TOKEN": ""}, "is empty")])
def test_without_a_token_there_is_a_warning(
    tmp_path: Path, environ: dict[str, str], why: str
) -> None:
    """A token that is missing is no error, named or not: twr runs without probe."""
    given = {"TELEGRAM_WEBHOOK_SECRET": "hook", "S": "sign", **environ}
    for bot, line in (("", 1), ("\nbot:\n  token_env: BOT_TOKEN\n", 3)):
        secrets = load(tmp_path, bot + ROUTES).secrets(given)
        assert secrets.bot_token is None
        assert [(warning.line, warning.message) for warning in secrets.warnings] == [
            (
                line,
                f"bot.token_env: the variable BOT_TOKEN {why}: no probe, no webhook commands",
            )
        ]


def test_what_is_missing_is_told_with_variable_route_and_line(tmp_path: Path) -> None:
    """All that is missing or empty comes in one go."""
    found = load(
        tmp_path,
        "bot: {proxy_env: P}\nstore: {url_env: R}\nalerts: {heartbeat_url_env: B}\n"
        + ROUTES
        + "    secret_token_env: BT\n",
    )
    assert refused(found, {"S": "", "B": ""}) == [
        "1: bot.proxy_env: the variable P is not set",
        "1: bot.secret_token_env: the variable TELEGRAM_WEBHOOK_SECRET is not set",
        "2: store.url_env: the variable R is not set",
        "3: alerts.heartbeat_url_env: the variable B is empty",
        "7: route shop: signing_secret_env: the variable S is empty",
        "8: route shop: secret_token_env: the variable BT is not set",
    ]


WRONG = [
    (
        "bot: {token_env: X}",
        "hunter 2",
        (
            "bot.token_env: what X holds: is no bot token; it looks"
            " like 123456:ABC-DEF, with nothing around it"
        ),
    ),
    (
        "bot: {secret_token_env: X}",
        "hunter 2",
        ("bot.secret_token_env: what X holds: must be 1 to 256 of A-Z a-z 0-9 _ -"),
    ),
    (
        "bot: {secret_token_env: X}",
        "h" * 257,
        ("bot.secret_token_env: what X holds: must be 1 to 256 of A-Z a-z 0-9 _ -"),
    ),
    (
        "bot: {proxy_env: X}",
        "ftp://hunter2",
        (
            "bot.proxy_env: what X holds: must begin with"
            " http://, https://, socks://, socks4://, socks4a://, socks5:// or socks5h://"
        ),
    ),
    (
        "store: {url_env: X}",
        "hunter2",
        (
            "store.url_env: what X holds: must begin with redis://,"
            " rediss://, unix:// or redis+sentinel://"
        ),
    ),
    (
        "alerts: {webhook: {url_env: X}}",
        "hunter2",
        ("alerts.webhook.url_env: what X holds: must begin with http:// or https://"),
    ),
    (
        "alerts: {webhook: {url: 'http://h', headers_env: X}}",
        '{"a": 2}',
        (
            "alerts.webhook.headers_env:"
            ' what X holds: must be a JSON object of headers, such as {"Authorization": "Bearer x"}'
        ),
    ),
    (
        "alerts: {webhook: {url: 'http://h', headers_env: X}}",
        '{"a": "b\\nc"}',
        (
            "alerts.webhook.headers_env: what X holds: must be a JSON object of headers, such as"
            ' {"Authorization": "Bearer x"}'
        ),
    ),
    (
        "alerts: {heartbeat_url_env: X}",
        "hunter2",
        ("alerts.heartbeat_url_env: what X holds: must begin with http:// or https://"),
    ),
]


@pytest.mark.parametrize(("line", "value", "message"), WRONG)
def test_a_secret_of_the_wrong_form(tmp_path: Path, line: str, value: str, message: str) -> None:
    """What cannot be used is refused at start, in words that do not repeat it."""
    found = load(tmp_path, f"{line}\n{ROUTES}")
    assert refused(found, {**ENVIRON, "X": value}) == [f"1: {message}"]


def test_secrets_in_files(tmp_path: Path) -> None:
    """A name is looked up among the credentials, a path beside the file; one newline goes."""
    credentials = tmp_path / "credentials"
    credentials.mkdir()
    (credentials / "hook").write_bytes(b"hook\n")
    (tmp_path / "token").write_bytes(b"1:A\r\n")
    (tmp_path / "a").write_bytes(b"\xff two\n\n")
    (tmp_path / "b").write_bytes(b"plain")
    found = load(
        tmp_path,
        f"bot: {{token_file: ./token, secret_token_file: hook}}\n"
        "routes:\n  - name: shop\n    target_url: http://h/\n"
        f"    signing_secret_file: [{tmp_path}/a, ./b]\n",
    )
    secrets = found.secrets({"CREDENTIALS_DIRECTORY": str(credentials)})
    assert secrets.bot_token == "1:A"
    assert secrets.webhook == (b"hook",)
    assert secrets.signing == {"shop": (b"\xff two\n", b"plain")}
    (credentials / "hook").write_bytes(b"new")
    assert found.secrets({"CREDENTIALS_DIRECTORY": str(credentials)}).webhook == (b"new",)


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    """A missing, empty or huge file, or a name without credentials, is told with its path."""
    (tmp_path / "empty").write_bytes(b"\n")
    (tmp_path / "huge").write_bytes(b"x" * (64 << 10) + b"x")
    found = load(
        tmp_path,
        "bot: {token_file: ./empty, secret_token_file: hook, proxy_file: ./huge}\n"
        "routes:\n  - {name: a, target_url: 'http://h/', signing_secret_file: ./none}\n",
    )
    assert refused(found, {}) == [
        f"1: bot.proxy_file: {tmp_path}/huge is over 64 KiB: this is no secret",
        (
            "1: bot.secret_token_file: a name is looked up in $CREDENTIALS_DIRECTORY, which is not"
            " set; a path has a slash in it (./name)"
        ),
        f"1: bot.token_file: {tmp_path}/empty is empty",
        (
            f"3: route a: signing_secret_file: {tmp_path}/none cannot be read:"
            " No such file or directory"
        ),
    ]


def test_only_what_is_needed_is_looked_up(tmp_path: Path) -> None:
    """Commands that need the bot, or the store, do with what belongs to it."""
    found = load(tmp_path, "store: {url_env: R}\n" + ROUTES)
    bot = found.bot_secrets({"BOT_TOKEN": "1:A", "TELEGRAM_WEBHOOK_SECRET": "hook"})
    assert (bot.bot_token, bot.webhook, bot.signing) == ("1:A", (b"hook",), {})
    assert found.store_url({"R": "redis://h"}) == "redis://h"
    assert load(tmp_path, ROUTES).store_url({}) is None
    assert load(tmp_path, f"store: {{url: 'redis://h'}}\n{ROUTES}").store_url({}) == "redis://h"


def test_nothing_shows_a_secret(tmp_path: Path) -> None:
    """Neither the repr nor the text of Secrets holds one."""
    secrets = load(tmp_path, ROUTES).secrets(ENVIRON)
    for text in (repr(secrets), str(secrets), f"{secrets!r}"):
        assert not any(secret in text for secret in ("1:A", "hook", "sign"))
    assert isinstance(secrets, Secrets)


def test_a_url_in_the_file_hides_its_password_alone(tmp_path: Path) -> None:
    """What stands in the file itself is no secret but for the password in it."""
    found = load(tmp_path, f"store: {{url: 'redis://u:pass%2Fword@h'}}\n{ROUTES}")
    assert set(found.secrets(ENVIRON).all()) == {
        "1:A",
        "A",
        "hook",
        "sign",
        "pass%2Fword",
        "pass/word",
    }
