"""Targets, losses and stage of the inverse."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from flowshade.codec.encoding import EncodingProfile, encode_buffers
from flowshade.inverse.network import Estimate, InverseNetwork
from flowshade.presets import debug_inverse
from flowshade.training.inverse import Targets, _crop, focal_of, inverse_loss, targets_of
from flowshade.types import Camera, GBuffer

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


@pytest.mark.parametrize("focal", [12.0, 24.0, 60.0])
def test_the_focal_length_is_read_off_the_rays(focal: float):
    planes = encode_buffers(gbuffer(focal=focal), PROFILE, torch.eye(3))
    assert math.isclose(focal_of(planes.values, PROFILE).item(), focal / 32, rel_tol=0.02)


def test_the_truth_costs_least_and_each_channel_is_felt(targets: Targets):
    perfect = true_estimate(targets)
    least, values = inverse_loss(perfect, targets, None)
    assert all(values[name] < 1e-5 for name in ("albedo", "normal", "depth", "roughness", "metallic", "change", "sky"))
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
