"""Convolutions over the frames of a clip."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn


class PatchConv(nn.Conv2d):
    """A linear layer over square patches: a convolution whose stride is its kernel.

    On a GPU it runs as a matrix product over gathered patches, which trains faster; on a CPU as a strided convolution,
    which spares the copy.
    """

    def __init__(self, channels: int, width: int, factor: int) -> None:
        super().__init__(channels, width, factor, stride=factor)

    def forward(self, input: Float[Tensor, "N C H W"]) -> Float[Tensor, "N D h w"]:
        return patch_conv(input, self.weight, self.bias)


def patch_conv(
    frames: Float[Tensor, "N C H W"], weight: Float[Tensor, "D C k k"], bias: Float[Tensor, "D"] | None
) -> Float[Tensor, "N D h w"]:
    """What `PatchConv` does, with weights given."""
    if frames.device.type == "cpu":
        return F.conv2d(frames, weight, bias, stride=weight.shape[-1])
    return patch_product(frames, weight, bias)


def patch_product(
    frames: Float[Tensor, "N C H W"], weight: Float[Tensor, "D C k k"], bias: Float[Tensor, "D"] | None
) -> Float[Tensor, "N D h w"]:
    """`patch_conv` as a matrix product; the result is in channels-last order."""
    factor = weight.shape[-1]
    patches = rearrange(frames, "n c (h y) (w x) -> n h w (c y x)", y=factor, x=factor)
    return rearrange(F.linear(patches, weight.flatten(1), bias), "n h w d -> n d h w")


def channels_last(x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N C H W"]:
    """The same values in the memory order that convolutions run fastest in."""
    return x.contiguous(memory_format=torch.channels_last)


def map_frames(function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """Applies a function over the first axis: all at once on a GPU, one frame at a time on a CPU.

    One frame's features fit a CPU's caches and a batch's do not; the result is the same.
    """
    if inputs[0].device.type != "cpu" or torch.is_grad_enabled():
        return function(*inputs)
    frames: Sequence[Tensor] = [function(*frame) for frame in zip(*(value.split(1) for value in inputs))]
    return torch.cat(list(frames))


class ResidualBlock(nn.Module):
    """x + conv(silu(conv(silu(x)))), 3x3."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Float[Tensor, "N C h w"]) -> Float[Tensor, "N C h w"]:
        return x + self.conv2(F.silu(self.conv1(F.silu(x))))
