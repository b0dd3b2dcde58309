"""How deep a body is."""

import pytest

from twr.core.update import InvalidUpdate, parse


def at_depth(levels: int, before: int) -> bytes:
    """An update with so many levels, after so many lists; its strings hold brackets."""
    text = '{"]": "[[\\\\\\"[{"}'
    deep = "[" * (levels - 2) + "]" * (levels - 2)
    places = ",".join(["[]"] * before + [text, deep] + ["{}"] * before)
    return f'{{"update_id": 1, "a": [{places}]}}'.encode()


@pytest.mark.parametrize("before", [0, 1, 31, 32, 33, 63, 64, 65, 200])
@pytest.mark.parametrize("levels", [999, 1000])
def test_a_thousand_levels_are_read(before: int, levels: int) -> None:
    """Wherever the deep place lies, and whatever strings say."""
    assert parse(at_depth(levels, before))["update_id"] == 1


@pytest.mark.parametrize("before", [0, 1, 31, 32, 33, 63, 64, 65, 200])
def test_one_level_more_is_refused(before: int) -> None:
    """Wherever the deep place lies."""
    with pytest.raises(InvalidUpdate, match="over 1000 levels"):
        parse(at_depth(1001, before))


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
