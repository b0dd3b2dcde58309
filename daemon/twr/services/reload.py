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
RETRY = 5.0


async def run(file: Path, reload: Callable[[str], Awaitable[None]], stop: anyio.Event) -> None:
    """Call `reload` with the cause whenever the content of `file` has changed, until `stop`.

    The directories are watched, not the file: editors and git put a new one in its place.
    """
    seen = _content(file)
    while not stop.is_set():
        try:
            async for _ in awatch(
                *_directories(file),
                watch_filter=_only(file),
                debounce=STILL_MS * 10,
                step=STILL_MS,
                stop_event=stop,
                recursive=False,
                raise_interrupt=False,
            ):
                now = _content(file)
                if now is not None and now != seen:
                    seen = now
                    await reload("file changed")
        except OSError as error:
            reason = (error.strerror or type(error).__name__).lower()
            log.warning("config not watched %s", kv(error=reason, hint="reload by SIGHUP"))
            await pace.wait(stop, RETRY)


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
