"""How deep a body is."""

import json

import pytest

from twr.core.update import InvalidUpdate, _is_shallow, parse


@pytest.mark.parametrize("before", [0, 1, 31, 32, 33, 63, 64, 65, 200])
@pytest.mark.parametrize(("depth", "shallow"), [(99, True), (100, True), (101, False)])
def test_a_hundred_levels_are_shallow(before: int, depth: int, shallow: bool) -> None:
    """Wherever the deep place lies, and whatever strings say."""
    text = '{"]": "[[\\\\\\"[{"}'
    deep = "[" * (depth - 1) + "]" * (depth - 1)
    body = "[" + "[]," * before + f"{text},{deep}" + ",{}" * before + "]"
    assert json.loads(body)
    assert _is_shallow(body.encode()) is shallow


@pytest.mark.parametrize("wrong", ["[1}", '{"a" 1}', "[,]", "[1"])
def test_what_lies_deeper_has_to_be_json_too(wrong: str) -> None:
    """Each of the deep places, the first and the others."""
    places = ["[1]", '{"a": 1}', "[]"]
    for at in range(3):
        deep = ",".join([*places[:at], wrong, *places[at:]])
        body = f'{{"update_id": 1, "a": {"[" * 120}{deep}{"]" * 120}}}'
        with pytest.raises(InvalidUpdate):
            parse(body.encode())
    good = f'{{"update_id": 1, "a": {"[" * 120}{",".join(places)}{"]" * 120}}}'
    assert parse(good.encode())["update_id"] == 1
