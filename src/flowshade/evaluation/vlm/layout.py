"""The synchronised grid: RGB and every method at one moment, in an order that is drawn by lot and written down."""

from __future__ import annotations

import hashlib
import math
import random
import string
from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from jaxtyping import UInt8

REFERENCE_LABEL = "RGB"
BAR = 28
"""Height of the label above a tile, in pixels."""
GAP = 6
GREY = 24
MAX_METHODS = len(string.ascii_uppercase)


def labels(count: int) -> tuple[str, ...]:
    """A, B, C, ... Raises: ValueError for more methods than letters."""
    if count > MAX_METHODS:
        raise ValueError(f"{count} methods were given; expected at most {MAX_METHODS}. Judge them in several runs.")
    return tuple(string.ascii_uppercase[:count])


def drawn_order(methods: Sequence[str], seed: int, question: str, repeat: int) -> tuple[str, ...]:
    """The methods in the order in which a question shows them.

    The first repeat's order is a shuffle by the seed and the question, the second its reverse, so that over the two no
    method stands before another more often than behind it. The next two are the first two moved on by one place, and
    so on: with twice as many repeats as methods each stands twice in every place.

    Args:
        methods: their names; the order given does not matter.
        seed: of the whole run.
        question: what tells this question from others (repeats apart).
        repeat: which repeat, from 0.
    """
    order = sorted(methods)
    key = hashlib.sha256(f"{seed}\0{question}".encode()).digest()
    random.Random(int.from_bytes(key[:8], "big")).shuffle(order)
    shift = (repeat // 2) % len(order)
    moved = order[shift:] + order[:shift]
    return tuple(moved if repeat % 2 == 0 else reversed(moved))


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The places of tiles in one picture: the RGB first, then the methods in their order, row by row."""

    tiles: int
    columns: int
    tile: tuple[int, int]
    """Height and width of a tile without its label."""

    @staticmethod
    def fit(methods: int, picture: tuple[int, int], longest: int) -> Grid:
        """The grid that shows tiles largest within a square of `longest` pixels, as square as that allows.

        Tiles are not enlarged.

        Args:
            methods: how many, besides the RGB.
            picture: height and width of the footage.
            longest: pixels of the grid's longer side, at most.

        Raises:
            ValueError: so little room that nothing could be seen.
        """
        tiles = methods + 1
        grids = [_sized(tiles, columns, picture, longest) for columns in range(1, tiles + 1)]
        best = max(grids, key=lambda grid: (grid.tile, -max(grid.size), -grid.rows * grid.columns))
        if min(best.tile) < 16:
            raise ValueError(
                f"a grid of {tiles} tiles within {longest} pixels leaves {best.tile[0]}x{best.tile[1]} a tile; "
                "expected at least 16. Give a larger --longest-side or fewer methods."
            )
        return best

    @property
    def rows(self) -> int:
        return math.ceil(self.tiles / self.columns)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width in pixels."""
        height, width = self.tile
        return self.rows * (height + BAR + GAP) + GAP, self.columns * (width + GAP) + GAP

    def draw(self, pictures: Sequence[UInt8[np.ndarray, "H W 3"]], names: Sequence[str]) -> UInt8[np.ndarray, "H W 3"]:
        """Tiles of size `tile` under their labels."""
        height, width = self.tile
        canvas = np.full((*self.size, 3), GREY, np.uint8)
        for index, (picture, name) in enumerate(zip(pictures, names, strict=True)):
            row, column = divmod(index, self.columns)
            y, x = GAP + row * (height + BAR + GAP), GAP + column * (width + GAP)
            cv2.putText(
                canvas, name, (x + 2, y + BAR - 8), cv2.FONT_HERSHEY_SIMPLEX, 0.8, (255, 255, 255), 2, cv2.LINE_AA
            )
            canvas[y + BAR : y + BAR + height, x : x + width] = picture
        return canvas


def _sized(tiles: int, columns: int, picture: tuple[int, int], longest: int) -> Grid:
    rows = math.ceil(tiles / columns)
    room = ((longest - GAP) / rows - BAR - GAP, (longest - GAP) / columns - GAP)
    scale = min(1.0, room[0] / picture[0], room[1] / picture[1])
    tile = max(1, int(picture[0] * scale)), max(1, int(picture[1] * scale))
    return Grid(tiles=tiles, columns=columns, tile=tile)


def png(picture: UInt8[np.ndarray, "H W 3"]) -> bytes:
    """A lossless file of a picture, red first."""
    done, data = cv2.imencode(".png", cv2.cvtColor(picture, cv2.COLOR_RGB2BGR))
    assert done, "8-bit pictures can be written"
    return data.tobytes()
