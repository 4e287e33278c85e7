"""Folders of pictures, one file a channel and frame: `albedo/0001.png` or `albedo_0001.tif`, also JPEG, EXR, NumPy."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from flowshade.color import linear_to_srgb
from flowshade.gbuffer.io.coding import CODED_CHANNELS, CodedReader
from flowshade.gbuffer.io.errors import ClipError
from flowshade.gbuffer.io.exr import read_header, to_rec709
from flowshade.gbuffer.io.pictures import SUFFIXES, read_picture
from flowshade.gbuffer.io.sequence import frame_number, numbered
from flowshade.types import CHANNELS

SMOOTHNESS = "smoothness"
"""What Unity has instead of roughness: one minus it."""
ALIASES: dict[str, str] = {
    **{name: name for name in CODED_CHANNELS},
    "basecolor": "albedo",
    "base_color": "albedo",
    "normals": "normal",
    "rough": "roughness",
    "smoothness": SMOOTHNESS,
    "metal": "metallic",
    "metalness": "metallic",
    "rgb": "rgb",
    "image": "rgb",
}
"""Names that a channel's folder or files may carry."""
JPEG = (".jpg", ".jpeg")
JPEG_GREY_TOLERANCE = 24
"""Steps of 255 by which JPEG pulls the planes of a grey picture apart."""
DARKEST = {"normal": 8, "albedo": 250}
"""16-bit normals or albedo below 1/8 or 1/250 of the range are fewer bits, stored unscaled."""


@cache
def channel_pattern(names: tuple[str, ...]) -> re.Pattern[str]:
    """Finds the names of channels between separators, longest first."""
    alternatives = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    return re.compile(rf"(?:^|[._-])({alternatives})(?=[._-]|\d|$)", re.IGNORECASE)


def channel_in_name(stem: str, names: dict[str, str] = ALIASES) -> tuple[str, str] | None:
    """The channel that a file's stem names (the last one), and what stands before: `clip_1_depth` -> depth, clip_1."""
    matches = list(channel_pattern(tuple(names)).finditer(stem))
    return (names[matches[-1][1].lower()], stem[: matches[-1].start()]) if matches else None


def pictures_in(folder: Path) -> list[Path]:
    """The pictures of a folder, not of those below it."""
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and path.is_file())


class PictureFolderReader(CodedReader):
    """Reads a folder of pictures, see this module. Options: `CodedReader`."""

    format = "pictures"
    names: ClassVar[dict[str, str]] = ALIASES
    """What files and folders may be called -> channel, or "rgb"."""

    def _find(self, warnings: list[str]) -> tuple[int, tuple[int, int], float | None]:
        self._files = self._by_frame(self._by_channel())
        self._from_smoothness = SMOOTHNESS in self._files and "roughness" not in self._files
        if self._from_smoothness:
            warnings.append("roughness is one minus smoothness.")
            self._files["roughness"] = self._files[SMOOTHNESS]
        self._files.pop(SMOOTHNESS, None)
        check_same_frames(self._path, self._files)
        self._order = list(next(iter(self._files.values())))
        self._dtypes: dict[str, np.dtype] = {}
        self._planes_of: dict[str, int] = {}
        sizes: dict[str, tuple[int, int]] = {}
        for name, files in self._files.items():
            first = self._values(name, files[self._order[0]])
            self._dtypes[name], sizes[name] = first.dtype, (first.shape[0], first.shape[1])
            self._planes_of[name] = _planes_in(first)
            if first.ndim == 3 and first.shape[2] == 4:
                warnings.append(f"{name} has an alpha plane, which is dropped.")
            if name != "rgb":
                self.top[name] = int(np.iinfo(first.dtype).max) if first.dtype.kind in "ui" else 1
                self._check_scaled(files[self._order[0]], name, first)
        self._size = self._one_size(sizes)
        if not self.top:
            raise ClipError(f"{self._path} holds only pictures (rgb); expected channels {', '.join(CODED_CHANNELS)}.")
        lossy = [name for name in self.top if self._files[name][self._order[0]].suffix.lower() in JPEG]
        if lossy:
            warnings.append(f"{', '.join(lossy)}: stored as JPEG, which changes values by a few steps of 255.")
        return len(self._order), self._size, None

    def _one_size(self, sizes: dict[str, tuple[int, int]]) -> tuple[int, int]:
        if len(set(sizes.values())) > 1:
            listed = ", ".join(f"{name} {height}x{width}" for name, (height, width) in sizes.items())
            raise ClipError(f"{self._path}: channels differ in size ({listed}); expected one size. Export them alike.")
        return next(iter(sizes.values()))

    def _check_scaled(self, path: Path, channel: str, values: np.ndarray) -> None:
        """Finds numbers of fewer bits stored unscaled in a file of more, which would read as nearly black."""
        if self._conventions.bits is not None or values.dtype != np.uint16 or channel not in DARKEST:
            return
        highest = int(values[..., :3].max())
        if 0 < highest < self.top[channel] / DARKEST[channel]:
            raise ClipError(
                f"{path} is a 16-bit file whose values reach {highest} only; expected up to 65535. It holds fewer "
                f"bits, unscaled: give bits={max(8, highest.bit_length())}, or bits=16 if the values are right."
            )

    def _by_frame(self, found: dict[str, list[Path]]) -> dict[str, dict[int, Path]]:
        return {name: numbered(paths, f"{self._path} {name}", self._frame_number) for name, paths in found.items()}

    def _frame_number(self, path: Path) -> int | None:
        return frame_number(path)

    def _by_channel(self) -> dict[str, list[Path]]:
        found: dict[str, list[Path]] = {}
        for path in pictures_in(self._path):
            named = channel_in_name(path.stem, self.names)
            if named is not None:
                found.setdefault(named[0], []).append(path)
        for folder in sorted(entry for entry in self._path.iterdir() if entry.is_dir()):
            name = self.names.get(folder.name.lower())
            files = pictures_in(folder)
            if name is not None and files:
                if name in found:
                    raise ClipError(f"{self._path} holds {name} twice ({folder.name} and other files); keep one.")
                found[name] = files
        if not found:
            some = next((path for path in sorted(self._path.rglob("*")) if path.suffix.lower() in SUFFIXES), None)
            such = f"pictures such as {some.relative_to(self._path)}" if some else "no pictures"
            raise ClipError(
                f"{self._path} holds {such}, none named after a channel; expected albedo/0001.png or albedo_0001.png, "
                f"with {', '.join(CODED_CHANNELS)}. Rename them."
            )
        return found

    def _numbers(self) -> list[int]:
        return self._order

    def _has_pictures(self) -> bool:
        return "rgb" in self._files

    def _values(self, channel: str, path: Path) -> np.ndarray:
        """One channel's picture, [H, W] or [H, W, C]; what a format does not store by channel is taken apart here."""
        values = read_picture(path)
        if path.suffix.lower() == ".exr" and channel in ("albedo", "rgb") and values.ndim == 3:
            values = _in_rec709(path, values)
        return values.astype(np.float32) if values.dtype in (np.float16, np.float64) else values

    def _raw(self, channel: str, start: int, stop: int) -> Shaped[Tensor, "T C H W"]:
        numbers = self._order[start:stop]
        return torch.stack([self._picture(channel, self._files[channel][number]) for number in numbers])

    def _picture(self, channel: str, path: Path) -> Shaped[Tensor, "C H W"]:
        values = self._values(channel, path)
        if values.dtype != self._dtypes[channel]:
            raise ClipError(
                f"{path} is {values.dtype} and the first {channel} file {self._dtypes[channel]}; expected one bit "
                "depth. Write the channel again."
            )
        if values.shape[:2] != self._size:
            raise ClipError(
                f"{path} is {values.shape[:2]} and the clip {self._size}; expected one size. Write it again."
            )
        if _planes_in(values) != self._planes_of[channel]:
            raise ClipError(
                f"{path} has {_planes_in(values)} planes and the first {channel} file {self._planes_of[channel]}; "
                "expected as many in each. Write the channel again, all grey or all in colour."
            )
        planes = values[None] if values.ndim == 2 else values[..., :3].transpose(2, 0, 1)
        if len(planes) not in (1, 3):
            raise ClipError(f"{path} has {len(planes)} planes; expected one, or three of colour. Write it so.")
        self._check_grey(channel, path, planes)
        if channel == "roughness" and self._from_smoothness:
            planes = (self.top[channel] - planes).astype(planes.dtype)
        # torch has few operations on uint16; int32 holds every value.
        wide = planes.dtype.kind in "ui" and planes.dtype != np.uint8
        return torch.from_numpy(planes.astype(np.int64).astype(np.int32) if wide else np.array(planes))

    def _check_grey(self, channel: str, path: Path, planes: np.ndarray) -> None:
        if CHANNELS.get(channel) != 1 or len(planes) != 3:
            return
        if path.suffix.lower() in JPEG:
            alike = np.ptp(planes.astype(np.int32), axis=0).max() <= JPEG_GREY_TOLERANCE
        else:
            alike = np.array_equal(planes[0], planes[1], equal_nan=planes.dtype.kind == "f") and np.array_equal(
                planes[0], planes[2], equal_nan=True
            )
        if not alike:
            raise ClipError(
                f"{path} has three different planes; {channel} expected one, or three alike. It may be a coloured "
                "preview: export the values."
            )

    def _reference(self, start: int, stop: int) -> Float[Tensor, "T 3 H W"] | None:
        values = self._ordered(self._raw("rgb", start, stop))
        if values.shape[1] != 3:
            raise ClipError(
                f"{self._path}: rgb pictures have {values.shape[1]} planes; expected 3. Write them in colour."
            )
        dtype = self._dtypes["rgb"]
        return values.float() / float(np.iinfo(dtype).max) if dtype.kind in "ui" else linear_to_srgb(values)


def _planes_in(values: np.ndarray) -> int:
    """Planes of [H, W] or [H, W, C], but for alpha."""
    return 1 if values.ndim == 2 else min(values.shape[2], 3)


def _in_rec709(path: Path, colours: np.ndarray) -> np.ndarray:
    matrix = to_rec709(path, read_header(path))
    return colours if matrix is None else colours[..., :3].astype(np.float64) @ matrix.T


def check_same_frames(path: Path, files: dict[str, dict[int, Path]]) -> None:
    """Raises a ClipError that says which channel has which frames, unless all have the same."""
    ranges = {name: (len(numbers), min(numbers), max(numbers)) for name, numbers in files.items()}
    if len(set(ranges.values())) > 1:
        listed = "; ".join(f"{name} {count} frames ({low} to {high})" for name, (count, low, high) in ranges.items())
        raise ClipError(
            f"{path}: channels differ in frames: {listed}; expected the same frames in each. Export them again."
        )
