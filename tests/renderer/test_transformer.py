"""The world transformer and its memory."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

from flowshade.presets import compact_renderer, debug_renderer
from flowshade.renderer.memory import History, HistoryBand, HistoryMemory
from flowshade.renderer.schedule import FlowMatching
from flowshade.renderer.stream import rollout_window
from flowshade.renderer.transformer import HistoryKV, TextContext, TransformerConfig, WorldTransformer

CONFIG = debug_renderer().transformer
FULL = dataclasses.replace(CONFIG, memory="full")
SIZE = (6, 10)


def awake(config: TransformerConfig) -> WorldTransformer:
    """A transformer whose every parameter matters."""
    torch.manual_seed(0)
    model = WorldTransformer(config)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2 if parameter.ndim > 1 else 0.5)
    return model


def volume(batch: int, channels: int, frames: int, seed: int) -> torch.Tensor:
    return torch.randn(batch, channels, frames, *SIZE, generator=torch.Generator().manual_seed(seed))


def inputs(batch: int = 2, frames: int = 2) -> dict:
    generator = torch.Generator().manual_seed(3)
    return {
        "latents": volume(batch, CONFIG.latent_channels, frames, 1),
        "timestep": torch.linspace(300, 900, batch),
        "text": TextContext(tokens=torch.randn(batch, 5, CONFIG.text_dim, generator=generator)),
        "buffers": volume(batch, CONFIG.buffer_channels, frames, 2),
    }


def past(batch: int, frames: int, valid: torch.Tensor | None = None, seed: int = 4) -> History | None:
    latents = volume(batch, CONFIG.latent_channels, frames, seed)
    buffers = volume(batch, CONFIG.buffer_channels, frames, seed + 1)
    return HistoryMemory.from_latents(latents, buffers, valid, capacity=CONFIG.history_frames).view()


@pytest.mark.parametrize("config", [CONFIG, FULL], ids=["one_way", "full"])
def test_a_missing_past_leaves_no_trace(config: TransformerConfig) -> None:
    model, given = awake(config), inputs()
    nowhere = past(2, 7, torch.zeros(2, 7, dtype=torch.bool))
    with torch.no_grad():
        empty = model(**given)
        masked = model(**given, history_kv=model.encode_history(nowhere))
        real = model(**given, history_kv=model.encode_history(past(2, 7)))
    torch.testing.assert_close(masked, empty, rtol=1e-4, atol=1e-4)
    assert (real - empty).abs().max() > 1e-2


@pytest.mark.parametrize("config", [CONFIG, FULL], ids=["one_way", "full"])
@pytest.mark.parametrize("exist", [1, 2, 3, 6])
def test_what_lies_before_a_stream_does_not_matter(config: TransformerConfig, exist: int) -> None:
    model, given = awake(config), inputs()
    true_past = past(2, 7)
    assert true_past is not None and true_past.buffers is not None
    valid = torch.arange(7).expand(2, 7) >= 7 - exist
    poisoned = torch.where(valid[:, None, :, None, None], true_past.latents, torch.nan)
    short = HistoryMemory.from_latents(
        true_past.latents[:, :, -exist:], true_past.buffers[:, :, -exist:], capacity=7
    ).view()
    with torch.no_grad():
        expected = model(**given, history_kv=model.encode_history(short))
        history = History(latents=poisoned, buffers=true_past.buffers, valid=valid)
        actual = model(**given, history_kv=model.encode_history(history))
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("config", [CONFIG, FULL], ids=["one_way", "full"])
def test_a_full_past_needs_no_mask(config: TransformerConfig) -> None:
    model, given = awake(config), inputs()
    whole = past(2, 9)
    assert whole is not None and whole.valid is None and whole.latents.shape[2] == CONFIG.history_frames
    masked = dataclasses.replace(whole, valid=torch.ones(2, 7, dtype=torch.bool))
    with torch.no_grad():
        plain = model(**given, history_kv=model.encode_history(whole))
        torch.testing.assert_close(model(**given, history_kv=model.encode_history(masked)), plain, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("config", [CONFIG, FULL], ids=["one_way", "full"])
def test_a_batch_of_mixed_pasts_equals_one_by_one(config: TransformerConfig) -> None:
    model, given = awake(config), inputs(batch=3)
    valid = torch.arange(7) >= torch.tensor([[7], [4], [0]])
    history = past(3, 7, valid)
    assert history is not None and history.buffers is not None
    sun = torch.tensor([[0.0, 0, 1], [0, 0, 0], [0.6, 0, 0.8]])
    with torch.no_grad():
        together = model(**given, sun=sun, history_kv=model.encode_history(history))
        for i in range(3):
            one = History(
                latents=history.latents[i : i + 1], buffers=history.buffers[i : i + 1], valid=valid[i : i + 1]
            )
            alone = model(
                given["latents"][i : i + 1],
                given["timestep"][i : i + 1],
                TextContext(tokens=given["text"].tokens[i : i + 1]),
                given["buffers"][i : i + 1],
                sun[i : i + 1],
                model.encode_history(one),
            )
            torch.testing.assert_close(together[i : i + 1], alone, rtol=1e-4, atol=1e-4)


def test_the_past_depends_on_itself_alone() -> None:
    """One way: keys and values of the past are those of a past with other text, sun and noise level."""
    model = awake(CONFIG)
    kv = model.encode_history(past(2, 7))
    assert isinstance(kv, HistoryKV) and len(kv.layers) == CONFIG.layers
    tokens = CONFIG.history_tokens(*SIZE)
    assert kv.layers[0].keys.shape == (2, CONFIG.heads, tokens, CONFIG.head_dim)


def test_text_is_masked_cached_and_may_be_empty() -> None:
    model, given = awake(CONFIG), inputs()
    tokens = given["text"].tokens
    padded = torch.cat([tokens, torch.full_like(tokens[:, :2], 9)], 1)
    mask = torch.arange(7).expand(2, 7) < 5
    with torch.no_grad():
        plain = model(**given)
        given["text"] = TextContext(tokens=padded, mask=mask)
        torch.testing.assert_close(model(**given), plain, rtol=1e-4, atol=1e-4)
        given["text"] = model.encode_text(given["text"])
        torch.testing.assert_close(model(**given), plain, rtol=1e-4, atol=1e-4)
        given["text"] = TextContext(tokens=padded, mask=torch.zeros_like(mask))
        empty = model(**given)
    assert empty.isfinite().all() and (empty - plain).abs().max() > 1e-2


def test_sun_and_its_absence_change_the_picture() -> None:
    model, given = awake(CONFIG), inputs()
    up, side = torch.tensor([[0.0, 0, 1]] * 2), torch.tensor([[1.0, 0, 0]] * 2)
    with torch.no_grad():
        unknown = model(**given)
        assert torch.equal(model(**given, sun=torch.zeros(2, 3)), unknown)
        assert (model(**given, sun=up) - unknown).abs().max() > 1e-3
        assert (model(**given, sun=up) - model(**given, sun=side)).abs().max() > 1e-3


def test_embedded_buffers_equal_buffers() -> None:
    model, given = awake(CONFIG), inputs()
    with torch.no_grad():
        plain = model(**given)
        given["buffers"] = model.embed_buffers(given["buffers"])
        torch.testing.assert_close(model(**given), plain)
        joined = torch.cat([inputs()["latents"], inputs()["buffers"]], 1)
        whole = model.patch_embedding(joined).flatten(2).mT
        torch.testing.assert_close(model._embed_window(inputs()["latents"], inputs()["buffers"]), whole)


@pytest.mark.parametrize("config", [CONFIG, FULL], ids=["one_way", "full"])
def test_gradients_reach_every_parameter_and_the_past(config: TransformerConfig) -> None:
    model, given = awake(dataclasses.replace(config, amplify_history=True)), inputs()
    latents = volume(2, 8, 7, 4).requires_grad_()
    history = HistoryMemory.from_latents(latents, volume(2, 16, 7, 5), torch.arange(7).expand(2, 7) > 2, capacity=7)
    sun = torch.tensor([[0.0, 0, 1], [0, 0, 0]])
    result = rollout_window(
        model,
        FlowMatching(),
        given["latents"],
        given["buffers"],
        given["text"],
        sun,
        model.encode_history(history.view()),
        steps=2,
    )
    result.square().mean().backward()
    # With one_way memory the last layer gives keys and values of the past only.
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name
    assert latents.grad is not None and latents.grad[:, :, :3].eq(0).all()
    assert latents.grad[:, :, 3:].abs().amax((0, 1, 3, 4)).min() > 0


def test_autocast_keeps_the_result_close_and_the_type() -> None:
    model, given = awake(CONFIG), inputs()
    for parameter in model.parameters():
        parameter.data.mul_(0.5)
    history = past(2, 7)
    with torch.no_grad():
        plain = model(**given, history_kv=model.encode_history(history))
        with torch.autocast("cpu", torch.bfloat16):
            lower = model(**given, history_kv=model.encode_history(history))
    assert lower.dtype == torch.float32
    assert (lower - plain).norm() / plain.norm() < 0.05


def test_a_new_transformer_is_silent() -> None:
    model = WorldTransformer(CONFIG)
    assert model(**inputs()).abs().max() == 0


def test_compact_sizes() -> None:
    config = compact_renderer().transformer
    assert config.history_tokens(30, 52) <= 250
    assert config.width == 256 and sum(config.rope_dims) == config.head_dim


def test_band_sizes_must_divide() -> None:
    with pytest.raises(ValueError, match="multiple of 4"):
        HistoryBand(frames=6, patch=(2, 2, 2), pool=(2, 1, 1))


def test_errors_say_what_was_expected() -> None:
    model, given = WorldTransformer(CONFIG), inputs()
    with pytest.raises(ValueError, match="Build it with HistoryMemory"):
        model.encode_history(History(latents=volume(1, 8, 3, 0), buffers=volume(1, 16, 3, 0)))
    with pytest.raises(ValueError, match="needs buffer features"):
        model.encode_history(History(latents=volume(1, 8, 7, 0)))
    with pytest.raises(ValueError, match="multiples of"):
        model(**{**given, "latents": given["latents"][..., :9]})
    with pytest.raises(ValueError, match="buffer features"):
        model(**{**given, "buffers": None})
    with pytest.raises(ValueError, match="rope_dims"):
        WorldTransformer(dataclasses.replace(CONFIG, rope_dims=(4, 4, 4)))


class TestHistoryMemory:
    """The ring itself."""

    def test_appending_equals_building_at_once(self) -> None:
        latents, buffers = volume(2, 8, 12, 0), volume(2, 16, 12, 1)
        for counts in ([12], [1] * 12, [4, 4, 4], [5, 7]):
            memory, start = HistoryMemory(7), 0
            for count in counts:
                memory.append(latents[:, :, start : start + count], buffers[:, :, start : start + count])
                start += count
            view = memory.view()
            assert view is not None and view.buffers is not None and view.valid is None
            assert torch.equal(view.latents, latents[:, :, 5:]) and torch.equal(view.buffers, buffers[:, :, 5:])

    def test_a_short_past_is_marked(self) -> None:
        memory = HistoryMemory(7)
        assert memory.view() is None
        memory.append(volume(1, 8, 2, 0))
        view = memory.view()
        assert view is not None and view.valid is not None and view.valid[0].tolist() == [False] * 5 + [True] * 2
        assert view.latents.shape[2] == 7 and view.latents[:, :, :5].eq(0).all()
        memory.reset()
        assert memory.view() is None

    def test_another_size_or_missing_buffers_are_errors(self) -> None:
        memory = HistoryMemory(7)
        memory.append(volume(1, 8, 2, 0))
        with pytest.raises(ValueError, match="reset"):
            memory.append(volume(1, 8, 2, 0)[..., :4])
        with pytest.raises(ValueError, match="always or never"):
            memory.append(volume(1, 8, 2, 0), volume(1, 16, 2, 0))
