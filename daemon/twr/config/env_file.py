"""The environment file of a systemd unit, read as systemd reads it.

https://www.freedesktop.org/software/systemd/man/latest/systemd.exec.html#EnvironmentFile=
"""

import re
from pathlib import Path

from twr.errors import ConfigError, Problem

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_ENTRY = re.compile(
    r"""\s*
    (?: (?P<comment> [#;][^\n]* )
      | (?P<name> [^\n=]*? ) [ \t]* =
        (?P<quoted> (?: [ \t]* (?: '[^']*' | "(?:[^"\\]|\\.)*" ) )* )
        [ \t]* (?P<plain> (?: \\. | [^\\\n] | \\\Z )* )
      | (?P<other> [^\n]+ )
    )""",
    re.VERBOSE | re.DOTALL,
)
_QUOTED = re.compile(r"""'([^']*)'|"((?:[^"\\]|\\.)*)\"""", re.DOTALL)
_IN_DOUBLE = re.compile(r'\\(?:\n|(["\\`$]))')
_IN_PLAIN = re.compile(r"\\(?:\n|\Z|(.))", re.DOTALL)


def env_file(path: Path) -> dict[str, str]:
    """The variables of the file at `path`; of a name that stands twice the last counts.

    Where systemd would skip a line with a warning, this is an error: ConfigError with
    each such line. No error repeats a value.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ConfigError([Problem(str(path), 0, f"cannot be read: {error.strerror}")]) from None
    except UnicodeDecodeError:
        raise ConfigError([Problem(str(path), 0, "not UTF-8 text")]) from None
    return parse_env(text, str(path))


def parse_env(text: str, file: str) -> dict[str, str]:
    """As `env_file`, of the file's text."""
    variables: dict[str, str] = {}
    problems: list[Problem] = []
    for entry in _ENTRY.finditer(text):
        try:
            variables |= _variable(entry)
        except ValueError as error:
            line = text.count("\n", 0, entry.end() - len(entry[0].lstrip())) + 1
            problems.append(Problem(file, line, str(error)))
    if problems:
        raise ConfigError(problems)
    return variables


def _variable(entry: re.Match[str]) -> dict[str, str]:
    if entry["comment"] is not None:
        if entry["comment"].endswith("\\"):
            raise ValueError("a comment that ends in a backslash may swallow the next line")
        return {}
    if entry["other"] is not None:
        raise ValueError("not NAME=value; systemd skips such a line")
    return {_checked_name(entry["name"]): _value(entry["quoted"], entry["plain"])}


def _checked_name(name: str) -> str:
    if name.startswith("export "):
        raise ValueError("leave out `export`: systemd skips such a line")
    if not _NAME.fullmatch(name):
        raise ValueError("what stands before `=` is no name of a variable (A-Z a-z 0-9 _)")
    return name


def _value(quoted: str, plain: str) -> str:
    if plain.startswith(("'", '"')):
        raise ValueError("a quote is opened and not closed")
    parts = [
        _IN_DOUBLE.sub(_kept, double) if single is None else single
        for single, double in (match.groups() for match in _QUOTED.finditer(quoted))
    ]
    return "".join(parts) + _IN_PLAIN.sub(_kept, plain.rstrip())


def _kept(escaped: re.Match[str]) -> str:
    return escaped[1] or ""
