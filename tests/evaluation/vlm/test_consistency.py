"""Measures without a reference, on clips whose truth is known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from flowshade.color import linear_to_srgb
from flowshade.evaluation.vlm.clips import Contest
from flowshade.evaluation.vlm.consistency import Edges, Matches, Settings, measure, measure_buffers, write_measures
from flowshade.gbuffer.view import to_uint8
from flowshade.types import Camera, GBuffer


def moving(picture: Tensor, frames: int = 4, step: int = 2) -> Tensor:
    """[C, H, W] seen through a window that moves sideways -> [T, C, H, W - frames * step]."""
    width = picture.shape[2] - frames * step
    return torch.stack([picture[..., index * step : index * step + width] for index in range(frames)])


def scene(textured: Tensor, exposures: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0)) -> tuple[Tensor, Tensor]:
    """Linear albedo and RGB bytes of a moving textured plane with smooth detail that flow can hold on to."""
    generator = torch.Generator().manual_seed(2)
    grain = torch.rand(1, 48, 80, generator=generator)
    smooth = torch.nn.functional.avg_pool2d(grain, 5, 1, 2, count_include_pad=False)
    albedo = moving((textured * (0.5 + smooth)).clamp(0, 1))
    gain = torch.tensor(exposures)[:, None, None, None]
    return albedo, to_uint8(linear_to_srgb(albedo * gain))


def matches_of(rgb: Tensor) -> list[Matches]:
    return [Matches(now.numpy(), after.numpy()) for now, after in zip(rgb[:-1], rgb[1:])]


def test_flow_follows_the_picture(textured: Tensor) -> None:
    albedo, rgb = scene(textured)
    match = matches_of(rgb)[0]
    assert match.where.float().mean() > 0.5
    error = (match.warp(albedo[1]) - albedo[0]).abs().mean(0)[match.where].mean()
    unwarped = (albedo[1] - albedo[0]).abs().mean(0)[match.where].mean()
    assert error < 0.3 * unwarped


def test_warp_error_tells_flicker_from_motion(textured: Tensor) -> None:
    albedo, rgb = scene(textured)
    matches = matches_of(rgb)
    calm = measure_buffers(GBuffer(roughness=albedo[:, :1]), rgb, matches)
    flicker = albedo[:, :1] * torch.tensor([1.0, 0.8, 1.0, 0.8])[:, None, None, None]
    restless = measure_buffers(GBuffer(roughness=flicker), rgb, matches)
    assert restless["warp_error_roughness"] > 2 * calm["warp_error_roughness"]


def test_light_follow_is_zero_for_albedo_and_one_for_a_copy(textured: Tensor) -> None:
    albedo, rgb = scene(textured, (1.0, 0.7, 1.0, 0.7))
    matches = matches_of(rgb)
    copied = albedo * torch.tensor([1.0, 0.7, 1.0, 0.7])[:, None, None, None]
    assert abs(measure_buffers(GBuffer(albedo=albedo), rgb, matches)["light_follow"]) < 0.1
    assert measure_buffers(GBuffer(albedo=copied), rgb, matches)["light_follow"] == pytest.approx(1, abs=0.1)


def test_edges_of_light_and_of_colour(textured: Tensor) -> None:
    shaded = textured.clone()
    shaded[:, :, 43:] *= 0.3  # a shadow's border inside patches that are 8 wide
    edges = Edges(linear_to_srgb(shaded))
    inside = torch.zeros(48, 80, dtype=torch.bool)
    inside[:, 42] = True
    rows = torch.arange(48) % 8 != 7
    assert edges.shading[rows][:, 42].float().mean() > 0.9
    assert not edges.shading[rows][:, [2, 10, 18]].any()
    assert edges.reflectance[rows][:, 7::8].float().mean() > 0.5


def test_shading_leaks_into_roughness_or_not(textured: Tensor) -> None:
    shaded = textured.clone()
    shaded[:, :, 43:] *= 0.3
    rgb = to_uint8(linear_to_srgb(shaded)[None].expand(2, -1, -1, -1))
    clean, leaky = textured[None, :1].expand(2, -1, -1, -1), shaded[None, :1].expand(2, -1, -1, -1)
    scores = [measure_buffers(GBuffer(roughness=x.contiguous()), rgb, matches_of(rgb)) for x in (clean, leaky)]
    assert scores[0]["shading_leak_roughness"] < 0.02
    assert scores[1]["shading_leak_roughness"] > 0.5
    flat = measure_buffers(GBuffer(roughness=torch.full((2, 1, 48, 80), 0.5)), rgb, matches_of(rgb))
    assert "shading_leak_roughness" not in flat  # a map that shows nothing has no ratio
    assert flat["detail_roughness"] == 0


def plane(tilt: float) -> GBuffer:
    """A plane turned about the vertical, seen by a pinhole camera, with its true normal."""
    height, width, focal = 48, 80, 60.0
    normal = torch.tensor([torch.sin(torch.tensor(tilt)), 0.0, torch.cos(torch.tensor(tilt))])
    x = (torch.arange(width) + 0.5 - width / 2) / focal
    depth = 5 * normal[2] / (normal[2] - normal[0] * x)  # points z * (x, y, -1) with n . p = -5 n_z
    depth = depth.expand(2, 1, height, width)
    camera = Camera(
        intrinsics=torch.tensor([[focal, focal, width / 2, height / 2]]).repeat(2, 1), pose=torch.eye(4).repeat(2, 1, 1)
    )
    return GBuffer(normal=normal[:, None, None].expand(2, 3, height, width), depth=depth.contiguous(), camera=camera)


def test_normals_agree_with_depth(textured: Tensor) -> None:
    gbuffer = plane(0.5)
    rgb = to_uint8(linear_to_srgb(textured)[None].expand(2, -1, -1, -1))
    assert measure_buffers(gbuffer, rgb, [])["normal_depth_angle"] < 0.2
    wrong = gbuffer.replace(normal=plane(0.2).normal)
    assert measure_buffers(wrong, rgb, [])["normal_depth_angle"] == pytest.approx(17.19, abs=0.2)  # 0.3 radians
    unknown = GBuffer(normal=gbuffer.normal, depth=gbuffer.depth)
    assert "normal_depth_angle" not in measure_buffers(unknown, rgb, [])
    assert measure_buffers(unknown, rgb, [], fov=67.38)["normal_depth_angle"] < 0.2  # 2 atan(40 / 60)


def test_a_light_is_fitted(textured: Tensor) -> None:
    generator = torch.Generator().manual_seed(0)
    normal = torch.nn.functional.normalize(torch.randn(1, 3, 48, 80, generator=generator), dim=1)
    light = 0.4 + 0.3 * normal[:, 1:2]
    rgb = to_uint8(linear_to_srgb(textured[None] * light))
    right = measure_buffers(GBuffer(albedo=textured[None], normal=normal), rgb, [])
    flat = measure_buffers(GBuffer(albedo=torch.full((1, 3, 48, 80), 0.5), normal=normal), rgb, [])
    assert right["relight_residual"] < 0.001
    assert flat["relight_residual"] > 0.2


def test_all_clips_are_measured_and_written(contest_folders: dict[str, Path], tmp_path: Path) -> None:
    methods = {name: contest_folders[name] for name in ("bright", "grey")}
    contest = Contest.find(contest_folders["footage"], methods)
    found = measure(contest, Settings(frames=3, longest_side=64), lambda done, total: None)
    table = write_measures(tmp_path / "out", found, seed=0)
    record = json.loads((tmp_path / "out" / "consistency.json").read_text())
    assert set(record["clips"]) == {"one", "two"}
    assert record["means"]["grey"]["detail_roughness"]["mean"] < 1 / 255  # rounding
    assert "no scores of a judge" in record["what"]
    assert "| measure | rgb | bright | grey |" in table
    assert "vlm" not in table.lower()
