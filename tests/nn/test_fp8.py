"""8-bit linear layers: rounding, scales, and the matrix product against its plain version."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from flowshade.errors import FlowshadeError
from flowshade.nn.fp8 import FP8, FP8_MAX, Linear8, check_fp8, quantise_rows
from flowshade.nn.tuning import disagreement

CUDA = torch.cuda.is_available()


def test_every_row_uses_the_whole_range() -> None:
    x = torch.randn(5, 64) * torch.tensor([1e-6, 1.0, 100.0, 1e6, 0.0])[:, None]
    rows = quantise_rows(x)
    assert rows.values.dtype == FP8 and rows.scale.shape == (5, 1) and rows.scale.dtype == torch.float32
    assert rows.values.float().abs().amax(1)[:4].tolist() == [FP8_MAX] * 4
    assert rows.values[4].float().abs().max() == 0  # a row of zeros stays one
    error = (rows.dequantised() - x).abs() / x.abs().amax(1, keepdim=True).clamp(min=1e-30)
    assert error.max() <= 16 / FP8_MAX * 1.01  # half a step of the largest numbers
    assert disagreement(rows.dequantised(), x) < 0.04


def test_a_layer_is_close_to_the_layer() -> None:
    torch.manual_seed(0)
    layer, x = torch.nn.Linear(64, 48).requires_grad_(False), torch.randn(2, 9, 64)
    eight = Linear8(layer.weight, layer.bias, torch.float32)
    actual, expected = eight(quantise_rows(x)), layer(x)
    assert actual.shape == (2, 9, 48)
    assert 0.001 < disagreement(actual, expected) < 0.05
    exact = F.linear(quantise_rows(x).dequantised(), quantise_rows(layer.weight).dequantised(), layer.bias)
    torch.testing.assert_close(actual, exact, rtol=1e-5, atol=1e-5)


def test_the_last_rows() -> None:
    rows = quantise_rows(torch.randn(2, 5, 16))
    assert torch.equal(rows.last_rows(3).dequantised(), rows.dequantised()[:, 3:])


def test_the_products_operands_are_laid_out_as_pytorch_asks() -> None:
    """`_scaled_mm` takes a row-major and a column-major operand and scales [M, 1] and [1, N]; a CPU has it too."""
    torch.manual_seed(0)
    rows, eight = quantise_rows(torch.randn(32, 64)), Linear8(torch.randn(48, 64), torch.randn(48), torch.bfloat16)
    assert eight.weight.t().stride() == (1, 64) and eight.scale.shape == (1, 48) and eight.scale.is_contiguous()
    device = "cuda" if CUDA else "cpu"
    operands = (rows.values.to(device), eight.weight.to(device).t())
    scales = {"scale_a": rows.scale.to(device), "scale_b": eight.scale.to(device)}
    product = torch._scaled_mm(*operands, **scales, bias=eight.bias.to(device), out_dtype=torch.bfloat16)
    assert disagreement(product.cpu(), eight.plain(rows.values, rows.scale)) < 1e-2


@pytest.mark.skipif(not CUDA, reason="needs an NVIDIA GPU")
def test_on_a_gpu() -> None:
    x, weight, bias = torch.randn(1, 1000, 1536, device="cuda"), torch.randn(8960, 1536, device="cuda"), None
    for bias in (None, torch.randn(8960, device="cuda")):
        eight, rows = Linear8(weight, bias, torch.bfloat16), quantise_rows(x)
        assert disagreement(eight(rows)[0], eight.plain(rows.values[0], rows.scale[0])) < 1e-2


def test_mistakes() -> None:
    with pytest.raises(FlowshadeError, match=r"linear layer of \(20, 64\); expected widths in multiples of 16"):
        Linear8(torch.randn(20, 64), None, torch.bfloat16)
    with pytest.raises(FlowshadeError, match="fp8 needs an NVIDIA GPU, and the renderer is on cpu"):
        check_fp8(torch.device("cpu"), torch.bfloat16)
