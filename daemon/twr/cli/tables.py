"""Tables and times for a terminal: plain text that a pipe can take apart."""

import shutil
from collections.abc import Sequence

_UNITS = ((86400, "d"), (3600, "h"), (60, "m"))


def terminal_width() -> int:
    """The columns of the terminal or of $COLUMNS; 80 where there is neither."""
    return shutil.get_terminal_size().columns


def age(seconds: float) -> str:
    """A span in its largest whole unit, one short word: 59s, 5m, 47h, 3d."""
    for size, unit in _UNITS:
        if seconds >= size and (unit != "d" or seconds >= 2 * size):
            return f"{seconds // size:.0f}{unit}"
    return f"{max(0.0, seconds):.0f}s"


def row(cells: Sequence[str], widths: Sequence[int]) -> str:
    """One line: each cell filled up to its width, to the right where that is negative, two spaces
    between. No cell is cut."""
    filled = (
        cell.rjust(-width) if width < 0 else cell.ljust(width)
        for cell, width in zip(cells, widths, strict=True)
    )
    return "  ".join(filled).rstrip()
