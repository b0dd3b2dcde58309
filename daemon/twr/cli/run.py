"""`twr run`: the daemon."""

import contextlib
import gc
import os
import random
import resource
import secrets
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from twr.cli.common import ConfigOption, EnvFileOption, new_app, open_config, warn
from twr.errors import TwrError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twr.config import Config, Secrets

app = new_app()

DESCRIPTORS = 65_536
LEVELS = ("debug", "info", "warning", "error")


def _level(name: str) -> str:
    if name not in LEVELS:
        raise typer.BadParameter(f"one of {', '.join(LEVELS)}")
    return name


@app.command()
def run(
    config: ConfigOption = None,
    env_file: EnvFileOption = None,
    log_level: Annotated[
        str, typer.Option("--log-level", callback=_level, help="debug, info, warning or error.")
    ] = "info",
) -> None:
    """Run the daemon until SIGTERM or Ctrl-C."""
    loaded, environ = open_config(config, env_file)
    _run(loaded, loaded.secrets(environ), environ, log_level)


def _run(config: "Config", found: "Secrets", environ: "Mapping[str, str]", log_level: str) -> None:
    import logging

    import anyio

    from twr import __version__
    from twr.core.clock import Clock
    from twr.edges import logs
    from twr.edges.systemd import Notifier, watchdog_interval
    from twr.supervisor import Daemon, Surroundings

    # What this process and its store create is for this user alone.
    os.umask(0o077)
    _allow_descriptors()
    for problem in (*config.warnings, *found.warnings):
        warn(problem)
    clock = Clock(time.time, time.monotonic)
    level = logging.getLevelName(log_level.upper())
    log = logs.setup(sys.stderr, environ, clock, level=level, secrets=found.all())
    given = Surroundings(
        environ=environ,
        clock=clock,
        random=random.random,
        nonce=secrets.token_hex(8),
        version=__version__,
        notifier=Notifier.take(os.environ, time.monotonic),
        watchdog=watchdog_interval(os.environ, os.getpid()),
        hide=log.hide,
    )

    async def main() -> None:
        _collect_less()
        await Daemon(config, found, given).run()

    try:
        anyio.run(main, backend_options={"use_uvloop": True})
    except TwrError:
        raise
    except Exception:
        # A bug may say anything; in the log, secrets are masked.
        logging.getLogger("twr").critical("crashed", exc_info=True)
        raise typer.Exit(1) from None
    finally:
        log.close()


def _collect_less() -> None:
    """What is loaded by now stays, and without it a full collection is not felt. There have to be
    some: an error that is kept with its traceback is a cycle, and there can be many."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 2, 2)


def _allow_descriptors() -> None:
    """A shell's 1,024 are a limit for select(2), which nothing here uses; the unit allows more."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
