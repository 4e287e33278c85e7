"""A network and one stream of video: pictures in, G-buffers out, of any size and length."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

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


class Inverse(nn.Module):
    """The inverse renderer, streaming: memory and time a picture do not grow."""

    fingerprint = ""
    """Which weights it has; empty if they come from no file."""

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

    def reset(self, *, focal: float | None = None) -> None:
        """Starts a stream.

        Args:
            focal: horizontal focal length over the picture's width (0.5 / tan(half the horizontal field of view));
                None = unknown.

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
    confidence = dict(zip(CORE_CHANNELS, right.split(1, 1), strict=True))
    return Inverted(gbuffer=gbuffer, confidence=confidence)
