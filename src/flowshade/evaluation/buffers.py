"""How far estimated buffers are from known ones.

Metrics follow the literature on intrinsic images and monocular geometry: absolute relative error and delta of depth
after one scale a clip (Eigen et al. 2014, arXiv 1406.2283), angles between normals (Fouhey et al. 2013), PSNR of albedo
as it is and after one least-squares factor a frame ("si", Grosse et al. 2009), LPIPS of albedo where its trunk is
installed, plain errors of roughness and metallic, the warping error between frames (Lai et al. 2018, arXiv 1808.00449)
with the reference's exact motion vectors, and how well runs agree that began at different frames.
Sky, as the reference has it, counts nowhere but in `sky_iou`; surfaces taken for sky are counted in `missed`.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import normalize

from flowshade.color import linear_to_srgb
from flowshade.evaluation.perceptual import Trunk, lpips
from flowshade.nn.warp import inside, warp
from flowshade.types import CORE_CHANNELS, GBuffer

Scores = dict[str, float]

DEPTHS = (1e-3, 1e6)
"""Metres that depth is kept within; sky counts as the farthest."""


def depth_errors(
    prediction: Float[Tensor, "T 1 H W"], reference: Float[Tensor, "T 1 H W"], surface: Bool[Tensor, "T 1 H W"]
) -> Scores:
    """AbsRel and the share within a factor of 1.25, after the factor that makes the median ratio of the clip 1."""
    ratio = prediction[surface].clamp(*DEPTHS) / reference[surface]
    ratio = ratio / ratio.median()
    within = torch.maximum(ratio, 1 / ratio) < 1.25
    return {"depth_absrel": (ratio - 1).abs().mean().item(), "depth_delta": within.float().mean().item()}


def _found_depth_errors(prediction: Tensor, reference: Tensor, surface: Tensor) -> Scores:
    """The share of surfaces taken for sky, and AbsRel over the others: `depth_errors` puts such pixels far away."""
    found = surface & torch.isfinite(prediction)
    missed = 1 - found.sum().item() / surface.sum().item()
    absrel = depth_errors(prediction, reference, found)["depth_absrel"] if found.any() else float("nan")
    return {"missed": missed, "depth_found_absrel": absrel}


def normal_errors(
    prediction: Float[Tensor, "T 3 H W"], reference: Float[Tensor, "T 3 H W"], surface: Bool[Tensor, "T 1 H W"]
) -> Scores:
    """Mean and median angle in degrees, and the shares below 11.25, 22.5 and 30 degrees."""
    cosine = (normalize(prediction, dim=1) * reference).sum(1, keepdim=True)[surface]
    angle = torch.rad2deg(torch.acos(cosine.clamp(-1, 1)))
    shares = {f"normal_{limit}": (angle < limit).float().mean().item() for limit in (11.25, 22.5, 30.0)}
    return {"normal_mean": angle.mean().item(), "normal_median": angle.median().item()} | shares


def albedo_errors(
    prediction: Float[Tensor, "T 3 H W"], reference: Float[Tensor, "T 3 H W"], surface: Bool[Tensor, "T 1 H W"]
) -> Scores:
    """PSNR and si-PSNR in dB over surfaces, mean of frames; arguments are linear, both spaces are reported."""
    scores: Scores = {}
    for space, curve in (("srgb", linear_to_srgb), ("linear", lambda linear: linear)):
        x, y = curve(prediction), curve(reference)
        plain, fitted = [], []
        for frame in range(x.shape[0]):
            shown = surface[frame].expand_as(x[frame])
            if not shown.any():
                continue
            a, b = x[frame][shown], y[frame][shown]
            factor = (a * b).sum() / a.square().sum().clamp(min=1e-8)
            plain.append(_psnr(a, b))
            fitted.append(_psnr(factor * a, b))
        scores |= {f"albedo_psnr_{space}": mean_of_numbers(plain), f"albedo_si_psnr_{space}": mean_of_numbers(fitted)}
    return scores


SMALLEST = 32
"""Pixels a side below which LPIPS does not exist."""


def albedo_distances(
    prediction: Float[Tensor, "T 3 H W"],
    reference: Float[Tensor, "T 3 H W"],
    surface: Bool[Tensor, "T 1 H W"],
    trunk: Trunk,
) -> Scores:
    """LPIPS with the sky black in both, mean of frames; arguments are linear, both spaces are reported.

    LPIPS was learned on display values: the one of sRGB is what others report. Pictures below `SMALLEST` pixels a side,
    which the trunk cannot pool, have none.
    """
    if min(prediction.shape[-2:]) < SMALLEST:
        return {}
    x, y = prediction * surface, reference * surface
    spaces = {"srgb": (linear_to_srgb(x), linear_to_srgb(y)), "linear": (x, y)}
    return {f"albedo_lpips_{space}": lpips(*pair, trunk).mean().item() for space, pair in spaces.items()}


def chunk_agreement(first: GBuffer, second: GBuffer, surface: Bool[Tensor, "T 1 H W"]) -> Scores:
    """Mean absolute difference of two estimates of the same frames, made by chunks (or streams) that began elsewhere.

    Of albedo in sRGB, of the angle between normals in degrees, of depth's logarithm (a scale that differs counts), of
    roughness and metallic as they are; over surfaces that both found. 0 = chunks cannot be told.
    """
    one, two = core_channels(first), core_channels(second)
    both = surface & torch.isfinite(one["depth"]) & torch.isfinite(two["depth"])
    if not both.any():
        return {f"chunk_{name}": float("nan") for name in CORE_CHANNELS}
    cosine = (normalize(one["normal"], dim=1) * normalize(two["normal"], dim=1)).sum(1, keepdim=True)
    differences = {
        "albedo": (linear_to_srgb(one["albedo"]) - linear_to_srgb(two["albedo"])).abs().mean(1, keepdim=True),
        "normal": torch.rad2deg(torch.acos(cosine.clamp(-1, 1))),
        "depth": (_log_depth(one["depth"]) - _log_depth(two["depth"])).abs(),
        "roughness": (one["roughness"] - two["roughness"]).abs(),
        "metallic": (one["metallic"] - two["metallic"]).abs(),
    }
    return {f"chunk_{name}": difference[both].mean().item() for name, difference in differences.items()}


def material_errors(
    prediction: Float[Tensor, "T 1 H W"],
    reference: Float[Tensor, "T 1 H W"],
    surface: Bool[Tensor, "T 1 H W"],
    name: str,
) -> Scores:
    """Root mean square and mean absolute error."""
    error = (prediction - reference)[surface]
    return {f"{name}_rmse": error.square().mean().sqrt().item(), f"{name}_mae": error.abs().mean().item()}


def score_buffers(prediction: GBuffer, reference: GBuffer, trunk: Trunk | None = None) -> Scores:
    """Every metric of a clip; LPIPS if a trunk is given.

    Raises:
        ValueError: clips of other frames or size, a core channel that is missing, or a clip that shows only sky.
    """
    if (prediction.frames, prediction.size) != (reference.frames, reference.size):
        raise ValueError(
            f"got {prediction.frames} frames of {prediction.size} for {reference.frames} of {reference.size}; expected "
            "the same frames and size. Cut or resize one of them."
        )
    predicted, true = core_channels(prediction), core_channels(reference)
    surface = torch.isfinite(true["depth"])
    if not surface.any():
        raise ValueError("the reference shows nothing but sky; give a clip with surfaces.")
    found = torch.isfinite(predicted["depth"])
    sky = (~found & ~surface).sum() / (~found | ~surface).sum().clamp(min=1)
    depth = torch.where(found, predicted["depth"], DEPTHS[1])
    warped = {} if reference.motion is None else warping_errors(prediction, reference)
    seen = {} if trunk is None else albedo_distances(predicted["albedo"], true["albedo"], surface, trunk)
    return {
        **warped,
        **_found_depth_errors(predicted["depth"], true["depth"], surface),
        **depth_errors(depth, true["depth"], surface),
        **normal_errors(predicted["normal"], true["normal"], surface),
        **albedo_errors(predicted["albedo"], true["albedo"], surface),
        **seen,
        **material_errors(predicted["roughness"], true["roughness"], surface, "roughness"),
        **material_errors(predicted["metallic"], true["metallic"], surface, "metallic"),
        "sky_iou": sky.item() if (~surface).any() else float("nan"),
        "flicker": flicker(predicted["normal"], true["normal"], surface),
    }


def flicker(
    prediction: Float[Tensor, "T 3 H W"], reference: Float[Tensor, "T 3 H W"], surface: Bool[Tensor, "T 1 H W"]
) -> float:
    """Mean change from frame to frame over that of the reference, where both frames show a surface; 1 is as calm."""
    both = (surface[1:] & surface[:-1]).expand(-1, 3, -1, -1)
    if not both.any():
        return float("nan")
    changes = [x.diff(dim=0)[both].abs().mean() for x in (prediction, reference)]
    return (changes[0] / changes[1].clamp(min=1e-6)).item()


SAME_DEPTH = 0.05
"""Relative change of depth up to which a pixel and where it was count as the same surface."""


def warping_errors(prediction: GBuffer, reference: GBuffer) -> Scores:
    """How much buffers change along the motion of what they show, beside how much the true buffers do.

    Each frame is compared with the one before, fetched bilinearly from where the reference's motion vectors say each
    pixel was: mean absolute difference (of depth's logarithm, so that its scale cancels). Pixels count whose source
    lies inside the picture, on the same instance (where ids are known) and at the same depth within `SAME_DEPTH`, with
    no silhouette between the four source pixels: the rest was hidden, or is sky.

    Returns:
        `warp_{channel}` of the prediction, `warp_true_{channel}` of the reference, and `warp_ratio`, the largest of
        their quotients over the core channels (a mean would let a channel that never changes hide the others); 1 is as
        calm as the truth. nan without a pixel that counts.

    Raises:
        ValueError: a reference without motion.
    """
    if reference.motion is None:
        raise ValueError("the reference has no motion; expected motion vectors. Record or export them.")
    seen = _seen_before(reference)  # [T - 1, 1, H, W]
    scores: Scores = {}
    for prefix, buffers in (("warp", prediction), ("warp_true", reference)):
        for name, value in core_channels(buffers).items():
            value = _log_depth(value) if name == "depth" else value
            difference = (value[1:] - warp(value[:-1], reference.motion[1:])).abs().mean(1, keepdim=True)
            scores[f"{prefix}_{name}"] = difference[seen].mean().item()
    quotients = [scores[f"warp_{name}"] / max(scores[f"warp_true_{name}"], LEAST_WARP) for name in CORE_CHANNELS]
    return scores | {"warp_ratio": float(np.max(quotients))}


LEAST_WARP = 1e-4
"""The true buffers' error is taken to be at least this, about a thirtieth of an 8-bit step."""


def _seen_before(reference: GBuffer) -> Bool[Tensor, "T-1 1 H W"]:
    """Pixels of all frames but the first that show what the frame before showed too."""
    motion, depth = reference.motion, reference.depth
    assert motion is not None and depth is not None
    motion = motion[1:]
    surface = torch.isfinite(depth)
    whole = warp(surface[:-1].float(), motion) > 0.999
    logarithm = _log_depth(depth)
    near = (warp(logarithm[:-1], motion) - logarithm[1:]).abs() < SAME_DEPTH
    seen = inside(motion) & surface[1:] & whole & near
    if reference.instance is not None:
        # An id that is a mixture of two differs from both.
        ids = reference.instance.double()
        seen &= (warp(ids[:-1], motion.double()) - ids[1:]).abs() < 1e-3
    return seen


def core_channels(gbuffer: GBuffer) -> dict[str, Tensor]:
    """The core channels by name. Raises ValueError for buffers that lack one."""
    channels = gbuffer.channels()
    missing = [name for name in CORE_CHANNELS if name not in channels]
    if missing:
        raise ValueError(f"got buffers without {', '.join(missing)}; expected {', '.join(CORE_CHANNELS)}.")
    return {name: channels[name] for name in CORE_CHANNELS}


def _log_depth(depth: Tensor) -> Tensor:
    return depth.clamp(*DEPTHS).log()


def _psnr(a: Tensor, b: Tensor) -> float:
    return (-10 * torch.log10((a - b).square().mean().clamp(min=1e-10))).item()


def mean_of_numbers(values: list[float]) -> float:
    """Mean of the values that are finite; nan if there is none."""
    numbers = [value for value in values if np.isfinite(value)]
    return float(np.mean(numbers)) if numbers else float("nan")
