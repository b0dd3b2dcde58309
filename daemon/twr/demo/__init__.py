"""The demo: a real daemon, a Telegram double and three services show what twr does."""

from twr.demo.failure import StepError
from twr.demo.play import keep_running, play
from twr.demo.stage import Stage
from twr.demo.steps import STEPS, Step

__all__ = ["STEPS", "Stage", "Step", "StepError", "keep_running", "play"]
