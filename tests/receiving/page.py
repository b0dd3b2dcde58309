"""The programs of docs/receiving.md, and how they are run: the reader's own way."""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from tools import ROOT
from until import until

PAGE = ROOT / "docs/receiving.md"


def program(heading: str) -> str:
    """The first fenced block under a heading of the page."""
    section = re.search(
        rf"^### {re.escape(heading)}\n(.*?)(?=^##|\Z)", PAGE.read_text(), re.M | re.S
    )
    assert section is not None, heading
    block = re.search(r"^```\w+\n(.*?)^```", section[1], re.M | re.S)
    assert block is not None, heading
    return block[1]


@asynccontextmanager
async def running(
    command: Sequence[str | Path], port: int, environ: Mapping[str, str], log: Path
) -> AsyncIterator[None]:
    """A program that listens on the port given to it, in an environment of its own.

    What it says goes to `log`, which is shown when the block fails.
    """
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *command,
            env={"PATH": "/usr/bin:/bin", "PORT": str(port)} | dict(environ),
            stdout=output,
            stderr=output,
        )
    try:
        await until(lambda: _listens(process, port), 30, f"{command[0]} listens")
        yield
    except BaseException:
        _show(log)
        raise
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _listens(process: asyncio.subprocess.Process, port: int) -> bool:
    assert process.returncode is None, f"ended with {process.returncode}"
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionError:
        return False
    writer.close()
    await writer.wait_closed()
    return True


def _show(log: Path) -> None:
    print(log.read_text())  # noqa: T201
