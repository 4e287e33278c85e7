"""The sRGB transfer curve (IEC 61966-2-1) and 8-bit pictures.

Warp's kernels hold their own copy of the curve, in `gbuffer/light_kernels.py`.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

LUMINANCE = (0.2126, 0.7152, 0.0722)
"""Shares of linear Rec.709 red, green and blue in luminance (ITU-R BT.709)."""


def linear_to_srgb(linear: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Linear Rec.709 to display sRGB, both [0, 1]; values outside are clamped."""
    linear = linear.clamp(0, 1)
    return torch.where(linear <= 0.0031308, 12.92 * linear, 1.055 * _power(linear, 1 / 2.4) - 0.055)


def srgb_to_linear(srgb: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Display sRGB to linear Rec.709, both [0, 1]; values outside are clamped."""
    srgb = srgb.clamp(0, 1)
    return torch.where(srgb <= 0.04045, srgb / 12.92, _power((srgb + 0.055) / 1.055, 2.4))


def to_bytes(display: Float[Tensor, "*shape"]) -> UInt8[Tensor, "*shape"]:
    """Display values to bytes: clamped to [0, 1], rounded to nearest; NaN becomes 0."""
    return display.float().nan_to_num(0.0).clamp(0, 1).mul(255).round().to(torch.uint8)


def from_bytes(values: UInt8[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Bytes to display values in [0, 1], float32: the inverse of `to_bytes`."""
    return values.float() / 255


def _power(base: Tensor, exponent: float) -> Tensor:
    """base ** exponent for base >= 0, twice as fast on a CPU as `torch.pow`."""
    return (base.clamp(min=1e-8).log() * exponent).exp()
