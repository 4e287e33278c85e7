"""Shared by all tests: small fixtures, and one thread for torch, since workers of pytest-xdist share the cores.

Shapes are checked at every call of the modules listed under `--jaxtyping-packages` in pyproject.toml.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from flowshade.checkpoints.store import save_renderer
from flowshade.gbuffer.io import write_clip
from flowshade.presets import debug_renderer
from flowshade.renderer.renderer import Renderer
from flowshade.types import Camera, GBuffer

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def debug_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A debug renderer with random weights, saved to a file."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        renderer = Renderer(debug_renderer())
        torch.nn.init.normal_(renderer.transformer.proj_out.weight, std=0.2)  # a new network's output is silent
        for part in renderer.decoder.parameters():
            torch.nn.init.normal_(part, std=0.2)
    path = tmp_path_factory.mktemp("model") / "debug.safetensors"
    save_renderer(renderer, path)
    return path


def make_gbuffer(frames: int = 14, height: int = 40, width: int = 64, seed: int = 0) -> GBuffer:
    """Random but lawful buffers with a band of sky and a moving camera."""
    generator = torch.Generator().manual_seed(seed)

    def rand(channels: int) -> torch.Tensor:
        return torch.rand(frames, channels, height, width, generator=generator)

    depth = rand(1) * 30 + 1
    depth[:, :, : height // 4] = torch.inf
    normal = torch.nn.functional.normalize(rand(3) * 2 - 1, dim=1) * depth.isfinite()
    pose = torch.eye(4).repeat(frames, 1, 1)
    pose[:, :3, :3] = torch.tensor([[1.0, 0, 0], [0, 0, -1], [0, 1, 0]])  # level, looking along +Y
    pose[:, 0, 3] = torch.arange(frames) * 0.1
    intrinsics = torch.tensor([60.0, 60.0, width / 2, height / 2]).repeat(frames, 1)
    return GBuffer(
        albedo=rand(3),
        normal=normal,
        depth=depth,
        roughness=rand(1),
        metallic=rand(1),
        camera=Camera(intrinsics=intrinsics, pose=pose),
    )


@pytest.fixture(scope="session")
def small_gbuffer() -> GBuffer:
    """14 frames of 40x64, all core channels and a camera."""
    return make_gbuffer()


@pytest.fixture(scope="session")
def small_clip(tmp_path_factory: pytest.TempPathFactory, small_gbuffer: GBuffer) -> Path:
    """`small_gbuffer` as a clip folder, 24 frames a second."""
    path = tmp_path_factory.mktemp("clips") / "small"
    write_clip(path, small_gbuffer, 24)
    return path
