"""Watches the configuration file, through an editor's rename and a git pull."""

import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
from watchfiles import Change, awatch
from watchfiles._rust_notify import WatchfilesRustInternalError

from twr import pace
from twr.core.text import kv

log = logging.getLogger("twr.reload")

# A file is loaded only once it has been still for so long.
STILL = 0.3
# What no sign came of (a change before the watch began, a file system that gives none, no watch to
# be had) is found at the next look.
LOOK = 5.0
RETRY = 60.0

Reload = Callable[[str], Awaitable[None]]


class ConfigWatch:
    """Watches `file`, which was loaded when it held `content`."""

    def __init__(self, file: Path, content: bytes) -> None:
        self._file = file
        self._seen = content

    def loaded(self, content: bytes) -> None:
        """The file was loaded by other means, when it held this."""
        self._seen = content

    async def run(self, reload: Reload, stop: anyio.Event) -> None:
        """Call `reload` with the cause whenever the content of the file has changed, until `stop`.

        The directories are watched, not the file: editors and git put a new one in its place.
        """
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._look_at_times, reload, stop)
            await self._watch(reload, stop)

    async def _look_at_times(self, reload: Reload, stop: anyio.Event) -> None:
        while not await pace.wait(stop, LOOK):
            await self._look(reload, stop)

    async def _watch(self, reload: Reload, stop: anyio.Event) -> None:
        told = False
        while not stop.is_set():
            try:
                async for _ in awatch(
                    *_directories(self._file),
                    watch_filter=_only(self._file),
                    stop_event=stop,
                    recursive=False,
                ):
                    await self._look(reload, stop)
            except (OSError, WatchfilesRustInternalError) as error:
                # The machine's limit of watches, for one, is no reason to end.
                if not told:
                    hint = f"the file is looked at every {LOOK:g} s"
                    log.warning("config not watched %s", kv(error=_reason(error), hint=hint))
                told = True
                await pace.wait(stop, RETRY)

    async def _look(self, reload: Reload, stop: anyio.Event) -> None:
        found = _content(self._file)
        while found is not None and found != self._seen:
            if await pace.wait(stop, STILL):
                return
            before, found = found, _content(self._file)
            if found == before and found != self._seen:
                self._seen = found
                await reload("file changed")


def _reason(error: Exception) -> str:
    said = error.strerror if isinstance(error, OSError) else str(error)
    return (said or type(error).__name__).lower()


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
