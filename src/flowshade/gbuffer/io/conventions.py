"""What files do not say about themselves: axes, spaces, units, codes. Flags state it, or `gbuffer.json` beside them.

    {"normals": "world", "up": "z", "handedness": "left", "unit": "cm", "depth_kind": "planar", "fov": 90}

Flags go before `gbuffer.json`, and that before what a format implies. Nothing here is guessed.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from flowshade.files import write_json
from flowshade.gbuffer.io.depth import DepthCode
from flowshade.gbuffer.io.errors import ClipError
from flowshade.gbuffer.io.limits import check_fps, read_json
from flowshade.types import Camera

SIDECAR = "gbuffer.json"

AlbedoCode = Literal["srgb", "linear"]
NormalSpace = Literal["camera", "world", "depth", "skip"]
NormalAxes = Literal["opengl", "directx", "opencv"]
NormalCode = Literal["signed", "half"]
Up = Literal["x", "y", "z"]
Handedness = Literal["right", "left"]
DepthKind = Literal["planar", "ray"]
Order = Literal["rgb", "bgr"]

CHOICES: dict[str, tuple[str, ...]] = {
    "albedo_code": get_args(AlbedoCode),
    "normals": get_args(NormalSpace),
    "normal_axes": get_args(NormalAxes),
    "normal_code": get_args(NormalCode),
    "up": get_args(Up),
    "handedness": get_args(Handedness),
    "depth_kind": get_args(DepthKind),
    "order": get_args(Order),
}
UNITS = {"m": 1.0, "cm": 0.01, "mm": 0.001, "km": 1000.0, "in": 0.0254, "ft": 0.3048}
"""Metres a unit."""
NORMAL_SIGNS: dict[str, tuple[float, float, float]] = {
    "opengl": (1.0, 1.0, 1.0),
    "directx": (1.0, -1.0, 1.0),
    "opencv": (1.0, -1.0, -1.0),
}
"""What turns camera-space axes into ours."""
UNIT_TOLERANCE = 1e-6
"""Rounding of a unit vector's length in float32."""
SHORTEST_REBUILT = 1e-30
"""Rebuilt normals come as areas in square metres, however small."""
FOV_TOLERANCE = 0.01
"""Largest relative difference between a stated field of view and the cameras file."""


@dataclass(frozen=True, kw_only=True)
class ClipConventions:
    """What is stated about a clip; None = not stated.

    Raises:
        ClipError: a value that is not one of those known.
    """

    format: str | None = None
    """A name of `FORMATS`."""
    fps: float | None = None
    albedo_code: AlbedoCode | None = None
    """Colours are display sRGB or linear."""
    normals: NormalSpace | None = None
    """The space normals are in; "skip" leaves them out, "depth" rebuilds them from depth (needs cameras or `fov`)."""
    normal_axes: NormalAxes | None = None
    """Of camera-space normals: opengl (Y up, Z to the viewer), directx (Y down), opencv (Y down, Z away)."""
    normal_code: NormalCode | None = None
    """Of floating-point normals: signed (as they are) or half ((n + 1) / 2)."""
    up: Up | None = None
    """Of world-space normals: the axis that points up."""
    handedness: Handedness | None = None
    """Of world-space normals."""
    depth_kind: DepthKind | None = None
    """planar: along the optical axis; ray: distance to the camera's centre (needs cameras or `fov`)."""
    depth_code: str | None = None
    """How distance is stored, see `DepthCode`."""
    order: Order | None = None
    """Of planes in pictures and videos: rgb, or bgr where a tool exchanged red and blue."""
    bits: int | None = None
    """Of integers: how many bits are used, where a file's own are more (10-bit values in a 16-bit PNG)."""
    unit: str | None = None
    """Of distances: a name of `UNITS`, or metres a unit as a number."""
    fov: float | None = None
    """Horizontal field of view in degrees."""
    cameras: str | None = None
    """The cameras file; relative names count from the clip's folder when they stand in `gbuffer.json`."""
    layer: str | None = None
    """The view layer of an EXR file that holds several."""

    def __post_init__(self) -> None:
        for name, known in CHOICES.items():
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or value not in known):
                raise ClipError(f"{name}={value!r} is unknown; expected one of {', '.join(known)}.")
        for name in ("format", "depth_code", "cameras", "layer"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise ClipError(f"{name}={value!r} is no text; expected a name in quotes.")
        if self.depth_code is not None:
            DepthCode.parse(self.depth_code)
            if self.unit is not None and self.depth_code != "linear":
                raise ClipError(
                    f"unit={self.unit!r} and depth_code={self.depth_code!r} are both stated, and this code gives "
                    "metres by itself; leave one of them out."
                )
        if self.unit is not None:
            _metres(self.unit)
        if self.bits is not None and (type(self.bits) is not int or not 1 < self.bits <= 16):
            raise ClipError(f"bits is {self.bits!r}; expected a whole number from 2 to 16.")
        _check_number("fov", self.fov, 0, 180)
        if self.fps is not None:
            check_fps(self.fps, "fps")

    def stated(self) -> dict[str, Any]:
        """What is stated, by name."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def over(self, other: ClipConventions) -> ClipConventions:
        """These, and what `other` states besides."""
        return dataclasses.replace(other, **self.stated())

    @property
    def metres(self) -> float:
        """Metres a unit of distance; 1 where none is stated."""
        return 1.0 if self.unit is None else _metres(self.unit)

    @staticmethod
    def of(values: dict[str, Any], source: str) -> ClipConventions:
        """From names and values.

        Args:
            values: names as in this class.
            source: who states them, for error messages.
        """
        known = [entry.name for entry in dataclasses.fields(ClipConventions)]
        unknown = [name for name in values if name not in known]
        if unknown:
            raise ClipError(
                f"{source or 'reader options'}: {unknown[0]!r} is unknown; expected some of {', '.join(known)}. Check "
                "its spelling."
            )
        if isinstance(values.get("cameras"), Path):
            values = {**values, "cameras": str(values["cameras"])}
        if isinstance(values.get("unit"), int | float):
            values = {**values, "unit": str(values["unit"])}
        try:
            return ClipConventions(**values)
        except ClipError as error:
            raise ClipError(f"{source}: {error}" if source else str(error)) from error
        except TypeError as error:  # a list or a table where a plain value belongs
            raise ClipError(f"{source}: {error}; expected plain values.") from error

    @staticmethod
    def beside(path: Path) -> ClipConventions:
        """What `gbuffer.json` in a clip's folder states; nothing where there is none."""
        folder = path if path.is_dir() else path.parent
        sidecar = folder / SIDECAR
        if not sidecar.exists():
            return ClipConventions()
        values = read_json(sidecar)
        if not isinstance(values, dict):
            raise ClipError(f"{sidecar} holds a {type(values).__name__}; expected names and values in braces.")
        conventions = ClipConventions.of({name: v for name, v in values.items() if name != "evidence"}, str(sidecar))
        if conventions.cameras is None:
            return conventions
        return dataclasses.replace(conventions, cameras=str(folder / conventions.cameras))

    def save(self, path: Path, evidence: tuple[str, ...] = ()) -> None:
        """Writes a `gbuffer.json`; it appears whole or not at all. Raises: ClipError where it cannot be written."""
        values = self.stated() | ({"evidence": list(evidence)} if evidence else {})
        write_json(path, values)


def _check_number(name: str, value: Any, low: float, high: float) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not low < value < high:
        raise ClipError(f"{name} is {value!r}; expected a positive number below {high}. Give another.")


def _metres(unit: str) -> float:
    if unit in UNITS:
        return UNITS[unit]
    try:
        metres = float(unit)
    except (TypeError, ValueError):
        metres = 0.0
    if not 0 < metres < math.inf:
        raise ClipError(
            f"unit={unit!r} is unknown; expected one of {', '.join(UNITS)}, or metres a unit, such as 0.01."
        )
    return metres


def world_rotation(up: Up, handedness: Handedness) -> Float[Tensor, "3 3"]:
    """Turns vectors of a world with these axes into ours: right-handed, Z up.

    Unreal's world is ("z", "left"), Maya's and Omniverse's usual one ("y", "right"), Unity's ("y", "left"). Mirrored
    worlds are mirrored back across the plane of their X axis and up.
    """
    rows = {
        "z": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
        "y": ((1, 0, 0), (0, 0, -1), (0, 1, 0)),
        "x": ((0, 1, 0), (0, 0, 1), (1, 0, 0)),
    }[up]
    mirror = torch.tensor([1.0, -1.0 if handedness == "left" else 1.0, 1.0])
    return mirror[:, None] * torch.tensor(rows, dtype=torch.float32)


def camera_normals(
    normal: Float[Tensor, "T 3 H W"], conventions: ClipConventions, camera: Camera | None
) -> Float[Tensor, "T 3 H W"]:
    """Signed normals as stored -> camera space, OpenGL axes. Lengths are kept.

    Args:
        normal: components in [-1, 1].
        conventions: `normals` and, by space, `normal_axes` or `up` and `handedness`; unstated is ours.
        camera: needed for world-space normals; its world is ours already.
    """
    if conventions.normals == "world":
        assert camera is not None
        ours = world_rotation(conventions.up or "z", conventions.handedness or "right")
        turn = camera.pose[:, :3, :3].transpose(1, 2) @ ours  # [T, 3, 3]
        return torch.einsum("tij,tjhw->tihw", turn, normal)
    return normal * torch.tensor(NORMAL_SIGNS[conventions.normal_axes or "opengl"])[:, None, None]


def check_signed(path: Path, normal: Float[Tensor, "T 3 H W"]) -> None:
    """Refuses floating-point normals that are unit vectors only once decoded from (n + 1) / 2."""
    values = normal.movedim(1, 0).flatten(1)  # [3, N]
    values = values[:, (values != 0).any(0)]

    def off_unit(vectors: Tensor) -> float:
        return float((vectors.norm(dim=0) - 1).abs().median())

    if values.numel() and float(values.min()) >= 0 and off_unit(values) > 0.1 and off_unit(2 * values - 1) < 0.05:
        raise ClipError(
            f"{path}: normals are no unit vectors as they are, and are once decoded from (n+1)/2; give "
            "normal_code='half' if they are coded so, or normal_code='signed' if they are not."
        )


def unit_normals(normal: Float[Tensor, "T 3 H W"], shortest: float) -> Float[Tensor, "T 3 H W"]:
    """Unit vectors; those shorter than `shortest`, which have no direction, become 0. Unit ones stay bit for bit."""
    lengths = normal.norm(dim=1, keepdim=True)
    units = torch.where((lengths - 1).abs() < UNIT_TOLERANCE, normal, normalize(normal, dim=1))
    return units.masked_fill(~(lengths >= shortest), 0.0)


def intrinsics_of_fov(fov: float, size: tuple[int, int]) -> Float[Tensor, "1 4"]:
    """fx, fy, cx, cy in pixels of a picture (height, width) with a horizontal field of view in degrees."""
    height, width = size
    focal = width / 2 / math.tan(math.radians(fov) / 2)
    return torch.tensor([[focal, focal, width / 2, height / 2]])


def ray_length(intrinsics: Float[Tensor, "T 4"], size: tuple[int, int]) -> Float[Tensor, "T 1 H W"]:
    """Length of the ray from the camera's centre to the plane z = 1, for every pixel centre."""
    fx, fy, cx, cy = intrinsics[:, :, None, None].unbind(1)  # each [T, 1, 1]
    x = (torch.arange(size[1]) + 0.5 - cx) / fx
    y = (torch.arange(size[0])[:, None] + 0.5 - cy) / fy
    return (1 + x.square() + y.square()).sqrt()[:, None]


def rebuild_normals(depth: Float[Tensor, "T 1 H W"], intrinsics: Float[Tensor, "T 4"]) -> Float[Tensor, "T 3 H W"]:
    """Camera-space normals (OpenGL axes) of the surface that depth describes; 0 at sky.

    In each direction the neighbour that lies nearer in depth is taken, so that silhouettes keep the normal of their own
    side.

    Args:
        depth: planar, metres, inf = sky.
        intrinsics: fx, fy, cx, cy in pixels; one row, or one a frame.
    """
    fx, fy, cx, cy = intrinsics[:, :, None, None].double().unbind(1)  # each [T or 1, 1, 1]
    z = depth[:, 0].double()
    x = (torch.arange(z.shape[2], device=z.device) + 0.5 - cx) / fx * z
    y = -(torch.arange(z.shape[1], device=z.device)[:, None] + 0.5 - cy) / fy * z
    points = torch.stack([x, y, -z], 1)  # [T, 3, H, W]
    normal = torch.linalg.cross(_nearer_step(points, 3), -_nearer_step(points, 2), dim=1)
    known = normal.isfinite().all(1, keepdim=True) & depth.isfinite()
    return unit_normals(normal.masked_fill(~known, 0.0), SHORTEST_REBUILT).float()


def _nearer_step(points: Float[Tensor, "T 3 H W"], axis: int) -> Float[Tensor, "T 3 H W"]:
    """From each point to the next along an axis, or from the one before, whichever differs less in depth."""
    step = points.diff(dim=axis)
    nothing = torch.full_like(points.narrow(axis, 0, 1), torch.nan)
    after, before = torch.cat([step, nothing], axis), torch.cat([nothing, step], axis)
    jumps = [way[:, 2:].abs().nan_to_num(torch.inf, torch.inf) for way in (after, before)]
    return torch.where(jumps[0] <= jumps[1], after, before)


class View:
    """The cameras or the field of view of a clip, for what needs them.

    Args:
        path: the clip, for messages.
        conventions: `fov` is used where there are no cameras.
        camera: one pose a frame, or None.
        size: height and width in pixels.

    Raises:
        ClipError: cameras and `fov` contradict each other, or something stated needs them and neither is there.
    """

    def __init__(self, path: Path, conventions: ClipConventions, camera: Camera | None, size: tuple[int, int]) -> None:
        self.camera = camera
        self._size = size
        self._intrinsics = None if conventions.fov is None else intrinsics_of_fov(conventions.fov, size)
        if camera is not None:
            if self._intrinsics is not None:
                self._check_agreement(path, conventions, camera)
            self._intrinsics = camera.intrinsics
        for asked, what in (
            (conventions.depth_kind == "ray", "depth is stated as ray distance"),
            (conventions.normals == "depth", "normals are to be rebuilt from depth"),
        ):
            if asked and self._intrinsics is None:
                raise ClipError(
                    f"{path}: {what} and neither cameras nor a field of view are stated; expected one of them. Give "
                    "fov=DEGREES (horizontal), or cameras=FILE."
                )

    def _check_agreement(self, path: Path, conventions: ClipConventions, camera: Camera) -> None:
        assert self._intrinsics is not None
        stated, found = float(self._intrinsics[0, 0]), float(camera.intrinsics[0, 0])
        if abs(stated / found - 1) > FOV_TOLERANCE:
            fov = math.degrees(2 * math.atan(self._size[1] / 2 / found))
            raise ClipError(
                f"{path}: fov={conventions.fov} and the cameras file says {fov:.4g} degrees; expected the same. "
                "Leave one of them out."
            )

    def planar(self, depth: Float[Tensor, "T 1 H W"], kind: DepthKind | None, start: int) -> Float[Tensor, "T 1 H W"]:
        """Distances of frames from `start` on -> planar depth."""
        if kind != "ray":
            return depth
        return depth / ray_length(self._intrinsics_of(start, len(depth)), self._size)

    def normals(self, depth: Float[Tensor, "T 1 H W"], start: int) -> Float[Tensor, "T 3 H W"]:
        """Camera-space normals rebuilt from the planar depth of frames from `start` on, in metres."""
        return rebuild_normals(depth, self._intrinsics_of(start, len(depth)))

    def _intrinsics_of(self, start: int, frames: int) -> Float[Tensor, "T 4"]:
        assert self._intrinsics is not None
        moving = len(self._intrinsics) > 1
        return self._intrinsics[start : start + frames] if moving else self._intrinsics

    def cameras(self, start: int, stop: int) -> Camera | None:
        """The cameras of a run of frames."""
        return None if self.camera is None else self.camera[start:stop]
