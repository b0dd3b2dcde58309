"""The metrics as Prometheus reads them."""

import time
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tools import fed_metrics
from twr.edges import metrics as module
from twr.edges.metrics import Metrics

LABELS = {
    "twr_build_info": {"version"},
    "twr_bot_info": {"bot"},
    "twr_updates_received_total": {"outcome"},
    "twr_updates_rejected_total": {"reason"},
    "twr_deliveries_total": {"route", "outcome"},
    "twr_delivery_duration_seconds": {"route"},
    "twr_delivery_lag_seconds": {"route"},
    "twr_queue_jobs": {"route", "state"},
    "twr_queue_oldest_seconds": {"route"},
    "twr_dead_letters": {"route", "reason"},
    "twr_breaker_open": {"route"},
    "twr_lease_expired_total": set(),
    "twr_dead_letters_trimmed_total": set(),
    "twr_stale_settles_total": set(),
    "twr_store_errors_total": set(),
    "twr_webhook_url_matches": set(),
    "twr_webhook_pending_updates": set(),
    "twr_webhook_last_error_timestamp_seconds": set(),
    "twr_probe_last_success_timestamp_seconds": set(),
    "twr_alerts_firing": {"alert"},
    "twr_config_last_reload_successful": set(),
    "twr_task_restarts_total": {"task"},
}

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def series(metrics: Metrics) -> Series:
    """All samples by name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
    }


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    """One sample, None where it is not shown."""
    return series(metrics).get((name, frozenset(labels.items())))


def test_every_metric_has_exactly_its_labels() -> None:
    """The table of names and labels is complete and holds nothing else."""
    metrics = fed_metrics()
    found: dict[str, set[str]] = {}
    for name, labels in series(metrics):
        for suffix in ("_bucket", "_sum", "_count"):
            if name.endswith("_seconds" + suffix):
                name = name.removesuffix(suffix)
        found.setdefault(name, set()).update({key for key, _ in labels} - {"le"})
    assert {name: keys for name, keys in found.items() if name.startswith("twr_")} == LABELS


def test_what_was_told_is_what_is_shown() -> None:
    """Counters count, gauges hold the last value."""
    metrics = fed_metrics()
    expected = {
        ("twr_updates_received_total", "outcome", "queued"): 1,
        ("twr_updates_rejected_total", "reason", "unauthorized"): 1,
        ("twr_delivery_duration_seconds_sum", "route", "shop"): 0.25,
        ("twr_delivery_lag_seconds_count", "route", "shop"): 1,
        ("twr_queue_oldest_seconds", "route", "shop"): 12.5,
        ("twr_breaker_open", "route", "shop"): 1,
        ("twr_alerts_firing", "alert", "route_down"): 2,
        ("twr_task_restarts_total", "task", "probe"): 1,
    }
    found = {key: value(metrics, key[0], **{key[1]: key[2]}) for key in expected}
    assert found == expected
    assert value(metrics, "twr_lease_expired_total") == 3
    assert value(metrics, "twr_dead_letters_trimmed_total") == 4
    assert value(metrics, "twr_stale_settles_total") == 1
    assert value(metrics, "twr_webhook_pending_updates") == 6
    assert [
        value(metrics, "twr_queue_jobs", route="shop", state=state)
        for state in ("ready", "delayed", "processing", "waiting")
    ] == [1, 2, 3, 6]


def test_the_name_of_the_bot_is_shown() -> None:
    """So that a server of many bots tells them apart, without a label on each series."""
    assert value(Metrics("1", "shop-bot"), "twr_bot_info", bot="shop-bot") == 1


def test_the_unknown_is_not_shown_as_nought() -> None:
    """Before the first probe, and without an expected URL, there is no drift."""
    metrics = Metrics("1")
    assert value(metrics, "twr_webhook_url_matches") is None
    assert value(metrics, "twr_probe_last_success_timestamp_seconds") is None
    metrics.webhook(True, 0, 1_788_088_524.0)
    metrics.webhook(None, 0, None)
    assert value(metrics, "twr_webhook_url_matches") is None
    assert value(metrics, "twr_webhook_last_error_timestamp_seconds") is None
    assert value(metrics, "twr_webhook_pending_updates") == 0


def test_known_outcomes_begin_at_nought() -> None:
    """A rate over the first refusal needs the zero before it."""
    metrics = Metrics("1")
    assert value(metrics, "twr_updates_rejected_total", reason="unauthorized") == 0
    assert value(metrics, "twr_updates_received_total", outcome="duplicate") == 0


def test_dead_letters_that_are_gone_are_not_shown() -> None:
    """Each call tells all there are."""
    metrics = Metrics("1")
    metrics.dead_letters({("shop", "attempts"): 3, ("shop", "expired"): 1})
    metrics.dead_letters({("shop", "attempts"): 2})
    assert value(metrics, "twr_dead_letters", route="shop", reason="attempts") == 2
    assert value(metrics, "twr_dead_letters", route="shop", reason="expired") is None


def test_a_resolved_alert_falls_to_nought() -> None:
    """The series of an alert goes on, so that a graph shows its end."""
    metrics = Metrics("1")
    metrics.alerts_firing(["store_down"])
    metrics.alerts_firing([])
    assert value(metrics, "twr_alerts_firing", alert="store_down") == 0


def test_a_forgotten_route_leaves_nothing() -> None:
    """No series of a removed route remains, those of others do, and it may come back."""
    metrics = fed_metrics()
    metrics.delivery("other", "delivered", 0.1)
    metrics.forget_route("shop")
    routes = {dict(labels).get("route") for _, labels in series(metrics)}
    assert routes == {None, "other"}
    metrics.delivery("shop", "delivered", 0.1)
    assert value(metrics, "twr_deliveries_total", route="shop", outcome="delivered") == 1


def test_two_registries_do_not_meet() -> None:
    """Nothing is global: a second instance counts by itself."""
    first, second = Metrics("1"), Metrics("1")
    first.store_error()
    assert value(first, "twr_store_errors_total") == 1
    assert value(second, "twr_store_errors_total") == 0


def test_there_are_no_created_series() -> None:
    """The output holds no series that only tells when another one began."""
    metrics = fed_metrics()
    assert b"_created" not in metrics.render()


def test_process_metrics_survive_a_hidden_proc_stat(tmp_path: Path) -> None:
    """With ProcSubset=pid the process is still measured, its start time included."""
    (tmp_path / "self").symlink_to("/proc/self")
    collector = module._Process(proc=str(tmp_path), registry=None)
    names = {family.name: family.samples[0].value for family in collector.collect()}
    assert {"process_cpu_seconds", "process_open_fds", "process_max_fds"} <= names.keys()
    assert abs(time.time() - names["process_start_time_seconds"]) < 3600


def test_the_hot_path_is_cheap() -> None:
    """An observation looks no labels up: far below what a delivery costs."""
    metrics = Metrics("1")
    started = time.perf_counter()
    for _ in range(2000):
        metrics.delivery("shop", "delivered", 0.02)
        metrics.received("queued")
    assert (time.perf_counter() - started) / 2000 < 100e-6
