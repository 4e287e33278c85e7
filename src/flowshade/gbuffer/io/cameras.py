"""`cameras.json`, the cameras of a clip whose own format cannot hold them.

    {"width": 320, "height": 176, "fps": 24,
     "cameras": [{"frame": 1, "fx": 231.1, "fy": 231.1, "cx": 160, "cy": 88, "camera_to_world": [[...] x 4]}, ...]}

Intrinsics in pixels; camera-to-world 4x4 in metres, the camera looking along -Z with +Y up, world +Z up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from flowshade.files import write_json
from flowshade.gbuffer.io.errors import ClipError
from flowshade.gbuffer.io.limits import Fields, read_json
from flowshade.types import Camera

CAMERAS_FILE = "cameras.json"
LEAST_SPANNED = 1e-3
"""Volume that a camera's three axes span, at least, brought to length 1; a rotation's span 1, axes in a plane 0."""


@dataclass(frozen=True)
class CameraFile:
    """The cameras of a clip, one a frame."""

    camera: Camera
    fps: float | None


def load_cameras(path: Path, numbers: Sequence[int] | None, frames: int, size: tuple[int, int]) -> CameraFile:
    """Reads a cameras file.

    Args:
        path: the JSON file.
        numbers: the clip's frame numbers, matched with each camera's `frame`; None takes cameras in order.
        frames: how many frames the clip has.
        size: height and width of the clip in pixels.

    Raises:
        ClipError: missing, not of this form, or of another size or other frames than the clip.
    """
    if not path.is_file():
        raise ClipError(f"{path} is missing; expected a cameras file. Check the name given as cameras=...")
    fields = Fields(path, read_json(path))
    entries = fields.items("cameras", "a list of frame, fx, fy, cx, cy, camera_to_world")
    intrinsics, poses = {}, {}
    for index, entry in enumerate(entries):
        camera = Fields(path, entry, f"entry {index} of the cameras")
        frame = camera.whole("frame", -(2**63)) if "frame" in camera else index + 1
        camera = Fields(path, entry, f"the camera of frame {frame}")
        intrinsics[frame] = [camera.number(name, "a finite number of pixels") for name in ("fx", "fy", "cx", "cy")]
        poses[frame] = camera.matrix("camera_to_world")
    stated = (fields.whole("height"), fields.whole("width")) if "height" in fields else size
    fps = fields.fps() if "fps" in fields else None
    if stated != size:
        raise ClipError(
            f"{path} is for pictures of {stated[0]}x{stated[1]} and the clip is {size[0]}x{size[1]} (height x width); "
            "expected the same. Export the cameras at the clip's resolution."
        )
    keys = list(intrinsics) if numbers is None else list(numbers)
    lacking = [key for key in keys if key not in intrinsics]
    if lacking or len(keys) != frames:
        found = f"cameras for {len(intrinsics)} frames ({min(intrinsics, default=0)} to {max(intrinsics, default=0)})"
        raise ClipError(
            f"{path} has {found} and the clip {frames} frames; expected one camera a frame. Export it again."
        )
    camera = Camera(
        intrinsics=torch.tensor([intrinsics[key] for key in keys], dtype=torch.float32),
        pose=torch.tensor([poses[key] for key in keys], dtype=torch.float32),
    )
    check_cameras(path, camera, keys)
    return CameraFile(camera, fps)


def check_cameras(path: Path, camera: Camera, numbers: Sequence[int]) -> None:
    """Refuses cameras through which nothing can be seen.

    Args:
        path: where they stand, for messages.
        camera: of some frames.
        numbers: what these frames are called.

    Raises:
        ClipError: a number that is not finite, a focal length that is not positive, or axes that span no space.
    """
    finite = camera.intrinsics.isfinite().all(1) & camera.pose.isfinite().flatten(1).all(1)
    axes = torch.nn.functional.normalize(camera.pose[:, :3, :3].double().nan_to_num(0, 0, 0), dim=1)  # of length 1 or 0
    spanned = torch.linalg.det(axes).abs()  # [T]
    wrong = ~(finite & (camera.intrinsics[:, :2] > 0).all(1) & (spanned > LEAST_SPANNED))
    if bool(wrong.any()):
        index = int(wrong.nonzero()[0, 0])
        fx, fy = camera.intrinsics[index, :2].tolist()
        found = f"fx = {fx:g} and fy = {fy:g}" if min(fx, fy) <= 0 else "axes that span no space"
        found = found if finite[index] else "a number that is missing or not finite"
        raise ClipError(
            f"{path}: the camera of frame {numbers[index]} has {found}; expected finite numbers, fx and fy above 0, "
            "and a rotation. Export or write it again."
        )


def save_cameras(path: Path, camera: Camera, fps: float, size: tuple[int, int], first: int = 1) -> None:
    """Writes a cameras file, frames counted from `first`."""
    entries = [
        {
            "frame": first + index,
            **dict(zip(("fx", "fy", "cx", "cy"), camera.intrinsics[index].tolist(), strict=True)),
            "camera_to_world": camera.pose[index].tolist(),
        }
        for index in range(camera.frames)
    ]
    header = {
        "width": size[1],
        "height": size[0],
        "fps": fps,
        "axes": "camera looks along -Z, +Y up; world Z up; metres",
    }
    write_json(path, {**header, "cameras": entries})
