"""Every error twr raises on purpose, and the exit code each one means.

    TwrError                      1   a finding or a failure
    ├── UsageError                2   the command line asks for what cannot be
    ├── NotFound                  1   no route, dead letter or reason of that name
    ├── StoreError               69
    │   ├── StoreUnavailable     69   down, loading, too slow
    │   ├── StoreFull            69   up, and refusing writes for want of memory or disk
    │   └── StoreUnfit           78   a server or a setting that would lose updates
    ├── TelegramError            69
    │   ├── TelegramUnreachable  69   no usable answer: network, timeout, 5xx, not JSON
    │   └── TelegramRefused      69   an answer with ok: false
    │       └── TokenInvalid     69   401 or 404: the bot token is not (or no longer) right
    ├── DaemonUnreachable        69   no running twr answers at its admin listener
    ├── Replaced                 76   a newer process runs under the same instance name
    └── ConfigError              78   the configuration, one Problem per fault

The text of an error is one line for a person: what is wrong, where, what to do.
No error carries a secret.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar


class TwrError(Exception):
    """The base of all errors raised on purpose; `exit_code` is what a command ends with."""

    exit_code: ClassVar[int] = 1


class UsageError(TwrError):
    """The arguments of a command do not fit together."""

    exit_code = 2


class NotFound(TwrError):
    """Something named by the user does not exist; the text names the nearest that does."""


class StoreError(TwrError):
    """The store did not do what was asked of it."""

    exit_code = 69


class StoreUnavailable(StoreError):
    """The store is down, still loading, or did not answer in time."""


class StoreFull(StoreError):
    """The store answers, but takes no writes until there is room."""


class StoreUnfit(StoreError):
    """The store runs, but with a version or a setting with which updates would be lost."""

    exit_code = 78


class TelegramError(TwrError):
    """The Bot API did not do what was asked of it."""

    exit_code = 69


class TelegramUnreachable(TelegramError):
    """No usable answer: connection, timeout, 5xx, or something that is no Bot API answer."""


class TelegramRefused(TelegramError):
    """The Bot API answered `ok: false`.

    `code` is its error_code, `description` its text, `retry_after` seconds or None.
    """

    def __init__(self, code: int, description: str, retry_after: int | None = None) -> None:
        super().__init__(f"Telegram refused: {code} {description}")
        self.code = code
        self.description = description
        self.retry_after = retry_after


class TokenInvalid(TelegramRefused):
    """The Bot API knows no bot of this token (401 or 404)."""


class DaemonUnreachable(TwrError):
    """The daemon gives no usable answer at its admin listener."""

    exit_code = 69


class Replaced(TwrError):
    """A newer process has taken over this instance's name."""

    exit_code = 76


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One fault of a configuration file. `line` counts from 1; 0 means the whole file."""

    file: str
    line: int
    message: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        return f"{where}: {self.message}"


class ConfigError(TwrError):
    """All faults of a configuration, in the order of their lines."""

    exit_code = 78

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(sorted(problems))
        super().__init__("\n".join(str(problem) for problem in self.problems))
