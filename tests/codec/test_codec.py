"""Encoders and the decoder: whole-clip equals streamed, nulls, statistics."""

import dataclasses

import pytest
import torch
from torch import nn

from flowshade.codec.decoder import GuidedDecoder
from flowshade.codec.encoder import BufferEncoder, BufferEncoderConfig, PictureEncoder
from flowshade.codec.encoding import EncodingProfile
from flowshade.presets import compact_renderer, debug_picture_encoder, debug_renderer
from flowshade.types import Planes

PROFILE = EncodingProfile()
CONFIG = debug_renderer()


def make_planes(batch: int = 2, frames: int = 12, height: int = 32, width: int = 48, seed: int = 0) -> Planes:
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(batch, frames, PROFILE.planes, height, width, generator=generator) * 2 - 1
    return Planes(values=values, present=torch.ones(batch, len(PROFILE.buffers), dtype=torch.bool))


def make_latents(planes: Planes, seed: int = 1) -> torch.Tensor:
    batch, frames, _, height, width = planes.values.shape
    shape = (batch, CONFIG.decoder.latent_channels, frames // 4, height // 8, width // 8)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def frames_of(planes: Planes, start: int, stop: int) -> Planes:
    return Planes(values=planes.values[:, start:stop], present=planes.present)


def awake(module: nn.Module) -> nn.Module:
    """Parameters at random, none zero, so that nothing is silent."""
    torch.manual_seed(0)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.15)
    return module


@pytest.fixture
def encoder() -> BufferEncoder:
    encoder = awake(BufferEncoder(CONFIG.encoder, PROFILE))
    assert isinstance(encoder, BufferEncoder)
    return encoder


@pytest.fixture
def decoder() -> GuidedDecoder:
    decoder = awake(GuidedDecoder(CONFIG.decoder, PROFILE))
    assert isinstance(decoder, GuidedDecoder)
    return decoder


@pytest.mark.parametrize("window", [4, 8, 12])
def test_encoder_streamed_equals_whole(encoder: BufferEncoder, window: int) -> None:
    planes = make_planes()
    with torch.no_grad():
        whole = encoder(planes)
        parts = [encoder(frames_of(planes, i, min(i + window, 12))) for i in range(0, 12, window)]
    assert whole.shape == (2, CONFIG.encoder.channels, 3, 4, 6)
    torch.testing.assert_close(torch.cat(parts, 2), whole, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("window", [1, 2, 3])
def test_decoder_streamed_equals_whole(decoder: GuidedDecoder, window: int) -> None:
    planes = make_planes()
    latents = make_latents(planes)
    with torch.no_grad():
        whole = decoder(latents, planes)
        state, parts = None, []
        for i in range(0, 3, window):
            part, state = decoder.step(
                latents[:, :, i : i + window], frames_of(planes, 4 * i, 4 * min(i + window, 3)), state
            )
            parts.append(part)
    assert whole.shape == (2, 12, 3, 32, 48)
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-5, atol=1e-5)


def test_frame_by_frame_equals_batched(encoder: BufferEncoder, decoder: GuidedDecoder) -> None:
    planes = make_planes()
    planes.present[0, 2] = False
    latents = make_latents(planes)
    batched = encoder(planes), decoder(latents, planes)  # with gradients: the plain path
    with torch.no_grad():
        framewise = encoder(planes), decoder(latents, planes)
    for plain, fast in zip(batched, framewise):
        assert plain.requires_grad and not fast.requires_grad
        torch.testing.assert_close(fast, plain.detach(), rtol=1e-5, atol=1e-5)


def test_decoder_looks_one_latent_back_and_no_further(decoder: GuidedDecoder) -> None:
    planes = make_planes()
    latents = make_latents(planes)
    changed = latents.clone()
    changed[:, :, 0] += 1
    with torch.no_grad():
        difference = (decoder(latents, planes) - decoder(changed, planes)).abs().amax((0, 2, 3, 4))
    assert difference[:8].min() > 1e-3
    assert difference[8:].max() == 0


@torch.no_grad()
def test_a_missing_plane_is_its_constant_everywhere(decoder: GuidedDecoder) -> None:
    """What the decoder spares itself: planes at full size with the constants in their places."""
    planes = make_planes()
    planes.present[:, ::2] = False
    values, present = planes.values.flatten(0, 1), planes.present.repeat_interleave(12, 0)
    quarter, half, albedo, emission = decoder._guide(values, present)
    null = decoder.null_planes[:, None, None]
    guide = torch.where(present[:, decoder.buffer_of_plane][:, :, None, None], values, null)
    torch.testing.assert_close(quarter, decoder.guide_quarter(guide))
    torch.testing.assert_close(half, decoder.guide_half(guide))
    torch.testing.assert_close(albedo, (guide[:, PROFILE.slices["albedo"]] + 1) / 2)
    torch.testing.assert_close(emission, (guide[:, PROFILE.slices["emission"]] + 1) / 2)


@torch.no_grad()
def test_what_refines_the_decoder_begins_as_nothing() -> None:
    decoder = awake(GuidedDecoder(dataclasses.replace(CONFIG.decoder, refined=False), PROFILE)).eval()
    refined = GuidedDecoder(CONFIG.decoder, PROFILE).eval()
    state = {**refined.state_dict(), **decoder.state_dict()}
    added = state.keys() - decoder.state_dict().keys()
    assert added and not any(state[name].any() for name in added)
    refined.load_state_dict(state)
    planes = make_planes(batch=1, frames=4)
    latents = make_latents(planes)
    plain = decoder(latents, planes)
    torch.testing.assert_close(refined(latents, planes), plain, rtol=0, atol=1e-6)
    assert refined.glow is not None and refined.spread is not None
    torch.nn.init.ones_(refined.glow.gain.bias)
    emission = (planes.values[:, :, PROFILE.slices["emission"]] + 1) / 2
    torch.testing.assert_close(refined(latents, planes), plain + emission)
    torch.nn.init.normal_(refined.spread.affinity.weight)
    assert not torch.allclose(refined(latents, planes), plain + emission)


@pytest.mark.parametrize("buffer", range(len(PROFILE.buffers)))
def test_absent_buffers_are_ignored_and_nulls_matter(
    encoder: BufferEncoder, decoder: GuidedDecoder, buffer: int
) -> None:
    planes = make_planes(batch=1, frames=4)
    latents = make_latents(planes)
    poisoned = planes.values.clone()
    poisoned[:, :, PROFILE.slices[PROFILE.names[buffer]]] = 100.0
    absent = planes.present.clone()
    absent[:, buffer] = False
    with torch.no_grad():
        without = Planes(values=planes.values, present=absent)
        poison = Planes(values=poisoned, present=absent)
        assert torch.equal(encoder(poison), encoder(without))
        assert torch.equal(decoder(latents, poison), decoder(latents, without))
        assert (encoder(without) - encoder(planes)).abs().max() > 1e-3
        assert (decoder(latents, without) - decoder(latents, planes)).abs().max() > 1e-3


def test_a_new_decoder_shows_the_albedo() -> None:
    torch.manual_seed(0)
    planes = make_planes(batch=1, frames=4)
    with torch.no_grad():
        rgb = GuidedDecoder(compact_renderer().decoder, PROFILE)(torch.randn(1, 32, 1, 4, 6), planes)
    albedo = (planes.values[:, :, PROFILE.slices["albedo"]] + 1) / 2
    assert (rgb - albedo).abs().mean() < 0.1


def test_normalised_latents_decode_as_raw_ones(decoder: GuidedDecoder) -> None:
    planes = make_planes()
    raw = make_latents(planes) * 3 + 1
    with torch.no_grad():
        expected = decoder(raw, planes)
        decoder.set_statistics(raw.mean((0, 2, 3, 4)), raw.std((0, 2, 3, 4)))
        latents = decoder.normalise(raw)
        torch.testing.assert_close(latents.std((0, 2, 3, 4)), torch.ones(8), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(decoder(latents, planes), expected, rtol=1e-4, atol=1e-4)


def test_gradients_reach_every_parameter(encoder: BufferEncoder, decoder: GuidedDecoder) -> None:
    planes = make_planes()
    planes.present[0] = False
    pictures = PictureEncoder(debug_picture_encoder(), PROFILE)
    latents = pictures(torch.rand(2, 12, 3, 32, 48), planes)
    (decoder(latents, planes).square().mean() + encoder(planes).square().mean()).backward()
    for module in (pictures, encoder, decoder):
        for name, parameter in module.named_parameters():
            assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


def test_picture_encoder_sees_pictures_and_buffers() -> None:
    torch.manual_seed(0)
    pictures = PictureEncoder(debug_picture_encoder(), PROFILE)
    planes, rgb = make_planes(), torch.rand(2, 12, 3, 32, 48)
    with torch.no_grad():
        latents = pictures(rgb, planes)
        assert latents.shape == (2, 8, 3, 4, 6)
        assert not torch.allclose(pictures(1 - rgb, planes), latents)
        assert not torch.allclose(pictures(rgb, make_planes(seed=5)), latents)


def test_wrong_sizes_say_what_is_expected(encoder: BufferEncoder, decoder: GuidedDecoder) -> None:
    with pytest.raises(ValueError, match="multiples of 4"):
        encoder(make_planes(frames=6))
    with pytest.raises(ValueError, match="multiples of 8"):
        encoder(make_planes(height=36))
    planes = make_planes()
    with pytest.raises(ValueError, match="GuidedDecoder got planes"):
        decoder(make_latents(planes)[:, :, :2], planes)
    with pytest.raises(ValueError, match="one branch a buffer"):
        BufferEncoder(BufferEncoderConfig(branches=(4, 4)), PROFILE)
