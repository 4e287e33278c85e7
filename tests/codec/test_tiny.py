"""The small codecs of Flash: streamed equals whole, branches do not see each other, TAEHV's naming loads."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flowshade.codec.tiny import GroupedEncoder, GroupedEncoderConfig, TinyDecoder, TinyDecoderConfig

DECODER = TinyDecoderConfig(latent_channels=4, widths=(12, 8, 6, 5), blocks=2)
ENCODER = GroupedEncoderConfig(buffers=3, width=8, blocks=2, patch=4, latent_channels=4)


def shaken(model: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2 if parameter.ndim == 1 else 1.2 / parameter[0].numel() ** 0.5)
    return model.eval().requires_grad_(False)


def plain_decoder(model: TinyDecoder, latents: Tensor) -> Tensor:
    """One frame after the other, from the definition, with the steps in TAEHV's order."""
    frames = [F.relu(model.conv_in(3 * torch.tanh(frame / 3))) for frame in latents.unbind(2)]
    for stage in model.stages:
        for block in stage.blocks:
            pasts = [torch.zeros_like(frames[0]), *frames[:-1]]
            frames = [F.relu(x + block.conv(torch.cat([x, past], 1))) for x, past in zip(frames, pasts)]
        frames = [F.interpolate(x, scale_factor=2, mode="nearest") for x in frames]
        frames = [part for x in frames for part in stage.grow(x).chunk(stage.frames, 1)]
        frames = [stage.conv(x) for x in frames]
    return torch.stack([model.conv_out(F.relu(x)) for x in frames], 1)


def test_the_decoder_is_its_definition() -> None:
    model = shaken(TinyDecoder(DECODER))
    latents = torch.randn(2, 4, 3, 4, 5)
    rgb = model(latents)
    assert rgb.shape == (2, 12, 3, 32, 40)
    assert rgb.std() > 0.01
    torch.testing.assert_close(rgb, plain_decoder(model, latents), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("runs", [(1, 1, 1, 1), (2, 2), (1, 3)])
def test_a_streamed_decoder_equals_the_whole(runs: tuple[int, ...]) -> None:
    model, latents, state = shaken(TinyDecoder(DECODER)), torch.randn(2, 4, 4, 4, 5), {}
    streamed = torch.cat([model.step(run, state) for run in latents.split(list(runs), 2)], 1)
    torch.testing.assert_close(streamed, model(latents), atol=1e-6, rtol=1e-5)
    assert not torch.allclose(model(latents[:, :, 2:]), streamed[:, 8:])  # the past matters


@pytest.mark.parametrize("runs", [(4, 4, 4), (8, 4)])
def test_a_streamed_encoder_equals_the_whole(runs: tuple[int, ...]) -> None:
    model, buffers, state = shaken(GroupedEncoder(ENCODER)), torch.rand(2, 12, 9, 8, 12) * 2 - 1, {}
    streamed = torch.cat([model(run, state) for run in buffers.split(list(runs), 1)], 2)
    assert streamed.shape == (2, 12, 3, 2, 3)
    torch.testing.assert_close(streamed, model(buffers), atol=1e-6, rtol=1e-5)
    assert not torch.allclose(model(buffers[:, 8:]), streamed[:, :, 2:])


def test_branches_do_not_see_each_other() -> None:
    model, buffers = shaken(GroupedEncoder(ENCODER)), torch.rand(1, 4, 9, 8, 12)
    changed = buffers.clone()
    changed[:, :, 3:6] = 0
    before, after = model(buffers).unflatten(1, (3, 4)), model(changed).unflatten(1, (3, 4))
    assert torch.equal(before[:, [0, 2]], after[:, [0, 2]])
    assert not torch.allclose(before[:, 1], after[:, 1])


def test_sizes_are_those_published() -> None:
    with torch.device("meta"):
        encoder, decoder = GroupedEncoder(), TinyDecoder()
    sizes = [4 * sum(value.numel() for value in model.state_dict().values()) / 1e6 for model in (encoder, decoder)]
    assert 35 < sizes[0] < 45  # upstream's file: 37 MB
    assert 15 < sizes[1] < 45  # 45 MB with an encoder that is left out here


def test_a_torn_window_is_refused() -> None:
    with pytest.raises(ValueError, match="multiples of 4, 9 planes and sizes in multiples of 4"):
        GroupedEncoder(ENCODER)(torch.zeros(1, 6, 9, 8, 12))
