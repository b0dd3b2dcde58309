"""The Bot API over HTTP, and the proxy it may be reached through."""

from twr.edges.telegram.client import Me, Telegram, WebhookInfo

__all__ = ["Me", "Telegram", "WebhookInfo"]
