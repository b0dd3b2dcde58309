"""Decisions without actions: no await, no I/O, no clock and no randomness of its own."""
