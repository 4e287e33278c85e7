"""Clip formats that are written: a sink takes frames and turns into a folder (or a video) when all is well."""

from __future__ import annotations

import csv
import shutil
from abc import ABC, abstractmethod
from contextlib import ExitStack
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from einops import rearrange, repeat
from torch import Tensor

from flowshade.color import srgb_to_linear
from flowshade.files import temporary_beside, write_json
from flowshade.gbuffer.io.cameras import CAMERAS_FILE, save_cameras
from flowshade.gbuffer.io.channel_video import VIDEO_CHANNELS
from flowshade.gbuffer.io.coding import CODED_CHANNELS, OUR_CODING, CodedReader, CodingFile, check_codable
from flowshade.gbuffer.io.conventions import SIDECAR, ClipConventions
from flowshade.gbuffer.io.errors import ClipError
from flowshade.gbuffer.io.exr import write_exr_parts
from flowshade.gbuffer.io.flash import ORDER, SIZE, WINDOW_FRAMES
from flowshade.gbuffer.io.folder import COMPONENTS, ClipWriter, move_into_place
from flowshade.gbuffer.io.generic_exr import MOTION, MOTION_ATTRIBUTE
from flowshade.gbuffer.io.outputs import check_folder, writing
from flowshade.gbuffer.io.pictures import write_png
from flowshade.gbuffer.io.reader import ClipReader
from flowshade.gbuffer.io.upstream import COLUMNS, METADATA
from flowshade.gbuffer.io.video import VideoWriter
from flowshade.gbuffer.view import channel_picture, to_uint8
from flowshade.types import CHANNELS, Camera, GBuffer

OutputFormat = Literal["clip", "exr", "png", "flash", "video", "upstream", "side-by-side"]

INT32_MAX = 2**31 - 1
EXR_SKY = 1e10
"""Metres, as Blender writes where a ray hits nothing; compositors dislike infinity."""
WRITTEN = "written by Flowshade"
ABOUT = "about.json"
"""How a clip came about, where its source says so and the format has no place for it."""
GRID_COLUMNS = 3


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """What `convert` did."""

    path: Path
    format: OutputFormat
    frames: int
    channels: tuple[str, ...]
    notes: tuple[str, ...]
    """What the new format cannot hold, or holds with less precision."""


class Sink(ABC):
    """Somewhere to append frames to, which turns into a folder when its `with` block ends well.

    Args:
        reader: the clip that frames will come from.
        path: what to make.
        size: height and width of the frames.
        overwrite: replace what Flowshade wrote.
        start: number of the first frame in the clip, for messages.

    Raises:
        ClipError: the format cannot hold such a clip, or the path is taken.
    """

    format: OutputFormat
    holds: tuple[str, ...] = CODED_CHANNELS
    verbatim: bool = False
    """Whether the source's own planes are taken (`copy`) instead of frames (`append`)."""

    def __init__(self, reader: ClipReader, path: Path, size: tuple[int, int], overwrite: bool, start: int = 0) -> None:
        self.path, self.size, self.reader, self.start = path, size, reader, start
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

    def copy(self, start: int, stop: int) -> None:
        """Takes a run of the source's 8-bit planes as they are."""
        raise NotImplementedError

    @abstractmethod
    def __enter__(self) -> Sink: ...

    @abstractmethod
    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None: ...


class ClipSink(Sink):
    """Flowshade's own clip folder."""

    format = "clip"
    holds = tuple(CHANNELS)

    def _begin(self, overwrite: bool) -> None:
        info = self.reader.info
        meta = {"source": info.path.name, "source_format": info.format, **info.meta}
        self._writer = ClipWriter(
            self.path, size=self.size, fps=info.fps, caption=info.caption, meta=meta, overwrite=overwrite
        )

    def append(self, gbuffer: GBuffer, rgb: Tensor | None) -> None:
        self._writer.append(gbuffer, rgb)
        self.frames = self._writer.frames

    def __enter__(self) -> ClipSink:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is None:
            self._writer.close()
        else:
            self._writer.discard()


class FolderSink(Sink):
    """A folder that is filled under a temporary name. Subclasses say how, and what shows that Flowshade wrote it."""

    def _begin(self, overwrite: bool) -> None:
        check_folder(self.path)
        if self.path.exists() and not overwrite:
            raise ClipError(
                f"{self.path} exists already; give another name, or --overwrite (overwrite=True in Python)."
            )
        if self.path.exists() and not self._is_ours():
            raise ClipError(f"{self.path} was not written by Flowshade, so it is not overwritten; give another name.")
        self._cameras: list[Camera] = []
        self._temporary = temporary_beside(self.path)
        shutil.rmtree(self._temporary, ignore_errors=True)
        with writing(self.path):
            self._clip.mkdir(parents=True)

    @property
    def _clip(self) -> Path:
        """The folder of the clip itself."""
        return self._temporary

    def _is_ours(self) -> bool:
        return CodingFile.find(self.path) is not None

    def _keep_cameras(self, camera: Camera | None) -> None:
        if camera is not None:
            self._cameras.append(camera)

    @abstractmethod
    def _finish(self) -> None:
        """Writes what describes the clip, once all frames are there."""

    def __enter__(self) -> FolderSink:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        try:
            if kind is None:
                with writing(self.path):
                    self._complete()
        finally:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def _complete(self) -> None:
        if self._cameras:
            save_cameras(self._clip / CAMERAS_FILE, Camera.cat(self._cameras), self.reader.info.fps, self.size)
        self._finish()
        if self.reader.info.meta:
            write_json(self._clip / ABOUT, dict(self.reader.info.meta))
        move_into_place(self._temporary, self.path)


class CodedSink(FolderSink):
    """Integer planes with `coding.json` and, where cameras are known, `cameras.json`."""

    top = 255

    def _begin(self, overwrite: bool) -> None:
        self._coding = OUR_CODING
        if isinstance(self.reader, CodedReader) and self.top == 255 and self.size == self.reader.info.size:
            verbatim = self.reader.verbatim
            if verbatim is not None:
                self.verbatim, self._coding = True, verbatim
                self.channels = tuple(name for name in self.holds if name in self.reader.top)
        super()._begin(overwrite)

    def notes(self) -> tuple[str, ...]:
        if self.verbatim:
            return (*super().notes(), "the source's 8-bit planes were copied as they are.")
        kept = "16" if self.top > 255 else "8"
        return (*super().notes(), f"values are rounded to {kept} bits; depth as 10 / (z + 10).")

    def append(self, gbuffer: GBuffer, rgb: Tensor | None) -> None:
        present = gbuffer.channels()
        for name in self.channels:
            check_codable(self.reader.info.path, name, present[name], self.top, self.start + self.frames)
        self._write({name: self._coding.encode(name, present[name], self.top) for name in self.channels}, rgb)
        self._keep_cameras(gbuffer.camera)
        self.frames += gbuffer.frames

    def copy(self, start: int, stop: int) -> None:
        planes = self.reader.coded(start, stop)
        rgb = self.reader.reference(start, stop)
        with writing(self.path):
            self._write({name: planes[name].int() for name in self.channels}, rgb)
        assert isinstance(self.reader, CodedReader)
        self._keep_cameras(self.reader.cameras(start, stop))
        self.frames += stop - start

    @abstractmethod
    def _write(self, planes: dict[str, Tensor], rgb: Tensor | None) -> None:
        """Stores a run of frames, [T, C, H, W] integers a channel."""

    def _finish(self) -> None:
        info = self.reader.info
        CodingFile(coding=self._coding, fps=info.fps, frames=self.frames, caption=info.caption).save(self._clip)


class PngSink(CodedSink):
    """A folder of 16-bit PNG files a channel."""

    format = "png"
    top = 65535

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


class FlashSink(CodedSink):
    """AlayaRenderer-Flash's windows."""

    format = "flash"
    holds = ORDER

    def _begin(self, overwrite: bool) -> None:
        there = self.reader.top if isinstance(self.reader, CodedReader) else self.channels
        lacking = [name for name in ORDER if name not in there]
        if lacking:
            raise ClipError(
                f"{self.reader.info.path} has no {', '.join(lacking)}; Flash windows hold all of {', '.join(ORDER)}. "
                "Convert to another format, or give the missing buffers."
            )
        super()._begin(overwrite)
        if any(name not in self.channels for name in ORDER):
            raise ClipError(
                f"{self.reader.info.path}: {', '.join(name for name in ORDER if name not in self.channels)} cannot be "
                "read without more being said, and this size or code cannot be copied as it is. Give depth_code=..., "
                "or keep the size."
            )
        self._windows = 0

    def notes(self) -> tuple[str, ...]:
        notes = [*super().notes()]
        if not self.verbatim:
            notes.append("depth's code is not Flash's own, which is not published.")
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


class VideoSink(CodedSink):
    """One lossless video a channel."""

    format = "video"
    holds = VIDEO_CHANNELS
    keeps_rgb: bool = False
    """Whether the reference picture is lossless too, which browsers do not play."""

    def _begin(self, overwrite: bool) -> None:
        super()._begin(overwrite)
        self._stack = ExitStack()
        self._writers: dict[str, VideoWriter] = {}

    def _write(self, planes: dict[str, Tensor], rgb: Tensor | None) -> None:
        for name, values in planes.items():
            pictures = rearrange(_three_planes(values), "t c h w -> t h w c").to(torch.uint8)
            self._writer(name, lossless=True).append(pictures)
        if rgb is not None:
            # 4:2:0 video pads odd sizes, and would no longer fit its neighbours.
            odd = self.size[0] % 2 or self.size[1] % 2
            self._writer("rgb", lossless=bool(odd) or self.keeps_rgb).append(to_uint8(rgb))

    @property
    def _prefix(self) -> str:
        return self.path.name

    def _writer(self, name: str, lossless: bool) -> VideoWriter:
        if name not in self._writers:
            path = self._clip / f"{self._prefix}_{name}.mp4"
            writer = VideoWriter(path, fps=self.reader.info.fps, size=self.size, lossless=lossless)
            self._writers[name] = self._stack.enter_context(writer)
        return self._writers[name]

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is not None:
            for writer in self._writers.values():
                writer.discard()
        super().__exit__(kind, error, trace)

    def _complete(self) -> None:
        self._stack.close()
        super()._complete()


def _three_planes(values: Tensor) -> Tensor:
    return repeat(values, "t 1 h w -> t 3 h w") if values.shape[1] == 1 else values


class UpstreamSink(VideoSink):
    """One clip of upstream's dataset: `clip_0001/clip_0001_albedo.mp4`, ..., and the table of captions."""

    format = "upstream"
    keeps_rgb = True
    CLIP = "clip_0001"

    @property
    def _clip(self) -> Path:
        return self._temporary / self.CLIP

    @property
    def _prefix(self) -> str:
        return self.CLIP

    def _is_ours(self) -> bool:
        return CodingFile.find(self.path / self.CLIP) is not None

    def notes(self) -> tuple[str, ...]:
        lacking = [name for name in VIDEO_CHANNELS if name not in self.channels]
        return super().notes() + ((f"upstream's clips have {', '.join(lacking)} too.",) if lacking else ())

    def _finish(self) -> None:
        super()._finish()
        first = "rgb" if self.reader.info.has_reference else self.channels[0]
        row = {"video": f"{self.CLIP}/{self.CLIP}_{first}.mp4", "prompt": self.reader.info.caption}
        with (self._temporary / METADATA).open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([COLUMNS, [row[name] for name in COLUMNS]])


class ExrSink(FolderSink):
    """Lossless EXR files, one part a channel, under names that Nuke and Blender show as layers.

    Sky is 1e10 metres, as in Blender's own files. The picture is stored scene-linear, as the sRGB curve's inverse.
    """

    format = "exr"
    holds = tuple(CHANNELS)

    def _is_ours(self) -> bool:
        stated = self.path / SIDECAR
        return stated.exists() and WRITTEN in stated.read_text(encoding="utf-8")

    def append(self, gbuffer: GBuffer, rgb: Tensor | None) -> None:
        if "instance" in self.channels:
            ids = gbuffer.channels()["instance"]
            check_codable(self.reader.info.path, "instance", ids, INT32_MAX, self.start + self.frames)
        linear = None if rgb is None else srgb_to_linear(rgb).half().numpy()
        for index in range(gbuffer.frames):
            parts = {} if linear is None else {"beauty": dict(zip("RGB", linear[index], strict=True))}
            for name in self.channels:
                parts[name] = dict(zip(COMPONENTS[name], _exr_planes(gbuffer, name, index), strict=True))
            if "motion" in parts:
                parts["motion"]["Z"] = np.zeros(self.size, np.float32)  # Blender passes over layers of two channels
            self.frames += 1
            path = self._clip / f"{self.path.name}_{self.frames:06d}.exr"
            write_exr_parts(path, parts, {"framesPerSecond": _rational(self.reader.info.fps), MOTION_ATTRIBUTE: MOTION})
        self._keep_cameras(gbuffer.camera)

    def _finish(self) -> None:
        stated = ClipConventions(
            format="exr",
            fps=self.reader.info.fps,
            normals="camera",
            normal_axes="opengl",
            normal_code="signed",
            unit="m",
        )
        stated.save(self._clip / SIDECAR, (WRITTEN,))


def _exr_planes(gbuffer: GBuffer, name: str, index: int) -> np.ndarray:
    values = gbuffer.channels()[name][index]
    if name == "depth":
        values = values.masked_fill(values.isinf(), EXR_SKY)
    return values.numpy().astype(np.uint32 if name == "instance" else np.float32)


def _rational(fps: float) -> Fraction:
    return Fraction(fps).limit_denominator(1001)


class SideBySideSink(Sink):
    """One video of all channels in a grid, to look at."""

    format = "side-by-side"
    holds = tuple(CHANNELS)

    def _begin(self, overwrite: bool) -> None:
        tiles = len(self.channels) + self.reader.info.has_reference
        columns = min(tiles, GRID_COLUMNS)
        rows = -(-tiles // columns)
        self._grid = (rows, columns)
        size = (rows * self.size[0], columns * self.size[1])
        self._video = VideoWriter(self.path, fps=self.reader.info.fps, size=size, overwrite=overwrite)

    def notes(self) -> tuple[str, ...]:
        return ("a video to look at: its values are not meant to be read back.",)

    def append(self, gbuffer: GBuffer, rgb: Tensor | None) -> None:
        tiles = [] if rgb is None else [to_uint8(rgb)]
        tiles += [channel_picture(gbuffer, name) for name in self.channels]
        rows, columns = self._grid
        tiles += [torch.zeros_like(tiles[0])] * (rows * columns - len(tiles))
        grid = rearrange(torch.stack(tiles), "(r c) t h w p -> t (r h) (c w) p", r=rows)
        self._video.append(grid)
        self.frames += gbuffer.frames

    def __enter__(self) -> SideBySideSink:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is None:
            self._video.close()
        else:
            self._video.discard()


SINKS: dict[str, type[Sink]] = {
    sink.format: sink for sink in (ClipSink, ExrSink, PngSink, FlashSink, VideoSink, UpstreamSink, SideBySideSink)
}
