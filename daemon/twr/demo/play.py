"""Plays the steps one after the other, and keeps all running for whoever wants to look."""

import shlex
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from itertools import count

import anyio

from twr.core.text import clip, escape
from twr.demo.failure import StepError
from twr.demo.stage import Stage
from twr.demo.steps import STEPS, Step
from twr.errors import TwrError

EVERY = 3.0
"""Seconds between two updates while all is kept running."""

_LAST_LINES = 5
_LONGEST = 500
_WIDTH = 72

Say = Callable[[str], None]
Mark = Callable[[bool], str]

_KINDS = (
    ("message", {"text": "/order 2 croissants"}),
    ("message", {"text": "where is my order?"}),
    ("callback_query", {"data": "order:17"}),
    ("edited_message", {"text": "nobody waits for this"}),
)


async def play(stage: Stage, say: Say, mark: Mark, steps: Sequence[Step] = STEPS) -> bool:
    """Play the steps until one fails; whether all held. `mark` shows what held and what did not."""
    began = time.monotonic()
    for step in steps:
        say(step.name)
        try:
            await _play(step, stage, say, mark)
        except TwrError as error:
            say(f"  {mark(False)} {step.name} failed")
            _say_failure(stage, error, say)
            return False
    say(f"All {len(steps)} steps held, in {time.monotonic() - began:.1f} s.")
    return True


async def _play(step: Step, stage: Stage, say: Say, mark: Mark) -> None:
    at = time.monotonic()
    async with aclosing(step.run(stage)) as facts:
        async for fact in facts:
            now = time.monotonic()
            say(f"  {mark(True)} {fact:<{_WIDTH}} {now - at:4.1f} s")
            at = now


def _say_failure(stage: Stage, error: TwrError, say: Say) -> None:
    if isinstance(error, StepError):
        say(f"    expected  {escape(error.expected)}")
        say(f"    seen      {escape(clip(error.seen, _LONGEST))}")
    else:
        say(f"    {escape(str(error))}")
    say(f"    the daemon's log is {stage.keep_log()}; it ends with")
    for line in stage.twr.log().splitlines()[-_LAST_LINES:]:
        say(f"      {escape(clip(line, _LONGEST))}")


async def keep_running(stage: Stage, say: Say) -> None:
    """Let updates flow, and start the daemon again whenever it ends, until cancelled."""
    for line in _ways_to_look(stage):
        say(line)
    for number in count():
        if stage.twr.code is not None:
            say(f"the daemon has ended ({stage.twr.code}) and is started again, as systemd would")
            await stage.twr.start()
            await stage.until_ready()
        kind, fields = _KINDS[number % len(_KINDS)]
        update_id = stage.double.enqueue(kind, user_id=1001 + number % 7, **fields)
        await anyio.sleep(EVERY)
        takers = [service.name for service in stage.services if update_id in service.ids]
        what = f"{kind} {next(iter(fields.values()))!r}"
        say(f"update {update_id}: {what} -> {', '.join(takers) or 'nobody'}")


def _ways_to_look(stage: Stage) -> Sequence[str]:
    config, env_file = (shlex.quote(str(path)) for path in (stage.config, stage.env_file))
    update = '{"update_id": 1, "message": {"chat": {"id": 5}, "from": {"id": 5}, "text": "/order"}}'
    header = '-H "X-Telegram-Bot-Api-Secret-Token: $TELEGRAM_WEBHOOK_SECRET"'
    return (
        "",
        "All of it keeps running, and an update comes every few seconds; Ctrl-C ends it.",
        f"  twr status -c {config}",
        f"  twr dlq list -c {config}",
        f"  twr webhook info -c {config} --env-file {env_file}",
        f"  tail -f {shlex.quote(str(stage.twr.log_file))}",
        f"  kill -9 {stage.twr.pid}   # the daemon; it is started again",
        f"  . {env_file}; curl {header} -d '{update}' {stage.url}",
        "",
    )
