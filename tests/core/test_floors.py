"""Imports go down the floors only."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import twr

ROOT = Path(twr.__file__).parent
FLOORS = (
    "errors",
    "pace",
    "core",
    "config",
    "edges",
    "services",
    "supervisor",
    "double",
    "demo",
    "cli",
)
SIBLINGS_APART = ("edges", "services")
PURE = ("core",)
IMPURE = {
    *("aiohttp", "anyio", "asyncio", "concurrent", "hypercorn", "logging", "multiprocessing"),
    *("prometheus_client", "quart", "random", "redis", "secrets", "socket", "subprocess"),
    *("threading", "time", "typer", "uvloop", "watchfiles"),
}


def module_name(path: Path) -> tuple[str, ...]:
    """The dotted name of a file, as parts after `twr`; empty for the package itself."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def modules() -> dict[tuple[str, ...], Path]:
    """All modules of the package that stand on a floor."""
    found = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}
    return {name: path for name, path in found.items() if name and name != ("__main__",)}


MODULES = modules()


def imports(source: str, package: tuple[str, ...]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Line and absolute dotted name, in parts, of all that a module of `package` imports."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, tuple(alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            base += tuple(node.module.split(".")) if node.module else ()
            for alias in node.names:
                yield node.lineno, (*base, alias.name)


def fault(importer: tuple[str, ...], imported: tuple[str, ...]) -> str | None:
    """What is wrong with `importer` (parts after twr) importing `imported`; None if nothing."""
    if imported[0] != "twr":
        impure = importer[0] in PURE and imported[0] in IMPURE
        return f"{importer[0]} must do without {imported[0]}" if impure else None
    target = imported[1:]
    if not target or target[0] not in FLOORS:
        return None  # an attribute of the package itself, like its version
    mine, theirs = FLOORS.index(importer[0]), FLOORS.index(target[0])
    if theirs > mine:
        return f"{importer[0]} stands below {target[0]}"
    if mine == theirs and importer[0] in SIBLINGS_APART and importer[:2] != target[:2]:
        return f"siblings of {importer[0]} do not know each other"
    return None


@pytest.mark.parametrize("name", MODULES, ids=".".join)
def test_every_module_imports_downwards(name: tuple[str, ...]) -> None:
    """A module knows only floors below its own, and an edge or a service no sibling."""
    assert name[0] in FLOORS, f"twr.{name[0]} has no floor: put it into FLOORS"
    path = MODULES[name]
    package = ("twr", *path.parent.relative_to(ROOT).parts)
    faults = [
        f"{path.name}:{line}: {why}"
        for line, imported in imports(path.read_text(), package)
        if (why := fault(name, imported))
    ]
    assert faults == []


@pytest.mark.parametrize(
    ("importer", "imported", "expected"),
    [
        ("core.update", "twr.errors.TwrError", None),
        ("core.matching", "twr.core.update.Facts", None),
        ("core.update", "twr.config.load", "core stands below config"),
        ("core.update", "logging", "core must do without logging"),
        ("core.update", "asyncio.Event", "core must do without asyncio"),
        ("edges.store", "logging", None),
        ("edges.store.keys", "twr.edges.store.scripts", None),
        ("edges.store", "twr.edges.sender", "siblings of edges do not know each other"),
        ("services.probe", "twr.services.admin", "siblings of services do not know each other"),
        ("services.probe", "twr.supervisor", "services stands below supervisor"),
        ("services.probe", "twr.edges.store", None),
        ("cli.main", "twr.__version__", None),
        ("cli.main", "twr.cli.status", None),
    ],
)
def test_faults_are_seen(importer: str, imported: str, expected: str | None) -> None:
    """The check itself tells a good import from a bad one."""
    assert fault(tuple(importer.split(".")), tuple(imported.split("."))) == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import twr.core.update, json", [("twr", "core", "update"), ("json",)]),
        ("from twr.core import update", [("twr", "core", "update")]),
        ("from . import update", [("twr", "core", "update")]),
        ("from .update import Facts", [("twr", "core", "update", "Facts")]),
        ("from ..edges import store", [("twr", "edges", "store")]),
        ("from .. import errors", [("twr", "errors")]),
        ("def late():\n    import logging", [("logging",)]),
    ],
)
def test_imports_are_found_wherever_they_stand(
    source: str, expected: list[tuple[str, ...]]
) -> None:
    """A relative import counts as the absolute one, a late import as an early one."""
    assert [name for _, name in imports(source, ("twr", "core"))] == expected
