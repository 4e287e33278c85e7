"""A network and one stream of video: pictures in, G-buffers out, of any size and length."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from flowshade.color import srgb_to_linear
from flowshade.inverse.network import STRIDE, Estimate, InverseConfig, InverseNetwork, InverseState
from flowshade.types import CORE_CHANNELS, Frames, GBuffer

TOLERANCES = {"albedo": 0.05, "normal": 0.1, "depth": 0.1, "roughness": 0.1, "metallic": 0.1}
"""The error within which a channel counts as right, in the units of `Estimate`; of vectors the mean over components."""


@dataclass(frozen=True, kw_only=True)
class Inverted:
    """G-buffers of a run of pictures."""

    gbuffer: GBuffer
    """The five core channels. Depth is in metres if the scene is one the network knows, else up to one factor."""
    confidence: dict[str, Float[Tensor, "T 1 H W"]]
    """For each channel, the probability of being right within `TOLERANCES`, [0, 1]; empty where none is given."""
    codes: dict[str, Float[Tensor, "T 3 H W"]] = field(default_factory=dict)
    """For each channel, the planes in [0, 1] that a network of upstream's wrote, as upstream's others take them; empty
    where there are none."""

    def __getitem__(self, index: slice) -> Inverted:
        """A run of frames, as views."""
        confidence = {name: value[index] for name, value in self.confidence.items()}
        codes = {name: value[index] for name, value in self.codes.items()}
        return Inverted(gbuffer=self.gbuffer[index], confidence=confidence, codes=codes)

    def to(self, device: torch.device | str) -> Inverted:
        confidence = {name: value.to(device) for name, value in self.confidence.items()}
        codes = {name: value.to(device) for name, value in self.codes.items()}
        return Inverted(gbuffer=self.gbuffer.to(device), confidence=confidence, codes=codes)

    @staticmethod
    def cat(parts: Sequence[Inverted]) -> Inverted:
        """Joins runs in time; at least one."""
        first = parts[0]
        return Inverted(
            gbuffer=GBuffer.cat([part.gbuffer for part in parts]),
            confidence={name: torch.cat([part.confidence[name] for part in parts]) for name in first.confidence},
            codes={name: torch.cat([part.codes[name] for part in parts]) for name in first.codes},
        )


@runtime_checkable
class VideoInverse(Protocol):
    """Any inverse: pictures go in, their buffers come out in order, at once or later.

    `reset`, then `push` for as long as pictures come, then `finish`. `InverseQueue` evens out what comes when.
    """

    fingerprint: str
    """Which weights it has; empty if that is not known."""

    @property
    def name(self) -> str: ...

    @property
    def channels(self) -> tuple[str, ...]:
        """Those of its G-buffers."""
        ...

    @property
    def confident(self) -> bool:
        """Whether it says how sure it is."""
        ...

    @property
    def codes(self) -> tuple[str, ...]:
        """Channels of which it also gives the planes that upstream's networks take."""
        ...

    def about(self) -> dict[str, Any]:
        """What a clip should say of how it was estimated, as JSON holds it; `depth` is a sentence."""
        ...

    def reset(self, *, focal: float | None = None, seed: int | None = None) -> None:
        """Starts a stream; see the classes."""
        ...

    def push(self, frames: Frames) -> Inverted | None:
        """Takes the next pictures, gives the buffers of the earliest that are not given yet; None if none are done."""
        ...

    def finish(self) -> Inverted | None:
        """Ends the stream: the buffers of all that are not given yet; None if there are none."""
        ...


class InverseQueue:
    """What has left an inverse and was not taken yet, together with its pictures.

    Args:
        inverse: its stream is taken over.
    """

    def __init__(self, inverse: VideoInverse) -> None:
        self._inverse = inverse
        self._frames: list[Tensor] = []
        self._done: list[Inverted] = []
        self.ready = 0
        """Frames that can be taken."""

    def reset(self, *, focal: float | None = None, seed: int | None = None) -> None:
        """Starts a stream."""
        self._inverse.reset(focal=focal, seed=seed)
        self._frames, self._done, self.ready = [], [], 0

    @property
    def held(self) -> int:
        """Pictures in memory."""
        return sum(len(part) for part in self._frames)

    def push(self, frames: Frames) -> None:
        """Takes pictures."""
        self._frames.append(frames.rgb)
        self._keep(self._inverse.push(frames))

    def finish(self) -> None:
        """Says that there are no more; after it, all that were pushed are ready."""
        self._keep(self._inverse.finish())

    def take(self, count: int) -> tuple[Frames, Inverted]:
        """The next `count` frames, at most `ready`, in host memory."""
        assert 0 < count <= self.ready, (count, self.ready)
        self.ready -= count
        frames = _cut_off(self._frames, count, len)
        done = _cut_off(self._done, count, lambda part: part.gbuffer.frames)
        return Frames(rgb=torch.cat(frames)), Inverted.cat(done)

    def _keep(self, inverted: Inverted | None) -> None:
        if inverted is not None:
            self._done.append(inverted.to("cpu"))
            self.ready += inverted.gbuffer.frames


def _cut_off(parts: list[Any], count: int, length: Callable[[Any], int]) -> list[Any]:
    """Removes the first `count` frames from runs and returns them."""
    taken = []
    while count:
        size = length(parts[0])
        taken.append(parts[0][: min(count, size)])
        parts[:1] = [parts[0][count:]] if count < size else []
        count -= min(count, size)
    return taken


class Inverse(nn.Module):
    """The inverse renderer, streaming: memory and time a picture do not grow."""

    fingerprint = ""
    """Which weights it has; empty if they come from no file."""
    channels = CORE_CHANNELS
    confident = True
    codes: tuple[str, ...] = ()

    def __init__(self, config: InverseConfig) -> None:
        super().__init__()
        self.config = config
        self.network = InverseNetwork(config)
        self._state: InverseState | None = None
        self._size: tuple[int, int] | None = None
        self._focal = 0.0

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def name(self) -> str:
        return self.config.name

    def about(self) -> dict[str, Any]:
        return {
            "inverse": self.name,
            "fingerprint": self.fingerprint,
            "depth": "planar, in metres up to one factor for the whole video",
        }

    def reset(self, *, focal: float | None = None, seed: int | None = None) -> None:
        """Starts a stream.

        Args:
            focal: horizontal focal length over the picture's width (0.5 / tan(half the horizontal field of view));
                None = unknown.
            seed: changes nothing: this network draws no noise.

        Raises:
            ValueError: a focal length that is not positive.
        """
        check_focal(focal)
        self._state, self._size, self._focal = None, None, focal or 0.0

    @torch.no_grad()
    def push(self, frames: Frames) -> Inverted:
        """The buffers of the next pictures of the stream.

        Raises:
            ValueError: the pictures' size changed within the stream, or they are not finite.
        """
        rgb = frames.rgb
        height, width = rgb.shape[-2:]
        check_pictures(rgb, self._size)
        padding = (0, -width % STRIDE, 0, -height % STRIDE)
        padded = F.pad(rgb.to(self.device), padding, mode="replicate").clamp(0, 1)
        focal = torch.tensor([self._focal * width / padded.shape[-1]], device=self.device)
        estimate, self._state = self.network(padded[None], focal, self._state)
        self._size = (height, width)
        return _inverted(estimate, height, width)

    def finish(self) -> None:
        """Ends the stream; everything was given already."""

    def invert(self, windows: Iterable[Frames], *, focal: float | None = None) -> Iterator[Inverted]:
        """A whole video, window by window."""
        self.reset(focal=focal)
        for frames in windows:
            yield self.push(frames)


def check_focal(focal: float | None) -> None:
    """Raises ValueError unless a focal length (over the picture's width) is unknown or positive."""
    if focal is not None and not 0 < focal < float("inf"):
        raise ValueError(f"the focal length is {focal} of the picture's width; expected a positive number or None.")


def check_pictures(rgb: Tensor, size: tuple[int, int] | None) -> None:
    """Raises ValueError unless pictures are finite and of the stream's size (None at its start)."""
    height, width = rgb.shape[-2:]
    if size not in (None, (height, width)):
        raise ValueError(
            f"the stream's pictures are {size}, and {(height, width)} came; expected one size. Call reset() before a "
            "video of another size."
        )
    if not torch.isfinite(rgb).all():
        raise ValueError("got pictures with values that are not finite; expected display sRGB in [0, 1].")


def _inverted(estimate: Estimate, height: int, width: int) -> Inverted:
    def cut(values: Tensor) -> Tensor:
        return values[0, ..., :height, :width]

    sky = cut(estimate.sky) > 0  # [T, 1, H, W]
    gbuffer = GBuffer(
        albedo=srgb_to_linear(cut(estimate.albedo)).masked_fill(sky, 0),
        normal=cut(estimate.normal).masked_fill(sky, 0),
        depth=cut(estimate.depth).exp().masked_fill(sky, float("inf")),
        roughness=cut(estimate.roughness).masked_fill(sky, 0),
        metallic=cut(estimate.metallic).masked_fill(sky, 0),
    )
    error = cut(estimate.error)  # [T, 5, H, W]
    tolerance = torch.tensor([TOLERANCES[name] for name in CORE_CHANNELS], device=error.device)[:, None, None]
    surface = torch.sigmoid(cut(estimate.sky).abs())  # how sure it is of sky or no sky
    right = torch.expm1(-tolerance * torch.exp(-error)).neg_().masked_fill_(sky, 1).mul_(surface)
    confidence = {str(name): value for name, value in zip(CORE_CHANNELS, right.split(1, 1), strict=True)}
    return Inverted(gbuffer=gbuffer, confidence=confidence)
