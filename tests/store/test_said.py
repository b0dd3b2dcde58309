"""What a server says in an error: neither a password nor an update is repeated."""

from pathlib import Path

import pytest
from redis import exceptions

from leaks import leaks
from servers import SERVERS, Server
from store.world import arrival
from twr.core.masking import Mask
from twr.edges.store import Identity, Store, open_store
from twr.edges.store.client import translate
from twr.errors import StoreError

pytestmark = pytest.mark.anyio

PASSWORD = "qV7fXz2LmKp9RwTd"


def opened(url: str) -> Store:
    who = Identity("vps-1", "n1")
    return open_store(url, prefix="twr", bot="main", identity=who, dedup_ttl=90_000)


@pytest.mark.parametrize("kind", SERVERS)
@pytest.mark.parametrize(("gone", "command"), [("AUTH", "AUTH"), ("HELLO", "HELLO")])
async def test_a_server_that_knows_no_passwords(
    short_path: Path, kind: str, gone: str, command: str
) -> None:
    """It repeats the arguments of the command that it lacks; the error names the command alone."""
    server = Server(kind, short_path, "--rename-command", gone, "")
    server.start()
    try:
        protocol = 2 if gone == "AUTH" else 3
        store = opened(f"unix://me:{PASSWORD}@{server.socket}?protocol={protocol}")
        with pytest.raises(StoreError) as caught:
            await store.ping()
        await store.close()
    finally:
        server.stop()
    text = str(caught.value)
    assert text == f"the store is not available: unknown command '{command}'"
    assert leaks(text, [PASSWORD]) == []


async def test_a_server_that_runs_no_scripts(short_path: Path) -> None:
    """Nor is the update repeated that it was to store."""
    server = Server("redis", short_path, "--rename-command", "EVALSHA", "")
    server.start()
    try:
        store = opened(server.url)
        with pytest.raises(StoreError) as caught:
            await store.accept([arrival(1, "a")])
        await store.close()
    finally:
        server.stop()
    assert str(caught.value) == "the store answered with an error: unknown command 'EVALSHA'"


@pytest.mark.parametrize("pad", range(170, 210))
def test_a_password_across_the_end_of_an_error(pad: int) -> None:
    """It is masked before the text is cut."""
    error = exceptions.ResponseError("." * pad + PASSWORD)
    assert leaks(str(translate(error, Mask([PASSWORD]))), [PASSWORD]) == []


def test_an_error_forges_no_line_of_a_terminal() -> None:
    """Control characters of a server's text are escaped."""
    error = exceptions.ResponseError("a\x1b[2Jb\nc")
    assert str(translate(error)) == "the store answered with an error: a\\x1b[2Jb c"
