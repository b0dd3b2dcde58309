"""`twr check`."""

import json
from pathlib import Path
from typing import Any

import pytest

BROKEN = "lisen: 1\nroutes:\n  - name: a\n    target_url: http://h/\n    timeout: 10\n"
ERRORS = [
    (1, "lisen: no such key; did you mean listen?"),
    (3, "route a: signing_secret_env or signing_secret_file is missing"),
    (5, "route a: timeout: 10 has no unit; write 10s"),
]


def test_a_valid_file_is_one_line(twr: Any, config: Path, tmp_path: Path) -> None:
    """The summary says how many routes, where it listens, and where the store is."""
    config.write_text("store: {dir: /data}\n" + config.read_text())
    ended = twr("check")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == (
        "twr.yaml: ok: 3 routes, listen 127.0.0.1:8080, store embedded in /data,"
        " secrets not looked up (--env-file FILE does)\n"
    )


def test_every_error_is_a_line_and_78(twr: Any, config: Path) -> None:
    """All errors come as `file:line: message` on standard error, and nothing else."""
    config.write_text(BROKEN)
    ended = twr("check", "-c", config)
    assert (ended.code, ended.out) == (78, "")
    assert ended.err == "".join(f"{config}:{line}: {message}\n" for line, message in ERRORS)


def test_errors_as_json(twr: Any, config: Path) -> None:
    """--json has the same errors, one by one, and the same code."""
    config.write_text(BROKEN)
    ended = twr("check", "--config", config, "--json")
    assert (ended.code, ended.err) == (78, "")
    assert json.loads(ended.out) == {
        "file": str(config),
        "ok": False,
        "routes": [],
        "secrets_checked": False,
        "errors": [
            {"file": str(config), "line": line, "message": message} for line, message in ERRORS
        ],
        "warnings": [],
    }


def test_warnings_do_not_count(twr: Any, config: Path) -> None:
    """A warning is a line on standard error, the code stays 0; --json lists it."""
    config.write_text("admin: 0.0.0.0:9000\n" + config.read_text())
    ended = twr("check")
    message = "admin: not a loopback address: whoever reaches it reads status and metrics"
    assert (ended.code, ended.err) == (0, f"twr.yaml:1: warning: {message}\n")
    found = json.loads(twr("check", "--json").out)
    assert (found["ok"], found["routes"]) == (True, ["support", "admin", "rest"])
    assert found["warnings"] == [{"file": "twr.yaml", "line": 1, "message": message}]


def test_secrets_are_looked_up_with_an_environment_file(
    twr: Any, config: Path, tmp_path: Path
) -> None:
    """With --env-file what is missing is an error; without, a plain shell will do."""
    env = tmp_path / "twr.env"
    env.write_text("BOT_TOKEN=1:A\nTELEGRAM_WEBHOOK_SECRET=hook\nSUPPORT=a\nADMIN=b\n")
    assert twr("check").code == 0
    ended = twr("check", "--env-file", env)
    assert (ended.code, ended.out) == (78, "")
    assert ended.err == (
        "twr.yaml:13: route rest: signing_secret_env: the variable REST is not set\n"
    )
    ended = twr("check", "--env-file", env, REST="c")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.endswith(", secrets found\n")
    assert json.loads(twr("check", "--env-file", env, "--json", REST="c").out)["secrets_checked"]


def test_the_environment_file_is_checked_too(twr: Any, config: Path, tmp_path: Path) -> None:
    """A fault of the environment file is a line with its place, and 78."""
    env = tmp_path / "twr.env"
    env.write_text("A=1\nexport B=hunter2\n")
    ended = twr("check", "--env-file", "twr.env")
    assert (ended.code, ended.err) == (
        78,
        "twr.env:2: leave out `export`: systemd skips such a line\n",
    )
    ended = twr("check", "--env-file", "none.env")
    assert (ended.code, ended.err) == (
        78,
        "none.env: cannot be read: No such file or directory\n",
    )


NOWHERE = "/etc/twr/twr.yaml"


@pytest.mark.skipif(Path(NOWHERE).exists(), reason="this machine has a configuration")
def test_no_configuration_names_what_to_do(twr: Any) -> None:
    """Where there is no file, one line names `twr init`; --json has it as an error."""
    message = f"no configuration here or at {NOWHERE}; `twr init` writes one, -c names another"
    ended = twr("check")
    assert (ended.code, ended.err) == (78, f"twr.yaml: {message}\n")
    ended = twr("check", "--json")
    assert ended.code == 78
    assert json.loads(ended.out)["errors"] == [{"file": "twr.yaml", "line": 0, "message": message}]


def test_the_file_is_found_by_variable(twr: Any, config: Path, tmp_path: Path) -> None:
    """$TWR_CONFIG names the file, also from the environment file; -c wins."""
    other = tmp_path / "other.yaml"
    other.write_text("routes: []\n")
    (tmp_path / "twr.env").write_text("TWR_CONFIG=other.yaml\n")
    expected = "other.yaml:1: routes: is empty; without a route no update goes anywhere\n"
    assert twr("check", TWR_CONFIG="other.yaml").err == expected
    assert twr("check", "--env-file", "twr.env").err == expected
    assert twr("check", "-c", "twr.yaml", TWR_CONFIG="other.yaml").code == 0


def test_a_bad_environment_file_as_json(twr: Any, config: Path, tmp_path: Path) -> None:
    """--json has it as an error too, and tells what was looked at by then."""
    env = tmp_path / "bad.env"
    env.write_text("no assignment\n")
    ended = twr("check", "--env-file", env, "--json")
    found = json.loads(ended.out)
    assert (ended.code, found["ok"], found["secrets_checked"]) == (78, False, False)
    assert [(it["file"], it["line"]) for it in found["errors"]] == [(str(env), 1)]
    env.write_text("A=b\n")
    ended = twr("check", "--config", config, "--env-file", env, "--json")
    assert (ended.code, json.loads(ended.out)["ok"]) == (78, False)
