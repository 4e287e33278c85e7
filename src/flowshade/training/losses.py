"""Losses on pictures."""

from __future__ import annotations

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from flowshade.evaluation.perceptual import Trunk, lpips_of_features
from flowshade.types import FRAMES_PER_LATENT

PSNR_WEIGHT = 0.02
"""Share of the logarithm of the squared error: at an error of 0.003, 25 dB, about as strong as the absolute one."""

LARGEST_ERROR = 0.25
"""Squared error at which the logarithm is zero."""


def picture_loss(prediction: Float[Tensor, "B T 3 H W"], reference: Float[Tensor, "B T 3 H W"]) -> Float[Tensor, ""]:
    """Mean absolute error of values and of their differences along rows and columns, and the mean of the clips' PSNR.

    The differences keep edges of shadows sharp. PSNR (its logarithm, Chen et al. 2021, arXiv 2105.06086) weighs a
    clip by how small its error already is, so that calm looks such as fog are not drowned out by contrasty ones.
    """
    error = prediction.float() - reference.float()
    edges = error.diff(dim=-1).abs().mean() + error.diff(dim=-2).abs().mean()
    squared = error.square().flatten(1).mean(1)  # [B]
    return error.abs().mean() + edges + PSNR_WEIGHT * torch.log(squared / LARGEST_ERROR + 1e-4).mean()


def perceptual_loss(
    prediction: Float[Tensor, "B T 3 H W"], reference: Float[Tensor, "B T 3 H W"], trunk: Trunk
) -> Float[Tensor, ""]:
    """LPIPS (Zhang et al. 2018, arXiv 1801.03924, eq. 1) of one frame of each clip, drawn anew at each call.

    Differentiable in the prediction. One frame, since a trunk costs more than a renderer: VGG16 takes 61 GFLOP for a
    picture of 240x416, twice that with the gradient.
    """
    frame = torch.randint(prediction.shape[1], (prediction.shape[0], 1, 1, 1, 1), device=prediction.device)
    index = frame.expand(-1, 1, *prediction.shape[2:])
    chosen, true = (rearrange(x.gather(1, index), "b 1 c h w -> b c h w") for x in (prediction, reference))
    return lpips_of_features(trunk.layers(chosen), trunk.features(true), trunk).mean()


def change_loss(
    prediction: Float[Tensor, "B T 3 H W"],
    reference: Float[Tensor, "B T 3 H W"],
    before: tuple[Float[Tensor, "B 1 3 H W"], Float[Tensor, "B 1 3 H W"]] | None = None,
    *,
    border: float = 1.0,
) -> Float[Tensor, ""]:
    """Mean absolute error of the change from frame to frame: what flicker and seams between windows are made of.

    Args:
        prediction: frames of a window, display sRGB.
        reference: the true frames.
        before: the prediction and the reference of the frame before the window, so that the step into the window
            counts too; None at the start of a stream.
        border: weight of steps into a latent frame, windows' first ones included, beside 1 for those inside.
    """
    error = prediction.float() - reference.float()
    if before is not None:
        error = torch.cat([before[0].float() - before[1].float(), error], 1)
    changes = error.diff(dim=1).abs().mean((0, 2, 3, 4))  # [steps]
    entered = torch.arange(prediction.shape[1] - len(changes), prediction.shape[1], device=changes.device)
    weights = torch.where(entered % FRAMES_PER_LATENT == 0, border, 1.0)
    return (changes * weights).sum() / weights.sum()
