"""Watching the configuration file."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
from watchfiles._rust_notify import WatchfilesRustInternalError

from twr.services import reload
from twr.services.reload import ConfigWatch
from until import until

pytestmark = pytest.mark.anyio


async def test_a_change_before_the_watch_begins_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What changed between loading the file and watching it gives no sign, and is loaded all the
    same, once."""
    monkeypatch.setattr(reload, "LOOK", 0.05)
    file = tmp_path / "twr.yaml"
    watch = ConfigWatch(file, b"a: 1")
    file.write_text("a: 2")
    causes: list[str] = []
    stop = anyio.Event()

    async def note(cause: str) -> None:
        causes.append(cause)

    task = asyncio.create_task(watch.run(note, stop))
    await until(lambda: causes, 10, "a reload")
    file.write_text("a: 3")
    await until(lambda: len(causes) == 2, 10, "the next reload")
    stop.set()
    await task
    assert causes == ["file changed", "file changed"]


async def test_a_file_that_is_being_written_is_not_read_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long that takes: only what has been still for a while is loaded."""
    monkeypatch.setattr(reload, "LOOK", 0.1)
    file = tmp_path / "twr.yaml"
    file.write_bytes(b"old")
    watch = ConfigWatch(file, b"old")
    loaded: list[bytes] = []
    stop = anyio.Event()

    async def load(_: str) -> None:
        loaded.append(file.read_bytes())

    task = asyncio.create_task(watch.run(load, stop))
    with file.open("wb") as being_written:
        for _ in range(80):
            being_written.write(b"piece ")
            being_written.flush()
            await asyncio.sleep(0.05)
    await until(lambda: loaded, 10, "a reload")
    stop.set()
    await task
    assert loaded == [b"piece " * 80]


async def test_a_change_that_is_taken_back_is_none(tmp_path: Path) -> None:
    """As an editor that saves and saves again."""
    file = tmp_path / "twr.yaml"
    file.write_bytes(b"new")
    watch = ConfigWatch(file, b"old")
    stop = anyio.Event()

    async def load(_: str) -> None:
        pytest.fail("loaded")

    look = asyncio.create_task(watch._look(load, stop))
    await asyncio.sleep(0)
    file.write_bytes(b"old")
    await look


@pytest.mark.parametrize(
    "error",
    [
        OSError(24, "Too many open files"),
        WatchfilesRustInternalError("error in underlying watcher"),
    ],
)
async def test_a_watch_that_is_not_to_be_had_is_done_without(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    """It is told of once, and the file is looked at from time to time."""

    async def refused(*_: object, **__: object) -> AsyncIterator[object]:
        raise error
        yield

    monkeypatch.setattr(reload, "awatch", refused)
    monkeypatch.setattr(reload, "LOOK", 0.05)
    monkeypatch.setattr(reload, "RETRY", 0.05)
    file = tmp_path / "twr.yaml"
    watch = ConfigWatch(file, b"a: 1")
    causes: list[str] = []
    stop = anyio.Event()

    async def note(cause: str) -> None:
        causes.append(cause)

    task = asyncio.create_task(watch.run(note, stop))
    for count in (1, 2):
        file.write_text(f"a: {count + 1}")
        await until(lambda n=count: len(causes) == n, 10, "a reload")  # type: ignore[misc]
    stop.set()
    await task
    assert len(caplog.records) == 1
    assert caplog.records[0].getMessage().startswith("config not watched error=")


async def test_a_busy_neighbour_keeps_nobody_from_looking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change without a sign is found though other files of the directory change all the time."""
    monkeypatch.setattr(reload, "LOOK", 0.05)
    file = tmp_path / "twr.yaml"
    file.write_text("a: 2")
    watch = ConfigWatch(file, b"a: 1")
    causes: list[str] = []
    stop = anyio.Event()

    async def note(cause: str) -> None:
        causes.append(cause)

    def seen() -> bool:
        (tmp_path / "neighbour").write_text(str(len(causes)))
        return bool(causes)

    task = asyncio.create_task(watch.run(note, stop))
    await until(seen, 10, "a reload")
    stop.set()
    await task


async def test_what_was_loaded_otherwise_is_not_loaded_again(tmp_path: Path) -> None:
    """As after a SIGHUP."""
    file = tmp_path / "twr.yaml"
    watch = ConfigWatch(file, b"a: 1")
    file.write_text("a: 2")
    watch.loaded(b"a: 2")

    async def load(_: str) -> None:
        pytest.fail("loaded twice")

    await watch._look(load, anyio.Event())
