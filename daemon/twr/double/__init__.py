"""A Telegram to try things with: a Bot API server and its webhook pushes, on the loopback."""

from twr.double.api import FAULTS
from twr.double.pusher import Delivery
from twr.double.rules import RefusalError
from twr.double.samples import sample
from twr.double.server import TOKEN, TelegramDouble
from twr.double.wire import Limits

__all__ = ["FAULTS", "TOKEN", "Delivery", "Limits", "RefusalError", "TelegramDouble", "sample"]
