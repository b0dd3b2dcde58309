"""Lets updates wait in the store without a daemon: the daemon's own store calls, as many as asked.

python -m bench.fill STORE_PORT COUNT --routes r0 r1 [--claim]
"""

import argparse
import asyncio
import sys

from bench import wire
from twr.core.jobs import Arrival, Claim, Destination
from twr.core.update import parse, read
from twr.edges.store import Identity, Store, open_store

CHATS = 20_000
AT_ONCE = 64
SENDER = 9999


def arrival(update_id: int, seq: int, route: str) -> Arrival:
    """An update for one route."""
    mark = wire.Mark(update_id, wire.FIRST_CHAT + 500_000 + seq % CHATS, SENDER, seq, 0)
    body = wire.update(mark)
    facts = read(parse(body))
    destination = Destination(route, True, 10**9)
    return Arrival(
        update_id, facts.type or "", facts.lane, facts.expires_after, body, (destination,)
    )


async def fill(store: Store, count: int, first_id: int, routes: list[str]) -> None:
    """Store them, each for one of the routes in turn."""
    for start in range(0, count, AT_ONCE):
        numbers = range(start, min(start + AT_ONCE, count))
        arrivals = [arrival(first_id + n, n, routes[n % len(routes)]) for n in numbers]
        await store.accept(arrivals)


async def claim(store: Store, count: int, routes: list[str]) -> None:
    """Lease all that may start, as a process that then dies."""
    await store.beat(routes, take_over=True)
    left = count
    while left > 0:
        turn = await store.turn([], [Claim(name, 200, 20.0) for name in routes])
        claimed = sum(len(it.jobs) for it in turn.claimed)
        if not claimed:
            break
        left -= claimed
    print(f"claimed={count - left}")


async def main(arguments: list[str]) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.fill", description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--first-id", type=int, default=wire.FIRST_ID)
    parser.add_argument("--routes", nargs="+", default=["r0"])
    parser.add_argument("--claim", action="store_true", help="lease what may start, then die")
    given = parser.parse_args(arguments)
    url = f"redis://127.0.0.1:{given.port}/0"
    store = open_store(
        url, prefix="twr", bot="main", identity=Identity("bench", "filler"), dedup_ttl=90_000
    )
    await fill(store, given.count, given.first_id, given.routes)
    if given.claim:
        await claim(store, given.count, given.routes)
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
