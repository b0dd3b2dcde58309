"""Runs a bot's program with another Bot API server than Telegram's: its URL, then the file."""

import importlib
import runpy
import sys
from functools import partialmethod
from importlib.util import find_spec

url, program = sys.argv[1:]
if find_spec("aiogram"):
    production = importlib.import_module("aiogram.client.telegram").PRODUCTION
    object.__setattr__(production, "base", f"{url}/bot{{token}}/{{method}}")
if find_spec("telegram"):
    bot = importlib.import_module("telegram.ext").ExtBot
    bot.__init__ = partialmethod(bot.__init__, base_url=f"{url}/bot")
runpy.run_path(program, run_name="__main__")
