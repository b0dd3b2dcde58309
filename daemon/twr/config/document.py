"""A YAML file as plain data, with the line of every key and item.

The YAML is that of 1.2 where the two versions differ: `on`, `yes` and 0660 are text, so
that nothing written without quotes turns into something else.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from twr.core.text import clip, escape
from twr.errors import ConfigError, Problem

Key = str | int
# A password may begin as a tag or an alias does, so that neither is ever repeated.
_QUOTE_IT = '; a value that begins with ! or * must be put in "quotes"'
_LARGEST = 4 << 20
_MAP, _SEQ, _MERGE = (f"tag:yaml.org,2002:{name}" for name in ("map", "seq", "merge"))


@dataclass(slots=True)
class Place:
    """Where something stands: its line, from 1, and the places of what is in it."""

    line: int
    inner: dict[Key, "Place"] = field(default_factory=dict)

    def at(self, path: Sequence[Key]) -> "Place":
        """The place of what is at `path`, or of the nearest thing around it."""
        place = self
        for key in path:
            if key not in place.inner:
                break
            place = place.inner[key]
        return place


@dataclass(frozen=True, slots=True)
class Document:
    """What a file holds: mappings as dict, sequences as tuple, and faults found on the way.

    `content` is the file's bytes, empty where the text is of no file."""

    file: str
    data: dict[str, Any]
    place: Place
    problems: tuple[Problem, ...]
    content: bytes = field(default=b"", repr=False)

    def line(self, *path: Key) -> int:
        """The line of what is at `path`, or of the nearest thing around it."""
        return self.place.at(path).line

    def problem(self, path: Sequence[Key], message: str) -> Problem:
        """A fault of what is at `path`."""
        return Problem(self.file, self.line(*path), message)


def read(path: Path) -> Document:
    """The document in the file at `path`. Raises ConfigError where there is none."""
    content = _content(path)
    return replace(parse(_text(path, content), str(path)), content=content)


def parse(text: str, file: str) -> Document:
    """The document that `text` is; `file` is named in errors.

    Raises ConfigError for what is no YAML, is empty, or is no mapping. Keys that stand
    twice, tags and the like are left out of `data` and listed in `problems`.
    """
    try:
        root = yaml.compose(text, _Loader)
        if root is None:
            raise _failure(file, 1, "the file is empty; `routes:` is what it needs")
        builder = _Builder(file)
        data, place = builder.build(root)
    except yaml.YAMLError as error:
        raise _failure(file, _line_of(error, text), _reason(error)) from None
    except RecursionError:
        raise _failure(file, 1, "the file is nested too deeply") from None
    if not isinstance(data, dict):
        raise _failure(file, place.line, "the file must hold keys and values, such as `routes:`")
    return Document(file, data, Place(1, place.inner), tuple(builder.problems))


class _Loader(yaml.SafeLoader):
    """Plain scalars by the rules of YAML 1.2, but for octal and hexadecimal numbers."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012


for _name, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)", list("-+0123456789")),
    ("float", r"[-+]?(?:0|[1-9][0-9]*)\.[0-9]+", list("-+0123456789")),
    ("merge", r"<<", ["<"]),
):
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_name}", re.compile(rf"(?:{_pattern})\Z", re.ASCII), _first
    )


class _Builder:
    """Turns nodes into data and places, each anchored node once."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._built: dict[int, tuple[Any, Place]] = {}
        self._open: set[int] = set()
        self.problems: list[Problem] = []

    def build(self, node: yaml.Node) -> tuple[Any, Place]:
        key = id(node)
        if key in self._open:
            self._fault(node, "an alias stands inside what it names")
            return None, Place(_line(node))
        if key not in self._built:
            self._open.add(key)
            self._built[key] = self._value(node)
            self._open.discard(key)
        return self._built[key]

    def _value(self, node: yaml.Node) -> tuple[Any, Place]:
        if isinstance(node, yaml.MappingNode) and node.tag == _MAP:
            return self._mapping(node)
        if isinstance(node, yaml.SequenceNode) and node.tag == _SEQ:
            return self._sequence(node)
        return self._scalar(node), Place(_line(node))

    def _mapping(self, node: yaml.MappingNode) -> tuple[dict[str, Any], Place]:
        data: dict[str, Any] = {}
        place = Place(_line(node))
        for key, value in self._pairs(node):
            if key.value in data:
                first = place.inner[key.value].line
                name = _quoted(key.value)
                self._fault(key, f"{name} stands twice; the first is on line {first}")
                continue
            data[key.value], inner = self.build(value)
            place.inner[key.value] = Place(_line(key), inner.inner)
        for merged in self._merged(node):
            self._merge(data, place, *self.build(merged))
        return data, place

    def _pairs(self, node: yaml.MappingNode) -> Iterator[tuple[yaml.ScalarNode, yaml.Node]]:
        for key, value in node.value:
            if key.tag == "tag:yaml.org,2002:str":
                yield key, value
            elif key.tag != _MERGE:
                self._fault(key, "a key must be text")

    def _merged(self, node: yaml.MappingNode) -> Iterator[yaml.Node]:
        for key, value in node.value:
            if key.tag != _MERGE:
                continue
            for source in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                if isinstance(source, yaml.MappingNode):
                    yield source
                else:
                    self._fault(key, "`<<` takes an alias of a mapping, or a list of them")

    def _merge(self, data: dict[str, Any], place: Place, other: Any, there: Place) -> None:
        for key, value in (other or {}).items():
            if key not in data:
                data[key] = value
                place.inner[key] = there.inner[key]

    def _sequence(self, node: yaml.SequenceNode) -> tuple[tuple[Any, ...], Place]:
        built = [self.build(item) for item in node.value]
        inner: dict[Key, Place] = {
            index: Place(_line(item), place.inner)
            for index, (item, (_, place)) in enumerate(zip(node.value, built, strict=True))
        }
        return tuple(value for value, _ in built), Place(_line(node), inner)

    def _scalar(self, node: yaml.Node) -> Any:
        kind = node.tag.removeprefix("tag:yaml.org,2002:")
        text = node.value
        try:
            if kind == "str":
                return text
            if kind == "null":
                return None
            if kind == "bool":
                return {"true": True, "false": False}[text.lower()]
            if kind in ("int", "float"):
                return int(text) if kind == "int" else float(text)
        except (ValueError, KeyError):
            self._fault(node, "the value is not what its tag says")
            return None
        self._fault(node, f"a tag that is not known here{_QUOTE_IT}")
        return None

    def _fault(self, node: yaml.Node, message: str) -> None:
        self.problems.append(Problem(self._file, _line(node), message))


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST + 1)
    except (OSError, ValueError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or "no such path"
        raise _failure(str(path), 0, f"cannot be read: {reason}") from None
    if len(content) > _LARGEST:
        raise _failure(str(path), 0, "over 4 MiB: this is no configuration")
    return content


def _text(path: Path, content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise _failure(str(path), line, "not UTF-8 text; save the file as UTF-8") from None


def _failure(file: str, line: int, message: str) -> ConfigError:
    return ConfigError([Problem(file, line, message)])


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _line_of(error: yaml.YAMLError, text: str) -> int:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return int(error.problem_mark.line) + 1
    position = getattr(error, "position", 0)
    return text.count("\n", 0, position) + 1


def _reason(error: yaml.YAMLError) -> str:
    if not isinstance(error, yaml.MarkedYAMLError):
        return "a character that YAML does not allow"
    problem = error.problem or "not valid YAML"
    if "'\\t'" in problem:
        return "a tab where only spaces may stand; YAML is indented with spaces"
    if error.context and "single document" in error.context:
        return "a second document begins here; the file must hold one"
    for unknown in ("found undefined alias", "found undefined tag handle"):
        if problem.startswith(unknown):
            return f"not valid YAML: {unknown}{_QUOTE_IT}"
    return f"not valid YAML: {escape(problem)}"


def _quoted(text: object) -> str:
    return f"`{clip(escape(str(text)), 60)}`"
