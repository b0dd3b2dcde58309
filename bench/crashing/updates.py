"""The updates of a run, the routes they go to, and how each route is configured."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench.crashing.record import Rules

SECRET, SIGNING = "crash-run-secret", "crash-run-signing"
PATH = "/hook"
KINDS = ("message", "message", "message", "callback_query", "inline_query")
EXPIRES = {"message": 86_400.0, "callback_query": 150.0, "inline_query": 30.0}
RULES = Rules(
    timeout=1.0,
    max_attempts=10,
    unordered=frozenset({"heap"}),
    hanging=frozenset({"hanging"}),
)

# What each route takes, as its `match` says it.
ROUTES: dict[str, dict[str, Any]] = {
    "steady": {},
    "flaky": {"update_types": ["message"]},
    "slow": {"update_types": ["message"], "chat_ids": list(range(1, 1000, 2))},
    "hanging": {"update_types": ["message", "callback_query"], "user_ids": list(range(1, 1000, 3))},
    "heap": {"update_types": ["message", "inline_query"]},
}


# Updates that the flaky service never takes: an error of its own at each of these numbers, and a
# refusal for good at each of those.
ERROR_AT, INVALID_AT = 101, 103


@dataclass(frozen=True, slots=True)
class Made:
    """An update: its lane in words of this run, the routes it has to reach, and its bytes."""

    update_id: int
    kind: str
    lane: str
    routes: tuple[str, ...]
    body: bytes

    @property
    def refused(self) -> frozenset[str]:
        """The routes on which no attempt can succeed, each for an error of the service's own."""
        return frozenset({"flaky"} & set(self.routes) if self.update_id % ERROR_AT == 0 else ())


def make(update_id: int, chat: int, kind: str) -> Made:
    """The update of this number."""
    body = json.dumps(
        {"update_id": update_id, kind: _CONTENT[kind](update_id, chat)}, separators=(",", ":")
    ).replace(",", ",\n", 1)
    routes = tuple(name for name, match in ROUTES.items() if _takes(match, kind, chat))
    return Made(update_id, kind, f"{kind} of {chat}", routes, body.encode())


def _takes(match: dict[str, Any], kind: str, chat: int) -> bool:
    if kind not in match.get("update_types", (kind,)):
        return False
    return all(chat in match.get(name, (chat,)) for name in ("chat_ids", "user_ids"))


def _user(chat: int) -> dict[str, Any]:
    return {"id": chat, "is_bot": False, "first_name": "Ada"}


def _message(update_id: int, chat: int) -> dict[str, Any]:
    return {
        "message_id": update_id,
        "from": _user(chat),
        "chat": {"id": chat, "type": "private"},
        "date": 1_788_088_524,
        "text": f"number {update_id}",
    }


_CONTENT: dict[str, Callable[[int, int], dict[str, Any]]] = {
    "message": _message,
    "callback_query": lambda n, chat: {"id": str(n), "from": _user(chat), "data": f"order:{n}"},
    "inline_query": lambda n, chat: {"id": str(n), "from": _user(chat), "query": str(n)},
}


def settings(instance: str, process: int, target_port: int, **more: Any) -> dict[str, Any]:
    """The configuration of one process. Its targets' URLs hold its number, so that they know by
    which process each request was made."""
    return {
        "bot": {"name": "crash", "secret_token_env": "WEBHOOK_SECRET"},
        "path": PATH,
        "instance": instance,
        "shutdown_grace": "10s",
        "delivery": {
            "timeout": f"{RULES.timeout:g}s",
            "concurrency": 8,
            "max_attempts": RULES.max_attempts,
            "backoff": {"first": "200ms", "factor": 2, "max": "2s", "jitter": 0.2},
            "breaker": {"failures": 5, "cooldown": "500ms", "max_cooldown": "2s"},
        },
        "routes": [
            {
                "name": name,
                "target_url": f"http://127.0.0.1:{target_port}/{name}/{process}",
                "signing_secret_env": "SIGNING_SECRET",
                **({"match": match} if match else {}),
                **({"order": "none"} if name in RULES.unordered else {}),
            }
            for name, match in ROUTES.items()
        ],
        **more,
    }
