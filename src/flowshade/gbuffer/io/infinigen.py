"""Infinigen's frames: `frames/Depth/camera_0/Depth_0_0_0048_0.npy`, `SurfaceNormal`, `Image`, `camview`, ...

Arrays may have twice the pictures' height and width: then every second pixel of every second row is taken (the upper
left of four), never a mean. Normals: +X right, +Y up, +Z back. Depth is planar, in metres. Poses in `camview` are
OpenCV's (Y down, Z ahead). There is no base colour, only Blender's diffuse colour, and no roughness or metallic.
"""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import numpy as np
import torch

from flowshade.errors import reason
from flowshade.gbuffer.io.cameras import check_cameras
from flowshade.gbuffer.io.conventions import ClipConventions
from flowshade.gbuffer.io.errors import ClipError
from flowshade.gbuffer.io.picture_folder import PictureFolderReader, pictures_in
from flowshade.gbuffer.io.pictures import NUMPY_ERRORS
from flowshade.types import Camera

KINDS = {
    "Depth": "depth",
    "SurfaceNormal": "normal",
    "DiffCol": "albedo",
    "ObjectSegmentation": "instance",
    "Image": "rgb",
}
PREFERRED = (".npy", ".exr", ".png")
"""Values first; the pictures beside them are previews."""
CAMERA = "camview"
_NAME = re.compile(r"([A-Za-z]+)_(\d+)_(\d+)_(\d+)_(\d+)")
"""Kind, two seeds, frame, camera of a stereo rig."""
MAX_CAMERA_BYTES = 2**16
"""Unpacked, of each matrix in a camera's file."""
OPENCV_TO_OPENGL = np.diag([1.0, -1.0, -1.0, 1.0])


def frames_folder(path: Path) -> Path | None:
    """The folder that holds `Depth`, `SurfaceNormal`, ...; None where there is none."""
    for folder in (path, path / "frames"):
        if any((folder / kind).is_dir() for kind in ("Depth", "SurfaceNormal")) and (folder / CAMERA).is_dir():
            return folder
    return None


class InfinigenReader(PictureFolderReader):
    """Reads one camera of an Infinigen scene, see this module. Options: `CodedReader`."""

    format = "infinigen"
    implied = ClipConventions(
        normals="camera", normal_axes="opengl", normal_code="signed", unit="m", depth_kind="planar"
    )

    def _find(self, warnings: list[str]) -> tuple[int, tuple[int, int], float | None]:
        self._steps: dict[str, int] = {}
        found = super()._find(warnings)
        halved = [name for name, step in self._steps.items() if step > 1]
        if halved:
            warnings.append(f"{', '.join(halved)}: larger than the pictures; one pixel of each block is taken.")
        if "albedo" in self.top:
            warnings.append("albedo is the diffuse colour pass, which is black for metals.")
        return found

    def _by_channel(self) -> dict[str, list[Path]]:
        root = frames_folder(self._path)
        if root is None:
            raise ClipError(f"{self._path} holds no Depth or SurfaceNormal and camview; expected Infinigen's frames.")
        found: dict[str, list[Path]] = {}
        for kind, channel in KINDS.items():
            folder = _one_camera(root / kind)
            if folder is None:
                continue
            named = [path for path in pictures_in(folder) if (m := _NAME.fullmatch(path.stem)) and m[1] == kind]
            suffix = next((s for s in PREFERRED if any(path.suffix == s for path in named)), None)
            if suffix is not None:
                found[channel] = [path for path in named if path.suffix == suffix]
        return found

    def _frame_number(self, path: Path) -> int | None:
        match = _NAME.fullmatch(path.stem)
        return int(match[4]) if match else None

    def _one_size(self, sizes: dict[str, tuple[int, int]]) -> tuple[int, int]:
        height, width = min(sizes.values())
        for name, (tall, wide) in sizes.items():
            step = tall // height
            if (step * height, step * width) != (tall, wide):
                return super()._one_size(sizes)
            self._steps[name] = step
        return height, width

    def _values(self, channel: str, path: Path) -> np.ndarray:
        values = super()._values(channel, path)
        step = self._steps.get(channel, 1)
        return values[::step, ::step]

    def _load_cameras(
        self, given: str | None, frames: int, size: tuple[int, int]
    ) -> tuple[Camera | None, float | None]:
        root = frames_folder(self._path)
        if given is not None or root is None:
            return super()._load_cameras(given, frames, size)
        folder = _one_camera(root / CAMERA)
        found = {} if folder is None else {self._frame_number(path): path for path in folder.glob("*.npz")}
        lacking = [number for number in self._order if number not in found]
        if lacking:
            raise ClipError(f"{root / CAMERA} lacks frames {lacking[:6]}; expected one .npz a frame. Export them too.")
        camera = Camera.cat([read_camview(found[number], size) for number in self._order])
        check_cameras(root / CAMERA, camera, self._order)
        return camera, None


def read_camview(path: Path, size: tuple[int, int]) -> Camera:
    """One frame's camera: `K` 3x3 and `HW` of the pictures it is for, `T` camera-to-world 4x4 in OpenCV's axes.

    Raises:
        ClipError: not of that form.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            largest = max((member.file_size for member in archive.infolist()), default=0)
        if largest > MAX_CAMERA_BYTES:
            raise ValueError(f"it holds {largest} bytes; a camera has a few hundred")
        with np.load(path, allow_pickle=False) as stored:
            matrix, pose = stored["K"].astype(np.float64), stored["T"].astype(np.float64)
            height, width = (int(side) for side in stored["HW"]) if "HW" in stored else size
        if matrix.shape != (3, 3) or pose.shape != (4, 4) or min(height, width) < 1:
            raise ValueError(f"K {matrix.shape}, T {pose.shape}, HW {(height, width)}")
    except NUMPY_ERRORS as error:
        raise ClipError(f"{path} is no camera ({reason(error)}); expected K, T and HW. Export it again.") from error
    scale_x, scale_y = size[1] / width, size[0] / height
    row = [matrix[0, 0] * scale_x, matrix[1, 1] * scale_y, matrix[0, 2] * scale_x, matrix[1, 2] * scale_y]
    turned = torch.from_numpy(pose @ OPENCV_TO_OPENGL).float()
    return Camera(intrinsics=torch.tensor([row], dtype=torch.float32), pose=turned[None])


def _one_camera(folder: Path) -> Path | None:
    """`camera_0` below a kind's folder, or the folder itself where there is only that."""
    if not folder.is_dir():
        return None
    cameras = sorted(entry for entry in folder.iterdir() if entry.is_dir() and entry.name.startswith("camera_"))
    return cameras[0] if cameras else folder
