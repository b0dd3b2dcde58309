"""What instances that are gone have left of themselves: alerts that nobody else can end."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from twr.core import alerting
from twr.core.alerting import Alert, Notice
from twr.services.probe.ports import Store

GONE = 300.0
"""Seconds of silence after which an instance is taken for gone, so long as a machine needs to
start again."""


async def clear(store: Store, texts: Mapping[str, str], own: str, now: float) -> tuple[Notice, ...]:
    """Forget in the store what instances other than `own` left before they went; what is over.

    `texts` is what the store holds of the alerts, `now` unix seconds. An instance that comes back
    tells anew what is wrong with it. Raises StoreError.
    """
    others = {instance for _, instance, _ in _entries(texts) if instance != own}
    silences = await store.silences(sorted(others)) if others else {}
    left: dict[str, Alert | None] = {}
    for name, instance, alert in _entries(texts):
        if instance in silences and _is_gone(silences[instance], alert, now):
            left[f"{name}@{instance}"] = alert
    if left:
        await store.save_alerts(dict.fromkeys(left))
    return tuple(
        replace(alerting.over(alert, now), instance=name.rpartition("@")[2])
        for name, alert in left.items()
        if alert is not None
    )


def _entries(texts: Mapping[str, str]) -> Iterator[tuple[str, str, Alert | None]]:
    """Name, instance and alert of each entry that is one instance's own."""
    for key, text in texts.items():
        name, at, instance = key.rpartition("@")
        if at:
            yield name, instance, None if ":" in name else alerting.load(name, text)


def _is_gone(silence: float | None, alert: Alert | None, now: float) -> bool:
    """One that the store does not know may have begun just now, and beats in a moment."""
    if silence is None:
        return alert is None or now - alert.since >= GONE
    return silence >= GONE
