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
from typing import Any, Literal

import torch
from einops import repeat
from jaxtyping import Float, Int, Shaped, UInt8
from torch import Tensor
from torch.nn.functional import normalize

from flowshade.color import linear_to_srgb, srgb_to_linear
from flowshade.gbuffer.io.cameras import CAMERAS_FILE, load_cameras
from flowshade.gbuffer.io.reader import ClipError, ClipInfo, ClipReader, settle_fps
from flowshade.types import CHANNELS, Camera, GBuffer

CODING_FILE = "coding.json"
SHORTEST_NORMAL = 0.1
"""A decoded normal shorter than this is the code of "no surface"; 8 bits cannot write 0 exactly."""
CODED_CHANNELS = ("albedo", "normal", "depth", "roughness", "metallic", "instance")
"""Channels that integer planes can hold. Emission and motion have no upper bound."""

AlbedoCode = Literal["srgb", "linear"]
NormalAxes = Literal["opengl", "directx"]


@dataclass(frozen=True)
class DepthCode:
    """How depth is written as integers. `top` is the largest integer: 255 or 65535.

    - `inverse:S`: integer / top = S / (z + S), S in metres; 0 is sky.
    - `unit:M`: integer times M metres (0.001 for millimetres); 0 and top mean nothing was hit.
    - `far:M`: integer / top times M metres; top is sky.
    """

    kind: Literal["inverse", "unit", "far"]
    metres: float

    @staticmethod
    def parse(text: str) -> DepthCode:
        kind, _, number = text.partition(":")
        try:
            metres = float(number)
        except ValueError:
            metres = 0.0
        if kind not in ("inverse", "unit", "far") or not metres > 0:
            raise ClipError(
                f"depth code {text!r} is unknown; expected inverse:METRES (s/(z+s)), unit:METRES (metres a step, "
                "0.001 for millimetres) or far:METRES (metres at the largest value)."
            )
        return DepthCode(kind, metres)

    def __str__(self) -> str:
        return f"{self.kind}:{self.metres:g}"

    def decode(self, values: Shaped[Tensor, "T 1 H W"], top: int) -> Float[Tensor, "T 1 H W"]:
        """Integers -> metres, inf = sky."""
        code = values.to(torch.float64) / top
        if self.kind == "inverse":
            depth = self.metres * (1 - code) / code  # 0 gives inf
        elif self.kind == "unit":
            depth = (values.to(torch.float64) * self.metres).masked_fill((values == 0) | (values == top), torch.inf)
        else:
            depth = (code * self.metres).masked_fill(values == top, torch.inf)
        return depth.float()

    def encode(self, depth: Float[Tensor, "T 1 H W"], top: int) -> Int[Tensor, "T 1 H W"]:
        """Metres -> nearest integers; what lies beyond the code's reach becomes sky."""
        depth = depth.to(torch.float64)
        if self.kind == "inverse":
            return (top * self.metres / (depth + self.metres)).round().int()
        step = self.metres if self.kind == "unit" else self.metres / top
        return (depth / step).round().clamp(0, top).int()


@dataclass(frozen=True, kw_only=True)
class Coding:
    """What the integers of a coded clip mean."""

    albedo_code: AlbedoCode = "srgb"
    normal_axes: NormalAxes = "opengl"
    """Camera space, +X right and Z to the viewer, written as (n + 1) / 2; Y up ("opengl") or down ("directx")."""
    depth_code: str | None = None
    """See `DepthCode`; None = unknown, depth is left out."""

    def __post_init__(self) -> None:
        for name, known in (("albedo_code", ("srgb", "linear")), ("normal_axes", ("opengl", "directx"))):
            if getattr(self, name) not in known:
                raise ClipError(f"{name}={getattr(self, name)!r} is unknown; expected one of {', '.join(known)}.")
        if self.depth_code is not None:
            DepthCode.parse(self.depth_code)

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
            normal = (2 * unit - 1) * self._normal_signs
            return normalize(normal, dim=1).masked_fill(normal.norm(dim=1, keepdim=True) < SHORTEST_NORMAL, 0.0)
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
        return torch.tensor([1.0, -1.0 if self.normal_axes == "directx" else 1.0, 1.0])[:, None, None]


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
            values = json.loads(path.read_text())
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
        fps: frames per second; None takes what the files state.
        depth_code: `inverse:METRES`, `unit:METRES` or `far:METRES`, see `DepthCode`; without it depth is left out.
        albedo_code: "srgb" or "linear"; None takes "srgb".
        normal_axes: "opengl" (Y up) or "directx" (Y down), camera space either way; None takes "opengl".
        cameras: a cameras file; None looks for `cameras.json` in the folder.
    """

    format: str
    top: dict[str, int]
    """Largest integer of every channel that is there."""

    def __init__(
        self,
        path: Path,
        *,
        fps: float | None = None,
        depth_code: str | None = None,
        albedo_code: AlbedoCode | None = None,
        normal_axes: NormalAxes | None = None,
        cameras: Path | str | None = None,
    ) -> None:
        self._path = path
        self._folder = path if path.is_dir() else path.parent
        self._stated = CodingFile.find(self._folder)
        given = {"depth_code": depth_code, "albedo_code": albedo_code, "normal_axes": normal_axes}
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
        self._assumed(given, warnings)
        self._camera, camera_fps = self._load_cameras(cameras, frames, size)
        stated_fps = self._stated.fps if self._stated is not None else stated_fps or camera_fps
        self.info = ClipInfo(
            path=path,
            format=self.format,
            frames=frames,
            size=size,
            fps=settle_fps(fps, stated_fps, warnings),
            channels=tuple(name for name in CHANNELS if name in self.top and self._decodes(name)),
            axes=self._axes(),
            has_camera=self._camera is not None,
            has_reference=self._has_pictures(),
            caption=self._stated.caption if self._stated is not None else "",
            warnings=tuple(warnings),
        )
        if not self.info.channels:
            raise ClipError(
                f"{path} holds only depth, whose code is not stated; expected depth_code='inverse:10', 'unit:0.001' or "
                "'far:100' (see DepthCode). Give the one your tool uses."
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

    def _decodes(self, channel: str) -> bool:
        return channel != "depth" or self._coding.depth_code is not None

    def _assumed(self, given: dict[str, Any], warnings: list[str]) -> None:
        """Says what was taken for granted."""
        if self._stated is not None:
            return
        if "depth" in self.top and self._coding.depth_code is None:
            warnings.append(
                f"depth is in the file's own {'8' if self.top['depth'] == 255 else '16'}-bit code, which is not "
                "stated, so it is left out; give depth_code='inverse:S', 'unit:M' or 'far:M' to turn it into metres."
            )
        if "normal" in self.top and given["normal_axes"] is None:
            warnings.append("normals are taken as camera space, Y up; give normal_axes='directx' if Y points down.")
        if "albedo" in self.top and given["albedo_code"] is None:
            warnings.append("albedo is taken as sRGB; give albedo_code='linear' if it is linear.")

    def _axes(self) -> str:
        coding = self._coding
        depth = f"depth {coding.depth_code} -> metres" if coding.depth_code else "depth code unknown"
        return f"albedo {coding.albedo_code}; normals camera space, {coding.normal_axes}, (n+1)/2; {depth}"

    def _load_cameras(
        self, given: Path | str | None, frames: int, size: tuple[int, int]
    ) -> tuple[Camera | None, float | None]:
        path = Path(given) if given is not None else self._folder / CAMERAS_FILE
        if given is None and not path.exists():
            return None, None
        loaded = load_cameras(path, self._numbers(), frames, size)
        return loaded.camera, loaded.fps

    def _read(self, start: int, stop: int) -> GBuffer:
        values = {
            name: self._coding.decode(name, self._planes(name, start, stop), self.top[name])
            for name in self.info.channels
        }
        return GBuffer(**values, camera=None if self._camera is None else self._camera[start:stop])

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
