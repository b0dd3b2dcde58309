"""twr as processes of its own: the daemon, and the commands a person would type."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import anyio
from anyio.abc import Process

import twr
from twr.core.text import clip, escape
from twr.demo.failure import StepError
from twr.edges.embedded import Embedded

STOP = 10.0
"""Seconds that the daemon is given to end by itself."""

COMMAND = 20.0

# What systemd tells a unit is not meant for ours.
_NOT_OURS = (
    *("NOTIFY_", "WATCHDOG_", "LISTEN_", "JOURNAL_STREAM", "INVOCATION_ID", "TWR_"),
    *("STATE_DIRECTORY", "CREDENTIALS_DIRECTORY", "RUNTIME_DIRECTORY", "LOGS_DIRECTORY"),
)


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """What a twr started by this one needs of our environment, so that it is this same twr."""
    environ = {name: value for name, value in given.items() if not name.startswith(_NOT_OURS)}
    paths = [str(Path(twr.__file__).resolve().parents[1]), environ.get("PYTHONPATH", "")]
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    return environ


class Twr:
    """The daemon on the configuration `config`, and commands that use the same one."""

    def __init__(self, config: Path, env_file: Path, store: Path, log: Path) -> None:
        self.log_file = log
        self._config = config
        self._env_file = env_file
        self._store = store
        self._environ = environment(os.environ)
        self._process: Process | None = None

    @property
    def pid(self) -> int | None:
        """The daemon's process id, None while there is none."""
        return self._process.pid if self._process is not None else None

    @property
    def code(self) -> int | None:
        """How the daemon ended; None while it runs."""
        return self._process.returncode if self._process is not None else None

    def log(self) -> str:
        """All that the daemon has said so far."""
        try:
            return self.log_file.read_text(errors="replace")
        except FileNotFoundError:
            return ""

    async def start(self) -> None:
        """Start the daemon."""
        with self.log_file.open("ab") as log:
            self._process = await anyio.open_process(
                self._command("run", env_file=True),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environ,
                # A Ctrl-C in the terminal is for the demo, which stops the daemon itself.
                start_new_session=True,
            )

    async def kill(self) -> None:
        """End the daemon as a crash would."""
        if self._process is not None:
            self._process.kill()
            await self._process.wait()

    async def stop(self) -> None:
        """End the daemon in good order, and whatever an earlier one left behind."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        with anyio.move_on_after(STOP):
            await process.wait()
        if process.returncode is None:
            process.kill()
            await process.wait()
        await Embedded(self._store, 0).stop_leftover()

    async def command(self, *words: str, env_file: bool = False) -> str:
        """What `twr WORDS` prints; StepError unless it ends with 0."""
        try:
            with anyio.fail_after(COMMAND):
                done = await anyio.run_process(
                    self._command(*words, env_file=env_file), check=False, env=self._environ
                )
        except TimeoutError:
            seen = f"it runs for more than {COMMAND:g} s"
        else:
            if done.returncode == 0:
                return done.stdout.decode()
            said = (done.stderr or done.stdout).decode(errors="replace").strip()
            seen = f"{done.returncode}, {clip(escape(said), 300)}"
        raise StepError(f"`twr {' '.join(words)}` to end with 0", seen)

    def _command(self, *words: str, env_file: bool) -> list[str]:
        more = ["--env-file", str(self._env_file)] if env_file else []
        return [sys.executable, "-P", "-m", "twr", *words, "-c", str(self._config), *more]
