"""Hypersim scenes: HDF5 files of one array each, `scene_cam_00_geometry_hdf5/frame.0000.depth_meters.hdf5`, ...

Depth is the distance to the camera's centre in metres, NaN where nothing was hit. Camera-space normals have X right,
Y up, Z back, as ours. Albedo is the diffuse reflectance, linear; there is no roughness or metallic. Poses lie in
`_detail/cam_00`, in the scene's own unit (`metadata_scene.csv`), world +Z up. Reading needs h5py.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flowshade.errors import MissingDependencyError, reason
from flowshade.gbuffer.io.cameras import check_cameras
from flowshade.gbuffer.io.conventions import ClipConventions, intrinsics_of_fov
from flowshade.gbuffer.io.errors import ClipError
from flowshade.gbuffer.io.limits import check_picture
from flowshade.gbuffer.io.picture_folder import PictureFolderReader
from flowshade.types import Camera

FOV = 60.0
"""Horizontal, of the dataset's own renderings unless a scene's camera says otherwise."""
FILES = {
    "depth_meters": ("geometry_hdf5", "depth"),
    "normal_cam": ("geometry_hdf5", "normal"),
    "diffuse_reflectance": ("final_hdf5", "albedo"),
    "semantic_instance": ("geometry_hdf5", "instance"),
}
"""Kind of array -> end of its folder's name, and channel."""
PREVIEW = ("final_preview", "tonemap.jpg")
_FRAME = re.compile(r"frame\.(\d+)\.")


def camera_folders(path: Path) -> tuple[Path, str] | None:
    """The `images` folder and the name of the one camera (`scene_cam_00`) that a path means; None if it is no scene.

    Raises:
        ClipError: several cameras.
    """
    if not path.is_dir():
        return None
    if path.name.endswith("_geometry_hdf5"):
        return path.parent, path.name.removesuffix("_geometry_hdf5")
    for root in (path, path / "images"):
        cameras = sorted(entry.name.removesuffix("_geometry_hdf5") for entry in root.glob("scene_*_geometry_hdf5"))
        if len(cameras) > 1:
            raise ClipError(
                f"{root} holds the cameras {', '.join(cameras)}; expected one. Name its folder: "
                f"{root / cameras[0]}_geometry_hdf5."
            )
        if cameras:
            return root, cameras[0]
    return None


class HypersimReader(PictureFolderReader):
    """Reads one camera of a Hypersim scene, see this module. Options: `CodedReader`."""

    format = "hypersim"
    implied = ClipConventions(
        albedo_code="linear",
        normals="camera",
        normal_axes="opengl",
        normal_code="signed",
        depth_kind="ray",
        unit="m",
    )

    def _settled(self, conventions: ClipConventions) -> ClipConventions:
        stated = super()._settled(conventions)
        self._fov = stated.fov or FOV
        return stated if stated.fov is not None else stated.over(ClipConventions(fov=FOV))

    def _find(self, warnings: list[str]) -> tuple[int, tuple[int, int], float | None]:
        found = super()._find(warnings)
        if "albedo" in self.top:
            warnings.append("albedo is the diffuse reflectance, which is black for metals.")
        warnings.append(f"horizontal field of view taken as {self._fov:g} degrees; give fov=... if it is another.")
        return found

    def _by_channel(self) -> dict[str, list[Path]]:
        located = camera_folders(self._path)
        if located is None:
            raise ClipError(f"{self._path} holds no scene_cam_NN_geometry_hdf5; expected a Hypersim scene.")
        self._images, self._camera_name = located
        found: dict[str, list[Path]] = {}
        for kind, (folder, channel) in FILES.items():
            files = sorted((self._images / f"{self._camera_name}_{folder}").glob(f"frame.*.{kind}.hdf5"))
            if files:
                found[channel] = files
        preview, ending = PREVIEW
        pictures = sorted((self._images / f"{self._camera_name}_{preview}").glob(f"frame.*.{ending}"))
        return found | ({"rgb": pictures} if pictures else {})

    def _frame_number(self, path: Path) -> int | None:
        match = _FRAME.match(path.name)
        return int(match[1]) if match else None

    def _values(self, channel: str, path: Path) -> np.ndarray:
        if path.suffix != ".hdf5":
            return super()._values(channel, path)
        values = read_hdf5(path)
        if values.ndim not in (2, 3):
            raise ClipError(f"{path} holds an array of shape {list(values.shape)}; expected [H, W] or [H, W, C].")
        if channel == "instance":
            return (values.astype(np.int64) + 1).clip(0).astype(np.int32)  # -1 is no instance
        return values.astype(np.float32) if values.dtype.kind == "f" else values

    def _load_cameras(
        self, given: str | None, frames: int, size: tuple[int, int]
    ) -> tuple[Camera | None, float | None]:
        detail = self._images.parent / "_detail"
        folder = detail / self._camera_name.removeprefix("scene_")
        if given is not None or not folder.is_dir():
            return super()._load_cameras(given, frames, size)
        stored = [read_hdf5(folder / f"camera_keyframe_{name}.hdf5") for name in ("positions", "orientations")]
        positions, turns = (np.asarray(values, np.float64) for values in stored)
        if positions.shape[1:] != (3,) or turns.shape[1:] != (3, 3) or len(positions) != len(turns):
            raise ClipError(
                f"{folder} holds positions {positions.shape} and orientations {turns.shape}; expected poses."
            )
        if max(self._order) >= len(positions):
            raise ClipError(f"{folder} holds {len(positions)} poses; frame {max(self._order)} has none. Copy it again.")
        pose = torch.eye(4).repeat(frames, 1, 1)
        pose[:, :3, :3] = torch.from_numpy(turns[self._order]).float()
        pose[:, :3, 3] = torch.from_numpy(positions[self._order] * _metres_a_unit(detail)).float()
        camera = Camera(intrinsics=intrinsics_of_fov(self._fov, size).repeat(frames, 1), pose=pose)
        check_cameras(folder, camera, self._order)
        return camera, None


def read_hdf5(path: Path) -> np.ndarray:
    """The array named `dataset` of an HDF5 file.

    Raises:
        MissingDependencyError: h5py is not installed.
        ClipError: damaged, no such array, or larger than `limits` allows.
    """
    h5py = _h5py()
    try:
        with h5py.File(path, "r") as file:
            values = file["dataset"]
            if not isinstance(values, h5py.Dataset) or values.dtype.kind not in "uif" or 0 in values.shape:
                raise ValueError("`dataset` is no array of numbers")
            height, width = (*values.shape, 1)[:2]
            check_picture(path, (height, width), values.size // (height * width), values.dtype.itemsize)
            return np.asarray(values[()])
    except ClipError:
        raise
    except (OSError, KeyError, ValueError, TypeError, RuntimeError, AttributeError, OverflowError) as error:
        raise ClipError(
            f"{path} cannot be read as HDF5 with an array `dataset` ({reason(error)}). Copy it again."
        ) from error


def _h5py() -> Any:
    try:
        import h5py
    except ImportError as error:
        raise MissingDependencyError(
            "Hypersim's files are HDF5, and h5py is not installed; pip install 'flowshade[hdf5]'."
        ) from error
    return h5py


def _metres_a_unit(detail: Path) -> float:
    path = detail / "metadata_scene.csv"
    try:
        with path.open(newline="") as file:
            values = {row[0]: row[1] for row in csv.reader(file) if len(row) > 1}
        return float(values["meters_per_asset_unit"])
    except (OSError, KeyError, ValueError, csv.Error) as error:
        raise ClipError(
            f"{path} does not say meters_per_asset_unit ({reason(error)}); expected it beside the poses. Copy it from "
            "the dataset, or give cameras=FILE."
        ) from error
