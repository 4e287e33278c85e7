"""A MuJoCo simulation in a process of its own, painted by a Flowshade server: two cameras, one batch.

    flowshade play --push                          # in one terminal
    python examples/push_mujoco.py OUT.mp4 [seconds] [ws://127.0.0.1:8765/push]

Only the G-buffers travel. An engine of your own does the same: fill `GBuffer`s (or the bytes that docs/play.md
describes, from any language) and read the pictures.
"""

from __future__ import annotations

import sys

import mujoco
import numpy as np

from flowshade import GBuffer
from flowshade.gbuffer.io import VideoWriter
from flowshade.gbuffer.trace import Tracer
from flowshade.play.gym import camera_of
from flowshade.play.streams import RemoteStreams

FPS, SIZE, WINDOW = 24, (144, 256), 4

ROOM = """
<mujoco>
  <visual><global fovy="50"/></visual>
  <asset>
    <material name="grass" rgba="0.35 0.5 0.2 1" roughness="0.9"/>
    <material name="brick" rgba="0.6 0.25 0.18 1" roughness="0.8"/>
    <material name="steel" rgba="0.7 0.7 0.72 1" roughness="0.25" metallic="1"/>
  </asset>
  <worldbody>
    <geom type="plane" size="60 60 1" material="grass"/>
    <geom type="box" size="0.4 4 1.5" pos="5 0 1.5" material="brick"/>
    <body pos="0 0 3"><freejoint/><geom type="sphere" size="0.6" material="steel"/></body>
    <body pos="0.4 0.9 5"><freejoint/><geom type="box" size="0.5 0.5 0.5" material="brick"/></body>
    <camera name="front" pos="-7 0 2" xyaxes="0 -1 0 0.15 0 1"/>
    <camera name="side" pos="0 -7 2" xyaxes="1 0 0 0 0.15 1"/>
  </worldbody>
</mujoco>
"""


def main(video_path: str, seconds: float, address: str) -> None:
    model = mujoco.MjModel.from_xml_string(ROOM)
    data = mujoco.MjData(model)
    tracers = [Tracer(model, size=SIZE) for _ in range(model.ncam)]
    windows: list[list[GBuffer]] = [[] for _ in tracers]
    with (
        RemoteStreams(address, len(tracers), size=SIZE) as streams,
        VideoWriter(video_path, fps=FPS, size=(SIZE[0], SIZE[1] * len(tracers))) as video,
    ):
        streams.set_look("a meadow with a brick wall", "sunny")
        for frame in range(max(round(seconds * FPS / WINDOW), 1) * WINDOW):
            while data.time < frame / FPS:
                mujoco.mj_step(model, data)
            mujoco.mj_forward(model, data)
            for number, (tracer, window) in enumerate(zip(tracers, windows)):
                tracer.update(data)
                window.append(tracer.gbuffer(camera_of(model, data, number, SIZE)))
            if len(windows[0]) == WINDOW:
                pictures = streams.paint([GBuffer.cat(window) for window in windows])  # [cameras, T, H, W, 3]
                video.append(np.concatenate(list(pictures), axis=2))  # side by side
                windows = [[] for _ in tracers]


if __name__ == "__main__":
    if not 2 <= len(sys.argv) <= 4:
        sys.exit(__doc__)
    main(
        sys.argv[1],
        seconds=float(sys.argv[2]) if len(sys.argv) > 2 else 4.0,
        address=sys.argv[3] if len(sys.argv) > 3 else "ws://127.0.0.1:8765/push",
    )
