"""What the public listener lets in, and what it answers to everything else."""

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from system.harness import SECRET, SECRET_HEADER, Daemon, free_port, message, route
from targets import Target
from until import until

pytestmark = pytest.mark.anyio


async def test_only_the_right_secret_gets_in(short_path: Path) -> None:
    """Wrong, missing, empty, repeated and non-ASCII ones are 401, and each is counted."""
    async with Target() as target, Daemon(short_path, [route("shop", target)]) as daemon:
        heads = [
            b"",
            *(
                f"{SECRET_HEADER}: {value}\r\n".encode("latin-1")
                for value in ("", "no", SECRET[1:])
            ),
            f"{SECRET_HEADER}: {SECRET}\r\n{SECRET_HEADER}: {SECRET}\r\n".encode(),
            f"{SECRET_HEADER}: {SECRET}\xe9\r\n".encode("latin-1"),
            f"{SECRET_HEADER}: {SECRET}\u00e9\r\n".encode(),
        ]
        for head in heads:
            answer = await daemon.raw(b"POST /hook HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n"
                                      + head + b"\r\n{}")  # fmt: skip
            assert b" 401 " in answer.split(b"\r\n")[0]
            assert answer.endswith(b'\r\n\r\n{"status":"unauthorized"}')
        count = await daemon.metric("twr_updates_rejected_total", reason="unauthorized")
        assert count == len(heads)
        await daemon.accepts(message(1))


async def test_two_secrets_are_accepted_while_rotating(short_path: Path) -> None:
    """Both open the door, until a reload takes the old one away."""
    environ = {"OLD_SECRET": "old-secret", "NEW_SECRET": "new-secret"}
    bot = {"name": "main", "secret_token_env": ["NEW_SECRET", "OLD_SECRET"]}
    async with (
        Target() as target,
        Daemon(short_path, [route("shop", target)], environ=environ, bot=bot) as daemon,
    ):
        for update_id, secret in ((1, "new-secret"), (2, "old-secret")):
            assert (await daemon.post(message(update_id), secret=secret))[0] == 202
        daemon.write(bot={"name": "main", "secret_token_env": "NEW_SECRET"})
        await daemon.says("config loaded")
        assert (await daemon.post(message(3), secret="old-secret"))[0] == 401
        assert (await daemon.post(message(3), secret="new-secret"))[0] == 202
        for secret in environ.values():
            assert secret not in daemon.log()


async def test_a_body_over_the_limit_is_413(short_path: Path) -> None:
    """Declared or chunked; the largest that Telegram sends is taken, and the listener lives on."""
    limit = 600 * 1024
    async with (
        Target() as target,
        Daemon(short_path, [route("shop", target)], max_body="600KiB") as daemon,
    ):
        too_large = (413, {"status": "too_large"})
        update = message(1, text="x" * (512 * 1024))
        await daemon.accepts(update)
        assert await daemon.post(message(2, text="x" * limit)) == too_large
        head = f"POST /hook HTTP/1.1\r\nHost: x\r\n{SECRET_HEADER}: {SECRET}\r\n"
        declared = await daemon.raw(f"{head}Content-Length: 99999999\r\n\r\n".encode())
        assert declared.startswith(b"HTTP/1.1 413 ")
        chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
        chunked = await daemon.raw(
            f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + chunk * 20
        )
        assert chunked.startswith(b"HTTP/1.1 413 ")
        await daemon.accepts(message(3))
        await daemon.comes("shop", delivered=2)


@pytest.mark.parametrize("secret", [SECRET, "wrong"])
async def test_a_body_in_a_thousand_chunks_leaves_nothing_behind(
    short_path: Path, secret: str
) -> None:
    """Refused in its middle, its connection ends, and the daemon ends without waiting for it."""
    head = f"POST /hook HTTP/1.1\r\nHost: x\r\n{SECRET_HEADER}: {secret}\r\n"
    body = b"1\r\nx\r\n" * 5000 + b"0\r\n\r\n"
    async with Target() as target, Daemon(short_path, [route("shop", target)]) as daemon:
        data = f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + body
        for _ in range(5):
            answer = await daemon.raw(data)
            assert answer.startswith(b"HTTP/1.1 40")
        assert await daemon.stop(5) == 0
        assert not daemon.logged("cut off")


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"1", b"null", b"{", b"nonsense", b'{"update_id":"1"}', b'{"update_id":1.0}',
     b'{"update_id":true}', b'{"update_id":-1}', b'{"message":{}}', b'{"update_id":NaN}',
     b'\xef\xbb\xbf{"update_id":1}', '{"update_id":1}'.encode("utf-16")],
)  # fmt: skip
async def test_a_broken_body_is_400(shared: Daemon, body: bytes) -> None:
    """What Telegram cannot send is `invalid`."""
    assert await shared.post(body) == (400, {"status": "invalid"})


@pytest.mark.parametrize(
    ("request_line", "status", "word"),
    [
        *((f"{method} /hook", 405, "method_not_allowed")
          for method in ("GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW")),
        ("GET /hook?a=1", 405, "method_not_allowed"),
        *((f"{method} {path}", 404, "not_found")
          for method in ("POST", "GET", "OPTIONS")
          for path in ("/", "/hook/", "//hook", "/hook%2F", "/%68ook", "/Hook", "/hook/x", "/x",
                       "/../hook", "/hook;a", "/static/x", "*")),
        ("POST /hook?a=1&b=%2F", 400, "invalid"),
        ("POST /hook?", 400, "invalid"),
    ],
)  # fmt: skip
async def test_methods_and_paths(shared: Daemon, request_line: str, status: int, word: str) -> None:
    """Only POST on the very path is an update; all else is told so in JSON, and never 3xx."""
    head = f"{request_line} HTTP/1.1\r\nHost: x\r\n{SECRET_HEADER}: {SECRET}\r\n"
    answer = await shared.raw(f"{head}Content-Length: 2\r\nConnection: close\r\n\r\n{{}}".encode())
    top, _, body = answer.partition(b"\r\n\r\n")
    assert top.split(b" ")[1] == str(status).encode()
    assert b"\r\ncontent-type: application/json" in top.lower()
    assert body == (b"" if request_line.startswith("HEAD") else b'{"status":"%s"}' % word.encode())
    if status == 405:
        assert b"\r\nallow: POST" in top


@pytest.mark.parametrize(
    ("path", "length"), [("/hook", 10**9), ("/else", 10**9), ("/else", 20 * 1024**2)]
)
async def test_large_bodies_of_other_requests_change_nothing(
    shared: Daemon, path: str, length: int
) -> None:
    """404 and 405 are told whatever length the request declares."""
    head = f"PUT {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n"
    answer = await shared.raw(head.encode(), more_to_come=True)
    assert answer.split(b" ")[1] == (b"405" if path == "/hook" else b"404")


async def test_ambiguous_lengths_are_refused(shared: Daemon) -> None:
    """Content-Length together with Transfer-Encoding is 400, and nothing behind it is read."""
    head = f"POST /hook HTTP/1.1\r\nHost: x\r\n{SECRET_HEADER}: {SECRET}\r\n"
    lengths = "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n"
    answer = await shared.raw(f"{head}{lengths}0\r\n\r\nGET / HTTP/1.1\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1") == 1


async def test_the_http2_preface_gets_no_update_in(shared: Daemon) -> None:
    """It is not answered with a 2xx of any kind, and the listener lives on."""
    answer = await shared.raw(
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
    )
    assert b" 202 " not in answer
    assert await shared.post(b"{}") == (400, {"status": "invalid"})


async def test_a_client_that_goes_away_harms_nobody(short_path: Path) -> None:
    """In the middle of its head, of its body, or before its answer: the others get theirs."""
    async with Target() as target, Daemon(short_path, [route("shop", target)]) as daemon:
        body = b'{"update_id":1,"message":{"chat":{"id":7}}}'
        head = f"POST /hook HTTP/1.1\r\nHost: x\r\n{SECRET_HEADER}: {SECRET}\r\n"
        whole = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        for length in (10, len(whole) - 10, len(whole)):
            with socket.create_connection(("127.0.0.1", daemon.port)) as sock:
                sock.sendall(whole[:length])
        answers = await asyncio.gather(*(daemon.post(message(n, chat=n)) for n in range(2, 22)))
        assert {status for status, _ in answers} == {202}
        await until(lambda: 1 in target.ids, 10, "the update whose caller had gone")
        await daemon.comes("shop", delivered=21)
        assert "Traceback" not in daemon.log()


async def test_a_kept_connection_serves_many_updates(short_path: Path) -> None:
    """Fifty updates on one connection, which stays open."""
    async with Target() as target, Daemon(short_path, [route("shop", target)]) as daemon:
        reader, writer = await asyncio.open_connection("127.0.0.1", daemon.port)
        for n in range(50):
            body = b'{"update_id":%d,"message":{"chat":{"id":7}}}' % n
            writer.write(
                f"POST /hook HTTP/1.1\r\nHost: x\r\n{SECRET_HEADER}: {SECRET}\r\n"
                f"Content-Length: {len(body)}\r\n\r\n".encode()
                + body
            )
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 202 ")
            assert b"connection: close" not in head.lower()
            assert await reader.readexactly(34) == b'{"status":"queued","deliveries":1}'
        await daemon.comes("shop", delivered=50)
        writer.close()
    assert target.ids == list(range(50))


@pytest.mark.parametrize(
    ("proxies", "statuses"), [([], (403, 403, 403, 403)), (["loopback"], (403, 202, 202, 403))]
)
async def test_a_forged_address_does_not_pass(
    short_path: Path, proxies: list[str], statuses: tuple[int, ...]
) -> None:
    """A forwarded one counts only behind a trusted proxy, and there only its last hop."""
    settings: dict[str, Any] = {"trusted_networks": ["telegram"], "trusted_proxies": proxies}
    forwarded = ("", "149.154.167.197", "8.8.8.8, 91.108.4.1", "149.154.167.197, 8.8.8.8")
    only = [route("shop", "http://127.0.0.1:9/", match={"user_ids": [1]})]
    async with Daemon(short_path, only, **settings) as daemon:
        found = [
            (await daemon.post(message(n), X_Forwarded_For=hops))[0]
            for n, hops in enumerate(forwarded)
        ]
    assert tuple(found) == statuses


async def test_a_unix_socket(short_path: Path) -> None:
    """It is there with the mode that is configured, and a start after a kill takes it again."""
    path = short_path / "in.sock"
    settings: dict[str, Any] = {"listen": f"unix:{path}", "socket_mode": "0600"}
    async with (
        Target() as target,
        Daemon(short_path, [route("shop", target)], **settings) as daemon,
    ):
        assert path.stat().st_mode & 0o777 == 0o600
        await daemon.kill()
        await daemon.start()
        reader, writer = await asyncio.open_unix_connection(str(path))
        body = b'{"update_id":1,"message":{"chat":{"id":7}}}'
        writer.write(
            f"POST /hook HTTP/1.1\r\nHost: x\r\n{SECRET_HEADER}: {SECRET}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        assert (await reader.readline()).startswith(b"HTTP/1.1 202 ")
        writer.close()
        await daemon.comes("shop", delivered=1)


async def test_the_admin_listener_changes_nothing(shared: Daemon) -> None:
    """It takes GET alone and knows no webhook."""
    for method, path, status in (("POST", "/status", 405), ("POST", "/hook", 404)):
        async with shared.session.request(method, f"{shared.admin_url}{path}") as response:
            assert response.status == status
    assert free_port() != shared.admin_port
