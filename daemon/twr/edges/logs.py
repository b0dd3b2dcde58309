"""The log: one line per event, shaped for whoever reads it, and never in the way.

Formatting happens where a line is logged, writing in a thread of its own: a reader that
stalls costs lines (counted), not the event loop.
"""

import atexit
import contextlib
import logging
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from types import TracebackType
from typing import TextIO

from twr.core.clock import Clock
from twr.core.flood import Flood, Repeated
from twr.core.masking import Mask
from twr.core.system import NOTICE
from twr.core.text import clip, escape, kv

QUEUE_LINES = 10_000
LINE_LENGTH = 16_000
SUBJECT_BURST = 5
TEMPLATE_BURST = 50
FLUSH_TIMEOUT = 2.0
NEWS_EVERY = 1.0

_ALERTS = "twr.alerts"
_QUIET = ("hypercorn.access", "hypercorn.error", "asyncio", "aiohttp", "watchfiles", "quart")
_COLOURS = {"debug": 2, "notice": 36, "warning": 33, "error": 31, "critical": 35}


class Style(Enum):
    """Who reads the log."""

    JOURNAL = "journal"
    TERMINAL = "terminal"
    PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class Line:
    """What was logged, ready but for its prefix. `time` is unix seconds."""

    level: int
    time: float
    text: str


def setup(
    stream: TextIO,
    environ: Mapping[str, str],
    clock: Clock,
    *,
    level: int = logging.INFO,
    secrets: Iterable[str] = (),
) -> "Log":
    """Send all logging, warnings and uncaught exceptions of the process to `stream`.

    Our own loggers (`twr.*`) speak from `level` on, everybody else from WARNING; an alert
    is told at any level, also that it is over. The texts of `secrets` are masked wherever
    they appear; `Log.hide` adds more.
    """
    logging.addLevelName(NOTICE, "NOTICE")
    log = Log(stream, style_of(stream, environ), clock, colour="NO_COLOR" not in environ)
    log.hide(secrets)
    root = logging.getLogger()
    for handler in list(root.handlers):
        root.removeHandler(handler)
    root.addHandler(log)
    root.setLevel(logging.WARNING)
    logging.getLogger("twr").setLevel(level)
    logging.getLogger(_ALERTS).setLevel(min(level, NOTICE))
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.captureWarnings(capture=True)
    sys.excepthook = _uncaught
    threading.excepthook = _uncaught_in_thread
    return log


def style_of(stream: TextIO, environ: Mapping[str, str]) -> Style:
    """JOURNAL where JOURNAL_STREAM (device:inode) names the very file behind `stream`."""
    with contextlib.suppress(OSError, ValueError):
        stat = os.fstat(stream.fileno())
        if environ.get("JOURNAL_STREAM") == f"{stat.st_dev}:{stat.st_ino}":
            return Style.JOURNAL
        if stream.isatty():
            return Style.TERMINAL
    return Style.PLAIN


class Log(logging.Handler):
    """The one handler of the process.

    Records of the same template and subject (the first word after the template's own)
    are let through a few at a time and summed up once a minute, from WARNING on; each
    alert has its own line.
    """

    def __init__(self, stream: TextIO, style: Style, clock: Clock, *, colour: bool = True) -> None:
        super().__init__()
        self._stream = stream
        self._clock = clock
        self._prefix = _prefixer(style, clock.time(), colour)
        self._mask = Mask()
        self._subjects: Flood[Line] = Flood(SUBJECT_BURST)
        self._templates: Flood[Line] = Flood(TEMPLATE_BURST)
        self._lines: queue.Queue[Line | None] = queue.Queue(QUEUE_LINES)
        self._lost = 0
        self._news_at = 0.0
        self._closed = False
        self.setFormatter(logging.Formatter())
        self._writer = threading.Thread(target=self._write_all, name="log", daemon=True)
        self._writer.start()
        atexit.register(self.close)

    def hide(self, secrets: Iterable[str]) -> None:
        """Mask these texts too, from now on."""
        self._mask = self._mask.adding(secrets)

    def emit(self, record: logging.LogRecord) -> None:
        """Format, count or queue one record; never waits, never raises."""
        try:
            if not _is_noise(record) and self._admit(record):
                text = self._named(record, self.format(record))
                self._put(Line(record.levelno, record.created, text))
        except Exception as error:
            self._put(_unusable(record, error))

    def close(self) -> None:
        """Write what is queued, waiting 2 s at most for whoever reads, and step aside."""
        self.acquire()
        try:
            if self._closed:
                return
            self._closed = True
            now = self._clock.monotonic()
            rest = [*self._subjects.rest(now), *self._templates.rest(now)]
        finally:
            self.release()
        for repeated in rest:
            self._put(_summary(repeated, self._clock.time()))
        _take_out(self)
        with contextlib.suppress(queue.Full):
            self._lines.put(None, timeout=FLUSH_TIMEOUT)
            self._writer.join(FLUSH_TIMEOUT)
        atexit.unregister(self.close)
        super().close()

    def _named(self, record: logging.LogRecord, text: str) -> str:
        if record.name != "twr" and not record.name.startswith("twr."):
            text = f"{record.name}: {text}"
        return self._mask(text)

    def _admit(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING or record.name == _ALERTS:
            return True
        now = self._clock.monotonic()
        template = record.name, record.levelno, str(record.msg)
        line = Line(record.levelno, record.created, self._named(record, record.getMessage()))
        return self._subjects.admit((template, _subject(record)), line, now) and (
            self._templates.admit(template, line, now)
        )

    def _put(self, line: Line) -> None:
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._lost += 1

    def _write_all(self) -> None:
        line: Line | None = Line(0, 0, "")
        while line is not None:
            with contextlib.suppress(queue.Empty):
                line = self._lines.get(timeout=NEWS_EVERY)
                if line is not None:
                    self._write(line)
            for news in self._news():
                self._write(news)

    def _news(self) -> list[Line]:
        """What the log has to say of itself, once a second: lines held back, lines lost."""
        now = self._clock.monotonic()
        if now < self._news_at and not self._closed:
            return []
        self._news_at = now + NEWS_EVERY
        self.acquire()
        try:
            repeated = [*self._subjects.due(now), *self._templates.due(now)]
        finally:
            self.release()
        time = self._clock.time()
        news = [_summary(each, time) for each in repeated]
        if self._lost:
            lost, self._lost = self._lost, 0
            news.append(Line(logging.WARNING, time, f"log lines lost count={lost}"))
        return news

    def _write(self, line: Line) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(self._prefix(line))
            self._stream.flush()


def _take_out(log: Log) -> None:
    logging.getLogger().removeHandler(log)
    logging.captureWarnings(capture=False)
    sys.excepthook = sys.__excepthook__
    threading.excepthook = threading.__excepthook__


def _is_noise(record: logging.LogRecord) -> bool:
    """asyncio reports the cancelled connections of a shutdown as errors; they are none."""
    exception = record.exc_info[0] if record.exc_info else None
    return record.name == "asyncio" and getattr(exception, "__name__", "") == "CancelledError"


def _subject(record: logging.LogRecord) -> str:
    arguments = record.args if isinstance(record.args, tuple) else ()
    return str(arguments[0]).split(" ", 1)[0][:100] if arguments else ""


def _summary(repeated: Repeated[Line], now: float) -> Line:
    first = repeated.last.text.split("\n", 1)[0]
    text = f"{first} … repeated {repeated.count} times in {repeated.seconds:.0f} s"
    return Line(repeated.last.level, now, text)


def _unusable(record: logging.LogRecord, error: Exception) -> Line:
    """Says which record failed, without its arguments: they may hold anything."""
    fields = kv(at=f"{record.pathname}:{record.lineno}", error=type(error).__name__)
    return Line(logging.ERROR, record.created, f"log record unusable {fields}")


def _prefixer(style: Style, started: float, colour: bool) -> Callable[[Line], str]:
    """Turns a line into what is written; no line of it can pass for another record."""

    def journal(line: Line) -> str:
        prefix = f"<{_priority(line.level)}>"
        return "".join(f"{prefix}{part}\n" for part in _parts(line.text))

    def terminal(line: Line) -> str:
        level = _level_name(line.level)
        paint = f"\x1b[{_COLOURS[level]}m" if colour and level in _COLOURS else ""
        shown = f"{paint}{level:<8}\x1b[0m" if paint else f"{level:<8}"
        return f"{line.time - started:9.3f} {shown} " + "\n    ".join(_parts(line.text)) + "\n"

    def plain(line: Line) -> str:
        stamp = datetime.fromtimestamp(line.time, UTC).isoformat(timespec="milliseconds")
        head = f"{stamp.replace('+00:00', 'Z')} {_level_name(line.level):<8} "
        return head + "\n    ".join(_parts(line.text)) + "\n"

    return {Style.JOURNAL: journal, Style.TERMINAL: terminal, Style.PLAIN: plain}[style]


def _parts(text: str) -> list[str]:
    parts = [clip(escape(part), LINE_LENGTH) for part in text.split("\n") if part.strip()]
    return parts or [""]


def _priority(level: int) -> int:
    """The priority of syslog(3) that journald reads from `<N>`, see sd-daemon(3)."""
    for least, priority in ((50, 2), (40, 3), (30, 4), (NOTICE, 5), (20, 6)):
        if level >= least:
            return priority
    return 7


def _level_name(level: int) -> str:
    return logging.getLevelName(level).lower()


def _uncaught(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        logging.getLogger("twr").critical("uncaught", exc_info=(kind, error, traceback))


def _uncaught_in_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None:
        _uncaught(args.exc_type, args.exc_value, args.exc_traceback)
