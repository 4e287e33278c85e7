"""All channels tiled on one or two screens and captured as video, as upstream did; `mosaic.json` says what lies where.

    {"videos": ["screen.mp4"],
     "tiles": {"rgb": {"video": 0, "left": 0, "top": 0, "width": 832, "height": 448}, "albedo": {...}, ...}}

`video` counts from 0 and may be left out for one. Such channels are synchronous by construction, but a layout that is a
few pixels off, or names the wrong tile, still gives pictures that look right. So the tiles are checked when a mosaic is
opened (`find_faults`); `"check": false` turns faults into warnings. What the check cannot see: two grey channels, or
albedo and the picture, exchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from einops import rearrange
from jaxtyping import Float, Shaped
from torch import Tensor

from flowshade.color import from_bytes
from flowshade.errors import reason
from flowshade.gbuffer.io.coding import CODED_CHANNELS, CodedReader
from flowshade.gbuffer.io.errors import ClipError
from flowshade.gbuffer.io.limits import read_json
from flowshade.gbuffer.io.video import VideoReader
from flowshade.types import CHANNELS

LAYOUT_FILE = "mosaic.json"
NAMES = (*CODED_CHANNELS, "rgb")

LENGTH_TOLERANCE = 0.2
"""By which a decoded normal may miss length 1: 8 bits, lossy video, a little filtering."""
SHORT = 0.4
"""Shorter ones, and (-1, -1, -1), are sky."""
NORMAL_SHARE = 0.7
"""Share of pixels that must be unit vectors or sky."""
GREY_TOLERANCE = 24
"""Steps of 255 between the planes of a grey tile, at its 95th percentile."""
SHIFT = 1.5
"""Pixels by which the edges of two tiles may miss one another."""
CONFIDENT = 0.08
"""Response of phase correlation from which a shift is believed."""
SEAM_REACH = 1 / 6
"""Share of a tile's side, from each end, in which a straight seam is looked for."""
SEAM_RISE = 6.0
"""A seam's step from row to row, in medians over the tile."""
SEAM_STEP = 12.0
"""Its least step, of 255."""


@dataclass(frozen=True, kw_only=True)
class Tile:
    """Where a channel lies, in pixels."""

    left: int
    top: int
    width: int
    height: int
    video: int = 0

    def of(self, picture: Shaped[Tensor, "T H W 3"]) -> Shaped[Tensor, "T h w 3"]:
        return picture[:, self.top : self.top + self.height, self.left : self.left + self.width]

    def overlaps(self, other: Tile) -> bool:
        return (
            self.video == other.video
            and self.left < other.left + other.width
            and other.left < self.left + self.width
            and self.top < other.top + other.height
            and other.top < self.top + self.height
        )


@dataclass(frozen=True, kw_only=True)
class MosaicLayout:
    """The contents of `mosaic.json`."""

    videos: tuple[str, ...]
    tiles: dict[str, Tile]
    check: bool = True

    @staticmethod
    def load(path: Path) -> MosaicLayout:
        """Reads a layout file.

        Raises:
            ClipError: not of that form, unknown channels, tiles of several sizes, or tiles that overlap.
        """
        values: Any = read_json(path)
        try:
            layout = MosaicLayout(
                videos=tuple(str(name) for name in values["videos"]),
                tiles={name: Tile(**_whole_numbers(tile)) for name, tile in values["tiles"].items()},
                check=bool(values.get("check", True)),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ClipError(
                f"{path} is no layout ({type(error).__name__}: {reason(error)}); expected videos, and tiles with left, "
                "top, width, height (and video) for each channel, in pixels."
            ) from error
        _check_tiles(path, layout)
        return layout

    @property
    def size(self) -> tuple[int, int]:
        tile = next(iter(self.tiles.values()))
        return tile.height, tile.width


def _whole_numbers(tile: Mapping[str, Any]) -> dict[str, int]:
    wrong = [name for name, value in tile.items() if type(value) is not int]
    if wrong:
        raise ValueError(f"{wrong[0]} is {tile[wrong[0]]!r}, no whole number")
    return dict(tile)


def _check_tiles(path: Path, layout: MosaicLayout) -> None:
    unknown = [name for name in layout.tiles if name not in NAMES]
    if unknown or not set(layout.tiles) - {"rgb"}:
        raise ClipError(f"{path} names the tiles {', '.join(layout.tiles)}; expected some of {', '.join(NAMES)}.")
    for name, tile in layout.tiles.items():
        if min(tile.left, tile.top) < 0 or min(tile.width, tile.height) < 1 or not 0 <= tile.video < len(layout.videos):
            raise ClipError(f"{path}: tile {name} is {tile}; expected it within one of {len(layout.videos)} videos.")
    sizes = {name: (tile.height, tile.width) for name, tile in layout.tiles.items()}
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{name} {height}x{width}" for name, (height, width) in sizes.items())
        raise ClipError(f"{path}: tiles differ in size ({listed}); expected one. Correct the layout.")
    for (name, tile), (other_name, other) in combinations(layout.tiles.items(), 2):
        if tile.overlaps(other):
            raise ClipError(f"{path}: the tiles {name} and {other_name} overlap; correct the layout.")


class MosaicReader(CodedReader):
    """Reads captured mosaics, see this module. Options: `CodedReader`."""

    format = "mosaic"

    def _find(self, warnings: list[str]) -> tuple[int, tuple[int, int], float | None]:
        self._layout = layout = MosaicLayout.load(self._folder / LAYOUT_FILE)
        any_rate = self._conventions.fps is not None
        self._videos = [VideoReader(self._folder / name, any_rate=any_rate) for name in layout.videos]
        self._last: dict[int, tuple[int, int, Tensor]] = {}
        """By video: the run of frames that was decoded last, which every tile asks for."""
        frames = {video.frames for video in self._videos}
        if len(frames) != 1:
            raise ClipError(f"{self._path}: the videos have {sorted(frames)} frames; expected as many in each.")
        self._check_bounds()
        self.top = {name: 255 for name in layout.tiles if name != "rgb"}
        count = frames.pop()
        self._check_layout(count, warnings)
        lossy = any(video.subsampled for video in self._videos)
        if lossy:
            warnings.append("captured as compressed colour video at half colour resolution; values are inexact.")
        return count, layout.size, self._videos[0].fps or None

    def _check_bounds(self) -> None:
        for name, tile in self._layout.tiles.items():
            height, width = self._videos[tile.video].size
            if tile.left + tile.width > width or tile.top + tile.height > height:
                raise ClipError(
                    f"{self._folder / LAYOUT_FILE}: tile {name} ends at {tile.top + tile.height}x"
                    f"{tile.left + tile.width} and the video at {height}x{width} (height x width). Correct the layout."
                )

    def _check_layout(self, frames: int, warnings: list[str]) -> None:
        faults = find_faults(
            {name: self._pictures(name, frames // 2, frames // 2 + 1)[0] for name in self._layout.tiles}
        )
        if faults and self._layout.check:
            raise ClipError(
                f"{self._folder / LAYOUT_FILE} does not fit the video: {'; '.join(faults)}. Correct the layout, or say "
                '"check": false in it if it is right.'
            )
        warnings += [f"the layout may be wrong: {fault}." for fault in faults]

    def _has_pictures(self) -> bool:
        return "rgb" in self._layout.tiles

    def _pictures(self, channel: str, start: int, stop: int) -> Shaped[Tensor, "T h w 3"]:
        tile = self._layout.tiles[channel]
        last = self._last.get(tile.video)
        if last is None or last[:2] != (start, stop):
            last = self._last[tile.video] = (start, stop, self._videos[tile.video].read(start, stop))
        return tile.of(last[2])

    def _raw(self, channel: str, start: int, stop: int) -> Shaped[Tensor, "T C H W"]:
        return rearrange(self._pictures(channel, start, stop), "t h w c -> t c h w")

    def _reference(self, start: int, stop: int) -> Float[Tensor, "T 3 H W"] | None:
        return from_bytes(self._ordered(self._raw("rgb", start, stop)))

    def close(self) -> None:
        self._last.clear()
        for video in self._videos:
            video.close()


def find_faults(tiles: Mapping[str, Shaped[Tensor, "h w 3"]]) -> list[str]:
    """What speaks against a layout, as sentences' parts; nothing if it seems right.

    Normals must be unit vectors, grey channels grey, edges must lie on one another, and no straight seam may run
    along the border of several tiles.

    Args:
        tiles: one frame by channel, uint8.
    """
    pictures = {name: tile.numpy().astype(np.float32) for name, tile in tiles.items()}
    faults = [fault for name, picture in pictures.items() if (fault := _fault_of_values(name, picture))]
    return faults + _faults_of_edges(pictures) + _faults_of_seams(pictures)


def _fault_of_values(name: str, picture: np.ndarray) -> str | None:
    if name == "normal":
        lengths = np.linalg.norm(picture / 127.5 - 1, axis=-1)
        fine = (np.abs(lengths - 1) < LENGTH_TOLERANCE) | (lengths < SHORT) | (picture.max(-1) < 8)
        if fine.mean() < NORMAL_SHARE:
            return f"only {100 * fine.mean():.0f}% of tile normal are unit vectors"
    elif CHANNELS.get(name) == 1 and np.percentile(np.ptp(picture, axis=-1), 95) > GREY_TOLERANCE:
        return f"tile {name} is coloured"
    return None


def _faults_of_edges(pictures: Mapping[str, np.ndarray]) -> list[str]:
    """Tiles whose edges lie beside those of the first tile that has any."""
    edges = {name: _edges(picture) for name, picture in pictures.items()}
    edges = {name: values for name, values in edges.items() if values.std() > 1}
    if len(edges) < 2:
        return []
    anchor = "normal" if "normal" in edges else next(iter(edges))
    window = cv2.createHanningWindow(edges[anchor].shape[::-1], cv2.CV_32F)
    faults = []
    for name, values in edges.items():
        if name == anchor:
            continue
        (right, down), response = cv2.phaseCorrelate(edges[anchor], values, window)
        if response > CONFIDENT and max(abs(right), abs(down)) > SHIFT:
            faults.append(f"tile {name} lies {right:+.0f} pixels right and {down:+.0f} down of {anchor}")
    return faults


def _edges(picture: np.ndarray) -> np.ndarray:
    """[H, W] strength of edges over all planes, of 8-bit pictures."""
    across, down = (cv2.Sobel(picture, cv2.CV_32F, dx, dy) for dx, dy in ((1, 0), (0, 1)))
    return np.hypot(across, down).max(-1).astype(np.float32)


def _faults_of_seams(pictures: Mapping[str, np.ndarray]) -> list[str]:
    """A straight line at one place of several tiles: where a neighbour begins."""
    faults = []
    for axis, what in ((0, "row"), (1, "column")):
        places = [place for picture in pictures.values() for place in _seams(picture, axis)]
        for place in sorted(set(places)):
            if places.count(place) > len(pictures) / 2:
                faults.append(f"a seam runs along {what} {place} of {places.count(place)} tiles")
    return faults


def _seams(picture: np.ndarray, axis: int) -> list[int]:
    steps = np.abs(np.diff(picture, axis=axis)).mean((1 - axis, 2))  # one a border between rows (columns)
    reach = int(len(steps) * SEAM_REACH)
    near_ends = [*range(reach), *range(len(steps) - reach, len(steps))]
    least = max(SEAM_STEP, SEAM_RISE * float(np.median(steps)))
    return [place + 1 for place in near_ends if steps[place] > least]
