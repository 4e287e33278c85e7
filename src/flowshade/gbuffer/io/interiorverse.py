"""InteriorVerse scenes: `000_{im,albedo,depth,material,normal,mask}.exr`, one-layer files.

Material holds roughness in red and metallic in green. Depth is in millimetres, infinite where nothing was hit. Normals
are in camera space with OpenGL's axes; colours are linear.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from flowshade.gbuffer.io.conventions import ClipConventions
from flowshade.gbuffer.io.errors import ClipError
from flowshade.gbuffer.io.picture_folder import PictureFolderReader
from flowshade.gbuffer.io.pictures import read_picture

FILES = {"albedo": "albedo", "depth": "depth", "normal": "normal", "im": "rgb"}
MATERIAL = {"roughness": 0, "metallic": 1}
"""Plane of the material file by channel."""
_NAME = re.compile(r"(\d+)_(im|albedo|depth|material|normal|mask)\.exr", re.IGNORECASE)


def is_interiorverse(path: Path) -> bool:
    """Whether a folder holds files named as this format's, among them one that only it has."""
    if not path.is_dir():
        return False
    kinds = {match[2].lower() for match in map(_NAME.fullmatch, (entry.name for entry in path.iterdir())) if match}
    return bool(kinds & {"material", "im"}) and len(kinds) > 1


class InteriorVerseReader(PictureFolderReader):
    """Reads an InteriorVerse scene, see this module. Options: `CodedReader`."""

    format = "interiorverse"
    implied = ClipConventions(
        albedo_code="linear", normals="camera", normal_axes="opengl", unit="mm", depth_kind="planar"
    )

    def _by_channel(self) -> dict[str, list[Path]]:
        found: dict[str, list[Path]] = {}
        for path in sorted(self._path.iterdir()):
            match = _NAME.fullmatch(path.name)
            kind = match[2].lower() if match else ""
            for channel in MATERIAL if kind == "material" else [FILES[kind]] if kind in FILES else []:
                found.setdefault(channel, []).append(path)
        if not found:
            raise ClipError(f"{self._path} holds no files such as 000_albedo.exr; expected an InteriorVerse scene.")
        return found

    def _values(self, channel: str, path: Path) -> np.ndarray:
        values = read_picture(path).astype(np.float32)
        if channel not in MATERIAL:
            return values
        if values.ndim != 3 or values.shape[2] < 2:
            raise ClipError(f"{path} has one plane; expected roughness in red and metallic in green. Write it again.")
        return values[..., MATERIAL[channel]]
