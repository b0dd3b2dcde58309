"""Claims the jobs of every route, POSTs them, settles them."""

from twr.services.delivery.dispatcher import Delivery
from twr.services.delivery.ports import Dependencies
from twr.services.delivery.route import RouteSecrets, RunningRoute

__all__ = ["Delivery", "Dependencies", "RouteSecrets", "RunningRoute"]
