"""Plants a fault in a daemon, the one that $SABOTAGE names: a promise that it breaks now and then.

Python imports this at its start where the directory is on PYTHONPATH.
"""

import itertools
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

# Every so manieth breaks.
EVERY = 20


def _plant(name: str) -> None:
    from twr.core.jobs import Accepted, Arrival, Settle
    from twr.edges.sender import Sender
    from twr.edges.store import Store

    count = itertools.count(1)
    accept, turn, post = Store.accept, Store.turn, Sender.post

    def bad() -> bool:
        return next(count) % EVERY == 0

    async def forgetful(self: Store, arrivals: Sequence[Arrival], *more: Any) -> list[Accepted]:
        """Some updates are answered and not stored."""
        answers: list[Accepted] = []
        for arrival in arrivals:
            if bad():
                answers.append(Accepted(len(arrival.destinations)))
            else:
                answers += await accept(self, [arrival], *more)
        return answers

    async def disorderly(self: Store, arrivals: Sequence[Arrival], *more: Any) -> list[Accepted]:
        """No update waits for another one."""
        return await accept(self, [replace(it, lane=f"{it.update_id}") for it in arrivals], *more)

    async def forgets_ends(self: Store, settles: Sequence[Settle], *more: Any) -> Any:
        """Some of what was delivered is tried again."""
        changed = [
            replace(it, kind="retry", argument="10") if it.kind == "delivered" and bad() else it
            for it in settles
        ]
        return await turn(self, changed, *more)

    async def breaks(self: Sender, *arguments: Any) -> Any:
        """Some attempts end with an error of our own."""
        if bad():
            raise ValueError("planted")
        return await post(self, *arguments)

    planted: dict[str, tuple[type, str, Any]] = {
        "accept": (Store, "accept", forgetful),
        "lane": (Store, "accept", disorderly),
        "settle": (Store, "turn", forgets_ends),
        "crash": (Sender, "post", breaks),
    }
    where, method, fault = planted[name]
    setattr(where, method, fault)


if "twr" in sys.orig_argv:
    _plant(os.environ["SABOTAGE"])
