import math

import numpy as np
import pytest
import torch

from flowshade.evaluation.baselines import AlbedoAffine
from flowshade.evaluation.metrics import psnr, ssim
from flowshade.evaluation.temporal import window_step_ratio
from flowshade.evaluation.worlds import Scores, markdown_table


def pictures(seed: int, frames: int = 2, size: int = 24) -> torch.Tensor:
    return torch.rand(frames, 3, size, size, generator=torch.Generator().manual_seed(seed))


def test_psnr_of_a_known_offset():
    reference = torch.full((1, 3, 16, 16), 100 / 255)
    assert psnr(reference + 5 / 255, reference).item() == pytest.approx(20 * math.log10(255 / 5), abs=1e-4)
    assert torch.isinf(psnr(reference, reference)).all()


def test_psnr_of_some_pixels_leaves_out_the_others():
    reference = torch.full((2, 3, 8, 8), 102 / 255)
    prediction = reference.clone()
    prediction[:, :, :4] += 5 / 255
    prediction[:, :, 4:] = 0
    where = torch.zeros(2, 1, 8, 8, dtype=torch.bool)
    where[0, :, :4] = True
    values = psnr(prediction, reference, where)
    assert values[0].item() == pytest.approx(20 * math.log10(255 / 5), abs=1e-4)
    assert torch.isnan(values[1])


def test_psnr_counts_what_an_eight_bit_file_would_hold():
    reference = torch.full((1, 3, 16, 16), 100 / 255)
    assert torch.isinf(psnr(reference + 0.4 / 255, reference)).all()


def test_ssim_agrees_with_an_independent_loop():
    x, y = pictures(0, frames=1, size=13), pictures(1, frames=1, size=13)
    offsets = np.arange(11) - 5
    window = np.exp(-(offsets**2) / 4.5)
    window = np.outer(window, window) / window.sum() ** 2
    a, b = ((np.round(p[0].numpy().astype(np.float64) * 255) / 255) for p in (x, y))
    values = []
    for channel in range(3):
        for row in range(3):
            for column in range(3):
                p, q = (v[channel, row : row + 11, column : column + 11] for v in (a, b))
                mp, mq = (window * p).sum(), (window * q).sum()
                vp, vq = (window * (p - mp) ** 2).sum(), (window * (q - mq) ** 2).sum()
                cov = (window * (p - mp) * (q - mq)).sum()
                numerator = (2 * mp * mq + 1e-4) * (2 * cov + 9e-4)
                values.append(numerator / ((mp**2 + mq**2 + 1e-4) * (vp + vq + 9e-4)))
    assert ssim(x, y).item() == pytest.approx(np.mean(values), abs=1e-4)
    assert ssim(x, x).item() == pytest.approx(1)


def test_metrics_refuse_pictures_that_do_not_match():
    with pytest.raises(ValueError, match="same size"):
        psnr(pictures(0), pictures(0, size=20))
    with pytest.raises(ValueError, match="at least 11"):
        ssim(pictures(0, size=8), pictures(0, size=8))


def test_affine_baseline_recovers_an_affine_look():
    albedo = pictures(2)
    matrix = torch.tensor([[0.5, 0.1, 0.0], [0.0, 0.4, 0.1], [0.1, 0.0, 0.6]])
    picture = torch.einsum("tchw,cd->tdhw", albedo, matrix) + 0.1
    affine = AlbedoAffine()
    affine.add(albedo, picture)
    torch.testing.assert_close(affine.predict(albedo), picture, atol=1e-4, rtol=0)


def test_window_ratio_sees_a_jump_at_borders_and_none_where_there_is_none():
    reference = pictures(3, frames=12)
    drift = torch.arange(12).view(-1, 1, 1, 1) * 0.001
    assert window_step_ratio(reference + drift, reference, 4) == pytest.approx(1, abs=0.01)
    jumps = (torch.arange(12) // 4).view(-1, 1, 1, 1) * 0.01
    assert window_step_ratio(reference + drift + jumps, reference, 4) > 5
    assert math.isnan(window_step_ratio(reference[:4], reference[:4], 4))


def test_table_holds_every_method_and_the_mean_of_the_canonical_looks():
    scores = Scores()
    reference = pictures(4)
    for look, offset in (("sunny", 10 / 255), ("fog", 20 / 255), ("neon", 40 / 255)):
        picture = (reference * 0.5 + 0.25 + offset).clamp(0, 1)
        scores.add("ours", look, picture, reference * 0.5 + 0.25, window=1)
    by_look = {row["look"]: row["psnr"] for row in scores.rows()}
    table = markdown_table(scores.rows())
    assert f"{(by_look['sunny'] + by_look['fog']) / 2:.2f}" in table
    assert f"{by_look['neon']:.1f}" in table
