"""Players who mean harm or know no better, over real sockets: each is told or dropped, and the next one plays."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import uvicorn
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from flowshade.api import load_renderer
from flowshade.gbuffer.io import open_clip
from flowshade.play.link import Limits
from flowshade.play.painting import Models
from flowshade.play.protocol import LONGEST_PROMPT, VERSION, FrameHeader, unpack_frame
from flowshade.play.push import Layout, PushHello
from flowshade.play.server import PlayConfig, PlayServer
from flowshade.play.sources import Source, WorldSource, open_world
from tests.conftest import make_gbuffer

ROOM = """
<mujoco>
  <worldbody>
    <geom type="plane" size="30 30 1" rgba="0.4 0.6 0.3 1"/>
    <geom type="box" size="0.2 3 1" pos="4 0 1" rgba="0.8 0.3 0.2 1"/>
  </worldbody>
</mujoco>
"""
SIZE = (32, 48)
MOST_MESSAGES = 100
"""Of another kind, before the one that is waited for: a server sends statuses for as long as it lives."""


@pytest.fixture(scope="module")
def server(debug_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlayServer]:
    """A server on a thread; `port` is where."""
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "room.xml").write_text(ROOM)

    def open_source(kind: str | None, seed: int | None) -> Source:
        return WorldSource(open_world(folder / "room.xml", 0, 30.0), size=SIZE, threads=1)

    models = Models(lambda: load_renderer(debug_model, device="cpu"))
    models.wait()
    limits = Limits(sessions=3, hello_seconds=60.0, push_bytes=2**22, push_streams=2)
    made = PlayServer(PlayConfig(open_source=open_source, recordings=folder / "out", limits=limits), models)
    web = uvicorn.Server(
        uvicorn.Config(made.app, port=0, log_level="warning", ws_max_size=limits.largest_message, lifespan="off")
    )
    thread = threading.Thread(target=web.run, daemon=True)
    thread.start()
    while not web.started:
        time.sleep(0.01)
    made.port = web.servers[0].sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    yield made
    web.should_exit = True
    thread.join()
    models.close()


def port(server: PlayServer) -> int:
    return server.port  # type: ignore[attr-defined]


def say(client: ClientConnection, kind: str, **fields: Any) -> None:
    client.send(json.dumps({"type": kind, **fields}))


@contextmanager
def visit(server: PlayServer, *, hello: bool = True, path: str = "ws") -> Iterator[ClientConnection]:
    with connect(f"ws://127.0.0.1:{port(server)}/{path}") as client:
        if hello:
            say(client, "hello", version=VERSION)
            frame(client)
        yield client


def frame(client: ClientConnection, *, acknowledge: bool = True) -> FrameHeader:
    for _ in range(MOST_MESSAGES):
        message = client.recv(timeout=60)
        if isinstance(message, bytes):
            header, _ = unpack_frame(message)
            if acknowledge:
                say(client, "ack", frame=header.id)
            return header
    raise AssertionError("no frame came")


def problem(client: ClientConnection) -> dict[str, Any]:
    for _ in range(MOST_MESSAGES):
        message = client.recv(timeout=60)
        if isinstance(message, str) and json.loads(message)["type"] == "problem":
            return json.loads(message)
    raise AssertionError("no problem came")


def settled(server: PlayServer) -> None:
    """Everybody has gone, and nothing waits."""
    nothing = {"version": VERSION, "sessions": 0, "windows": 0, "messages": 0, "frames": 0}
    deadline = time.monotonic() + 60
    while True:
        with urllib.request.urlopen(f"http://127.0.0.1:{port(server)}/health", timeout=60) as answer:
            health = json.load(answer)
        if health == nothing:
            return
        assert time.monotonic() < deadline, health
        time.sleep(0.02)


HUGE = "1" + "0" * 400


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (f'{{"type":"input","id":1,"yaw":{HUGE}}}', "malformed"),
        (f'{{"type":"input","id":{HUGE}}}', "malformed"),
        ('{"type":"input","id":1,"pitch":1e999}', "malformed"),
        ('{"type":"input","id":1,"up":-Infinity}', "malformed"),
        ('{"type":"ack","frame":1.5}', "malformed"),
        ('{"type":"input","id":true}', "malformed"),
        ("[" * 5000, "malformed"),
        ('{"type":"set_look","prompt":"' + "x" * (LONGEST_PROMPT + 1) + '","style":"neon"}', "malformed"),
        ("x" * 20_000, "too_large"),
        (b"\x00\x01\x02", "malformed"),
    ],
)
def test_what_is_no_message_is_said_and_ends_the_session(server: PlayServer, text: str | bytes, code: str) -> None:
    with visit(server) as client:
        client.send(text)
        got = problem(client)
        assert got["code"] == code and got["fatal"]
        with pytest.raises(ConnectionClosed):
            for _ in range(MOST_MESSAGES):
                client.recv(timeout=60)
    settled(server)


@pytest.mark.parametrize(
    ("first", "code"),
    [
        ({"type": "input", "id": 1}, "no_hello"),
        ({"type": "ack", "frame": 1}, "no_hello"),
        ({"type": "hello", "version": VERSION + 1}, "version"),
        ({"type": "hello", "version": 0}, "version"),
        ({"type": "hello"}, "malformed"),
        ({"type": "hello", "version": VERSION, "world": "nowhere"}, "world"),
        ({"type": "hello", "version": VERSION, "prompt": "q" * LONGEST_PROMPT}, "refused"),
        ({"type": "hello", "version": VERSION, "prompt": "\ud800"}, "refused"),
        ({"type": "push_hello", "version": VERSION}, "malformed"),
    ],
)
def test_a_wrong_beginning_is_said(server: PlayServer, first: dict[str, Any], code: str) -> None:
    with visit(server, hello=False) as client:
        client.send(json.dumps(first))
        got = problem(client)
        assert got["code"] == code and got["fatal"]
    settled(server)


@pytest.mark.parametrize("prompt", ["\ud800", "fog, " * (LONGEST_PROMPT // 5)])
def test_a_prompt_that_is_not_taken_is_said_and_play_goes_on(server: PlayServer, prompt: str) -> None:
    with visit(server) as client:
        say(client, "set_look", prompt=prompt, style="neon")
        got = problem(client)
        assert got["code"] == "refused" and not got["fatal"]
        before = frame(client).id
        assert frame(client).id > before
    settled(server)


def raw(server: PlayServer, path: str = "/ws") -> socket.socket:
    """A WebSocket by hand, so that rules can be broken."""
    plain = socket.create_connection(("127.0.0.1", port(server)), timeout=60)
    plain.sendall(
        f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
    )
    assert b"101" in plain.recv(12)
    return plain


def masked(text: bytes, *, opcode: int = 1, length: int | None = None) -> bytes:
    """A frame as a client sends it (RFC 6455, 5.2), whose length may be a lie."""
    said = len(text) if length is None else length
    head = bytes([0x80 | opcode]) + (
        bytes([0x80 | said]) if said < 126 else b"\xfe" + struct.pack(">H", said) if said < 2**16
        else b"\xff" + struct.pack(">Q", said)
    )  # fmt: skip
    return head + bytes(4) + text


@pytest.mark.parametrize("after_hello", [False, True])
@pytest.mark.parametrize(
    "sent",
    [
        masked(b'{"type":"inp', length=40),  # and no more
        masked(b"", length=2**40),
        masked(b"\xff\xfe"),  # no UTF-8
        masked(b"", opcode=7),  # no such kind
        b"\x81\x05hello",  # unmasked
        os.urandom(64) + b"\xff" * 64,
        b"",
    ],
)
def test_broken_frames_and_sudden_ends_leave_nothing(server: PlayServer, sent: bytes, after_hello: bool) -> None:
    with raw(server) as plain:
        if after_hello:
            plain.sendall(masked(json.dumps({"type": "hello", "version": VERSION}).encode()))
            plain.recv(2000)
        plain.sendall(sent)
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, no goodbye
    settled(server)


def test_a_player_who_confirms_nothing_gets_few_frames_and_others_all(server: PlayServer) -> None:
    with visit(server) as quick, visit(server) as silent:
        got = [frame(silent, acknowledge=False).id for _ in range(2)]
        first = last = frame(quick).id
        while last < first + 40:
            last = frame(quick).id
        assert server.config.limits.unshown_frames >= len(got)
        with pytest.raises(TimeoutError):
            for _ in range(server.config.limits.unshown_frames):
                while not isinstance(message := silent.recv(timeout=0.5), bytes):
                    assert json.loads(message)["type"] == "status"
                got.append(unpack_frame(message)[0].id)
        say(silent, "ack", frame=got[-1])
        assert frame(silent).id > got[-1] + 4, "and then it is now, not then"
    settled(server)


def test_a_player_who_reads_nothing_costs_little_and_can_go(server: PlayServer) -> None:
    with raw(server) as plain:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        plain.sendall(masked(json.dumps({"type": "hello", "version": VERSION}).encode()))
        (connection,) = wait_for(lambda: [*server._connections])
        wait_for(lambda: server.sessions)
        most = (0, 0)
        for index in range(1500):
            plain.sendall(masked(b'{"type":"command","action":"screenshot"}'))
            plain.sendall(masked(b'{"type":"ack","frame":%d}' % 2**52))
            most = tuple(map(max, most, connection.outbox.waiting))
            time.sleep(0.002 if index % 10 == 0 else 0)
        assert most[0] <= 64 and most[1] <= 2 * 4 + 4, "two windows and a few screenshots"
    del connection
    settled(server)


def wait_for(value: Any) -> Any:
    deadline = time.monotonic() + 60
    while not (got := value()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return got


# Windows of an engine's own -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "value"), [("normal", np.nan), ("depth", np.nan), ("albedo", np.inf)])
def test_numbers_that_are_none_are_refused_before_they_spoil_the_stream(
    server: PlayServer, name: str, value: float
) -> None:
    hello = {"streams": 1, "height": 32, "width": 48, "channels": ["albedo", "normal", "depth"], "number": "float32"}
    layout = Layout(PushHello(version=VERSION, camera=False, **hello))  # type: ignore[arg-type]
    window = make_gbuffer(4, 32, 48)
    with visit(server, hello=False, path="push") as client:
        say(client, "push_hello", version=VERSION, **hello)
        client.recv(timeout=60)
        client.send(layout.pack(1, [window]))
        assert isinstance(client.recv(timeout=60), bytes)
        window.channels()[name][0, 0, 3, 5] = value
        client.send(layout.pack(2, [window]))
        got = problem(client)
        assert got["fatal"] and name in got["text"]
    settled(server)


@pytest.mark.parametrize("size", [(1, 1), (3, 5), (4096, 1)])
def test_any_size_of_window_is_painted_or_refused(server: PlayServer, size: tuple[int, int]) -> None:
    hello = {"streams": 1, "height": size[0], "width": size[1], "channels": ["depth"]}
    layout = Layout(PushHello(version=VERSION, **hello))  # type: ignore[arg-type]
    with visit(server, hello=False, path="push") as client:
        say(client, "push_hello", version=VERSION, **hello)
        client.recv(timeout=60)
        client.send(layout.pack(1, [make_gbuffer(4, *size)]))
        answer = client.recv(timeout=60)
        assert isinstance(answer, bytes) or json.loads(answer)["type"] == "problem"
    settled(server)


# A server that is interrupted -----------------------------------------------------------------------------------------

PROGRAM = """
import sys
from pathlib import Path
from flowshade.api import load_renderer
from flowshade.play.server import PlayConfig, serve
from flowshade.play.sources import WorldSource, open_world

folder, model, port = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
open_source = lambda kind, seed: WorldSource(open_world(folder / "room.xml", 0, 30.0), size=(32, 48), threads=1)
serve(PlayConfig(open_source=open_source, recordings=folder / "out"), lambda: load_renderer(model), port=port)
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_server_that_is_interrupted_finishes_its_recordings(tmp_path: Path, debug_model: Path, how: int) -> None:
    (tmp_path / "room.xml").write_text(ROOM)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        where = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path), str(debug_model), str(where)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        client = wait_for(lambda: try_connect(where) if process.poll() is None else pytest.fail("it ended"))
        with client:
            say(client, "hello", version=VERSION)
            say(client, "command", action="record")
            first = frame(client).id
            while frame(client).id < first + 8:
                pass
            process.send_signal(how)
            process.wait(60)
    finally:
        process.kill()
        process.wait()
    (video,) = (tmp_path / "out").glob("*.mp4")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [video.stem, video.name], "nothing else"
    with av.open(str(video)) as container:
        assert sum(1 for _ in container.decode(video=0)) == len(open_clip(video.with_suffix(""))) >= 4


def try_connect(where: int) -> ClientConnection | None:
    try:
        return connect(f"ws://127.0.0.1:{where}/ws")
    except OSError:
        return None
