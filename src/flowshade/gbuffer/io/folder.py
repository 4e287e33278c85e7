"""Flowshade's own clip folder: one lossless EXR file a frame, a manifest, optional reference pictures.

    clip.json            what the clip is: frames, fps, size, channels and how each is stored, caption, meta
    frames/000000.exr    the channels of a frame (albedo.R, ..., depth.Z, normal.X, ...) and its camera
    rgb/000000.png       the reference picture of a frame, 8-bit display sRGB
    particles/000000.png rain, snow and the like of a frame, to lay over the picture: display sRGB and a mask as alpha

Any EXR viewer shows the frames. Depth, normals, emission and motion are stored as float32 and instance ids as
integers: what was written is what is read, bit for bit. Albedo, roughness and metallic are float16 (relative
error at most 2**-11) unless the clip is written with `precision="float32"`.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from flowshade.color import from_bytes
from flowshade.files import temporary_beside, write_json
from flowshade.gbuffer.io.cameras import check_cameras
from flowshade.gbuffer.io.conventions import ClipConventions
from flowshade.gbuffer.io.errors import ClipError
from flowshade.gbuffer.io.exr import ExrFile, read_exr, write_exr
from flowshade.gbuffer.io.limits import MAX_SIDE, Fields, check_fps, read_json
from flowshade.gbuffer.io.outputs import check_folder, writing
from flowshade.gbuffer.io.pictures import read_png, write_png
from flowshade.gbuffer.io.reader import ClipInfo, ClipReader, settle_fps, stack
from flowshade.gbuffer.view import to_uint8
from flowshade.types import CHANNELS, Camera, GBuffer

FORMAT = "flowshade-clip"
VERSION = 1
MANIFEST = "clip.json"
COMPONENTS = {
    "albedo": "RGB",
    "normal": "XYZ",
    "depth": "Z",
    "roughness": "V",
    "metallic": "V",
    "emission": "RGB",
    "motion": "XY",
    "instance": "I",
}
"""EXR component names of every channel, in plane order."""
AXES = (
    "albedo linear Rec.709; normal camera space, +X right +Y up +Z to the viewer; depth planar metres, inf = sky; "
    "motion pixels, x right y down, previous minus now; camera-to-world, world +Z up"
)
HALF_CHANNELS = ("albedo", "roughness", "metallic")
"""Stored as float16 in a clip of precision "mixed": they lie in [0, 1]."""

Precision = Literal["mixed", "float32"]


def _dtype(channel: str, precision: Precision) -> str:
    if channel == "instance":
        return "uint32"
    return "float16" if precision == "mixed" and channel in HALF_CHANNELS else "float32"


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The contents of clip.json."""

    frames: int
    fps: float
    size: tuple[int, int]
    channels: dict[str, str]
    """Name of every stored channel -> its dtype."""
    camera: bool
    rgb: bool
    caption: str
    meta: dict[str, Any]

    def save(self, path: Path) -> None:
        header = {"format": FORMAT, "version": VERSION, "axes": AXES}
        write_json(path, {**header, **vars(self)})

    @staticmethod
    def load(path: Path) -> Manifest:
        """Reads clip.json. Raises: ClipError, which names the field that is wrong."""
        fields = Fields(path, read_json(path))
        format, version = fields.text("format"), fields.whole("version")
        if (format, version) != (FORMAT, VERSION):
            raise ClipError(
                f"{path} is {format!r} version {version}; expected {FORMAT!r} version {VERSION}. "
                "Use the Flowshade that wrote it, or convert the clip again."
            )
        size = fields.items("size", expected := f"height and width in pixels, 1 to {MAX_SIDE}")
        if len(size) != 2 or not all(type(side) is int and 0 < side <= MAX_SIDE for side in size):
            raise fields.fail("size", expected)
        channels = fields.get("channels", expected := f"some of {', '.join(CHANNELS)}, each with its type")
        if not isinstance(channels, dict) or not channels or not set(channels) <= set(CHANNELS):
            raise fields.fail("channels", expected)
        meta = fields.get("meta", expected := "names and values in braces")
        if not isinstance(meta, dict):
            raise fields.fail("meta", expected)
        return Manifest(
            frames=fields.whole("frames"),
            fps=fields.fps(),
            size=(size[0], size[1]),
            channels=channels,
            camera=fields.flag("camera"),
            rgb=fields.flag("rgb"),
            caption=fields.text("caption"),
            meta=meta,
        )


class ClipFolderReader(ClipReader):
    """Reads Flowshade's own clip folder (see this module)."""

    def __init__(self, path: Path, conventions: ClipConventions) -> None:
        self._path = path
        self._manifest = manifest = Manifest.load(path / MANIFEST)
        self._check_frames()
        self.info = ClipInfo(
            path=path,
            format="clip",
            frames=manifest.frames,
            size=manifest.size,
            fps=settle_fps(conventions.fps, manifest.fps, []),
            channels=tuple(name for name in CHANNELS if name in manifest.channels),
            axes=AXES,
            has_camera=manifest.camera,
            has_reference=manifest.rgb,
            caption=manifest.caption,
        )

    @property
    def meta(self) -> dict[str, Any]:
        """What the writer was given as `meta`."""
        return self._manifest.meta

    def _check_frames(self) -> None:
        kinds = ["frames"] + ["rgb"] * self._manifest.rgb
        for kind in kinds:
            present = sum(1 for entry in os.scandir(self._path / kind)) if (self._path / kind).is_dir() else 0
            if present != self._manifest.frames:
                raise ClipError(
                    f"{self._path / kind} holds {present} files and {MANIFEST} says {self._manifest.frames} frames; "
                    "the clip was changed or copied in part. Copy or write it again."
                )

    def _read(self, start: int, stop: int) -> GBuffer:
        files = [self._read_frame(index) for index in range(start, stop)]
        channels = stack([self._channels(file) for file in files])
        return GBuffer(**channels, camera=self._camera(files, start))

    def _read_frame(self, index: int) -> ExrFile:
        path = self._path / "frames" / f"{index:06d}.exr"
        if not path.exists():
            raise ClipError(f"{path} is missing; expected one file a frame. Copy or write the clip again.")
        file = read_exr(path)
        if file.size != self._manifest.size:
            raise ClipError(f"{path} is {file.size}; {MANIFEST} says {self._manifest.size}. Write the clip again.")
        missing = [name for name in self._stored_names() if name not in file.channels]
        if missing:
            raise ClipError(f"{path} lacks {', '.join(missing)}, which {MANIFEST} promises. Write the clip again.")
        return file

    def _stored_names(self) -> list[str]:
        return [f"{name}.{component}" for name in self._manifest.channels for component in COMPONENTS[name]]

    def _channels(self, file: ExrFile) -> dict[str, Tensor]:
        return {name: _to_tensor(name, file.channels) for name in self.info.channels}

    def _camera(self, files: list[ExrFile], start: int) -> Camera | None:
        if not self._manifest.camera:
            return None
        intrinsics = torch.tensor(np.stack([_attribute(file, "intrinsics", (4,)) for file in files]))
        pose = torch.tensor(np.stack([_attribute(file, "cameraToWorld", (4, 4)) for file in files]))
        camera = Camera(intrinsics=intrinsics, pose=pose)
        check_cameras(self._path / "frames", camera, range(start, start + len(files)))
        return camera

    def _reference(self, start: int, stop: int) -> Float[Tensor, "T 3 H W"] | None:
        pictures = [self._picture(self._path / "rgb" / f"{index:06d}.png") for index in range(start, stop)]
        return from_bytes(torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2))

    def particles(self, start: int, stop: int) -> Float[Tensor, "T 4 H W"] | None:
        """The particle layer of frames `start` to `stop` - 1: display sRGB and mask, [0, 1]; None if there is none.

        Raises:
            ClipError: a file is missing or of another size.
        """
        if not (self._path / "particles").is_dir():
            return None
        layers = [self._picture(self._path / "particles" / f"{i:06d}.png", planes=4) for i in range(start, stop)]
        return from_bytes(torch.from_numpy(np.stack(layers)).permute(0, 3, 1, 2))

    def _picture(self, path: Path, planes: int = 3) -> np.ndarray:
        picture = read_png(path)
        expected = (*self._manifest.size, planes)
        if picture.shape != expected or picture.dtype != np.uint8:
            raise ClipError(
                f"{path} is {picture.dtype} {list(picture.shape)}; expected uint8 {list(expected)} like the other "
                "pictures of the clip. Write it again."
            )
        return picture


def _attribute(file: ExrFile, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """A header's numbers; NaN, which `check_cameras` reports, where they are missing or of another shape."""
    try:
        values = np.asarray(file.header.get(name, np.nan), np.float32)
    except (TypeError, ValueError):
        values = np.float32(np.nan)
    return np.asarray(values) if np.shape(values) == shape else np.full(shape, np.nan, np.float32)


def _to_tensor(channel: str, planes: dict[str, np.ndarray]) -> Tensor:
    """The planes of one channel -> [C, H, W] float32, or int32 for ids."""
    values = np.stack([planes[f"{channel}.{component}"] for component in COMPONENTS[channel]])
    return torch.from_numpy(values.astype(np.int32 if channel == "instance" else np.float32, copy=False))


class ClipWriter:
    """Writes Flowshade's own clip folder, a run of frames at a time, in constant memory.

    The folder appears under its own name when `close` is called (or the `with` block ends well); until then, and
    after an error, only a temporary neighbour exists and is removed.

    Args:
        path: the folder to make.
        size: height and width in pixels.
        fps: frames per second.
        channels: which channels to store; None stores those of the first run.
        caption: what the clip shows, in words.
        meta: anything JSON can hold, given back by the reader.
        precision: "mixed" (float16 for albedo, roughness, metallic) or "float32" (everything bit for bit).
        overwrite: replace an existing clip folder (never any other folder).
        resume_at: None for a folder that is written in one go. A number keeps what is written in `partial_folder(path)`
            when the writer stops early, and goes on there after that many frames.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        size: tuple[int, int],
        fps: float,
        channels: tuple[str, ...] | None = None,
        caption: str = "",
        meta: dict[str, Any] | None = None,
        precision: Precision = "mixed",
        overwrite: bool = False,
        resume_at: int | None = None,
    ) -> None:
        self.path = Path(path)
        self.size = (int(size[0]), int(size[1]))
        self.frames = resume_at or 0
        _check_clip_request(self.path, channels, fps, overwrite)
        self._fps = float(fps)
        self._channels = channels
        self._caption = caption
        self._meta = json.loads(json.dumps(meta or {}))
        self._precision: Precision = precision
        self._has_camera: bool | None = None
        self._has_rgb: bool | None = None
        self._keeps = resume_at is not None
        self._temporary = partial_folder(self.path) if self._keeps else temporary_beside(self.path)
        if not self.frames:
            shutil.rmtree(self._temporary, ignore_errors=True)
        with writing(self.path):
            (self._temporary / "frames").mkdir(parents=True, exist_ok=True)
        self._open = True

    def append(
        self,
        gbuffer: GBuffer,
        rgb: Float[Tensor, "T 3 H W"] | None = None,
        blurred: Float[Tensor, "T 3 H W"] | None = None,
        particles: Float[Tensor, "T 4 H W"] | None = None,
    ) -> None:
        """Adds frames, with their reference pictures (display sRGB in [0, 1]) if the clip has any.

        `blurred` are the same with motion blur, kept as `blur/000000.png` beside the sharp ones; `particles` are
        layers to lay over either, display sRGB and mask, kept as `particles/000000.png`.

        Raises:
            ClipError: another size, other channels, camera or pictures than the first run, or a full disk.
        """
        with writing(self.path):
            self._append(gbuffer, {"rgb": rgb, "blur": blurred, "particles": particles})

    def _append(self, gbuffer: GBuffer, given: dict[str, Tensor | None]) -> None:
        self._settle(gbuffer, given["rgb"])
        gbuffer = gbuffer.to("cpu")
        pictures = {kind: to_uint8(value.float().cpu()).numpy() for kind, value in given.items() if value is not None}
        for kind in pictures:
            (self._temporary / kind).mkdir(exist_ok=True)
        for index in range(gbuffer.frames):
            name = f"{self.frames:06d}"
            write_exr(
                self._temporary / "frames" / f"{name}.exr", self._planes(gbuffer, index), _attributes(gbuffer, index)
            )
            for kind, values in pictures.items():
                write_png(self._temporary / kind / f"{name}.png", values[index])
            self.frames += 1

    def _settle(self, gbuffer: GBuffer, rgb: Tensor | None) -> None:
        """Fixes on the first run what every later one must repeat, and checks it."""
        if not self._open:
            raise ClipError(f"{self.path} is closed; open another ClipWriter to write more.")
        if self._channels is None:
            self._channels = tuple(gbuffer.channels())
        if self._has_camera is None:
            self._has_camera, self._has_rgb = gbuffer.camera is not None, rgb is not None
        if gbuffer.size != self.size:
            raise ClipError(f"{self.path} got frames of {gbuffer.size}; expected {self.size}. Resize them first.")
        lacking = [name for name in self._channels if name not in gbuffer.channels()]
        if lacking:
            raise ClipError(
                f"{self.path} got frames with {', '.join(gbuffer.channels())}; expected also {', '.join(lacking)}. "
                "Give every run the same channels, or name fewer in channels=..."
            )
        for what, first, now in (
            ("a camera", self._has_camera, gbuffer.camera is not None),
            ("reference pictures", self._has_rgb, rgb is not None),
        ):
            if first != now:
                raise ClipError(
                    f"{self.path}: the first frames came {'with' if first else 'without'} {what} and frame "
                    f"{self.frames} {'with' if now else 'without'}; give {what} for all frames or for none."
                )
        if rgb is not None and tuple(rgb.shape) != (gbuffer.frames, 3, *self.size):
            raise ClipError(
                f"{self.path} got rgb {list(rgb.shape)}; expected {[gbuffer.frames, 3, *self.size]}, float in [0, 1]."
            )

    def _planes(self, gbuffer: GBuffer, index: int) -> dict[str, np.ndarray]:
        present, planes = gbuffer.channels(), {}
        for name in self._channels or ():
            values = present[name][index].detach().numpy().astype(_dtype(name, self._precision))  # [C, H, W]
            planes |= {f"{name}.{component}": values[plane] for plane, component in enumerate(COMPONENTS[name])}
        return planes

    def close(self) -> None:
        """Writes the manifest and gives the folder its name.

        Raises:
            ClipError: no frame was appended, or the folder cannot be written.
        """
        if not self._open:
            return
        if self.frames == 0:
            self.discard()
            raise ClipError(f"{self.path} got no frames; append at least one before closing.")
        assert self._channels is not None
        manifest = Manifest(
            frames=self.frames,
            fps=self._fps,
            size=self.size,
            channels={name: _dtype(name, self._precision) for name in self._channels},
            camera=bool(self._has_camera),
            rgb=bool(self._has_rgb),
            caption=self._caption,
            meta=self._meta,
        )
        try:
            with writing(self.path):
                manifest.save(self._temporary / MANIFEST)
                move_into_place(self._temporary, self.path)
        finally:
            self.discard()

    def discard(self) -> None:
        """Removes what was written so far, unless the clip can be resumed."""
        self._open = False
        if self._keeps:
            return
        shutil.rmtree(self._temporary, ignore_errors=True)

    def __enter__(self) -> ClipWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()


def partial_folder(path: Path | str) -> Path:
    """Where a clip that can be resumed is kept until it is complete."""
    return Path(path).with_name(f".{Path(path).name}.part")


def _attributes(gbuffer: GBuffer, index: int) -> dict[str, Any]:
    if gbuffer.camera is None:
        return {}
    intrinsics = gbuffer.camera.intrinsics[index].float().tolist()
    pose = gbuffer.camera.pose[index].float().contiguous().numpy()
    return {"intrinsics": intrinsics, "cameraToWorld": pose}


def _check_clip_request(path: Path, channels: tuple[str, ...] | None, fps: float, overwrite: bool) -> None:
    unknown = [name for name in channels or () if name not in CHANNELS]
    if unknown or channels == ():
        raise ClipError(f"channels {unknown or 'is empty'}; expected some of {', '.join(CHANNELS)}.")
    check_fps(fps, "fps")
    check_folder(path)
    if not path.exists():
        return
    if not overwrite:
        raise ClipError(f"{path} exists already; give another name, or --overwrite (overwrite=True in Python).")
    if not (path / MANIFEST).exists():
        raise ClipError(f"{path} is not a Flowshade clip, so it is not overwritten; give another name.")


def move_into_place(temporary: Path, path: Path) -> None:
    """Renames a finished folder to its own name; what was there before is removed only once it is in place."""
    if not path.exists():
        temporary.replace(path)
        return
    old = path.with_name(f"{temporary_beside(path).name}.old")
    path.replace(old)
    try:
        temporary.replace(path)
    except OSError:
        old.replace(path)
        raise
    shutil.rmtree(old)


def write_clip(
    path: Path | str, gbuffer: GBuffer, fps: float, *, rgb: Float[Tensor, "T 3 H W"] | None = None, **options: Any
) -> None:
    """Writes a clip that is in memory; `options` are those of `ClipWriter`."""
    with ClipWriter(path, size=gbuffer.size, fps=fps, **options) as writer:
        writer.append(gbuffer, rgb)
