"""The plain design, as it is written in an afternoon: dedup, a list, one worker that POSTs.

    WEBHOOK_SECRET=… TARGET_URLS="http://…" REDIS_URL=redis://… \\
        uvicorn --factory bench.baseline_plain:create_app
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hmac import compare_digest
from typing import Annotated, Any

import httpx  # type: ignore[import-not-found, unused-ignore]
from fastapi import (  # type: ignore[import-not-found, unused-ignore]
    FastAPI,
    Header,
    HTTPException,
)
from redis import asyncio as aredis
from redis.exceptions import WatchError

QUEUE, PROCESSING = "queue", "processing"
SEEN_TTL = 25 * 3600


async def enqueue(redis: aredis.Redis, update_id: int, jobs: list[str]) -> bool:
    """Queue the jobs of an update that was not seen before; False when it was."""
    seen = f"seen:{update_id}"
    async with redis.pipeline(transaction=True) as pipe:
        while True:
            try:
                await pipe.watch(seen)
                if await pipe.exists(seen):
                    return False
                pipe.multi()
                pipe.set(seen, 1, ex=SEEN_TTL)
                pipe.lpush(QUEUE, *jobs)
                await pipe.execute()
            except WatchError:
                continue
            return True


async def work(redis: aredis.Redis, client: httpx.AsyncClient) -> None:
    """Deliver one job after the other."""
    while True:
        raw = await redis.brpoplpush(QUEUE, PROCESSING, timeout=1)
        if raw is None:
            continue
        job = json.loads(raw)
        try:
            response = await client.post(job["url"], json=job["update"])
            response.raise_for_status()
        except httpx.HTTPError:
            await asyncio.sleep(1)
            await redis.lpush(QUEUE, raw)
        await redis.lrem(PROCESSING, 1, raw)  # type: ignore[arg-type]


def create_app() -> FastAPI:
    """The application, from the environment."""
    secret = os.environ["WEBHOOK_SECRET"]
    targets = os.environ["TARGET_URLS"].split()
    redis = aredis.Redis.from_url(os.environ["REDIS_URL"])

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with httpx.AsyncClient(timeout=10) as client:
            worker = asyncio.create_task(work(redis, client))
            yield
            worker.cancel()
        await redis.aclose()

    app = FastAPI(lifespan=lifespan)

    @app.post("/webhooks/telegram", status_code=202)  # type: ignore[untyped-decorator, unused-ignore]
    async def webhook(
        update: dict[str, Any],
        x_telegram_bot_api_secret_token: Annotated[str, Header()] = "",
    ) -> dict[str, Any]:
        if not compare_digest(x_telegram_bot_api_secret_token, secret):
            raise HTTPException(401, "unauthorized")
        jobs = [json.dumps({"url": url, "update": update}) for url in targets]
        if not await enqueue(redis, update["update_id"], jobs):
            return {"status": "duplicate", "deliveries": 0}
        return {"status": "queued", "deliveries": len(jobs)}

    return app
