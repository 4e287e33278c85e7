"""From any clip to Flowshade's own folder, PNG files, Flash windows or one video a channel."""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from einops import rearrange, repeat
from torch import Tensor

from flowshade.gbuffer.io.cameras import CAMERAS_FILE, save_cameras
from flowshade.gbuffer.io.channel_video import VIDEO_CHANNELS
from flowshade.gbuffer.io.coding import CODED_CHANNELS, Coding, CodingFile
from flowshade.gbuffer.io.errors import ClipError
from flowshade.gbuffer.io.flash import ORDER, SIZE, WINDOW_FRAMES
from flowshade.gbuffer.io.folder import ClipWriter, move_into_place
from flowshade.gbuffer.io.pictures import write_png
from flowshade.gbuffer.io.reader import ClipReader, open_clip
from flowshade.gbuffer.io.resize import resize, resize_reference
from flowshade.gbuffer.io.video import VideoWriter
from flowshade.gbuffer.view import to_uint8
from flowshade.types import CHANNELS, Camera, GBuffer

OutputFormat = Literal["clip", "png", "flash", "video"]
Progress = Callable[[int, int], None]
"""Called with frames done and frames in all."""

CODING = Coding(depth_code="inverse:10")
"""How converted clips are coded: albedo sRGB, OpenGL normals, depth 10 / (z + 10)."""
CHUNK_FRAMES = 16
"""Frames in memory at a time: a Flash window."""


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """What `convert` did."""

    path: Path
    format: OutputFormat
    frames: int
    channels: tuple[str, ...]
    notes: tuple[str, ...]
    """What the new format cannot hold, or holds with less precision."""


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

    Args:
        source: a clip that `open_clip` can read.
        destination: the folder to make.
        format: "clip" (lossless), "png" (16 bit), "flash" (8 bit) or "video" (8 bit, lossless RGB H.264).
        size: another height and width; None keeps the source's.
        start, stop: the run of frames to convert.
        overwrite: replace a folder that Flowshade wrote.
        progress: called after every few frames with (done, all).
        options: those of `open_clip` (`source_format` for its `format`).
    """
    if format not in get_args(OutputFormat):
        raise ClipError(f"output format {format!r} is unknown; expected one of {', '.join(get_args(OutputFormat))}.")
    with open_clip(source, format=options.pop("source_format", None), **options) as reader:
        stop = len(reader) if stop is None else stop
        sink = _SINKS[format](reader, Path(destination), size or reader.info.size, overwrite)
        with sink:
            for first in range(start, stop, CHUNK_FRAMES):
                last = min(first + CHUNK_FRAMES, stop)
                sink.append(*_fitted(reader, first, last, size))
                if progress is not None:
                    progress(last - start, stop - start)
        return sink.result()


def _fitted(reader: ClipReader, start: int, stop: int, size: tuple[int, int] | None) -> tuple[GBuffer, Tensor | None]:
    gbuffer, rgb = reader.read(start, stop), reader.reference(start, stop)
    if size is None or size == gbuffer.size:
        return gbuffer, rgb
    return resize(gbuffer, size), None if rgb is None else resize_reference(rgb, size)


class _Sink(ABC):
    """Somewhere to append frames to, which turns into a folder when its `with` block ends well."""

    format: OutputFormat
    holds: tuple[str, ...] = CODED_CHANNELS

    def __init__(self, reader: ClipReader, path: Path, size: tuple[int, int], overwrite: bool) -> None:
        self.path, self.size, self.reader = path, size, reader
        self.channels = tuple(name for name in self.holds if name in reader.info.channels)
        self.frames = 0
        if not self.channels:
            raise ClipError(
                f"{reader.info.path} has {', '.join(reader.info.channels)}; format {self.format!r} holds "
                f"{', '.join(self.holds)}. Convert to format 'clip'."
            )
        self._begin(overwrite)

    def notes(self) -> tuple[str, ...]:
        left_out = [name for name in self.reader.info.channels if name not in self.channels]
        return (f"{', '.join(left_out)}: not held by format {self.format!r}, left out.",) if left_out else ()

    def result(self) -> Conversion:
        return Conversion(
            path=self.path, format=self.format, frames=self.frames, channels=self.channels, notes=self.notes()
        )

    @abstractmethod
    def _begin(self, overwrite: bool) -> None: ...

    @abstractmethod
    def append(self, gbuffer: GBuffer, rgb: Tensor | None) -> None: ...

    @abstractmethod
    def __enter__(self) -> _Sink: ...

    @abstractmethod
    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None: ...


class _ClipSink(_Sink):
    format = "clip"
    holds = tuple(CHANNELS)

    def _begin(self, overwrite: bool) -> None:
        info = self.reader.info
        meta = {"source": info.path.name, "source_format": info.format}
        self._writer = ClipWriter(
            self.path, size=self.size, fps=info.fps, caption=info.caption, meta=meta, overwrite=overwrite
        )

    def append(self, gbuffer: GBuffer, rgb: Tensor | None) -> None:
        self._writer.append(gbuffer, rgb)
        self.frames = self._writer.frames

    def __enter__(self) -> _ClipSink:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is None:
            self._writer.close()
        else:
            self._writer.discard()


class _CodedSink(_Sink):
    """Integer planes with `coding.json` and, where cameras are known, `cameras.json`."""

    top = 255

    def _begin(self, overwrite: bool) -> None:
        if self.path.exists() and not overwrite:
            raise ClipError(f"{self.path} exists already; give another name or overwrite=True.")
        if self.path.exists() and CodingFile.find(self.path) is None:
            raise ClipError(f"{self.path} was not written by Flowshade, so it is not overwritten; give another name.")
        self._cameras: list[Camera] = []
        self._temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}.tmp")
        shutil.rmtree(self._temporary, ignore_errors=True)
        self._temporary.mkdir(parents=True)

    def append(self, gbuffer: GBuffer, rgb: Tensor | None) -> None:
        present = gbuffer.channels()
        self._write({name: CODING.encode(name, present[name], self.top) for name in self.channels}, rgb)
        if gbuffer.camera is not None:
            self._cameras.append(gbuffer.camera)
        self.frames += gbuffer.frames

    @abstractmethod
    def _write(self, planes: dict[str, Tensor], rgb: Tensor | None) -> None:
        """Stores a run of frames, [T, C, H, W] integers a channel."""

    def __enter__(self) -> _CodedSink:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            return
        info = self.reader.info
        CodingFile(coding=CODING, fps=info.fps, frames=self.frames, caption=info.caption).save(self._temporary)
        if self._cameras:
            save_cameras(self._temporary / CAMERAS_FILE, Camera.cat(self._cameras), info.fps, self.size)
        move_into_place(self._temporary, self.path)


class _PngSink(_CodedSink):
    format = "png"
    top = 65535

    def notes(self) -> tuple[str, ...]:
        return (*super().notes(), "values are rounded to 16 bits; depth as 10 / (z + 10).")

    def _write(self, planes: dict[str, Tensor], rgb: Tensor | None) -> None:
        for name, values in planes.items():
            self._save(name, rearrange(values, "t c h w -> t h w c").numpy().astype(np.uint16))
        if rgb is not None:
            self._save("rgb", to_uint8(rgb).numpy())

    def _save(self, name: str, pictures: np.ndarray) -> None:
        (self._temporary / name).mkdir(exist_ok=True)
        for index, picture in enumerate(pictures):
            values = picture[..., 0] if picture.shape[-1] == 1 else picture
            write_png(self._temporary / name / f"{self.frames + index + 1:06d}.png", values)


class _FlashSink(_CodedSink):
    format = "flash"
    holds = ORDER

    def _begin(self, overwrite: bool) -> None:
        lacking = [name for name in ORDER if name not in self.channels]
        if lacking:
            raise ClipError(
                f"{self.reader.info.path} has no {', '.join(lacking)}; Flash windows hold all of {', '.join(ORDER)}. "
                "Convert to another format, or give the missing buffers."
            )
        super()._begin(overwrite)
        self._windows = 0

    def notes(self) -> tuple[str, ...]:
        notes = [
            *super().notes(),
            "values are rounded to 8 bits; depth as 10 / (z + 10), which is not Flash's own code.",
        ]
        if self.size != SIZE:
            notes.append(f"Flash's own model takes {SIZE[0]}x{SIZE[1]}; this clip is {self.size[0]}x{self.size[1]}.")
        if self.frames % WINDOW_FRAMES:
            notes.append(f"the last window repeats its last frame to fill {WINDOW_FRAMES}.")
        return tuple(notes)

    def _write(self, planes: dict[str, Tensor], rgb: Tensor | None) -> None:
        frames = len(planes["albedo"])
        filled = torch.arange(WINDOW_FRAMES).clamp(max=frames - 1)  # a tail repeats its last frame
        buffers = [_three_planes(planes[name])[filled] for name in ORDER]
        window = rearrange(torch.stack(buffers, 1), "t b c h w -> t b h w c")
        np.save(self._temporary / f"window-{self._windows:02d}.npy", window.numpy().astype(np.uint8))
        self._windows += 1


class _VideoSink(_CodedSink):
    format = "video"
    holds = VIDEO_CHANNELS

    def _begin(self, overwrite: bool) -> None:
        super()._begin(overwrite)
        self._stack = ExitStack()
        self._writers: dict[str, VideoWriter] = {}

    def notes(self) -> tuple[str, ...]:
        return (*super().notes(), "values are rounded to 8 bits; depth as 10 / (z + 10).")

    def _write(self, planes: dict[str, Tensor], rgb: Tensor | None) -> None:
        for name, values in planes.items():
            pictures = rearrange(_three_planes(values), "t c h w -> t h w c").to(torch.uint8)
            self._writer(name, lossless=True).append(pictures)
        if rgb is not None:
            # 4:2:0 video pads odd sizes, and would no longer fit its neighbours.
            odd = self.size[0] % 2 or self.size[1] % 2
            self._writer("rgb", lossless=bool(odd)).append(to_uint8(rgb))

    def _writer(self, name: str, lossless: bool) -> VideoWriter:
        if name not in self._writers:
            path = self._temporary / f"{self.path.name}_{name}.mp4"
            writer = VideoWriter(path, fps=self.reader.info.fps, size=self.size, lossless=lossless)
            self._writers[name] = self._stack.enter_context(writer)
        return self._writers[name]

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is None:
            self._stack.close()
        else:
            for writer in self._writers.values():
                writer.discard()
        super().__exit__(kind, error, trace)


def _three_planes(values: Tensor) -> Tensor:
    return repeat(values, "t 1 h w -> t 3 h w") if values.shape[1] == 1 else values


_SINKS: dict[str, type[_Sink]] = {"clip": _ClipSink, "png": _PngSink, "flash": _FlashSink, "video": _VideoSink}
