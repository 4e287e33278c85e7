"""A video as a clip of estimated G-buffers, estimated as they are asked for."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from flowshade.errors import FlowshadeError
from flowshade.gbuffer.io.footage import Footage
from flowshade.gbuffer.io.limits import check_size
from flowshade.gbuffer.io.reader import ClipInfo, ClipReader
from flowshade.inverse.stream import Inverse, Inverted
from flowshade.types import CORE_CHANNELS, Frames, GBuffer

RUN = 4
"""Pictures pushed together; any number gives the same. Measured: 1 is slower by half, and so is 8."""


def focal_of(fov: float | None) -> float | None:
    """A horizontal field of view in degrees as focal length over the picture's width; None = unknown.

    Raises:
        FlowshadeError: not between 0 and 180 degrees.
    """
    if fov is None:
        return None
    if not 0 < fov < 180:
        raise FlowshadeError(f"fov is {fov:g}; expected the horizontal field of view in degrees, 0 to 180.")
    return 0.5 / math.tan(math.radians(fov) / 2)


@dataclass(frozen=True, kw_only=True)
class InvertedWindow:
    """One step of an inversion, on the CPU."""

    start: int
    """Number of the first frame in the video."""
    frames: Frames
    """The pictures, at the buffers' size."""
    gbuffer: GBuffer
    """The five core channels. Depth is right up to one factor for the whole video."""
    confidence: dict[str, Float[Tensor, "T 1 H W"]]
    """For each channel, the probability of being right within `flowshade.inverse.stream.TOLERANCES`, [0, 1]."""


class InvertedClip(ClipReader):
    """Footage seen as a clip: reading frames estimates them, in constant memory.

    The network remembers, so frames are estimated in order: going back starts again from the first, and frames that are
    passed over are estimated all the same.

    Args:
        footage: the pictures.
        inverse: the network; its stream is taken over.
        size: height and width that pictures are brought to first; None keeps theirs.
        fov: horizontal field of view in degrees; None = unknown.

    Raises:
        FlowshadeError: a size or a field of view that cannot be.
    """

    def __init__(
        self,
        footage: Footage,
        inverse: Inverse,
        *,
        size: tuple[int, int] | None = None,
        fov: float | None = None,
    ) -> None:
        if size is not None:
            check_size(size)
        self._footage, self._inverse, self._focal = footage, inverse, focal_of(fov)
        self._next = 0
        self._last: InvertedWindow | None = None
        self.info = ClipInfo(
            path=footage.path,
            format="estimated",
            frames=footage.frames,
            size=footage.size if size is None else size,
            fps=footage.fps,
            channels=CORE_CHANNELS,
            axes=f"estimated by {inverse.config.name}; depth up to one factor",
            has_reference=True,
        )
        self._restart()

    def estimate(self, start: int, stop: int) -> InvertedWindow:
        """Buffers and confidences of frames `start` to `stop` (excluded)."""
        start, stop = self.bounds(start, stop)
        if self._last is not None and self._span(self._last) == (start, stop):
            return self._last
        if start < self._next:
            self._restart()
        while self._next < start:
            self._push(self._next, min(self._next + RUN, start))
        steps = [self._push(first, min(first + RUN, stop)) for first in range(start, stop, RUN)]
        self._last = InvertedWindow(
            start=start,
            frames=Frames(rgb=torch.cat([frames.rgb for frames, _ in steps])),
            gbuffer=GBuffer.cat([inverted.gbuffer.to("cpu") for _, inverted in steps]),
            confidence={
                name: torch.cat([inverted.confidence[name].cpu() for _, inverted in steps]) for name in CORE_CHANNELS
            },
        )
        return self._last

    def _push(self, start: int, stop: int) -> tuple[Frames, Inverted]:
        frames = self._footage.read(start, stop, self.info.size)
        inverted = self._inverse.push(frames)
        self._next = stop
        return frames, inverted

    def _restart(self) -> None:
        self._inverse.reset(focal=self._focal)
        self._next, self._last = 0, None

    @staticmethod
    def _span(window: InvertedWindow) -> tuple[int, int]:
        return window.start, window.start + window.frames.frames

    def _read(self, start: int, stop: int) -> GBuffer:
        return self.estimate(start, stop).gbuffer

    def _reference(self, start: int, stop: int) -> Float[Tensor, "T 3 H W"]:
        if self._last is not None and self._span(self._last) == (start, stop):
            return self._last.frames.rgb
        return self._footage.read(start, stop, self.info.size).rgb
