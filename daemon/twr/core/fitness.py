"""Whether a store server keeps what it is given."""

from collections.abc import Mapping
from dataclasses import dataclass

OLDEST_REDIS = (7, 0)


@dataclass(frozen=True, slots=True)
class Fitness:
    """`server` is its name and version; with an `unfit` text it would lose updates."""

    server: str
    unfit: str | None
    warnings: tuple[str, ...]


def judge(info: Mapping[str, str], appendfsync: str | None) -> Fitness:
    """What INFO tells, and CONFIG GET appendfsync (None where a server does not tell)."""
    server, version = _server(info)
    unfit = None
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        unfit = f"the store may evict updates: set maxmemory-policy noeviction (it is {policy})"
    elif server == "redis" and version < OLDEST_REDIS:
        unfit = f"the store is Redis {info.get('redis_version')}: 7.0 or newer is needed"
    name = f"{server} {'.'.join(map(str, version)) or 'unknown'}"
    return Fitness(name, unfit, tuple(_warnings(info, appendfsync)))


def _server(info: Mapping[str, str]) -> tuple[str, tuple[int, ...]]:
    """Valkey says it is Redis 7.2.4 and gives its own version apart."""
    if "valkey_version" in info:
        return "valkey", _version(info["valkey_version"])
    return "redis", _version(info.get("redis_version", ""))


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdecimal())


def _warnings(info: Mapping[str, str], appendfsync: str | None) -> list[str]:
    if info.get("aof_enabled") == "0":
        return [
            "the store keeps no append-only file: set appendonly yes, or its crash loses updates"
        ]
    if appendfsync in ("everysec", "no"):
        lost = "a power cut loses what was accepted just before; appendfsync always does not"
        return [f"the store has appendfsync {appendfsync}: {lost}"]
    return []
