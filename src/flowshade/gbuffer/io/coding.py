"""Channels as planes of numbers (pictures, video, Flash windows): what they mean, and the readers' common part.

Such files do not say what their numbers mean. Colour and normals have usual codes, which are taken and reported;
depth has none, so it becomes metres only when its code or unit is given or when Flowshade wrote the files and says so
in `coding.json`. The untouched planes are there either way (`ClipReader.coded`).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from einops import repeat
from jaxtyping import Float, Int, Shaped, UInt8
from torch import Tensor

from flowshade.color import linear_to_srgb, srgb_to_linear
from flowshade.errors import reason
from flowshade.files import write_json
from flowshade.gbuffer.io.cameras import CAMERAS_FILE, load_cameras
from flowshade.gbuffer.io.conventions import (
    NORMAL_SIGNS,
    AlbedoCode,
    ClipConventions,
    NormalAxes,
    View,
    camera_normals,
    check_signed,
    unit_normals,
)
from flowshade.gbuffer.io.depth import DepthCode
from flowshade.gbuffer.io.errors import ClipError
from flowshade.gbuffer.io.limits import Fields, read_json
from flowshade.gbuffer.io.reader import ClipInfo, ClipReader, settle_fps
from flowshade.types import CHANNELS, Camera, GBuffer

CODING_FILE = "coding.json"
SHORTEST_NORMAL = 0.1
"""A decoded normal shorter than this is the code of "no surface"; 8 bits cannot write 0 exactly."""
SHORTEST_SIGNED_NORMAL = 1e-4
"""The same for floating-point normals, which can be 0."""
SKY_DEPTH = 1e9
"""Renderers write 1e10 or more, in any unit, where a ray hits nothing."""
HALF_MAX = 65504.0
"""The largest half float: what larger distances may have become."""
_CODE_NAMES = {"srgb": "sRGB", "linear": "linear"}
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
            unit = (value * self._normal_signs.to(value.device) + 1) / 2
        else:
            unit = value
        return (unit.clamp(0, 1) * top).round().int()

    @property
    def _normal_signs(self) -> Tensor:
        return torch.tensor(NORMAL_SIGNS[self.normal_axes])[:, None, None]


def check_codable(path: Path, channel: str, values: Shaped[Tensor, "T C H W"], top: int, first: int) -> None:
    """Refuses values that integers cannot hold and that clamping would turn into something else.

    Args:
        path: the clip they come from, for messages.
        channel: what they are.
        values: in the in-memory convention.
        top: the largest integer.
        first: number of the first frame.

    Raises:
        ClipError: NaN, a negative distance, or an id below 0 or above `top`.
    """
    if channel == "instance":
        wrong, expected = (values < 0) | (values > top), f"ids from 0 to {top}; leave the channel out"
    elif channel == "depth":
        wrong, expected = ~(values >= 0), "metres from 0 up, and inf for sky; mend the source"
    else:
        wrong, expected = values.isnan(), "a number; mend the source"
    if bool(wrong.any()):
        frame, _, row, column = wrong.nonzero()[0].tolist()
        value = values[wrong][0].item()
        raise ClipError(
            f"{path}: {channel} is {value:g} in frame {first + frame} (row {row}, column {column}), which integers "
            f"cannot hold; expected {expected}, or convert to a clip folder (--to clip), which keeps every value."
        )


OUR_CODING = Coding(depth_code="inverse:10")
"""How Flowshade codes what comes in physical units: albedo sRGB, OpenGL normals, depth 10 / (z + 10)."""


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
        write_json(folder / CODING_FILE, values)

    @staticmethod
    def find(folder: Path) -> CodingFile | None:
        path = folder / CODING_FILE
        if not path.exists():
            return None
        values = read_json(path)
        fields = Fields(path, values)
        fps, frames, caption = fields.fps(), fields.whole("frames"), fields.text("caption")
        try:
            coding = Coding(**{name: v for name, v in values.items() if name not in ("fps", "frames", "caption")})
        except (ClipError, TypeError) as error:  # a value, or a name
            raise ClipError(
                f"{path}: {reason(error)} Expected what Flowshade writes: remove the file and give options, or write "
                "the clip again."
            ) from error
        return CodingFile(coding=coding, fps=fps, frames=frames, caption=caption)


class CodedReader(ClipReader):
    """Common part of readers of planes of numbers. A subclass finds the files and gives raw planes.

    Args:
        path: the clip's folder.
        conventions: `depth_code` or `unit` (without either depth is left out), `depth_kind`, `albedo_code` (else "srgb"
            for integers, "linear" for floating-point numbers), `normals` (else "camera"), `normal_axes` (else
            "opengl"), `normal_code` (of floating-point numbers, else "signed"), `up`, `handedness`, `bits`, `order`,
            `fov`, `cameras` (else `cameras.json` in the folder), `fps`.

    Raises:
        ClipError: files that do not fit each other, or nothing left to read of them.
    """

    options = frozenset(ClipConventions.__dataclass_fields__) - {"format", "fps", "layer"}
    format: str
    implied: ClipConventions = ClipConventions()
    """What the format itself says."""
    asks_normals: bool = False
    """Normals are left out until their space is stated, because the format knows several."""
    top: dict[str, int]
    """Largest number of every channel that is there; 1 for floating-point ones."""

    def __init__(self, path: Path, conventions: ClipConventions) -> None:
        self._path = path
        self._folder = path if path.is_dir() else path.parent
        self._stated = CodingFile.find(self._folder)
        self._conventions = conventions = self._settled(conventions)
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
        self._settle_codes()
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
            channels=self._channels(),
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

    def _channels(self) -> tuple[str, ...]:
        found = {name for name in self.top if self._decodes(name)}
        if self._conventions.normals == "depth":
            if "depth" not in found:
                raise ClipError(f"{self._path}: normals='depth' rebuilds them from depth in metres, and there is none.")
            found.add("normal")
        return tuple(name for name in CHANNELS if name in found)

    def _implied(self) -> ClipConventions:
        """What the format itself says about the files that are there."""
        return self.implied

    def _settled(self, conventions: ClipConventions) -> ClipConventions:
        """What is stated, and what the format implies besides; a stated depth code leaves an implied unit out."""
        implied = self._implied()
        if conventions.depth_code is not None:
            implied = replace(implied, unit=None)
        if conventions.unit is not None:
            implied = replace(implied, depth_code=None)
        return conventions.over(implied)

    def _settle_codes(self) -> None:
        """Fills in the codes that follow from whether numbers are integers."""
        coding, stated = self._coding, self._conventions
        if coding.depth_code is None and stated.unit is not None and "depth" in self.top:
            code = "linear" if self._is_float("depth") else f"unit:{stated.metres!r}"
            coding = replace(coding, depth_code=code)
        if self._is_float("albedo") and stated.albedo_code is None and self._stated is None:
            coding = replace(coding, albedo_code="linear")
        if coding.depth_code == "linear" and "depth" in self.top and not self._is_float("depth"):
            raise ClipError(
                f"{self._path}: depth is stored as integers, and depth_code='linear' has no unit for them; expected "
                "unit=mm or depth_code='unit:METRES'. Give one."
            )
        if stated.bits is not None:
            top = 2**stated.bits - 1
            self.top = {name: min(value, top) if value > 1 else value for name, value in self.top.items()}
        self._coding = coding

    def _is_float(self, channel: str) -> bool:
        return self.top.get(channel) == 1

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
            stated = self._conventions.normals
            return stated not in ("skip", "depth") and not (self.asks_normals and stated is None)
        return channel != "depth" or self._coding.depth_code is not None

    def _assumed(self, warnings: list[str]) -> None:
        """Says what was taken for granted."""
        if self._stated is not None:
            return
        stated = self._conventions
        if "depth" in self.top and self._coding.depth_code is None:
            float_or_integer = "unit" if self._is_float("depth") else f"{self.top['depth'].bit_length()}-bit code"
            warnings.append(
                f"depth is in the file's own {float_or_integer}, which is not stated, so it is left out; give unit=m, "
                "depth_code='inverse:S', 'unit:M' or 'far:M' to turn it into metres."
            )
        if "normal" in self.top and not self._decodes("normal") and stated.normals is None:
            warnings.append("normals may be in camera or world space, which is not stated, so they are left out.")
        if "normal" in self.top and self._decodes("normal"):
            if stated.normals != "world" and stated.normal_axes is None:
                warnings.append("normals are taken as camera space, Y up; give normal_axes='directx' if Y points down.")
            if stated.normals == "world" and (stated.up is None or stated.handedness is None):
                warnings.append("world normals are taken as right-handed, Z up, as far as not stated (up, handedness).")
        if "albedo" in self.top and stated.albedo_code is None:
            code = self._coding.albedo_code
            other = "srgb" if code == "linear" else "linear"
            warnings.append(f"albedo is taken as {_CODE_NAMES[code]}; give albedo_code='{other}' if it is {other}.")

    def _axes(self) -> str:
        coding, stated = self._coding, self._conventions
        depth = f"depth {coding.depth_code} -> metres" if coding.depth_code else "depth code unknown"
        if coding.depth_code == "linear" and stated.metres != 1:
            depth = f"depth {stated.unit} -> metres"
        if stated.depth_kind == "ray":
            depth += ", ray -> planar"
        world = f"world {stated.up or 'z'} up, {stated.handedness or 'right'}-handed -> camera space"
        spaces = {"world": world, "skip": "left out", "depth": "rebuilt from depth"}
        space = spaces.get(stated.normals or "", f"camera space, {coding.normal_axes}")
        signed = self._is_float("normal") and stated.normal_code != "half"
        return f"albedo {coding.albedo_code}; normals {space}, {'signed' if signed else '(n+1)/2'}; {depth}"

    def _load_cameras(
        self, given: str | None, frames: int, size: tuple[int, int]
    ) -> tuple[Camera | None, float | None]:
        path = Path(given) if given is not None else self._folder / CAMERAS_FILE
        if given is None and not path.exists():
            return None, None
        loaded = load_cameras(path, self._numbers(), frames, size)
        return loaded.camera, loaded.fps

    def _read(self, start: int, stop: int) -> GBuffer:
        rebuilt = self._conventions.normals == "depth"
        values = {
            name: self._decoded(name, start, stop) for name in self.info.channels if not (rebuilt and name == "normal")
        }
        if rebuilt:
            values["normal"] = self._view.normals(values["depth"], start)
        return GBuffer(**values, camera=self._view.cameras(start, stop))

    def _decoded(self, channel: str, start: int, stop: int) -> Tensor:
        planes = self._planes(channel, start, stop)
        if channel == "normal":
            return self._camera_normals(planes, start, stop)
        if channel == "depth":
            return self._planar_metres(planes, start)
        value = self._coding.decode(channel, planes, self.top[channel])
        return value if channel == "instance" else value.clamp(0, 1)

    def _camera_normals(self, planes: Shaped[Tensor, "T 3 H W"], start: int, stop: int) -> Float[Tensor, "T 3 H W"]:
        stated = replace(self._conventions, normal_axes=self._coding.normal_axes)
        values = planes.float() / self.top["normal"]
        shortest = SHORTEST_NORMAL
        if self._is_float("normal") and stated.normal_code != "half":
            if stated.normal_code is None:
                check_signed(self._path, values)
            shortest = SHORTEST_SIGNED_NORMAL
        else:
            values = 2 * values - 1
        return unit_normals(camera_normals(values, stated, self._view.cameras(start, stop)), shortest)

    def _planar_metres(self, planes: Shaped[Tensor, "T 1 H W"], start: int) -> Float[Tensor, "T 1 H W"]:
        depth = self._coding.decode("depth", planes, self.top["depth"])
        if self._coding.depth_code == "linear":
            nothing = ~(depth > 0) | (depth >= SKY_DEPTH) | (depth == HALF_MAX)  # 0 and NaN: nothing was hit
            depth = depth.masked_fill(nothing, torch.inf) * self._conventions.metres
        return self._view.planar(depth, self._conventions.depth_kind, start)

    def _planes(self, channel: str, start: int, stop: int) -> Shaped[Tensor, "T C H W"]:
        """As many planes as the channel has; a grey channel stored as colour gives its green plane."""
        raw = self._ordered(self._raw(channel, start, stop))
        if raw.shape[1] == CHANNELS[channel]:
            return raw
        if CHANNELS[channel] == 1:
            return raw[:, 1:2]
        raise ClipError(
            f"{self._path}: channel {channel!r} has {raw.shape[1]} planes; expected {CHANNELS[channel]}. Write it "
            "in colour."
        )

    @property
    def verbatim(self) -> Coding | None:
        """What the 8-bit planes mean if they can be copied as they are; None if something besides must be stated."""
        stated = self._conventions
        plain = stated.normals in (None, "camera") and stated.depth_kind != "ray" and stated.bits is None
        return self._coding if plain and all(top == 255 for top in self.top.values()) else None

    def cameras(self, start: int, stop: int) -> Camera | None:
        """The cameras of a run of frames."""
        return self._view.cameras(start, stop)

    def _stored(self, start: int, stop: int) -> dict[str, tuple[Tensor, int]]:
        names = [name for name in ("normal", "depth") if name in self.top]
        return {name: (self._planes(name, start, stop), self.top[name]) for name in names}

    def _ordered(self, planes: Shaped[Tensor, "T C H W"]) -> Shaped[Tensor, "T C H W"]:
        """Red first, also where a tool exchanged red and blue."""
        return planes.flip(1) if self._conventions.order == "bgr" and planes.shape[1] == 3 else planes

    def _coded(self, start: int, stop: int) -> dict[str, UInt8[Tensor, "T 3 H W"]]:
        wide = [name for name, top in self.top.items() if top != 255]
        if wide:
            raise ClipError(
                f"{self._path}: {', '.join(wide)} are not 8 bit; upstream's planes are. Convert to 8 bit first."
            )
        raw = {name: self._ordered(self._raw(name, start, stop)) for name in self.top}
        return {name: repeat(v, "t 1 h w -> t 3 h w") if v.shape[1] == 1 else v for name, v in raw.items()}


def world_normals_need_cameras(path: Path) -> str:
    """The sentence for world-space normals without cameras."""
    return (
        f"{path}: normals are in world space and no {CAMERAS_FILE} is beside them; expected cameras to turn them into "
        "camera space. Give cameras=FILE, normals='camera' if they are in camera space already, or normals='skip' to "
        "do without."
    )
