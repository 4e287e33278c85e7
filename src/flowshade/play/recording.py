"""What is recorded while playing: a video of the pictures and a clip of the buffers, both true to the world's time.

Both have the world's own rate. A frame that is shown for several ticks, because the renderer cannot keep pace, is held
for as many: frame k of either is the world at tick k, however often the rate changed. Constant rates rather than times
in the container, since a clip of buffers has one rate and the two should agree frame by frame, and since many tools
(our own reader too) do not take videos of a variable rate. A held picture costs H.264 next to nothing. Slow motion and
pauses are not in it: they are the machine's and the player's time, not the world's.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from flowshade.errors import FlowshadeError
from flowshade.gbuffer.io import ClipWriter, VideoWriter
from flowshade.play.errors import PlayError
from flowshade.types import Camera, GBuffer


class Recorder:
    """Writes what is played.

    Args:
        folder: where the video `name.mp4` and the clip `name` go.
        size: height and width in pixels.
        fps: the world's ticks a second.
        caption: what is seen, in words.
    """

    def __init__(self, folder: Path, name: str, size: tuple[int, int], fps: float, caption: str) -> None:
        self.name = name
        self.frames = 0
        self._video = VideoWriter(folder / f"{name}.mp4", fps=fps, size=size)
        try:
            self._clip = ClipWriter(folder / name, size=size, fps=fps, caption=caption)
        except FlowshadeError:
            self._video.discard()
            raise

    def append(self, window: GBuffer, pictures: np.ndarray, ticks: int) -> None:
        """Adds a window's frames and their pictures, uint8 [T, H, W, 3], each shown for so many ticks."""
        self._video.append(np.repeat(pictures, ticks, axis=0))
        self._clip.append(held(window, ticks))
        self.frames += ticks * len(pictures)

    def close(self) -> None:
        """Finishes both.

        Raises:
            PlayError: nothing was recorded.
            ClipError: they cannot be written.
        """
        if not self.frames:
            raise PlayError("nothing was recorded: no window was finished meanwhile. Record for longer.")
        self._video.close()
        self._clip.close()

    def discard(self) -> None:
        """Removes what is not finished."""
        self._video.discard()
        self._clip.discard()


def held(window: GBuffer, ticks: int) -> GBuffer:
    """Every frame `ticks` times, [ticks T, C, H, W]; nothing moves from one to its copies."""
    if ticks == 1:
        return window
    channels = {name: value.repeat_interleave(ticks, dim=0) for name, value in window.channels().items()}
    if "motion" in channels:
        copies = [index for index in range(ticks * window.frames) if index % ticks]
        channels["motion"][copies] = 0
    camera = window.camera
    if camera is not None:
        intrinsics, pose = (each.repeat_interleave(ticks, dim=0) for each in (camera.intrinsics, camera.pose))
        camera = Camera(intrinsics=intrinsics, pose=pose)
    return replace(window, **channels, camera=camera)
