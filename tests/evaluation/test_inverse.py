"""Metrics of estimated buffers against known values, and the whole evaluation, tiny."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch.nn.functional import normalize

from flowshade.checkpoints.store import save_inverse
from flowshade.cli import main
from flowshade.color import linear_to_srgb, srgb_to_linear
from flowshade.evaluation.buffers import (
    albedo_distances,
    albedo_errors,
    chunk_agreement,
    depth_errors,
    flicker,
    material_errors,
    normal_errors,
    score_buffers,
    warping_errors,
)
from flowshade.evaluation.inverse import (
    ConstantBuffers,
    markdown_table,
    read_reference_clip,
    score_clips,
    summarise,
)
from flowshade.evaluation.perceptual import lpips
from flowshade.gbuffer.io import write_clip
from flowshade.inverse.stream import Inverse
from flowshade.nn.warp import warp
from flowshade.presets import debug_inverse
from flowshade.types import GBuffer
from tests.evaluation.test_perceptual import counting_trunk

EVERYWHERE = torch.ones(2, 1, 8, 8, dtype=torch.bool)


def clip() -> GBuffer:
    generator = torch.Generator().manual_seed(0)

    def random(planes: int) -> torch.Tensor:
        return torch.rand(2, planes, 8, 8, generator=generator)

    depth = random(1) * 20 + 1
    depth[:, :, :2] = float("inf")
    return GBuffer(
        albedo=random(3) * 0.8 + 0.1,
        normal=normalize(random(3) - 0.5, dim=1),
        depth=depth,
        roughness=random(1),
        metallic=random(1),
    )


def test_the_truth_scores_best():
    scores = score_buffers(clip(), clip())
    assert scores["depth_absrel"] == 0 and scores["depth_delta"] == 1 and scores["sky_iou"] == 1
    assert scores["normal_mean"] < 0.1 and scores["normal_11.25"] == 1
    assert scores["albedo_psnr_srgb"] > 90 and scores["roughness_rmse"] == 0 and scores["flicker"] == 1


def test_depth_forgives_one_factor_and_no_more():
    depth = torch.rand(2, 1, 8, 8) * 10 + 1
    assert depth_errors(3 * depth, depth, EVERYWHERE)["depth_absrel"] < 1e-5
    doubled = depth.clone()
    doubled[:, :, :2] *= 1.5  # a quarter of the picture
    scores = depth_errors(doubled, depth, EVERYWHERE)
    assert math.isclose(scores["depth_absrel"], 0.25 * 0.5, rel_tol=1e-4)
    assert math.isclose(scores["depth_delta"], 0.75, rel_tol=1e-4)


def test_an_angle_between_normals_is_measured_in_degrees():
    reference = torch.zeros(2, 3, 8, 8)
    reference[:, 2] = 1
    angle = math.radians(20)
    tilted = torch.zeros_like(reference)
    tilted[:, 0], tilted[:, 2] = math.sin(angle), math.cos(angle)
    scores = normal_errors(5 * tilted, reference, EVERYWHERE)
    assert math.isclose(scores["normal_mean"], 20, abs_tol=1e-2)
    assert (scores["normal_11.25"], scores["normal_22.5"]) == (0, 1)


def test_albedo_is_scored_as_it_is_and_after_one_factor_in_both_spaces():
    albedo = torch.rand(2, 3, 8, 8) * 0.5 + 0.2
    scores = albedo_errors(0.5 * albedo, albedo, EVERYWHERE)
    assert scores["albedo_si_psnr_linear"] > 90
    error = (0.5 * albedo).square().flatten(1).mean(1)
    assert math.isclose(scores["albedo_psnr_linear"], (-10 * error.log10()).mean().item(), rel_tol=1e-4)
    assert scores["albedo_si_psnr_srgb"] > scores["albedo_psnr_srgb"]


def test_the_distance_of_albedo_sees_no_sky_and_names_its_space():
    albedo = torch.rand(2, 3, 64, 64) * 0.6 + 0.2
    surface = torch.ones(2, 1, 64, 64, dtype=torch.bool)
    surface[:, :, :20] = False
    trunk = counting_trunk()
    other = albedo.clone()
    other[:, :, :20] = 0.9
    same = albedo_distances(other, albedo, surface, trunk)
    assert same == {"albedo_lpips_srgb": 0, "albedo_lpips_linear": 0}
    tinted = albedo * torch.tensor([1.0, 0.4, 1.0])[:, None, None]
    scores = albedo_distances(tinted, albedo, surface, trunk)
    expected = lpips(linear_to_srgb(tinted * surface), linear_to_srgb(albedo * surface), trunk).mean().item()
    assert scores["albedo_lpips_srgb"] == pytest.approx(expected) and expected > 0
    assert scores["albedo_lpips_linear"] != scores["albedo_lpips_srgb"]
    assert albedo_distances(albedo[..., :31], albedo[..., :31], surface[..., :31], trunk) == {}
    assert "albedo_lpips_srgb" not in score_buffers(clip(), clip(), trunk)  # which is small


def test_shares_of_angles_count_what_is_below_each_limit():
    reference = torch.zeros(1, 3, 1, 4)
    reference[:, 2] = 1
    angles = torch.tensor([10.0, 20.0, 25.0, 60.0]).deg2rad()
    tilted = torch.stack([angles.sin(), torch.zeros(4), angles.cos()])[None, :, None]
    scores = normal_errors(tilted, reference, torch.ones(1, 1, 1, 4, dtype=torch.bool))
    assert (scores["normal_11.25"], scores["normal_22.5"], scores["normal_30.0"]) == (0.25, 0.5, 0.75)
    assert math.isclose(scores["normal_mean"], 28.75, abs_tol=1e-2)
    assert math.isclose(scores["normal_median"], 20, abs_tol=1e-2)


def test_chunks_agree_or_differ_by_known_amounts():
    one = clip()
    one = one.replace(albedo=0.5 * one.channels()["albedo"])
    surface = torch.isfinite(one.channels()["depth"])
    assert all(value < 0.05 for value in chunk_agreement(one, one, surface).values())
    channels = one.channels()
    two = one.replace(
        depth=channels["depth"] * 1.5,
        roughness=channels["roughness"] + 0.25,
        albedo=srgb_to_linear(linear_to_srgb(channels["albedo"]) + 0.1),
        normal=-channels["normal"],
    )
    scores = chunk_agreement(one, two, surface)
    assert math.isclose(scores["chunk_depth"], math.log(1.5), rel_tol=1e-4)
    assert math.isclose(scores["chunk_roughness"], 0.25, rel_tol=1e-4)
    assert math.isclose(scores["chunk_albedo"], 0.1, rel_tol=1e-3)
    assert math.isclose(scores["chunk_normal"], 180, abs_tol=0.1) and scores["chunk_metallic"] == 0
    missed = two.replace(depth=torch.full_like(channels["depth"], float("inf")))
    assert math.isnan(chunk_agreement(one, missed, surface)["chunk_depth"])


def test_materials_and_flicker():
    x = torch.full((2, 1, 8, 8), 0.5)
    assert material_errors(x + 0.1, x, EVERYWHERE, "metallic") == pytest.approx(
        {"metallic_rmse": 0.1, "metallic_mae": 0.1}, rel=1e-4
    )
    reference = torch.stack([torch.zeros(3, 8, 8), torch.ones(3, 8, 8)])
    assert math.isclose(flicker(1.5 * reference, reference, EVERYWHERE), 1.5, rel_tol=1e-5)


def test_sky_counts_in_its_overlap_alone():
    reference, prediction = clip(), clip()
    assert prediction.depth is not None and prediction.albedo is not None
    prediction.albedo[:, :, :2] = 0
    prediction.depth[:, :, 1:2] = 5.0  # half of the sky taken for a surface
    scores = score_buffers(prediction, reference)
    assert scores["sky_iou"] == 0.5 and scores["depth_absrel"] == 0 and scores["albedo_psnr_srgb"] > 90


def test_surfaces_taken_for_sky_are_counted_and_left_out_of_the_depth_of_what_was_found():
    reference, prediction = clip(), clip()
    assert prediction.depth is not None
    prediction.depth[:, :, 2:5] = float("inf")  # half of the surfaces
    scores = score_buffers(prediction, reference)
    assert scores["missed"] == 0.5 and scores["depth_found_absrel"] == 0 and scores["depth_absrel"] > 0.1


def test_clips_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="same frames and size"):
        score_buffers(clip()[:1], clip())
    with pytest.raises(ValueError, match="without metallic"):
        score_buffers(clip().replace(metallic=None), clip())
    with pytest.raises(ValueError, match="nothing but sky"):
        score_buffers(clip(), clip().replace(depth=torch.full((2, 1, 8, 8), float("inf"))))


def test_the_constant_baseline_is_the_mean_of_surfaces():
    constant, reference = ConstantBuffers(), clip()
    constant.add(reference)
    predicted = constant.predict(reference)
    assert predicted.albedo is not None and reference.albedo is not None and predicted.depth is not None
    torch.testing.assert_close(predicted.albedo[0, :, 0, 0], reference.albedo[:, :, 2:].mean((0, 2, 3)))
    assert torch.isfinite(predicted.depth).all() and predicted.size == reference.size


def test_means_leave_out_what_does_not_exist():
    rows = [{"method": "a", "clip": 0, "x": 1.0}, {"method": "a", "clip": 1, "x": float("nan")}]
    assert summarise(rows) == [{"method": "a", "clips": 2, "x": 1.0}]


@pytest.fixture
def model(tmp_path) -> str:
    torch.manual_seed(0)
    save_inverse(Inverse(debug_inverse()), tmp_path / "inverse.safetensors")
    return str(tmp_path / "inverse.safetensors")


def test_a_whole_evaluation_writes_its_table_and_sheet(model, tmp_path, capsys):
    options = ["--worlds", "2", "--size", "32x48", "--frames", "3", "--looks", "sunny", "--window", "2"]
    assert main(["eval", "inverse", "-o", str(tmp_path / "out"), "--model", model, "--device", "cpu", *options]) == 0
    table = json.loads((tmp_path / "out" / "scores.json").read_text())
    assert [(row["method"], row["clips"]) for row in table] == [("constant", 2), ("one picture", 2), ("stream", 2)]
    assert (tmp_path / "out" / "scores.md").read_text() in capsys.readouterr().out
    assert (tmp_path / "out" / "sheet.png").stat().st_size > 1000


def moving(frames: int = 3, size: int = 16, step: int = 2) -> GBuffer:
    """A wall with a pattern that moves `step` pixels to the right a frame, and a strip of sky at the top."""
    generator = torch.Generator().manual_seed(0)
    pattern = torch.rand(3, size, size + frames * step, generator=generator)
    starts = [(frames - 1 - index) * step for index in range(frames)]
    albedo = torch.stack([pattern[:, :, start : start + size] for start in starts])
    depth = torch.full((frames, 1, size, size), 5.0)
    depth[:, :, :2] = float("inf")
    grey = albedo[:, :1]
    motion = torch.zeros(frames, 2, size, size)
    motion[:, 0] = -step
    normal = normalize(albedo - 0.5, dim=1)
    return GBuffer(albedo=albedo, normal=normal, depth=depth, roughness=grey, metallic=grey, motion=motion)


def test_warping_fetches_what_was_there_before():
    clip = moving()
    assert clip.albedo is not None and clip.motion is not None
    fetched = warp(clip.albedo[:-1], clip.motion[1:])
    torch.testing.assert_close(fetched[..., 2:], clip.albedo[1:, :, :, 2:], atol=1e-5, rtol=0)
    half = torch.full((1, 2, 1, 4), 0.0)
    half[:, 0] = 0.5
    torch.testing.assert_close(warp(torch.tensor([[[[0.0, 1.0, 2.0, 3.0]]]]), half)[0, 0, 0, :3], torch.arange(3) + 0.5)


def test_the_warping_error_of_a_change_in_time_is_that_change():
    truth = moving()
    same = warping_errors(truth, truth)
    assert same["warp_albedo"] < 1e-5 and same["warp_true_normal"] < 1e-5
    assert truth.albedo is not None and truth.depth is not None
    brighter = truth.albedo + 0.125 * torch.arange(3)[:, None, None, None]
    deeper = truth.depth * (2.0 ** torch.arange(3))[:, None, None, None]
    scores = warping_errors(truth.replace(albedo=brighter, depth=deeper), truth)
    assert math.isclose(scores["warp_albedo"], 0.125, rel_tol=1e-4)
    assert math.isclose(scores["warp_depth"], math.log(2), rel_tol=1e-4)
    # The other three are as calm as the truth, whose error counts as 1e-4.
    assert warping_errors(truth.replace(depth=3 * truth.depth), truth)["warp_depth"] < 1e-5
    with pytest.raises(ValueError, match="no motion"):
        warping_errors(truth, truth.replace(motion=None))


def test_the_warping_ratio_is_that_of_the_most_restless_channel():
    truth = moving()
    noisy = {}
    for name, value in truth.channels().items():
        noisy[name] = value if name == "motion" else value + 0.01 * torch.arange(3)[:, None, None, None]
    noisy["depth"] = truth.depth * math.exp(0.01) ** torch.arange(3)[:, None, None, None]
    restless = GBuffer(**noisy)
    twice = {}
    for name, value in truth.channels().items():
        twice[name] = value if name == "motion" else value + 0.02 * torch.arange(3)[:, None, None, None]
    twice["depth"] = truth.depth * math.exp(0.02) ** torch.arange(3)[:, None, None, None]
    assert math.isclose(warping_errors(GBuffer(**twice), restless)["warp_ratio"], 2.0, rel_tol=1e-3)
    thrice = GBuffer(
        **{**twice, "metallic": truth.channels()["metallic"] + 0.03 * torch.arange(3)[:, None, None, None]}
    )
    assert math.isclose(warping_errors(thrice, restless)["warp_ratio"], 3.0, rel_tol=1e-3)


def test_what_was_hidden_does_not_count_in_warping():
    truth = moving(frames=2)
    assert truth.depth is not None and truth.albedo is not None
    depth = truth.depth.clone()
    depth[0, :, :, 6:10] = 2.0  # something stood before the wall, and is gone
    ids = torch.ones(2, 1, 16, 16, dtype=torch.int32)
    ids[1, :, 12:] = 2  # and something else lies below
    estimate = truth.albedo.clone()
    estimate[1, :, :, 8:12] += 0.5  # where it was, moved by 2
    estimate[1, :, 12:] += 0.5
    estimate[1, :, :2] += 0.5  # sky
    estimate[1, :, :, :2] += 0.5  # came into the picture
    scores = warping_errors(truth.replace(albedo=estimate), truth.replace(depth=depth, instance=ids))
    assert scores["warp_albedo"] < 1e-5
    assert warping_errors(truth.replace(albedo=estimate), truth)["warp_albedo"] > 0.05


def test_a_clip_from_disk_is_scored_as_a_world_is(tmp_path):
    torch.manual_seed(0)
    write_clip(tmp_path / "clip", clip(), 24, rgb=torch.rand(2, 3, 8, 8))
    write_clip(tmp_path / "bare", clip(), 24)
    with pytest.raises(ValueError, match="has no pictures"):
        read_reference_clip(tmp_path / "bare")
    done: list[tuple[int, int]] = []
    table = score_clips(
        Inverse(debug_inverse()).eval(),
        [read_reference_clip(tmp_path / "clip")],
        window=2,
        device="cpu",
        out=tmp_path / "out",
        shown=1,
        progress=lambda *counts: done.append(counts),
    )
    assert [row["method"] for row in table] == ["constant", "one picture", "stream"] and done == [(1, 1)]
    assert "warp_ratio" not in table[2]  # it has no motion
    assert markdown_table(table).splitlines()[-1].split("|")[-4] == " - "


def test_clips_from_disk_on_the_command_line(model, tmp_path, capsys):
    write_clip(tmp_path / "clips" / "one", clip(), 24, rgb=torch.rand(2, 3, 8, 8))
    command = ["eval", "inverse", str(tmp_path / "clips"), "-o", str(tmp_path / "out"), "--device", "cpu", "--model"]
    assert main([*command, model]) == 0
    assert json.loads((tmp_path / "out" / "scores.json").read_text())[2]["clips"] == 1
    assert main([*command, "cosmos-inverse"]) == 2
    assert "cosmos-inverse makes chunks and is no stream" in capsys.readouterr().err
