from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import OpenEXR
import pytest
import torch
from torch.nn.functional import normalize

from flowshade.types import Camera, GBuffer

SAMPLE = Path(__file__).parents[3] / "examples" / "clips" / "blender-plaza"


@pytest.fixture
def sample() -> Path:
    return SAMPLE


@pytest.fixture
def make_clip() -> Callable[..., GBuffer]:
    """Random values in every channel's range; the left columns are sky."""

    def make(frames: int = 5, size: tuple[int, int] = (12, 18), seed: int = 0, core: bool = False) -> GBuffer:
        generator = torch.Generator().manual_seed(seed)

        def uniform(planes: int) -> torch.Tensor:
            return torch.rand(frames, planes, *size, generator=generator)

        depth = uniform(1) * 90 + 0.5
        depth[..., :2] = torch.inf
        normal = normalize(uniform(3) - torch.tensor([0.5, 0.5, 0.0])[:, None, None], dim=1)  # towards the viewer
        normal = normal.masked_fill(depth.isinf(), 0.0)
        pose = torch.eye(4).repeat(frames, 1, 1)
        pose[:, :3, 3] = torch.rand(frames, 3, generator=generator)
        focal = torch.rand(frames, 4, generator=generator) * 100 + torch.tensor([1e4, 1e4, 0, 0])
        clip = GBuffer(
            albedo=uniform(3),
            normal=normal,
            depth=depth,
            roughness=uniform(1),
            metallic=uniform(1),
            camera=Camera(intrinsics=focal, pose=pose),
        )
        if core:
            return clip
        ids = torch.randint(0, 2**31 - 1, (frames, 1, *size), generator=generator, dtype=torch.int32)
        return clip.replace(emission=uniform(3) * 1e6, motion=(uniform(2) - 0.5) * 1e3, instance=ids)

    return make


Channels = dict[str, np.ndarray]


@pytest.fixture
def blender_passes() -> Callable[..., dict[str, Channels]]:
    """One frame's passes, by Blender 5's names."""

    def make(size: tuple[int, int] = (6, 8), seed: int = 0) -> dict[str, Channels]:
        random = np.random.default_rng(seed)

        def planes(names: str, dtype: str = "f4") -> Channels:
            return {name: random.random(size).astype(dtype) for name in names}

        depth = planes("Z")
        depth["Z"][0] = 1e10
        return {
            "Combined": planes("RGBA", "f2"),
            "Depth": depth,
            "Normal": planes("XYZ"),
            "Vector": planes("XYZW"),
            "Object Index": {"X": random.integers(0, 9, size).astype("f4")},
            "roughness": planes("X"),
            "metallic": planes("X"),
            "basecolor": planes("RGBA", "f2"),
        }

    return make


@pytest.fixture
def write_blender() -> Callable[..., None]:
    """Writes one EXR file as Blender 4 (one part) or 5 (one part a pass) does."""
    names_4 = {"Object Index": "IndexOB", "Diffuse Color": "DiffCol"}

    def write(
        path: Path, passes: dict[str, Channels], version: int = 5, layer: str = "ViewLayer", header: dict | None = None
    ) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        head = {"compression": OpenEXR.ZIP_COMPRESSION, "type": OpenEXR.scanlineimage, **(header or {})}
        if version == 4:
            flat = {
                f"{layer}.{names_4.get(name, name)}.{component}": values
                for name, planes in passes.items()
                for component, values in planes.items()
            }
            OpenEXR.File(head, flat).write(str(path))
            return
        parts = [
            OpenEXR.Part(
                dict(head), {f"{layer}.{name}.{component}": v for component, v in planes.items()}, f"{layer}.{name}"
            )
            for name, planes in passes.items()
        ]
        OpenEXR.File(parts).write(str(path))

    return write


@pytest.fixture
def write_cameras() -> Callable[..., None]:
    """Writes cameras.json for frames 1, 2, ... with one pose."""

    def write(folder: Path, frames: int, size: tuple[int, int] = (6, 8), pose: np.ndarray | None = None) -> None:
        matrix = (np.eye(4) if pose is None else pose).tolist()
        cameras = [
            {"frame": n + 1, "fx": 9.0, "fy": 9.0, "cx": 4.0, "cy": 3.0, "camera_to_world": matrix}
            for n in range(frames)
        ]
        values = {"width": size[1], "height": size[0], "fps": 24, "cameras": cameras}
        (folder / "cameras.json").write_text(json.dumps(values))

    return write


@pytest.fixture
def write_layers() -> Callable[..., None]:
    """Writes one EXR file of one part with channels as they are named."""

    def write(path: Path, channels: Channels, tiled: bool = False, **header: object) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        kind = {"type": OpenEXR.scanlineimage}
        if tiled:
            kind = {"type": OpenEXR.tiledimage, "tiles": OpenEXR.TileDescription()}
        OpenEXR.File({"compression": OpenEXR.ZIP_COMPRESSION, **kind, **header}, dict(channels)).write(str(path))

    return write
