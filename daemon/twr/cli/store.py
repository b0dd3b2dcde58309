"""How a command comes to the store that the daemon works on."""

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from twr.errors import ConfigError, Problem, StoreUnavailable

if TYPE_CHECKING:
    from twr.config import Config
    from twr.edges.store import Store

T = TypeVar("T")

_HINT = "; --env-file FILE reads the unit's environment file"
_CONNECT = 2.0


def with_store(
    config: "Config",
    environ: Mapping[str, str],
    env_file: Path | None,
    work: Callable[["Store"], Awaitable[T]],
) -> T:
    """What `work` makes of the store of `config`; Ctrl-C ends it at once.

    Raises StoreUnavailable when the store does not answer, ConfigError when its URL can't be found.
    """
    import anyio

    async def main() -> T:
        async with _opened(config, environ, env_file) as store:
            with anyio.CancelScope() as scope:
                # The scope insists: asyncio's own single cancellation gets lost where redis-py
                # takes it for the end of its timeout of 0 s, in its look at an idle connection.
                asyncio.get_running_loop().add_signal_handler(signal.SIGINT, scope.cancel)
                return await work(store)
        raise KeyboardInterrupt

    return anyio.run(main)


@asynccontextmanager
async def _opened(
    config: "Config", environ: Mapping[str, str], env_file: Path | None
) -> AsyncIterator["Store"]:
    from twr.edges.store import Identity, open_store

    store = open_store(
        _url(config, environ, hint="" if env_file else _HINT),
        prefix=config.store.prefix,
        bot=config.bot.name,
        identity=Identity(config.instance, ""),  # commands claim nothing
        dedup_ttl=config.store.dedup_ttl,
    )
    try:
        await store.ping()
        yield store
    finally:
        await store.close()


def _url(config: "Config", environ: Mapping[str, str], *, hint: str) -> str:
    from twr.edges import embedded

    try:
        url = config.store_url(environ)
    except ConfigError as error:
        raise ConfigError(
            [Problem(it.file, it.line, it.message + hint) for it in error.problems]
        ) from None
    if url is not None:
        return url
    _knock(embedded.socket_path(config.store.dir))
    return embedded.url(config.store.dir)


def _knock(path: Path) -> None:
    """Raise StoreUnavailable, with what to do, unless the embedded store lets us in."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_CONNECT)
        try:
            connection.connect(str(path))
        except PermissionError:
            raise StoreUnavailable(
                f"{path}: permission denied; run this as root, or as the user of twr"
                " (sudo -u twr twr …)"
            ) from None
        except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
            raise StoreUnavailable(
                f"the embedded store is not running (nothing listens on {path});"
                " it runs while `twr run` does"
            ) from None
        except OSError as error:
            raise StoreUnavailable(
                f"the embedded store does not answer on {path}: {error}"
            ) from None
