"""The one command: measures twr beside what it is compared with, and holds it against its bars.

    python -m bench.run [--quick] [--only NAME …] [--server valkey|redis] [--plot FILE]

Exit code 0 when all bars are reached and nothing was lost, 1 otherwise.
"""

import argparse
import importlib.util
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path

from bench import backlog, measures
from bench.machine import DAEMON, OTHERS, ROOT, StoreServer, description, server_binary
from bench.measures import Length
from bench.plot import svg
from bench.report import Report
from bench.trial import Given

OUT = ROOT / "bench" / "out"
FULL = Length(pairs=5, seconds=4.0, warmup=1.0)
QUICK = Length(pairs=2, seconds=2.0, warmup=0.7)
VERSIONS = ("uvicorn", "fastapi", "httpx", "hypercorn", "aiohttp", "redis", "uvloop")

MEASURES: Mapping[str, Callable[[Given, Report, Length], None]] = {
    "accept": measures.accepting,
    "deliver": measures.delivering,
    "routes": measures.routes,
    "slow": measures.slow,
    "hung": measures.hung,
    "lag": measures.lagging,
    "busy": measures.busy,
    "backlog": backlog.waiting,
    "faults": backlog.faults,
    "ready": backlog.ready,
    "recovery": backlog.recovery,
    "queued": backlog.queued,
}


def _versions() -> str:
    return ", ".join(f"{name} {metadata.version(name)}" for name in VERSIONS)


def _server(kind: str, folder: Path) -> str:
    directory = folder / "version"
    directory.mkdir()
    store = StoreServer(kind, directory)
    try:
        return store.version()
    finally:
        store.stop()


def _surroundings(kind: str, folder: Path) -> str:
    settings = StoreServer.SETTINGS
    return (
        f"{description()}\n"
        f"core {DAEMON}: the daemon; core {OTHERS}: load, targets and store\n"
        f"store for each side: {_server(kind, folder)}, appendonly {settings['appendonly']}, "
        f"appendfsync {settings['appendfsync']}, over TCP on the loopback\n"
        f"{_versions()}"
    )


def _write(report: Report, about: str, plot: Path | None) -> None:
    OUT.mkdir(exist_ok=True)
    data = {"about": about.splitlines(), **report.data()}
    (OUT / "result.json").write_text(json.dumps(data, indent=1) + "\n", "utf-8")
    drawing = svg(report, about.splitlines()[0])
    (OUT / "plot.svg").write_text(drawing, "utf-8")
    if plot is not None:
        plot.write_text(drawing, "utf-8")


def _arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.run", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two pairs of short runs")
    parser.add_argument("--only", nargs="+", choices=list(MEASURES), metavar="NAME")
    parser.add_argument("--server", choices=("valkey", "redis"), default="valkey")
    parser.add_argument("--pairs", type=int, help="instead of five")
    parser.add_argument("--plot", type=Path, help="write the drawing there as well")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """The command line."""
    given = _arguments(arguments)
    missing = [
        name for name in ("fastapi", "httpx", "uvicorn") if not importlib.util.find_spec(name)
    ]
    if missing:
        print(f"the plain design needs {', '.join(missing)}: pip install -e .[bench]")
        return 2
    server_binary(given.server)
    length = QUICK if given.quick else FULL
    if given.pairs:
        length = Length(given.pairs, length.seconds, length.warmup)
    report = Report()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="twr-bench-") as name:
        about = _surroundings(given.server, Path(name))
        print(about, flush=True)
        for measure in given.only or MEASURES:
            print(f"{measure} ({(time.monotonic() - begun) / 60:.1f} min)", flush=True)
            MEASURES[measure](Given(given.server, Path(name)), report, length)
    print(f"\n{report.text()}")
    _write(report, about, given.plot)
    return 0 if not report.problems and all(bar.reached for bar in report.bars) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
