"""The connections that scripts run on: redis-py's own, a few of them kept between calls."""

import asyncio
from typing import Any, cast

import hiredis
from redis import exceptions
from redis.asyncio.connection import AbstractConnection, ConnectionPool

# The two calls that every update waits for, accept and turn, can be under way at once.
MOST_KEPT = 2
# A connection that idled for longer goes back to the pool, which looks whether it still holds
# before it gives it out.
FRESH = 1.0


class Connections:
    """Runs commands on connections of `pool`.

    The way through the pool, and redis-py's time limits (switched off in `pool`; the caller sets
    its own), cost each command time and turns of the event loop that a delivery waits for. So a
    connection that has just worked is kept out of the pool.
    """

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._kept: list[tuple[float, AbstractConnection]] = []

    async def execute(self, *command: str | bytes | int) -> Any:
        """The answer to one command. Raises what redis-py does.

        A caller that is cancelled, or an answer that makes no sense, ends the connection with it.
        """
        # hiredis packs a long command in a fifth of the time that redis-py takes.
        packed = hiredis.pack_command(cast("Any", command))
        connection = await self._take()
        try:
            await connection.send_packed_command(packed, check_health=False)
            answer = await connection.read_response()
        except exceptions.NoScriptError:
            await self._keep(connection)
            raise
        except exceptions.ResponseError:
            await self._pool.release(connection)
            raise
        except BaseException:
            await connection.disconnect(nowait=True)
            await self._pool.release(connection)
            # The others may be as dead: the pool looks.
            await self.give_back()
            raise
        await self._keep(connection)
        return answer

    async def _take(self) -> AbstractConnection:
        now = asyncio.get_running_loop().time()
        while self._kept:
            since, connection = self._kept.pop()
            if now - since < FRESH:
                return connection
            await self._pool.release(connection)
        return cast("AbstractConnection", await self._pool.get_connection())

    async def _keep(self, connection: AbstractConnection) -> None:
        if len(self._kept) < MOST_KEPT:
            self._kept.append((asyncio.get_running_loop().time(), connection))
        else:
            await self._pool.release(connection)

    async def give_back(self) -> None:
        """Give all that is kept to the pool."""
        while self._kept:
            await self._pool.release(self._kept.pop()[1])

    async def drop_idle(self) -> None:
        """Let all connections that are not in use be made anew.

        The pool's own way waits for each to be closed, which raises where a peer is gone, and
        cancels whoever waits for the same one.
        """
        await self.give_back()
        for connection in list(self._pool._available_connections):
            await connection.disconnect(nowait=True)
