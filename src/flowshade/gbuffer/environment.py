"""Light of a real place: an equirectangular picture of all directions (.hdr, .exr) as the sky of a `Look`.

    look = hdri_look("courtyard.exr", turn=45)
    record_clip(world, "clip", look=look, reference="paths")

The picture's middle column lies straight ahead of the stream's first camera, its top is up, and longitude grows to the
right. Values are linear radiance. Directions are in the stream frame (+X right, +Y ahead, +Z up).

Paths aim at the picture by its luminance, less the mean: what is brighter than average is aimed at, all else is found
by the surface's own lobes, and where both may find the same light they share it by the balance heuristic (Veach and
Guibas 1995; Pharr, Jakob and Humphreys, "Physically Based Rendering", 12.5; Karlik and others 2019 for the mean). In an
even picture nothing is aimed at, so a white furnace stays exact.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from flowshade.color import LUMINANCE
from flowshade.errors import FlowshadeError
from flowshade.gbuffer.look import AZIMUTHS, ELEVATIONS, LOOKS, Look, Rgb

MOST_ROWS = 1024
"""Larger pictures are averaged down to at most this height."""
SOFT = (16, 32)
"""Height and width of the blurred version that directly lit surfaces see."""
SUFFIXES = (".hdr", ".exr")
PACKED_SUFFIXES = (".hdr.js", ".exr.js")
"""The same as a JavaScript module with one base64 string, as the npm package `@pmndrs/assets` ships them."""
FOLDERS_VARIABLE = "FLOWSHADE_HDRIS"
"""Names folders, joined as in PATH, in which `find_hdri` looks first."""
PACKAGE = Path("node_modules/@pmndrs/assets/hdri")
PREFIX = "hdri:"
"""Begins the name of a look that is an installed HDRI."""
_LUMINANCE = np.array(LUMINANCE)
_GREY_CARD = 0.8
"""Exposed radiance of a white, level surface under a picture's whole light."""
_PEAK = 8.0
"""Times the mean radiance, above which a small place can be a sun."""
_DIRECTED = 0.3
"""Share of the light from one side above which captions name the side."""

Array = NDArray[Any]


class SkyError(FlowshadeError, ValueError):
    """A picture that cannot be a sky."""


@dataclass(frozen=True, eq=False)
class Environment:
    """A picture of all directions, with what aiming at it needs."""

    radiance: Array
    """[H, W, 3] float32 linear Rec.709; row 0 is the zenith's."""
    soft: Array
    """[16, 32, 3] float32 means over its cells, without what `sun` holds."""
    rows: Array
    """[H] float32 cumulative probability of the rows."""
    columns: Array
    """[H, W] float32 cumulative probability of the columns within each row."""
    share: Array
    """[H, W] float32 probability density a steradian, times the sine of the angle from the zenith."""
    peak: float
    """Radiance above which light belongs to `sun`; infinite without one."""
    sun: Array
    """[3] irradiance of a single small bright place, for shading that has one sun; 0 where there is none."""
    toward: Array
    """[3] unit vector to it, at turn 0."""


def environment_of(radiance: Array) -> Environment:
    """Prepares a picture.

    Args:
        radiance: [H, W, 3] linear, finite and not negative, twice as wide as high.

    Raises:
        SkyError: another shape or other values.
    """
    if radiance.ndim != 3 or radiance.shape[2] != 3 or radiance.shape[1] != 2 * radiance.shape[0]:
        raise SkyError(
            f"the sky picture has the shape {list(radiance.shape)}; expected height, width and 3, twice as wide as "
            "high (equirectangular). Convert it from other projections first."
        )
    if not np.isfinite(radiance).all() or radiance.min() < 0:
        raise SkyError(
            "the sky picture holds negative or infinite values, or NaN; expected linear radiance. Mend or clip it."
        )
    radiance = _shrunk(radiance.astype(np.float32))
    height, width = radiance.shape[:2]
    sine = np.sin((np.arange(height) + 0.5) * np.pi / height)[:, None]
    luminance = _within_texels(radiance.astype(np.float64) @ _LUMINANCE)
    mean = float((luminance * sine).sum() / (sine.sum() * width))
    # Differences that rounding makes are none.
    aimed = np.maximum(luminance - mean, 0) * (luminance > mean * 1.001) * sine
    total = aimed.sum()
    share = aimed / max(total, 1e-30)
    row = share.sum(1)
    columns = np.cumsum(share, 1) / np.maximum(row, 1e-30)[:, None]
    density = share * height * width / (2 * np.pi**2)
    f32 = np.float32
    peak, sun, toward = _sun(radiance, mean)
    soft = _cells(np.minimum(radiance, f32(peak)), sine)
    return Environment(
        radiance, soft, np.cumsum(row).astype(f32), columns.astype(f32), density.astype(f32), peak, sun, toward
    )


def _sun(radiance: Array, mean: float) -> tuple[float, Array, Array]:
    """`Environment`'s peak, sun and the direction to it; none where bright places are spread or give little light."""
    directions, solid = _directions(radiance.shape[:2])
    peak = _PEAK * mean
    excess = np.maximum(radiance - peak, 0) * solid[..., None]
    weight = excess @ _LUMINANCE
    total = weight.sum()
    middle = np.einsum("hwc,hw->c", directions, weight) / max(total, 1e-30)
    length = float(np.linalg.norm(middle))
    # 4 pi times the mean is all the light; places within about 15 degrees of one another are one.
    if length < math.cos(math.radians(15)) or total < 0.05 * 4 * math.pi * mean:
        return math.inf, np.zeros(3), np.array([0.0, 0.0, 1.0])
    return peak, excess.sum((0, 1)), middle / length


def _within_texels(values: Array) -> Array:
    """[H, W] means over texels of what is bilinear between their middles: their light reaches into their neighbours."""
    across = 0.75 * values + 0.125 * (np.roll(values, 1, 1) + np.roll(values, -1, 1))
    framed = np.pad(across, ((1, 1), (0, 0)), mode="edge")
    return 0.75 * across + 0.125 * (framed[:-2] + framed[2:])


def _shrunk(radiance: Array) -> Array:
    """Averages over squares until the picture is small enough; energy stays."""
    times = math.ceil(radiance.shape[0] / MOST_ROWS)
    if times == 1:
        return np.ascontiguousarray(radiance)
    rows = radiance.shape[0] // times
    cut = radiance[: rows * times, : 2 * rows * times]
    return cut.reshape(rows, times, 2 * rows, times, 3).mean((1, 3))


def _cells(radiance: Array, sine: Array) -> Array:
    """[16, 32, 3] means over cells, by solid angle."""
    height, width = radiance.shape[:2]
    row = np.arange(height) * SOFT[0] // height
    column = np.arange(width) * SOFT[1] // width
    weight = np.broadcast_to(sine, (height, width))
    total, area = np.zeros((*SOFT, 3)), np.zeros(SOFT)
    index = row[:, None], column[None]
    np.add.at(total, index, radiance * weight[..., None])
    np.add.at(area, index, weight)
    if (area == 0).any():  # a picture smaller than the cells
        nearest = radiance[np.arange(SOFT[0]) * height // SOFT[0]][:, np.arange(SOFT[1]) * width // SOFT[1]]
        return nearest.astype(np.float32)
    return (total / area[..., None]).astype(np.float32)


# Files ----------------------------------------------------------------------------------------------------------------


def load_environment(path: str | Path) -> Environment:
    """Reads a .hdr or .exr picture; the last few are kept.

    Raises:
        SkyError: missing, damaged, of another kind, or no picture of all directions.
    """
    path = Path(path)
    if not path.is_file() or not path.name.lower().endswith(SUFFIXES + PACKED_SUFFIXES):
        found = "no file" if not path.is_file() else "a file of another kind"
        raise SkyError(
            f"found {found} at {path}; expected an equirectangular picture ({', '.join(SUFFIXES)}). Check the path."
        )
    return _load(path, path.stat().st_mtime_ns)


@functools.lru_cache(maxsize=4)
def _load(path: Path, modified: int) -> Environment:
    try:
        return environment_of(_read(path))
    except FlowshadeError as error:
        raise SkyError(f"{path}: {error}") from error


def _read(path: Path) -> Array:
    """[H, W, 3] linear Rec.709."""
    if path.suffix == ".js":
        return _unpacked(path)
    if path.suffix.lower() == ".exr":
        from flowshade.gbuffer.io.exr import read_exr, read_header, to_rec709

        file, matrix = read_exr(path), to_rec709(path, read_header(path))
        if not {"R", "G", "B"} <= set(file.channels):
            raise SkyError(f"it has the channels {', '.join(file.channels)}; expected R, G and B.")
        picture = np.stack([file.channels[name].astype(np.float32) for name in "RGB"], -1)
        # Sharp pictures ring below zero when they are shrunk.
        return np.maximum(picture if matrix is None else picture @ matrix.T.astype(np.float32), 0)
    import cv2

    picture = cv2.imdecode(np.frombuffer(path.read_bytes(), np.uint8), cv2.IMREAD_ANYDEPTH | cv2.IMREAD_COLOR)
    if picture is None or picture.dtype != np.float32:
        raise SkyError("it cannot be read as a Radiance picture (.hdr). Write it again.")
    return picture[..., ::-1].copy()


def _unpacked(path: Path) -> Array:
    """The picture inside a JavaScript module; nothing of it is run."""
    import tempfile

    _, comma, data = path.read_text().partition(";base64,")
    if not comma:
        raise SkyError("it is a JavaScript file without a base64 string; expected a packed picture.")
    with tempfile.TemporaryDirectory() as folder:
        inner = Path(folder) / path.stem
        inner.write_bytes(base64.b64decode(data.partition("'")[0].partition('"')[0]))
        return _read(inner)


def installed_hdris() -> dict[str, Path]:
    """Name -> path of the HDRIs in the folders of FLOWSHADE_HDRIS, and of `@pmndrs/assets` in or above the working
    folder."""
    found: dict[str, Path] = {}
    for folder in _folders():
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if path.name.lower().endswith(SUFFIXES + PACKED_SUFFIXES):
                found.setdefault(path.name.partition(".")[0], path)
    return found


def _folders() -> Iterator[Path]:
    yield from (Path(part) for part in os.environ.get(FOLDERS_VARIABLE, "").split(os.pathsep) if part)
    here = Path.cwd()
    yield from (folder / PACKAGE for folder in (here, *here.parents))


def find_hdri(name: str) -> Path:
    """The path of an installed HDRI. Raises: SkyError with the names that there are."""
    known = installed_hdris()
    if name not in known:
        there = ", ".join(known) or "none"
        raise SkyError(
            f"no HDRI named {name!r} is installed (found: {there}); give the path of a .hdr or .exr file, name folders "
            f"in {FOLDERS_VARIABLE}, or install some with: npm install @pmndrs/assets"
        )
    return known[name]


# Looks ----------------------------------------------------------------------------------------------------------------


def is_hdri_name(name: str) -> bool:
    """Whether a look's name asks for an HDRI: `hdri:NAME`, or a path of a picture."""
    return name.startswith(PREFIX) or name.lower().endswith(SUFFIXES + PACKED_SUFFIXES)


def look_named(name: str, turn: float = 0.0) -> Look:
    """A look by name: a key of `LOOKS`, `hdri:NAME`, or the path of an HDRI.

    Raises:
        ValueError: an unknown look or HDRI, or a picture that cannot be a sky.
    """
    if is_hdri_name(name):
        path = find_hdri(name.removeprefix(PREFIX)) if name.startswith(PREFIX) else Path(name)
        return hdri_look(path, turn=turn)
    if name not in LOOKS:
        raise ValueError(
            f"unknown look {name!r}; expected one of {', '.join(LOOKS)}, the path of a .hdr or .exr picture, or "
            f"{PREFIX}NAME of an installed one."
        )
    return LOOKS[name]


def hdri_look(path: str | Path, *, turn: float = 0.0, **options: Any) -> Look:
    """A look whose sky and light are a picture, exposed for it; its words say where the light comes from.

    Args:
        path: the picture.
        turn: degrees that it is turned to the right.
        options: other fields of the look, such as `snow` or `wetness`.

    Raises:
        SkyError: as in `load_environment`.
    """
    environment = load_environment(path)
    zenith, horizon, ground = (_mean(environment, *band) for band in ((30, 90), (-10, 10), (-90, -30)))
    direct, azimuth, elevation, level = _main_light(environment, turn)
    values: dict[str, Any] = {
        "name": "hdri", "hdri": str(path), "hdri_turn": turn, "sun_azimuth": azimuth, "sun_elevation": elevation,
        "zenith": zenith, "horizon": horizon, "ground": ground, "fog_density": 0.0, "fog_color": horizon,
        "exposure": _GREY_CARD / max(level, 1e-6), "words": _words(environment, direct, azimuth, elevation),
    }  # fmt: skip
    return Look(**{**values, **options})


def with_sun(look: Look) -> Look:
    """A look whose picture's small bright place is its sun: for shading that does not aim at the picture."""
    if not look.hdri or look.has_sun:
        return look
    sky = load_environment(look.hdri)
    x, y, z = sky.toward
    red, green, blue = (float(value) for value in sky.sun)
    return dataclasses.replace(
        look, sun=(red, green, blue), sun_elevation=math.degrees(math.asin(max(-1.0, min(1.0, z)))),
        sun_azimuth=math.degrees(math.atan2(x, y)) + look.hdri_turn,
    )  # fmt: skip


def _directions(shape: tuple[int, int]) -> tuple[Array, Array]:
    """Unit vectors [H, W, 3] through the middles of a picture's texels, and their solid angles [H, W]."""
    height, width = shape
    angle = (np.arange(height) + 0.5) / height * np.pi
    longitude = ((np.arange(width) + 0.5) / width - 0.5) * 2 * np.pi
    flat = np.sin(angle)[:, None]
    x, y = flat * np.sin(longitude), flat * np.cos(longitude)
    directions = np.stack([x, y, np.broadcast_to(np.cos(angle)[:, None], x.shape)], -1)
    return directions, np.broadcast_to(flat * (2 * np.pi**2 / (height * width)), x.shape)


def _mean(environment: Environment, low: float, high: float) -> Rgb:
    """Mean radiance between two elevations, degrees."""
    directions, solid = _directions(environment.radiance.shape[:2])
    elevation = np.degrees(np.arcsin(np.clip(directions[..., 2], -1, 1)))
    weight = solid * ((elevation >= low) & (elevation <= high))
    r, g, b = np.einsum("hwc,hw->c", environment.radiance, weight) / weight.sum()
    return float(r), float(g), float(b)


def _main_light(environment: Environment, turn: float) -> tuple[float, float, float, float]:
    """Share of the light from above that comes from around its brightest direction, that direction's azimuth and
    elevation in degrees, and the mean luminance that a level surface receives."""
    directions, solid = _directions(environment.radiance.shape[:2])
    light = environment.radiance @ _LUMINANCE * solid * np.maximum(directions[..., 2], 0)
    power = environment.radiance @ _LUMINANCE * solid * (directions[..., 2] > 0)
    cells = _directions(SOFT)[0]
    soft = environment.soft @ _LUMINANCE * (cells[..., 2] > 0)
    peak = cells.reshape(-1, 3)[int(soft.argmax())]
    near = power * (directions @ peak > math.cos(math.radians(25)))
    middle = np.einsum("hwc,hw->c", directions, near)
    middle /= max(float(np.linalg.norm(middle)), 1e-12)
    azimuth = math.degrees(math.atan2(middle[0], middle[1])) + turn
    elevation = math.degrees(math.asin(min(1.0, float(middle[2]))))
    direct = float(near.sum() / max(power.sum(), 1e-12))
    return direct, (azimuth + 180) % 360 - 180, elevation, float(light.sum() / math.pi)


def _words(environment: Environment, direct: float, azimuth: float, elevation: float) -> str:
    """What the light of a picture looks like, no more than can be seen."""
    cells, solid = _directions(SOFT)
    red, _, blue = np.einsum("hwc,hw->c", environment.soft, solid * np.maximum(cells[..., 2], 0))
    tone = "warm " if red > 1.35 * blue else "cool " if blue > 1.25 * red else ""
    if direct < _DIRECTED:
        return f"soft {tone}light from all around"
    side = AZIMUTHS[min(AZIMUTHS, key=lambda key: abs((azimuth - key + 180) % 360 - 180))]
    height = ELEVATIONS[min(ELEVATIONS, key=lambda key: abs(key - elevation))]
    return f"{tone or 'bright '}light from {side}, {height}"


# Looking up -----------------------------------------------------------------------------------------------------------


def look_up(picture: Array, d: Float[Tensor, "3 ..."], turn: float) -> Float[Tensor, "3 ..."]:
    """Bilinear radiance of a picture [H, W, 3], turned to the right by degrees, in stream-frame directions."""
    texels = torch.from_numpy(picture).to(d)
    height, width = picture.shape[:2]
    x = (torch.atan2(d[0], d[1]) / (2 * math.pi) + 0.5 - turn / 360) * width - 0.5
    y = torch.acos(d[2].clamp(-1, 1)) / math.pi * height - 0.5
    x0, y0 = x.floor(), y.floor()
    fx, fy = x - x0, y - y0
    left, right = x0.long() % width, (x0.long() + 1) % width
    top, bottom = y0.long().clamp(0, height - 1), (y0.long() + 1).clamp(0, height - 1)
    upper = texels[top, left] * (1 - fx)[..., None] + texels[top, right] * fx[..., None]
    lower = texels[bottom, left] * (1 - fx)[..., None] + texels[bottom, right] * fx[..., None]
    return torch.movedim(upper * (1 - fy)[..., None] + lower * fy[..., None], -1, 0)
