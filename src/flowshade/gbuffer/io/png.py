"""Folders of PNG files: `albedo/0001.png` or `albedo_0001.png`, 8 or 16 bit."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from flowshade.gbuffer.io.coding import CODED_CHANNELS, CodedReader
from flowshade.gbuffer.io.errors import ClipError
from flowshade.gbuffer.io.pictures import read_png
from flowshade.gbuffer.io.sequence import numbered
from flowshade.types import CHANNELS

ALIASES: dict[str, str] = {
    **{name: name for name in CODED_CHANNELS},
    "basecolor": "albedo",
    "base_color": "albedo",
    "normals": "normal",
    "rough": "roughness",
    "metal": "metallic",
    "metalness": "metallic",
    "rgb": "rgb",
    "image": "rgb",
}
"""Names that a channel's folder or files may carry."""
_NAME = "|".join(sorted(ALIASES, key=len, reverse=True))
_FILE = re.compile(rf"(?:^|[._-])({_NAME})(?=[._-]|\d|$)", re.IGNORECASE)


def channel_in_name(stem: str) -> tuple[str, str] | None:
    """The channel that a file's stem names (the last one), and what stands before: `clip_1_depth` -> depth, clip_1."""
    matches = list(_FILE.finditer(stem))
    return (ALIASES[matches[-1][1].lower()], stem[: matches[-1].start()]) if matches else None


class PngReader(CodedReader):
    """Reads a folder of PNG files, see this module. Options: `CodedReader`."""

    format = "png"

    def _find(self, warnings: list[str]) -> tuple[int, tuple[int, int], float | None]:
        self._files = {name: numbered(paths, f"{self._path} {name}") for name, paths in self._by_channel().items()}
        _check_same_frames(self._path, self._files)
        self._order = list(next(iter(self._files.values())))
        self._dtypes: dict[str, np.dtype] = {}
        sizes: dict[str, tuple[int, int]] = {}
        for name, files in self._files.items():
            first = read_png(files[self._order[0]])
            self._dtypes[name], sizes[name] = first.dtype, (first.shape[0], first.shape[1])
            if first.ndim == 3 and first.shape[2] == 4:
                warnings.append(f"{name} has an alpha plane, which is dropped.")
            if name != "rgb":
                self.top[name] = int(np.iinfo(first.dtype).max)
        if len(set(sizes.values())) > 1:
            listed = ", ".join(f"{name} {height}x{width}" for name, (height, width) in sizes.items())
            raise ClipError(f"{self._path}: channels differ in size ({listed}); expected one size. Export them alike.")
        if not self.top:
            raise ClipError(f"{self._path} holds only pictures (rgb); expected channels {', '.join(CODED_CHANNELS)}.")
        self._size = next(iter(sizes.values()))
        return len(self._order), self._size, None

    def _by_channel(self) -> dict[str, list[Path]]:
        found: dict[str, list[Path]] = {}
        for path in sorted(self._path.glob("*.png")):
            named = channel_in_name(path.stem)
            if named is not None:
                found.setdefault(named[0], []).append(path)
        for folder in sorted(entry for entry in self._path.iterdir() if entry.is_dir()):
            name = ALIASES.get(folder.name.lower())
            files = list(folder.glob("*.png"))
            if name is not None and files:
                if name in found:
                    raise ClipError(f"{self._path} holds {name} twice ({folder.name} and other files); keep one.")
                found[name] = files
        if not found:
            some = next(self._path.rglob("*.png"))
            raise ClipError(
                f"{self._path} holds PNG files such as {some.relative_to(self._path)}, none named after a channel; "
                f"expected albedo/0001.png or albedo_0001.png, with {', '.join(CODED_CHANNELS)}. Rename them."
            )
        return found

    def _numbers(self) -> list[int]:
        return self._order

    def _has_pictures(self) -> bool:
        return "rgb" in self._files

    def _raw(self, channel: str, start: int, stop: int) -> Shaped[Tensor, "T C H W"]:
        numbers = self._order[start:stop]
        return torch.stack([self._picture(channel, self._files[channel][number]) for number in numbers])

    def _picture(self, channel: str, path: Path) -> Shaped[Tensor, "C H W"]:
        values = read_png(path)
        if values.dtype != self._dtypes[channel]:
            raise ClipError(
                f"{path} is {values.dtype} and the first {channel} file {self._dtypes[channel]}; expected one bit "
                "depth. Write the channel again."
            )
        if values.shape[:2] != self._size:
            raise ClipError(
                f"{path} is {values.shape[:2]} and the clip {self._size}; expected one size. Write it again."
            )
        planes = values[None] if values.ndim == 2 else values[..., :3].transpose(2, 0, 1)
        if CHANNELS.get(channel) == 1 and len(planes) == 3 and np.ptp(planes, axis=0).any():
            raise ClipError(
                f"{path} has three different planes; {channel} expected one, or three alike. It may be a coloured "
                "preview: export the values."
            )
        # torch has few operations on uint16; int32 holds every value.
        return torch.from_numpy(planes.astype(np.int32) if planes.dtype == np.uint16 else planes.copy())

    def _reference(self, start: int, stop: int) -> Float[Tensor, "T 3 H W"] | None:
        values = self._raw("rgb", start, stop)
        if values.shape[1] != 3:
            raise ClipError(
                f"{self._path}: rgb pictures have {values.shape[1]} planes; expected 3. Write them in colour."
            )
        return values.float() / float(np.iinfo(self._dtypes["rgb"]).max)


def _check_same_frames(path: Path, files: dict[str, dict[int, Path]]) -> None:
    ranges = {name: (len(numbers), min(numbers), max(numbers)) for name, numbers in files.items()}
    if len(set(ranges.values())) > 1:
        listed = "; ".join(f"{name} {count} frames ({low} to {high})" for name, (count, low, high) in ranges.items())
        raise ClipError(
            f"{path}: channels differ in frames: {listed}; expected the same frames in each. Export them again."
        )
