"""The log as its readers see it."""

import io
import logging
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from twr.core.clock import Clock
from twr.core.system import NOTICE
from twr.edges import logs
from twr.edges.logs import Log, Style


class Time:
    """A clock that only moves when told to."""

    def __init__(self) -> None:
        self.now = 1_788_088_524.25

    def clock(self) -> Clock:
        return Clock(time=lambda: self.now, monotonic=lambda: self.now)


class Bench:
    """A logger of its own, wired to one handler that writes into memory."""

    def __init__(self, style: Style, secrets: tuple[str, ...] = ()) -> None:
        self.stream = io.StringIO()
        self.time = Time()
        self.handler = Log(self.stream, style, self.time.clock(), colour=False)
        self.handler.hide(secrets)
        self.log = logging.getLogger("twr.bench")
        self.log.setLevel(logging.DEBUG)
        self.log.propagate = False
        self.log.handlers = [self.handler]

    def lines(self) -> list[str]:
        """Everything written; the handler is closed."""
        self.handler.close()
        return self.stream.getvalue().splitlines()


@pytest.fixture
def bench() -> Iterator[Callable[..., Bench]]:
    """Makes benches, and undoes what they did to the process."""
    made: list[Bench] = []

    def make(style: Style = Style.JOURNAL, secrets: tuple[str, ...] = ()) -> Bench:
        made.append(Bench(style, secrets))
        return made[-1]

    yield make
    for each in made:
        each.handler.close()
        each.log.handlers = []
        each.log.propagate = True


Make = Callable[..., Bench]


@pytest.mark.parametrize(
    ("level", "priority"),
    [
        (logging.DEBUG, 7),
        (logging.INFO, 6),
        (NOTICE, 5),
        (logging.WARNING, 4),
        (logging.ERROR, 3),
        (logging.CRITICAL, 2),
    ],
)
def test_the_journal_gets_a_priority_and_no_time(bench: Make, level: int, priority: int) -> None:
    """journald adds the time itself and reads `<N>` as the priority."""
    made = bench()
    made.log.log(level, "store down %s", "url=redis")
    assert made.lines() == [f"<{priority}>store down url=redis"]


def test_every_line_of_a_traceback_has_the_priority(bench: Make) -> None:
    """journald makes an entry of each line, so that each needs its own prefix."""
    made = bench()
    try:
        raise ValueError("two\nlines")
    except ValueError:
        made.log.exception("delivery crashed")
    lines = made.lines()
    assert (lines[0], lines[1], lines[-2:]) == (
        "<3>delivery crashed",
        "<3>Traceback (most recent call last):",
        ["<3>ValueError: two", "<3>lines"],
    )
    assert all(line.startswith("<3>") for line in lines)


def test_elsewhere_a_line_has_time_and_level(bench: Make) -> None:
    """A plain file or pipe gets ISO time in UTC."""
    made = bench(Style.PLAIN)
    made.log.warning("store down %s", "url=redis")
    (line,) = made.lines()
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z warning  store down url=redis", line
    )


def test_a_terminal_shows_seconds_since_the_start(bench: Make) -> None:
    """A person sees how long ago the start was, not a date."""
    made = bench(Style.TERMINAL)
    record = made.log.makeRecord("twr.x", logging.INFO, "f", 1, "route added", (), None)
    record.created = made.time.now + 12.5
    made.log.handle(record)
    assert made.lines() == ["   12.500 info     route added"]


def test_no_text_can_forge_a_line(bench: Make) -> None:
    """Further lines of a record are indented, control characters escaped."""
    made = bench(Style.PLAIN)
    made.log.error("bad %s", "a\n2026-01-01T00:00:00.000Z error forged\r\x1b[31m")
    lines = made.lines()
    assert lines[0].endswith("error    bad a")
    assert lines[1:] == ["    2026-01-01T00:00:00.000Z error forged\\x0d\\x1b[31m"]


def test_other_packages_are_named(bench: Make) -> None:
    """A line of a dependency says whose it is; our own begin with their subject."""
    made = bench()
    for name in ("aiohttp.client", "twr", "twr.store", "twrx"):
        made.handler.handle(made.log.makeRecord(name, 30, "f", 1, "something", (), None))
    assert made.lines() == [
        "<4>aiohttp.client: something",
        "<4>something",
        "<4>something",
        "<4>twrx: something",
    ]


TOKEN = '123456:AAbb-Secret_token/with"quote'


@pytest.mark.parametrize(
    "shown",
    [
        TOKEN,
        "123456%3AAAbb-Secret_token%2Fwith%22quote",
        '123456:AAbb-Secret_token/with\\"quote',
    ],
)
def test_secrets_are_masked_in_messages(bench: Make, shown: str) -> None:
    """A secret is hidden as it is, quoted for a URL and quoted as a log field."""
    made = bench(secrets=(TOKEN,))
    made.log.warning("asked %s", f"https://api/bot{shown}/getMe")
    assert made.lines() == ["<4>asked https://api/bot***/getMe"]


def test_secrets_are_masked_in_tracebacks_and_sums(bench: Make) -> None:
    """Neither an exception's text nor a summary shows a secret."""
    made = bench(secrets=(TOKEN,))
    for _ in range(8):
        try:
            raise ValueError(f"no {TOKEN}")
        except ValueError:
            made.log.exception("failed %s", f"with={TOKEN}")
    text = "\n".join(made.lines())
    assert TOKEN not in text
    assert text.count("<3>ValueError: no ***") == 5
    assert "<3>failed with=*** … repeated 3 times in 0 s" in text


def test_a_secret_of_a_few_letters_blanks_nothing(bench: Make) -> None:
    """Masking `a` everywhere would make the log useless."""
    made = bench(secrets=("a", ""))
    made.log.warning("a route was added")
    assert made.lines() == ["<4>a route was added"]


def test_secrets_learnt_later_are_masked_too(bench: Make) -> None:
    """A reload adds secrets and forgets none."""
    made = bench(secrets=("old-secret",))
    made.handler.hide(["new-secret"])
    made.log.warning("old-secret new-secret")
    assert made.lines() == ["<4>*** ***"]


def test_a_flood_of_one_failure_is_summed_up(bench: Make) -> None:
    """Five lines at once, one sum for the rest, and other subjects pass."""
    made = bench()
    for number in range(1000):
        made.log.warning("delivery failed %s", f"route=shop update={number}")
    made.log.warning("delivery failed %s", "route=other update=1")
    assert made.lines() == [
        *(f"<4>delivery failed route=shop update={number}" for number in range(5)),
        "<4>delivery failed route=other update=1",
        "<4>delivery failed route=shop update=999 … repeated 995 times in 0 s",
    ]


def test_a_flood_of_many_subjects_is_summed_up(bench: Make) -> None:
    """A thousand different subjects of one failure are no thousand lines."""
    made = bench()
    for number in range(1000):
        made.log.warning("update refused %s", f"update={number}")
    lines = made.lines()
    assert len(lines) == 51
    assert lines[-1] == "<4>update refused update=999 … repeated 950 times in 0 s"


def test_the_sum_comes_after_a_minute_by_itself(bench: Make) -> None:
    """Nobody has to log anything for the sum to be told."""
    made = bench()
    for _ in range(7):
        made.log.warning("store down")
    made.time.now += 60
    deadline = time.monotonic() + 10
    while "repeated" not in made.stream.getvalue() and time.monotonic() < deadline:
        threading.Event().wait(0.02)
    assert "<4>store down … repeated 2 times in 60 s\n" in made.stream.getvalue()


def test_what_is_no_failure_is_never_held_back(bench: Make) -> None:
    """Information and notices all pass."""
    made = bench()
    for _ in range(20):
        made.log.info("reload done")
        made.log.log(NOTICE, "ALERT resolved store_down")
    assert len(made.lines()) == 40


def test_an_alert_is_never_held_back(bench: Make) -> None:
    """However often the same one fires, each time has its line."""
    made = bench()
    for _ in range(60):
        record = made.log.makeRecord("twr.alerts", 40, "f", 1, "ALERT firing store_down", (), None)
        made.handler.handle(record)
    assert made.lines() == ["<3>ALERT firing store_down"] * 60


def test_a_broken_record_is_named_without_its_arguments(bench: Make) -> None:
    """A mistake in a log call is one line that shows no value, and the log goes on."""
    made = bench(secrets=())
    made.log.warning("two %s %s", "only-one-argument")
    made.log.warning("fine")
    lines = made.lines()
    assert re.fullmatch(r"<3>log record unusable at=\S+test_logs\.py:\d+ error=TypeError", lines[0])
    assert lines[1:] == ["<4>fine"]


def test_an_argument_that_cannot_be_shown_does_not_recurse(bench: Make) -> None:
    """An object whose str() logs and fails costs one line each."""
    made = bench()

    class Awkward:
        def __str__(self) -> str:
            made.log.warning("inside")
            raise RuntimeError

    made.log.warning("shows %s", Awkward())
    assert any("log record unusable" in line for line in made.lines())


def test_cancelled_connections_are_no_errors(bench: Make) -> None:
    """asyncio's report of a cancelled connection handler is dropped."""
    made = bench()
    import asyncio

    error = asyncio.CancelledError()
    record = logging.LogRecord("asyncio", 40, "f", 1, "x", (), (type(error), error, None))
    made.handler.handle(record)
    assert made.lines() == []


class Stuck(io.StringIO):
    """A stream whose reader has stopped reading."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()

    def write(self, text: str) -> int:
        self.go.wait()
        return super().write(text)


def test_a_reader_that_stalls_holds_up_nobody() -> None:
    """Logging goes on, lines beyond the queue are counted, and the count is told."""
    stream = Stuck()
    handler = Log(stream, Style.JOURNAL, Time().clock())
    record = logging.LogRecord("twr.x", logging.INFO, "f", 1, "line", (), None)
    started = time.monotonic()
    for _ in range(logs.QUEUE_LINES + 1000):
        handler.handle(record)
    assert time.monotonic() - started < 5
    stream.go.set()
    handler.close()
    lines = stream.getvalue().splitlines()
    (lost,) = [line for line in lines if "lost" in line]
    assert 990 <= int(lost.removeprefix("<4>log lines lost count=")) <= 1000
    assert len(lines) == logs.QUEUE_LINES + 1000 - int(lost.split("=")[1]) + 1


def test_a_reader_that_is_gone_is_no_error(bench: Make) -> None:
    """A closed stream swallows the lines; logging and closing still work."""
    made = bench()
    made.stream.close()
    made.log.warning("to nobody")
    made.handler.close()


def run(code: str, level: int = logging.INFO, **options: Any) -> subprocess.CompletedProcess[str]:
    """A process that sets the log up on its stderr and runs `code`."""
    prelude = (
        "import logging, os, sys, threading, time, warnings\n"
        "from twr.core.clock import Clock\nfrom twr.edges import logs\n"
        "log = logs.setup(sys.stderr, os.environ, Clock(time.time, time.monotonic),"
        f" level={level}, secrets=['hunter-2-hunter'])\nlogger = logging.getLogger('twr.x')\n"
    )
    options.setdefault("stderr", subprocess.PIPE)
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **options.pop("env", {})}
    return subprocess.run(
        [sys.executable, "-c", prelude + code], env=environ, text=True, timeout=30, **options
    )


def test_a_journal_stream_is_recognised_by_its_inode() -> None:
    """JOURNAL_STREAM counts only where it names the very stream that is written to."""
    read, write = os.pipe()
    stat = os.fstat(write)
    right, wrong = f"{stat.st_dev}:{stat.st_ino}", f"{stat.st_dev}:{stat.st_ino + 1}"
    try:
        for stream in (right, wrong):
            run("logger.warning('hello')", stderr=write, env={"JOURNAL_STREAM": stream})
    finally:
        os.close(write)
    with os.fdopen(read) as output:
        first, second = output.read().splitlines()
    assert first == "<4>hello"
    assert second.endswith("Z warning  hello")


def test_the_last_words_of_a_crash_are_written_and_masked() -> None:
    """An uncaught exception reaches the log in full, without secrets, before the end."""
    done = run("logger.info('before')\nraise ValueError('no hunter-2-hunter')")
    lines = done.stderr.splitlines()
    assert done.returncode == 1
    assert lines[0].endswith("info     before")
    assert lines[1].endswith("critical uncaught")
    assert lines[-1] == "    ValueError: no ***"


def test_a_crash_in_a_thread_is_logged() -> None:
    """Exceptions of threads end up in the log as well."""
    done = run("t = threading.Thread(target=lambda: 1 / 0)\nt.start()\nt.join()")
    assert done.returncode == 0
    assert done.stderr.splitlines()[-1] == "    ZeroDivisionError: division by zero"


def test_third_parties_speak_from_warnings_on() -> None:
    """Our information is shown, that of dependencies is not; Python's warnings are."""
    done = run(
        "logger.info('ours')\nlogging.getLogger('aiohttp.client').info('theirs')\n"
        "logging.getLogger('hypercorn.error').info('Running on')\n"
        "logging.getLogger('redis').warning('theirs too')\nwarnings.warn('old')"
    )
    ends = [line[25:] for line in done.stderr.splitlines() if line.startswith("2")]
    assert ends == [
        "info     ours",
        "warning  redis: theirs too",
        "warning  py.warnings: <string>:10: UserWarning: old",
    ]


@pytest.mark.parametrize("level", [logging.DEBUG, logging.WARNING, logging.ERROR])
def test_the_end_of_an_alert_is_told_at_any_level(level: int) -> None:
    """Whoever reads little still learns what is over, not only what began."""
    done = run(
        "alerts = logging.getLogger('twr.alerts')\n"
        "alerts.error('ALERT firing store_down')\nalerts.log(25, 'ALERT resolved store_down')",
        level,
    )
    assert [line[25:] for line in done.stderr.splitlines()] == [
        "error    ALERT firing store_down",
        "notice   ALERT resolved store_down",
    ]


def test_closing_gives_the_process_back() -> None:
    """After close the default hooks are in place, so that nothing is lost in silence."""
    done = run(
        "log.close()\nprint(sys.excepthook is sys.__excepthook__)\nraise ValueError('late')",
        stdout=subprocess.PIPE,
    )
    assert done.stdout == "True\n"
    assert done.stderr.splitlines()[-1] == "ValueError: late"


def test_a_full_pipe_at_the_end_costs_two_seconds_at_most() -> None:
    """A reader that never reads cannot hold up the exit."""
    read, write = os.pipe()
    started = time.monotonic()
    try:
        done = run("for n in range(5000): logger.info('x' * 100)", stderr=write)
        assert done.returncode == 0
        assert time.monotonic() - started < 15
    finally:
        os.close(read)
        os.close(write)
