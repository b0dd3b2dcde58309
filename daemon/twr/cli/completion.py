"""What the shell's TAB offers beyond commands and options."""

import typer

from twr.errors import TwrError


def route_names(context: typer.Context, incomplete: str) -> list[str]:
    """The routes of the configuration that begin with `incomplete`; none where it can't be read."""
    from twr.cli.common import open_config

    try:
        config, _ = open_config(context.params.get("config"), None)
    except TwrError:
        return []
    return [route.name for route in config.routes if route.name.startswith(incomplete)]
