"""YAML: what the file may be, and the lines of what is in it."""

from pathlib import Path

import pytest

from twr.config.document import parse, read
from twr.errors import ConfigError

QUOTE_IT = '; a value that begins with ! or * must be put in "quotes"'

BROKEN = [
    ("", "twr.yaml:1: the file is empty; `routes:` is what it needs"),
    ("# nothing\n", "twr.yaml:1: the file is empty; `routes:` is what it needs"),
    (
        "\n- a\n",
        "twr.yaml:2: the file must hold keys and values, such as `routes:`",
    ),
    ("just text", "twr.yaml:1: the file must hold keys and values, such as `routes:`"),
    (
        "bot:\n\tname: x\n",
        "twr.yaml:2: a tab where only spaces may stand; YAML is indented with spaces",
    ),
    ("bot:\n  name: [a\nroutes:\n", "twr.yaml:3: not valid YAML: expected ',' or ']', but got ':'"),
    ("a: b: c\n", "twr.yaml:1: not valid YAML: mapping values are not allowed here"),
    ("a: 1\n--- \nb: 2\n", "twr.yaml:2: a second document begins here; the file must hold one"),
    ("a: *nowhere\n", f"twr.yaml:1: not valid YAML: found undefined alias{QUOTE_IT}"),
    ("a: !no!where\n", f"twr.yaml:1: not valid YAML: found undefined tag handle{QUOTE_IT}"),
    ("a: 1\nb: \x07\n", "twr.yaml:2: a character that YAML does not allow"),
    ("a: " + "[" * 5000, "twr.yaml:1: the file is nested too deeply"),
]


@pytest.mark.parametrize(("text", "expected"), BROKEN, ids=[error for _, error in BROKEN])
def test_what_is_no_document(text: str, expected: str) -> None:
    """What YAML cannot read, or what is no mapping, is one line with a place."""
    with pytest.raises(ConfigError) as caught:
        parse(text, "twr.yaml")
    assert str(caught.value) == expected


LEFT_OUT = [
    ("a: 1\nb: 2\na: 3\n", 3, "`a` stands twice; the first is on line 1"),
    ("a:\n  - b: 1\n    b: 2\n", 3, "`b` stands twice; the first is on line 2"),
    ("x: 0\n1: a\n", 2, "a key must be text"),
    ("x: 0\n? [a]\n: b\n", 2, "a key must be text"),
    ("x: 0\ny: !thing 5\n", 2, f"a tag that is not known here{QUOTE_IT}"),
    ("x: !!python/object/apply:os.system [id]\n", 1, f"a tag that is not known here{QUOTE_IT}"),
    ("x: !!int five\n", 1, "the value is not what its tag says"),
    ("x: &a [*a]\n", 1, "an alias stands inside what it names"),
    ("x: 0\n<<: 5\n", 2, "`<<` takes an alias of a mapping, or a list of them"),
]


@pytest.mark.parametrize(("text", "line", "message"), LEFT_OUT)
def test_what_is_left_out_is_told(text: str, line: int, message: str) -> None:
    """What cannot be taken over is one problem, at its own line."""
    found = parse(text, "twr.yaml").problems
    assert [(problem.line, problem.message) for problem in found] == [(line, message)]


SCALARS = [
    ("on", "on"),
    ("yes", "yes"),
    ("off", "off"),
    ("true", True),
    ("False", False),
    ("null", None),
    ("~", None),
    ("", None),
    ("0660", "0660"),
    ("0x1F", "0x1F"),
    ("1_000", "1_000"),
    ("1e3", "1e3"),
    ("22:30", "22:30"),
    ("2026-01-31", "2026-01-31"),
    ("-1001234567890", -1001234567890),
    ("0", 0),
    ("2.5", 2.5),
    (".5", ".5"),
    (".inf", ".inf"),
    ('"5"', "5"),
    ("!!str 5", "5"),
    ("/admin", "/admin"),
]


@pytest.mark.parametrize(("written", "value"), SCALARS)
def test_plain_scalars_mean_what_they_look_like(written: str, value: object) -> None:
    """Nothing written without quotes turns into another thing than the eye sees."""
    data = parse(f"key: {written}\n", "twr.yaml").data
    assert (type(data["key"]), data["key"]) == (type(value), value)


def test_anchors_and_merges() -> None:
    """Aliases and `<<` work; the mapping's own keys win, lines are those of the text."""
    document = parse(
        "a: &a\n  x: 1\n  y: 2\nb:\n  <<: *a\n  y: 3\nc:\n  <<: [*a, {z: 4}]\nd: *a\n", "twr.yaml"
    )
    assert document.problems == ()
    assert document.data == {
        "a": {"x": 1, "y": 2},
        "b": {"x": 1, "y": 3},
        "c": {"x": 1, "y": 2, "z": 4},
        "d": {"x": 1, "y": 2},
    }
    assert [document.line(*path) for path in (("b", "x"), ("b", "y"), ("c", "z"), ("d",))] == [
        2, 6, 8, 9
    ]  # fmt: skip


def test_lines_of_keys_and_items() -> None:
    """A key's line is where the key stands, an item's where the item begins."""
    document = parse("a:\n\n  b:\n    - 1\n    -\n      c: 2\n", "twr.yaml")
    paths = [("a",), ("a", "b"), ("a", "b", 0), ("a", "b", 1), ("a", "b", 1, "c"), ("a", "zz")]
    assert [document.line(*path) for path in paths] == [1, 3, 4, 6, 6, 1]
    assert document.line() == 1


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    """A file saved with a BOM, or with CRLF, is read as one without."""
    file = tmp_path / "twr.yaml"
    file.write_bytes(b"\xef\xbb\xbfa: 1\r\nb: 2\r\n")
    assert read(file).data == {"a": 1, "b": 2}


UNREADABLE = [
    (b"a: 1\nb: \xff\n", ":2: not UTF-8 text; save the file as UTF-8"),
    ("a: 1".encode("utf-16"), ":1: not UTF-8 text; save the file as UTF-8"),
    (b"#" * (4 << 20) + b"\n", ": over 4 MiB: this is no configuration"),
]


@pytest.mark.parametrize(("content", "expected"), UNREADABLE, ids=["latin-1", "utf-16", "large"])
def test_a_file_of_something_else(tmp_path: Path, content: bytes, expected: str) -> None:
    """What is no UTF-8, or no configuration by its size, is one line."""
    file = tmp_path / "twr.yaml"
    file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read(file)
    assert str(caught.value) == f"{file}{expected}"


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """A missing file and a directory are one line that names the path and the reason."""
    for path, reason in (
        (tmp_path / "no.yaml", "No such file or directory"),
        (tmp_path, "Is a directory"),
        (Path("a\0b"), "no such path"),
    ):
        with pytest.raises(ConfigError) as caught:
            read(path)
        assert str(caught.value) == f"{path}: cannot be read: {reason}"
