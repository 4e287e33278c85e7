"""A video as a clip of estimated G-buffers, estimated as they are asked for."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from jaxtyping import Float, UInt8
from torch import Tensor

from flowshade.color import to_bytes
from flowshade.errors import FlowshadeError
from flowshade.gbuffer.io.footage import Footage
from flowshade.gbuffer.io.limits import check_size
from flowshade.gbuffer.io.reader import ClipInfo, ClipReader
from flowshade.inverse.stream import InverseQueue, Inverted, VideoInverse
from flowshade.types import Frames, GBuffer

RUN = 4
"""Pictures pushed together; any number gives the same. Measured with the compact inverse: 1 is slower by half, and so
is 8."""


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
    """The channels that the inverse makes: of the compact one all five, with depth right up to one factor for the whole
    video; of the 7B one all but depth unless its code is stated."""
    confidence: dict[str, Float[Tensor, "T 1 H W"]]
    """For each channel, the probability of being right within `flowshade.inverse.stream.TOLERANCES`, [0, 1]; empty for
    an inverse that does not say."""
    codes: dict[str, Float[Tensor, "T 3 H W"]]
    """For each channel, what a network of upstream's wrote, [0, 1]; empty for others."""

    @property
    def stop(self) -> int:
        """Number of the frame after the last."""
        return self.start + self.frames.frames


class InvertedClip(ClipReader):
    """Footage seen as a clip: reading frames estimates them, in constant memory.

    Networks remember, so frames are estimated in order: going back starts again from the first, and frames that are
    passed over are estimated all the same. An inverse that works in chunks is fed ahead of what is asked for.

    Args:
        footage: the pictures.
        inverse: the network; its stream is taken over.
        size: height and width that pictures are brought to first; None keeps theirs.
        fov: horizontal field of view in degrees; None = unknown.
        frames: how many, from the first; None takes all. No other is looked at.
        seed: of the inverse's noise, if it draws any; None takes its own.

    Raises:
        ClipError: a size that cannot be, or more frames than there are.
        FlowshadeError: a field of view that cannot be.
    """

    def __init__(
        self,
        footage: Footage,
        inverse: VideoInverse,
        *,
        size: tuple[int, int] | None = None,
        fov: float | None = None,
        frames: int | None = None,
        seed: int | None = None,
    ) -> None:
        if size is not None:
            check_size(size)
        self._footage, self._inverse, self._focal, self._seed = footage, inverse, focal_of(fov), seed
        self._queue = InverseQueue(inverse)
        self.info = ClipInfo(
            path=footage.path,
            format="estimated",
            frames=footage.frames,
            size=footage.size if size is None else size,
            fps=footage.fps,
            channels=inverse.channels,
            axes=f"estimated by {inverse.name}; depth: {inverse.about()['depth']}",
            has_reference=True,
        )
        if frames is not None:
            self.info = dataclasses.replace(self.info, frames=self.bounds(0, frames)[1])
        self._restart()
        self.info = dataclasses.replace(self.info, meta=inverse.about() | ({} if fov is None else {"fov": fov}))

    @property
    def made(self) -> int:
        """Frames that have left the inverse since the stream began."""
        return self._taken + self._queue.ready

    def estimate(self, start: int, stop: int) -> InvertedWindow:
        """Buffers and confidences of frames `start` to `stop` (excluded)."""
        start, stop = self.bounds(start, stop)
        if self._last is not None and (self._last.start, self._last.stop) == (start, stop):
            return self._last
        if start < self._taken:
            self._restart()
        while self._taken < start:
            self._take(min(RUN, start - self._taken))
        frames, inverted = self._take(stop - start)
        self._last = InvertedWindow(
            start=start,
            frames=frames,
            gbuffer=inverted.gbuffer,
            confidence=inverted.confidence,
            codes=inverted.codes,
        )
        return self._last

    def _take(self, count: int) -> tuple[Frames, Inverted]:
        """The next frames, having fed as many as that needs."""
        while self._queue.ready < count and self._pushed < len(self):
            stop = min(self._pushed + min(RUN, count - self._queue.ready), len(self))
            self._queue.push(self._footage.read(self._pushed, stop, self.info.size))
            self._pushed = stop
        if self._queue.ready < count:
            self._queue.finish()
        self._taken += count
        return self._queue.take(count)

    def _restart(self) -> None:
        self._queue.reset(focal=self._focal, seed=self._seed)
        self._pushed = self._taken = 0
        self._last: InvertedWindow | None = None

    def _read(self, start: int, stop: int) -> GBuffer:
        return self.estimate(start, stop).gbuffer

    def _coded(self, start: int, stop: int) -> dict[str, UInt8[Tensor, "T 3 H W"]]:
        if not self._inverse.codes:
            return super()._coded(start, stop)
        codes = self.estimate(start, stop).codes
        return {name: to_bytes(value) for name, value in codes.items()}

    def _reference(self, start: int, stop: int) -> Float[Tensor, "T 3 H W"] | None:
        return self.estimate(start, stop).frames.rgb
