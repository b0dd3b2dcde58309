"""Claims the jobs of every route, POSTs them, settles them."""

from twr.services.delivery.dispatcher import Delivery, Dependencies
from twr.services.delivery.route import RouteSecrets, RunningRoute

__all__ = ["Delivery", "Dependencies", "RouteSecrets", "RunningRoute"]
