"""The probe: asks Telegram about the webhook, and turns what is wrong into alerts."""

from twr.services.probe.board import Board, Traffic
from twr.services.probe.ports import Bot, Inputs, Metrics, Outputs, Settings, Store
from twr.services.probe.watch import run

__all__ = [
    "Board",
    "Bot",
    "Inputs",
    "Metrics",
    "Outputs",
    "Settings",
    "Store",
    "Traffic",
    "run",
]
