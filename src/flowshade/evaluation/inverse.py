"""Scores an inverse, on held-out worlds or on clips with pictures, beside two plain baselines.

Metrics follow the literature on intrinsic images and monocular geometry: absolute relative error and delta of depth
after one scale a clip (Eigen et al. 2014, arXiv 1406.2283), angles between normals (Fouhey et al. 2013), PSNR of albedo
as it is and after one least-squares factor a frame ("si", Grosse et al. 2009), LPIPS of albedo where its trunk is
installed, plain errors of roughness and metallic, the warping error between frames (Lai et al. 2018, arXiv 1808.00449)
with the reference's exact motion vectors, and how well runs agree that began at different frames.
Sky, as the reference has it, counts nowhere but in `sky_iou`; surfaces taken for sky are counted in `missed`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import normalize

from flowshade.color import from_bytes, linear_to_srgb, to_bytes
from flowshade.evaluation.perceptual import Trunk, lpips, trunks
from flowshade.evaluation.worlds import ReferenceClip, WorldSuite, parked_clips
from flowshade.files import write_json, write_text
from flowshade.gbuffer.io import open_clip
from flowshade.gbuffer.io.pictures import write_png
from flowshade.gbuffer.view import channel_picture
from flowshade.inverse.stream import Inverse
from flowshade.nn.warp import inside, warp
from flowshade.progress import Progress
from flowshade.types import CORE_CHANNELS, Frames, GBuffer

Scores = dict[str, float]


def depth_errors(
    prediction: Float[Tensor, "T 1 H W"], reference: Float[Tensor, "T 1 H W"], surface: Bool[Tensor, "T 1 H W"]
) -> Scores:
    """AbsRel and the share within a factor of 1.25, after the factor that makes the median ratio of the clip 1."""
    predicted, true = prediction[surface].clamp(min=1e-3, max=1e6), reference[surface]
    ratio = predicted / true
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
        scores |= {f"albedo_psnr_{space}": _mean(plain), f"albedo_si_psnr_{space}": _mean(fitted)}
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
    one, two = _core(first), _core(second)
    both = surface & torch.isfinite(one["depth"]) & torch.isfinite(two["depth"])
    if not both.any():
        return {f"chunk_{name}": float("nan") for name in CORE_CHANNELS}
    cosine = (normalize(one["normal"], dim=1) * normalize(two["normal"], dim=1)).sum(1, keepdim=True)
    differences = {
        "albedo": (linear_to_srgb(one["albedo"]) - linear_to_srgb(two["albedo"])).abs().mean(1, keepdim=True),
        "normal": torch.rad2deg(torch.acos(cosine.clamp(-1, 1))),
        "depth": (one["depth"].clamp(1e-3, 1e6).log() - two["depth"].clamp(1e-3, 1e6).log()).abs(),
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
    predicted, true = _core(prediction), _core(reference)
    surface = torch.isfinite(true["depth"])
    if not surface.any():
        raise ValueError("the reference shows nothing but sky; give a clip with surfaces.")
    found = torch.isfinite(predicted["depth"])
    sky = (~found & ~surface).sum() / (~found | ~surface).sum().clamp(min=1)
    depth = torch.where(found, predicted["depth"], 1e6)
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
        for name, value in _core(buffers).items():
            value = value.clamp(1e-3, 1e6).log() if name == "depth" else value
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
    logarithm = depth.clamp(1e-3, 1e6).log()
    near = (warp(logarithm[:-1], motion) - logarithm[1:]).abs() < SAME_DEPTH
    seen = inside(motion) & surface[1:] & whole & near
    if reference.instance is not None:
        # An id that is a mixture of two differs from both.
        ids = reference.instance.double()
        seen &= (warp(ids[:-1], motion.double()) - ids[1:]).abs() < 1e-3
    return seen


class ConstantBuffers:
    """The baseline that looks at nothing: one value a channel, the mean over all reference clips that it was shown."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._count = 0

    def add(self, reference: GBuffer) -> None:
        channels = _core(reference)
        surface = torch.isfinite(channels["depth"])
        for name, value in channels.items():
            value = value.log() if name == "depth" else value
            total = value.movedim(1, -1)[surface[:, 0]].double().sum(0)
            self._sums[name] = self._sums.get(name, 0) + total
        self._count += int(surface.sum())

    def predict(self, like: GBuffer) -> GBuffer:
        """Buffers of a clip's frames, size and device, everywhere a surface."""
        device = _core(like)["depth"].device
        means = {name: (total / self._count).float().to(device) for name, total in self._sums.items()}
        means["depth"] = means["depth"].exp()
        spread = {name: mean[None, :, None, None].expand(like.frames, -1, *like.size) for name, mean in means.items()}
        return GBuffer(**{name: value.contiguous() for name, value in spread.items()}, camera=None)


def evaluate_inverse(
    inverse: Inverse,
    suite: WorldSuite,
    *,
    device: str,
    out: Path,
    workers: int = 0,
    progress: Progress = lambda done, total: None,
    warn: Callable[[str], None] = print,
) -> list[dict]:
    """Inverts the reference pictures of every clip in every look; writes `scores.json`, `scores.md`, `sheet.png`.

    Beside the stream stand `one picture` (the same network without memory) and `constant` (the mean of the suite's own
    buffers).

    Args:
        inverse: in eval mode, on `device`.
        suite: what is traced.
        device: where to trace and to work.
        out: folder for the results, made if absent.
        workers: processes that trace; 0 = this one does.
        progress: called with clips traced or scored, of twice as many as there are.
        warn: is told what is left out.
    """
    clips = []
    for clip in parked_clips(suite, device, workers):
        clips.append(clip)
        progress(len(clips), 2 * suite.worlds)
    return score_clips(
        inverse, clips, window=suite.window, device=device, out=out, shown=len(suite.kinds), warn=warn,
        progress=lambda done, total: progress(total + done, 2 * total),
    )  # fmt: skip


def read_reference_clip(path: Path, frames: int | None = None) -> ReferenceClip:
    """A G-buffer clip with pictures, from disk, to be scored as a held-out world is.

    Args:
        path: a clip in any format that is read, with all core channels.
        frames: how many, from the first; None takes all.

    Raises:
        ClipError: a clip that cannot be read.
        ValueError: no pictures, or a core channel that is missing.
    """
    with open_clip(path) as reader:
        if not reader.info.has_reference or reader.info.missing:
            lacks = ", ".join([*reader.info.missing, *([] if reader.info.has_reference else ["pictures"])])
            raise ValueError(f"{path} has no {lacks}; expected {', '.join(CORE_CHANNELS)} and pictures. Export them.")
        stop = len(reader) if frames is None else min(frames, len(reader))
        rgb = reader.reference(0, stop)
        assert rgb is not None, "the reader announced them"
        pictures = {RENDERED: to_bytes(rgb)}
        return ReferenceClip(kind=path.name, seed=0, gbuffer=reader.read(0, stop), pictures=pictures)


RENDERED = "as rendered"
"""The look of a clip's own pictures."""


def score_clips(
    inverse: Inverse,
    clips: Sequence[ReferenceClip],
    *,
    window: int,
    device: str,
    out: Path,
    shown: int,
    progress: Progress = lambda done, total: None,
    warn: Callable[[str], None] = print,
) -> list[dict]:
    """Scores every clip in every one of its looks beside the baselines; writes what `evaluate_inverse` does.

    Args:
        inverse: in eval mode, on `device`.
        clips: pictures in bytes.
        window: frames pushed at a time.
        device: where to work.
        out: folder for the results, made if absent.
        shown: clips on the sheet, from the first.
        progress: called with clips scored and in all.
        warn: is told what is left out.
    """
    found, note = trunks(device)
    trunk = found.get("alex")
    if note:
        warn(note)
    constant = ConstantBuffers()
    for clip in clips:
        constant.add(clip.gbuffer)
    rows, sheet = [], []
    for index, clip in enumerate(clips):
        reference = clip.gbuffer.to(device)
        surface = torch.isfinite(_core(reference)["depth"])
        scored = {"constant": [score_buffers(constant.predict(reference), reference, trunk)]}
        for look, single, streamed, later in _inverted(inverse, clip, window, device):
            scored.setdefault("one picture", []).append(score_buffers(single, reference, trunk))
            first = streamed.frames - later.frames
            agreement = chunk_agreement(streamed[first:], later, surface[first:])
            scored.setdefault("stream", []).append(score_buffers(streamed, reference, trunk) | agreement)
            if index < shown:
                sheet.append((look, clip, streamed))
        rows += [{"method": method, "clip": index} | scores for method, all_of in scored.items() for scores in all_of]
        progress(index + 1, len(clips))
    table = summarise(rows)
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "scores.json", table)
    write_text(out / "scores.md", markdown_table(table))
    _write_sheet(out / "sheet.png", sheet)
    return table


def _inverted(
    inverse: Inverse, clip: ReferenceClip, window: int, device: str
) -> Iterator[tuple[str, GBuffer, GBuffer, GBuffer]]:
    """For each look: every picture alone, the stream, and a stream of the clip's second half."""
    for look, stored in clip.pictures.items():
        pictures = from_bytes(stored.to(device))
        singles = []
        for frame in pictures.split(1):
            inverse.reset()
            singles.append(inverse.push(Frames(rgb=frame)).gbuffer)
        streamed = _streamed(inverse, pictures, window)
        yield look, GBuffer.cat(singles), streamed, _streamed(inverse, pictures[len(pictures) // 2 :], window)


def _streamed(inverse: Inverse, pictures: Tensor, window: int) -> GBuffer:
    return GBuffer.cat([part.gbuffer for part in inverse.invert(Frames(rgb=run) for run in pictures.split(window))])


def summarise(rows: list[dict]) -> list[dict]:
    """Mean of every metric by method; values that do not exist (nan) are left out."""
    table = []
    for method in dict.fromkeys(row["method"] for row in rows):
        mine = [row for row in rows if row["method"] == method]
        metrics = dict.fromkeys(name for row in mine for name in row if name not in ("method", "clip"))
        means = {name: _mean([row[name] for row in mine if name in row]) for name in metrics}
        table.append({"method": method, "clips": len(mine)} | means)
    return table


COLUMNS = {
    "depth AbsRel": "depth_absrel",
    "of found": "depth_found_absrel",
    "delta": "depth_delta",
    "normal mean": "normal_mean",
    "median": "normal_median",
    "< 11.25": "normal_11.25",
    "< 22.5": "normal_22.5",
    "< 30": "normal_30.0",
    "albedo si-PSNR (sRGB)": "albedo_si_psnr_srgb",
    "PSNR (sRGB)": "albedo_psnr_srgb",
    "si-PSNR (linear)": "albedo_si_psnr_linear",
    "PSNR (linear)": "albedo_psnr_linear",
    "LPIPS (sRGB)": "albedo_lpips_srgb",
    "LPIPS (linear)": "albedo_lpips_linear",
    "roughness RMSE": "roughness_rmse",
    "MAE": "roughness_mae",
    "metallic RMSE": "metallic_rmse",
    "metallic MAE": "metallic_mae",
    "sky IoU": "sky_iou",
    "missed": "missed",
    "flicker": "flicker",
    "warping / true": "warp_ratio",
    "chunks: normal": "chunk_normal",
    "depth": "chunk_depth",
}


def markdown_table(table: list[dict]) -> str:
    """One row a method."""
    lines = ["| method | " + " | ".join(COLUMNS) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
    for row in table:
        lines.append(f"| {row['method']} | " + " | ".join(_cell(row.get(name)) for name in COLUMNS.values()) + " |")
    return "\n".join(lines) + "\n"


def _cell(value: float | None) -> str:
    return "-" if value is None or np.isnan(value) else f"{value:.3f}"


def _write_sheet(path: Path, shown: list[tuple[str, ReferenceClip, GBuffer]]) -> None:
    """Rows: looks and clips; columns: picture, then every channel as estimated, then as it is."""
    rows = []
    for look, clip, streamed in shown:
        last = slice(streamed.frames - 1, streamed.frames)
        picture = clip.pictures[look][last].cpu().movedim(1, -1)  # [1, H, W, 3] uint8
        buffers = [streamed[last].to("cpu"), clip.gbuffer[last].to("cpu")]
        columns = [picture, *(channel_picture(part, name) for name in CORE_CHANNELS for part in buffers)]
        rows.append(torch.cat([column[0] for column in columns], 1))
    write_png(path, torch.cat(rows).numpy())


def _core(gbuffer: GBuffer) -> dict[str, Tensor]:
    channels = gbuffer.channels()
    missing = [name for name in CORE_CHANNELS if name not in channels]
    if missing:
        raise ValueError(f"got buffers without {', '.join(missing)}; expected {', '.join(CORE_CHANNELS)}.")
    return {name: channels[name] for name in CORE_CHANNELS}


def _psnr(a: Tensor, b: Tensor) -> float:
    return (-10 * torch.log10((a - b).square().mean().clamp(min=1e-10))).item()


def _mean(values: list[float]) -> float:
    numbers = [value for value in values if np.isfinite(value)]
    return float(np.mean(numbers)) if numbers else float("nan")
