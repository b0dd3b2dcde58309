"""Builds everything, passes it in, restarts what crashes, drains in order."""

from twr.supervisor.daemon import Daemon, Surroundings

__all__ = ["Daemon", "Surroundings"]
