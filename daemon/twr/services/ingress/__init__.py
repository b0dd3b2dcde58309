"""Takes Telegram's updates: checks, matches, stores, answers."""

from twr.services.ingress.accepting import Accepting
from twr.services.ingress.app import Dependencies, Settings, application, run

__all__ = ["Accepting", "Dependencies", "Settings", "application", "run"]
