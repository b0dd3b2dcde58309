"""Secrets out of texts."""

import base64
import html
import json
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twr.core.masking import Mask

SECRET = "Zk7/q+9 \"Xv2&é\\B8'w"


@pytest.mark.parametrize(
    ("secrets", "expected"),
    [
        (["abcdef"], "x*** abcdeg"),
        (["abcdef", "abcdeg"], "x*** ***"),
        (["abcdef", "abcdef abc"], "x***deg"),
        (["xabcdef", "abcdef abc"], "***deg"),
        (["abc", ""], "xabcdef abcdeg"),
        ([], "xabcdef abcdeg"),
    ],
)
def test_each_secret_is_hidden(secrets: list[str], expected: str) -> None:
    """All of them, also where they overlap; a few letters are no secret."""
    assert Mask(secrets)("xabcdef abcdeg") == expected


DISGUISES = {
    "plain": SECRET,
    "in a URL": quote(SECRET, safe=""),
    "in a path": quote(SECRET),
    "in a form": quote_plus(SECRET),
    "in a URL, lower case": quote(SECRET, safe="").replace("%2F", "%2f").replace("%C3", "%c3")
    .replace("%A9", "%a9").replace("%2B", "%2b").replace("%5C", "%5c"),
    "in JSON": json.dumps(SECRET)[1:-1],
    "in JSON with letters": json.dumps(SECRET, ensure_ascii=False)[1:-1],
    "in JSON of PHP": json.dumps(SECRET)[1:-1].replace("/", "\\/"),
    "in a repr": repr(SECRET)[1:-1],
    "in a repr in JSON": json.dumps(repr(SECRET)[1:-1], ensure_ascii=False)[1:-1],
    "in HTML": html.escape(SECRET),
    "in HTML of Jinja": html.escape(SECRET).replace("&#x27;", "&#39;"),
    "in hex": SECRET.encode().hex(),
    "in capital hex": SECRET.encode().hex().upper(),
}  # fmt: skip


@pytest.mark.parametrize("shown", DISGUISES.values(), ids=DISGUISES)
def test_a_secret_is_hidden_in_every_form(shown: str) -> None:
    """However the one who shows it has quoted it."""
    assert Mask([SECRET])(f"it was {shown}!") == "it was ***!"


@pytest.mark.parametrize("before", ["", ":", "me:", "user:", "somebody:"])
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_a_secret_is_hidden_in_base64(before: str, encoding: str) -> None:
    """Alone and as a password, whoever's; what its neighbours have a part in may stay."""
    encoded = base64.b64encode(f"{before}{SECRET}".encode(encoding)).decode()
    for shown in (encoded, encoded.replace("+", "-").replace("/", "_")):
        masked = Mask([SECRET])(f"Basic {shown}")
        start, _, end = masked.partition("***")
        assert len(end) <= 4
        assert len(start) <= len("Basic ") + (len(before) * 8 + 5) // 6 + 1


@pytest.mark.parametrize("length", range(6, len(SECRET)))
def test_the_beginning_of_a_secret_at_a_cut_is_hidden(length: int) -> None:
    """A text that was cut may end in the middle of one."""
    mask = Mask([SECRET])
    assert mask(f"it was {SECRET[:length]}", cut=True) == "it was ***"
    assert mask(f"it was {SECRET[:length]}") == f"it was {SECRET[:length]}"


@given(st.integers(0, 80), st.integers(1, 80))
def test_quoting_shows_no_part_of_a_secret(before: int, limit: int) -> None:
    """It masks first, escapes then and cuts last, wherever the secret lies."""
    secret = "Zk7\x1bq9\nXv2\u202eB8w"
    shown = Mask([secret]).quoted("." * before + secret + "\n", limit)
    assert shown == ("." * before + "***\\x0a" if before + 7 <= limit else shown)
    assert len(shown) <= limit
    assert shown.removesuffix("…").strip(".*\\x0a") == ""


def test_bytes_that_are_no_text_are_hidden() -> None:
    """As the system hands them over, and as an answer that repeats them is read."""
    data = b"\xff\xfesix\xe2\x82bytes"
    mask = Mask([data.decode(errors="surrogateescape")])
    for how in ("surrogateescape", "replace", "backslashreplace"):
        assert "six" not in mask(f"it was {data.decode(errors=how)}!").replace("\\", "")


def test_adding_forgets_none() -> None:
    """A mask learns; one that knows all is the same one."""
    old = Mask(["old-secret"])
    both = old.adding(["new-secret", "short"])
    assert both("old-secret new-secret short") == "*** *** short"
    assert both.adding(["old-secret"]) is both
    assert old("old-secret new-secret") == "*** new-secret"


def test_a_mask_shows_no_secret() -> None:
    """Its repr holds none."""
    assert "secret" not in repr(Mask(["old-secret"]))
