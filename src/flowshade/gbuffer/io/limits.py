"""What a file may ask for. Sizes are read from headers and checked here before anything is allocated for them."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

from flowshade.errors import reason
from flowshade.gbuffer.io.errors import ClipError

MAX_JSON_BYTES = 2**26
"""Larger JSON files are refused before they are read."""
SHOWN_LETTERS = 60
"""Of a wrong value, in a message."""
FLOAT32_MAX = 3e38
"""Larger numbers are infinite once in a tensor."""
MAX_SIDE = 2**15
"""Pixels: four times the width of 8K."""
MAX_PLANES = 2**10
"""Values a pixel, over all channels of a file."""
MAX_FRAME_BYTES = 2**32
"""What one file of pictures may unpack to: a few dozen channels of 8K."""

SLOWEST_FPS, FASTEST_FPS = 0.001, 1000
"""Frames a second that a clip or a video can have."""


def check_fps(fps: Any, what: str) -> float:
    """Frames a second as a number.

    Args:
        fps: what was given or read.
        what: what it is and where it stands, for messages.

    Raises:
        ClipError: no number, or one outside what a clip can have.
    """
    if isinstance(fps, bool) or not isinstance(fps, int | float | Fraction) or not SLOWEST_FPS <= fps <= FASTEST_FPS:
        raise ClipError(
            f"{what} is {shown(fps)}; expected a positive number of frames per second, {SLOWEST_FPS} to {FASTEST_FPS}. "
            "Give another."
        )
    return float(fps)


def check_size(size: tuple[int, int]) -> None:
    """Refuses a size to resize to that no clip can have. Raises: ClipError."""
    if not all(1 <= side <= MAX_SIDE for side in size):
        height, width = size
        raise ClipError(f"size is {height}x{width}; expected 1 to {MAX_SIDE} pixels a side. Give another.")


def shown(value: Any) -> str:
    """A value as a message shows it: as Python writes it, cut where it is long."""
    if isinstance(value, list | dict):
        return f"a {'list' if isinstance(value, list) else 'table'} of {len(value)}"
    text = repr(value)
    return text if len(text) <= SHOWN_LETTERS else f"{text[:SHOWN_LETTERS]}..."


class Fields:
    """The fields of a JSON file, taken one by one and checked. Messages name the file and the field.

    Args:
        path: the file, for messages.
        values: what it holds.
        where: what part of it `values` is, for messages.

    Raises:
        ClipError: no names and values in braces.
    """

    def __init__(self, path: Path, values: Any, where: str = "") -> None:
        self._path, self._where = path, f"{where}: " if where else ""
        if not isinstance(values, dict):
            raise ClipError(
                f"{path}: {self._where}{shown(values)} stands where names and values in braces were expected. Write it "
                "again."
            )
        self._values = values

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def fail(self, name: str, expected: str) -> ClipError:
        """The error that a field is not what was expected."""
        got = f"is {shown(self._values[name])}" if name in self._values else "is missing"
        return ClipError(f"{self._path}: {self._where}{name!r} {got}; expected {expected}. Correct or write it again.")

    def get(self, name: str, expected: str) -> Any:
        if name not in self._values:
            raise self.fail(name, expected)
        return self._values[name]

    def text(self, name: str) -> str:
        value = self.get(name, expected := "text in quotes")
        if not isinstance(value, str):
            raise self.fail(name, expected)
        return value

    def flag(self, name: str) -> bool:
        value = self.get(name, expected := "true or false")
        if not isinstance(value, bool):
            raise self.fail(name, expected)
        return value

    def whole(self, name: str, least: int = 1) -> int:
        value = self.get(name, expected := f"a whole number, {least} or more")
        if type(value) is not int or value < least:
            raise self.fail(name, expected)
        return value

    def number(self, name: str, expected: str = "a number") -> float:
        value = self.get(name, expected)
        if not is_number(value):
            raise self.fail(name, expected)
        return float(value)

    def fps(self, name: str = "fps") -> float:
        return check_fps(self.get(name, "frames per second"), f"{self._path}: {self._where}{name!r}")

    def items(self, name: str, expected: str) -> list[Any]:
        value = self.get(name, expected)
        if not isinstance(value, list):
            raise self.fail(name, expected)
        return value

    def matrix(self, name: str) -> list[list[float]]:
        """Four rows of four numbers."""
        rows = self.items(name, expected := "four rows of four finite numbers")
        if len(rows) != 4 or not all(isinstance(row, list) and len(row) == 4 for row in rows):
            raise self.fail(name, expected)
        if not all(is_number(value) for row in rows for value in row):
            raise self.fail(name, expected)
        return rows


def is_number(value: Any) -> bool:
    """Whether a JSON value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < FLOAT32_MAX


def read_json(path: Path) -> Any:
    """A JSON file's values.

    Raises:
        ClipError: missing, too large, nested too deep, or no JSON.
    """
    if not path.is_file():
        raise ClipError(f"{path} is missing; expected a JSON file. Check the path, or the format's name.")
    size = path.stat().st_size
    if size > MAX_JSON_BYTES:
        raise ClipError(f"{path} has {size} bytes; at most {MAX_JSON_BYTES} of JSON are read. Is it the right file?")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ClipError(f"{path} is not JSON ({reason(error)}); expected a text file. Write it again.") from error


def check_picture(path: Path, size: tuple[int, int], planes: int, bytes_a_value: int) -> None:
    """Refuses what a header should not announce.

    Args:
        path: the file, for messages.
        size: height and width in pixels.
        planes: values a pixel.
        bytes_a_value: of each.

    Raises:
        ClipError: not positive, a side beyond `MAX_SIDE`, or more than `MAX_FRAME_BYTES` in all.
    """
    height, width = size
    if not (0 < height <= MAX_SIDE and 0 < width <= MAX_SIDE and 0 < planes <= MAX_PLANES):
        raise ClipError(
            f"{path} announces {height}x{width} pixels of {planes} values; expected 1 to {MAX_SIDE} a side and 1 to "
            f"{MAX_PLANES} values. Its header is damaged, or it is no frame of a clip: write it again."
        )
    needed = height * width * planes * bytes_a_value
    if needed > MAX_FRAME_BYTES:
        raise ClipError(
            f"{path} announces {height}x{width} pixels of {planes} values, {needed / 2**30:.1f} GiB; at most "
            f"{MAX_FRAME_BYTES / 2**30:g} GiB a file are read. Write smaller frames, or fewer channels."
        )
