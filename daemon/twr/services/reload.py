"""Watches the configuration file, through an editor's rename and a git pull."""

import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
from watchfiles import Change, awatch

from twr import pace
from twr.core.text import kv

log = logging.getLogger("twr.reload")

# A file is read only once it has been still for so long.
STILL_MS = 300
# What no sign came of (a change before the watch began, a file system that gives none) is found at
# the next look.
LOOK_MS = 5000
RETRY = 5.0


class ConfigWatch:
    """Watches `file`, whose content is known from the start: make it where the file is loaded."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._seen = _content(file)
        self._unsure: bytes | None = None

    async def run(self, reload: Callable[[str], Awaitable[None]], stop: anyio.Event) -> None:
        """Call `reload` with the cause whenever the content of the file has changed, until `stop`.

        The directories are watched, not the file: editors and git put a new one in its place.
        """
        while not stop.is_set():
            try:
                async for changes in awatch(
                    *_directories(self._file),
                    watch_filter=_only(self._file),
                    debounce=STILL_MS * 10,
                    step=STILL_MS,
                    stop_event=stop,
                    rust_timeout=LOOK_MS,
                    yield_on_timeout=True,
                    recursive=False,
                ):
                    await self._look(reload, still=bool(changes))
            except OSError as error:
                reason = (error.strerror or type(error).__name__).lower()
                log.warning("config not watched %s", kv(error=reason, hint="reload by SIGHUP"))
                await pace.wait(stop, RETRY)

    async def _look(self, reload: Callable[[str], Awaitable[None]], *, still: bool) -> None:
        now = _content(self._file)
        if now is None or now == self._seen:
            return
        # Somebody may be writing it just now: then a second look has to find the same.
        if not still and now != self._unsure:
            self._unsure = now
            return
        self._seen = now
        await reload("file changed")


def _directories(file: Path) -> list[Path]:
    """Where the file is, and where it really is if it is a link."""
    return sorted({file.absolute().parent, file.resolve().parent})


def _only(file: Path) -> Callable[[Change, str], bool]:
    names = {str(file.absolute()), str(file.resolve())}
    # A mounted config map swaps a directory that the file's link leads through.
    through_link = file.is_symlink()

    def wanted(_change: Change, path: str) -> bool:
        return through_link or path in names

    return wanted


def _content(file: Path) -> bytes | None:
    """None while there is no file, as between an editor's two steps."""
    try:
        return file.read_bytes()
    except OSError:
        return None
