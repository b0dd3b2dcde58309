"""The embedded store's server as a real process."""

import asyncio
import os
import signal
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from redis.asyncio import Redis

from twr.core.system import UNIX_PATH_BYTES
from twr.edges import embedded
from twr.edges.embedded import Embedded, socket_path, url
from twr.errors import StoreUnavailable, TwrError

pytestmark = pytest.mark.anyio

MEMORY = 64 * 1024 * 1024


@pytest.fixture
async def store(short_path: Path) -> AsyncIterator[Embedded]:
    """A server of a directory that does not exist yet, locked and not started."""
    found = Embedded(short_path / "state", MEMORY)
    await found.lock()
    yield found
    await found.stop()
    await found.stop_leftover()
    found.unlock()


def pid_of(store: Embedded) -> int:
    return int((store.directory / "valkey.pid").read_text())


async def test_it_keeps_what_it_is_given(store: Embedded) -> None:
    """Across a clean end and across a kill, to the last write that was answered."""
    for n, how in enumerate((signal.SIGTERM, signal.SIGKILL, signal.SIGTERM)):
        await store.start()
        async with Redis.from_url(url(store.directory)) as redis:
            assert await redis.get("count") == (str(n).encode() if n else None)
            await redis.set("count", n + 1)
        if how == signal.SIGTERM:
            await store.stop()
            assert await store.wait() == 0
        else:
            os.kill(pid_of(store), signal.SIGKILL)
            assert await store.wait() == -signal.SIGKILL


async def test_its_settings(store: Embedded) -> None:
    """Every write is on the disk before it is answered, nothing is evicted, no port is open."""
    await store.start()
    async with Redis.from_url(url(store.directory)) as redis:
        expected = {
            "appendonly": "yes",
            "appendfsync": "always",
            "save": "",
            "maxmemory": str(MEMORY),
            "maxmemory-policy": "noeviction",
            "port": "0",
            "unixsocketperm": "600",
        }
        found = await redis.config_get(*expected)
    assert found == expected


async def test_nobody_else_can_read_it(store: Embedded) -> None:
    """The directory is 0700, its socket and files are for the owner alone, under any umask."""
    before = os.umask(0o022)
    try:
        await store.start()
        async with Redis.from_url(url(store.directory)) as redis:
            await redis.set("a", "b")
    finally:
        os.umask(before)
    assert stat.S_IMODE(store.directory.stat().st_mode) == 0o700
    written = list((store.directory / "appendonlydir").iterdir())
    assert written
    for path in (socket_path(store.directory), *written):
        assert path.stat().st_mode & 0o077 == 0


async def test_a_second_one_on_the_directory_is_refused(
    store: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits a little, then names the process that has it."""
    monkeypatch.setattr(embedded, "LOCK", 0.2)
    with pytest.raises(StoreUnavailable) as caught:
        await Embedded(store.directory, MEMORY).lock()
    assert str(caught.value) == (
        f"store.dir {store.directory} is in use by another twr (pid {os.getpid()})"
    )


async def test_a_directory_that_is_given_back_soon_is_waited_for(store: Embedded) -> None:
    """A restart may overlap with the end of the one before."""
    other = Embedded(store.directory, MEMORY)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(other.lock)
        await anyio.lowlevel.checkpoint()
        store.unlock()
    other.unlock()
    await store.lock()


async def test_a_directory_that_cannot_be_made_is_one_line(short_path: Path) -> None:
    """It says what to do."""
    file = short_path / "file"
    file.touch()
    with pytest.raises(TwrError) as caught:
        await Embedded(file / "state", MEMORY).lock()
    assert str(caught.value) == (
        f"store.dir {file}/state can't be used: not a directory; "
        "create it for this user, or set store.dir or store.url"
    )


async def test_a_long_path_gets_a_socket_elsewhere(short_path: Path) -> None:
    """In a directory of the user's own; every command finds the same."""
    directory = short_path / ("d" * 120)
    path = socket_path(directory)
    assert len(os.fsencode(path)) <= UNIX_PATH_BYTES
    assert socket_path(directory) == path
    assert socket_path(short_path / ("e" * 120)) != path
    store = Embedded(directory, MEMORY)
    await store.lock()
    await store.start()
    async with Redis.from_url(url(directory)) as redis:
        assert await redis.ping()
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    await store.stop()
    store.unlock()
    path.parent.rmdir()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a directory away")
async def test_root_puts_its_socket_into_no_stranger_s_directory(short_path: Path) -> None:
    """Whoever made it in the temporary one could put another server in the place of ours."""
    store = Embedded(short_path / ("d" * 120), MEMORY)
    await store.lock()
    place = socket_path(store.directory).parent
    place.mkdir()
    os.chown(place, 1, -1)
    with pytest.raises(TwrError, match="belongs to another user"):
        await store.start()
    store.unlock()
    place.rmdir()


@pytest.mark.parametrize("frozen", [False, True])
async def test_a_server_left_over_is_stopped_first(
    store: Embedded, monkeypatch: pytest.MonkeyPatch, frozen: bool
) -> None:
    """By force, if it does not answer any more; its data is there."""
    monkeypatch.setattr(embedded, "STOP", 0.5)
    await store.start()
    left = pid_of(store)
    async with Redis.from_url(url(store.directory)) as redis:
        await redis.set("a", "b")
    if frozen:
        os.kill(left, signal.SIGSTOP)
    later = Embedded(store.directory, MEMORY)
    await later.start()
    assert pid_of(later) != left
    async with Redis.from_url(url(store.directory)) as redis:
        assert await redis.get("a") == b"b"
    assert await store.wait() == (-signal.SIGKILL if frozen else 0)
    await later.stop()


async def test_a_server_that_will_not_end_is_killed(
    store: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the patience it is given."""
    monkeypatch.setattr(embedded, "STOP", 0.2)
    await store.start()
    os.kill(pid_of(store), signal.SIGSTOP)
    await store.stop()
    assert await store.wait() == -signal.SIGKILL


async def test_the_pid_of_somebody_else_is_left_alone(store: Embedded) -> None:
    """A recorded pid that another program has by now."""
    other = await asyncio.create_subprocess_exec("sleep", "60")
    (store.directory / "valkey.pid").write_text(f"{other.pid}\n")
    await store.start()
    assert other.returncode is None
    other.kill()
    await other.wait()


async def test_damaged_data_is_told_in_the_servers_own_words(store: Embedded) -> None:
    """On one line, and what is there is left as it is."""
    await store.start()
    await store.stop()
    (manifest,) = (store.directory / "appendonlydir").glob("*.manifest")
    manifest.write_text("nonsense\n")
    with pytest.raises(
        StoreUnavailable, match=r"the embedded store did not start: .*manifest"
    ) as e:
        await store.start()
    assert "\n" not in str(e.value)
    assert manifest.read_text() == "nonsense\n"


async def test_a_file_that_cannot_be_written_is_an_outage(store: Embedded) -> None:
    """As on a full disk: it is worth another try."""
    (store.directory / "valkey.log").mkdir()
    with pytest.raises(StoreUnavailable, match="the embedded store did not start: is a directory"):
        await store.start()


async def test_the_loop_turns_while_a_frozen_server_is_asked(store: Embedded) -> None:
    """Looking for a server left over blocks nobody."""
    await store.start()
    os.kill(pid_of(store), signal.SIGSTOP)
    looking = asyncio.create_task(embedded._server_pid(socket_path(store.directory)))
    loop = asyncio.get_running_loop()
    before = loop.time()
    await asyncio.sleep(0)
    assert loop.time() - before < 0.2
    assert await looking is None
    os.kill(pid_of(store), signal.SIGCONT)


async def test_a_ctrl_c_in_the_terminal_does_not_reach_it(store: Embedded) -> None:
    """It is no member of the daemon's process group."""
    await store.start()
    assert os.getpgid(pid_of(store)) != os.getpgid(0)


async def test_a_server_that_never_finishes_loading(
    store: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said, and the next start stops it first."""

    async def loading(path: Path, command: bytes) -> bytes:
        return b"-LOADING\r\n"

    with monkeypatch.context() as patched:
        patched.setattr(embedded, "START", 0.1)
        patched.setattr(embedded, "_ask", loading)
        with pytest.raises(StoreUnavailable, match="the embedded store does not finish loading"):
            await store.start()
    await store.start()
    async with Redis.from_url(url(store.directory)) as redis:
        assert await redis.ping()
