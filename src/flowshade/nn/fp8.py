"""Linear layers in 8-bit floats: e4m3 values with one scale a row of the input and one a row of the weight.

Row-wise scales keep a token with large features from costing the others their precision. GPUs from NVIDIA's compute
capability 8.9 on multiply such numbers at twice the rate of bfloat16.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from flowshade.errors import FlowshadeError

FP8 = torch.float8_e4m3fn
FP8_MAX = torch.finfo(FP8).max
LEAST_SCALE = 1e-12
"""Keeps a row of zeros from dividing by zero."""
LEAST_CAPABILITY = (8, 9)
MULTIPLE = 16
"""Inputs' and outputs' widths must be multiples of this (cuBLAS)."""


@dataclass(frozen=True)
class Rows8:
    """Rows of numbers, each in 8 bits times its row's scale."""

    values: Float[Tensor, "*N K"]
    """float8_e4m3fn."""
    scale: Float[Tensor, "*N 1"]
    """float32."""

    def dequantised(self, dtype: torch.dtype = torch.float32) -> Float[Tensor, "*N K"]:
        return (self.values.float() * self.scale).to(dtype)

    def last_rows(self, first: int) -> Rows8:
        """The rows of [B, N, K] from `first` on."""
        return Rows8(self.values[:, first:], self.scale[:, first:])


def quantise_rows(x: Float[Tensor, "*N K"]) -> Rows8:
    """Scales each row so that its largest number is e4m3's, and rounds."""
    wide = x.float()
    scale = wide.abs().amax(-1, keepdim=True).clamp(min=LEAST_SCALE) / FP8_MAX
    return Rows8((wide / scale).clamp(-FP8_MAX, FP8_MAX).to(FP8), scale)


class Linear8:
    """A linear layer over `Rows8`, its weight quantised once.

    Raises:
        FlowshadeError: a width that is no multiple of 16.
    """

    def __init__(self, weight: Float[Tensor, "D K"], bias: Float[Tensor, "D"] | None, dtype: torch.dtype) -> None:
        if any(size % MULTIPLE for size in weight.shape):
            raise FlowshadeError(
                f"fp8 got a linear layer of {tuple(weight.shape)}; expected widths in multiples of {MULTIPLE}. "
                "Render without fp8."
            )
        quantised = quantise_rows(weight)
        self.weight = quantised.values  # [D, K]; its transpose is the column-major operand that is asked for
        self.scale = quantised.scale.flatten()[None].contiguous()  # [1, D]
        self.bias = None if bias is None else bias.to(dtype)
        self.dtype = dtype

    def __call__(self, x: Rows8) -> Float[Tensor, "*N D"]:
        values, scale = x.values.flatten(0, -2), x.scale.flatten(0, -2)
        if values.device.type == "cuda":
            product = torch._scaled_mm(  # pyright: ignore[reportPrivateImportUsage]
                values.contiguous(),
                self.weight.t(),
                scale_a=scale.contiguous(),
                scale_b=self.scale,
                bias=self.bias,
                out_dtype=self.dtype,
                use_fast_accum=True,
            )
        else:
            product = self.plain(values, scale)
        return product.unflatten(0, x.values.shape[:-1])

    def plain(self, values: Float[Tensor, "M K"], scale: Float[Tensor, "M 1"]) -> Float[Tensor, "M D"]:
        """The same in float32."""
        product = (values.float() @ self.weight.float().t()) * scale * self.scale
        return (product if self.bias is None else product + self.bias.float()).to(self.dtype)


def check_fp8(device: torch.device, dtype: torch.dtype) -> None:
    """Raises FlowshadeError where linear layers cannot run in 8-bit floats."""
    if device.type != "cuda":
        raise FlowshadeError(f"fp8 needs an NVIDIA GPU, and the renderer is on {device}. Render without fp8.")
    capability = torch.cuda.get_device_capability(device)
    if capability < LEAST_CAPABILITY:
        raise FlowshadeError(
            f"fp8 needs compute capability 8.9 or later; {torch.cuda.get_device_name(device)} has "
            f"{capability[0]}.{capability[1]}. Render without fp8."
        )
    if dtype != torch.bfloat16:
        raise FlowshadeError(f"fp8 replaces bfloat16 products, and the renderer runs in {dtype}. Load it in bfloat16.")
