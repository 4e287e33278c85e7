"""Targets, losses and stage of the inverse."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from flowshade.codec.encoding import EncodingProfile, encode_buffers
from flowshade.errors import CheckpointError
from flowshade.gbuffer.rollout import rollout
from flowshade.gbuffer.trace import Tracer
from flowshade.inverse.network import Estimate, InverseNetwork
from flowshade.presets import debug_inverse, debug_training
from flowshade.training.inverse import (
    InverseModelsConfig,
    Motion,
    Targets,
    _crop,
    _mirrored,
    focal_of,
    inverse_loss,
    still_motion,
    targets_of,
    true_edges,
)
from flowshade.training.start import begin_from, load_start
from flowshade.types import CORE_CHANNELS, Camera, GBuffer
from flowshade.world import make_world

PROFILE = EncodingProfile()


def gbuffer(height: int = 16, width: int = 32, focal: float = 24.0) -> GBuffer:
    depth = torch.rand(2, 1, height, width) * 50 + 0.5
    depth[:, :, :3] = float("inf")
    normal = torch.nn.functional.normalize(torch.randn(2, 3, height, width), dim=1)
    intrinsics = torch.tensor([focal, focal, width / 2, height / 2]).expand(2, 4)
    return GBuffer(
        albedo=torch.rand(2, 3, height, width),
        normal=normal,
        depth=depth,
        roughness=torch.rand(2, 1, height, width),
        metallic=torch.rand(2, 1, height, width),
        camera=Camera(intrinsics=intrinsics, pose=torch.eye(4).expand(2, 4, 4)),
    )


def true_estimate(targets: Targets) -> Estimate:
    sky = torch.where(targets.surface, -30.0, 30.0)
    error = torch.full((*targets.depth.shape[:2], 5, *targets.depth.shape[-2:]), -3.0)
    values = {name: getattr(targets, name).clone() for name in ("albedo", "normal", "depth", "roughness", "metallic")}
    return Estimate(**values, error=error, sky=sky)


def test_a_run_begins_from_weights_that_lack_what_begins_as_nothing(tmp_path):
    torch.manual_seed(0)
    old = InverseModelsConfig(inverse=dataclasses.replace(debug_inverse(), refined=False)).build()
    old.save(tmp_path / "old.safetensors", dtype=torch.float32)
    models = InverseModelsConfig(inverse=debug_inverse()).build()
    state = load_start(tmp_path / "old.safetensors")
    fresh = begin_from(models, state, what="old")
    assert fresh and all("smooth" in name or "propagation" in name for name in fresh)
    for name, value in old.state_dict().items():
        assert torch.equal(models.state_dict()[name], value)
    del state["inverse.network.merge.weight"]
    with pytest.raises(CheckpointError, match="merge.weight"):
        begin_from(models, state, what="old")
    with pytest.raises(CheckpointError, match="unknown 1"):
        begin_from(models, {**models.state_dict(), "more": torch.zeros(1)}, what="old")


def test_a_renderer_s_weights_begin_a_run_whose_first_stage_makes_the_rest(tmp_path, debug_model):
    models, stages = debug_training().models.build(), debug_training().stages
    state = load_start(debug_model)
    fresh = begin_from(models, state, what="weights", lacking=models.may_lack(stages))
    assert fresh and all(name.startswith("picture_encoder.") for name in fresh)
    with pytest.raises(CheckpointError, match="picture_encoder"):
        begin_from(models, state, what="weights", lacking=models.may_lack(stages[-1:]))
    (tmp_path / "x.safetensors").write_bytes(b"no")
    with pytest.raises(CheckpointError, match="not a readable safetensors file"):
        load_start(tmp_path / "x.safetensors")
    with pytest.raises(CheckpointError, match="nothing to begin from"):
        load_start(tmp_path / "y.safetensors")


@pytest.fixture
def targets() -> Targets:
    torch.manual_seed(0)
    clip = gbuffer()
    return targets_of(encode_buffers(clip, PROFILE, torch.eye(3)).values, PROFILE)


def test_targets_are_the_buffers_in_the_units_of_an_estimate():
    clip = gbuffer()
    targets = targets_of(encode_buffers(clip, PROFILE, torch.eye(3)).values, PROFILE)
    assert torch.equal(targets.surface[0], torch.isfinite(clip.depth))
    finite = torch.where(torch.isfinite(clip.depth), clip.depth, 1.0)
    torch.testing.assert_close(targets.depth[0].exp(), finite, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(targets.normal[0], clip.normal, atol=1e-5, rtol=0)
    torch.testing.assert_close(targets.roughness[0], clip.roughness, atol=1e-5, rtol=0)


def traced(frames: int = 5) -> tuple[GBuffer, Targets]:
    world = make_world("street", 3, fps=12.0)
    tracer = Tracer(
        world.model, size=(64, 96), device="cpu", samples=1, channels=(*CORE_CHANNELS, "motion", "instance")
    )
    clip = GBuffer.cat([frame.gbuffer for frame in rollout(world, tracer, frames=frames, looks=[], seed=0)])
    return clip, targets_of(encode_buffers(clip, PROFILE, torch.eye(3)).values, PROFILE)


def test_motion_from_depth_and_cameras_is_the_tracer_s_where_it_is_seen():
    clip, targets = traced()
    assert clip.motion is not None and clip.camera is not None
    motion = still_motion(targets, clip.camera, 1)
    assert not motion.seen[:, 0].any() and motion.seen[:, 1:].float().mean() > 0.4
    difference = (motion.vectors[0] - clip.motion).abs().amax(1, keepdim=True)[motion.seen[0]]
    assert clip.motion[1:].abs().mean() > 0.3
    assert difference.quantile(0.98) < 0.05  # the rest moves by itself, in front of its like
    with torch.autocast("cpu", torch.bfloat16):  # as the trainer calls it on a GPU
        assert torch.equal(still_motion(targets, clip.camera, 1).vectors, motion.vectors)


def test_errors_that_stay_along_the_motion_are_not_flicker():
    clip, targets = traced()
    assert clip.camera is not None
    motion = still_motion(targets, clip.camera, 1)
    perfect = true_estimate(targets)
    scaled = dataclasses.replace(perfect, depth=perfect.depth + 0.3, roughness=perfect.roughness + 0.1)
    values = inverse_loss(scaled, targets, None, motion)[1]
    assert values["along"] < 1e-5 and values["drift"] < 1e-5
    growing = 0.1 * torch.arange(5)[None, :, None, None, None]
    restless = dataclasses.replace(perfect, roughness=perfect.roughness + growing)
    assert math.isclose(inverse_loss(restless, targets, None, motion)[1]["along"].item(), 0.1, rel_tol=1e-3)
    drifting = dataclasses.replace(perfect, depth=perfect.depth + growing)
    assert math.isclose(inverse_loss(drifting, targets, None, motion)[1]["drift"].item(), 0.1, rel_tol=1e-3)
    part = [type(v)(**{k: x[:, :1] for k, x in vars(v).items()}) for v in (perfect, targets)]
    rest = [type(v)(**{k: x[:, 1:2] for k, x in vars(v).items()}) for v in (restless, targets)]
    moved = Motion(vectors=motion.vectors[:, 1:2], seen=motion.seen[:, 1:2])
    values = inverse_loss(*rest, tuple(part), moved)[1]  # pyright: ignore[reportArgumentType]
    assert math.isclose(values["along"].item(), 0.1, rel_tol=1e-3)


def test_mirrored_motion_points_the_other_way():
    motion = Motion(vectors=torch.randn(2, 3, 2, 4, 6), seen=torch.rand(2, 3, 1, 4, 6) > 0.5)
    mirrored = _mirrored(motion, torch.tensor([True, False]))
    assert torch.equal(mirrored.vectors[1], motion.vectors[1]) and torch.equal(mirrored.seen[1], motion.seen[1])
    assert torch.equal(mirrored.vectors[0, :, 0], -motion.vectors[0, :, 0].flip(-1))
    assert torch.equal(mirrored.vectors[0, :, 1], motion.vectors[0, :, 1].flip(-1))
    assert torch.equal(mirrored.seen[0], motion.seen[0].flip(-1))


def test_blurred_edges_a_grid_and_a_wrong_outline_are_felt():
    targets = Targets(
        albedo=torch.zeros(1, 1, 3, 16, 32),
        normal=torch.tensor([0.0, 0.0, 1.0])[:, None, None].expand(1, 1, 3, 16, 32),
        depth=torch.zeros(1, 1, 1, 16, 32),
        roughness=(torch.arange(32) >= 16).float().expand(1, 1, 1, 16, 32),
        metallic=torch.zeros(1, 1, 1, 16, 32),
        surface=(torch.arange(16) >= 4)[:, None].expand(1, 1, 1, 16, 32),
    )
    edges = true_edges(targets)[0, 0, 0]
    assert edges[10].nonzero().flatten().tolist() == list(range(14, 19))
    assert edges[:, 0].nonzero().flatten().tolist() == list(range(2, 7))
    perfect = true_estimate(targets)
    _, best = inverse_loss(perfect, targets, None)
    assert best["edges"] < 1e-5 and best["slopes"] < 1e-5 and best["outline"] < 1e-4
    grid = 0.02 * (torch.arange(32) % 8 < 4).float()
    _, values = inverse_loss(dataclasses.replace(perfect, roughness=perfect.roughness + grid), targets, None)
    assert values["slopes"] > 0.004
    soft = torch.nn.functional.avg_pool1d(targets.roughness[0, 0, 0], 5, 1, 2, count_include_pad=False)
    _, values = inverse_loss(dataclasses.replace(perfect, roughness=soft[None, None, None]), targets, None)
    assert values["edges"] > 2.5 * values["roughness"] > 0.05
    _, values = inverse_loss(dataclasses.replace(perfect, sky=perfect.sky.roll(2, 3)), targets, None)
    assert 0.2 < values["outline"] < 0.6


@pytest.mark.parametrize("focal", [12.0, 24.0, 60.0])
def test_the_focal_length_is_read_off_the_rays(focal: float):
    planes = encode_buffers(gbuffer(focal=focal), PROFILE, torch.eye(3))
    assert math.isclose(focal_of(planes.values, PROFILE).item(), focal / 32, rel_tol=0.02)


def test_the_truth_costs_least_and_each_channel_is_felt(targets: Targets):
    perfect = true_estimate(targets)
    least, values = inverse_loss(perfect, targets, None)
    assert all(values[name] < 1e-5 for name in values.keys() - {"outline", "sure"})
    for name in ("albedo", "roughness", "metallic", "normal"):
        wrong = dataclasses.replace(perfect, **{name: getattr(perfect, name).flip(-1)})
        assert inverse_loss(wrong, targets, None)[0] > least + 0.1
    assert inverse_loss(dataclasses.replace(perfect, sky=-perfect.sky), targets, None)[0] > least + 1


def test_of_a_wrong_scale_a_tenth_counts_and_sky_counts_nothing(targets: Targets):
    scaled = dataclasses.replace(true_estimate(targets), depth=targets.depth + 0.5)
    assert math.isclose(inverse_loss(scaled, targets, None)[1]["depth"].item(), 0.05, rel_tol=1e-3)
    beyond = dataclasses.replace(true_estimate(targets))
    beyond.depth[~targets.surface] = 7.0
    assert inverse_loss(beyond, targets, None)[1]["depth"] < 1e-5


def test_expected_errors_do_not_pull_at_the_channels(targets: Targets):
    estimate = true_estimate(targets)
    estimate.roughness.add_(0.1).requires_grad_(True)
    estimate.error.requires_grad_(True)
    with_low = dataclasses.replace(estimate, error=estimate.error.detach() - 2)
    gradient = torch.autograd.grad(inverse_loss(estimate, targets, None)[0], [estimate.roughness, estimate.error])
    other = torch.autograd.grad(inverse_loss(with_low, targets, None)[0], estimate.roughness)[0]
    torch.testing.assert_close(gradient[0], other)
    assert gradient[1].abs().sum() > 0


def test_change_across_runs_is_felt(targets: Targets):
    perfect = true_estimate(targets)
    shifted = dataclasses.replace(perfect, roughness=perfect.roughness + 0.2)
    last = (perfect, targets)
    newest = tuple(type(v)(**{k: x[:, -1:] for k, x in vars(v).items()}) for v in last)
    assert inverse_loss(shifted, targets, None)[1]["change"] < 1e-6
    assert inverse_loss(shifted, targets, newest)[1]["change"] > 1e-3  # pyright: ignore[reportArgumentType]


def test_crops_lie_inside_and_divide():
    rng = np.random.default_rng(0)
    for _ in range(200):
        crop = _crop(240, rng)
        assert 0 <= crop.start < crop.stop <= 240 and crop.start % 16 == 0 and crop.stop % 16 == 0
        assert crop.stop - crop.start >= 120
    assert _crop(24, rng) == slice(0, 16)


def test_the_loss_can_be_learned(targets: Targets):
    torch.manual_seed(0)
    network = InverseNetwork(debug_inverse())
    rgb = torch.rand(1, 2, 3, 16, 32)
    optimiser = torch.optim.Adam(network.parameters(), 3e-3)
    losses = []
    for _ in range(40):
        loss, _ = inverse_loss(network(rgb)[0], targets, None)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
