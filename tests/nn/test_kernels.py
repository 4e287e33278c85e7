"""Fused kernels against the plain ones: compiled, and in Triton (on a GPU, or interpreted with TRITON_INTERPRET=1)."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import pytest
import torch
from torch import Tensor

from flowshade.nn.attention import KeysValues, _rms_norm
from flowshade.nn.fp8 import FP8, Rows8
from flowshade.nn.kernels import InductorKernels, Kernels
from flowshade.nn.rope import rotation
from flowshade.nn.tuning import disagreement

CUDA = torch.cuda.is_available()
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
TRITON = importlib.util.find_spec("triton") is not None and (CUDA or INTERPRETED)
DEVICE = "cuda" if CUDA and not INTERPRETED else "cpu"
BATCH, TOKENS, HEADS, WIDTH = 2, 7, 2, 48
OTHERS = [
    pytest.param(
        "triton",
        marks=pytest.mark.skipif(not TRITON, reason="needs triton and an NVIDIA GPU, or TRITON_INTERPRET=1"),
    ),
    pytest.param("inductor", marks=pytest.mark.skipif(not CUDA, reason="compiling takes a minute on a CPU")),
]


def kernels(name: str) -> Kernels:
    if name == "inductor":
        return InductorKernels()
    from flowshade.nn.triton_kernels import TritonKernels

    return TritonKernels()


def rand(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def close(actual: Any, expected: Any) -> None:
    """Within a few roundings of the type, 8-bit rows within one; Triton's interpreter cannot round to 8 bits."""
    if isinstance(expected, Rows8):
        assert actual.values.dtype == FP8 and actual.values.shape == expected.values.shape
        torch.testing.assert_close(actual.scale, expected.scale, rtol=1e-2, atol=0)
        if not INTERPRETED:
            step = expected.scale.max().item()
            torch.testing.assert_close(actual.dequantised(), expected.dequantised(), rtol=0.14, atol=step)
        return
    assert actual.shape == expected.shape and actual.dtype == expected.dtype
    rounding = torch.finfo(expected.dtype).eps
    torch.testing.assert_close(actual, expected, rtol=4 * rounding, atol=16 * rounding)


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("fp8", [False, True], ids=["", "fp8"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("segments", "split"), [(1, 0), (2, 3)])
def test_residual_norm(name: str, segments: int, split: int, dtype: torch.dtype, fp8: bool) -> None:
    x = rand(BATCH, TOKENS, WIDTH, dtype=dtype)
    rows = rand(segments, BATCH, 6, WIDTH, seed=1)
    always = rand(1, 1, WIDTH, seed=2)  # the text's norm: one row for all, beside gates by segment
    options = {"split": split, "eps": 1e-6, "dtype": dtype, "fp8": fp8}
    for update in (None, rand(BATCH, TOKENS, WIDTH, seed=3, dtype=dtype), rand(BATCH, 4, WIDTH, seed=4, dtype=dtype)):
        for gate in (None, rows[:, :, 2]):
            for shift, scale in ((rows[:, :, 3], rows[:, :, 4]), (always, -always)):
                expected = Kernels().residual_norm(x, update, gate, shift, scale, **options)
                actual = kernels(name).residual_norm(x, update, gate, shift, scale, **options)
                close(actual[0], expected[0])
                close(actual[1], expected[1])


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("segments", "split"), [(1, 0), (2, 3)])
def test_norm_turn(name: str, segments: int, split: int, dtype: torch.dtype) -> None:
    qkv, q_weight, k_weight = rand(BATCH, TOKENS, 3 * WIDTH, dtype=dtype), rand(WIDTH), rand(segments, WIDTH, seed=1)
    turn = rotation(torch.arange(7, device=DEVICE), (1, 1), (8, 8, 8), 100.0)
    before = KeysValues(*(rand(BATCH, HEADS, 5, WIDTH // HEADS, seed=seed, dtype=dtype) for seed in (2, 3)))
    options = {"heads": HEADS, "split": split, "eps": 1e-6}
    for past in (None, before):
        expected = Kernels().norm_turn(qkv, q_weight, k_weight, turn, past, **options)
        actual = kernels(name).norm_turn(qkv, q_weight, k_weight, turn, past, **options)
        close(actual[0], expected[0])
        close(actual[1].keys, expected[1].keys)
        assert torch.equal(actual[1].values, expected[1].values)


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows(name: str, dtype: torch.dtype) -> None:
    x, weight = rand(BATCH, TOKENS, WIDTH, dtype=dtype), rand(WIDTH, seed=1)
    close(kernels(name).rms_norm(x, weight, 1e-6), Kernels().rms_norm(x, weight, 1e-6))
    close(kernels(name).quantise(x), Kernels().quantise(x))
    for approximate in ("none", "tanh"):
        close(kernels(name).gelu8(x, approximate), Kernels().gelu8(x, approximate))


@pytest.mark.skipif(not CUDA, reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("name", OTHERS)
def test_rows_of_a_real_size(name: str) -> None:
    """Indices beyond what small shapes reach."""
    x, rows = rand(1, 9464, 1536, dtype=torch.bfloat16), rand(2, 1, 6, 1536, seed=1)
    options = {"split": 3640, "eps": 1e-6, "dtype": torch.bfloat16}
    arguments = (x, rand(1, 5824, 1536, seed=2, dtype=torch.bfloat16), rows[:, :, 2], rows[:, :, 3], rows[:, :, 4])
    for actual, expected in zip(
        kernels(name).residual_norm(*arguments, **options), Kernels().residual_norm(*arguments, **options)
    ):
        assert disagreement(actual, expected) < 4e-3
    wide = rand(1, 9464, 8960, dtype=torch.bfloat16)
    assert (
        disagreement(kernels(name).gelu8(wide, "tanh").dequantised(), Kernels().gelu8(wide, "tanh").dequantised())
        < 1e-2
    )


def test_the_plain_kernels_are_the_layers_own_arithmetic() -> None:
    x, norm = rand(2, 5, 8), torch.nn.RMSNorm(8, eps=1e-6)
    torch.nn.init.normal_(norm.weight)
    norm = norm.to(DEVICE)
    torch.testing.assert_close(Kernels().rms_norm(x, norm.weight, 1e-6), _rms_norm(norm, x))
    rows = rand(2, 2, 3, 8, seed=1)
    sum_, normed = Kernels().residual_norm(
        x, rand(2, 3, 8, seed=2), rows[:, :, 0], rows[:, :, 1], rows[:, :, 2], split=2, eps=1e-6, dtype=x.dtype
    )
    assert torch.equal(sum_[:, :2], x[:, :2])
    torch.testing.assert_close(sum_[:, 2:], x[:, 2:] + rand(2, 3, 8, seed=2) * rows[1, :, 0][:, None])
    for segment, tokens in ((0, slice(0, 2)), (1, slice(2, 5))):
        expected = torch.nn.functional.layer_norm(sum_[:, tokens], (8,), eps=1e-6)
        expected = rows[segment, :, 1][:, None] + expected * (1 + rows[segment, :, 2][:, None])
        torch.testing.assert_close(normed[:, tokens], expected)
