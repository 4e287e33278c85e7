"""`cameras.json`, the cameras of a clip whose own format cannot hold them.

    {"width": 320, "height": 176, "fps": 24,
     "cameras": [{"frame": 1, "fx": 231.1, "fy": 231.1, "cx": 160, "cy": 88, "camera_to_world": [[...] x 4]}, ...]}

Intrinsics in pixels; camera-to-world 4x4 in metres, the camera looking along -Z with +Y up, world +Z up.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from flowshade.gbuffer.io.errors import ClipError, reason
from flowshade.gbuffer.io.limits import read_json
from flowshade.types import Camera

CAMERAS_FILE = "cameras.json"


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
    try:
        values = read_json(path)
        entries = values["cameras"]
        intrinsics = {
            _key(i, entry): [entry[name] for name in ("fx", "fy", "cx", "cy")] for i, entry in enumerate(entries)
        }
        poses = {_key(i, entry): entry["camera_to_world"] for i, entry in enumerate(entries)}
        stated = (int(values["height"]), int(values["width"])) if "height" in values else size
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ClipError(
            f"{path} is not a cameras file ({type(error).__name__}: {reason(error)}); expected a list `cameras` with "
            "frame, fx, fy, cx, cy, camera_to_world. Export it again."
        ) from error
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
    try:
        camera = Camera(
            intrinsics=torch.tensor([intrinsics[key] for key in keys], dtype=torch.float32),
            pose=torch.tensor([poses[key] for key in keys], dtype=torch.float32),
        )
        return CameraFile(camera, float(values["fps"]) if "fps" in values else None)
    except (ValueError, TypeError) as error:
        raise ClipError(
            f"{path} holds cameras that are no numbers of the right shape ({reason(error)}); expected fx, fy, cx, cy "
            "and a camera_to_world of four rows of four. Export it again."
        ) from error


def _key(index: int, entry: dict[str, Any]) -> int:
    return int(entry.get("frame", index + 1))


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
    path.write_text(json.dumps({**header, "cameras": entries}, indent=1) + "\n")
