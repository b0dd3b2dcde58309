"""The JSON schema of the file, for editors."""

from typing import Any

from twr.config.settings import FileSettings


def schema() -> dict[str, Any]:
    """The schema of twr.yaml, JSON Schema 2020-12."""
    generated = FileSettings.model_json_schema()
    for section in (generated, *generated["$defs"].values()):
        for key in section.get("properties", {}).values():
            _tidy(key)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "twr.yaml"} | {
        key: value for key, value in generated.items() if key != "title"
    }


def _tidy(key: dict[str, Any]) -> None:
    """Without what pydantic adds for itself: titles, and the defaults of whole sections."""
    key.pop("title", None)
    if isinstance(key.get("default"), dict) or key.get("default", ...) is None:
        del key["default"]
