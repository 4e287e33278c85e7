"""PNG files, 8 and 16 bit, red first."""

from __future__ import annotations

import os
from pathlib import Path

import cv2
import numpy as np

from flowshade.gbuffer.io.errors import ClipError

FAST_COMPRESSION = 1
"""zlib level: larger files by a few percent, written several times faster."""


def read_png(path: Path) -> np.ndarray:
    """[H, W] or [H, W, 3 or 4] uint8 or uint16 as stored, red first.

    Raises:
        ClipError: missing, damaged or not a picture.
    """
    if not path.exists():
        raise ClipError(f"{path} is missing; expected one picture a frame. Copy or write the clip again.")
    values = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
    if values is None:
        raise ClipError(f"{path} ({path.stat().st_size} bytes) cannot be read as a PNG picture. Write it again.")
    if values.ndim == 2:
        return values
    order = cv2.COLOR_BGR2RGB if values.shape[2] == 3 else cv2.COLOR_BGRA2RGBA
    return cv2.cvtColor(values, order)


def write_png(path: Path, values: np.ndarray) -> None:
    """Writes [H, W] or [H, W, 3], uint8 or uint16, red first. The file appears whole or not at all."""
    stored = values if values.ndim == 2 else cv2.cvtColor(values, cv2.COLOR_RGB2BGR)
    encoded, data = cv2.imencode(".png", stored, [cv2.IMWRITE_PNG_COMPRESSION, FAST_COMPRESSION])
    if not encoded:
        raise ClipError(f"{path}: {values.dtype} {list(values.shape)} cannot be written as PNG; expected 8 or 16 bit.")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_bytes(data.tobytes())
    temporary.replace(path)
