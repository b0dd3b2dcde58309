"""What several tests of the operator's side need."""

import os
import shutil
from pathlib import Path

import pytest

from twr.edges.metrics import Metrics

ROOT = Path(__file__).resolve().parent.parent


def tool(name: str) -> str:
    """The path of a program; where it should be there (CI) its absence is a failure."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if found is None:
        if os.environ.get("CI") == "true":
            pytest.fail(f"{name} is not installed")
        pytest.skip(f"{name} is not installed")
    return found


def fed_metrics() -> Metrics:
    """Metrics to which everything has been told once, of a route `shop`."""
    metrics = Metrics("1.2.3")
    metrics.received("queued")
    metrics.rejected("unauthorized")
    metrics.delivery("shop", "delivered", 0.25)
    metrics.lag("shop", 0.5)
    metrics.queue("shop", ready=1, delayed=2, processing=3, waiting=6, oldest_seconds=12.5)
    metrics.dead_letters({("shop", "attempts"): 2})
    metrics.breaker("shop", True)
    metrics.lease_expired(3)
    metrics.dead_letters_trimmed(4)
    metrics.stale_settle()
    metrics.store_error()
    metrics.webhook(True, 6, 1_788_088_524.0)
    metrics.probe_success(1_788_088_530.0)
    metrics.alerts_firing(["route_down", "route_down", "webhook_pending"])
    metrics.config_reload(True)
    metrics.task_restarted("probe")
    return metrics
