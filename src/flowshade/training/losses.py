"""Losses on pictures."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def picture_loss(prediction: Float[Tensor, "B T 3 H W"], reference: Float[Tensor, "B T 3 H W"]) -> Float[Tensor, ""]:
    """Mean absolute and squared error of values, and absolute error of their differences along rows and columns.

    The squared error pulls towards the mean (PSNR), the differences keep edges of shadows sharp.
    """
    error = prediction.float() - reference.float()
    edges = error.diff(dim=-1).abs().mean() + error.diff(dim=-2).abs().mean()
    return error.abs().mean() + 4 * error.square().mean() + edges


def change_loss(
    prediction: Float[Tensor, "B T 3 H W"],
    reference: Float[Tensor, "B T 3 H W"],
    before: tuple[Float[Tensor, "B 1 3 H W"], Float[Tensor, "B 1 3 H W"]] | None = None,
) -> Float[Tensor, ""]:
    """Mean absolute error of the change from frame to frame: what flicker and seams between windows are made of.

    Args:
        prediction: frames of a window, display sRGB.
        reference: the true frames.
        before: the prediction and the reference of the frame before the window, so that the step into the window
            counts too; None at the start of a stream.
    """
    error = prediction.float() - reference.float()
    if before is not None:
        error = torch.cat([before[0].float() - before[1].float(), error], 1)
    return error.diff(dim=1).abs().mean()
