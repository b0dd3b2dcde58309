"""What instances that are gone have left of themselves: alerts that nobody else can end."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from twr.core import alerting
from twr.core.alerting import Alert, Notice
from twr.core.clock import Clock
from twr.services.probe.ports import Store

GONE = 300.0
"""Seconds of silence after which an instance is taken for gone, so long as a machine needs to
start again."""


WATCHED = 60.0
"""Seconds for which that has to be seen: after an outage of the store all were silent."""


class Leavings:
    """Forgets in the store what instances other than `own` left there before they went."""

    def __init__(self, store: Store, own: str, clock: Clock) -> None:
        self._store = store
        self._own = own
        self._clock = clock
        self._looked = 0.0
        self._seen: dict[str, float] = {}

    async def clear(self, texts: Mapping[str, str]) -> tuple[Notice, ...]:
        """One look at `texts`, what the store holds of the alerts; what is over.

        An instance that comes back tells anew what is wrong with it. Raises StoreError.
        """
        others = {instance for _, instance, _ in _entries(texts)} - {self._own}
        silences = await self._store.silences(sorted(others)) if others else {}
        silent = [name for name, silence in silences.items() if silence is None or silence >= GONE]
        gone = self._watched(silent)
        left = [entry for entry in _entries(texts) if entry[1] in gone]
        if left:
            await self._store.save_alerts({f"{name}@{whose}": None for name, whose, _ in left})
        now = self._clock.time()
        return tuple(
            replace(alerting.over(alert, now), instance=whose) for _, whose, alert in left if alert
        )

    def _watched(self, silent: Iterable[str]) -> set[str]:
        """Those that were silent at every look for long enough, without a gap between two."""
        now = self._clock.monotonic()
        known = self._seen if now - self._looked <= WATCHED else {}
        self._looked = now
        self._seen = {name: known.get(name, now) for name in silent}
        return {name for name, since in self._seen.items() if now - since >= WATCHED}


def _entries(texts: Mapping[str, str]) -> Iterator[tuple[str, str, Alert | None]]:
    """Name, instance and alert of each entry that is one instance's own."""
    for key, text in texts.items():
        name, at, instance = key.rpartition("@")
        if at:
            yield name, instance, None if ":" in name else alerting.load(name, text)
