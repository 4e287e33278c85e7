"""Windows of an engine of one's own: what travels, what comes back, what is refused, and Gymnasium."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import mujoco
import numpy as np
import pytest
import torch
import uvicorn

from flowshade.api import StyledRenderer, load_renderer
from flowshade.errors import StyleError
from flowshade.play.errors import PlayError, ProtocolError
from flowshade.play.gym import PaintedRender, PaintedVectorRender
from flowshade.play.link import Limits
from flowshade.play.painting import Models
from flowshade.play.protocol import VERSION
from flowshade.play.push import Layout, PushHello, pack
from flowshade.play.server import PlayConfig, PlayServer
from flowshade.play.streams import LocalStreams, RemoteStreams
from flowshade.types import GBuffer
from tests.conftest import make_gbuffer

SIZE = (32, 48)
CHANNELS = ("albedo", "normal", "depth", "roughness", "metallic")


@pytest.fixture(scope="module")
def renderer(debug_model: Path) -> StyledRenderer:
    return load_renderer(debug_model, device="cpu")


@pytest.fixture(scope="module")
def address(renderer: StyledRenderer) -> Iterator[str]:
    """A server on a thread, and where it takes windows."""

    def nothing(kind: str | None, seed: int | None) -> Any:
        raise PlayError("nobody plays here")

    models = Models(lambda: renderer)
    limits = Limits(push_bytes=2**24, push_streams=4)
    app = PlayServer(PlayConfig(open_source=nothing, limits=limits, token="secret"), models).app
    server = uvicorn.Server(
        uvicorn.Config(app, port=0, log_level="warning", ws_max_size=limits.largest_message, lifespan="off")
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"ws://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/push?token=secret"
    server.should_exit = True
    thread.join()
    models.close()


def windows(seed: int, count: int = 2, frames: int = 4) -> list[GBuffer]:
    return [make_gbuffer(frames, *SIZE, seed=seed + index) for index in range(count)]


def remote(address: str, count: int = 2, **options: Any) -> RemoteStreams:
    return RemoteStreams(address, count, size=SIZE, **{"channels": CHANNELS, "number": "float32", **options})


def test_a_window_comes_out_as_it_went_in() -> None:
    hello = PushHello(
        version=VERSION, streams=2, height=32, width=48, channels=list(CHANNELS), number="float32", camera=True
    )
    number, got = Layout(hello).unpack(Layout(hello).pack(7, windows(1)))
    assert number == 7
    for mine, theirs in zip(windows(1), got):
        assert all(torch.equal(mine.channels()[name], theirs.channels()[name]) for name in CHANNELS)
        assert mine.camera is not None and theirs.camera is not None
        assert torch.equal(mine.camera.pose, theirs.camera.pose)


@pytest.mark.parametrize(
    ("header", "size", "what"),
    [
        ({"id": 1, "frames": 4}, 10, "expected"),
        ({"id": 1, "frames": 0}, 0, "1 to 64 frames"),
        ({"id": 1, "frames": 10**9}, 0, "1 to 64 frames"),
        ({"frames": 4}, 0, "expected id"),
    ],
)
def test_data_that_is_not_what_was_agreed_is_refused(header: dict[str, object], size: int, what: str) -> None:
    layout = Layout(PushHello(version=VERSION, streams=1, height=32, width=48, channels=["albedo"]))
    with pytest.raises(ProtocolError, match=what):
        layout.unpack(pack(header, bytes(size)))
    for nonsense in (b"", b"\xff\xff\xff\xff{}", b"\x02\x00\x00\x00[]"):
        with pytest.raises(ProtocolError, match="expected"):
            layout.unpack(nonsense)


def test_remote_pictures_are_those_of_this_process(address: str, renderer: StyledRenderer) -> None:
    local = LocalStreams(renderer, 2, seed=5)
    with remote(address, seed=5) as streams:
        assert "neon" in streams.welcome["styles"]
        for turn in range(3):
            if turn == 1:
                for each in (local, streams):
                    each.set_look("a quiet street", "neon", stream=1)
            if turn == 2:
                for each in (local, streams):
                    each.restart(0)
            got, expected = streams.paint(windows(10 * turn)), local.paint(windows(10 * turn))
            assert got.shape == (2, 4, *SIZE, 3) and expected.std() > 10
            assert abs(got.astype(int) - expected.astype(int)).max() <= 1


def test_half_floats_and_fewer_channels_are_enough(address: str) -> None:
    with remote(address, 1, number="float16", channels=("normal", "depth"), camera=False) as streams:
        assert streams.paint(windows(1, 1, frames=3)).shape == (1, 3, *SIZE, 3)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"count": 5}, "at most 4"),
        ({"channels": ("colour",)}, "expected some of"),
        ({"steps": 1000}, "expected 1 to 100"),
    ],
)
def test_what_the_server_does_not_take_is_said(address: str, options: dict[str, Any], what: str) -> None:
    with pytest.raises(PlayError, match=what):
        remote(address, **options)


def test_mistakes_end_that_connection_only(address: str, renderer: StyledRenderer) -> None:
    with remote(address, 1) as bystander:
        with remote(address, 1) as streams:
            streams.set_look("", "nonsense")
            with pytest.raises(PlayError, match="unknown style"):
                streams.paint(windows(1, 1))
        with remote(address, 1) as streams:
            streams._send(b"12")
            with pytest.raises(PlayError, match="without a header"):
                streams._hear()
        with remote(address, 1) as streams, pytest.raises(PlayError, match="closed"):
            streams._send(bytes(2**24 + 10))
            streams._hear()
        assert bystander.paint(windows(1, 1)).shape == (1, 4, *SIZE, 3)
    with pytest.raises(PlayError, match="cannot connect"):
        remote(address.replace("secret", "wrong"))
    with pytest.raises(StyleError):
        LocalStreams(renderer, 1).set_look("", "nonsense")
    with pytest.raises(ProtocolError, match="lacks"):
        Layout(PushHello(version=VERSION, streams=1, height=32, width=48, channels=["motion"])).pack(1, windows(1, 1))


def test_the_example_streams_a_simulation_from_another_process(address: str, tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "examples" / "push_mujoco.py"
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "out.mp4"), "0.3", address],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out.mp4").stat().st_size > 2000


# Gymnasium ------------------------------------------------------------------------------------------------------------

BALLS = """
<mujoco>
  <worldbody>
    <geom type="plane" size="20 20 1" rgba="0.4 0.6 0.3 1"/>
    <body name="ball" pos="0 0 1"><freejoint/><geom type="sphere" size="0.5" rgba="0.9 0.2 0.1 1"/></body>
    <camera name="front" pos="-4 0 1" xyaxes="0 -1 0 0.1 0 1"/>
    <camera name="above" pos="0 0 6" xyaxes="0 -1 0 1 0 0"/>
  </worldbody>
</mujoco>
"""


class Balls(gymnasium.Env):
    """A ball that is pushed along; ends after ten steps."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (7,))
    action_space = gymnasium.spaces.Box(-1, 1, (2,))

    def __init__(self) -> None:
        self.model = mujoco.MjModel.from_xml_string(BALLS)
        self.data = mujoco.MjData(self.model)
        self.steps = 0

    def _observe(self) -> np.ndarray:
        return self.data.qpos.astype(np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        mujoco.mj_resetData(self.model, self.data)
        mujoco.mj_forward(self.model, self.data)
        self.steps = 0
        return self._observe(), {}

    def step(self, action: np.ndarray):
        self.data.qvel[:2] += action
        mujoco.mj_step(self.model, self.data, 10)
        self.steps += 1
        return self._observe(), 0.0, self.steps >= 10, False, {}


PUSH = np.array([0.0, 1.0], np.float32)


def test_render_gives_a_picture_of_now_and_leaves_physics_alone(renderer: StyledRenderer) -> None:
    plain, painted = Balls(), PaintedRender(Balls(), LocalStreams(renderer, 1), cameras=["front"], size=SIZE)
    plain.reset(seed=0)
    painted.reset(seed=0)
    pictures = []
    for _ in range(6):
        expected, *_ = plain.step(PUSH)
        observed, *_ = painted.step(PUSH)
        assert np.array_equal(observed, expected)
        pictures.append(painted.render())
    assert painted.render_mode == "rgb_array"
    assert pictures[0].shape == (*SIZE, 3) and pictures[0].dtype == np.uint8
    assert abs(pictures[0].astype(int) - pictures[-1].astype(int)).mean() > 0.5


def test_several_cameras_and_a_list_of_all_frames(renderer: StyledRenderer) -> None:
    env = PaintedRender(
        Balls(), LocalStreams(renderer, 2), cameras=["front", "above"], size=SIZE, render_mode="rgb_array_list"
    )
    env.reset(seed=0)
    for _ in range(5):
        env.step(PUSH)
    pictures = env.render()
    assert len(pictures) == 6, "the reset's and five steps'"
    assert all(picture.shape == (2, *SIZE, 3) for picture in pictures)
    assert env.render() == []


def test_vectorised_environments_are_one_batch(renderer: StyledRenderer, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    encoder = renderer.model.encoder.forward
    monkeypatch.setattr(
        renderer.model.encoder, "forward", lambda planes: (calls.append(planes.values.shape[0]), encoder(planes))[1]
    )
    made = gymnasium.vector.SyncVectorEnv([Balls, Balls, Balls])
    env = PaintedVectorRender(
        made, LocalStreams(renderer, 6), cameras=["front", "above"], size=SIZE, prompt=["a", "b", "c"]
    )
    env.reset(seed=0)
    actions = np.array([[0, 0], [0, 1], [0, -1]], np.float32)
    for _ in range(14):  # one episode ends on the way
        env.step(actions)
        pictures = env.render()
    assert set(calls) == {6} and len(calls) == 14
    assert len(pictures) == 3 and all(picture.shape == (2, *SIZE, 3) for picture in pictures)
    assert not np.array_equal(pictures[0], pictures[1])


def test_a_new_episode_forgets_the_last_one(renderer: StyledRenderer) -> None:
    env = PaintedRender(Balls(), LocalStreams(renderer, 1, seed=3), cameras=["front"], size=SIZE)
    env.reset(seed=0)
    first = env.render()
    for _ in range(4):
        env.step(PUSH)
        env.render()
    env.reset(seed=0)
    assert np.array_equal(env.render(), first)


def test_what_cannot_be_painted_is_said(renderer: StyledRenderer) -> None:
    with pytest.raises(PlayError, match="expected 2"):
        PaintedRender(Balls(), LocalStreams(renderer, 1), cameras=["front", "above"], size=SIZE)
    with pytest.raises(PlayError, match="no camera 'back'"):
        PaintedRender(Balls(), LocalStreams(renderer, 1), cameras=["back"], size=SIZE).render()
    with pytest.raises(PlayError, match="render_mode"):
        PaintedRender(Balls(), LocalStreams(renderer, 1), size=SIZE, render_mode="human")

    class Empty(gymnasium.Env):
        pass

    with pytest.raises(PlayError, match="no MuJoCo model"):
        PaintedRender(Empty(), LocalStreams(renderer, 1), size=SIZE).render()
