"""Channels as integer planes (PNG, video, Flash windows): what the numbers mean, and the readers' common part.

Such files do not say what their numbers mean. Colour and normals have usual codes, which are taken and reported;
depth has none, so it becomes metres only when its code is given (`depth_code=...`) or when Flowshade wrote the files
and says so in `coding.json`. The untouched planes are there either way (`ClipReader.coded`).
"""

from __future__ import annotations

import json
from abc import abstractmethod
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from einops import repeat
from jaxtyping import Int, Shaped, UInt8
from torch import Tensor

from flowshade.color import linear_to_srgb, srgb_to_linear
from flowshade.gbuffer.io.cameras import CAMERAS_FILE, load_cameras
from flowshade.gbuffer.io.conventions import (
    NORMAL_SIGNS,
    AlbedoCode,
    ClipConventions,
    NormalAxes,
    View,
    camera_normals,
    unit_normals,
)
from flowshade.gbuffer.io.depth import DepthCode
from flowshade.gbuffer.io.errors import ClipError
from flowshade.gbuffer.io.limits import read_json
from flowshade.gbuffer.io.reader import ClipInfo, ClipReader, settle_fps
from flowshade.types import CHANNELS, Camera, GBuffer

CODING_FILE = "coding.json"
SHORTEST_NORMAL = 0.1
"""A decoded normal shorter than this is the code of "no surface"; 8 bits cannot write 0 exactly."""
CODED_CHANNELS = ("albedo", "normal", "depth", "roughness", "metallic", "instance")
"""Channels that integer planes can hold. Emission and motion have no upper bound."""


@dataclass(frozen=True, kw_only=True)
class Coding:
    """What the integers of a coded clip mean."""

    albedo_code: AlbedoCode = "srgb"
    normal_axes: NormalAxes = "opengl"
    """Of camera-space normals, written as (n + 1) / 2; see `ClipConventions`."""
    depth_code: str | None = None
    """See `DepthCode`; None = unknown, depth is left out."""

    def __post_init__(self) -> None:
        ClipConventions(albedo_code=self.albedo_code, normal_axes=self.normal_axes, depth_code=self.depth_code)

    def decode(self, channel: str, values: Shaped[Tensor, "T C H W"], top: int) -> Tensor:
        """Integers of one channel -> the in-memory convention."""
        if channel == "instance":
            return values.to(torch.int32)
        if channel == "depth":
            assert self.depth_code is not None
            return DepthCode.parse(self.depth_code).decode(values, top)
        unit = values.float() / top
        if channel == "albedo":
            return srgb_to_linear(unit) if self.albedo_code == "srgb" else unit
        if channel == "normal":
            return unit_normals((2 * unit - 1) * self._normal_signs, SHORTEST_NORMAL)
        return unit

    def encode(self, channel: str, value: Tensor, top: int) -> Int[Tensor, "T C H W"]:
        """The in-memory convention -> integers, rounded to nearest."""
        if channel == "instance":
            if int(value.max()) > top:
                raise ClipError(
                    f"instance ids reach {int(value.max())} and the file holds {top} at most; "
                    "leave the channel out, or convert to a clip folder."
                )
            return value.int()
        if channel == "depth":
            assert self.depth_code is not None
            return DepthCode.parse(self.depth_code).encode(value, top)
        if channel == "albedo":
            unit = linear_to_srgb(value) if self.albedo_code == "srgb" else value
        elif channel == "normal":
            unit = (value * self._normal_signs + 1) / 2
        else:
            unit = value
        return (unit.clamp(0, 1) * top).round().int()

    @property
    def _normal_signs(self) -> Tensor:
        return torch.tensor(NORMAL_SIGNS[self.normal_axes])[:, None, None]


@dataclass(frozen=True, kw_only=True)
class CodingFile:
    """`coding.json`, which Flowshade writes beside integer planes so that they can be read back without options."""

    coding: Coding
    fps: float
    frames: int
    """Frames that are the clip's own; a format of fixed windows may hold more, repeated."""
    caption: str = ""

    def save(self, folder: Path) -> None:
        values = {"fps": self.fps, "frames": self.frames, "caption": self.caption, **asdict(self.coding)}
        (folder / CODING_FILE).write_text(json.dumps(values, indent=1) + "\n")

    @staticmethod
    def find(folder: Path) -> CodingFile | None:
        path = folder / CODING_FILE
        if not path.exists():
            return None
        try:
            values = read_json(path)
            fps, frames, caption = values.pop("fps"), values.pop("frames"), values.pop("caption")
            return CodingFile(coding=Coding(**values), fps=fps, frames=frames, caption=caption)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, ClipError):
                raise
            raise ClipError(
                f"{path} is not a coding file ({error}); expected JSON written by Flowshade. Remove it and give "
                "options."
            ) from error


class CodedReader(ClipReader):
    """Common part of readers of integer planes. A subclass finds the files and gives raw planes.

    Args:
        path: the clip's folder.
        conventions: `depth_code` (without it depth is left out), `depth_kind`, `albedo_code` (else "srgb"), `normals`
            (else "camera"), `normal_axes` (else "opengl"), `up`, `handedness`, `fov`, `cameras` (else `cameras.json`
            in the folder), `fps`.
    """

    options = frozenset(
        ("depth_code", "depth_kind", "albedo_code", "normals", "normal_axes", "up", "handedness", "fov", "cameras")
    )
    format: str
    implied: ClipConventions = ClipConventions()
    """What the format itself says."""
    top: dict[str, int]
    """Largest integer of every channel that is there."""

    def __init__(self, path: Path, conventions: ClipConventions) -> None:
        self._path = path
        self._folder = path if path.is_dir() else path.parent
        self._stated = CodingFile.find(self._folder)
        self._conventions = conventions = conventions.over(self.implied)
        given = {name: getattr(conventions, name) for name in ("depth_code", "albedo_code", "normal_axes")}
        base = self._stated.coding if self._stated is not None else Coding()
        self._coding = replace(base, **{name: value for name, value in given.items() if value is not None})
        self.top = {}
        warnings: list[str] = []
        frames, size, stated_fps = self._find(warnings)
        if self._stated is not None and frames != self._stated.frames:
            raise ClipError(
                f"{path} holds {frames} frames and {CODING_FILE} says {self._stated.frames}; it was copied in part or "
                f"changed. Copy it again, or remove {CODING_FILE} and give options."
            )
        self._assumed(warnings)
        camera, camera_fps = self._load_cameras(conventions.cameras, frames, size)
        if conventions.normals == "world" and "normal" in self.top and camera is None:
            raise ClipError(world_normals_need_cameras(path))
        self._view = View(path, conventions, camera, size)
        stated_fps = self._stated.fps if self._stated is not None else stated_fps or camera_fps
        self.info = ClipInfo(
            path=path,
            format=self.format,
            frames=frames,
            size=size,
            fps=settle_fps(conventions.fps, stated_fps, warnings),
            channels=tuple(name for name in CHANNELS if name in self.top and self._decodes(name)),
            axes=self._axes(),
            has_camera=camera is not None,
            has_reference=self._has_pictures(),
            caption=self._caption(),
            warnings=tuple(warnings),
        )
        if not self.info.channels:
            raise ClipError(
                f"{path} holds only {' and '.join(self.top) or 'pictures'}, whose code is not stated; expected "
                "depth_code='inverse:10', 'unit:0.001' or 'far:100' (see DepthCode). Give the one your tool uses."
                if "depth" in self.top
                else f"{path} holds {', '.join(self.top) or 'pictures only'}, and nothing is left to read of it. Give "
                "normals='camera' or 'world'."
            )

    @abstractmethod
    def _find(self, warnings: list[str]) -> tuple[int, tuple[int, int], float | None]:
        """Finds the files, fills `top`; gives the number of frames, the size, and fps if stated."""

    @abstractmethod
    def _raw(self, channel: str, start: int, stop: int) -> Shaped[Tensor, "T C H W"]:
        """Planes of one channel as stored, integers."""

    def _has_pictures(self) -> bool:
        return False

    def _numbers(self) -> list[int] | None:
        """The files' frame numbers, to match cameras with."""
        return None

    def _caption(self) -> str:
        return self._stated.caption if self._stated is not None else ""

    def _decodes(self, channel: str) -> bool:
        if channel == "normal":
            return self._conventions.normals != "skip"
        return channel != "depth" or self._coding.depth_code is not None

    def _assumed(self, warnings: list[str]) -> None:
        """Says what was taken for granted."""
        if self._stated is not None:
            return
        stated = self._conventions
        if "depth" in self.top and self._coding.depth_code is None:
            warnings.append(
                f"depth is in the file's own {'8' if self.top['depth'] == 255 else '16'}-bit code, which is not "
                "stated, so it is left out; give depth_code='inverse:S', 'unit:M' or 'far:M' to turn it into metres."
            )
        if "normal" in self.top and stated.normals != "skip":
            if stated.normals != "world" and stated.normal_axes is None:
                warnings.append("normals are taken as camera space, Y up; give normal_axes='directx' if Y points down.")
            if stated.normals == "world" and (stated.up is None or stated.handedness is None):
                warnings.append("world normals are taken as right-handed, Z up, as far as not stated (up, handedness).")
        if "albedo" in self.top and stated.albedo_code is None:
            warnings.append("albedo is taken as sRGB; give albedo_code='linear' if it is linear.")

    def _axes(self) -> str:
        coding, stated = self._coding, self._conventions
        depth = f"depth {coding.depth_code} -> metres" if coding.depth_code else "depth code unknown"
        if stated.depth_kind == "ray":
            depth += ", ray -> planar"
        world = f"world {stated.up or 'z'} up, {stated.handedness or 'right'}-handed -> camera space"
        space = {"world": world, "skip": "left out"}.get(stated.normals or "", f"camera space, {coding.normal_axes}")
        return f"albedo {coding.albedo_code}; normals {space}, (n+1)/2; {depth}"

    def _load_cameras(
        self, given: str | None, frames: int, size: tuple[int, int]
    ) -> tuple[Camera | None, float | None]:
        path = Path(given) if given is not None else self._folder / CAMERAS_FILE
        if given is None and not path.exists():
            return None, None
        loaded = load_cameras(path, self._numbers(), frames, size)
        return loaded.camera, loaded.fps

    def _read(self, start: int, stop: int) -> GBuffer:
        values = {name: self._decoded(name, start, stop) for name in self.info.channels}
        return GBuffer(**values, camera=self._view.cameras(start, stop))

    def _decoded(self, channel: str, start: int, stop: int) -> Tensor:
        planes = self._planes(channel, start, stop)
        if channel == "normal" and self._conventions.normals == "world":
            signed = 2 * planes.float() / self.top[channel] - 1
            turned = camera_normals(signed, self._conventions, self._view.cameras(start, stop))
            return unit_normals(turned, SHORTEST_NORMAL)
        value = self._coding.decode(channel, planes, self.top[channel])
        return self._view.planar(value, self._conventions.depth_kind, start) if channel == "depth" else value

    def _planes(self, channel: str, start: int, stop: int) -> Shaped[Tensor, "T C H W"]:
        """As many planes as the channel has; a grey channel stored as colour gives its green plane."""
        raw = self._raw(channel, start, stop)
        if raw.shape[1] == CHANNELS[channel]:
            return raw
        if CHANNELS[channel] == 1:
            return raw[:, 1:2]
        raise ClipError(
            f"{self._path}: channel {channel!r} has {raw.shape[1]} planes; expected {CHANNELS[channel]}. Write it "
            "in colour."
        )

    def _coded(self, start: int, stop: int) -> dict[str, UInt8[Tensor, "T 3 H W"]]:
        wide = [name for name, top in self.top.items() if top != 255]
        if wide:
            raise ClipError(
                f"{self._path}: {', '.join(wide)} are not 8 bit; upstream's planes are. Convert to 8 bit first."
            )
        raw = {name: self._raw(name, start, stop) for name in self.top}
        return {name: repeat(v, "t 1 h w -> t 3 h w") if v.shape[1] == 1 else v for name, v in raw.items()}


def world_normals_need_cameras(path: Path) -> str:
    """The sentence for world-space normals without cameras."""
    return (
        f"{path}: normals are in world space and no {CAMERAS_FILE} is beside them; expected cameras to turn them into "
        "camera space. Give cameras=FILE, normals='camera' if they are in camera space already, or normals='skip' to "
        "do without."
    )
