"""Flash, tiny and random: streamed equals whole, state does not grow, the first frame and the prompt are kept."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from flowshade.codec.tiny import GroupedEncoderConfig, TinyDecoderConfig
from flowshade.renderer.flash import FlashConfig, FlashRenderer
from flowshade.renderer.transformer import TextContext
from flowshade.renderer.upstream import BUFFERS, flash_transformer

CONFIG = FlashConfig(
    transformer=flash_transformer(
        latent_channels=4, buffer_channels=20, heads=2, head_dim=12, rope_dims=(4, 4, 4), layers=2, ffn_dim=32,
        text_dim=16, freq_dim=16, amplify_history=True,
    ),
    encoder=GroupedEncoderConfig(width=4, blocks=1, latent_channels=4),
    decoder=TinyDecoderConfig(latent_channels=4, widths=(8, 6, 4, 4), blocks=1),
    steps=2,
)  # fmt: skip


@pytest.fixture(scope="module")
def renderer() -> FlashRenderer:
    torch.manual_seed(0)
    model = FlashRenderer(CONFIG).eval().requires_grad_(False)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3 if parameter.ndim == 1 else 1.2 / parameter[0].numel() ** 0.5)
    model.set_text(text(1))
    return model


def text(seed: int) -> TextContext:
    return TextContext(tokens=torch.randn(1, 6, 16, generator=torch.Generator().manual_seed(seed)))


def clip(frames: int, size: tuple[int, int] = (32, 48)) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randint(0, 256, (frames, 3, *size), generator=generator, dtype=torch.uint8) for name in BUFFERS}


def pushed(renderer: FlashRenderer, planes: dict[str, Tensor], window: int, seed: int = 0) -> Tensor:
    renderer.reset(seed)
    starts = range(0, len(planes["depth"]), window)
    return torch.cat([renderer.push({n: v[s : s + window] for n, v in planes.items()}).rgb for s in starts])


@pytest.mark.parametrize(("frames", "window"), [(32, 16), (24, 4), (14, 8)])
def test_streamed_equals_whole(renderer: FlashRenderer, frames: int, window: int) -> None:
    planes = clip(frames)
    streamed = pushed(renderer, planes, window, seed=3)
    whole = renderer.render(planes, seed=3, window=window)
    assert streamed.shape == (frames, 3, 32, 48)
    assert streamed.std() > 0.01
    torch.testing.assert_close(streamed, whole.rgb, atol=1e-5, rtol=1e-5)


def test_any_size_is_padded_and_cut(renderer: FlashRenderer) -> None:
    assert pushed(renderer, clip(6, (20, 35)), 4).shape == (6, 3, 20, 35)


def test_state_does_not_grow(renderer: FlashRenderer) -> None:
    planes, sizes = clip(4), []
    renderer.reset()
    for _ in range(24):
        renderer.push(planes, steps=1)
        sizes.append(renderer.state_bytes())
    assert len(set(sizes)) == 1
    assert renderer.latent_index == 24


def test_the_first_frame_stays_in_sight(renderer: FlashRenderer) -> None:
    renderer.reset()
    renderer.push(clip(4), steps=1)
    first = renderer.memory.view().latents[:, :, -1:]
    for _ in range(20):
        renderer.push(clip(4), steps=1)
    history = renderer.memory.view()
    assert torch.equal(history.first.latents, first)
    assert not any(torch.equal(history.latents[:, :, i : i + 1], first) for i in range(19))


def test_seed_prompt_steps_and_past_matter(renderer: FlashRenderer) -> None:
    planes = clip(8)
    plain = pushed(renderer, planes, 4)
    assert torch.equal(plain, pushed(renderer, planes, 4))
    assert not torch.equal(plain, pushed(renderer, planes, 4, seed=1))
    renderer.reset()
    renderer.push({name: 255 - value[:4] for name, value in planes.items()})
    assert not torch.allclose(renderer.push({name: value[4:] for name, value in planes.items()}).rgb, plain[4:])
    renderer.set_text(text(2))
    other = pushed(renderer, planes, 4)
    renderer.set_text(text(1))
    assert not torch.equal(plain, other)


def test_mistakes(renderer: FlashRenderer) -> None:
    planes = clip(4)
    del planes["albedo"]
    with pytest.raises(ValueError, match="lacks albedo; this model takes all of albedo, depth"):
        renderer.push(planes)
    with pytest.raises(ValueError, match="no prompt; call set_text"):
        FlashRenderer(CONFIG).push(clip(4))
    with pytest.raises(ValueError, match="makes 15 channels and the transformer takes 20"):
        FlashConfig(transformer=CONFIG.transformer, encoder=GroupedEncoderConfig(latent_channels=3))


def test_the_default_is_upstreams_arithmetic() -> None:
    config = FlashConfig()
    assert [round(1000 * sigma, 3) for sigma in config.schedule.sigmas(4)] == [1000, 937.5, 833.333, 625, 0]
    assert config.transformer.history_tokens(56, 104) == 2 * 1456 + 364 + 364
