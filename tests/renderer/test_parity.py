"""Our transformer against diffusers' classes for Helios and Wan, tiny and random: the same weights, the same result."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from flowshade.renderer.memory import History, HistoryBand
from flowshade.renderer.transformer import TextContext, TransformerConfig, WorldTransformer

BANDS = {
    "long": HistoryBand(frames=16, patch=(4, 8, 8)),
    "mid": HistoryBand(frames=2, patch=(2, 4, 4)),
    "short": HistoryBand(frames=1, patch=(1, 2, 2)),
}
SHARED = {"text_dim": 12, "freq_dim": 32, "ffn_dim": 48}


def ours(
    *, channels: int, buffers: int = 0, amplify: bool = False, rope_dims: tuple[int, int, int] = (4, 6, 6)
) -> WorldTransformer:
    """The settings that make us Helios."""
    return WorldTransformer(
        TransformerConfig(
            latent_channels=channels,
            buffer_channels=buffers,
            heads=2,
            head_dim=16,
            layers=2,
            rope_dims=rope_dims,
            rope_theta=10000.0,
            memory="full",
            history_buffers=False,
            history_width=None,
            amplify_history=amplify,
            cross_attention_every=1,
            cross_attention_heads=None,
            look_embedding=False,
            exact_gelu=False,
            **BANDS,
            **SHARED,
        )
    )


def shaken(theirs: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.3 if parameter.ndim > 1 else 0.6)
    return theirs.eval()


@pytest.mark.parametrize("size", [(8, 16), (6, 10)], ids=["divides", "is padded"])
@pytest.mark.parametrize("amplify", [False, True])
def test_full_memory_equals_helios(size: tuple[int, int], amplify: bool) -> None:
    pytest.importorskip("diffusers")
    from diffusers.models.transformers.transformer_helios import HeliosTransformer3DModel

    theirs = shaken(
        HeliosTransformer3DModel(
            num_attention_heads=2,
            attention_head_dim=16,
            in_channels=4,
            out_channels=4,
            num_layers=2,
            rope_dim=(4, 6, 6),
            is_amplify_history=amplify,
            **SHARED,
        )
    )
    model = ours(channels=4, amplify=amplify)
    model.load_state_dict(theirs.state_dict(), strict=True)
    latents, past = torch.randn(2, 4, 3, *size), torch.randn(2, 4, 19, *size)
    tokens, timestep = torch.randn(2, 5, 12), torch.tensor([900.0, 250.0])
    index = torch.arange(22)[None].expand(2, -1)
    with torch.no_grad():
        expected = theirs(
            latents,
            timestep,
            tokens,
            indices_hidden_states=index[:, 19:],
            indices_latents_history_long=index[:, :16],
            indices_latents_history_mid=index[:, 16:18],
            indices_latents_history_short=index[:, 18:19],
            latents_history_long=past[:, :, :16],
            latents_history_mid=past[:, :, 16:18],
            latents_history_short=past[:, :, 18:],
            return_dict=False,
        )[0]
        history = model.encode_history(History(latents=past))
        actual = model(latents, timestep, TextContext(tokens=tokens), history_kv=history)
        without = model(latents, timestep, TextContext(tokens=tokens))
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4 * expected.std().item())
    assert (without - expected).abs().max() > 0.01 * expected.std()  # the past was heard


def test_no_memory_equals_wan() -> None:
    pytest.importorskip("diffusers")
    from diffusers.models.transformers.transformer_wan import WanTransformer3DModel

    theirs = shaken(
        WanTransformer3DModel(
            num_attention_heads=2, attention_head_dim=16, in_channels=10, out_channels=4, num_layers=2, **SHARED
        )
    )
    model = ours(channels=4, buffers=6, rope_dims=(8, 4, 4))  # how Wan shares 16 channels
    state = theirs.state_dict()
    state["norm_out.scale_shift_table"] = state.pop("scale_shift_table")
    for name in list(model.state_dict()):
        if name.startswith(("patch_long", "patch_mid", "patch_short")):  # memory is what a teacher lacks
            state[name] = model.state_dict()[name]
    model.load_state_dict(state, strict=True)
    latents, buffers, tokens = torch.randn(2, 4, 3, 8, 12), torch.randn(2, 6, 3, 8, 12), torch.randn(2, 5, 12)
    timestep = torch.tensor([900.0, 250.0])
    with torch.no_grad():
        expected = theirs(torch.cat([latents, buffers], 1), timestep, tokens, return_dict=False)[0]
        actual = model(latents, timestep, TextContext(tokens=tokens), buffers)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4 * expected.std().item())
