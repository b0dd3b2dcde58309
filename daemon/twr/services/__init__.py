"""The supervised tasks, each an `async def run(...)`; none imports another."""
