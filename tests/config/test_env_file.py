"""The environment file is read as systemd reads it."""

from pathlib import Path

import pytest

from twr.config import env_file
from twr.config.env_file import parse_env
from twr.errors import ConfigError

READ = [
    ("A=1", {"A": "1"}),
    ("A=1\nB=2\n", {"A": "1", "B": "2"}),
    ("A=1\r\nB=2\r\n", {"A": "1", "B": "2"}),
    ("A=1\nA=2\n", {"A": "2"}),
    ("\n  # comment=1\n; another\n\nA=1\n", {"A": "1"}),
    ("A=", {"A": ""}),
    ("  A =  x  y  \n", {"A": "x  y"}),
    ("A=x # no comment\n", {"A": "x # no comment"}),
    ("A=b=c==\n", {"A": "b=c=="}),
    ('A="x y" \n', {"A": "x y"}),
    ("A='x \"y\" \\n'\n", {"A": 'x "y" \\n'}),
    ('A="a\\"b\\\\c\\$d\\n"\n', {"A": 'a"b\\c$d\\n'}),
    ("A='one'\"two\"three\n", {"A": "onetwothree"}),
    ('A=it"s\n', {"A": 'it"s'}),
    ("A=a\\ b\\\\c\n", {"A": "a b\\c"}),
    ("A=one\\\ntwo\nB=3\n", {"A": "onetwo", "B": "3"}),
    ('A="one\\\ntwo"\n', {"A": "onetwo"}),
    ('A="one\ntwo"\nB=3\n', {"A": "one\ntwo", "B": "3"}),
    ("A='one\ntwo'\n", {"A": "one\ntwo"}),
    ("A=$HOME\n", {"A": "$HOME"}),
    ("A=1\\", {"A": "1"}),
    ("", {}),
]


@pytest.mark.parametrize(("text", "expected"), READ, ids=[text for text, _ in READ])
def test_what_is_read(text: str, expected: dict[str, str]) -> None:
    """Quotes, escapes, comments and continued lines mean what they mean to systemd."""
    assert parse_env(text, "twr.env") == expected


REFUSED = [
    ("A=1\nexport B=2\n", "twr.env:2: leave out `export`: systemd skips such a line"),
    ("\n\nhunter2\nA=1\n", "twr.env:3: not NAME=value; systemd skips such a line"),
    (
        "A-B=hunter2\n",
        "twr.env:1: what stands before `=` is no name of a variable (A-Z a-z 0-9 _)",
    ),
    ("=hunter2\n", "twr.env:1: what stands before `=` is no name of a variable (A-Z a-z 0-9 _)"),
    ("A='hunter2\nB=2\n", "twr.env:1: a quote is opened and not closed"),
    ('A=1\nB="hunter2\\"\n', "twr.env:2: a quote is opened and not closed"),
    ("# a\\\nA=1\n", "twr.env:1: a comment that ends in a backslash may swallow the next line"),
]


@pytest.mark.parametrize(("text", "expected"), REFUSED, ids=[text for text, _ in REFUSED])
def test_what_systemd_would_skip_is_an_error(text: str, expected: str) -> None:
    """A line that would be lost in silence is told, without its content."""
    with pytest.raises(ConfigError) as caught:
        parse_env(text, "twr.env")
    assert str(caught.value).splitlines()[0] == expected
    assert "hunter2" not in str(caught.value)


def test_a_file_on_disk(tmp_path: Path) -> None:
    """A file is read as UTF-8; one that is missing or something else is one line."""
    file = tmp_path / "twr.env"
    with pytest.raises(ConfigError, match=r"twr\.env: cannot be read: No such file or directory$"):
        env_file(file)
    file.write_bytes(b"\xef\xbb\xbfA=\xc3\xbc\n")
    assert env_file(file) == {"A": "\u00fc"}
    file.write_bytes(b"A=\xff\n")
    with pytest.raises(ConfigError, match=r"twr\.env: not UTF-8 text$"):
        env_file(file)
