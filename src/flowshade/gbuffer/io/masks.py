"""Which part of a picture may change: masks from pictures and videos, and from the instance ids of a clip."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from flowshade.gbuffer.io.errors import ClipError
from flowshade.gbuffer.io.footage import Footage
from flowshade.gbuffer.io.reader import ClipReader
from flowshade.gbuffer.io.resize import interpolate_nearest

SHAPE_TOLERANCE = 0.02
"""Relative difference of width over height at which a mask still counts as one of the same picture."""


@runtime_checkable
class Mask(Protocol):
    """What says, for a run of frames, how much of each pixel is to change."""

    def read(self, start: int, stop: int, size: tuple[int, int]) -> Float[Tensor, "T 1 H W"]:
        """[0, 1]; 1 = change."""
        ...

    def check(self, frames: int, size: tuple[int, int]) -> None:
        """Raises ClipError unless it covers that many frames of that height and width."""
        ...


class PictureMask:
    """White = change: a video, a folder of pictures, or one picture for all frames.

    Args:
        footage: the pictures; their brightness (mean of R, G and B) is the mask.
    """

    def __init__(self, footage: Footage) -> None:
        self._footage = footage
        self._still = footage.frames == 1

    def check(self, frames: int, size: tuple[int, int]) -> None:
        """See `Mask`."""
        if not self._still and self._footage.frames < frames:
            raise ClipError(
                f"the mask {self._footage.path} has {self._footage.frames} frames and {frames} are to be made; "
                "expected as many, or one picture for all. Give fewer --frames, or a longer mask."
            )
        _check_shape(f"the mask {self._footage.path}", self._footage.size, size)

    def read(self, start: int, stop: int, size: tuple[int, int]) -> Float[Tensor, "T 1 H W"]:
        """See `Mask`."""
        first, last = (0, 1) if self._still else (start, stop)
        mask = self._footage.read(first, last, size).rgb.mean(1, keepdim=True)
        return mask.expand(stop - start, -1, -1, -1)


class InstanceMask:
    """The pixels of some things of a G-buffer clip.

    Args:
        clip: a clip with instance ids.
        instances: the ids whose pixels change.

    Raises:
        ClipError: a clip without ids, or no id.
    """

    def __init__(self, clip: ClipReader, instances: tuple[int, ...]) -> None:
        if "instance" not in clip.info.channels:
            raise ClipError(
                f"{clip.info.path} has no instance ids (it has {', '.join(clip.info.channels)}); expected a clip with "
                "them. Export them too, or give a mask of pictures."
            )
        if not instances:
            raise ClipError("no instance ids were given; expected some, such as 3,7. See them with: flowshade inspect")
        self._clip, self._ids = clip, torch.tensor(instances, dtype=torch.int32)
        self._seen: set[int] = set()

    def check(self, frames: int, size: tuple[int, int]) -> None:
        """See `Mask`."""
        if len(self._clip) < frames:
            raise ClipError(
                f"the clip {self._clip.info.path} has {len(self._clip)} frames and {frames} are to be made; expected "
                "as many. Give fewer --frames, or a longer clip."
            )
        _check_shape(f"the clip {self._clip.info.path}", self._clip.info.size, size)

    def read(self, start: int, stop: int, size: tuple[int, int]) -> Float[Tensor, "T 1 H W"]:
        """See `Mask`."""
        ids = self._clip.read(start, stop).instance
        assert ids is not None, "the reader announced them"
        self._seen |= set(ids.unique().tolist())
        return torch.isin(interpolate_nearest(ids, size), self._ids).float()

    def unseen(self) -> tuple[int, ...]:
        """Ids of which no pixel came so far."""
        return tuple(sorted(set(self._ids.tolist()) - self._seen))


def _check_shape(what: str, found: tuple[int, int], size: tuple[int, int]) -> None:
    if abs((found[1] / found[0]) / (size[1] / size[0]) - 1) > SHAPE_TOLERANCE:
        raise ClipError(
            f"{what} is {found[0]}x{found[1]} pixels and the video {size[0]}x{size[1]}; expected the same shape, of "
            "any size. Cut it to the video's frame."
        )
