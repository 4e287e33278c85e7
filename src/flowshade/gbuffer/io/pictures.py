"""Single pictures as arrays, red first: PNG, TIFF, JPEG, one-layer EXR and NumPy files.

Headers are checked against `limits` before pixels are made room for, and damage is told apart from other reasons.
"""

from __future__ import annotations

import io
import math
import struct
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
from PIL import Image, TiffImagePlugin, UnidentifiedImageError

from flowshade.errors import reason
from flowshade.files import write_bytes
from flowshade.gbuffer.io.errors import ClipError
from flowshade.gbuffer.io.exr import read_exr
from flowshade.gbuffer.io.limits import MAX_FRAME_BYTES, check_picture

FAST_COMPRESSION = 1
"""zlib level: larger files by a few percent, written several times faster."""
PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
PNG_PLANES = {0: 1, 2: 3, 3: 3, 4: 2, 6: 4}
"""Colour type of a PNG header -> values a pixel."""
NUMPY_ERRORS = (
    ValueError,
    EOFError,
    OSError,
    SyntaxError,
    TypeError,
    MemoryError,
    OverflowError,
    RecursionError,
    KeyError,
    tokenize.TokenError,
    zlib.error,
    zipfile.BadZipFile,
    RuntimeError,
    struct.error,
)
"""What NumPy raises for damaged files: its headers are Python literals, its .npz files ZIP archives."""
ORIENTATION = 274
"""The EXIF and TIFF tag that says how a picture is turned; 1 = not."""
SAMPLE_FORMATS = {1: "u", 2: "i", 3: "f"}
"""TIFF's SampleFormat -> NumPy's kind."""
EXR_PLANES = ("RGBA", "RGB", "XYZ", "XY", "RG")
"""Component names that make one picture of several planes; a file of one channel needs no name."""


def read_picture(path: Path) -> np.ndarray:
    """One picture as stored.

    Args:
        path: a file whose suffix is one of `SUFFIXES`.

    Returns:
        [H, W] or [H, W, C], red first; uint8, uint16, uint32, float16 or float32 (float64 and int64 as they are in
        NumPy files).

    Raises:
        ClipError: missing, damaged, turned by its metadata, larger than `limits` allows, or of a kind not read.
    """
    if not path.exists():
        raise ClipError(f"{path} is missing; expected one picture a frame. Copy or write the clip again.")
    read = _READERS.get(path.suffix.lower())
    if read is None:
        raise ClipError(f"{path} is no picture that is read; expected one of {', '.join(_READERS)}. Convert it.")
    return read(path)


def read_upright(path: Path) -> np.ndarray:
    """`read_picture`, but turned and mirrored as a JPEG, PNG or TIFF file's metadata says."""
    read = _TURNING_READERS.get(path.suffix.lower()) if path.exists() else None
    return read_picture(path) if read is None else read(path, turn=True)


TURNS: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    1: lambda stored: stored,
    2: lambda stored: stored[:, ::-1],
    3: lambda stored: stored[::-1, ::-1],
    4: lambda stored: stored[::-1],
    5: lambda stored: stored.swapaxes(0, 1),
    6: lambda stored: np.rot90(stored, -1),
    7: lambda stored: stored.swapaxes(0, 1)[::-1, ::-1],
    8: lambda stored: np.rot90(stored),
}
"""Orientation (EXIF 2.32, table 8) -> what brings a picture upright."""


def read_png(path: Path) -> np.ndarray:
    """[H, W] or [H, W, 3 or 4] uint8 or uint16 as stored, red first. Raises: as `read_picture`."""
    if not path.exists():
        raise ClipError(f"{path} is missing; expected one picture a frame. Copy or write the clip again.")
    data = _bytes(path)
    _check_png(path, data)
    return _decoded(path, data)


def _bytes(path: Path) -> bytes:
    size = path.stat().st_size
    if size > MAX_FRAME_BYTES:
        raise ClipError(f"{path} has {size} bytes; at most {MAX_FRAME_BYTES} are read. Is it one frame?")
    return path.read_bytes()


def _check_png(path: Path, data: bytes) -> None:
    """Checks the header's size, and the check sum of every chunk: decoders let some damage pass."""
    if data[:8] != PNG_MAGIC:
        raise ClipError(f"{path} ({len(data)} bytes) cannot be read as a PNG picture. Write it again.")
    at, kind, seen = 8, b"", 0
    while kind != b"IEND":
        if at + 12 > len(data):
            raise ClipError(f"{path} ({len(data)} bytes) is cut short; a PNG file ends with IEND. Write it again.")
        (length,), kind = struct.unpack_from(">I", data, at), data[at + 4 : at + 8]
        body = data[at + 8 : at + 8 + length]
        stored = data[at + 8 + length : at + 12 + length]
        if len(stored) < 4:
            raise ClipError(f"{path} ({len(data)} bytes) is cut short within a chunk. Write it again.")
        if zlib.crc32(body, zlib.crc32(kind)) != int.from_bytes(stored, "big"):
            raise ClipError(f"{path}: chunk {kind!r} fails its check sum; the file is damaged. Write or copy it again.")
        if seen == 0:
            if kind != b"IHDR" or length != 13:
                raise ClipError(f"{path} does not begin with a PNG header. Write it again.")
            width, height, bits, colour = struct.unpack_from(">IIBB", body)
            check_picture(path, (height, width), PNG_PLANES.get(colour, 4), 2 if bits == 16 else 1)
        at, seen = at + 12 + length, seen + 1


def _decoded(path: Path, data: bytes) -> np.ndarray:
    kind = path.suffix[1:].upper()
    try:
        values = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    except cv2.error as error:
        raise ClipError(f"{path} cannot be read as a {kind} picture ({reason(error)}). Write it again.") from error
    if values is None:
        raise ClipError(f"{path} ({len(data)} bytes) cannot be read as a {kind} picture. Write it again.")
    if values.ndim == 2:
        return values
    return np.ascontiguousarray(values[..., [2, 1, 0, *range(3, values.shape[2])]])


def _read_tiff(path: Path, *, turn: bool = False) -> np.ndarray:
    data = _bytes(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # Pillow warns where it has not read all it should have
            stream = io.BytesIO(data)
            directory = TiffImagePlugin.ImageFileDirectory_v2(stream.read(8))
            stream.seek(directory.next)
            directory.load(stream)
            width, height = int(directory[256]), int(directory[257])
            bits = tuple(directory.get(258, (1,)))
            kind = SAMPLE_FORMATS.get(int(tuple(directory.get(339, (1,)))[0]), "?")
            planes, turned, pages = int(directory.get(277, 1)), int(directory.get(ORIENTATION, 1)), directory.next
    except (SyntaxError, KeyError, TypeError, ValueError, IndexError, OSError, UserWarning, struct.error) as error:
        raise ClipError(f"{path} ({len(data)} bytes) has no TIFF header that can be read. Write it again.") from error
    check_picture(path, (height, width), planes, max(bits) // 8 or 1)
    if f"{kind}{max(bits)}" not in ("u8", "u16", "u32", "f32", "f64") or planes not in (1, 3, 4):
        raise ClipError(
            f"{path} holds {planes} planes of {max(bits)}-bit {kind!r} values; expected 1, 3 or 4 of 8, 16 or 32-bit "
            "unsigned or 32-bit floating-point ones. Write it so."
        )
    _check_upright(path, turned, turn)
    if pages:
        raise ClipError(f"{path} holds several pages; expected one picture a file. Write each frame to its own file.")
    values = _decoded(path, data)  # which turns this format upright
    if sorted(values.shape[:2]) != sorted((height, width)):
        raise ClipError(f"{path} is {values.shape[:2]} and its header says {(height, width)}. Write it again.")
    return values


def _upright(path: Path, stored: np.ndarray, orientation: int, turn: bool) -> np.ndarray:
    _check_upright(path, orientation, turn)
    return np.ascontiguousarray(TURNS[orientation](stored))


def _check_upright(path: Path, orientation: int, turn: bool) -> None:
    """Raises ClipError for a picture that is turned and must not be, or in a way that is unknown."""
    if orientation != 1 and not turn:
        raise ClipError(
            f"{path} is stored turned (orientation {orientation} in its metadata); expected upright pictures. Turn it "
            "for good and clear the orientation: buffers of one clip must lie on one another."
        )
    if orientation not in TURNS:
        raise ClipError(f"{path} has the orientation {orientation} in its metadata; expected 1 to 8. Write it again.")


def _read_turned_png(path: Path, *, turn: bool) -> np.ndarray:
    stored = read_png(path)  # checks the file
    with Image.open(path, formats=["PNG"]) as picture:
        return _upright(path, stored, picture.getexif().get(ORIENTATION, 1), turn)


def _read_jpeg(path: Path, *, turn: bool = False) -> np.ndarray:
    data = _bytes(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # `check_picture` sets the limit
            picture = Image.open(io.BytesIO(data), formats=["JPEG"])
        check_picture(path, (picture.height, picture.width), len(picture.getbands()), 1)
        turned = picture.getexif().get(ORIENTATION, 1)
        picture.load()
    except (
        UnidentifiedImageError,
        Image.DecompressionBombError,
        OSError,
        SyntaxError,
        ValueError,
        struct.error,
    ) as error:
        if isinstance(error, ClipError):
            raise
        raise ClipError(f"{path} ({len(data)} bytes) cannot be read as a JPEG picture ({reason(error)}).") from error
    if picture.mode not in ("L", "RGB"):
        raise ClipError(f"{path} is a {picture.mode} JPEG; expected grey or RGB. Write it so.")
    return _upright(path, np.array(picture), turned, turn)


def _read_exr_picture(path: Path) -> np.ndarray:
    """The channels of a file of one picture; grey ones that are three alike stay three."""
    channels = read_exr(path).channels
    if len(channels) == 1:
        return next(iter(channels.values()))
    by_component = {name.rsplit(".", 1)[-1].upper(): values for name, values in channels.items()}
    for names in EXR_PLANES:
        if set(names) <= set(by_component):
            return np.stack([by_component[name] for name in names], -1)
    raise ClipError(
        f"{path} holds the channels {', '.join(channels)}; expected one picture (one channel, R G B, or X Y Z). Give "
        "a folder with only multilayer files, or name the format."
    )


def read_npy(path: Path) -> np.ndarray:
    """A NumPy file of numbers, [H, W] or [H, W, C]; nothing in it is executed. Raises: as `read_picture`."""
    values = open_npy(path)
    if values.ndim not in (2, 3):
        raise ClipError(f"{path} holds an array of shape {list(values.shape)}; expected [H, W] or [H, W, C].")
    check_picture(path, (values.shape[0], values.shape[1]), values.shape[2] if values.ndim == 3 else 1, 8)
    return np.array(values)


def open_npy(path: Path) -> np.ndarray:
    """A NumPy file of numbers as an array on disk. Raises: ClipError for damage, or anything but numbers."""
    try:
        with path.open("rb") as file:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, dtype = read(file)
        size = math.prod(shape) * dtype.itemsize
        if size > path.stat().st_size:
            raise ValueError(f"it announces {size} bytes and has {path.stat().st_size}")
        values = np.load(path, mmap_mode="r", allow_pickle=False)
    except NUMPY_ERRORS as error:
        raise ClipError(f"{path} cannot be read as a NumPy array ({reason(error)}). Write or copy it again.") from error
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "uifb" or 0 in values.shape:
        raise ClipError(f"{path} holds no array of numbers; expected one. Write it with numpy.save.")
    return values


_READERS: dict[str, Callable[[Path], np.ndarray]] = {
    ".png": read_png,
    ".tif": _read_tiff,
    ".tiff": _read_tiff,
    ".jpg": _read_jpeg,
    ".jpeg": _read_jpeg,
    ".exr": _read_exr_picture,
    ".npy": read_npy,
}
_TURNING_READERS: dict[str, Callable[..., np.ndarray]] = {
    ".png": _read_turned_png,
    ".tif": _read_tiff,
    ".tiff": _read_tiff,
    ".jpg": _read_jpeg,
    ".jpeg": _read_jpeg,
}
SUFFIXES = tuple(_READERS)
"""Of pictures that are read."""


def write_png(path: Path, values: np.ndarray) -> None:
    """Writes [H, W] or [H, W, 3 or 4], uint8 or uint16, red first. The file appears whole or not at all.

    Raises:
        ClipError: another kind of values, or a place that cannot be written to.
    """
    stored = values if values.ndim == 2 else values[..., [2, 1, 0, 3][: values.shape[-1]]]
    encoded, data = cv2.imencode(".png", stored, [cv2.IMWRITE_PNG_COMPRESSION, FAST_COMPRESSION])
    if not encoded:
        raise ClipError(f"{path}: {values.dtype} {list(values.shape)} cannot be written as PNG; expected 8 or 16 bit.")
    write_bytes(path, data.tobytes())
