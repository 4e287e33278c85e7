"""Our Wan VAE against diffusers', tiny and random; whole, streamed and tiled."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from flowshade.codec.wan_vae import Tiling, WanVAE, WanVAEConfig

SMALL = {"base_dim": 8, "z_dim": 4, "dim_mult": (1, 2, 2), "num_res_blocks": 1}
CONFIG = WanVAEConfig(
    **SMALL,
    temporal_downsample=(True, True),
    latents_mean=(0.1, -0.2, 0.3, 0.0),
    latents_std=(1.5, 0.7, 2.0, 1.0),
)


@pytest.fixture(scope="module")
def vae() -> WanVAE:
    torch.manual_seed(0)
    model = WanVAE(CONFIG).eval().requires_grad_(False)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5 if parameter.ndim == 1 else 1.5 / parameter[0].numel() ** 0.5)
    return model


@pytest.fixture(scope="module")
def rgb() -> Tensor:
    return torch.rand(1, 3, 13, 16, 24, generator=torch.Generator().manual_seed(1)) * 2 - 1


def statistics() -> tuple[Tensor, Tensor]:
    mean, std = (torch.tensor(values)[:, None, None, None] for values in (CONFIG.latents_mean, CONFIG.latents_std))
    return mean, std


def test_equals_diffusers(vae: WanVAE, rgb: Tensor) -> None:
    pytest.importorskip("diffusers")
    from diffusers import AutoencoderKLWan

    settings = SMALL | {"dim_mult": list(SMALL["dim_mult"])}
    theirs = AutoencoderKLWan(**settings, temperal_downsample=[True, True]).eval()
    theirs.load_state_dict(vae.state_dict(), strict=True)
    mean, std = statistics()
    with torch.no_grad():
        expected = (theirs.encode(rgb).latent_dist.mode() - mean) / std
        pictures = theirs.decode(expected * std + mean).sample
    assert expected.std() > 0.1 and pictures.std() > 0.1
    # Float error; upstream's own two implementations differ by 1e-7 and 7e-6.
    torch.testing.assert_close(vae.encode(rgb), expected, atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(vae.decode(expected), pictures, atol=1e-5, rtol=1e-5)


def test_the_defaults_are_wan_2_1() -> None:
    pytest.importorskip("diffusers")
    from diffusers import AutoencoderKLWan

    with torch.device("meta"):
        theirs, ours = AutoencoderKLWan(), WanVAE()
    shapes = {name: value.shape for name, value in theirs.state_dict().items()}
    assert {name: value.shape for name, value in ours.state_dict().items()} == shapes
    assert (list(ours.config.latents_mean), list(ours.config.latents_std)) == (
        theirs.config.latents_mean,
        theirs.config.latents_std,
    )


@pytest.mark.parametrize("runs", [(1, 4, 4, 4), (1, 12), (5, 8), (13,)])
def test_streamed_encoding_equals_whole(vae: WanVAE, rgb: Tensor, runs: tuple[int, ...]) -> None:
    state = {}
    streamed = torch.cat([vae.encode_next(run, state) for run in rgb.split(list(runs), 2)], 2)
    torch.testing.assert_close(streamed, vae.encode(rgb), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("runs", [(1, 1, 1, 1), (1, 3), (2, 2)])
def test_streamed_decoding_equals_whole(vae: WanVAE, runs: tuple[int, ...]) -> None:
    latents, state = torch.randn(1, 4, 4, 4, 6, generator=torch.Generator().manual_seed(2)), {}
    whole = vae.decode(latents)
    streamed = torch.cat([vae.decode_next(run, state) for run in latents.split(list(runs), 2)], 2)
    assert whole.shape == (1, 3, 13, 16, 24)
    torch.testing.assert_close(streamed.clamp(-1, 1), whole, atol=1e-6, rtol=1e-5)


def test_one_pass_over_all_frames_equals_frame_by_frame(vae: WanVAE, rgb: Tensor) -> None:
    once = vae.quant_conv(vae.encoder(rgb, {}), {})
    by_frame = vae.encode(rgb)
    mean, std = statistics()
    torch.testing.assert_close((once.chunk(2, 1)[0] - mean) / std, by_frame, atol=1e-5, rtol=1e-5)


def test_later_frames_change_no_earlier_latent(vae: WanVAE, rgb: Tensor) -> None:
    torch.testing.assert_close(vae.encode(rgb[:, :, :5]), vae.encode(rgb)[:, :, :2], atol=1e-6, rtol=1e-5)


def test_tiles_are_blended_by_linear_ramps(vae: WanVAE) -> None:
    """Against the definition, written out for one tile border: two tiles side by side."""
    latents = torch.randn(1, 4, 2, 4, 6, generator=torch.Generator().manual_seed(3))
    tiled = vae.decode(latents, tiling=Tiling(size=(4, 4), stride=(4, 2)))
    left, right = (vae.decode_next(latents[..., part], {}) for part in (slice(0, 4), slice(2, 6)))
    rise = (torch.arange(8) + 1) / 8  # two latent pixels of overlap, four pixels each
    middle = (left[..., 8:] * rise.flip(0) + right[..., :8] * rise) / (rise + rise.flip(0))
    expected = torch.cat([left[..., :8], middle, right[..., 8:]], -1).clamp(-1, 1)
    torch.testing.assert_close(tiled, expected, atol=1e-6, rtol=1e-5)
    assert (tiled - vae.decode(latents)).abs().max() > 1e-3  # tiles do not see each other


def test_tiles_that_cover_everything_change_nothing(vae: WanVAE, rgb: Tensor) -> None:
    torch.testing.assert_close(vae.encode(rgb, tiling=Tiling()), vae.encode(rgb), atol=1e-6, rtol=1e-5)


def test_tile_origins_stop_at_the_end() -> None:
    assert len(Tiling().origins(60, 104)) == 9  # upstream's default size: 2.25 times the work
    assert Tiling(size=(4, 4), stride=(2, 3)).origins(5, 4) == [(0, 0), (2, 0)]
    with pytest.raises(ValueError, match="strides from 1 to the size"):
        Tiling(size=(4, 4), stride=(5, 4))


def test_wrong_clips_are_refused(vae: WanVAE, rgb: Tensor) -> None:
    with pytest.raises(ValueError, match=r"expected 4 n \+ 1 frames and sizes in multiples of 4"):
        vae.encode(rgb[:, :, :12])
