"""A step of the demo that did not hold."""

from twr.errors import TwrError


class StepError(TwrError):
    """What was seen is not what was expected; both in words for a person."""

    def __init__(self, expected: str, seen: str) -> None:
        super().__init__(f"expected {expected}; seen: {seen}")
        self.expected = expected
        self.seen = seen


def check(expected: str, holds: bool, seen: object) -> None:
    """Raise StepError unless it holds."""
    if not holds:
        raise StepError(expected, str(seen))
