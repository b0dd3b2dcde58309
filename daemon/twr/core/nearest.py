"""The name that was probably meant."""

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The one of `known` most like `name`, case aside, or None where none is like it."""
    by_folded = {candidate.lower(): candidate for candidate in known}
    close = get_close_matches(name.lower(), by_folded, n=1, cutoff=0.6)
    return by_folded[close[0]] if close else None
