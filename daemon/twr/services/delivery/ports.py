"""What delivery is given, and what it needs of others."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from twr.core.clock import Clock
from twr.core.jobs import Claim, Settle, Turn
from twr.core.masking import Mask


class Store(Protocol):
    """What delivery asks of the store; raises StoreError and its kinds."""

    async def turn(self, settles: Sequence[Settle], claims: Sequence[Claim]) -> Turn: ...
    async def reclaim(self, held: Sequence[str]) -> tuple[str, ...]: ...


class Measures(Protocol):
    """Where delivery counts."""

    def delivery(self, route: str, outcome: str, seconds: float) -> None: ...
    def lag(self, route: str, seconds: float) -> None: ...
    def stale_settle(self, count: int = 1) -> None: ...
    def store_error(self) -> None: ...
    def forget_route(self, route: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Dependencies:
    """What delivery works with. `mask` hides the secrets that no stored text may show;
    `alive` is called at least every few seconds while the loop turns; `grace` (seconds) is what
    deliveries in flight get at the end."""

    store: Store
    measures: Measures
    clock: Clock
    random: Callable[[], float]
    mask: Callable[[], Mask] = field(repr=False)
    alive: Callable[[], None]
    user_agent: str
    grace: Callable[[], float]
