"""Where the daemon's time goes under load: py-spy samples it, this adds the samples up.

    python -m bench.profiling accept|deliver|drain [--routes N] [--rate N] [--seconds N]

accept: targets that never answer; deliver: accepting and delivering at once; drain: delivering
what waited, without a load. Prints the share of each layer (a sample counts for the innermost
layer that it is in), of the functions with all they call, and of the functions alone. Writes
bench/out/profile.txt: folded stacks, which speedscope.app and flame graph tools read as they are.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

from bench.load import Plan
from bench.machine import OTHERS
from bench.report import number
from bench.run import OUT
from bench.sides import SIDES, Setup
from bench.target import Deliveries
from bench.trial import Given, Shape, Trial, trial

HERTZ = 500
SHOWN = 45
DRAINED = 60_000
# Parts of a frame's file, innermost layer first where one lies in another.
LAYERS = (
    "h11", "hypercorn", "twr/services/ingress", "twr/services/delivery", "twr/edges/store",
    "twr/edges/sender", "twr/edges/http", "twr/edges/metrics", "twr/core", "twr/supervisor",
    "redis", "aiohttp", "yarl", "multidict", "prometheus_client", "anyio", "quart", "asyncio",
    "fastapi", "starlette", "uvicorn", "httpx", "httpcore", "pydantic",
)  # fmt: skip

Stacks = list[tuple[list[str], int]]


def stacks(text: str) -> Stacks:
    """Folded stacks of the main thread, outermost frame first, each with its number of samples."""
    found = []
    for line in text.splitlines():
        frames, _, count = line.rpartition(" ")
        if "_bootstrap (threading.py" not in frames:
            found.append((frames.split(";"), int(count)))
    return found


def function(frame: str) -> str:
    """`name (file:line)` without the line."""
    head, colon, _ = frame.rpartition(":")
    return f"{head})" if colon else frame


def layer(frames: list[str]) -> str:
    """The innermost layer of a stack."""
    for frame in reversed(frames):
        place = frame.partition("(")[2]
        for name in LAYERS:
            if f"{name}/" in place or f"{name}." in place:
                return name
    return "event loop"


def table(title: str, counts: Counter[str], total: int, per_update: float) -> str:
    """The most frequent, in percent and in microseconds of an update."""
    lines = [title]
    for name, count in counts.most_common(SHOWN):
        share = count / total
        lines.append(f"  {share:6.1%} {number(share * per_update * 1000):>6} µs  {name}")
    return "\n".join(lines)


def summary(found: Stacks, per_update: float) -> str:
    """All tables; `per_update`: the daemon's milliseconds for one accepted update."""
    total = sum(count for _, count in found)
    layers: Counter[str] = Counter()
    inclusive: Counter[str] = Counter()
    own: Counter[str] = Counter()
    for frames, count in found:
        layers[layer(frames)] += count
        own[function(frames[-1])] += count
        for name in {function(frame) for frame in frames}:
            inclusive[name] += count
    # What everything runs in tells nothing.
    for name in [name for name, count in inclusive.items() if count > 0.8 * total]:
        del inclusive[name]
    return "\n\n".join(
        [
            f"{total} samples, {number(per_update * 1000)} µs of CPU per update or delivery",
            table("layers", layers, total, per_update),
            table("functions with all that they call", inclusive, total, per_update),
            table("functions alone", own, total, per_update),
        ]
    )


def record(given: argparse.Namespace, out: Path) -> float:
    """Sample the daemon at work; its CPU milliseconds per update (drain: per delivery)."""
    setup = Setup(given.side, given.routes, given.concurrency)
    shape = Shape(hang=setup.names if given.what == "accept" else ())
    with (
        tempfile.TemporaryDirectory(prefix="twr-bench-") as folder,
        trial(Given(given.server, Path(folder)), setup, shape) as made,
    ):
        if given.what == "drain":
            made.fill(DRAINED)
        made.start()
        if given.what == "drain":
            return _drain(made, given.seconds, out)
        made.load(Plan(0, 0.5, 0.5))
        running = made.begin(replace(Plan(0, given.seconds + 2.0), rate=given.rate))
        spying = _spy(made, given.seconds, out)
        measured = running.end()
        spying.wait(given.seconds + 30)
        return measured.cpu_daemon


def _drain(made: Trial, seconds: float, out: Path) -> float:
    before = made.daemon.child.cpu_seconds(), len(made.deliveries().get("r0", Deliveries()).ids)
    _spy(made, seconds, out).wait(seconds + 30)
    after = made.daemon.child.cpu_seconds(), len(made.deliveries()["r0"].ids)
    return (after[0] - before[0]) / (after[1] - before[1]) * 1000


def _spy(made: Trial, seconds: float, out: Path) -> "subprocess.Popen[bytes]":
    spy = shutil.which("py-spy", path=f"{Path(sys.executable).parent}:/usr/bin:/usr/local/bin")
    if spy is None:
        raise SystemExit("py-spy is missing: pip install -e .[bench]")
    options = ("--rate", str(HERTZ), "--format", "raw", "-o", str(out))
    words = ("--pid", str(made.daemon.child.pid), "--duration", str(int(seconds)))
    return subprocess.Popen(
        ["taskset", "-c", str(OTHERS), spy, "record", *options, *words], stdout=subprocess.DEVNULL
    )


def main(arguments: list[str]) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.profiling", description=__doc__)
    parser.add_argument("what", choices=("accept", "deliver", "drain"))
    parser.add_argument("--side", choices=SIDES, default="twr")
    parser.add_argument("--routes", type=int, default=1)
    parser.add_argument("--concurrency", type=int)
    parser.add_argument("--rate", type=float, help="updates a second; left out: saturated")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--server", choices=("valkey", "redis"), default="valkey")
    given = parser.parse_args(arguments)
    OUT.mkdir(exist_ok=True)
    out = OUT / "profile.txt"
    per_update = record(given, out)
    print(summary(stacks(out.read_text("utf-8")), per_update))


if __name__ == "__main__":
    main(sys.argv[1:])
