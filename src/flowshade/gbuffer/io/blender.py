"""EXR sequences as Blender writes them.

Blender 4.x puts every pass into one part (`ViewLayer.Depth.Z`, `ViewLayer.IndexOB.X`, `ViewLayer.DiffCol.R`), 5.x
one pass into each part (`ViewLayer.Object Index.X`, `ViewLayer.Diffuse Color.R`). Base colour, roughness and metallic
exist only as AOVs, which users name. Depth is planar, in metres, 1e10 for sky (65504 in half floats). Normals are in
world space and, being filtered, not quite of unit length. Vector's X and Y are where the pixel was one frame ago minus
where it is, in pixels, Y up. Cameras are not in the files: `cameras.json` beside them (see `cameras.py`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from flowshade.color import linear_to_srgb
from flowshade.gbuffer.io.cameras import CAMERAS_FILE, load_cameras
from flowshade.gbuffer.io.exr import ExrFile, ExrHeader, read_exr, read_header
from flowshade.gbuffer.io.reader import ClipError, ClipInfo, ClipReader, settle_fps, stack
from flowshade.gbuffer.io.sequence import numbered
from flowshade.types import CHANNELS, Camera, GBuffer

SKY_DEPTH_METRES = 1e9
"""Blender writes 1e10 where a ray hits nothing; in half floats that becomes `HALF_MAX` or infinity."""
HALF_MAX = 65504.0
SHORTEST_NORMAL = 1e-4
"""Filtered normals shorter than this have no direction."""
REC709 = (0.64, 0.33, 0.30, 0.60, 0.15, 0.06, 0.3127, 0.3290)

# Pass names as compared: lower case, letters and digits only. The first that exists is taken.
PASSES: dict[str, tuple[str, ...]] = {
    "albedo": ("basecolor", "albedo", "diffcol", "diffusecolor"),
    "normal": ("normal",),
    "depth": ("depth",),
    "roughness": ("roughness", "rough"),
    "metallic": ("metallic", "metalness", "metal"),
    "emission": ("emit", "emission"),
    "motion": ("vector",),
    "instance": ("indexob", "objectindex"),
    "reference": ("combined",),
}
DIFFUSE_PASSES = ("diffcol", "diffusecolor")
COMPONENTS: dict[str, tuple[str, ...]] = {
    "albedo": ("RGB",),
    "normal": ("XYZ",),
    "depth": ("Z", "X", "V"),
    "roughness": ("X", "V", "R"),
    "metallic": ("X", "V", "R"),
    "emission": ("RGB",),
    "motion": ("XY",),
    "instance": ("X", "V"),
    "reference": ("RGB",),
}

Normals = Literal["world", "camera", "skip"]


@dataclass
class _Layout:
    """Where each channel lies in a file, from its header."""

    names: dict[str, list[str]] = field(default_factory=dict)
    """Channel (or "reference") -> full EXR channel names, in plane order."""
    unused: list[str] = field(default_factory=list)
    from_diffuse: bool = False


class BlenderReader(ClipReader):
    """Reads a folder of EXR files that Blender rendered.

    Args:
        path: the folder.
        fps: frames per second; None takes what the cameras file or the EXR header states.
        cameras: the cameras file; None looks for `cameras.json` in the folder.
        layer: the view layer, when there are several.
        normals: "world" as Blender writes them (needs cameras), "camera" if they are in camera space already (by a
            compositor), "skip" to leave the channel out.
    """

    def __init__(
        self,
        path: Path,
        *,
        fps: float | None = None,
        cameras: Path | str | None = None,
        layer: str | None = None,
        normals: Normals = "world",
    ) -> None:
        if normals not in ("world", "camera", "skip"):
            raise ClipError(f"normals={normals!r} is unknown; expected 'world', 'camera' or 'skip'.")
        self._path = path
        self._normals = normals
        self._files = numbered(path.glob("*.exr"), f"{path}/*.exr")
        self._paths = list(self._files.values())
        first = self._paths[0]
        self._header = read_header(first)
        _check_header(first, self._header)
        self._layout = _find_passes(first, self._header.channels, layer)
        if normals == "skip":
            self._layout.names.pop("normal", None)
        self._check_size(self._paths[-1])
        self._camera, stated_fps = self._load_cameras(cameras)
        self.info = self._describe(fps, stated_fps or self._header.fps)

    def _load_cameras(self, given: Path | str | None) -> tuple[Camera | None, float | None]:
        path = Path(given) if given is not None else self._path / CAMERAS_FILE
        if given is not None or path.exists():
            loaded = load_cameras(path, list(self._files), len(self._paths), self._header.size)
            return loaded.camera, loaded.fps
        if self._normals == "world" and "normal" in self._layout.names:
            raise ClipError(
                f"{self._path}: Blender's normals are in world space and no {CAMERAS_FILE} is beside them; expected "
                "cameras "
                "to turn them into camera space. Give cameras=FILE, normals='camera' if they are in camera space "
                "already, or normals='skip' to do without."
            )
        return None, None

    def _describe(self, fps: float | None, stated_fps: float | None) -> ClipInfo:
        warnings: list[str] = []
        layout = self._layout
        if layout.from_diffuse:
            warnings.append(
                "albedo is the diffuse colour pass, which is black for metals; add an AOV named basecolor to render it."
            )
        if layout.unused:
            warnings.append(f"passes not used: {', '.join(layout.unused)}.")
        turned = {"world": "world -> camera space", "camera": "camera space as stored", "skip": "left out"}
        return ClipInfo(
            path=self._path,
            format="blender",
            frames=len(self._paths),
            size=self._header.size,
            fps=settle_fps(fps, stated_fps, warnings),
            channels=tuple(name for name in CHANNELS if name in layout.names),
            axes=f"colours scene-linear Rec.709; normals {turned[self._normals]}, renormalised; depth planar metres, "
            "1e10 -> inf; motion from Vector, Y turned down",
            has_camera=self._camera is not None,
            has_reference="reference" in layout.names,
            warnings=tuple(warnings),
        )

    def _check_size(self, path: Path) -> None:
        size = read_header(path).size
        if size != self._header.size:
            raise ClipError(_sizes_differ(path, size, self._header.size))

    def _file(self, index: int) -> ExrFile:
        path = self._paths[index]
        file = read_exr(path)
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
        camera = None if self._camera is None else self._camera[start:stop]
        convert = {
            "albedo": lambda value: value.clamp(0, 1),
            "roughness": lambda value: value.clamp(0, 1),
            "metallic": lambda value: value.clamp(0, 1),
            "emission": lambda value: value.clamp(min=0),
            "depth": _sky_to_infinity,
            "motion": lambda value: value * torch.tensor([1.0, -1.0])[:, None, None],
            "instance": lambda value: value.round().to(torch.int32),
            "normal": lambda value: self._camera_normals(value, camera),
        }
        values = {name: convert[name](value) for name, value in channels.items() if name != "reference"}
        if "normal" in values and "depth" in values:
            values["normal"] = values["normal"].masked_fill(values["depth"].isinf(), 0.0)
        return GBuffer(**values, camera=camera)

    def _planes(self, file: ExrFile) -> dict[str, Tensor]:
        return {name: _tensor(file, self._layout.names[name]) for name in self.info.channels}

    def _camera_normals(self, normal: Float[Tensor, "T 3 H W"], camera: Camera | None) -> Float[Tensor, "T 3 H W"]:
        if self._normals == "world":
            assert camera is not None
            normal = torch.einsum("tji,tjhw->tihw", camera.pose[:, :3, :3], normal)
        short = normal.norm(dim=1, keepdim=True) < SHORTEST_NORMAL
        return normalize(normal, dim=1).masked_fill(short, 0.0)

    def _reference(self, start: int, stop: int) -> Float[Tensor, "T 3 H W"] | None:
        """Blender's Combined pass through the plain sRGB curve (its "Standard" view), clamped."""
        names = self._layout.names["reference"]
        return linear_to_srgb(torch.stack([_tensor(self._file(index), names) for index in range(start, stop)]))


def _tensor(file: ExrFile, names: list[str]) -> Float[Tensor, "C H W"]:
    return torch.from_numpy(np.stack([file.channels[name] for name in names]).astype(np.float32, copy=False))


def _sky_to_infinity(depth: Float[Tensor, "T 1 H W"]) -> Float[Tensor, "T 1 H W"]:
    return depth.masked_fill((depth >= SKY_DEPTH_METRES) | (depth == HALF_MAX), torch.inf)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _find_passes(path: Path, channels: list[str], layer: str | None) -> _Layout:
    """Sorts a header's channels (`Layer.Pass.Component`) into ours."""
    passes = _passes_of_layer(path, channels, layer)
    layout = _Layout()
    used: set[str] = set()
    for channel, wanted in PASSES.items():
        for name in sorted((name for name in passes if _plain(name) in wanted), key=lambda n: wanted.index(_plain(n))):
            components = next((c for c in COMPONENTS[channel] if all(x in passes[name] for x in c)), None)
            if components is not None:
                layout.names[channel] = [passes[name][component] for component in components]
                layout.from_diffuse |= channel == "albedo" and _plain(name) in DIFFUSE_PASSES
                used.add(name)
                break
    if not set(layout.names) - {"reference"}:
        raise ClipError(
            f"{path} has the passes {', '.join(passes) or 'none'}, none of which is a G-buffer channel; expected "
            "some of Depth, Normal, and AOVs basecolor, roughness, metallic. Enable them in Blender's view layer."
        )
    layout.unused = [name for name in passes if name not in used]
    return layout


def _passes_of_layer(path: Path, channels: list[str], layer: str | None) -> dict[str, dict[str, str]]:
    """Pass -> component -> full channel name, of one view layer."""
    layers: dict[str, dict[str, dict[str, str]]] = {}
    for full in channels:
        layer_name, pass_name, component = ["", "", *full.rsplit(".", 2)][-3:]
        layers.setdefault(layer_name, {}).setdefault(pass_name, {})[component] = full
    if layer is None:
        known = {wanted for names in PASSES.values() for wanted in names}
        telling = [name for name, passes in layers.items() if any(_plain(p) in known for p in passes)]
        if len(telling) > 1:
            raise ClipError(
                f"{path} has the view layers {', '.join(telling)}; expected one. Name it: layer={telling[0]!r}."
            )
        layer = telling[0] if telling else next(iter(layers))
    if layer not in layers:
        raise ClipError(f"{path} has no view layer {layer!r}; it has {', '.join(layers)}. Name one of those.")
    return layers[layer]


def _check_header(path: Path, header: ExrHeader) -> None:
    if header.size != header.display_size:
        raise ClipError(
            f"{path} holds a render region of {header.size} in a picture of {header.display_size}; expected whole "
            "pictures. Render without a region, or with cropping to it."
        )
    if header.pixel_aspect != 1:
        raise ClipError(f"{path} has pixels of aspect {header.pixel_aspect:g}; expected square ones. Render with 1:1.")
    other = header.colour_space not in (None, "", "data", "lin_rec709_scene")
    if other or (header.chromaticities and not np.allclose(header.chromaticities, REC709, atol=2e-3)):
        found = header.colour_space or f"chromaticities {header.chromaticities}"
        raise ClipError(
            f"{path} is in the colour space {found}; expected linear Rec.709. "
            "Set Blender's working space to Linear Rec.709 and render again."
        )


def _sizes_differ(path: Path, size: tuple[int, int], expected: tuple[int, int]) -> str:
    return (
        f"{path} is {size[0]}x{size[1]} and the first frame {expected[0]}x{expected[1]} (height x width); expected "
        "one size. Render the clip at one resolution."
    )
