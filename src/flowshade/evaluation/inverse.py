"""Scores an inverse, on held-out worlds or on clips with pictures, beside two plain baselines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from flowshade.color import from_bytes, to_bytes
from flowshade.evaluation.buffers import chunk_agreement, core_channels, mean_of_numbers, score_buffers
from flowshade.evaluation.perceptual import trunks
from flowshade.evaluation.tables import markdown
from flowshade.evaluation.worlds import ReferenceClip, WorldSuite, parked_clips
from flowshade.files import write_json, write_text
from flowshade.gbuffer.io import open_clip
from flowshade.gbuffer.io.pictures import write_png
from flowshade.gbuffer.view import channel_picture
from flowshade.inverse.stream import Inverse
from flowshade.progress import Progress
from flowshade.types import CORE_CHANNELS, Frames, GBuffer


class ConstantBuffers:
    """The baseline that looks at nothing: one value a channel, the mean over all reference clips that it was shown."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._count = 0

    def add(self, reference: GBuffer) -> None:
        channels = core_channels(reference)
        surface = torch.isfinite(channels["depth"])
        for name, value in channels.items():
            value = value.log() if name == "depth" else value
            total = value.movedim(1, -1)[surface[:, 0]].double().sum(0)
            self._sums[name] = self._sums.get(name, 0) + total
        self._count += int(surface.sum())

    def predict(self, like: GBuffer) -> GBuffer:
        """Buffers of a clip's frames, size and device, everywhere a surface."""
        device = core_channels(like)["depth"].device
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
        surface = torch.isfinite(core_channels(reference)["depth"])
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
        means = {name: mean_of_numbers([row[name] for row in mine if name in row]) for name in metrics}
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
    rows = [[row["method"], *(_cell(row.get(name)) for name in COLUMNS.values())] for row in table]
    return markdown([["method", *COLUMNS], *rows])


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
