"""Consistency of inverse results with their own footage, without a reference and without a judge.

These are measures of our own and no scores of a vision-language model. Each can be won by a result that shows nothing
(a constant map is flat and stable), so they are read together, beside `detail`, and never added up.

- `warp_error_<channel>`: mean absolute difference, in display values, between a frame and the next one warped to it by
  the optical flow of the RGB (DIS; Kroeger et al. 2016, arXiv 1603.03590), where the flow is consistent there and back
  and the RGB is itself explained by it, after Lai et al. 2018 (arXiv 1808.00449). Normals and depth also change because
  the camera moves.
- `shading_leak_<channel>` of roughness and metallic: mean gradient at edges of shading (brightness changes,
  chromaticity does not) over that at edges of reflectance (chromaticity changes), in the manner of Retinex (Grosse et
  al. 2009). 0 is free of shading. Not of albedo: borders between greys look like shading, and the true albedo of a test
  clip scored worse than the picture itself.
- `detail_<channel>`: mean gradient at edges of reflectance, in display values; near 0 for a map that shows nothing.
- `light_follow`: the slope of the change of log albedo over the change of log RGB between matched pixels of frames: 0
  if albedo stays when light or exposure changes, 1 if it is a copy of the picture.
- `chromaticity_change`: mean change of albedo's chromaticity between matched pixels, over that of the RGB.
- `normal_depth_angle`: mean angle in degrees between the normals and those that the depth implies; needs a camera or a
  field of view, and leaves out the largest jumps of depth.
- `relight_residual`: what albedo times a light fitted to each frame (second-order spherical harmonics over the normal,
  Ramamoorthi and Hanrahan 2001; least squares) leaves unexplained of the linear RGB, as a share of its variance.
  A copy of the picture as albedo leaves nothing, so read it with `light_follow`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from flowshade.color import from_bytes, srgb_to_linear
from flowshade.evaluation.tables import markdown
from flowshade.evaluation.vlm.agreement import mean_with_interval
from flowshade.evaluation.vlm.clips import Contest, OpenClip, each_clip, resize_bytes
from flowshade.files import write_json, write_text
from flowshade.gbuffer.io.conventions import intrinsics_of_fov, rebuild_normals
from flowshade.gbuffer.io.resize import resize
from flowshade.gbuffer.view import channel_picture
from flowshade.progress import Progress
from flowshade.types import CORE_CHANNELS, GBuffer

Measures = dict[str, float]
MATERIALS = ("albedo", "roughness", "metallic")
"""Channels that change where materials do."""
SHADED = ("roughness", "metallic")
"""Of these the ones whose `shading_leak` tells something."""
DARKEST = 0.02
"""Linear values below this are noise; ratios of them say nothing."""
MATCH_PIXELS = 1.0
"""Flow there and back must return this near."""
MATCH_RGB = 0.08
"""Matched pixels differ at most so much in RGB, [0, 1], beyond the frame's common change of exposure."""
SHADING_EDGE = 0.15
"""Change of log luminance from pixel to pixel that counts as an edge."""
SAME_CHROMATICITY = 0.012
"""Change of chromaticity below which an edge is one of shading, and above three times which one of reflectance."""
LEAST_PIXELS = 30
"""A mean over fewer says nothing and is left out."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How clips are measured."""

    frames: int = 32
    """Of each clip from its first, at most."""
    longest_side: int = 640
    """Pixels; larger clips are made smaller."""
    fov: float | None = None
    """Horizontal field of view in degrees, for clips without cameras."""


class Means:
    """Running means of measures, weighted by how many pixels each was taken over."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._weights: dict[str, float] = {}

    def add(self, name: str, values: Tensor, where: Tensor) -> None:
        """Adds the mean of `values` where the mask holds; both of one shape."""
        chosen = values[where & values.isfinite()].double()
        if chosen.numel() >= LEAST_PIXELS:
            self._sums[name] = self._sums.get(name, 0.0) + float(chosen.sum())
            self._weights[name] = self._weights.get(name, 0.0) + chosen.numel()

    def add_sums(self, name: str, above: float, below: float) -> None:
        """Adds to a ratio of sums."""
        self._sums[name] = self._sums.get(name, 0.0) + above
        self._weights[name] = self._weights.get(name, 0.0) + below

    def values(self) -> Measures:
        return {name: total / self._weights[name] for name, total in self._sums.items() if self._weights[name] > 0}


class Matches:
    """Which pixel of the next frame shows the same surface point, by the optical flow of the RGB.

    Args:
        now: uint8 [H, W, 3].
        after: the next frame.
    """

    def __init__(self, now: UInt8[np.ndarray, "H W 3"], after: UInt8[np.ndarray, "H W 3"]) -> None:
        grey = [cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY) for picture in (now, after)]
        there, back = _flow(grey[0], grey[1]), _flow(grey[1], grey[0])
        height, width = grey[0].shape
        columns, rows = np.meshgrid(np.arange(width, dtype=np.float32), np.arange(height, dtype=np.float32))
        self._x, self._y = columns + there[..., 0], rows + there[..., 1]
        inside = (self._x >= 0) & (self._x <= width - 1) & (self._y >= 0) & (self._y <= height - 1)
        returned = np.linalg.norm(there + self._remapped(back), axis=-1) < MATCH_PIXELS
        warped = self._remapped(after.astype(np.float32) / 255)
        change = warped - now.astype(np.float32) / 255
        explained = np.abs(change - np.median(change[inside], axis=0) if inside.any() else change).max(-1) < MATCH_RGB
        self.where: Bool[Tensor, "H W"] = torch.from_numpy(inside & returned & explained)

    def warp(self, after: Float[Tensor, "C H W"]) -> Float[Tensor, "C H W"]:
        """The next frame's values where this frame has the same points (bilinear)."""
        warped = self._remapped(np.ascontiguousarray(after.permute(1, 2, 0).float().numpy()))
        return torch.from_numpy(np.atleast_3d(warped)).permute(2, 0, 1)

    def _remapped(self, values: np.ndarray) -> np.ndarray:
        return cv2.remap(values, self._x, self._y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)


def _flow(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM).calc(first, second, None)  # pyright: ignore


def measure_clip(opened: OpenClip, settings: Settings) -> dict[str, Measures]:
    """Every measure of a clip by method, and of the RGB itself under `rgb` where that means something."""
    count = min(opened.frames, settings.frames)
    size = _fitted(opened.size, settings.longest_side)
    rgb = resize_bytes(opened.rgb.read(0, count), size)
    matches = [Matches(now.numpy(), after.numpy()) for now, after in zip(rgb[:-1], rgb[1:])]
    found = {"rgb": measure_pictures(rgb)}
    for method, reader in opened.results.items():
        gbuffer = reader.read(0, count)
        gbuffer = gbuffer if gbuffer.size == size else resize(gbuffer, size)
        found[method] = measure_buffers(gbuffer, rgb, matches, fov=settings.fov)
    return found


def _fitted(size: tuple[int, int], longest: int) -> tuple[int, int]:
    scale = min(1.0, longest / max(size))
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def measure_pictures(rgb: UInt8[Tensor, "T H W 3"]) -> Measures:
    """The RGB taken as albedo, to compare `detail_albedo` with."""
    means = Means()
    display = from_bytes(rgb.permute(0, 3, 1, 2))
    for picture in display:
        _add_edges(means, "albedo", picture, Edges(picture))
    return _with_leaks(means.values())


def measure_buffers(
    gbuffer: GBuffer, rgb: UInt8[Tensor, "T H W 3"], matches: Sequence[Matches], *, fov: float | None = None
) -> Measures:
    """Every measure that the channels allow.

    Args:
        gbuffer: T frames of the footage's size.
        rgb: the footage.
        matches: T - 1, from each frame to the next.
        fov: horizontal field of view in degrees, if there is no camera.
    """
    means = Means()
    display = from_bytes(rgb.permute(0, 3, 1, 2))  # [T, 3, H, W]
    shown = {
        name: from_bytes(channel_picture(gbuffer, name).permute(0, 3, 1, 2))
        for name in CORE_CHANNELS
        if name in gbuffer.channels()
    }
    for name, pictures in shown.items():
        for index, match in enumerate(matches):
            difference = (match.warp(pictures[index + 1]) - pictures[index]).abs().mean(0)
            means.add(f"warp_error_{name}", difference, match.where)
    for index, picture in enumerate(display):
        edges = Edges(picture)
        for name in MATERIALS:
            if name in shown:
                _add_edges(means, name, shown[name][index], edges)
    if gbuffer.albedo is not None:
        _add_light(means, gbuffer.albedo, srgb_to_linear(display), matches)
        if gbuffer.normal is not None:
            _add_relight(means, gbuffer.albedo, gbuffer.normal, srgb_to_linear(display))
    _add_normal_angle(means, gbuffer, fov)
    return _with_leaks(means.values())


class Edges:
    """Where a picture changes by light alone, and where by the colour of surfaces.

    Args:
        picture: display sRGB [3, H, W] in [0, 1].
    """

    def __init__(self, picture: Float[Tensor, "3 H W"]) -> None:
        linear = srgb_to_linear(picture)
        luminance = linear.mean(0).clamp(min=DARKEST)
        bright = linear.mean(0) > DARKEST
        chromaticity = linear / linear.sum(0).clamp(min=3 * DARKEST)
        light = gradient(luminance.log()[None])
        colour = gradient(chromaticity)
        self.shading: Bool[Tensor, "H W"] = bright & (light > SHADING_EDGE) & (colour < SAME_CHROMATICITY)
        self.reflectance: Bool[Tensor, "H W"] = bright & (colour > 3 * SAME_CHROMATICITY)


def gradient(values: Float[Tensor, "C H W"]) -> Float[Tensor, "H W"]:
    """The largest absolute step to the right or lower neighbour over channels; 0 beyond the border."""
    right = torch.nn.functional.pad(values.diff(dim=2).abs(), (0, 1, 0, 0))
    down = torch.nn.functional.pad(values.diff(dim=1).abs(), (0, 0, 0, 1))
    return torch.maximum(right, down).amax(0)


def _add_edges(means: Means, name: str, shown: Tensor, edges: Edges) -> None:
    steps = gradient(shown)
    means.add(f"_shading_{name}", steps, edges.shading)
    means.add(f"detail_{name}", steps, edges.reflectance)


def _with_leaks(values: Measures) -> Measures:
    """Adds the ratios; one that divides by nothing is left out, since a map that shows nothing has none."""
    found = {name: value for name, value in values.items() if not name.startswith("_")}
    for name in SHADED:
        shading, detail = values.get(f"_shading_{name}"), values.get(f"detail_{name}")
        if shading is not None and detail is not None and detail > 1 / 255:
            found[f"shading_leak_{name}"] = shading / detail
    return found


def _add_light(means: Means, albedo: Tensor, linear: Tensor, matches: Sequence[Matches]) -> None:
    """Slope of log albedo over log RGB, and change of chromaticity, between matched pixels."""
    for index, match in enumerate(matches):
        pairs = [(match.warp(values[index + 1]), values[index]) for values in (albedo, linear)]
        bright = match.where
        for after, now in pairs:
            bright = bright & (torch.minimum(after, now).mean(0) > DARKEST)
        if int(bright.sum()) < LEAST_PIXELS:
            continue
        of_albedo, of_rgb = (torch.log(after.mean(0)[bright] / now.mean(0)[bright]).double() for after, now in pairs)
        means.add_sums("light_follow", float((of_albedo * of_rgb).sum()), float((of_rgb * of_rgb).sum()))
        moved = [
            (_chromaticity(after) - _chromaticity(now)).abs().sum(0)[bright].double().sum() for after, now in pairs
        ]
        means.add_sums("chromaticity_change", float(moved[0]), float(moved[1]))


def _chromaticity(values: Tensor) -> Tensor:
    return values / values.sum(0).clamp(min=1e-6)


def _add_normal_angle(means: Means, gbuffer: GBuffer, fov: float | None) -> None:
    if gbuffer.normal is None or gbuffer.depth is None:
        return
    if gbuffer.camera is not None:
        intrinsics = gbuffer.camera.intrinsics
    elif fov is not None:
        intrinsics = intrinsics_of_fov(fov, gbuffer.size)
    else:
        return
    implied = rebuild_normals(gbuffer.depth, intrinsics)
    cosine = (implied * gbuffer.normal).sum(1).clamp(-1, 1)  # [T, H, W]
    known = (implied != 0).any(1) & (gbuffer.normal != 0).any(1)
    for frame in range(gbuffer.frames):
        jumps = gradient(gbuffer.depth[frame].clamp(min=1e-3, max=1e6).log())
        smooth = jumps <= torch.quantile(jumps.flatten()[:: max(1, jumps.numel() // 100_000)], 0.95)
        means.add("normal_depth_angle", torch.rad2deg(torch.acos(cosine[frame])), known[frame] & smooth)


def harmonics(normal: Float[Tensor, "3 N"]) -> Float[Tensor, "9 N"]:
    """Spherical harmonics up to the second order, without their factors, which a fit absorbs."""
    x, y, z = normal
    return torch.stack([torch.ones_like(x), x, y, z, x * y, y * z, x * z, x * x - y * y, 3 * z * z - 1])


def _add_relight(means: Means, albedo: Tensor, normal: Tensor, linear: Tensor) -> None:
    for frame in range(albedo.shape[0]):
        shown = (normal[frame] != 0).any(0)
        if int(shown.sum()) < LEAST_PIXELS:
            continue
        basis = harmonics(normal[frame][:, shown].double())  # [9, N]
        for plane in range(3):
            target = linear[frame, plane][shown].double()
            rows = (basis * albedo[frame, plane][shown].double()).T
            gram = rows.T @ rows
            ridge = (1e-8 * gram.diagonal().mean() + 1e-12) * torch.eye(len(gram), dtype=gram.dtype)
            fit = rows @ torch.linalg.solve(gram + ridge, rows.T @ target)
            left, variance = (target - fit).square().sum(), (target - target.mean()).square().sum()
            means.add_sums("relight_residual", float(left), float(variance))


def measure(contest: Contest, settings: Settings, progress: Progress) -> dict[str, dict[str, Measures]]:
    """clip -> method -> measures, of all footage."""
    return {opened.clip: measure_clip(opened, settings) for opened in each_clip(contest, progress)}


def write_measures(out: Path, found: dict[str, dict[str, Measures]], seed: int) -> str:
    """Writes consistency.json (each clip, and means with 95% bootstrap intervals over clips) and consistency.md.

    Returns:
        The table, as in consistency.md.
    """
    out.mkdir(parents=True, exist_ok=True)
    methods = list(dict.fromkeys(name for of_clip in found.values() for name in of_clip))
    names = sorted({name for of_clip in found.values() for values in of_clip.values() for name in values})
    means = {
        method: {
            name: mean_with_interval([of_clip.get(method, {}).get(name, math.nan) for of_clip in found.values()], seed)
            for name in names
        }
        for method in methods
    }
    table = _markdown(methods, names, means, len(found))
    record = {"what": "consistency measures of Flowshade, no scores of a judge", "means": means, "clips": found}
    write_json(out / "consistency.json", record)
    write_text(out / "consistency.md", table)
    return table


def _markdown(methods: Sequence[str], names: Sequence[str], means: dict, clips: int) -> str:
    about = (
        f"Consistency with the footage, mean over clips ({clips} in all) with 95% bootstrap intervals. No scores of a "
        "judge; lower is better except `detail`, which must not be near 0."
    )
    rows = [[name, *(_cell(means[method][name]) for method in methods)] for name in names]
    return f"{about}\n\n{markdown([['measure', *methods], *rows])}"


def _cell(value: dict) -> str:
    if value["mean"] is None:
        return "-"
    interval = "" if value["low"] is None else f" ({value['low']:.3g} to {value['high']:.3g})"
    return f"{value['mean']:.3g}{interval}"
