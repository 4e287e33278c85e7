"""From any clip to another layout, in constant memory: `convert`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

from torch import Tensor

from flowshade.gbuffer.io.errors import ClipError
from flowshade.gbuffer.io.limits import check_size
from flowshade.gbuffer.io.outputs import check_apart, writing
from flowshade.gbuffer.io.reader import ClipReader, open_clip
from flowshade.gbuffer.io.resize import resize, resize_reference
from flowshade.gbuffer.io.writers import SINKS, Conversion, OutputFormat
from flowshade.progress import Progress
from flowshade.types import GBuffer

CHUNK_FRAMES = 16
"""Frames in memory at a time: a Flash window."""


def convert(
    source: Path | str,
    destination: Path | str,
    *,
    format: OutputFormat = "clip",
    size: tuple[int, int] | None = None,
    start: int = 0,
    stop: int | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> Conversion:
    """Writes a clip in another format, in constant memory; the result appears when it is complete.

    A clip of 8-bit planes (upstream's layouts) goes into another 8-bit format byte for byte, whatever its codes.

    Args:
        source: a clip that `open_clip` can read.
        destination: the folder to make (for "side-by-side", the .mp4 file).
        format: "clip" (lossless), "exr" (lossless, one part a channel, for Blender and Nuke), "png" (16 bit), "flash"
            (8 bit), "video" (8 bit, lossless RGB H.264), "upstream" (the same in upstream's dataset layout), or
            "side-by-side" (one video to look at, which cannot be read back).
        size: another height and width; None keeps the source's.
        start, stop: the run of frames to convert.
        overwrite: replace a folder that Flowshade wrote.
        progress: called after every few frames with (done, all).
        options: those of `open_clip` (`source_format` for its `format`).

    Raises:
        ClipError: the source cannot be read, the format or the disk cannot hold it, or the destination is taken or
            part of the source.
    """
    if format not in get_args(OutputFormat):
        raise ClipError(f"output format {format!r} is unknown; expected one of {', '.join(get_args(OutputFormat))}.")
    with open_clip(source, format=options.pop("source_format", None), **options) as reader:
        start, stop = reader.bounds(start, stop)
        if size is not None:
            check_size(size)
        check_apart(Path(destination), Path(source))
        sink = SINKS[format](reader, Path(destination), size or reader.info.size, overwrite, start)
        with sink:
            for first in range(start, stop, CHUNK_FRAMES):
                last = min(first + CHUNK_FRAMES, stop)
                if sink.verbatim:
                    sink.copy(first, last)
                else:
                    frames = _fitted(reader, first, last, size)
                    with writing(sink.path):
                        sink.append(*frames)
                if progress is not None:
                    progress(last - start, stop - start)
        return sink.result()


def _fitted(reader: ClipReader, start: int, stop: int, size: tuple[int, int] | None) -> tuple[GBuffer, Tensor | None]:
    gbuffer, rgb = reader.read(start, stop), reader.reference(start, stop)
    if size is None or size == gbuffer.size:
        return gbuffer, rgb
    return resize(gbuffer, size), None if rgb is None else resize_reference(rgb, size)
