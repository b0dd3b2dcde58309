"""Counts what is asked of the store: calls per accept, settles and claims per turn, and their cost.

    python -m bench.accept_trips

The store's slow log, told to keep everything, shows each script call with its first arguments and
its microseconds inside the server.
"""

import argparse
import hashlib
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench import stats
from bench.load import Plan
from bench.sides import Setup
from bench.trial import Given, Shape, Trial, trial
from twr.edges.store.client import script

SECONDS = 1.0
KEPT = 100_000


@dataclass(frozen=True, slots=True)
class Call:
    """One script call: its name, its numbers of interest, the server's microseconds.

    accept: updates and offers; turn: settles and claims.
    """

    name: str
    first: int
    second: int
    micros: int


def _names() -> dict[bytes, str]:
    sha = {name: hashlib.sha1(script(name).encode()).hexdigest() for name in ("accept", "turn")}
    return {digest.encode(): name for name, digest in sha.items()}


def calls(entries: Sequence[Any]) -> list[Call]:
    """The accepts and turns among the entries of a SLOWLOG GET; the rest is called `other`."""
    names = _names()
    found = []
    for _, _, micros, words, *_ in entries:
        name = names.get(words[1], "other") if words[0].upper() == b"EVALSHA" else "other"
        # EVALSHA sha 1 tag, then what the script's own head lists.
        if name == "accept":
            found.append(Call(name, int(words[8]), int(words[7]), micros))
        elif name == "turn":
            found.append(Call(name, int(words[7]), int(words[8]), micros))
        else:
            found.append(Call(name, 0, 0, micros))
    return found


def watch(made: Trial, plan: Plan) -> tuple[int, list[Call]]:
    """How many updates were accepted under a load, and all calls meanwhile."""
    client = made.store.client
    client.config_set("slowlog-max-len", KEPT)
    client.config_set("slowlog-log-slower-than", 0)
    client.execute_command("SLOWLOG", "RESET")
    accepted = len(made.load(plan).result.ids)
    entries = client.execute_command("SLOWLOG", "GET", KEPT)
    return accepted, calls([_words(entry) for entry in entries])


def _words(entry: Any) -> Any:
    """redis-py turns an entry into a dict whose command is one text; only words are of use."""
    if isinstance(entry, dict):
        return (entry["id"], entry["start_time"], entry["duration"], entry["command"].split(b" "))
    return entry


def line(title: str, accepted: int, seen: Sequence[Call]) -> str:
    """What a load asked of the store."""
    accepts = [call for call in seen if call.name == "accept"]
    turns = [call for call in seen if call.name == "turn"]
    settles, claims = sum(it.first for it in turns), sum(it.second for it in turns)
    per = max(1, accepted)
    each = max(1, len(turns))
    return (
        f"{title:34} {accepted:6} accepts  {len(accepts) / per:5.2f} accept calls and "
        f"{len(turns) / per:5.2f} turns per accept; "
        f"{stats.median([call.micros for call in accepts]):5.0f} µs a call, "
        f"{sum(call.micros for call in accepts) / per:4.0f} µs an update; turns: "
        f"{settles / each:4.1f} settles, {claims / each:4.1f} claims, "
        f"{stats.median([call.micros for call in turns]):4.0f} µs"
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.accept_trips", description=__doc__)
    parser.add_argument("--server", choices=("valkey", "redis"), default="valkey")
    server = parser.parse_args().server
    with tempfile.TemporaryDirectory(prefix="twr-bench-") as folder:
        given = Given(server, Path(folder))
        for hang in (True, False):
            for routes in (1, 3, 20):
                for connections in (1, 40):
                    setup = Setup("twr", routes)
                    shape = Shape(hang=setup.names if hang else ())
                    plan = replace(Plan(0, SECONDS, 0.5), connections=connections)
                    with trial(given, setup, shape) as made:
                        made.start()
                        made.load(plan)
                        accepted, seen = watch(made, plan)
                    word = "accept alone" if hang else "and deliver"
                    title = f"{word}, {routes} routes, {connections} connections"
                    print(line(title, accepted, seen), flush=True)


if __name__ == "__main__":
    main()
