"""A secret that stands in the file, where only its name belongs, is in no error."""

from pathlib import Path

import pytest

from leaks import leaks
from twr import config
from twr.config import Config
from twr.errors import ConfigError

SECRET = "qV7fXz2LmKp9RwTd"
PASSPHRASE = "wybxkcuzqjvf"
TOKEN = "7012345678:AAqV7fXz2LmKp9RwTduJ4xNe8bYg6sHcQ"
ROUTES = "routes:\n  - {name: shop, target_url: 'http://h/', signing_secret_env: S}\n"
ENVIRON = {"TELEGRAM_WEBHOOK_SECRET": "hook", "S": "sign"}


def load(tmp_path: Path, text: str) -> Config:
    file = tmp_path / "twr.yaml"
    file.write_text(text)
    return config.load(file, {})


def problems(tmp_path: Path, text: str, environ: dict[str, str] | None = None) -> list[str]:
    """All that is said of a file and of its secrets."""
    try:
        found = load(tmp_path, text)
        return [it.message for it in found.secrets({**ENVIRON, **(environ or {})}).warnings]
    except ConfigError as error:
        return [problem.message for problem in error.problems]


IN_PLACE_OF_A_NAME = [
    ("bot: {{token: {}}}", "bot.token: a secret never stands in the file"),
    ("bot: {{token: *{}}}", "not valid YAML: found undefined alias"),
    ("bot: {{token: !{} x}}", "a tag that is not known here"),
    ("bot: {{token: !a!{} x}}", "not valid YAML: found undefined tag handle"),
    ("bot: {{token: !!int {}}}", "the value is not what its tag says"),
    ("bot: {{token_env: {}}}", "bot.token_env: the variable that it names is not set"),
    ("bot: {{secret_token_env: [{}, S]}}", "bot.secret_token_env: the variable that it names"),
    ("bot: {{token_file: {}}}", "bot.token_file: a name is looked up in $CREDENTIALS_DIRECTORY"),
    ("bot: {{username: {}.}}", "bot.username: must be the bot's username"),
    ("store: {{url: {}}}", "store.url: must begin with redis://"),
    ("store: {{url: 'redis://:{}@h:port/0'}}", "store.url: is no URL: look at its host and port"),
    ("alerts: {{webhook: {{url: 'http://u:{}@/'}}}}", "alerts.webhook.url: the URL has no host"),
    ("alerts: {{webhook: {{headers: {}}}}}", "alerts.webhook.headers: a secret never stands"),
]


@pytest.mark.parametrize("secret", [SECRET, PASSPHRASE, TOKEN])
@pytest.mark.parametrize(("line", "expected"), IN_PLACE_OF_A_NAME, ids=lambda it: it[:30])
def test_in_place_of_its_name(tmp_path: Path, line: str, expected: str, secret: str) -> None:
    """The error says what to do, at the line, and repeats no part of it."""
    if "_env" in line and ":" in secret:
        expected = expected.partition(": ")[0] + ": must be the name of a variable"
    found = problems(tmp_path, f"{line.format(secret)}\n{ROUTES}")
    if "username" not in line or secret == TOKEN:
        assert leaks("\n".join(found), [secret]) == []
    assert [message for message in found if message.startswith(expected)] != []


def test_in_place_of_a_credential(tmp_path: Path) -> None:
    """Nor where the credentials are known, and hold nothing of that name."""
    text = f"bot: {{token_file: {SECRET}}}\n{ROUTES}"
    assert problems(tmp_path, text, {"CREDENTIALS_DIRECTORY": str(tmp_path)}) == [
        (
            "bot.token_file: the file of that name in $CREDENTIALS_DIRECTORY cannot be read:"
            " No such file or directory"
        )
    ]


@pytest.mark.parametrize("name", ["SHOP_SECRET", "S2", "shop_secret", "shop_secret2"])
def test_what_is_called_as_variables_are_is_named(tmp_path: Path, name: str) -> None:
    """In capitals, or in words joined by underscores."""
    assert problems(tmp_path, f"bot: {{proxy_env: {name}}}\n{ROUTES}") == [
        f"bot.proxy_env: the variable {name} is not set",
    ]


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://:{}/x@h:1/m",
        "redis://:{}\u2100@h:1/0",
        "redis://:x[{}]@h:1/0",
        "redis://:{}/x@h:1/0",
    ],
)
def test_in_a_url_that_is_none(tmp_path: Path, url: str) -> None:
    """Python's own words for it repeat the user and the password."""
    found = problems(tmp_path, f"store: {{url_env: R}}\n{ROUTES}", {"R": url.format(SECRET)})
    assert [it.startswith("store.url_env: what R holds: ") for it in found] == [True]
    assert leaks(found[0], [SECRET]) == []


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://u:{}@h:1/0", "redis://h:1/0"),
        ("redis://h:1/0?username=u&password={}", "redis://h:1/0?username=u&password=***"),
        (
            "redis+sentinel://u:x@h:1,g:1/m/0?sentinel_username=u&sentinel_password={}",
            "redis+sentinel://h:1,g:1/m/0?sentinel_username=u&sentinel_password=***",
        ),
        ("unix:///run/redis.sock?db=1&password={}", "unix:/run/redis.sock?db=1&password=***"),
    ],
)
def test_the_password_of_a_store(tmp_path: Path, url: str, shown: str) -> None:
    """Before the host or in the query, where Sentinel's own can only be: it is hidden, and a
    warning says where it belongs."""
    found = load(tmp_path, f"store:\n  url: '{url.format(SECRET)}'\n{ROUTES}")
    assert str(found.store) == shown
    assert SECRET in found.secrets(ENVIRON).all()
    assert [(it.line, it.message) for it in found.warnings] == [
        (2, "store.url: holds a password; url_env takes the whole URL from a variable")
    ]


def test_what_is_hidden_of_a_token_and_of_headers(tmp_path: Path) -> None:
    """The token without the bot's id too, and what a header holds behind its first word."""
    text = f"alerts: {{webhook: {{url: 'http://h', headers_env: H}}}}\n{ROUTES}"
    headers = f'{{"Authorization": "Bearer {SECRET}"}}'
    found = load(tmp_path, text).secrets({**ENVIRON, "BOT_TOKEN": TOKEN, "H": headers})
    hidden = {TOKEN, TOKEN.partition(":")[2], "hook", "sign", headers, f"Bearer {SECRET}", SECRET}
    assert set(found.all()) == hidden
