"""OpenEXR files as plain dictionaries of channels, with damage reported instead of swallowed."""

from __future__ import annotations

import io
import os
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import OpenEXR

from flowshade.errors import reason
from flowshade.gbuffer.io.errors import ClipError
from flowshade.gbuffer.io.limits import MAX_SIDE, check_picture

CALLING_THREAD = 0
"""OpenEXR's own thread pool stays unused: whoever reads several clips at once decides about threads."""
MAGIC = b"\x76\x2f\x31\x01"
REC709 = (0.64, 0.33, 0.30, 0.60, 0.15, 0.06, 0.3127, 0.3290)
OPENEXR_ERRORS = (RuntimeError, IndexError, ValueError, TypeError, KeyError, MemoryError, OSError)
"""What OpenEXR's module raises for damaged files; UnicodeDecodeError, for names, is a ValueError."""
UNTOLD_SPACES = (None, "", "data", "unknown")
"""What `colorInteropID` says where it says nothing about colour."""
BRADFORD = np.array([[0.8951, 0.2664, -0.1614], [-0.7502, 1.7135, 0.0367], [0.0389, -0.0685, 1.0296]])
"""Cone responses of XYZ, in which whites are scaled into one another."""
PRIMARIES_TOLERANCE = 2e-3
"""Largest difference in x or y of primaries that are still called the same."""

_PRINTING = threading.Lock()
"""Held while OpenEXR's printing is kept back: the process has one pair of terminals."""

# OpenEXR itself refuses larger ones before it makes room for their tables.
OpenEXR.setMaxImageSize(MAX_SIDE, MAX_SIDE)
OpenEXR.setMaxTileSize(MAX_SIDE, MAX_SIDE)


@dataclass(frozen=True)
class ExrFile:
    """One EXR file: the first part's header, and every channel that could be read under its full name."""

    header: dict[str, Any]
    channels: dict[str, np.ndarray]
    """[H, W] float16, float32 or uint32, as stored, laid into the display window."""

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
    """Height and width of the picture (the display window)."""
    partial: list[str]
    """Channels whose stored pixels (the data window) do not cover the picture."""
    pixel_aspect: float
    fps: float | None
    colour_space: str | None
    """OpenEXR's `colorInteropID` of the first part that is not plain data."""
    chromaticities: tuple[float, ...]
    attributes: dict[str, Any] = field(repr=False, default_factory=dict)
    """The first part's header, as OpenEXR gives it."""


def read_exr(path: Path, outside: Mapping[str, float] | None = None) -> ExrFile:
    """Reads what can be read. A file cut short yields fewer channels than its header announces: compare.

    Args:
        path: the file.
        outside: full channel name -> its value where the picture (the display window) is larger than the stored
            pixels (the data window); 0 where not given. Stored pixels outside the picture are cut.

    Raises:
        ClipError: not an EXR file, deep, larger than `limits` allows, or nothing readable.
    """
    size = read_header(path).size  # refuses absurd sizes before pixels are made room for
    try:
        with _quiet(path):
            parts = OpenEXR.File(str(path), separate_channels=True, num_threads=CALLING_THREAD).parts
        stored = {
            _full_name(name, part.name(), len(parts)): (channel, part.header)
            for part in parts
            for name, channel in part.channels.items()
        }
        header = dict(parts[0].header)
    except OPENEXR_ERRORS as error:
        raise ClipError(_unreadable(path, error)) from error
    channels: dict[str, np.ndarray] = {}
    for name, (channel, part_header) in stored.items():
        if channel.xSampling != 1 or channel.ySampling != 1:
            raise ClipError(f"{path}: channel {name} is subsampled; expected full resolution. Write it so.")
        channels[name] = _in_display_window(channel.pixels, part_header, (outside or {}).get(name, 0))
    if not channels:
        raise ClipError(_unreadable(path))
    wrong = [name for name, pixels in channels.items() if pixels.shape != size]
    if wrong:
        raise ClipError(f"{path}: channel {wrong[0]} has another size than its header says. Write the file again.")
    return ExrFile(header, channels)


@contextmanager
def _quiet(path: Path) -> Iterator[None]:
    """Keeps what OpenEXR itself prints about damage off the terminal; what other threads print is passed on."""
    own = (str(path), "Warning: Exception raised reading pixel data")
    with _PRINTING, tempfile.TemporaryFile() as kept, redirect_stdout(io.StringIO()) as printed:
        terminals = [(number, os.dup(number)) for number in (1, 2)]
        try:
            for number, _ in terminals:
                os.dup2(kept.fileno(), number)
            yield
        finally:
            for number, terminal in terminals:
                os.dup2(terminal, number)
                os.close(terminal)
            kept.seek(0)
            lines = [*kept.read().decode(errors="replace").splitlines(True), *printed.getvalue().splitlines(True)]
            sys.stderr.write("".join(line for line in lines if not line.startswith(own)))


def _in_display_window(pixels: np.ndarray, header: dict[str, Any], outside: float) -> np.ndarray:
    (low_x, low_y), (high_x, high_y) = (corner.tolist() for corner in header["displayWindow"])
    (data_x, data_y), _ = (corner.tolist() for corner in header["dataWindow"])
    height, width = high_y - low_y + 1, high_x - low_x + 1
    if (data_x, data_y) == (low_x, low_y) and pixels.shape == (height, width):
        return pixels
    picture = np.full((height, width), outside, pixels.dtype)
    top, left = data_y - low_y, data_x - low_x
    rows = slice(max(top, 0), min(top + pixels.shape[0], height))
    columns = slice(max(left, 0), min(left + pixels.shape[1], width))
    if rows.start < rows.stop and columns.start < columns.stop:
        picture[rows, columns] = pixels[rows.start - top : rows.stop - top, columns.start - left : columns.stop - left]
    return picture


def read_header(path: Path) -> ExrHeader:
    """Reads the headers of all parts and no pixel.

    Raises:
        ClipError: not an EXR file, deep, or larger than `limits` allows.
    """
    try:
        with _quiet(path):
            parts = OpenEXR.File(str(path), header_only=True).parts
        headers = [part.header for part in parts]
        first = headers[0]
        names = {
            _full_name(channel.name, part.name(), len(parts)): header
            for part, header in zip(parts, headers, strict=True)
            for channel in header["channels"]
        }
    except OPENEXR_ERRORS as error:
        raise ClipError(_unreadable(path, error)) from error
    _check_headers(path, headers)
    spaces = [header.get("colorInteropID") for header in headers]
    rate = first.get("framesPerSecond")
    return ExrHeader(
        channels=list(names),
        size=_window_size(first["displayWindow"]),
        partial=[name for name, header in names.items() if not _covers(header)],
        pixel_aspect=float(first.get("pixelAspectRatio", 1.0)),
        fps=float(rate) if isinstance(rate, int | float | Fraction) else None,
        colour_space=next((space for space in spaces if space not in UNTOLD_SPACES), None),
        chromaticities=tuple(first.get("chromaticities", ())),
        attributes=dict(first),
    )


def _check_headers(path: Path, headers: list[dict[str, Any]]) -> None:
    planes = sum(len(header["channels"]) for header in headers)
    for header in headers:
        if header.get("type") in (OpenEXR.deepscanline, OpenEXR.deeptile):
            raise ClipError(
                f"{path} is a deep EXR file (several samples a pixel); expected one value a pixel. Flatten it in your "
                "compositor, or render without deep output."
            )
        for window in ("dataWindow", "displayWindow"):
            check_picture(path, _window_size(header[window]), planes, 4)
    displays = {_window_size(header["displayWindow"]) for header in headers}
    if len(displays) > 1:
        raise ClipError(f"{path} holds pictures of the sizes {sorted(displays)}; expected one. Write it again.")


def _covers(header: dict[str, Any]) -> bool:
    (data_low, data_high), (low, high) = header["dataWindow"], header["displayWindow"]
    return bool((data_low <= low).all() and (data_high >= high).all())


def _window_size(window: tuple[np.ndarray, np.ndarray]) -> tuple[int, int]:
    low, high = window
    return int(high[1]) - int(low[1]) + 1, int(high[0]) - int(low[0]) + 1


def _full_name(channel: str, part: str, parts: int) -> str:
    """Parts may name their channels in full (`ViewLayer.Depth.Z`) or only by component (`Z`)."""
    return channel if parts == 1 or "." in channel else f"{part}.{channel}"


def _unreadable(path: Path, error: Exception | None = None) -> str:
    size = path.stat().st_size
    with path.open("rb") as file:
        magic = file.read(4)
    if magic != MAGIC:
        return f"{path} ({size} bytes) does not begin like an EXR file; expected OpenEXR. Write it again."
    if isinstance(error, UnicodeDecodeError):
        return (
            f"{path} has channel names that are no text; expected UTF-8. Some Linux builds of Unreal append rubbish to "
            "them: rename the channels, or render with another build."
        )
    said = "" if error is None else reason(error)
    if "size" in said or "window" in said or "width" in said:
        return (
            f"{path} ({size} bytes) announces a picture that cannot be ({said}); expected at most {MAX_SIDE} pixels a "
            "side. Its header is damaged: write or copy it again."
        )
    return f"{path} ({size} bytes) begins like an EXR file but cannot be read; it is cut short. Write or copy it again."


def to_rec709(path: Path, header: ExrHeader) -> np.ndarray | None:
    """The matrix that turns a file's linear colours into linear Rec.709; None where they are so already.

    Whites are adapted by the Bradford transform, as colour management systems do.

    Args:
        path: the file, for messages.
        header: its `colour_space` goes before its `chromaticities`; neither means Rec.709, as OpenEXR says.

    Raises:
        ClipError: a colour space that is unknown or not linear, or primaries that span nothing.
    """
    primaries = header.chromaticities or REC709
    if header.colour_space is not None:
        known = OpenEXR.colorInteropIDToChromaticities(header.colour_space)
        if known is None:
            raise ClipError(
                f"{path} is in the colour space {header.colour_space}; expected linear Rec.709, Rec.2020, AP0, AP1, "
                "P3-D65 or Adobe RGB. Render in a linear working space."
            )
        primaries = tuple(known)
    if np.allclose(primaries, REC709, atol=PRIMARIES_TOLERANCE):
        return None
    try:
        matrix = np.linalg.inv(_xyz_of_rgb(REC709)) @ _adapted(primaries, REC709) @ _xyz_of_rgb(primaries)
    except np.linalg.LinAlgError:
        matrix = np.full((3, 3), np.nan)
    if not np.isfinite(matrix).all():
        raise ClipError(f"{path} has the chromaticities {primaries}, which span no colours. Write it again.")
    return matrix


def _xyz_of_rgb(primaries: tuple[float, ...]) -> np.ndarray:
    red, green, blue, white = (_xyz(*primaries[i : i + 2]) for i in (0, 2, 4, 6))
    columns = np.stack([red, green, blue], 1)
    return columns * np.linalg.solve(columns, white)


def _adapted(source: tuple[float, ...], target: tuple[float, ...]) -> np.ndarray:
    gains = (BRADFORD @ _xyz(*target[6:8])) / (BRADFORD @ _xyz(*source[6:8]))
    return np.linalg.inv(BRADFORD) @ (gains[:, None] * BRADFORD)


def _xyz(x: float, y: float) -> np.ndarray:
    return np.array([x, y, 1 - x - y]) / (y or np.nan)


def write_exr(path: Path, channels: dict[str, np.ndarray], attributes: dict[str, Any] | None = None) -> None:
    """Writes one lossless (ZIP) part. `channels` are [H, W] float16, float32 or uint32 by name.

    Raises:
        OSError: the file cannot be written; callers say which clip it belongs to.
    """
    header = {"compression": OpenEXR.ZIP_COMPRESSION, "type": OpenEXR.scanlineimage, **(attributes or {})}
    with OpenEXR.File(header, _writable(channels), num_threads=CALLING_THREAD) as file:
        _write(file, path)


def _write(file: OpenEXR.File, path: Path) -> None:
    try:
        with _quiet(path):
            file.write(str(path))
    except OPENEXR_ERRORS as error:
        raise OSError(f"OpenEXR: {reason(error).replace(str(path), path.name).rstrip('.')}") from error


def _writable(channels: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """OpenEXR ignores strides, and puts objects of its own into the dictionary it is given: hence the copies."""
    return {name: np.ascontiguousarray(values) for name, values in channels.items()}


def write_exr_parts(
    path: Path, parts: dict[str, dict[str, np.ndarray]], attributes: dict[str, Any] | None = None
) -> None:
    """Writes one lossless part for each name. `parts` are channels ([H, W] by name) by part. Raises: OSError."""
    header = {"compression": OpenEXR.ZIP_COMPRESSION, "type": OpenEXR.scanlineimage, **(attributes or {})}
    made = [OpenEXR.Part(dict(header), _writable(channels), name=name) for name, channels in parts.items()]
    with OpenEXR.File(made, num_threads=CALLING_THREAD) as file:
        _write(file, path)
