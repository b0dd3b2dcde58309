"""What the process runs with now, in the form that each service asks for it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from twr.config import Config, Secrets
from twr.core.drift import Limits, Wanted
from twr.core.jobs import Destination
from twr.core.masking import Mask
from twr.services import ingress, probe, recovery
from twr.services.delivery import RouteSecrets


@dataclass(frozen=True, slots=True)
class Current:
    """A configuration with its secrets, and what follows from them; replaced as a whole.

    `mask` hides the secrets of this and of earlier ones: what began with those may still end.
    """

    config: Config
    secrets: Secrets = field(repr=False)
    ingress: ingress.Settings
    recovery: recovery.Settings
    probe: probe.Settings
    route_secrets: Mapping[str, RouteSecrets] = field(repr=False)
    mask: Mask = field(repr=False)


def derive(config: Config, secrets: Secrets, before: Mask | None = None) -> Current:
    """All settings of a configuration; `before` is the mask of the one that it replaces."""
    return Current(
        config,
        secrets,
        _ingress(config, secrets),
        recovery.Settings(
            tuple(route.name for route in config.routes),
            config.dead_letters.max_age,
            config.dead_letters.max_count,
        ),
        _probe(config),
        {
            route.name: RouteSecrets(
                secrets.signing.get(route.name, ()), secrets.target_tokens.get(route.name)
            )
            for route in config.routes
        },
        (before or Mask()).adding(secrets.all()),
    )


def _ingress(config: Config, secrets: Secrets) -> ingress.Settings:
    return ingress.Settings(
        path=config.path,
        max_body=config.max_body,
        # An empty list says no more than none.
        trusted_networks=config.trusted_networks or None,
        trusted_proxies=config.trusted_proxies,
        secrets=secrets.webhook,
        rules=config.rules,
        destinations={
            route.name: Destination(route.name, route.order == "chat", route.max_pending)
            for route in config.routes
        },
    )


def _probe(config: Config) -> probe.Settings:
    bot = config.bot
    return probe.Settings(
        wanted=Wanted(bot.webhook_url, bot.max_connections, config.allowed_updates),
        rules=config.rules,
        listed=bot.allowed_updates != "auto",
        interval=config.probe.interval,
        limits=Limits(
            pending=config.probe.pending,
            fire_after=config.probe.fire_after,
            resolve_after=config.probe.resolve_after,
        ),
        repeat=config.alerts.repeat,
        backlog=config.alerts.backlog,
    )
