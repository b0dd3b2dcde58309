"""The container files say what the daemon needs."""

import re
from typing import Any

import yaml

from tools import ROOT

DOCKERFILE = (ROOT / "etc/Dockerfile").read_text()


def compose() -> dict[str, Any]:
    """The services of the compose file."""
    document: dict[str, Any] = yaml.safe_load((ROOT / "etc/compose.yaml").read_text())
    return document


def test_the_image_runs_the_daemon_as_a_user() -> None:
    """No root, the state in a volume, signals straight to the daemon."""
    instructions = dict(re.findall(r"^([A-Z]+) (.*)$", DOCKERFILE.split("FROM")[-1], re.M))
    assert (instructions["USER"], instructions["VOLUME"]) == ("twr", "/var/lib/twr")
    assert (instructions["ENTRYPOINT"], instructions["CMD"]) == ('["twr"]', '["run"]')


def test_a_stop_leaves_time_to_drain() -> None:
    """Docker's 10 s would cut off the default grace of 20 s."""
    assert compose()["services"]["twr"]["stop_grace_period"] == "60s"


def test_every_volume_is_declared_and_every_file_exists() -> None:
    """Mounted files of the repository are there; named volumes are declared."""
    document = compose()
    sources = [
        mount.split(":")[0]
        for service in document["services"].values()
        for mount in service["volumes"]
    ]
    assert {source for source in sources if "/" not in source} == set(document["volumes"])
    files = [source for source in sources if source.startswith("./") and "." in source[2:]]
    assert files == ["./redis/twr-redis.conf"]
    assert all((ROOT / "etc" / file).is_file() for file in files)


def test_the_ingress_is_not_published_to_the_world() -> None:
    """A proxy with TLS stands in front; the admin listener is not published at all."""
    assert compose()["services"]["twr"]["ports"] == ["127.0.0.1:8080:8080"]
