"""Paths as waves of rays are the plain kernel's paths but for noise, and leave the G-buffer alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from flowshade.gbuffer import trace
from flowshade.gbuffer.look import LOOKS
from flowshade.gbuffer.trace import Tracer
from flowshade.types import Camera, GBuffer, stream_frame
from flowshade.world import camera_at, make_world, step

HEIGHT, WIDTH = 24, 40
SEEDS = 4


def tracer_of(kind: str, plain: bool = False) -> tuple[Tracer, Camera, GBuffer]:
    world = make_world(kind, 1)
    data = world.reset()
    step(world, data)
    tracer = Tracer(world.model, size=(HEIGHT, WIDTH), reference="paths", paths=16, threads=1, plain=plain)
    tracer.update(data)
    camera = camera_at(world.camera_path, np.zeros(1), HEIGHT, WIDTH)
    return tracer, camera, tracer.gbuffer(camera)


def pictures(tracer: Tracer, camera: Camera, look: str) -> Tensor:
    """[SEEDS, 3, H, W] radiance."""
    stream = stream_frame(camera.pose[0])
    return torch.cat([tracer.radiance(LOOKS[look], stream=stream, seed=seed) for seed in range(SEEDS)])


def test_waves_are_the_plain_paths() -> None:
    waves, camera, gbuffer = tracer_of("rooms")
    plain, _, same = tracer_of("rooms", plain=True)
    for name, value in gbuffer.channels().items():
        assert torch.equal(value, same.channels()[name]), name
    for look in ("night", "fog"):
        ours, theirs = pictures(waves, camera, look), pictures(plain, camera, look)
        assert ours.mean() / theirs.mean() == pytest.approx(1.0, abs=0.01), look
        blocks = [torch.nn.functional.avg_pool2d(each, 8) for each in (ours, theirs)]  # [SEEDS, 3, H / 8, W / 8]
        noise = sum(each.var(0) / SEEDS for each in blocks)
        means = [each.mean(0) for each in blocks]
        off = (means[0] - means[1]).abs() - 0.02 * means[1]
        assert (off < 4 * torch.as_tensor(noise).sqrt() + 1e-3).float().mean() > 0.97, look


def test_rounds_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    tracer, camera, _ = tracer_of("rooms")
    stream = stream_frame(camera.pose[0])
    at_once = tracer.radiance(LOOKS["night"], stream=stream)
    monkeypatch.setattr(trace, "_RAYS_AT_ONCE", 1)
    tracer, camera, _ = tracer_of("rooms")
    assert tracer._walks_at_once == 1
    assert (tracer.radiance(LOOKS["night"], stream=stream) - at_once).abs().max() < 1e-4 * at_once.max()
