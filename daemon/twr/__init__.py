"""A Telegram webhook router: one public webhook, several services behind it."""

from twr.core.signing import verify

__version__ = "0.1.0"
__all__ = ["__version__", "verify"]
