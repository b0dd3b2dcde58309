"""The files in etc/: the example is the manual, the schema is what the code says."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from twr.config import env_file, load, schema
from twr.config.settings import FileSettings, Section
from twr.core.nearest import nearest

ETC = Path(__file__).parents[2] / "etc"


def test_the_schema_is_not_stale() -> None:
    """etc/twr.schema.json is what `twr config schema` prints."""
    text = (ETC / "twr.schema.json").read_text()
    assert text == json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def test_every_key_of_the_schema_is_described() -> None:
    """An editor has a sentence for each key, knows which are needed, and takes no others."""
    found = schema()
    for section in (found, *found["$defs"].values()):
        assert section["additionalProperties"] is False
        for name, key in section["properties"].items():
            assert key.get("description"), name
    assert found["required"] == ["routes"]
    assert found["$defs"]["RouteSettings"]["required"] == ["name", "target_url"]
    assert found["properties"]["delivery"] == {
        "$ref": "#/$defs/DeliverySettings",
        "description": "Defaults for every route",
    }
    assert found["$defs"]["DeliverySettings"]["properties"]["timeout"] == {
        "default": "10s",
        "description": "One POST, answer included",
        "pattern": "^[0-9]+(\\.[0-9]+)? ?(ms|s|m|h|d)$",
        "type": "string",
    }


def test_the_example_is_valid_with_the_example_environment() -> None:
    """etc/twr.yaml works as it is, with only what etc/twr.env.example sets."""
    found = load(ETC / "twr.yaml", {})
    secrets = found.secrets(env_file(ETC / "twr.env.example"))
    assert found.warnings == ()
    assert secrets.warnings == ()
    assert set(secrets.signing) == {route.name for route in found.routes}


def test_the_example_names_every_key() -> None:
    """No key is left out of the manual, be it commented out."""
    text = (ETC / "twr.yaml").read_text()
    found = schema()
    keys = {
        name
        for section in (found, *found["$defs"].values())
        for name in section["properties"]
        if not name.endswith("_file")
    }
    assert {key for key in keys if key not in text} == set()


def test_the_example_shows_the_defaults() -> None:
    """What stands in the example, the routes and the public URL aside, is the default."""
    written: dict[str, Any] = yaml.safe_load((ETC / "twr.yaml").read_text())
    assert _differing(written, schema()) == ["bot.webhook_url", "routes"]


def _differing(written: dict[str, Any], section: dict[str, Any], path: str = "") -> list[str]:
    """The keys whose value is not the default that the schema names."""
    found = []
    for key, value in written.items():
        known = section["properties"][key]
        if "$ref" in known:
            inner = schema()["$defs"][known["$ref"].rpartition("/")[2]]
            found += _differing(value, inner, f"{path}{key}.")
        elif known.get("default", _DEFAULTS.get(key)) != value:
            found.append(path + key)
    return found


_DEFAULTS = {"token_env": "BOT_TOKEN", "secret_token_env": "TELEGRAM_WEBHOOK_SECRET"}


def test_an_empty_section_has_its_defaults() -> None:
    """A section whose keys are all commented out is as if it were not there."""
    route = {"name": "a", "target_url": "http://h/", "signing_secret_env": "A"}
    names = [
        name
        for name, field in FileSettings.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section)
    ]
    assert names == ["bot", "store", "delivery", "dead_letters", "probe", "alerts"]
    empty = FileSettings.model_validate({"routes": (route,)} | dict.fromkeys(names))
    assert empty == FileSettings.model_validate({"routes": (route,)})


@pytest.mark.parametrize(
    ("name", "expected"),
    [("mesage", "message"), ("MESSAGE", "message"), ("zzz", None), ("", None)],
)
def test_the_nearest_name(name: str, expected: str | None) -> None:
    """A slip of the pen finds the name, something else finds none."""
    assert nearest(name, ["poll", "message", "edited_message"]) == expected
