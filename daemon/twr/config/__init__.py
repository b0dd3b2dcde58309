"""The configuration: one YAML file, checked in one go, and its secrets."""

from twr.config.env_file import env_file
from twr.config.loading import DEFAULT_FILE, find_config, load
from twr.config.model import (
    Alerts,
    Bot,
    Config,
    DeadLetters,
    Listen,
    Network,
    Probe,
    Route,
    StoreConfig,
    TelegramSink,
    unchangeable_differences,
)
from twr.config.schema import schema
from twr.config.secrets import Reference, Secrets

__all__ = [
    "DEFAULT_FILE",
    "Alerts",
    "Bot",
    "Config",
    "DeadLetters",
    "Listen",
    "Network",
    "Probe",
    "Reference",
    "Route",
    "Secrets",
    "StoreConfig",
    "TelegramSink",
    "env_file",
    "find_config",
    "load",
    "schema",
    "unchangeable_differences",
]
