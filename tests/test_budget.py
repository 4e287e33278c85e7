"""Predicted costs: known arithmetic is counted right, layers and latents are drawn on, and plans get thriftier."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from flowshade import budget
from flowshade.budget import GIB, Cost, card, count, plan
from flowshade.cli import main
from flowshade.errors import FlowshadeError
from flowshade.inverse.cosmos import CosmosConfig, TokenizerConfig
from flowshade.renderer.upstream import flash_transformer

FLASH = flash_transformer(
    latent_channels=4, buffer_channels=20, heads=2, head_dim=12, rope_dims=(4, 4, 4), layers=6, ffn_dim=32,
    text_dim=16, freq_dim=16,
)  # fmt: skip

SMALL_COSMOS = CosmosConfig(heads=2, head_dim=12, layers=5, mlp_ratio=2, modulation_rank=4, context_dim=6)
SMALL_TOKENIZER = TokenizerConfig(encoder_widths=(4, 4, 6, 6), decoder_widths=(4, 6, 6, 6), layers=1)


def meta(*shape: int) -> Tensor:
    return torch.empty(shape, device="meta")


def test_known_arithmetic() -> None:
    weight, kernel = meta(5, 7), meta(4, 3, 3, 3)
    assert count(lambda: F.linear(meta(2, 7), weight)).linear == 2 * 2 * 7 * 5
    assert count(lambda: F.conv2d(meta(1, 3, 8, 8), kernel, padding=1)).conv == 2 * 64 * 9 * 3 * 4
    queries, keys = meta(1, 2, 10, 8), meta(1, 2, 30, 8)
    cost = count(lambda: F.scaled_dot_product_attention(queries, keys, keys))
    assert cost.attention == 2 * (2 * 2 * 10 * 30 * 8)
    assert cost.peak == queries.numel() * 4  # not the 10 x 30 weights


def test_the_peak_is_what_lives_at_once() -> None:
    def chain() -> Tensor:
        x = meta(1000)
        for _ in range(5):
            x = x + 1  # one made while the one before lives
        return x

    def kept() -> list[Tensor]:
        return [meta(1000) + 1 for _ in range(5)]

    assert count(chain).peak == 2 * 4000
    assert count(kept).peak >= 5 * 4000
    weight = meta(50, 100)
    assert count(lambda: F.linear(meta(10, 100).view(10, 100)[2:5], weight)).peak == 4 * (1000 + 3 * 50)  # no views


def test_layers_are_drawn_on() -> None:
    def cost_of(layers: int) -> tuple[Cost, float]:
        config = dataclasses.replace(FLASH, layers=layers, ffn_dim=256)  # layers wide enough to hold the peak
        return budget._step_cost(config, 4, (8, 12), torch.float32)

    (drawn, drawn_bytes), (whole, whole_bytes) = budget._drawn_on(cost_of, 6), cost_of(6)
    assert drawn_bytes == whole_bytes
    assert (drawn.linear, drawn.attention, drawn.conv) == (whole.linear, whole.attention, whole.conv)
    assert drawn.peak == pytest.approx(whole.peak, rel=0.02)


def test_a_window_costs_what_its_shapes_say() -> None:
    """The 1.3B network by hand: tokens of upstream.md times the layers' weights, and attention over all of them."""
    config = flash_transformer(layers=2)
    cost, _ = budget._step_cost(config, 4, (56, 104), torch.bfloat16)
    present, past, width = 4 * 1456, 3640, 1536
    per_layer = 4 * width * width + 2 * width * 8960  # self-attention and feed-forward
    cross = 2 * width * width * present + 2 * width * width * 512
    patches = 96 * width * (4 * (present + 2 * 1456) + 32 * 364 + 256 * 364)  # short, mid and long ones of the past
    expected = 2 * (2 * (per_layer * (present + past) + cross) + patches)
    assert cost.linear == pytest.approx(expected, rel=0.02)  # text, time and output beside it
    attention = 2 * 4 * width * ((present + past) ** 2 + present * 512)
    assert cost.attention == attention


def test_plans_get_thriftier_until_they_fit() -> None:
    ample, fits = plan("alaya-forward", size=(480, 832), frames=81)
    assert fits and ample.settings["window"] == 81
    assert [stage.name for stage in ample.stages] == ["text encoder", "encode buffers", "denoise", "decode"]
    peaks = []
    for gigabytes in (24, 16, 12, 8):
        found, fits = plan("alaya-forward", size=(480, 832), frames=81, memory=gigabytes * GIB)
        assert fits and found.peak <= gigabytes * GIB
        peaks.append(found.peak)
    assert peaks == sorted(peaks, reverse=True)
    assert peaks[-1] < peaks[0]
    _, fits = plan("alaya-forward", size=(480, 832), frames=81, memory=2 * GIB)
    assert not fits
    longer, _ = plan("alaya-forward", size=(480, 832), frames=400)
    assert longer.seconds(card("h200")) > 4 * ample.seconds(card("h200"))
    assert longer.peak == ample.peak  # windows: memory does not grow with the clip


@pytest.mark.parametrize("model", ["compact", "alaya-flash"])
def test_streams_cost_by_the_frame(model: str) -> None:
    short, long = (plan(model, size=(64, 96), frames=frames)[0] for frames in (16, 160))
    rates = dataclasses.replace(card("rtx-4090"), name="x")
    assert long.peak == short.peak
    stages = [[stage for stage in found.stages if stage.name != "text encoder"] for found in (short, long)]
    seconds = [sum(stage.seconds(rates) for stage in part) for part in stages]
    assert seconds[1] == pytest.approx(10 * seconds[0])


def test_the_command(capsys) -> None:
    options = ["budget", "--model", "alaya-flash", "--size", "64x96", "--frames", "16", "--card", "rtx-4090"]
    assert main([*options, "--gpu-memory", "8"]) == 0
    out = capsys.readouterr().out
    assert "text-device cpu" in out and "denoise" in out and "peak" in out
    assert main([*options, "--gpu-memory", "1"]) == 2
    assert "GiB even so; give a smaller --size" in capsys.readouterr().err
    assert main(["budget", "--card", "gtx"]) == 2
    assert "unknown card 'gtx'; expected one of h200" in capsys.readouterr().err
    with pytest.raises(FlowshadeError, match="sizes in multiples of 16"):
        plan("alaya-flash", size=(50, 96), frames=16)


def test_this_machine_is_measured() -> None:
    rates = budget.measure_rates(torch.device("cpu"))
    assert min(rates.linear, rates.conv, rates.attention) > 1e8
    assert rates.memory is None


def test_the_inverse_costs_what_its_shapes_say() -> None:
    """The 7B by hand: tokens times a layer's matrices, and attention over all tokens; the buffer's costs nothing."""
    config = CosmosConfig(layers=2)
    cost, weights = budget._cosmos_step_cost(config, 8, (88, 160), torch.bfloat16)
    tokens, width = 8 * 44 * 80, 4096
    per_token = 2 * (4 * width**2 + 2 * 4 * width**2) + (132 + 64) * width  # two layers; patches in and out
    assert cost.linear == pytest.approx(2 * tokens * per_token, rel=0.001)
    assert cost.attention == 2 * 4 * width * tokens**2
    assert cost.peak > 2 * 4 * tokens * width  # the widest layer alone
    assert weights > 2 * 2 * 16 * width**2


def test_an_inverse_s_plans() -> None:
    def plans(frames: int) -> list[budget.Plan]:
        found = budget.inverse_plans((64, 96), frames, torch.float32, None, SMALL_COSMOS, SMALL_TOKENIZER)
        return list(found)

    short, long = plans(57), plans(57 + 40 * 3)
    assert [stage.name for stage in short[0].stages] == ["encode video", "denoise", "decode"]
    assert [plan.peak for plan in short] == sorted((plan.peak for plan in short), reverse=True)
    assert [plan.peak for plan in long] == [plan.peak for plan in short]
    rates = card("h200")
    assert long[0].seconds(rates) == pytest.approx(4 * short[0].seconds(rates))
    assert plans(58)[0].seconds(rates) == pytest.approx(2 * short[0].seconds(rates))
    assert [plan.settings["offload"] for plan in short] == ["no", "yes", "yes", "yes"]
    with pytest.raises(FlowshadeError, match="up to 1920x1920 pixels, and 2160x3840 were asked for"):
        plan("cosmos-inverse", size=(2160, 3840), frames=1)
