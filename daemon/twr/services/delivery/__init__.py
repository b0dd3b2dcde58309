"""Claims the jobs of every route, POSTs them, settles them."""

from twr.services.delivery.dispatcher import Delivery, Dependencies

__all__ = ["Delivery", "Dependencies"]
