"""What a clip holds, found by reading all of it once: `inspect_clip`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import UInt8
from torch import Tensor

from flowshade.gbuffer.io.coding import CodedReader
from flowshade.gbuffer.io.errors import ClipError
from flowshade.gbuffer.io.outputs import check_apart, check_file
from flowshade.gbuffer.io.pictures import write_png
from flowshade.gbuffer.io.reader import ClipInfo, ClipReader, open_clip
from flowshade.gbuffer.view import channel_picture, contact_sheet, resize_pictures, to_uint8
from flowshade.types import CHANNELS, Camera, GBuffer

CHUNK_FRAMES = 8
SHEET_FRAMES = 4
TILE_WIDTH = 208
GRAZING = 0.3
"""Normals this far beyond the silhouette, as a cosine, are still taken as seen (wide views, bump maps)."""
GRAZING_BY_CAMERA = 0.1
"""The same where the view is known."""
AWAY_SHARE = 0.02
UNITS = {"depth": "m", "motion": "px"}


@dataclass
class ChannelRange:
    """Extremes of a channel over the clip, gathered run by run. Infinite values (sky) are counted apart."""

    lowest: float = float("inf")
    highest: float = float("-inf")
    total: float = 0.0
    finite: int = 0
    infinite: int = 0
    nan: int = 0

    def add(self, values: Tensor) -> None:
        finite = values[values.isfinite()].double()
        self.nan += int(values.isnan().sum())
        self.infinite += int(values.isinf().sum())
        self.finite += finite.numel()
        if finite.numel():
            self.lowest = min(self.lowest, float(finite.min()))
            self.highest = max(self.highest, float(finite.max()))
            self.total += float(finite.sum())

    @property
    def mean(self) -> float:
        """Mean of the finite values."""
        return self.total / self.finite if self.finite else float("nan")

    @property
    def infinite_share(self) -> float:
        return self.infinite / max(1, self.finite + self.infinite + self.nan)


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """The result of `inspect_clip`; `str` of it is a readable report."""

    info: ClipInfo
    ranges: dict[str, ChannelRange]
    warnings: tuple[str, ...]
    """The reader's own, and what the values show."""
    sheet: UInt8[Tensor, "H W 3"] = field(repr=False)
    """A few frames (rows) of every channel and the reference picture (columns)."""

    def save_sheet(self, path: Path | str) -> None:
        """Writes the contact sheet as a PNG file. Raises: ClipError where it cannot be written."""
        check_sheet(path, self.info.path)
        write_png(Path(path), self.sheet.numpy())

    def __str__(self) -> str:
        info = self.info
        seconds = info.frames / info.fps
        extras = [text for text, there in (("camera", info.has_camera), ("rgb", info.has_reference)) if there]
        lines = [
            f"{info.path}",
            f"  format    {info.format}",
            f"  frames    {info.frames} ({seconds:.2f} s at {info.fps:g} fps)",
            f"  size      {info.size[0]}x{info.size[1]} (height x width)",
            f"  channels  {', '.join(info.channels)}",
            f"  missing   {', '.join(info.missing) or 'none'}",
            f"  beside    {', '.join(extras) or 'nothing (no camera, no reference picture)'}",
            f"  axes      {info.axes}",
            *([f"  caption   {info.caption}"] if info.caption else []),
            "  ranges",
            *(f"    {name:<10}{_describe(name, found)}" for name, found in self.ranges.items()),
        ]
        return "\n".join(lines + [f"  warning   {text}" for text in self.warnings])


def check_sheet(path: Path | str, clip: Path | str) -> None:
    """Finds, before a clip is read, what would keep its contact sheet from being written.

    Args:
        path: the PNG file to write.
        clip: what is inspected.

    Raises:
        ClipError: no PNG file, in a folder that is not there, or a file of the clip.
    """
    path = Path(path)
    check_file(path, ".png", "the sheet")
    check_apart(path, Path(clip), "the sheet")
    if not path.absolute().parent.is_dir():
        raise ClipError(f"the sheet lies in {path.parent}, which is not there; make the folder first, or name another.")


def _describe(name: str, found: ChannelRange) -> str:
    unit = UNITS.get(name, "")
    text = (
        f"{found.lowest:.4g} to {found.highest:.4g}, mean {found.mean:.4g} {unit}".rstrip()
        if found.finite
        else "no value"
    )
    if found.infinite:
        text += f"; {100 * found.infinite_share:.1f}% {'sky' if name == 'depth' else 'infinite'}"
    return text + (f"; {found.nan} NaN" if found.nan else "")


def inspect_clip(
    path: Path | str, *, format: str | None = None, fps: float | None = None, **options: Any
) -> Inspection:
    """Reads a whole clip, a few frames in memory at a time, and reports on it.

    Args: as `open_clip`.

    Raises:
        ClipError: the clip cannot be understood.
    """
    with open_clip(path, format=format, fps=fps, **options) as reader:
        names = reader.info.channels
        ranges = {name: ChannelRange() for name in names}
        lengths, facing = ChannelRange(), _Facing()
        for first in range(0, len(reader), CHUNK_FRAMES):
            window = reader.read(first, last := min(first + CHUNK_FRAMES, len(reader)))
            reader.reference(first, last)  # read to find damage
            for name, values in window.channels().items():
                ranges[name].add(values)
            if window.normal is not None:
                lengths.add(window.normal.norm(dim=1))
                facing.add(window.normal, window.camera)
        return Inspection(
            info=reader.info,
            ranges=ranges,
            warnings=(*reader.info.warnings, *_findings(ranges, lengths), *facing.findings(), *_normalised(reader)),
            sheet=_sheet(reader),
        )


@dataclass
class _Facing:
    """Where normals point: surfaces that are seen face the viewer, but for a few at grazing angles."""

    surfaces: int = 0
    away: int = 0
    right: int = 0

    def add(self, normal: Tensor, camera: Camera | None) -> None:
        there = (normal != 0).any(1)
        if camera is None:  # the view's width is not known
            towards, least = normal[:, 2], -GRAZING
        else:
            rays = torch.einsum("tji,tjhw->tihw", camera.pose[:, :3, :3], camera.rays(*normal.shape[-2:]))
            towards, least = -(rays * normal).sum(1), -GRAZING_BY_CAMERA
        self.surfaces += int(there.sum())
        self.away += int((there & (towards < least)).sum())
        self.right += int((there & (normal[:, 0] > -GRAZING)).sum())

    def findings(self) -> list[str]:
        share = self.away / max(1, self.surfaces)
        if share <= AWAY_SHARE:
            return []
        if self.right > (1 - AWAY_SHARE) * self.surfaces:
            return [
                f"{100 * share:.0f}% of the normals face away from the viewer, and nearly all to the right: red and "
                "blue may be exchanged (order='bgr')."
            ]
        return [
            f"{100 * share:.0f}% of the normals face away from the viewer: they may be in world space, or of other "
            "axes (normals=..., normal_axes=...; flowshade inspect --guess finds out)."
        ]


def _normalised(reader: ClipReader) -> list[str]:
    """Finds depth that was stretched to the ends of its code frame by frame, so that frames disagree."""
    if not isinstance(reader, CodedReader) or reader.top.get("depth", 1) == 1 or len(reader) < 2:
        return []
    count = min(SHEET_FRAMES, len(reader))
    for frame in sorted({round(step * (len(reader) - 1) / (count - 1)) for step in range(count)}):
        depth, top = reader.stored(frame, frame + 1)["depth"]
        if int(depth.min()) != 0 or int(depth.max()) != top:
            return []
    return [
        "depth reaches both ends of its code in every frame looked at, as if stretched frame by frame or clip by clip: "
        "such depth has no fixed metres, and parts of one video disagree. Export it with a fixed range."
    ]


def _findings(ranges: dict[str, ChannelRange], lengths: ChannelRange) -> list[str]:
    """What the values say against the convention of `flowshade.types`."""
    found = [f"{name} holds {range_.nan} NaN values." for name, range_ in ranges.items() if range_.nan]
    for name in ("albedo", "roughness", "metallic"):
        if name in ranges and ranges[name].finite and (ranges[name].lowest < 0 or ranges[name].highest > 1):
            found.append(f"{name} leaves [0, 1]; expected material values in that range.")
    if "depth" in ranges:
        depth = ranges["depth"]
        if not depth.finite:
            found.append("depth is sky everywhere; its code or unit may be wrong.")
        elif depth.lowest <= 0:
            found.append(f"depth goes down to {depth.lowest:g} m; expected metres in front of the camera.")
        elif depth.lowest > 1000:
            found.append(f"depth starts at {depth.lowest:g} m; is it in another unit?")
    if lengths.finite and lengths.highest > 1.01:
        found.append(f"normals are up to {lengths.highest:.3g} long; expected unit vectors (0 = sky).")
    constant = [
        name for name, r in ranges.items() if r.finite and r.lowest == r.highest and name in ("albedo", "normal")
    ]
    return found + [f"{name} is the same everywhere." for name in constant]


def _sheet(reader: ClipReader) -> UInt8[Tensor, "H W 3"]:
    count = min(SHEET_FRAMES, len(reader))
    frames = [round(step * (len(reader) - 1) / max(1, count - 1)) for step in range(count)]
    height, width = reader.info.size
    tile = (max(1, round(height * TILE_WIDTH / width)), TILE_WIDTH)
    pictures: list[Tensor] = []
    labels: list[str] = []
    for frame in frames:
        shown = _shown(reader, frame)
        pictures += [resize_pictures(picture, tile)[0] for picture in shown.values()]
        labels += [f"{name} {frame}" for name in shown]
    return contact_sheet(pictures, len(pictures) // count, labels)


def _shown(reader: ClipReader, frame: int) -> dict[str, UInt8[Tensor, "1 H W 3"]]:
    gbuffer: GBuffer = reader.read(frame, frame + 1)
    shown = {name: channel_picture(gbuffer, name) for name in CHANNELS if name in gbuffer.channels()}
    rgb = reader.reference(frame, frame + 1)
    return shown if rgb is None else {**shown, "rgb": to_uint8(rgb)}
