"""What a file may ask for. Sizes are read from headers and checked here before anything is allocated for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from flowshade.gbuffer.io.errors import ClipError, reason

MAX_JSON_BYTES = 2**26
"""Larger JSON files are refused before they are read."""
MAX_SIDE = 2**15
"""Pixels: four times the width of 8K."""
MAX_PLANES = 2**10
"""Values a pixel, over all channels of a file."""
MAX_FRAME_BYTES = 2**32
"""What one file of pictures may unpack to: a few dozen channels of 8K."""


def read_json(path: Path) -> Any:
    """A JSON file's values.

    Raises:
        ClipError: too large, nested too deep, or no JSON.
    """
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
