"""Shared layers: positions, attention, patches."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from flowshade.nn.attention import Attention, KeysValues
from flowshade.nn.conv import PatchConv, map_frames, patch_product
from flowshade.nn.embedding import sinusoid
from flowshade.nn.rope import pad_to_multiple, rotation

DIMS, THETA = (4, 6, 6), 100.0


def turn(times: list[float], pool: tuple[int, int, int] = (1, 1, 1), grid: tuple[int, int] = (3, 5)):
    return rotation(torch.tensor(times), grid, DIMS, THETA, pool)


def test_fast_rotation_equals_plain() -> None:
    x = torch.randn(2, 30, 3, 16)
    angles = turn([0.0, 1.0])
    torch.testing.assert_close(angles.apply(x), angles._apply_plain(x))


def test_rotation_keeps_lengths_and_only_differences_matter() -> None:
    q, k = torch.randn(1, 15, 2, 16), torch.randn(1, 15, 2, 16)

    def scores(time: float, other: float) -> torch.Tensor:
        return torch.einsum("bnhc,bmhc->bhnm", turn([time]).apply(q), turn([other]).apply(k))

    torch.testing.assert_close(turn([3.0]).apply(q).norm(dim=-1), q.norm(dim=-1))
    torch.testing.assert_close(scores(0, -3), scores(500, 497), rtol=1e-3, atol=1e-3)
    assert not torch.allclose(scores(0, -3), scores(0, -4), atol=1e-2)


def test_pooled_rotation_is_the_mean_of_what_it_covers() -> None:
    fine = turn([0.0, 1.0], grid=(4, 6)).cos.view(2, 4, 6, 8)
    coarse = turn([0.0, 1.0], pool=(2, 2, 3), grid=(4, 6)).cos.view(2, 2, 8)
    torch.testing.assert_close(coarse[1, 1], fine[:, 2:, 3:].mean((0, 1, 2)))
    assert turn([0.0], pool=(1, 2, 2), grid=(3, 5)).cos.shape == (2 * 3, 8)


def test_padding_repeats_edges() -> None:
    volume = torch.arange(6.0).view(1, 1, 1, 2, 3)
    padded = pad_to_multiple(volume, (1, 2, 2))
    assert padded.shape == (1, 1, 1, 2, 4) and padded[..., 3].flatten().tolist() == [2, 5]
    assert pad_to_multiple(volume, (1, 2, 3)) is volume


def test_attention_equals_its_definition() -> None:
    torch.manual_seed(0)
    attention = Attention(32, 2, 16)
    nn.init.normal_(attention.norm_q.weight)
    x, mask = torch.randn(2, 7, 32), torch.rand(2, 1, 7, 7) > 0.3
    mask[..., 0] = True

    def norm(y: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return y * (y.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weight

    q = norm(attention.to_q(x), attention.norm_q.weight).view(2, 7, 2, 16).transpose(1, 2)
    k = norm(attention.to_k(x), attention.norm_k.weight).view(2, 7, 2, 16).transpose(1, 2)
    v = attention.to_v(x).view(2, 7, 2, 16).transpose(1, 2)
    weights = (q @ k.mT / 4).masked_fill(~mask, -torch.inf).softmax(-1)
    expected = attention.to_out[0]((weights @ v).transpose(1, 2).flatten(2))
    actual = attention.attend(attention.queries(x), attention.keys_values(x), mask)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_amplified_keys_are_scaled_per_head() -> None:
    attention = Attention(32, 2, 16, amplify_history=True)
    assert attention.history_key_scale is not None
    with torch.no_grad():
        attention.history_key_scale.copy_(torch.tensor([0.0, 100.0]))
    past = KeysValues(torch.ones(1, 2, 3, 16), torch.ones(1, 2, 3, 16))
    amplified = attention.amplify(past)
    assert amplified.keys[0, 0].eq(5.5).all() and amplified.keys[0, 1].eq(10).all() and amplified.values.eq(1).all()


@pytest.mark.parametrize("factor", [2, 4])
def test_patch_conv_is_a_linear_layer_over_unshuffled_pixels(factor: int) -> None:
    layer = PatchConv(3, 5, factor)
    x = torch.randn(2, 3, 8, 12)
    weight = layer.weight.flatten(1)[:, :, None, None]
    expected = F.conv2d(F.pixel_unshuffle(x, factor), weight, layer.bias)
    torch.testing.assert_close(layer(x), expected)
    torch.testing.assert_close(patch_product(x, layer.weight, layer.bias), expected)


def test_map_frames_splits_only_where_it_may() -> None:
    lengths: list[int] = []

    def double(x: torch.Tensor) -> torch.Tensor:
        lengths.append(len(x))
        return 2 * x

    x = torch.randn(3, 2)
    with torch.no_grad():
        assert torch.equal(map_frames(double, x), 2 * x)
    map_frames(double, x)
    assert lengths == [1, 1, 1, 3]


def test_sinusoid_puts_cosines_first() -> None:
    embedded = sinusoid(torch.tensor([0.0, 1000.0]), 8)
    assert embedded[0].tolist() == [1, 1, 1, 1, 0, 0, 0, 0]
    torch.testing.assert_close(embedded[1, 0], torch.tensor(1000.0).cos())
    torch.testing.assert_close(embedded[1, 5], torch.tensor(100.0).sin(), rtol=0, atol=1e-4)
