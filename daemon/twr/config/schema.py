"""The JSON schema of the file, for editors."""

from typing import Any

from twr.config.settings import FileSettings

_DRAFT = "http://json-schema.org/draft-07/schema#"  # the one that every editor knows


def schema() -> dict[str, Any]:
    """The schema of twr.yaml. It is narrower than `load` in one thing: no key but a section
    may be left without a value.
    """
    generated = FileSettings.model_json_schema()
    sections = {name: _section(section) for name, section in generated.pop("$defs").items()}
    sections["RouteSettings"]["type"] = "object"
    return {"$schema": _DRAFT, **_section(generated), "title": "twr.yaml", "$defs": sections}


def _section(section: dict[str, Any]) -> dict[str, Any]:
    """A section may be empty, and then has its defaults."""
    properties = {name: _key(key) for name, key in section["properties"].items()}
    kept = {name: value for name, value in section.items() if name != "title"}
    return {**kept, "type": ["object", "null"], "properties": properties}


def _key(key: dict[str, Any]) -> dict[str, Any]:
    """Without what pydantic adds for itself: titles, null, the defaults of whole sections."""
    kept = {name: value for name, value in key.items() if name != "title"}
    choices = [choice for choice in kept.pop("anyOf", []) if choice != {"type": "null"}]
    if len(choices) == 1:
        kept |= choices[0]
    elif choices:
        kept["anyOf"] = choices
    if kept.get("default") is None or isinstance(kept["default"], dict):
        kept.pop("default", None)
    return kept
