"""Watching the configuration file."""

import asyncio
from pathlib import Path

import anyio
import pytest

from twr.services import reload
from twr.services.reload import ConfigWatch
from until import until

pytestmark = pytest.mark.anyio


async def test_a_change_before_the_watch_begins_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What changed between loading the file and watching it gives no sign, and is loaded all the
    same, once."""
    monkeypatch.setattr(reload, "LOOK_MS", 50)
    file = tmp_path / "twr.yaml"
    file.write_text("a: 1")
    watch = ConfigWatch(file)
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


async def test_a_file_that_is_being_written_is_not_read_half(tmp_path: Path) -> None:
    """A look without a sign takes only what a second look finds unchanged."""
    file = tmp_path / "twr.yaml"
    file.write_text("old")
    watch = ConfigWatch(file)
    loaded: list[bytes] = []

    async def load(_: str) -> None:
        loaded.append(file.read_bytes())

    for text in ("ha", "half", "half of it", "all of it", "all of it", "all of it"):
        file.write_text(text)
        await watch._look(load, still=False)
    assert loaded == [b"all of it"]
