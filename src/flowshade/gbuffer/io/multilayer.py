"""EXR sequences that hold all passes of a frame in one file: what every renderer's files have in common.

A `Dialect` says how one renderer names its passes and what it implies; `blender.py`, `unreal.py`, `vray.py` and
`arnold.py` hold one each, `generic_exr.py` the one that implies nothing.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from flowshade.color import linear_to_srgb, srgb_to_linear
from flowshade.gbuffer.io.cameras import CAMERAS_FILE, load_cameras
from flowshade.gbuffer.io.coding import (
    HALF_MAX,
    SHORTEST_SIGNED_NORMAL,
    SKY_DEPTH,
    world_normals_need_cameras,
)
from flowshade.gbuffer.io.conventions import ClipConventions, View, camera_normals, check_signed, unit_normals
from flowshade.gbuffer.io.depth import DepthCode
from flowshade.gbuffer.io.errors import ClipError
from flowshade.gbuffer.io.exr import ExrFile, ExrHeader, read_exr, read_header, to_rec709
from flowshade.gbuffer.io.reader import ClipInfo, ClipReader, settle_fps, stack
from flowshade.gbuffer.io.sequence import numbered
from flowshade.types import CHANNELS, Camera, GBuffer

COMPONENTS: dict[str, tuple[str, ...]] = {
    "albedo": ("RGB", "XYZ"),
    "normal": ("XYZ", "RGB"),
    "depth": ("Z", "X", "V", "R", "Y"),
    "roughness": ("X", "V", "R", "Y"),
    "metallic": ("X", "V", "R", "Y"),
    "emission": ("RGB",),
    "motion": ("XY", "RG"),
    "instance": ("X", "V", "R", "I", "Y"),
    "reference": ("RGB",),
}
"""Component names of every channel, in plane order; the first that a pass has all of is taken."""
LONG_COMPONENTS = {"RED": "R", "GREEN": "G", "BLUE": "B", "ALPHA": "A"}


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """How one renderer writes multilayer EXR files."""

    name: str
    """The format's name in `FORMATS`."""
    tool: str
    """The renderer, in messages."""
    passes: dict[str, tuple[str, ...]]
    """Channel (or "reference") -> pass names, lower case, letters and digits only; the first that exists is taken."""
    diffuse: tuple[str, ...] = ()
    """Those of albedo's that are the diffuse colour only."""
    implied: ClipConventions = field(default_factory=ClipConventions)
    """What is true of this renderer's files unless something else is stated."""
    asked: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Channel -> conventions of which it needs one stated, because neither files nor renderer say."""
    zero_is_sky: bool = False
    """Depth is 0 where nothing was hit."""
    motion_signs: tuple[float, float] = (1.0, -1.0)
    """What turns the motion pass into ours."""
    within: bool = False
    """Pass names are looked for within longer names, such as `FinalImageMovieRenderQueue_WorldDepth`."""
    advice: str
    """What to switch on in the renderer, for messages."""


@dataclass
class PassLayout:
    """Where each channel lies in a file, from its header."""

    names: dict[str, list[str]] = field(default_factory=dict)
    """Channel (or "reference") -> full EXR channel names, in plane order."""
    unused: list[str] = field(default_factory=list)
    from_diffuse: bool = False


class MultilayerReader(ClipReader):
    """Reads a folder of EXR files with all passes of a frame in each.

    Args:
        path: the folder.
        conventions: `cameras` (else `cameras.json` in the folder, else what the files' headers say where the dialect
            knows them), `layer` (when there are several), `normals` ("skip" leaves them out), and whatever of
            `normal_axes`, `normal_code`, `up`, `handedness`, `depth_kind`, `depth_code`, `unit`, `albedo_code`, `fov`
            differs from what the dialect implies.

    Raises:
        ClipError: files that do not fit each other, or something that is needed and not stated.
    """

    options = frozenset(ClipConventions.__dataclass_fields__) - {"format", "fps", "bits", "order"}
    dialect: ClassVar[Dialect]

    def __init__(self, path: Path, conventions: ClipConventions) -> None:
        self._path = path
        self._conventions = conventions = conventions.over(self.dialect.implied)
        self._depth_code = DepthCode.parse(conventions.depth_code or "linear")
        self._files = numbered(path.glob("*.exr"), f"{path}/*.exr")
        self._paths = list(self._files.values())
        first = self._paths[0]
        self._header = read_header(first)
        _check_pixels(first, self._header)
        self._to_rec709 = to_rec709(first, self._header)
        self._layout = self._find_passes()
        if conventions.normals in ("skip", "depth"):
            self._layout.names.pop("normal", None)
        if conventions.normals == "depth" and "depth" not in self._layout.names:
            raise ClipError(f"{path}: normals='depth' rebuilds them from depth, and there is none.")
        self._check_stated()
        self._outside = dict.fromkeys(self._layout.names.get("depth", ()), float("inf"))
        self._check_size(self._paths[-1])
        camera, stated_fps = self._load_cameras(conventions.cameras)
        self._view = View(path, conventions, camera, self._header.size)
        self.info = self._describe(conventions.fps, stated_fps or self._header.fps)

    def _find_passes(self) -> PassLayout:
        return find_passes(self._paths[0], self._header.channels, self._conventions.layer, self.dialect)

    def _check_stated(self) -> None:
        """Asks for what neither the files nor the renderer's habits say."""
        for channel, names in self.dialect.asked.items():
            if channel in self._layout.names and not any(getattr(self._conventions, name) for name in names):
                raise ClipError(_ask(self._path, self.dialect, channel, names))

    def _load_cameras(self, given: str | None) -> tuple[Camera | None, float | None]:
        path = Path(given) if given is not None else self._path / CAMERAS_FILE
        if given is not None or path.exists():
            loaded = load_cameras(path, list(self._files), len(self._paths), self._header.size)
            return loaded.camera, loaded.fps
        camera = self._cameras_in_headers()
        if camera is None and self._conventions.normals == "world" and "normal" in self._layout.names:
            raise ClipError(world_normals_need_cameras(self._path))
        return camera, None

    def _cameras_in_headers(self) -> Camera | None:
        """Cameras that the renderer writes into the files themselves; one a frame, or None."""
        if self._camera_of(self._paths[0], self._header) is None:
            return None
        found = [self._camera_of(path, read_header(path)) for path in self._paths]
        lacking = [path for path, camera in zip(self._paths, found, strict=True) if camera is None]
        if lacking:
            raise ClipError(
                f"{lacking[0]} holds no camera in its header, and the first frame does; expected one in every frame. "
                "Render this frame again, or give cameras=FILE."
            )
        return Camera.cat([camera for camera in found if camera is not None])

    def _camera_of(self, path: Path, header: ExrHeader) -> Camera | None:
        """The camera that a file's header states; None for dialects that state none."""
        return None

    def _describe(self, fps: float | None, stated_fps: float | None) -> ClipInfo:
        warnings: list[str] = []
        layout = self._layout
        if layout.from_diffuse:
            warnings.append(
                "albedo is the diffuse colour pass, which is black for metals; add an AOV named basecolor to render it."
            )
        if self._to_rec709 is not None:
            space = self._header.colour_space or "the primaries that the files state"
            warnings.append(f"colours are converted from {space} to linear Rec.709.")
        partial = [name for name in layout.names if set(layout.names[name]) & set(self._header.partial)]
        if partial:
            warnings.append(
                f"{', '.join(partial)}: stored for a region of the picture only; outside lies sky, and colours are 0."
            )
        warnings += self._own_warnings()
        if layout.unused:
            warnings.append(f"passes not used: {', '.join(layout.unused)}.")
        return ClipInfo(
            path=self._path,
            format=self.dialect.name,
            frames=len(self._paths),
            size=self._header.size,
            fps=settle_fps(fps, stated_fps, warnings),
            channels=tuple(name for name in CHANNELS if name in layout.names or self._rebuilds(name)),
            axes=self._axes(),
            has_camera=self._view.camera is not None,
            has_reference="reference" in layout.names,
            warnings=tuple(warnings),
        )

    def _rebuilds(self, channel: str) -> bool:
        return channel == "normal" and self._conventions.normals == "depth"

    def _own_warnings(self) -> list[str]:
        """What a dialect has to say besides."""
        return []

    def _axes(self) -> str:
        stated = self._conventions
        world = f"world ({stated.up or 'z'} up, {stated.handedness or 'right'}-handed) -> camera space"
        spaces = {"world": world, "skip": "left out", "depth": "rebuilt from depth"}
        space = spaces.get(stated.normals or "", f"camera space, {stated.normal_axes or 'opengl'}")
        depth = "" if self._depth_code.kind == "linear" else f"{self._depth_code} -> "
        depth += "ray -> planar " if stated.depth_kind == "ray" else "planar "
        depth += "metres" if stated.metres == 1 else f"{stated.unit} -> metres"
        sky = "0 -> inf" if self.dialect.zero_is_sky else "1e10 -> inf"
        albedo = "albedo sRGB -> linear" if stated.albedo_code == "srgb" else "colours scene-linear -> Rec.709"
        if self._to_rec709 is None and stated.albedo_code != "srgb":
            albedo = "colours scene-linear Rec.709"
        return f"{albedo}; normals {space}, renormalised; depth {depth}, {sky}; motion in pixels, Y down"

    def _check_size(self, path: Path) -> None:
        size = read_header(path).size
        if size != self._header.size:
            raise ClipError(_sizes_differ(path, size, self._header.size))

    def _file(self, index: int) -> ExrFile:
        path = self._paths[index]
        file = read_exr(path, self._outside)
        if file.size != self._header.size:
            raise ClipError(_sizes_differ(path, file.size, self._header.size))
        absent = [name for name in self._header.channels if name not in file.channels]
        if absent:
            announced = set(read_header(path).channels)
            truncated = [name for name in absent if name in announced]
            if truncated:
                raise ClipError(
                    f"{path} is cut short: {len(file.channels)} of {len(announced)} channels can be read, "
                    f"{', '.join(truncated[:4])} cannot. Render or copy this frame again."
                )
            raise ClipError(
                f"{path} lacks {', '.join(absent[:4])}, which the first frame has; expected the same passes in "
                "every frame. Render this frame again with the same passes."
            )
        return file

    def _read(self, start: int, stop: int) -> GBuffer:
        channels = stack([self._planes(self._file(index)) for index in range(start, stop)])
        camera = self._view.cameras(start, stop)
        signs = torch.tensor(self.dialect.motion_signs)[:, None, None]
        convert = {
            "albedo": self._linear_albedo,
            "roughness": lambda value: value.clamp(0, 1),
            "metallic": lambda value: value.clamp(0, 1),
            "emission": lambda value: self._rec709(value).clamp(min=0),
            "depth": lambda value: self._planar_metres(value, start),
            "motion": lambda value: value * signs,
            "instance": lambda value: value,
            "normal": lambda value: self._camera_normals(value, camera),
        }
        values = {name: convert[name](value) for name, value in channels.items()}
        if self._rebuilds("normal"):
            values["normal"] = self._view.normals(values["depth"], start)
        if "normal" in values and "depth" in values:
            values["normal"] = values["normal"].masked_fill(values["depth"].isinf(), 0.0)
        return GBuffer(**values, camera=camera)

    def _stored(self, start: int, stop: int) -> dict[str, tuple[Tensor, int]]:
        channels = stack([self._planes(self._file(index)) for index in range(start, stop)])
        return {name: (channels[name], 1) for name in ("normal", "depth") if name in channels}

    def _planes(self, file: ExrFile) -> dict[str, Tensor]:
        return {name: self._tensor(file, name) for name in self._layout.names if name != "reference"}

    def _tensor(self, file: ExrFile, channel: str) -> Tensor:
        """[C, H, W], float32, or int32 for instance (ids from 2**31 on wrap round, and stay distinct)."""
        planes = np.stack([file.channels[name] for name in self._layout.names[channel]])
        if channel == "instance":
            ids = planes if planes.dtype.kind == "u" else np.round(np.nan_to_num(planes.astype(np.float64)))
            return torch.from_numpy(ids.astype(np.int64)).to(torch.int32)
        return torch.from_numpy(planes.astype(np.float32, copy=False))

    def _rec709(self, colour: Float[Tensor, "T 3 H W"]) -> Float[Tensor, "T 3 H W"]:
        if self._to_rec709 is None:
            return colour
        return torch.einsum("ij,tjhw->tihw", torch.tensor(self._to_rec709, dtype=torch.float32), colour)

    def _linear_albedo(self, albedo: Float[Tensor, "T 3 H W"]) -> Float[Tensor, "T 3 H W"]:
        linear = srgb_to_linear(albedo) if self._conventions.albedo_code == "srgb" else albedo
        return self._rec709(linear).clamp(0, 1)

    def _planar_metres(self, depth: Float[Tensor, "T 1 H W"], start: int) -> Float[Tensor, "T 1 H W"]:
        if self._depth_code.kind != "linear":
            return self._view.planar(self._depth_code.decode(depth, 1), self._conventions.depth_kind, start)
        nothing = (depth >= SKY_DEPTH) | (depth == HALF_MAX)
        if self.dialect.zero_is_sky:
            nothing |= depth <= 0
        metres = depth.masked_fill(nothing, torch.inf) * self._conventions.metres
        return self._view.planar(metres, self._conventions.depth_kind, start)

    def _camera_normals(self, normal: Float[Tensor, "T 3 H W"], camera: Camera | None) -> Float[Tensor, "T 3 H W"]:
        if self._conventions.normal_code is None:
            check_signed(self._path, normal)
        signed = 2 * normal - 1 if self._conventions.normal_code == "half" else normal
        return unit_normals(camera_normals(signed, self._conventions, camera), SHORTEST_SIGNED_NORMAL)

    def _reference(self, start: int, stop: int) -> Float[Tensor, "T 3 H W"] | None:
        """The rendered picture through the plain sRGB curve (Blender's "Standard" view), clamped."""
        linear = torch.stack([self._tensor(self._file(index), "reference") for index in range(start, stop)])
        return linear_to_srgb(self._rec709(linear))


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def find_passes(path: Path, channels: list[str], layer: str | None, dialect: Dialect) -> PassLayout:
    """Sorts a header's channels (`Layer.Pass.Component`, `Pass.Component` or `Component`) into ours.

    Raises:
        ClipError: several layers and none named, or no pass that is known.
    """
    passes = _passes_of_layer(path, channels, layer, dialect)
    layout = PassLayout()
    used: set[str] = set()
    for channel, wanted in dialect.passes.items():
        for pass_name in _candidates(passes, wanted, dialect.within):
            components = next((c for c in COMPONENTS[channel] if all(x in passes[pass_name] for x in c)), None)
            if components is not None:
                layout.names[channel] = [passes[pass_name][component] for component in components]
                layout.from_diffuse |= channel == "albedo" and _plain(pass_name) in dialect.diffuse
                used.add(pass_name)
                break
    if not set(layout.names) - {"reference"}:
        raise ClipError(
            f"{path} has the passes {', '.join(name or '(picture)' for name in passes) or 'none'}, none of which is a "
            f"G-buffer channel; expected {dialect.advice}"
        )
    layout.unused = [name for name in passes if name and name not in used]
    return layout


def _candidates(passes: dict[str, dict[str, str]], wanted: tuple[str, ...], within: bool) -> list[str]:
    """The passes that may be a channel, best first."""

    def rank(name: str) -> int | None:
        plain = _plain(name)
        matches = (i for i, known in enumerate(wanted) if plain == known or (within and known and known in plain))
        return next(matches, None)

    ranked = [(rank(name), name) for name in passes]
    return [name for _, name in sorted((place, name) for place, name in ranked if place is not None)]


def split_name(full: str) -> tuple[str, str, str]:
    """`Layer.Pass.Component` -> its parts, missing ones empty; the component in short form, upper case.

    Some Linux builds of Unreal append rubbish to the component (`...WorldDepth.R?k`): its first letter counts then.
    """
    layer, pass_name, component = ["", "", *full.rsplit(".", 2)][-3:]
    component = LONG_COMPONENTS.get(component.upper(), component.upper())
    if len(component) > 1 and not component[1].isalnum():
        component = component[0]
    return layer, pass_name, component


def _passes_of_layer(path: Path, channels: list[str], layer: str | None, dialect: Dialect) -> dict[str, dict[str, str]]:
    """Pass -> component -> full channel name, of one view layer."""
    layers: dict[str, dict[str, dict[str, str]]] = {}
    for full in channels:
        layer_name, pass_name, component = split_name(full)
        layers.setdefault(layer_name, {}).setdefault(pass_name, {})[component] = full
    if layer is None:
        telling = [name for name, passes in layers.items() if _is_telling(passes, dialect)]
        if len(telling) > 1 and telling[0] == "":
            telling = [""]  # passes without a layer stand for the whole file
        if len(telling) > 1:
            raise ClipError(
                f"{path} has the view layers {', '.join(telling)}; expected one. Name it: layer={telling[0]!r}."
            )
        layer = telling[0] if telling else next(iter(layers), "")
    if layer not in layers:
        raise ClipError(f"{path} has no view layer {layer!r}; it has {', '.join(layers)}. Name one of those.")
    return layers[layer]


def _is_telling(passes: dict[str, dict[str, str]], dialect: Dialect) -> bool:
    return any(
        _candidates(passes, wanted, dialect.within)
        for channel, wanted in dialect.passes.items()
        if channel != "reference"
    )


def _check_pixels(path: Path, header: ExrHeader) -> None:
    if header.pixel_aspect != 1:
        raise ClipError(f"{path} has pixels of aspect {header.pixel_aspect:g}; expected square ones. Render with 1:1.")


def _ask(path: Path, dialect: Dialect, channel: str, names: tuple[str, ...]) -> str:
    examples = {
        "unit": "unit=cm",
        "depth_code": "depth_code=linear (distances as they are)",
        "normals": "normals=camera, world or skip",
        "up": "up=y or z",
        "depth_kind": "depth_kind=planar or ray",
    }
    return (
        f"{path}: {dialect.tool} files hold {channel} and do not say its {' or '.join(names)}; expected it stated. "
        f"Give {', or '.join(examples[name] for name in names)}, as a flag or in gbuffer.json (flowshade inspect "
        "--guess proposes one)."
    )


def _sizes_differ(path: Path, size: tuple[int, int], expected: tuple[int, int]) -> str:
    return (
        f"{path} is {size[0]}x{size[1]} and the first frame {expected[0]}x{expected[1]} (height x width); expected "
        "one size. Render the clip at one resolution."
    )


def header_number(path: Path, attributes: dict[str, Any], *names: str) -> float | None:
    """The first of several header attributes that is there, as a number (Unreal writes numbers as text).

    Raises:
        ClipError: it is no finite number.
    """
    name = next((name for name in names if attributes.get(name) is not None), None)
    if name is None:
        return None
    value = attributes[name]
    text = value.decode(errors="replace") if isinstance(value, bytes) else value
    try:
        number = float(text)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ClipError(
            f"{path}: its header says {name} is {str(text)[:40]!r}; expected a finite number. Render this frame again, "
            "or give cameras=FILE."
        )
    return number
