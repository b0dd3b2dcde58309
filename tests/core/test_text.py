"""Text for people."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twr.core.text import clip, escape, kv


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, "key=1"),
        (True, "key=true"),
        (0.1 + 0.2, "key=0.3"),
        (1788088524.123, "key=1788088524.123"),
        ("plain", "key=plain"),
        ("https://a.example/b?c=1", "key=https://a.example/b?c=1"),
        ("", 'key=""'),
        ("two words", 'key="two words"'),
        ('say "hi"', r'key="say \"hi\""'),
        ("back\\slash", r'key="back\\slash"'),
        ("a\nALERT firing", r'key="a\nALERT firing"'),
        ("\x1b[31m", r"key=\x1b[31m"),
        ("a\x85b", r'key="a\x85b"'),
        ("\u202etxt", r"key=\u202etxt"),
        ("\ud800", r"key=\ud800"),
        ("\U000e0041", r"key=\U000e0041"),
        ("Женя", "key=Женя"),
    ],
)
def test_kv_writes_one_value(value: object, expected: str) -> None:
    """A value is bare where it can be, quoted where it must, and always on one line."""
    assert kv(key=value) == expected


def test_kv_keeps_order_and_leaves_out_none() -> None:
    """Fields come in the order given, those that are None not at all."""
    assert kv(b=1, none=None, a="x") == "b=1 a=x"


@given(st.text(st.characters()))
def test_kv_of_any_text_is_one_encodable_line(text: str) -> None:
    """No text forges a line or fails to be encoded."""
    line = kv(key=text, next=1)
    assert len(line.splitlines()) == 1
    assert line.encode().decode() == line
    assert line.endswith(" next=1")


def test_escape_leaves_readable_text_alone() -> None:
    """Letters of any script, emoji and backslashes stay."""
    assert escape("Grüße, 世界 \\ 🚢\n") == "Grüße, 世界 \\ 🚢\\x0a"


@pytest.mark.parametrize(
    ("limit", "expected"), [(0, ""), (1, "…"), (4, "abc…"), (5, "abcde"), (6, "abcde")]
)
def test_clip_keeps_within_the_limit(limit: int, expected: str) -> None:
    """The limit counts the ellipsis too."""
    assert clip("abcde", limit) == expected
