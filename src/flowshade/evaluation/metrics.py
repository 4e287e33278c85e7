"""Full-reference picture metrics.

Pictures are display-referred sRGB in [0, 1], `[T, 3, H, W]`. Both metrics are computed frame by frame on values
rounded to 8 bits, as they would be stored, and returned as one number a frame.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def quantise(rgb: Tensor) -> Tensor:
    """Rounds to the 256 levels of an 8-bit picture, still in [0, 1]."""
    return (rgb.clamp(0, 1) * 255).round() / 255


def psnr(
    prediction: Float[Tensor, "T 3 H W"],
    reference: Float[Tensor, "T 3 H W"],
    where: Bool[Tensor, "T 1 H W"] | None = None,
) -> Float[Tensor, " T"]:
    """Peak signal-to-noise ratio in dB over all channels of a frame's pixels; inf where identical.

    With `where` only those pixels count; nan for a frame that has none.
    """
    check_pair(prediction, reference)
    error = (quantise(prediction) - quantise(reference)).square().mean(1, keepdim=True)  # [T, 1, H, W]
    counted = torch.ones_like(error) if where is None else where.to(error)
    return -10 * torch.log10((error * counted).flatten(1).sum(1) / counted.flatten(1).sum(1))


def ssim(prediction: Float[Tensor, "T 3 H W"], reference: Float[Tensor, "T 3 H W"]) -> Float[Tensor, " T"]:
    """Structural similarity (Wang et al. 2004): 11x11 Gaussian window, sigma 1.5, K = (0.01, 0.03), mean over RGB.

    Only windows that lie wholly inside the picture count, as in the authors' implementation, with population
    variances under the Gaussian weights. Raises ValueError for pictures smaller than the window.
    """
    check_pair(prediction, reference)
    if min(prediction.shape[-2:]) < _WINDOW:
        raise ValueError(f"ssim got pictures of {tuple(prediction.shape[-2:])}; expected at least {_WINDOW} pixels.")
    x, y = quantise(prediction), quantise(reference)
    mean_x, mean_y = _blur(x), _blur(y)
    variance_x = _blur(x * x) - mean_x**2
    variance_y = _blur(y * y) - mean_y**2
    covariance = _blur(x * y) - mean_x * mean_y
    c1, c2 = 0.01**2, 0.03**2
    structure = (2 * covariance + c2) / (variance_x + variance_y + c2)
    luminance = (2 * mean_x * mean_y + c1) / (mean_x**2 + mean_y**2 + c1)
    return (luminance * structure).flatten(1).mean(1)


_WINDOW = 11


def _blur(x: Tensor) -> Tensor:
    offsets = torch.arange(_WINDOW, dtype=x.dtype, device=x.device) - _WINDOW // 2
    weights = torch.exp(-(offsets**2) / (2 * 1.5**2))
    weights = weights / weights.sum()
    channels = x.shape[1]
    rows = weights.view(1, 1, _WINDOW, 1).expand(channels, 1, -1, -1)
    columns = weights.view(1, 1, 1, _WINDOW).expand(channels, 1, -1, -1)
    x = torch.nn.functional.conv2d(x, rows, groups=channels)
    return torch.nn.functional.conv2d(x, columns, groups=channels)


def check_pair(prediction: Tensor, reference: Tensor) -> None:
    """Raises ValueError for anything but two [T, 3, H, W] of the same size."""
    if prediction.shape != reference.shape or prediction.ndim != 4:
        raise ValueError(
            f"got pictures {tuple(prediction.shape)} and {tuple(reference.shape)}; expected two [T, 3, H, W] of the "
            "same size. Resize or cut one of them first."
        )
