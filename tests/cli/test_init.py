"""`twr init` and `twr config schema`."""

import json
import os
from pathlib import Path
from typing import Any

from twr.config import env_file, schema


def test_the_starter_passes_the_check(twr: Any, tmp_path: Path) -> None:
    """What init writes is valid as it is, and it says what comes next."""
    ended = twr("init")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == (
        "wrote twr.yaml and twr.env\n"
        "next: set BOT_TOKEN in twr.env, and webhook_url and routes in twr.yaml;\n"
        "then: twr check -c twr.yaml --env-file twr.env\n"
    )
    checked = twr("check", "-c", "twr.yaml", "--env-file", "twr.env")
    assert checked.code == 0
    assert checked.err == (
        "twr.yaml:4: warning: bot.token_env: the variable BOT_TOKEN is not set:"
        " no probe, no webhook commands\n"
    )


def test_the_secrets_are_fresh_and_private(twr: Any, tmp_path: Path) -> None:
    """Each init makes new secrets, in a file that nobody else can read."""
    found: list[str] = []
    for name in ("a", "b"):
        assert twr("init", "-c", f"{name}/twr.yaml").code == 0
        file = tmp_path / name / "twr.env"
        assert file.stat().st_mode & 0o777 == 0o600
        assert (tmp_path / name / "twr.yaml").stat().st_mode & 0o777 == 0o644
        values = env_file(file)
        assert sorted(values) == ["MY_SERVICE_SIGNING_SECRET", "TELEGRAM_WEBHOOK_SECRET"]
        found += values.values()
    assert len(set(found)) == 4
    assert min(map(len, found)) >= 43


def test_nothing_is_overwritten(twr: Any, tmp_path: Path) -> None:
    """Where one of the two files exists, a dangling link too, init writes nothing."""
    (tmp_path / "twr.env").symlink_to("nowhere")
    ended = twr("init")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == "twr.env exists; remove it, or name another file\n"
    assert not (tmp_path / "twr.yaml").exists()
    assert twr("init", "--env-file", "other.env").code == 0
    assert (tmp_path / "other.env").exists()
    assert twr("init", "--env-file", "third.env").err == (
        "twr.yaml exists; remove it, or name another file\n"
    )


def test_a_place_that_cannot_be_written(twr: Any, tmp_path: Path) -> None:
    """A directory that cannot be made is one line."""
    (tmp_path / "file").touch()
    ended = twr("init", "-c", "file/twr.yaml")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == "file cannot be written: File exists\n"


def test_the_schema_is_printed(twr: Any) -> None:
    """`twr config schema` prints the schema, with no configuration at hand."""
    ended = twr("config", "schema")
    assert (ended.code, ended.err) == (0, "")
    assert json.loads(ended.out) == schema()


def test_the_daemons_user_gets_in_whatever_the_umask(twr: Any, tmp_path: Path) -> None:
    """Directories that are made are open to read, as the configuration is; secrets are not."""
    old = os.umask(0o077)
    try:
        assert twr("init", "-c", "etc/twr/twr.yaml").code == 0
    finally:
        os.umask(old)
    names = ("etc", "etc/twr", "etc/twr/twr.yaml", "etc/twr/twr.env")
    modes = [oct((tmp_path / name).stat().st_mode & 0o777) for name in names]
    assert modes == ["0o755", "0o755", "0o644", "0o600"]
