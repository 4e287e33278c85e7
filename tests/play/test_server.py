"""A player over the WebSocket, from hello to pictures; and what is refused."""

from __future__ import annotations

import gc
import io
import json
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient, WebSocketTestSession
from starlette.websockets import WebSocketDisconnect

from flowshade.api import load_renderer
from flowshade.gbuffer.io import open_clip, read_video
from flowshade.play.painting import Models
from flowshade.play.protocol import VERSION, FrameHeader, unpack_frame
from flowshade.play.server import Limits, PlayConfig, PlayServer
from flowshade.play.sources import Source, WorldSource, open_world
from tests.play.fakes import Clock, FakeSource

ROOM = """
<mujoco>
  <worldbody>
    <geom type="plane" size="30 30 1" rgba="0.4 0.6 0.3 1"/>
    <geom type="box" size="0.2 3 1" pos="4 0 1" rgba="0.8 0.3 0.2 1"/>
    <body pos="0 4 1"><geom type="box" size="0.3 0.3 1" rgba="0.2 0.3 0.8 1"/></body>
  </worldbody>
</mujoco>
"""
SIZE = (48, 80)


@pytest.fixture(scope="module")
def models(debug_model: Path) -> Iterator[Models]:
    models = Models(lambda: load_renderer(debug_model, device="cpu"))
    models.wait()
    yield models
    models.close()


@pytest.fixture
def server(models: Models, tmp_path: Path) -> PlayServer:
    room = tmp_path / "room.xml"
    room.write_text(ROOM)

    def open_source(kind: str | None, seed: int | None) -> Source:
        return WorldSource(open_world(room, 0, 30.0), size=SIZE, threads=1)

    limits = Limits(sessions=2, message_bytes=2000, messages_a_second=50, burst=100)
    return PlayServer(PlayConfig(open_source=open_source, recordings=tmp_path / "out", limits=limits), models)


@pytest.fixture
def client(server: PlayServer) -> Iterator[TestClient]:
    with TestClient(server.app) as client:
        yield client


class Player:
    """The client side of a socket."""

    def __init__(self, socket: WebSocketTestSession) -> None:
        self.socket = socket
        self.status: dict[str, Any] = {}

    def say(self, kind: str, **fields: Any) -> None:
        self.socket.send_text(json.dumps({"type": kind, **fields}))

    def hello(self, **fields: Any) -> dict[str, Any]:
        self.say("hello", version=VERSION, **fields)
        return self.message("welcome")

    def receive(self) -> tuple[FrameHeader, np.ndarray] | dict[str, Any]:
        received = self.socket.receive()
        if received.get("bytes") is not None:
            header, data = unpack_frame(received["bytes"])
            self.say("ack", frame=header.id)
            return header, np.asarray(Image.open(io.BytesIO(data)))
        if received["type"] == "websocket.close":
            raise WebSocketDisconnect(received.get("code", 1000))
        return json.loads(received["text"])

    def message(self, kind: str) -> dict[str, Any]:
        for _ in range(400):
            got = self.receive()
            if isinstance(got, dict) and got["type"] == kind:
                return got
        raise AssertionError(f"no {kind} came")

    def frame(self, **wanted: Any) -> tuple[FrameHeader, np.ndarray]:
        """The first frame whose header has these values."""
        for _ in range(400):
            got = self.receive()
            if not isinstance(got, dict) and all(getattr(got[0], name) == value for name, value in wanted.items()):
                return got
        raise AssertionError(f"no frame with {wanted} came")


def waits_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Returns once it holds; a machine that is busy may take its time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never did"
        time.sleep(0.01)


def difference(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(a.astype(float) - b.astype(float)).mean())


def test_frames_arrive_and_an_input_comes_back_with_the_frame_that_shows_it(client: TestClient) -> None:
    with client.websocket_connect("/ws") as socket:
        player = Player(socket)
        welcome = player.hello()
        assert (welcome["height"], welcome["width"]) == SIZE
        header, first = player.frame(view="generated")
        assert first.shape == (*SIZE, 3)
        assert header.input == 0
        player.say("input", id=7, yaw=0.8)
        header, turned = player.frame(input=7)
        later, _ = player.frame(input=7)
        assert later.tick > header.tick and later.id > header.id
        _, turned = player.frame(id=header.id + 3)
        assert difference(first, turned) > 2


def test_views_and_looks_change_what_is_seen(client: TestClient) -> None:
    with client.websocket_connect("/ws") as socket:
        player = Player(socket)
        player.hello()
        player.say("command", action="fly")
        _, generated = player.frame(view="generated")
        seen = {"generated": generated}
        for view in ("albedo", "normal", "depth", "reference", "split"):
            player.say("set_view", view=view)
            _, seen[view] = player.frame(view=view)
            assert all(difference(seen[view], other) > 1 for name, other in seen.items() if name != view), view
        assert difference(seen["split"][:, 42:], seen["reference"][:, 42:]) < 3
        player.say("set_view", view="generated")
        player.frame(view="generated")
        player.say("set_look", prompt="a frozen city", style="neon")
        header, _ = player.frame(look=1)
        for _ in range(8):  # nothing older comes after it
            later, _ = player.frame()
            assert later.look == 1 and later.id > header.id


def test_pause_step_and_screenshot(client: TestClient) -> None:
    with client.websocket_connect("/ws") as socket:
        player = Player(socket)
        player.hello()
        player.frame()
        player.say("command", action="pause")
        while not player.message("status")["paused"]:
            pass
        player.say("command", action="screenshot")
        shot, picture = player.frame(kind="screenshot")
        assert shot.mime == "image/png" and picture.shape == (*SIZE, 3)
        player.say("command", action="step")
        after, _ = player.frame(kind="frame", tick=shot.tick + 4)
        assert after.tick == shot.tick + 4, "one window, then it rests"


def test_a_recording_is_a_video_and_a_clip(client: TestClient, server: PlayServer) -> None:
    with client.websocket_connect("/ws") as socket:
        player = Player(socket)
        player.hello()
        player.say("command", action="record")
        header, _ = player.frame()
        player.frame(id=header.id + 8)
        player.say("command", action="stop_recording")
        done = player.message("recorded")
        assert done["frames"] >= 8
        assert len(open_clip(done["clip"])) == done["frames"]
        assert client.get(done["video"]).content[4:8] == b"ftyp"
        assert client.get("/recordings/..%2Froom.xml").status_code == 404


def test_a_recording_that_cannot_be_is_said_and_play_goes_on(client: TestClient, server: PlayServer) -> None:
    with client.websocket_connect("/ws") as socket:
        player = Player(socket)
        player.hello()
        player.frame()
        player.say("command", action="pause")
        player.say("command", action="record")
        player.say("command", action="stop_recording")  # before any window is finished
        problem = player.message("problem")
        assert problem["code"] == "recording_failed" and not problem["fatal"]
        assert not [*server.config.recordings.iterdir()], "nothing is left half-written"
        server.config.recordings.rmdir()
        server.config.recordings.write_text("no folder")
        player.say("command", action="record")
        assert player.message("problem")["code"] == "recording_failed"
        player.say("command", action="resume")
        header, _ = player.frame()
        player.frame(id=header.id + 4)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("{", "malformed"),
        ("[1]", "malformed"),
        ('{"type":"input","id":-1}', "malformed"),
        ('{"type":"input","id":1,"forward":NaN}', "malformed"),
        ('{"type":"input","id":1,"forward":1' + "0" * 400 + "}", "malformed"),  # no float is so large
        ('{"type":"input","id":1,"yaw":-Infinity}', "malformed"),
        ('{"type":"input","id":1,"shell":"x"}', "malformed"),
        ('{"type":"command","action":"format"}', "malformed"),
        ("x" * 3000, "too_large"),
        (json.dumps({"type": "hello", "version": VERSION}), "second_hello"),
    ],
)
def test_bad_messages_end_that_connection_only(client: TestClient, text: str, code: str) -> None:
    with client.websocket_connect("/ws") as other, client.websocket_connect("/ws") as socket:
        bystander, player = Player(other), Player(socket)
        bystander.hello()
        player.hello()
        socket.send_text(text)
        problem = player.message("problem")
        assert problem["code"] == code and problem["fatal"]
        bystander.frame()


def test_a_flood_is_refused(models: Models, server: PlayServer) -> None:
    still = PlayServer(server.config, models, now=lambda: 0.0)  # however slow the machine, all come in one moment
    with TestClient(still.app) as client, client.websocket_connect("/ws") as socket:
        player = Player(socket)
        player.hello()
        for index in range(400):
            player.say("input", id=index + 1)
        assert player.message("problem")["code"] == "too_fast"


def test_a_wrong_view_or_style_is_said_and_play_goes_on(client: TestClient) -> None:
    with client.websocket_connect("/ws") as socket:
        player = Player(socket)
        player.hello()
        player.say("set_view", view="nonsense")
        assert "expected one of" in player.message("problem")["text"]
        player.say("set_look", prompt="", style="nonsense")
        assert not player.message("problem")["fatal"]
        player.frame()


def test_versions_places_origins_and_tokens(models: Models, server: PlayServer, client: TestClient) -> None:
    with client.websocket_connect("/ws") as socket:
        player = Player(socket)
        player.say("hello", version=VERSION + 1)
        assert player.message("problem")["code"] == "version"
    with client.websocket_connect("/ws") as a, client.websocket_connect("/ws") as b:
        Player(a).hello()
        Player(b).hello()
        with client.websocket_connect("/ws") as c:
            assert Player(c).message("problem")["code"] == "full"
    with pytest.raises(WebSocketDisconnect), client.websocket_connect("/ws", headers={"origin": "http://evil.test"}):
        pass
    config = PlayConfig(open_source=server.config.open_source, token="secret")
    with TestClient(PlayServer(config, models).app) as guarded:
        with pytest.raises(WebSocketDisconnect), guarded.websocket_connect("/ws?token=wrong"):
            pass
        with guarded.websocket_connect("/ws?token=secret") as socket:
            Player(socket).hello()


def test_a_session_that_fails_tells_its_player_and_leaves_others_alone(
    client: TestClient, server: PlayServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with client.websocket_connect("/ws") as a, client.websocket_connect("/ws") as b:
        broken, fine = Player(a), Player(b)
        name = broken.hello()["session"]
        fine.hello()

        def fail(controls: object) -> None:
            raise RuntimeError("physics exploded")

        monkeypatch.setattr(server.sessions[name].source, "tick", fail)
        problem = broken.message("problem")
        assert problem["code"] == "session_failed" and problem["fatal"]
        fine.frame()


def test_a_session_without_input_ends_and_one_with_input_does_not(models: Models, server: PlayServer) -> None:
    clock = Clock()
    limits = Limits(sessions=2, idle_seconds=100.0)
    config = PlayConfig(open_source=server.config.open_source, recordings=server.config.recordings, limits=limits)
    with TestClient(PlayServer(config, models, now=clock.now).app) as client:
        with client.websocket_connect("/ws") as a, client.websocket_connect("/ws") as b:
            idle, busy = Player(a), Player(b)
            idle.hello()
            busy.hello()
            clock.advance(99)
            idle.frame()
            busy.say("input", id=1)
            busy.frame(input=1)  # so it has been heard
            clock.advance(2)
            problem = idle.message("problem")
            assert problem["code"] == "idle" and problem["fatal"]
            busy.say("input", id=2)
            busy.frame(input=2)
        assert client.get("/health").json()["version"] == VERSION


def test_acks_alone_do_not_keep_a_session(models: Models, server: PlayServer) -> None:
    """A page that is left open shows frames and confirms them; nobody plays."""
    clock = Clock()
    limits = Limits(idle_seconds=100.0)
    config = PlayConfig(open_source=server.config.open_source, recordings=server.config.recordings, limits=limits)
    with TestClient(PlayServer(config, models, now=clock.now).app) as client, client.websocket_connect("/ws") as socket:
        player = Player(socket)
        player.hello()
        for _ in range(4):
            clock.advance(24)
            player.frame()
        clock.advance(5)
        assert player.message("problem")["code"] == "idle"


def test_a_world_is_freed_as_soon_as_its_player_has_gone(models: Models, server: PlayServer) -> None:
    """Not when Python next looks for cycles: worlds are large, and that may be hours later."""
    clock, worlds = Clock(), []

    def open_source(kind: str | None, seed: int | None) -> Source:
        source = server.config.open_source(kind, seed)
        worlds.append(weakref.ref(source))
        return source

    limits = Limits(idle_seconds=100.0)
    config = PlayConfig(open_source=open_source, recordings=server.config.recordings, limits=limits)
    endings = {
        "idle": lambda player: clock.advance(200),
        "malformed": lambda player: player.socket.send_text("{"),
        "second_hello": lambda player: player.say("hello", version=VERSION),
        None: lambda player: None,  # closes the page
    }
    gc.disable()
    try:
        with TestClient(PlayServer(config, models, now=clock.now).app) as client:
            for code, end in endings.items():
                with client.websocket_connect("/ws") as socket:
                    player = Player(socket)
                    player.hello()
                    player.frame(view="generated")
                    end(player)
                    if code is not None:
                        assert player.message("problem")["code"] == code
                waits_until(lambda: client.get("/health").json()["sessions"] == 0)
                waits_until(lambda: worlds[-1]() is None)
        assert len(worlds) == len(endings)
    finally:
        gc.enable()


def test_visits_leave_nothing_alive(models: Models, server: PlayServer, tmp_path: Path) -> None:
    """No session, world or tracer, and no thread; without Python looking for cycles."""
    left: list[weakref.ref[Any]] = []

    def open_source(kind: str | None, seed: int | None) -> Source:
        source = WorldSource(open_world(tmp_path / "room.xml", 0, 30.0), size=SIZE, threads=2)
        left.extend(map(weakref.ref, (source, source.world, source._tracer)))
        return source

    before, visits = set(threading.enumerate()), 6
    visited = PlayServer(PlayConfig(open_source=open_source, recordings=tmp_path / "out"), models)
    gc.disable()
    try:
        with TestClient(visited.app) as client:
            for visit in range(visits):
                with client.websocket_connect("/ws") as socket:
                    player = Player(socket)
                    name = player.hello()["session"]
                    left.append(weakref.ref(visited.sessions[name]))
                    if visit % 2:
                        player.say("command", action="record")
                        player.say("set_view", view="split")
                    player.frame(view="split" if visit % 2 else "generated")
        waits_until(lambda: not [ref() for ref in left if ref() is not None])
        waits_until(lambda: set(threading.enumerate()) <= before)
        assert len(left) == 4 * visits
    finally:
        gc.enable()


def test_a_player_who_goes_while_recording_leaves_a_whole_video(client: TestClient, server: PlayServer) -> None:
    with client.websocket_connect("/ws") as socket:
        player = Player(socket)
        player.hello()
        player.say("command", action="record")
        header, _ = player.frame(view="generated")
        player.frame(id=header.id + 8)
    out = server.config.recordings
    waits_until(lambda: any(out.glob("*.mp4")) and any(out.glob("*/clip.json")))  # the session's thread finishes them
    (video,) = out.glob("*.mp4")
    assert len(read_video(video)) == len(open_clip(video.with_suffix("")))
    assert len([*out.iterdir()]) == 2, "nothing is left half-written"


@pytest.mark.parametrize("ending", ["goes", "prompt", "fails"])
def test_a_source_is_closed_however_its_session_ends(
    models: Models, server: PlayServer, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = FakeSource(size=SIZE)
    if ending == "fails":
        monkeypatch.setattr(source, "tick", lambda controls: 1 / 0)
    config = PlayConfig(open_source=lambda kind, seed: source, recordings=server.config.recordings)
    with TestClient(PlayServer(config, models).app) as client, client.websocket_connect("/ws") as socket:
        player = Player(socket)
        if ending == "prompt":  # longer than the model takes: no session begins
            player.say("hello", version=VERSION, prompt="\u96ea" * 1000)
            assert player.message("problem")["code"] == "refused"
        else:
            player.hello()
            assert ending == "goes" or player.message("problem")["code"] == "session_failed"
    waits_until(lambda: source.closed == 1)


def test_the_server_says_what_waits(client: TestClient) -> None:
    with client.websocket_connect("/ws") as socket:
        player = Player(socket)
        player.hello()
        player.frame()
        health = client.get("/health").json()
        assert health["sessions"] == 1
        assert {"windows", "messages", "frames"} <= set(health)
        assert health["windows"] <= 1 and health["frames"] <= 9
    nothing = {"version": VERSION, "sessions": 0, "windows": 0, "messages": 0, "frames": 0}
    waits_until(lambda: client.get("/health").json() == nothing)


def test_eight_at_once_see_their_own_worlds_and_leave_nothing_behind(models: Models, tmp_path: Path) -> None:
    """Every world is of one colour; a short soak, benchmarks/play.py has the long one."""
    colours = [(0.9 if k & 1 else 0.1, 0.9 if k & 2 else 0.1, 0.9 if k & 4 else 0.1) for k in range(8)]

    def open_source(kind: str | None, seed: int | None) -> Source:
        assert seed is not None
        path = tmp_path / f"{seed}.xml"
        red, green, blue = colours[seed]
        path.write_text(ROOM.replace("0.4 0.6 0.3", f"{red} {green} {blue}"))
        return WorldSource(open_world(path, 0, 30.0), size=SIZE, threads=1)

    server = PlayServer(PlayConfig(open_source=open_source, limits=Limits(sessions=8)), models)
    models.batches.clear()
    with TestClient(server.app) as client, ExitStack() as stack:
        players = [Player(stack.enter_context(client.websocket_connect("/ws"))) for _ in colours]
        for seed, player in enumerate(players):
            player.hello(seed=seed)
        last = [0] * len(players)
        for turn in range(12):
            for seed, player in enumerate(players):
                player.say("input", id=turn + 1, yaw=0.05)
                if turn == 8:
                    player.say("set_view", view="albedo")
                header, picture = player.frame() if turn < 8 else player.frame(view="albedo")
                assert header.id > last[seed]
                last[seed] = header.id
                if turn >= 8:
                    ground = picture[-6:].reshape(-1, 3).mean(0) / 255
                    assert ((ground > 0.6) == (np.array(colours[seed]) > 0.5)).all(), seed
        sessions = list(server.sessions.values())
        assert len(sessions) == 8 and all(session.alive for session in sessions)
    assert max(models.batches) > 1, "some were painted together"
    assert not server.sessions
    for session in sessions:
        session.join(60)
        assert not session.alive
