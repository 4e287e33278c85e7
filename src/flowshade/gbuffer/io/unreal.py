"""EXR sequences as Unreal's Movie Render Queue writes them.

One file a frame: `R`, `G`, `B`, `A` the final image, further passes by the name of their post-process material
(`FinalImageMovieRenderQueue_WorldDepth.R`; older: `FinalImagePWWorldDepth.R`). Base colour, roughness, metallic and
normals need post-process materials of the user's own, placed before tonemapping. World normals are left-handed, Z up.
Depth is planar, in centimetres; half floats, which are the default, end at 655 m. Each file's header holds its camera
(`unreal/camera/curPos/x`, ...: centimetres and degrees). How motion vectors are scaled is not stated; they stay unread.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch

from flowshade.gbuffer.io.conventions import ClipConventions, intrinsics_of_fov, world_rotation
from flowshade.gbuffer.io.exr import ExrHeader
from flowshade.gbuffer.io.multilayer import Dialect, MultilayerReader, header_number
from flowshade.types import Camera

METRES_A_UNIT = 0.01
CAMERA_PLACES = ("unreal/camera", "unreal/layerData/rgba")
"""Where headers hold the camera: Movie Render Queue, Movie Render Graph."""

UNREAL = Dialect(
    name="unreal",
    tool="Unreal",
    passes={
        "albedo": ("basecolor", "albedo"),
        "normal": ("worldnormal", "normal"),
        "depth": ("worlddepth", "scenedepth", "depth"),
        "roughness": ("roughness",),
        "metallic": ("metallic", "metalness"),
        "emission": ("emissive", "emission"),
        "reference": ("",),
    },
    implied=ClipConventions(normals="world", up="z", handedness="left", depth_code="linear", unit="cm"),
    within=True,
    advice="WorldDepth, and post-process materials named BaseColor, WorldNormal, Roughness, Metallic. Add them to the "
    "Deferred Rendering setting of the Movie Render Queue.",
)


class UnrealReader(MultilayerReader):
    """Reads a folder of EXR files from Unreal's Movie Render Queue. Options: `MultilayerReader`."""

    dialect = UNREAL

    def _own_warnings(self) -> list[str]:
        warnings = []
        depth = self._layout.names.get("depth", [])
        if depth and self._stored_as_half(depth[0]):
            warnings.append(
                "depth is stored as 16-bit floats: all beyond 655 m is sky, and steps grow to 0.3 m there. Switch on "
                "32-bit output for the WorldDepth material."
            )
        return warnings

    def _stored_as_half(self, name: str) -> bool:
        return self._file(0).channels[name].dtype == np.float16

    def _camera_of(self, path: Path, header: ExrHeader) -> Camera | None:
        return camera_of_header(path, header)


def camera_of_header(path: Path, header: ExrHeader) -> Camera | None:
    """The camera in a file's header; None where there is none. Raises: ClipError, if it holds no finite numbers."""

    def stated(name: str) -> float | None:
        return header_number(path, header.attributes, *(f"{place}/{name}" for place in CAMERA_PLACES))

    location = [stated(f"curPos/{axis}") for axis in "xyz"]
    angles = [stated(f"curRot/{name}") for name in ("pitch", "yaw", "roll")]
    fov = stated("FinalImage/fov") or stated("fov")
    if None in location or None in angles or fov is None or not 0 < fov < 180:
        return None
    pose = torch.eye(4)
    ours = world_rotation("z", "left").double()
    turned = torch.from_numpy(camera_axes(*(math.radians(angle) for angle in angles if angle is not None)))
    pose[:3, :3] = (ours @ turned).float()
    pose[:3, 3] = (ours @ torch.tensor(location, dtype=torch.float64) * METRES_A_UNIT).float()
    return Camera(intrinsics=intrinsics_of_fov(fov, header.size), pose=pose[None])


def camera_axes(pitch: float, yaw: float, roll: float) -> np.ndarray:
    """Right, up and back of an Unreal camera as columns, in Unreal's world.

    An unturned camera looks along +X, with +Y to its right and +Z up. Positive yaw turns to the right, positive pitch
    up, positive roll clockwise as seen from behind; applied to vectors roll comes first and yaw last. Radians.
    """
    sin_pitch, cos_pitch = math.sin(pitch), math.cos(pitch)
    sin_yaw, cos_yaw = math.sin(yaw), math.cos(yaw)
    forward = np.array([cos_pitch * cos_yaw, cos_pitch * sin_yaw, sin_pitch])
    level_right = np.array([-sin_yaw, cos_yaw, 0.0])
    level_up = np.array([-sin_pitch * cos_yaw, -sin_pitch * sin_yaw, cos_pitch])
    right = math.cos(roll) * level_right - math.sin(roll) * level_up
    up = math.cos(roll) * level_up + math.sin(roll) * level_right
    return np.stack([right, up, -forward], 1)
