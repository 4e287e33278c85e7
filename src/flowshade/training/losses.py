"""Losses on pictures."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor


def picture_loss(prediction: Float[Tensor, "B T 3 H W"], reference: Float[Tensor, "B T 3 H W"]) -> Float[Tensor, ""]:
    """Mean absolute and squared error of values, and absolute error of their differences along rows and columns.

    The squared error pulls towards the mean (PSNR), the differences keep edges of shadows sharp.
    """
    error = prediction.float() - reference.float()
    edges = error.diff(dim=-1).abs().mean() + error.diff(dim=-2).abs().mean()
    return error.abs().mean() + 4 * error.square().mean() + edges
