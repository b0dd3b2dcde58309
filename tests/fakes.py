"""Doubles that live in the test's own process."""

import fakeredis
from redis.asyncio import Redis

from twr.edges.store import Identity, Store
from twr.edges.store.client import Client, script
from twr.edges.store.keys import Keys


def fake_script(name: str) -> str:
    """A script as fakeredis runs it: with its `#!lua` line turned into a comment."""
    return script(name).replace("#!", "--", 1)


def fake_redis(server: fakeredis.FakeServer) -> Redis:
    """A client of a fake server; its data is what all clients of that server see."""
    client: Redis = fakeredis.FakeAsyncRedis(server=server)
    return client


def fake_store(
    server: fakeredis.FakeServer | None = None,
    *,
    nonce: str = "n1",
    dedup_ttl: float = 90_000,
) -> Store:
    """A store of the bot `main` for the instance `vps-1`, without limits and settings."""
    keys = Keys("twr", "main")
    client = Client(fake_redis(server or fakeredis.FakeServer()), keys.tag, fake_script)
    return Store(client, keys, Identity("vps-1", nonce), dedup_ttl)
