"""The sRGB curve against the standard's own formula in float64."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flowshade.color import from_bytes, linear_to_srgb, srgb_to_linear, to_bytes


def test_curve_is_the_standards() -> None:
    linear = np.linspace(0, 1, 4097)
    expected = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    # float32 through logarithm and exponential: a few units in the last place.
    torch.testing.assert_close(linear_to_srgb(torch.tensor(linear).float()).double(), torch.tensor(expected),
                               rtol=0, atol=1e-6)  # fmt: skip


def test_known_values_and_clamping() -> None:
    linear = torch.tensor([0.0, 0.0031308, 0.2140411, 0.5, 1.0, 7.0, -1.0])
    expected = torch.tensor([0.0, 0.0404499, 0.5, 0.7353570, 1.0, 1.0, 0.0])
    torch.testing.assert_close(linear_to_srgb(linear), expected, rtol=1e-5, atol=1e-6)
    assert srgb_to_linear(torch.tensor([-1.0, 7.0])).tolist() == [0.0, 1.0]


@settings(max_examples=50, deadline=None)
@given(st.floats(0, 1))
def test_inverts_itself(value: float) -> None:
    linear = torch.tensor([value])
    torch.testing.assert_close(srgb_to_linear(linear_to_srgb(linear)), linear, rtol=1e-5, atol=1e-6)


def test_every_byte_survives() -> None:
    display = torch.arange(256) / 255
    assert torch.equal((linear_to_srgb(srgb_to_linear(display)) * 255).round(), torch.arange(256.0))


def test_bytes_are_rounded_clamped_and_come_back() -> None:
    every = torch.arange(256, dtype=torch.uint8)
    assert torch.equal(to_bytes(from_bytes(every)), every)
    odd = torch.tensor([-1.0, 0.4 / 255, 0.6 / 255, 2.0, float("nan"), float("inf"), -float("inf")])
    assert to_bytes(odd).tolist() == [0, 0, 1, 255, 0, 255, 0]
    half = torch.tensor([0.499, 0.501], dtype=torch.bfloat16)  # 255 times these has no exact bfloat16
    assert to_bytes(half).tolist() == (half.double() * 255).round().tolist()
