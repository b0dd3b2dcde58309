"""docs/queue.md is the protocol: its tables are what the scripts do, no more and no less."""

import re
from typing import get_args, get_type_hints

import pytest

from store.invariants import LIVE, READ, kind_of, violations
from store.page import (
    DOCUMENTED,
    Transition,
    performed,
    quoted,
    rows,
    scripts,
    states,
    steps_of,
    transitions,
    undocumented,
)
from store.scenes import SCENES, begin
from store.world import KEYS, World, arrival
from tools import ROOT
from twr.core.jobs import Destination, Settle

LUA = ROOT / "daemon/twr/edges/store/lua"
# Steps that leave every job as it is.
IDLE = {"POST", "beat", "stats"}


def test_every_way_of_a_job_is_on_the_page_and_every_way_of_the_page_is_gone() -> None:
    """The scenes below go the ways of the page, each of them once and no other."""
    assert sorted(SCENES) == sorted(DOCUMENTED)


@pytest.mark.anyio
@pytest.mark.parametrize("way", SCENES, ids=" ".join)
async def test_a_way(way: Transition, world: World) -> None:
    """The step takes the job this way, and all other jobs ways that are on the page as well."""
    step = await SCENES[way](world)
    before = states(await world.picture())
    world.ran.clear()
    await step()
    steps = [it for it in steps_of(world.ran) if it not in IDLE]
    picture = await world.picture()
    assert steps == [way.step]
    gone = [
        (old, new) for name, old, new in performed(before, steps, states(picture)) if is_1(name)
    ]
    assert (way.before, way.after) in gone
    assert undocumented(before, steps, states(picture)) == []
    assert violations(picture) == []


def is_1(name: str) -> bool:
    """Whether it is the job that the scenes are about, wherever it has gone."""
    return re.fullmatch(r"1(~1)?/[ab]", name) is not None


def test_the_states_are_those_of_the_table() -> None:
    """Each state has its place, and each is both reached and left."""
    named = {state for cells in rows("state", "in which place") for state in quoted(cells[0])}
    assert named == LIVE | {"dead"}
    assert {way.before for way in transitions()} == named | {"none"}
    assert {way.after.partition(" ")[0] for way in transitions()} == named | {"none"}


def test_every_script_is_a_step() -> None:
    """The steps name all the scripts, each kind of settle, and no script that is not there."""
    files = {file.stem for file in LUA.glob("*.lua")} - {"common"}
    assert set(scripts().values()) - {""} == files
    kinds = {f"settle: {kind}" for kind in get_args(get_type_hints(Settle)["kind"])}
    turn = {step for step, script in scripts().items() if script == "turn"}
    assert turn == kinds | {"claim"}


def test_every_step_is_in_both_tables() -> None:
    """What has no way for a job is known to leave all of them alone."""
    assert {way.step for way in transitions()} == scripts().keys() - IDLE


def kinds_of_keys() -> list[str]:
    """The keys of the page with `*` for what varies."""
    names = [name for key, _ in rows("key", "what") for name in quoted(key)]
    return [re.sub(r"<\w+>", "*", name) for name in names]


def test_the_keys_are_those_that_are_checked() -> None:
    """Every kind of key that the invariants read is on the page, and no other."""
    assert sorted(kinds_of_keys()) == sorted(READ)


@pytest.mark.anyio
async def test_every_key_is_written(world: World) -> None:
    """A store in which something is in every state has a key of every kind, and no other."""
    await begin(world, "delayed")
    await world.accept(*(arrival(n, "a", lane=str(n)) for n in (2, 3, 4)))
    await world.take("a")
    suspect = await world.take("a")
    await world.redis.hset(KEYS.job(suspect.id), "crashes", "2")
    await world.settle(Settle("release", suspect.id, suspect.token, "back"))
    await world.accept(arrival(5, Destination("a", True, 0)))
    await world.store.save_alerts({"store": "{}"})
    await world.store.claim_probe(60)
    await world.store.save_username("a_bot")
    tag = f"{KEYS.tag}:"
    names = [key.decode() async for key in world.redis.scan_iter("*")]
    kinds = {kind_of(name.removeprefix(tag)) for name in names if name.startswith(tag)}
    assert (kinds, [name for name in names if not name.startswith(tag)]) == (set(READ), [])
