"""The systemd unit, checked by systemd's own tools."""

import configparser
import subprocess
from pathlib import Path

import pytest

from tools import ROOT, tool

UNIT = ROOT / "systemd/twr.service"
DROP_INS = sorted((ROOT / "systemd/drop-ins").glob("*.conf"))
ALL = [[], *([each] for each in DROP_INS), DROP_INS]


def names(drop_ins: list[Path]) -> str:
    """How a case is called in the report."""
    return "+".join(each.stem for each in drop_ins) or "plain"


def install(directory: Path, drop_ins: list[Path]) -> Path:
    """The unit and its drop-ins as installed, with a program that exists on this machine."""
    unit = directory / "twr.service"
    unit.write_text(UNIT.read_text().replace("/opt/twr/bin/twr", "/bin/true"))
    (directory / "twr.service.d").mkdir()
    for each in drop_ins:
        (directory / "twr.service.d" / each.name).write_text(each.read_text())
    return unit


def settings(section: str) -> dict[str, list[str]]:
    """All assignments of a section, repeated ones in their order."""
    found: dict[str, list[str]] = {}
    inside = False
    for line in UNIT.read_text().splitlines():
        if line.startswith("["):
            inside = line == f"[{section}]"
        elif inside and "=" in line and not line.startswith("#"):
            key, value = line.split("=", 1)
            found.setdefault(key, []).append(value)
    return found


@pytest.mark.parametrize("drop_ins", ALL, ids=names)
def test_the_unit_is_clean(tmp_path: Path, drop_ins: list[Path]) -> None:
    """systemd finds no unknown setting, alone and with each drop-in."""
    done = subprocess.run(
        [tool("systemd-analyze"), "verify", install(tmp_path, drop_ins)],
        capture_output=True,
        text=True,
    )
    complaints = [line for line in done.stderr.splitlines() if "twr.service" in line]
    assert (done.returncode, complaints) == (0, [])


@pytest.mark.parametrize("drop_ins", ALL, ids=names)
def test_the_unit_is_hardened(tmp_path: Path, drop_ins: list[Path]) -> None:
    """The exposure level is at most 1.5 of 10, with every drop-in."""
    done = subprocess.run(
        [
            tool("systemd-analyze"),
            *("security", "--offline=true", "--threshold=15", install(tmp_path, drop_ins)),
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-200:]


def test_a_reload_checks_before_it_signals() -> None:
    """A configuration with errors never reaches the running process."""
    assert settings("Service")["ExecReload"] == ["/opt/twr/bin/twr check", "kill -HUP $MAINPID"]


def test_the_contract_of_the_unit() -> None:
    """What the daemon relies on when it starts, crashes, is replaced and stops."""
    service = {key: values[-1] for key, values in settings("Service").items()}
    expected = {
        "Type": "notify",
        "ExecStart": "/opt/twr/bin/twr run",
        "Restart": "always",
        "RestartPreventExitStatus": "76 78",
        "KillMode": "mixed",
        "OOMPolicy": "continue",
        "EnvironmentFile": "-/etc/twr/twr.env",
        "StateDirectory": "twr",
        "RuntimeDirectory": "twr",
        "ConfigurationDirectory": "twr",
        "User": "twr",
    }
    assert {key: service.get(key) for key in expected} == expected
    assert int(service["TimeoutStopSec"]) >= 20 + 30
    assert int(service["LimitNOFILE"]) >= 65536
    assert settings("Unit")["StartLimitIntervalSec"] == ["0"]
    assert "ProcSubset" not in service


def test_the_user_is_made_by_sysusers(tmp_path: Path) -> None:
    """systemd-sysusers reads the file and makes user and group `twr`."""
    (tmp_path / "etc").mkdir()
    subprocess.run(
        [tool("systemd-sysusers"), f"--root={tmp_path}", ROOT / "systemd/twr.sysusers"],
        check=True,
        capture_output=True,
    )
    users = [line.split(":") for line in (tmp_path / "etc/passwd").read_text().splitlines()]
    assert [(user[0], user[5], user[6]) for user in users] == [
        ("twr", "/var/lib/twr", "/usr/sbin/nologin")
    ]


@pytest.mark.parametrize("drop_in", DROP_INS, ids=lambda path: path.stem)
def test_a_drop_in_says_where_it_goes(drop_in: Path) -> None:
    """Each begins with the command that installs it, and is a valid unit file."""
    text = drop_in.read_text()
    target = f"/etc/systemd/system/twr.service.d/{drop_in.name}"
    assert f"#   install -D -m 644 systemd/drop-ins/{drop_in.name} {target}" in text
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.read_string(text)
    assert set(parser.sections()) <= {"Unit", "Service"}
