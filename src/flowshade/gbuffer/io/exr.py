"""OpenEXR files as plain dictionaries of channels, with damage reported instead of swallowed."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import OpenEXR

from flowshade.gbuffer.io.errors import ClipError

CALLING_THREAD = 0
"""OpenEXR's own thread pool stays unused: whoever reads several clips at once decides about threads."""


@dataclass(frozen=True)
class ExrFile:
    """One EXR file: the first part's header, and every channel that could be read under its full name."""

    header: dict[str, Any]
    channels: dict[str, np.ndarray]
    """[H, W] float16, float32 or uint32, as stored."""

    @property
    def size(self) -> tuple[int, int]:
        height, width = next(iter(self.channels.values())).shape
        return height, width


@dataclass(frozen=True, kw_only=True)
class ExrHeader:
    """What a file announces, whether or not its pixels are there."""

    channels: list[str]
    """Full names, all parts."""
    size: tuple[int, int]
    """Height and width of the stored pixels (the data window)."""
    display_size: tuple[int, int]
    pixel_aspect: float
    fps: float | None
    colour_space: str | None
    """OpenEXR's `colorInteropID` of the first part that is not plain data."""
    chromaticities: tuple[float, ...]


def read_exr(path: Path) -> ExrFile:
    """Reads what can be read. A file cut short yields fewer channels than its header announces: compare.

    Raises:
        ClipError: not an EXR file, passes of several sizes, or nothing readable.
    """
    try:
        file = OpenEXR.File(str(path), separate_channels=True, num_threads=CALLING_THREAD)
        parts = file.parts
    except (RuntimeError, IndexError, ValueError) as error:
        raise ClipError(_unreadable(path)) from error
    channels: dict[str, np.ndarray] = {}
    for part in parts:
        for name, channel in part.channels.items():
            if channel.xSampling != 1 or channel.ySampling != 1:
                raise ClipError(f"{path}: channel {name} is subsampled; expected full resolution. Write it so.")
            channels[_full_name(name, part.name(), len(parts))] = channel.pixels
    if not channels:
        raise ClipError(_unreadable(path))
    sizes = {pixels.shape for pixels in channels.values()}
    if len(sizes) > 1:
        raise ClipError(f"{path} holds passes of the sizes {sorted(sizes)}; expected one size. Render it again.")
    return ExrFile(dict(parts[0].header), channels)


def read_header(path: Path) -> ExrHeader:
    """Reads the headers of all parts and no pixel.

    Raises:
        ClipError: not an EXR file.
    """
    try:
        parts = OpenEXR.File(str(path), header_only=True).parts
        headers = [part.header for part in parts]
    except (RuntimeError, IndexError, ValueError) as error:
        raise ClipError(_unreadable(path)) from error
    first = headers[0]
    spaces = [header.get("colorInteropID") for header in headers]
    rate = first.get("framesPerSecond")
    return ExrHeader(
        channels=[
            _full_name(channel.name, part.name(), len(parts))
            for part, header in zip(parts, headers, strict=True)
            for channel in header["channels"]
        ],
        size=_window_size(first["dataWindow"]),
        display_size=_window_size(first["displayWindow"]),
        pixel_aspect=float(first.get("pixelAspectRatio", 1.0)),
        fps=float(rate) if isinstance(rate, int | float | Fraction) else None,
        colour_space=next((space for space in spaces if space not in (None, "data")), None),
        chromaticities=tuple(first.get("chromaticities", ())),
    )


def _window_size(window: tuple[np.ndarray, np.ndarray]) -> tuple[int, int]:
    low, high = window
    return int(high[1] - low[1] + 1), int(high[0] - low[0] + 1)


def _full_name(channel: str, part: str, parts: int) -> str:
    """Parts may name their channels in full (`ViewLayer.Depth.Z`) or only by component (`Z`)."""
    return channel if parts == 1 or "." in channel else f"{part}.{channel}"


def _unreadable(path: Path) -> str:
    size = path.stat().st_size
    with path.open("rb") as file:
        magic = file.read(4)
    if magic != b"\x76\x2f\x31\x01":
        return f"{path} ({size} bytes) does not begin like an EXR file; expected OpenEXR. Write it again."
    return f"{path} ({size} bytes) begins like an EXR file but cannot be read; it is cut short. Write or copy it again."


def write_exr(path: Path, channels: dict[str, np.ndarray], attributes: dict[str, Any] | None = None) -> None:
    """Writes one lossless (ZIP) part. `channels` are [H, W] float16, float32 or uint32 by name."""
    header = {"compression": OpenEXR.ZIP_COMPRESSION, "type": OpenEXR.scanlineimage, **(attributes or {})}
    # OpenEXR replaces the arrays in the dictionary it is given by its own objects: hence the copy.
    with OpenEXR.File(header, dict(channels), num_threads=CALLING_THREAD) as file:
        file.write(str(path))
