"""Embeddings of single numbers and vectors."""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


def sinusoid(values: Float[Tensor, "B"], channels: int) -> Float[Tensor, "B C"]:
    """Cosines, then sines, of values times 10000^(-i / (C / 2)); float32."""
    half = channels // 2
    exponents = torch.arange(half, device=values.device, dtype=torch.float32) / half
    angles = values.float()[:, None] * torch.exp(-math.log(10000) * exponents)
    return torch.cat([angles.cos(), angles.sin()], -1)


class TwoLayers(nn.Module):
    """Linear, activation, linear; the input is brought to the weights' type."""

    def __init__(self, inputs: int, outputs: int, activation: Literal["silu", "gelu_tanh"]) -> None:
        super().__init__()
        self.activation = activation
        self.linear_1 = nn.Linear(inputs, outputs)
        self.linear_2 = nn.Linear(outputs, outputs)

    def forward(self, x: Float[Tensor, "*N C"]) -> Float[Tensor, "*N D"]:
        x = self.linear_1(x.to(self.linear_1.weight.dtype))
        x = F.silu(x) if self.activation == "silu" else F.gelu(x, approximate="tanh")
        return self.linear_2(x)
