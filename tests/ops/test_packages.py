"""The packages that the program asks for, and those that it uses."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions

from tools import ROOT


def imported() -> Iterator[str]:
    """The first names of all that the program imports and that is not Python's."""
    for file in (ROOT / "daemon").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            yield from {name.partition(".")[0] for name in names} - sys.stdlib_module_names


def canonical(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def test_each_package_that_is_imported_is_asked_for() -> None:
    """Also those that come with another one, which may stop to need them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = {canonical(re.split(r"[\[<>=!~; ]", each)[0]) for each in project["dependencies"]}
    homes = packages_distributions()
    used = {canonical(homes[name][0]) for name in {*imported()} - {"twr"}}
    assert sorted(used - asked) == []
