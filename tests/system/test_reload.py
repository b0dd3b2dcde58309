"""A configuration that changes while the daemon runs."""

import asyncio
import signal
from pathlib import Path

import pytest

from system.harness import Daemon, message, route
from targets import Target, answering, held
from until import until

pytestmark = pytest.mark.anyio


async def test_a_renamed_file_is_taken_over_without_losing_what_flies(short_path: Path) -> None:
    """The delivery in flight ends where it began, and the next goes to the new target."""
    gate = asyncio.Event()
    async with (
        Target(held(gate)) as old,
        Target() as new,
        Daemon(short_path, [route("shop", old)]) as daemon,
    ):
        await daemon.accepts(message(1))
        await old.has(1)
        daemon.write(routes=[route("shop", new, concurrency=4)])
        await daemon.says('config loaded cause="file changed" routes=1')
        await daemon.accepts(message(2, chat=8))
        await new.has(1)
        gate.set()
        await daemon.comes("shop", delivered=2, failed_attempts=0, waiting=0)
    assert (old.ids, new.ids) == ([1], [2])


async def test_sighup_reloads(short_path: Path) -> None:
    """Also when the file was written in place and before anybody saw it."""
    async with Target() as target, Daemon(short_path, [route("shop", target)]) as daemon:
        daemon.write(routes=[route("shop", target), route("other", target)])
        daemon.signal(signal.SIGHUP)
        await daemon.says("config loaded cause=SIGHUP routes=2")
        await daemon.accepts(message(1), deliveries=2)
        await daemon.comes("other", delivered=1)


async def test_a_bad_file_keeps_what_runs(short_path: Path) -> None:
    """It is told by file and line and in the metrics; the next good file is taken over."""
    async with Target() as target, Daemon(short_path, [route("shop", target)]) as daemon:
        good = daemon.file.read_text()
        daemon.file.write_text(good.replace("name: shop", "nmae: shop"))
        place = f"{daemon.file}:9: route #1: nmae: no such key; did you mean name"
        await daemon.says(f"config invalid .*{place}")
        assert await daemon.metric("twr_config_last_reload_successful") == 0.0
        await daemon.accepts(message(1))
        await daemon.comes("shop", delivered=1)
        daemon.file.write_text(good + "shutdown_grace: 5s\n")
        await daemon.says("config loaded")
        assert await daemon.metric("twr_config_last_reload_successful") == 1.0
        await daemon.accepts(message(2))
        await daemon.comes("shop", delivered=2)


async def test_what_cannot_change_is_named(short_path: Path) -> None:
    """The rest of the file is taken over; back to what runs is no change."""
    async with Target() as target, Daemon(short_path, [route("shop", target)]) as daemon:
        daemon.write(instance="vps-2", routes=[route("shop", target), route("two", target)])
        await daemon.says("config needs a restart setting=instance")
        await daemon.says("config loaded .*routes=2")
        assert (await daemon.status())["instance"] == "vps-1"
        daemon.write(instance="vps-1", routes=[route("shop", target)])
        await daemon.says("config loaded .*routes=1")
        assert len(daemon.logged("config needs a restart")) == 1


async def test_a_warning_of_a_new_file_is_told_once(short_path: Path) -> None:
    """Not again with each file that has it too."""
    async with Target() as target, Daemon(short_path, [route("shop", target)]) as daemon:
        fancy = route("fancy", target, match={"update_types": ["mesage"]})
        daemon.write(routes=[route("shop", target), fancy])
        await daemon.says("config loaded .*routes=2")
        daemon.write(routes=[route("shop", target), fancy, route("more", target)])
        await daemon.says("config loaded .*routes=3")
        assert len(daemon.logged("config warning=.*did you mean message")) == 1


async def test_a_route_that_is_gone_for_good_leaves_the_metrics(short_path: Path) -> None:
    """The store still knows it, but nothing waits there."""
    async with Target() as target:
        routes = [route("shop", target), route("other", target)]
        async with Daemon(short_path, routes) as daemon:
            await daemon.accepts(message(1), deliveries=2)
            await daemon.comes("other", delivered=1, waiting=0)
            assert 'route="other"' in await _metrics(daemon)
            daemon.write(routes=routes[:1])
            await daemon.says("config loaded .*routes=1")
            shown = await _metrics(daemon)
            assert ('route="other"' in shown, 'route="shop"' in shown) == (False, True)


async def _metrics(daemon: Daemon) -> str:
    async with daemon.session.get(f"{daemon.admin_url}/metrics") as answer:
        return await answer.text()


async def test_a_file_that_is_away_for_a_moment_changes_nothing(short_path: Path) -> None:
    """An editor that deletes it and writes it again is one reload, of what it wrote."""
    async with Target() as target, Daemon(short_path, [route("shop", target)]) as daemon:
        daemon.file.unlink()
        daemon.write(routes=[route("shop", target), route("two", target)])
        await daemon.says("config loaded .*routes=2")
        assert not daemon.logged("config invalid")


async def test_an_orphaned_route_keeps_its_work_until_it_is_back(short_path: Path) -> None:
    """It is shown as orphaned, and delivered when the file names it again."""
    async with Target() as target, Target() as other:
        shop = route("shop", target)
        await target.close()
        async with Daemon(short_path, [shop, route("other", other)]) as daemon:
            await daemon.accepts(message(1), message(2), deliveries=2)
            await daemon.comes("other", delivered=2)
            daemon.write(routes=[route("other", other)])
            await daemon.says("config loaded .*routes=1")
            await until(lambda: _orphaned(daemon), 15, "an orphan with its work")
            await daemon.accepts(message(3))
            await target.open()
            daemon.write(routes=[shop, route("other", other)])
            await daemon.says("config loaded .*routes=2")
            await daemon.comes("shop", within=20, delivered=2, waiting=0)
    assert target.ids == [1, 2]


async def _orphaned(daemon: Daemon) -> bool:
    row = await daemon.route("shop")
    return bool(row.get("orphaned")) and row["waiting"] == 2 and row["processing"] == 0


async def test_fifty_reloads_under_way_lose_nothing(short_path: Path) -> None:
    """Updates are accepted and delivered all the while, each once."""
    async with Target(answering()) as target, Daemon(short_path, [route("shop", target)]) as daemon:
        for n in range(50):
            daemon.signal(signal.SIGHUP)
            await daemon.accepts(message(n, chat=n))
        await daemon.comes("shop", delivered=50, waiting=0, failed_attempts=0)
        assert "Traceback" not in daemon.log()
    assert sorted(target.ids) == list(range(50))
