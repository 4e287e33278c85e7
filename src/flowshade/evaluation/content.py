"""Content preservation: do the picture's edges lie where the buffers have theirs?"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from flowshade.color import LUMINANCE, linear_to_srgb
from flowshade.inverse.stream import Inverse
from flowshade.types import Frames, GBuffer

STEPS = {"albedo": 0.10, "normal": 0.35, "depth": 0.08}
"""Smallest step that counts as an edge: of sRGB albedo, of normals (length of the difference), share of depth."""
RUN = 4
"""Pictures that an inverse is given together; any number gives the same."""
REACH = 2
"""Pixels by which an edge may lie beside its place."""


def luma(rgb: Float[Tensor, "T 3 H W"]) -> Float[Tensor, "T 1 H W"]:
    """Rec. 709 luma of display sRGB, or luminance of linear light."""
    return (rgb * rgb.new_tensor(LUMINANCE)[:, None, None]).sum(1, keepdim=True)


def gradient(x: Float[Tensor, "T C H W"]) -> Float[Tensor, "T 1 H W"]:
    """Length of the central difference over both axes and all channels, per pixel; borders repeat."""
    padded = F.pad(x, (1, 1, 1, 1), mode="replicate")
    across = (padded[..., 1:-1, 2:] - padded[..., 1:-1, :-2]) / 2
    down = (padded[..., 2:, 1:-1] - padded[..., :-2, 1:-1]) / 2
    return (across.square() + down.square()).sum(1, keepdim=True).sqrt()


def buffer_edges(clip: GBuffer) -> Bool[Tensor, "T 1 H W"]:
    """Pixels where albedo, normal or depth of a clip steps; the sky's outline is one."""
    first = next(iter(clip.channels().values()))
    edges = torch.zeros_like(first[:, :1], dtype=torch.bool)
    if clip.albedo is not None:
        edges |= gradient(linear_to_srgb(clip.albedo)) > STEPS["albedo"]
    if clip.normal is not None:
        edges |= gradient(clip.normal) > STEPS["normal"]
    if clip.depth is not None:
        edges |= gradient(clip.depth.clamp(1e-3, 1e4).log()) > STEPS["depth"]
    return edges


def edge_precision(picture: Float[Tensor, "T 3 H W"], edges: Bool[Tensor, "T 1 H W"]) -> Float[Tensor, " T"]:
    """Of a picture's N strongest gradients, the share that lies within two pixels of a buffer's edge; N is the number
    of edge pixels in the buffers. [0, 1], one number a frame; nan for a frame without edges.

    R-precision (Manning et al. 2008, ch. 8.4) with the tolerance of boundary benchmarks (Martin et al. 2004). Counting
    the strongest, however strong, makes fog and night comparable with noon. Shadows are edges that buffers do not have:
    compare with the reference's own.
    """
    near = dilate(edges).flatten(1)
    strength = gradient(luma(picture)).flatten(1)
    return torch.stack([_precision(s, n, int(e.sum())) for s, n, e in zip(strength, near, edges)])


def _precision(strength: Tensor, near: Tensor, count: int) -> Tensor:
    if not count:
        return strength.new_tensor(float("nan"))
    return near[strength.topk(count).indices].float().mean()


def edge_auc(picture: Float[Tensor, "T 3 H W"], edges: Bool[Tensor, "T 1 H W"]) -> Float[Tensor, " T"]:
    """Probability that the picture's gradient at an edge of the buffers exceeds that at a pixel away from all edges.

    Area under the ROC curve by ranks (Fawcett 2006, eq. for Mann-Whitney): 1 = every edge shows, 0.5 = none does. The
    gradient is the strongest within one pixel. Pixels within two pixels of an edge count on neither side. nan for a
    frame with only one kind of pixel.
    """
    strength = F.max_pool2d(gradient(luma(picture)), 3, 1, 1).flatten(1)
    away = ~dilate(edges).flatten(1)
    return torch.stack([_auc(s, e, a) for s, e, a in zip(strength, edges.flatten(1), away)])


def _auc(strength: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    first, second = strength[positive], strength[negative]
    if not first.numel() or not second.numel():
        return strength.new_tensor(float("nan"))
    ordered = second.sort().values
    below = torch.searchsorted(ordered, first)  # negatives that are weaker
    upto = torch.searchsorted(ordered, first, right=True)  # and those as strong, which count half
    return ((below + upto).double().mean() / (2 * ordered.numel())).float()


@torch.no_grad()
def reestimated_normal_error(picture: Float[Tensor, "T 3 H W"], clip: GBuffer, inverse: Inverse) -> float:
    """Mean angle in degrees between a clip's normals and those that an inverse sees in pictures made from it.

    Over surfaces of all frames, streamed. What is kept of the content can be read off the picture again (the cycle of
    Liang et al. 2025, arXiv 2501.18590). The inverse errs itself, and more in some looks: compare with the same number
    of reference pictures. nan where the clip has no normals or shows no surface.
    """
    if clip.normal is None:
        return float("nan")
    runs = inverse.invert(Frames(rgb=run) for run in picture.split(RUN))
    estimated = torch.cat([part.gbuffer.channels()["normal"] for part in runs]).to(clip.normal.device)
    surface = clip.normal.norm(dim=1) > 0.5  # [T, H, W]
    cosine = (F.normalize(estimated, dim=1) * F.normalize(clip.normal, dim=1)).sum(1)[surface]
    return torch.rad2deg(torch.acos(cosine.clamp(-1, 1))).mean().item() if cosine.numel() else float("nan")


def dilate(mask: Bool[Tensor, "T 1 H W"], reach: int = REACH) -> Bool[Tensor, "T 1 H W"]:
    """Pixels within `reach` pixels of the mask, in the larger of both directions."""
    return F.max_pool2d(mask.float(), 2 * reach + 1, 1, reach) > 0
