"""What the pages for users say is so: commands, files, links, configurations, output."""

import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer import Context

from tools import ROOT, tool
from twr.cli import app
from twr.config import load

PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"]
PAGES += sorted((ROOT / "docs").glob("*.md"))
NAMES = [page.name for page in PAGES]
INSTALL = ROOT / "docs/install.md"
DIRECTORIES = ("etc/", "systemd/", "docs/", "tests/", "bench/", ".ci/", "daemon/")
TWR = re.compile(r"^(?:sudo )?(?:\S*/)?twr((?: (?![|>])\S+)*)")


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a language; "" are those that name none."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.M | re.S)


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)


def spans(page: Path) -> list[str]:
    """What stands between backticks, line breaks as spaces."""
    return [span.replace("\n", " ") for span in re.findall(r"`([^`]+)`", prose(page))]


def commands() -> Iterator[tuple[str, str]]:
    """Page and words of each `twr …`, in a block for the shell and in the text."""
    for page in PAGES:
        lines = [line for block in blocks(page, "sh") for line in re.split(r"\n| && ", block)]
        for line in [*lines, *spans(page)]:
            found = TWR.match(line)
            if found is not None and "…" not in line:
                yield page.name, found[1].strip()


@pytest.mark.parametrize(("page", "words"), sorted(set(commands())))
def test_every_command_exists(page: str, words: str) -> None:
    """The command, its options and the number of its arguments are those of the command line."""
    command: Any = typer.main.get_command(app)
    rest = words.split()
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        _, command, rest = command.resolve_command(Context(command), rest)
    # Only parsed: an option's callback would be called by more than that.
    values, more, _ = command.make_parser(Context(command)).parse_args([*rest])
    assert more == []
    if rest:
        given = {name for name, value in values.items() if isinstance(value, str | list | tuple)}
        assert {it.name for it in command.params if it.required} <= given


def paths(page: Path) -> Iterator[str]:
    """The files of the repository that a page names."""
    for span in spans(page):
        yield from span.split()
    for block in blocks(page, "sh"):
        yield from block.split()


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_file_exists(page: Path) -> None:
    """Whatever is named as a file of this repository is one."""
    named = {word.rstrip(",;:") for word in paths(page)}
    named = {word for word in named if word.startswith(DIRECTORIES) or word.endswith(".lock")}
    assert [word for word in sorted(named) if not (ROOT / word).exists()] == []


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in headings}


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_link_leads_somewhere(page: Path) -> None:
    """Links within the repository have a file, and an anchor in it."""
    dead = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        found = target.is_relative_to(ROOT) and target.exists()
        if not found or (anchor and anchor not in anchors(target)):
            dead.append(link)
    assert dead == []


def test_every_page_is_linked() -> None:
    """The README leads to all of docs/."""
    readme = PAGES[0].read_text()
    assert [page.name for page in PAGES[3:] if f"(docs/{page.name})" not in readme] == []


@pytest.mark.parametrize(
    "text", [block for page in PAGES for block in blocks(page, "yaml")], ids=lambda text: text[:20]
)
def test_every_configuration_is_valid(text: str, tmp_path: Path) -> None:
    """Each block of YAML is a configuration, or a part of one, without a warning."""
    file = tmp_path / "twr.yaml"
    routes = "\nroutes:\n  - {name: a, target_url: 'http://a/', signing_secret_env: A}\n"
    file.write_text(text if "routes:" in text else text + routes)
    assert load(file, {}).warnings == ()


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_shell_block_is_shell(page: Path) -> None:
    """bash reads each block without complaint."""
    for block in blocks(page, "sh"):
        done = subprocess.run(["bash", "-n"], input=block, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")


def test_an_update_is_seen_once() -> None:
    """The table and the statements for services that see an update twice."""
    (script,) = blocks(ROOT / "docs/receiving.md", "sql")
    create, transaction = script.split("\n\n")
    with sqlite3.connect(":memory:", isolation_level=None) as database:
        database.executescript(create)
        changes = []
        for _ in range(2):
            before = database.total_changes
            database.executescript(transaction)
            changes.append(database.total_changes - before)
    database.close()
    assert changes == [1, 0]


def test_nginx_takes_the_block(tmp_path: Path) -> None:
    """`nginx -t` accepts the block of the install page, with a certificate that exists."""
    subprocess.run(
        [
            tool("openssl"),
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-nodes", "-days", "2", "-subj", "/CN=bot.example.com"),
            *("-keyout", tmp_path / "privkey.pem", "-out", tmp_path / "fullchain.pem"),
        ],
        check=True,
        capture_output=True,
    )
    (text,) = blocks(INSTALL, "nginx")
    text = re.sub(r"/etc/letsencrypt/live/[^/]+", str(tmp_path), text).replace("443", "8443")
    (tmp_path / "twr").mkdir()
    (tmp_path / "twr/location.conf").write_text((ROOT / "etc/nginx/location.conf").read_text())
    main = f"pid {tmp_path}/pid;\nevents {{}}\nhttp {{\naccess_log off;\n{text}\n}}\n"
    (tmp_path / "nginx.conf").write_text(main)
    file = str(tmp_path / "nginx.conf")
    command = [tool("nginx"), "-t", "-p", str(tmp_path), "-c", file, "-e", "stderr"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "[warn]" not in done.stderr


def test_caddy_takes_the_block(tmp_path: Path) -> None:
    """`caddy validate` accepts the block of the install page."""
    (text,) = blocks(INSTALL, "caddy")
    file = tmp_path / "Caddyfile"
    file.write_text(text)
    done = subprocess.run(
        [tool("caddy"), "validate", "--adapter", "caddyfile", "--config", file],
        capture_output=True,
        text=True,
        env={**os.environ, "HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr


def shown(command: str) -> str:
    """What the install page shows below the block that ends with a command."""
    pattern = rf"^{re.escape(command)}\n```\n\n```\n(.*?)^```"
    found = re.search(pattern, INSTALL.read_text(), re.M | re.S)
    assert found is not None, command
    return found[1]


def test_the_commands_print_what_the_page_shows(tmp_path: Path) -> None:
    """The steps of the install page that need no server, from the first to the last."""

    def twr(*words: str) -> str:
        environ = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT / "daemon"),
            "STATE_DIRECTORY": "/var/lib/twr",
            "TWR_CONFIG": f"{tmp_path}/twr.yaml",
        }
        done = subprocess.run(
            [sys.executable, "-m", "twr", *words],
            capture_output=True,
            text=True,
            env=environ,
            cwd=tmp_path,
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.replace(str(tmp_path), "/etc/twr")

    file, env = tmp_path / "twr.yaml", tmp_path / "twr.env"
    assert twr("--version") == shown("twr --version")
    assert twr("init", "-c", str(file)) == shown("sudo twr init -c /etc/twr/twr.yaml")
    file.write_text(blocks(INSTALL, "yaml")[0])
    token = next(block for block in blocks(INSTALL, "sh") if block.startswith("BOT_TOKEN="))
    env.write_text(env.read_text() + token)
    check = "sudo twr check --env-file /etc/twr/twr.env"
    assert twr("check", "--env-file", str(env)) == shown(check)
    echo = next(block for block in blocks(INSTALL, "sh") if block.startswith("echo"))
    subprocess.run(["bash", "-c", echo.splitlines()[0]], cwd=tmp_path, check=True)
    assert twr("routes", "test", "update.json") == shown("twr routes test update.json")
